"""Counts the documents of a bucket (a group of documents) that are dropped as duplicates or near duplicates.

Copies of a text are in the same bucket, because a hash of the text selects the bucket. The names of the documents come
from the index of the spill files (intermediate files with tokenized documents).
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
    """Says which document a near duplicate resembles. `name` is the name of that document. `similarity` is the
    estimated share of shingles (runs of words) that the two documents have in common."""

    name: str
    similarity: float

    def __str__(self) -> str:
        return f"{self.similarity:.2f} like {self.name}"


def count_duplicates(extents: Sequence[Extent], *, near: Mapping[bytes, Match], rejects: RejectWriter) -> ReadTally:
    """Return counts and examples of the documents in `extents` (ranges of spill files) that are dropped as copies or
    near duplicates. Write the dropped documents to `rejects` (the files of documents left out).

    `near` maps the id of each near duplicate to its match. Of several copies of a text, one is kept: the first by index
    into config.source_names, then by name, then by index into config.sources. If a mark in `extents` says that a
    held-out document has the same text, no copy is kept. Memory holds one name for each text with copies, however many
    copies there are.
    """
    tally = ReadTally()
    copies, held_out = _repeated_ids(extents)
    if not copies and not near:
        return tally
    first = _choose_first(extents, copies=copies - held_out)
    met: set[bytes] = set()
    for name, number, origin in read_origins(extents):
        if name in held_out:
            _leave_out(origin, DUPLICATE, "same text as a held-out document", tally=tally, rejects=rejects)
            continue
        kept = first.get(name)
        if kept is not None and (name in met or (number, *origin[:2]) != (kept.number, kept.source, kept.name)):
            _leave_out(origin, DUPLICATE, f"same text as {kept.name}", tally=tally, rejects=rejects)
            continue
        met.add(name)
        if name in near:
            _leave_out(origin, NEAR_DUPLICATE, str(near[name]), tally=tally, rejects=rejects)
    return tally


class _First(NamedTuple):
    """The copy of a text that is kept. Of all copies, it is the one whose tuple is the smallest."""

    number: int
    name: str
    source: int


def _choose_first(extents: Sequence[Extent], *, copies: frozenset[bytes]) -> dict[bytes, _First]:
    """Choose which copy of each text to keep, and return {id of the text: copy to keep}. `copies` has the ids (hashes)
    of the texts that occur more than once."""
    first: dict[bytes, _First] = {}
    for name, number, origin in read_origins(extents) if copies else ():
        if name in copies:
            own = _First(number, origin.name, origin.source)
            first[name] = min(own, first.get(name, own))
    return first


def _repeated_ids(extents: Sequence[Extent]) -> tuple[frozenset[bytes], frozenset[bytes]]:
    """Return (repeated, held out) for the documents in `extents` (ranges of spill files): the document ids that occur
    more than once, and those that are marked as held out. Copies of a text have the same id."""
    index = read_index(extents)
    ids = index.ids
    _, first, counts = np.unique(ids.view(f"V{ID_BYTES}").ravel(), return_index=True, return_counts=True)
    copies = frozenset(ids[position].tobytes() for position in first[counts > 1])
    return copies, frozenset(ids[position].tobytes() for position in np.flatnonzero(index.tokens == 0))


def _leave_out(origin: Origin, reason: str, detail: str, *, tally: ReadTally, rejects: RejectWriter) -> None:
    shown = f"{detail}: {excerpt(origin.text)}"
    tally.count_drop(reason, source=origin.source, name=origin.name, detail=shown)
    rejects.add(source=origin.source, name=origin.name, reason=reason, detail=detail, text=origin.text)
