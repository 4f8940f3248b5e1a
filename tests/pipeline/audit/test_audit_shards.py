"""What the auditor finds over shards: rows and documents that stand in several, and shards that are not even."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from audit_sets import CLS, FIRST_WORD, MASK, SEP, faults, first, long_row, notes, shard_name
from pipeline.audit.across import DOCUMENT, Spill, read_part
from pipeline.audit.findings import Place
from pipeline.audit.run import audit
from pipeline.dataset.manifest import read_manifest
from planting import Rows, edit_rows, read_shard


def test_identical_rows_within_and_over_shards(copied: Path) -> None:
    """All shards identical, accuracy stuck (mlcommons/training_results_v2.1#10): duplicate-row audit over shards."""
    other = read_shard(copied, 0)

    def plant(rows: Rows) -> Rows:
        number = long_row(rows)
        return [*rows, rows[number], other[long_row(other)]]

    edit_rows(copied, plant, index=1)
    found = audit(copied, workers=1)
    assert faults(found)["identical rows"] == 2
    size = read_manifest(copied).shards[1].rows
    place, text = first(found, "identical rows")
    assert place == Place(shard_name(copied, 1), 0, size - 2)
    assert text.startswith(f"identical to {shard_name(copied, 1)}, row group 0, row ")
    assert faults(found)["documents"] >= 1, "the row's document now stands in two shards"


def test_shards_that_repeat_others(copied: Path) -> None:
    rows = read_shard(copied, 0)
    edit_rows(copied, lambda _: rows, index=1)
    found = audit(copied, workers=1)
    assert faults(found)["repeated shards"] == 2
    assert faults(found)["identical rows"] > 100
    assert faults(found)["documents"] > 20


def test_short_rows_that_repeat_are_notes(copied: Path) -> None:
    short = [CLS, FIRST_WORD, SEP, FIRST_WORD + 1, SEP]

    def plant(rows: Rows) -> Rows:
        row = {**rows[0], "input_ids": short, "num_tokens": 5, "first_length": 3}
        row |= {"masked_positions": [[1], [3]], "masked_inputs": [[MASK], [MASK]]}
        return [*rows, row, row]

    edit_rows(copied, plant)
    found = audit(copied, workers=1)
    assert faults(found) == {}
    assert notes(found) == {"identical rows": 1}


def test_leakage(copied: Path) -> None:
    held_out = read_shard(copied, 3)
    assert read_manifest(copied).shards[3].split == "validation"
    number = long_row(held_out)

    def plant(rows: Rows) -> Rows:
        mine = rows[long_row(rows)]
        leaked = {**held_out[number], "document_id": mine["document_id"]}
        leaked["second_document_id"] = (
            mine["document_id"] if leaked["next_sentence_label"] == 0 else rows[-1]["document_id"]
        )
        mine = {**mine, "document_id": held_out[0]["document_id"], "next_sentence_label": 1}
        return [*rows, leaked, mine]

    edit_rows(copied, plant)
    found = audit(copied, workers=1)
    leak = found.findings.by_check["leakage"]
    assert leak.faults == 2
    assert leak.first_fault is not None
    assert leak.first_fault[0].file == shard_name(copied, 3)


def test_uneven_shards(copied: Path) -> None:
    edit_rows(copied, lambda rows: [row for row in rows if row["document_id"] == rows[0]["document_id"]], index=2)
    found = audit(copied, workers=1)
    assert faults(found)["even shards"] == 1
    place, text = first(found, "even shards")
    assert place == Place(shard_name(copied, 2))
    assert "documents, at least 8" in text

    def shorten(rows: Rows) -> None:
        for row in rows:
            row.update(input_ids=[CLS, FIRST_WORD, SEP, FIRST_WORD, SEP], num_tokens=5, first_length=3)
            row.update(masked_positions=[[1], [3]], masked_inputs=[[MASK], [MASK]])
        del rows[16:]

    edit_rows(copied, shorten, index=1)
    found = audit(copied, workers=1)
    assert faults(found)["even shards"] == 2
    assert first(found, "even shards")[1].startswith("80 tokens, at least ")


def test_the_spill_has_files_by_part_and_process_not_by_shard(tmp_path: Path) -> None:
    """20,000 shards in 150 parts were 6 million files. A part comes back in the order of the shards."""
    for shard in (3, 1, 2, 0):
        spill = Spill(tmp_path, parts=4)
        for group in range(2):
            records = np.zeros(50, DOCUMENT)
            records["shard"], records["group"] = shard, group
            records["id"][:, 0] = np.arange(50)
            spill.add("documents", records, key=records["id"][:, 0])
        spill.flush()
    assert len(list(tmp_path.iterdir())) == 4
    parts = [read_part(tmp_path, "documents", part, dtype=DOCUMENT) for part in range(4)]
    assert sum(part.size for part in parts) == 400
    for part in parts:
        places = [(int(row["shard"]), int(row["group"])) for row in part]
        assert places == sorted(places)
