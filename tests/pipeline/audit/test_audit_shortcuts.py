"""The auditor sees rules that tell next sentences without reading, in sets made otherwise."""

from __future__ import annotations

from pathlib import Path

from audit_sets import faults, notes
from corpora import build_text, make_documents
from pipeline.audit.run import audit
from pipeline.dataset import read_manifest
from planting import Rows, edit_rows


def relabel_long_rows(rows: Rows) -> None:
    """Nine in ten of the rows with a second segment above 20 tokens do not follow, and nine in ten of the others do."""
    for number, row in enumerate(rows):
        if row["next_sentence_label"] is not None:
            is_long = row["num_tokens"] - row["first_length"] - 1 > 20
            row["next_sentence_label"] = int(is_long != (number % 10 == 0))


def test_a_set_whose_lengths_tell_the_labels_is_faulty(tmp_path: Path) -> None:
    build_text(tmp_path, make_documents(600, sentences=(6, 14)), masks_per_pair=1)
    root = tmp_path / "out"
    clean = audit(root, workers=1).findings.by_check["shortcuts"]
    assert (clean.faults, clean.notes) == (0, 0)
    assert clean.looked_at > 1_600
    assert "sources of the two segments 5" in clean.remark
    edit_rows(root, relabel_long_rows)
    found = audit(root, workers=1)
    assert faults(found)["shortcuts"] >= 1
    example = found.findings.by_check["shortcuts"].first_fault
    assert example is not None
    assert "tokens in the second segment, by source" in example[1]
    assert "above 65%" in example[1]


def test_published_pairs_are_notes(tmp_path: Path) -> None:
    documents = make_documents(400, sentences=(1, 3)) + make_documents(20, seed=1, sentences=(40, 60))
    build_text(tmp_path, documents, mode="reference", masks_per_pair=1, passes=3)
    root = tmp_path / "out"
    assert read_manifest(root).config["mode"] == "reference"
    found = audit(root, workers=1)
    assert "shortcuts" not in faults(found)
    assert notes(found)["shortcuts"] >= 1
