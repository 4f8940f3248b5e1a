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
    """The document that a near duplicate resembles: its `name`, and the estimated `similarity` of the two (the share of
    shingles, runs of words, that they have in common)."""

    name: str
    similarity: float

    def __str__(self) -> str:
        return f"{self.similarity:.2f} like {self.name}"


def count_duplicates(extents: Sequence[Extent], *, near: Mapping[bytes, Match], rejects: RejectWriter) -> ReadTally:
    """Return counts and examples of the documents in `extents` (ranges of spill files) that are dropped as copies or
    near duplicates. Write these documents to `rejects` (the files of documents left out).

    `near` maps the id of each near duplicate to its match. One of several copies is kept: the first by index into
    config.source_names, then by name, then by index into config.sources. Memory holds the source and name of duplicates
    only (and their text, if rejects are kept).
    """
    tally = ReadTally()
    copies = _repeated_ids(extents)
    if not copies and not near:
        return tally
    waiting: dict[bytes, list[tuple[int, Origin]]] = {}
    for name, number, origin in read_origins(extents):
        if name in copies:
            waiting.setdefault(name, []).append((number, origin))
        elif name in near:
            _leave_out(origin, NEAR_DUPLICATE, str(near[name]), tally=tally, rejects=rejects)
    for name, found in waiting.items():
        (_, first), *others = sorted(found, key=lambda item: (item[0], item[1].name, item[1].source))
        if name in near:
            _leave_out(first, NEAR_DUPLICATE, str(near[name]), tally=tally, rejects=rejects)
        for _, origin in others:
            _leave_out(origin, DUPLICATE, f"same text as {first.name}", tally=tally, rejects=rejects)
    return tally


def _repeated_ids(extents: Sequence[Extent]) -> frozenset[bytes]:
    ids = read_index(extents).ids
    _, first, counts = np.unique(ids.view(f"V{ID_BYTES}").ravel(), return_index=True, return_counts=True)
    return frozenset(ids[position].tobytes() for position in first[counts > 1])


def _leave_out(origin: Origin, reason: str, detail: str, *, tally: ReadTally, rejects: RejectWriter) -> None:
    shown = f"{detail}: {excerpt(origin.text)}"
    tally.count_drop(reason, source=origin.source, name=origin.name, detail=shown)
    rejects.add(source=origin.source, name=origin.name, reason=reason, detail=detail, text=origin.text)
