"""The bigram line of a run: counts and probabilities by hand, what is not known, and the sample of row groups."""

from __future__ import annotations

from collections.abc import Callable
from math import log
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from micro_batches import make_micro_batch
from pipeline.dataset.manifest import read_manifest
from planting import copy_set
from small_runs import make_config, run
from synthetic import SPECIAL, write_data_set
from trainer.data.micro_batch import MicroBatch
from trainer.data.row_groups import RowGroupError
from trainer.telemetry.metrics import read_json_lines
from trainer.train.bigram import Bigrams, adjacent, count_bigrams
from trainer.train.evaluate import Evaluation, unigram_log_probabilities
from worker_group import WorkerGroup

UNIGRAM = np.log(np.array([0.4, 0.3, 0.1, 0.1, 0.1]))
PAIRS = np.array([[0, 1], [0, 1], [0, 2], [2, 1]])
"""0 is followed by 1 twice and by 2 once; 1 is preceded by 0 twice and by 2 once."""


def micro_batch_of(ids: list[int], *, masked: dict[int, int]) -> MicroBatch:
    """One pair; `masked`: place -> the token that stood there."""
    micro_batch = make_micro_batch([len(ids)], masked=[len(masked)])
    micro_batch.input_ids[:] = ids
    micro_batch.masked_positions[:] = list(masked)
    micro_batch.masked_labels[:] = list(masked.values())
    return micro_batch


def chances(ids: list[int], *, masked: dict[int, int], pairs: NDArray[np.int64] = PAIRS) -> list[float]:
    """Probability of each masked token; 3 and 4 are beside nothing in PAIRS."""
    return np.exp(-Bigrams(pairs, unigram=UNIGRAM).losses(micro_batch_of(ids, masked=masked))).tolist()


def test_probabilities_by_hand() -> None:
    """After 0 (3 pairs, 2 kinds): 1 has (2 + 2 x 0.3) / 5. Before 1 (3 pairs, 2 kinds): 0 has (2 + 2 x 0.4) / 5."""
    assert chances([3, 0, 4, 3], masked={2: 1}) == pytest.approx([2.6 / 5])
    assert chances([3, 4, 1, 3], masked={1: 0}) == pytest.approx([2.8 / 5])
    assert chances([3, 0, 4, 1, 3], masked={2: 2}) == pytest.approx([((1 + 2 * 0.1) / 5 + (1 + 2 * 0.1) / 5) / 2])
    assert chances([3, 0, 4, 3], masked={2: 4}) == pytest.approx([2 * 0.1 / 5])


def test_the_unigram_is_all_where_no_neighbour_is_known() -> None:
    """Masked themselves, whatever stands there instead; never seen; and no pair at all."""
    assert chances([3, 0, 1, 3], masked={1: 0, 2: 1}) == pytest.approx([0.4, 0.3])
    assert chances([3, 4, 3], masked={1: 1}) == pytest.approx([0.3])
    assert chances([0, 4, 1], masked={1: 2}, pairs=np.zeros((0, 2), np.int64)) == pytest.approx([0.1])


@pytest.mark.parametrize(("left", "right"), [(0, 1), (0, 3), (3, 1), (2, 0), (3, 3)])
def test_probabilities_sum_to_one(left: int, right: int) -> None:
    sums = sum(chances([left, 4, right], masked={1: token})[0] for token in range(5))
    assert sums == pytest.approx(1.0)


def test_pairs_stop_at_special_tokens_and_ends_of_rows() -> None:
    cls, sep, unk = SPECIAL.cls, SPECIAL.sep, SPECIAL.unk
    rows = pa.array([[cls, 7, 8, unk, sep, 9, 5, sep], [cls, 6, 5, sep]], pa.list_(pa.uint16()))
    pairs = adjacent(rows, special=SPECIAL.model_dump()).tolist()
    assert pairs == [[7, 8], [8, unk], [9, 5], [6, 5]]


def test_a_large_split_is_sampled_by_row_groups(tmp_path: Path) -> None:
    manifest = write_data_set(tmp_path, shards=3, row_groups=2, rows=20, max_seq_length=32, vocabulary_size=256)
    unigram = unigram_log_probabilities(tmp_path, vocabulary_size=256)

    def total(most: int) -> int:
        bigrams = count_bigrams(str(tmp_path), manifest=manifest, unigram=unigram, max_tokens=most)
        return int(bigrams._counts.sum())

    one, some, every = total(1), total(manifest.num_tokens("train") // 2), total(10**9)
    assert 0 < one < some < every
    assert total(1) == one, "the same sample every time"
    assert every <= manifest.num_tokens("train")


def test_a_damaged_row_group_is_named_or_left_out(tmp_path: Path) -> None:
    write_data_set(tmp_path / "whole", shards=2, row_groups=1, rows=20, max_seq_length=32, vocabulary_size=256)
    data = copy_set(tmp_path / "whole", tmp_path / "data")
    manifest = read_manifest(data)
    (data / manifest.shards_of("train")[1].path).unlink()
    unigram = unigram_log_probabilities(data, vocabulary_size=256)
    with pytest.raises(RowGroupError, match="row group 0: cannot be read"):
        count_bigrams(str(data), manifest=manifest, unigram=unigram)
    left = count_bigrams(str(data), manifest=manifest, unigram=unigram, skip_corrupt=True)
    assert left._counts.sum() > 0


def test_the_bigram_loss_is_recorded_alike_on_any_number_of_workers(
    worker_group: Callable[[int], WorkerGroup], tmp_path: Path
) -> None:
    data = tmp_path / "data"
    write_data_set(data, row_groups=1, rows=10, max_seq_length=32, vocabulary_size=256)
    losses = []
    for world_size in (1, 2):
        output = tmp_path / str(world_size)
        report = run(worker_group(world_size), make_config(data, output, max_steps=1, workers=world_size))
        (record,) = read_json_lines(output / "evaluations.jsonl")
        assert sum(f"bigram cross-entropy of the same masked tokens {record['bigram_loss']:.4f}" in line
                   for line in report.said) == 1  # fmt: skip
        losses.append(record["bigram_loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)
    assert 0 < losses[0] < 3 * log(256)


def test_a_record_of_an_older_run_has_none() -> None:
    record = Evaluation(9, 100, 1500, 5.0, 0.25, 0.5, 0.75, 6.25, bigram_loss=5.5).record()
    assert Evaluation.of(record).bigram_loss == 5.5
    assert "bigram cross-entropy of the same masked tokens 5.5000 nats" in "\n".join(Evaluation.of(record).lines())
    del record["bigram_loss"]
    assert not any("bigram" in line for line in Evaluation.of(record).lines())
