"""The results of an audit: for every check, how much was checked, how much is wrong, and where the first fault is.

Findings can be merged in any order with the same result. So the result of an audit depends neither on processes nor on
shard order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

CHECKS: Mapping[str, str] = {
    "files": "files that the manifest lists: size, footer and whole-file hash",
    "unlisted files": "files in the folder",
    "pages": "row groups read, page checksums verified",
    "schema": "shards: columns, types, schema version, vocabulary hash",
    "vocabulary": "facts of the tokenizer folder and of the token counts",
    "counts": "numbers of the manifest counted again",
    "layout": "rows: [CLS] A [SEP] B [SEP], num_tokens, first_length, label and second document agree",
    "token ids": "ids in rows and mask sets: inside the vocabulary",
    "lengths": "rows: at most max_seq_length tokens",
    "sources": "rows: a source of the manifest, a pass that its weight allows",
    "label balance": "next-sentence labels: share of not next",
    "shortcuts": "rows: next sentences are not told without reading, by source, language or length",
    "negatives' documents": "labels against the documents of both segments",
    "true next": "negatives: no other row shows the second segment as the next",
    "mask sets": "mask sets: K a row, a replacement for every position, none empty",
    "mask positions": "masked positions: ascending, inside the row, no duplicates",
    "max predictions": "mask sets: at most max_predictions positions",
    "special targets": "masked positions: no special token is a target",
    "special replacements": "masked positions: no special or unused id as random replacement",
    "whole words": "mask sets: no word is masked in part",
    "one draw a word": "words masked: all pieces are [MASK] or none is",
    "mask rate": "mask sets: as many positions as masked_probability gives",
    "80/10/10": "masked positions: shares of [MASK], kept, random",
    "identical rows": "rows: no duplicates, masks and label included",
    "repeated shards": "shards: at most half of the rows are in other shards too",
    "documents": "documents: each in one shard",
    "leakage": "documents and rows: none in both training and validation",
    "even shards": "shards: documents and tokens at least what the build writes to each",
}
"""The name of every check and what it looks at, in the order of the printed table."""


class Place(NamedTuple):
    """A place in a data set: a file, a row group in it, and a row in that row group.

    `row_group` is -1 if the place is the whole file, and `row` is -1 if it is the whole file or row group.
    """

    file: str
    row_group: int = -1
    row: int = -1

    def __str__(self) -> str:
        parts = [self.file]
        parts += [f"row group {self.row_group}"] if self.row_group >= 0 else []
        parts += [f"row {self.row}"] if self.row >= 0 else []
        return ", ".join(parts)


@dataclass(slots=True)
class Finding:
    """The result of one check. `looked_at` says how many things were checked, `faults` how many were wrong, and `notes`
    how many were odd but explained."""

    looked_at: int = 0
    faults: int = 0
    notes: int = 0
    first_fault: tuple[Place, str] | None = None
    first_note: tuple[Place, str] | None = None
    remark: str = ""
    """The measured values, which the table shows."""


@dataclass(slots=True)
class Findings:
    """Holds the result of each check, by the name of the check (a key of CHECKS)."""

    by_check: dict[str, Finding] = field(default_factory=lambda: {name: Finding() for name in CHECKS})

    def looked(self, check: str, count: int = 1) -> None:
        """Record that a check looked at more things. `check` is the name of the check, and `count` says how many
        things."""
        self.by_check[check].looked_at += int(count)

    def add(self, check: str, place: Place, text: str, *, count: int = 1, note: bool = False) -> None:
        """Add faults to the check that is named `check`, or notes (odd but explained) if `note` is true. `count` says
        how many to add.

        `place` says where the first of these faults or notes is, and `text` says what is wrong there.
        """
        finding, example = self.by_check[check], (place, text)
        if note:
            finding.notes += int(count)
            finding.first_note = min(finding.first_note or example, example)
        else:
            finding.faults += int(count)
            finding.first_fault = min(finding.first_fault or example, example)

    def merge(self, other: Findings) -> None:
        """Add the findings of `other` to these findings."""
        for name, more in other.by_check.items():
            own = self.by_check[name]
            own.looked_at += more.looked_at
            own.faults += more.faults
            own.notes += more.notes
            own.first_fault = min((e for e in (own.first_fault, more.first_fault) if e), default=None)
            own.first_note = min((e for e in (own.first_note, more.first_note) if e), default=None)
            own.remark = own.remark or more.remark

    @property
    def faults(self) -> int:
        """The number of faults, summed over all checks."""
        return sum(finding.faults for finding in self.by_check.values())

    @property
    def notes(self) -> int:
        """The number of notes, summed over all checks."""
        return sum(finding.notes for finding in self.by_check.values())


def to_table(findings: Findings) -> str:
    """Return a text table: one line per check, and below that line the check's first fault, first note and remark."""
    width = max(map(len, CHECKS))
    lines = [f"{'check':<{width}}  {'looked at':>13}  {'faults':>9}  {'notes':>9}  of"]
    for name, what in CHECKS.items():
        finding = findings.by_check[name]
        looked = f"{finding.looked_at:,}" if finding.looked_at else "-"
        lines.append(f"{name:<{width}}  {looked:>13}  {finding.faults:>9,}  {finding.notes:>9,}  {what}")
        for label, example in (("fault", finding.first_fault), ("note", finding.first_note)):
            if example:
                lines.append(f"{'':<{width}}  first {label}: {example[0]}: {example[1]}")
        if finding.remark:
            lines.append(f"{'':<{width}}  {finding.remark}")
    return "\n".join(lines)


def to_data(findings: Findings) -> list[dict[str, Any]]:
    """Return the findings as JSON data: a list with a dict for each check. The keys are "check" (the name), "of" (what
    the check looks at), "looked_at", "faults", "notes", "first_fault", "first_note" and "remark"."""
    return [
        {
            "check": name,
            "of": what,
            **asdict(findings.by_check[name]),
            "first_fault": _example(findings.by_check[name].first_fault),
            "first_note": _example(findings.by_check[name].first_note),
        }
        for name, what in CHECKS.items()
    ]


def _example(example: tuple[Place, str] | None) -> dict[str, Any] | None:
    if example is None:
        return None
    place, text = example
    group, row = (number if number >= 0 else None for number in (place.row_group, place.row))
    return {"file": place.file, "row_group": group, "row": row, "text": text}
