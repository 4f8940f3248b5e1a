"""Counts and examples of a build: merged in any order, and through the file of results."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from pipeline.tally import (
    BuildResult,
    Example,
    ReadTally,
    RowTally,
    choose_examples,
    lowest_examples,
    merge_reads,
    results_from_tree,
    results_to_tree,
)


def test_examples_of_drops_are_few_and_the_same_in_any_order() -> None:
    tallies = []
    for number in range(10):
        tally = ReadTally()
        tally.count_drop("redirect", source=0, name=f"page {number}", detail="<x>")
        tally.rejects = [f"file {number}"]
        tallies.append(tally)
    forward, backward = merge_reads(tallies), merge_reads(tallies[::-1])
    assert forward == backward
    assert forward.drops == {0: {"redirect": 10}}
    assert forward.examples == {"redirect": [("page 0", "<x>"), ("page 1", "<x>"), ("page 2", "<x>")]}
    assert len(forward.rejects) == 10


def test_results_survive_the_exchange_file(tmp_path: Path) -> None:
    tally = RowTally(np.ones(3, np.int64), np.ones(4, np.int64), text_at=np.arange(2), masked_at=np.arange(2))
    left_out = ReadTally()
    left_out.count_drop("duplicate", source=2, name="a", detail="b")
    left_out.rejects = ["/elsewhere/x"]
    tree = json.loads(json.dumps(results_to_tree(BuildResult([], {"train": tally}, left_out))))
    result = results_from_tree(tree, folder=tmp_path)
    left_out.rejects = [f"{tmp_path}/x"]
    assert result.left_out == left_out
    assert result.tallies["train"].text_at.tolist() == [0, 1]
    assert result.tallies["train"].document_lengths.size == tally.document_lengths.size


@pytest.mark.parametrize("label", [0, 1])
def test_the_pairs_shown_are_of_both_kinds_in_any_order_of_the_shards(label: int) -> None:
    """Twenty of one kind have lower keys than the three of the other."""
    examples = [Example(key, (1,), 1, label if key < 20 else 1 - label, (), ()) for key in range(23)]
    for order in (examples, examples[::-1]):
        kept: list[Example] = []
        for example in order:
            kept = lowest_examples([*kept, example])
        assert [example.key for example in choose_examples(kept)] == [0, 1, 2, 20, 21]
    assert [example.key for example in choose_examples(lowest_examples(examples[:20]))] == [0, 1, 2, 3, 4]
