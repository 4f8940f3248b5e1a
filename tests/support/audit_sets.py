"""A clean set for the auditor's tests, and what it finds in a copy with a planted fault."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from corpora import build_text, make_documents
from pipeline.audit.findings import Place
from pipeline.audit.run import Audit
from pipeline.dataset.manifest import read_manifest
from planting import Rows

PAD, UNK, CLS, SEP, MASK, FIRST_WORD, FIRST_PIECE = 0, 1, 2, 3, 4, 5, 75
"""Ids of corpora.write_vocabulary: five special tokens, 70 words, 70 pieces that continue one."""


def build_clean_set(folder: Path) -> Path:
    """Strict, whole words, K = 2, three training shards and one held out, rows of 64 tokens; the set's folder."""
    build_text(folder, make_documents(200, sentences=(6, 14)), validation_fraction=0.1, shards=3)
    return folder / "out"


def faults(found: Audit) -> dict[str, int]:
    return {name: finding.faults for name, finding in found.findings.by_check.items() if finding.faults}


def notes(found: Audit) -> dict[str, int]:
    return {name: finding.notes for name, finding in found.findings.by_check.items() if finding.notes}


def first(found: Audit, check: str) -> tuple[Place, str]:
    example = found.findings.by_check[check].first_fault
    assert example is not None
    return example


def shard_name(root: Path, index: int) -> str:
    return read_manifest(root).shards[index].path


def long_row(rows: Rows, *, label: int | None = None, after: int = 0) -> int:
    """A row with two segments of 20 words or more, from number `after` on."""
    for number, row in enumerate(rows[after:], start=after):
        first, length = row["first_length"], row["num_tokens"]
        if min(first - 2, length - first - 1) >= 20 and label in (None, row["next_sentence_label"]):
            return number
    raise AssertionError("no such row")


def change(number: int, **values: Any) -> Callable[[Rows], None]:
    def plant(rows: Rows) -> None:
        rows[number] = {**rows[number], **values}

    return plant
