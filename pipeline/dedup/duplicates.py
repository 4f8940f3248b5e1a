"""Counts the duplicates and near duplicates that are dropped from a bucket (a group of documents).

Copies of a text share a bucket, because a hash of the text selects it. Names come from the index of the spill files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from pipeline.cleaning import RejectWriter, excerpt
from pipeline.documents import ID_BYTES
from pipeline.shuffle import Extent, Origin, read_index, read_origins
from pipeline.tally import ReadTally

DUPLICATE, NEAR_DUPLICATE = "duplicate", "near_duplicate"


class Match(NamedTuple):
    """The document that a near duplicate resembles: its name, and the estimated share of common shingles (word
    runs)."""

    name: str
    similarity: float

    def __str__(self) -> str:
        return f"{self.similarity:.2f} like {self.name}"


def count_duplicates(extents: Sequence[Extent], *, near: Mapping[bytes, Match], rejects: RejectWriter) -> ReadTally:
    """Return counts and examples of the copies and near duplicates among `extents`, and add them to `rejects`.

    `near` maps the ids of near duplicates to their matches. One of several copies stays: the first by (name, source)
    from the source with the lowest number. Memory holds one name for each text with copies, however many there are.
    """
    tally = ReadTally()
    copies = _repeated_ids(extents)
    if not copies and not near:
        return tally
    first = _choose_first(extents, copies=copies)
    met: set[bytes] = set()
    for name, number, origin in read_origins(extents):
        kept = first.get(name)
        if kept is not None and (name in met or (number, *origin[:2]) != (kept.number, kept.source, kept.name)):
            _leave_out(origin, DUPLICATE, f"same text as {kept.name}", tally=tally, rejects=rejects)
            continue
        met.add(name)
        if name in near:
            _leave_out(origin, NEAR_DUPLICATE, str(near[name]), tally=tally, rejects=rejects)
    return tally


class _First(NamedTuple):
    """The copy of a text that stays; they are ordered like this tuple."""

    number: int
    name: str
    source: int


def _choose_first(extents: Sequence[Extent], *, copies: frozenset[bytes]) -> dict[bytes, _First]:
    """Return the copy to keep of each text in `copies`."""
    first: dict[bytes, _First] = {}
    for name, number, origin in read_origins(extents) if copies else ():
        if name in copies:
            own = _First(number, origin.name, origin.source)
            first[name] = min(own, first.get(name, own))
    return first


def _repeated_ids(extents: Sequence[Extent]) -> frozenset[bytes]:
    ids = read_index(extents).ids
    _, first, counts = np.unique(ids.view(f"V{ID_BYTES}").ravel(), return_index=True, return_counts=True)
    return frozenset(ids[position].tobytes() for position in first[counts > 1])


def _leave_out(origin: Origin, reason: str, detail: str, *, tally: ReadTally, rejects: RejectWriter) -> None:
    shown = f"{detail}: {excerpt(origin.text)}"
    tally.count_drop(reason, source=origin.source, name=origin.name, detail=shown)
    rejects.add(source=origin.source, name=origin.name, reason=reason, detail=detail, text=origin.text)
