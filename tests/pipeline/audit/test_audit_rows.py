"""Faults of rows: layout, ids, lengths, labels, negatives; each planted, found and named by its place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from audit_sets import CLS, FIRST_WORD, MASK, SEP, change, faults, first, long_row, shard_name
from pipeline.audit.findings import Place
from pipeline.audit.run import audit
from pipeline.dataset.manifest import read_manifest
from planting import Rows, edit_rows


def test_layout(copied: Path) -> None:
    def plant(rows: Rows) -> None:
        numbers = [number for number, row in enumerate(rows) if row["num_tokens"] == 64 and row["first_length"] > 20]
        damage: list[Callable[[dict[str, Any]], object]] = [
            lambda row: row.update(num_tokens=63),
            lambda row: row["input_ids"].__setitem__(0, FIRST_WORD),
            lambda row: row["input_ids"].__setitem__(-1, FIRST_WORD),
            lambda row: row["input_ids"].__setitem__(row["first_length"] - 1, FIRST_WORD),
            lambda row: row.update(first_length=64),
            lambda row: row["input_ids"].__setitem__(10, SEP),
            lambda row: row["input_ids"].__setitem__(10, MASK),
            lambda row: row.update(second_document_id=None),
            lambda row: row.update(next_sentence_label=None),
            lambda row: row.update(next_sentence_label=2),
            lambda row: row.update(input_ids=[], num_tokens=0),
        ]
        planted.extend(numbers[: len(damage)])
        for number, spoil in zip(numbers, damage, strict=False):
            spoil(rows[number])
        assert len(numbers) >= len(damage)

    planted: list[int] = []
    edit_rows(copied, plant, index=1)
    found = audit(copied, workers=1)
    assert faults(found) == {"layout": 11, "mask positions": 1, "negatives' documents": 1}
    place, text = first(found, "layout")
    assert place == Place(shard_name(copied, 1), 0, planted[0])
    assert text == "num_tokens is 63, input_ids has 64"


def test_ids_out_of_the_vocabulary_and_rows_too_long(copied: Path) -> None:
    def plant(rows: Rows) -> None:
        rows[4]["input_ids"][2] = 145
        rows[6]["masked_inputs"][1][0] = 60_000
        long = rows[long_row(rows, after=20)]
        long["input_ids"] = long["input_ids"][:-1] + [FIRST_WORD] * 10 + [SEP]
        long["num_tokens"] = len(long["input_ids"])
        assert long["num_tokens"] > 64

    edit_rows(copied, plant, row_groups=2)
    found = audit(copied, workers=1)
    assert faults(found)["token ids"] == 2
    assert faults(found)["lengths"] == 1
    assert first(found, "token ids")[0] == Place(shard_name(copied, 0), 0, 4)
    assert "max_seq_length is 64" in first(found, "lengths")[1]


def test_rows_are_named_by_row_group(copied: Path) -> None:
    edit_rows(copied, change(-1, num_tokens=1), row_groups=3)
    found = audit(copied, workers=1)
    place, _ = first(found, "layout")
    sizes = read_manifest(copied).shards[0].row_group_rows
    assert place == Place(shard_name(copied, 0), 2, sizes[2] - 1)


def test_labels_out_of_balance(copied: Path) -> None:
    """Every label random, as a blank line after every sentence makes them (google-research/bert#125)."""

    def keep(rows: Rows) -> Rows:
        return [row for number, row in enumerate(rows) if row["next_sentence_label"] == 1 or number % 4 == 0]

    for index in range(4):
        edit_rows(copied, keep, index=index)
    found = audit(copied, workers=1)
    assert "label balance" in faults(found)
    assert first(found, "label balance")[1].endswith("of labels are not next")


def test_negatives_from_the_same_document(copied: Path) -> None:
    """Real next sentences labelled random, a random span labelled next (DeepLearningExamples#421)."""

    def plant(rows: Rows) -> None:
        negative = next(row for row in rows if row["next_sentence_label"] == 1)
        positive = next(row for row in rows if row["next_sentence_label"] == 0)
        negative["second_document_id"] = negative["document_id"]
        positive["second_document_id"] = rows[-1]["document_id"]
        assert positive["document_id"] != rows[-1]["document_id"]

    edit_rows(copied, plant)
    found = audit(copied, workers=1)
    assert faults(found) == {"negatives' documents": 2}


def test_a_negative_that_is_the_true_next(copied: Path) -> None:
    planted: list[int] = []

    def plant(rows: Rows) -> None:
        """A's end and B as another row shows them in one segment, and a whole pair labelled otherwise."""
        witness = next(row for row in rows if row["first_length"] > 40 and row["next_sentence_label"] == 0)
        spoiled = long_row(rows, label=1)
        text = witness["input_ids"][1 : witness["first_length"] - 1]
        row = rows[spoiled]
        ids = [CLS, *text[:20], SEP, *text[20:36], SEP]
        row.update(input_ids=ids, num_tokens=len(ids), first_length=22, document_id=witness["document_id"])
        row.update(masked_positions=[[1, 2], [1, 2]], masked_inputs=[[MASK, MASK], [MASK, MASK]])
        same = long_row(rows, label=0)
        copied = long_row(rows, label=1, after=spoiled + 1)
        other = rows[copied]["second_document_id"]
        assert other != rows[same]["document_id"]
        rows[copied] = {**rows[same], "next_sentence_label": 1, "second_document_id": other}
        planted.extend([spoiled, copied])

    edit_rows(copied, plant)
    found = audit(copied, workers=1)
    assert faults(found)["true next"] == 3  # the copied pair is found by both ways
    assert first(found, "true next")[0] == Place(shard_name(copied, 0), 0, min(planted))
    assert set(faults(found)) <= {"true next", "mask rate", "whole words"}
