"""Finds documents that share 13 words in a row with given texts (evaluation sets), so that a build can leave these
documents out.

A run is 13 words in a row. The runs of the given texts are hashed and written, sorted, to one file (10 bytes a run).
Every worker maps this file into memory. In addition, a worker holds a bitmap of at most 64 MiB. For most runs of the
corpus, the bitmap already shows that they are not in the file. So a worker checks 15 MB of text a second.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline import draws, storage
from pipeline.cleaning import normalize_text
from pipeline.dedup.word_runs import RUN_WORDS, RunHasher
from pipeline.documents import hash_texts
from pipeline.sources import read_texts

MOST_RUNS = 1 << 24
MOST_FILES = 1 << 16
_SCHEMA = pa.schema([pa.field("run", pa.uint64()), pa.field("file", pa.uint16())])
_NAMES = b"names"
_SHOWN_CHARACTERS = 40
"""Characters of a word that a Match shows."""
_BITS_PER_RUN, _MOST_BITS = 16, 29


class HeldFile(NamedTuple):
    """Says how many texts and runs (13 words in a row) were found in a file, such as an evaluation set. `name` is a
    short name of the file. `runs` says how many distinct runs the texts have."""

    name: str
    texts: int
    """Number of distinct texts with words."""
    short: int
    """Number of distinct texts that have fewer than 13 words, but at least one."""
    runs: int


class Match(NamedTuple):
    """A passage of a document that also occurs in a held text (a text of an evaluation set). `file` is the short name
    of the held text's file, and `words` are the words of the passage."""

    file: str
    words: str


def write_runs(paths: Sequence[str], *, target: str) -> list[HeldFile]:
    """Write the runs (13 words in a row) of all texts in the files `paths` to the file `target`. Return a HeldFile for
    each path, which says how many texts and runs were found.

    If several files have the same run, the run counts for the first of these files. Raises ValueError if a file has no
    words, or if there are more than MOST_FILES files or MOST_RUNS runs. Memory holds 16 bytes for each of MOST_RUNS.
    """
    if len(paths) > MOST_FILES:
        raise ValueError(f"hold_out: {len(paths):,} files are more than {MOST_FILES:,}; join some of them")
    names = short_names(paths)
    hasher = RunHasher()
    lists: list[draws.UInt64s] = []
    found = []
    total = 0
    for path, name in zip(paths, names, strict=True):
        parts: list[draws.UInt64s] = [np.zeros(0, np.uint64)]
        texts = short = fresh = 0
        seen: set[bytes] = set()  # the cells of a table repeat
        for text in read_texts(path):
            digest = hash_texts(text)
            if digest in seen:
                continue
            seen.add(digest)
            is_short: bool | None = None  # for a text without words
            for runs in hasher.hash_text(normalize_text(text).split("\n")):
                parts.append(runs.hashes)
                fresh += runs.hashes.size
                is_short = runs.is_short
                if fresh > MOST_RUNS:
                    parts, fresh = [_distinct(parts, total=total, path=path)], 0
            if is_short is not None:
                texts, short = texts + 1, short + is_short
        own = _distinct(parts, total=total, path=path)
        total += own.size
        if not own.size:
            raise ValueError(f"hold_out: {path} has no words; remove it from hold_out")
        lists.append(own)
        found.append(HeldFile(name, texts, short, own.size))
    numbers = np.repeat(np.arange(len(lists), dtype=np.uint16), [own.size for own in lists])
    runs_of_all, first = np.unique(np.concatenate(lists), return_index=True)
    batch = pa.record_batch([pa.array(runs_of_all), pa.array(numbers[first])], schema=_SCHEMA)
    schema = _SCHEMA.with_metadata({_NAMES: "\0".join(names).encode("utf-8", "surrogateescape")})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(batch.replace_schema_metadata(schema.metadata))
    storage.write_bytes(target, sink.getvalue())
    return found


def _distinct(parts: Sequence[draws.UInt64s], *, total: int, path: str) -> draws.UInt64s:
    """Return the distinct runs of the file `path`, sorted. Raises ValueError if they and the `total` runs of earlier
    files are more than MOST_RUNS."""
    own = np.unique(np.concatenate(parts))
    if total + own.size > MOST_RUNS:
        raise ValueError(
            f"hold_out: the files up to {path} have more than {MOST_RUNS:,} runs of {RUN_WORDS} words (about 100 "
            "MB of text); give only texts that models are evaluated on"
        )
    return own


def short_names(paths: Sequence[str]) -> list[str]:
    """Return a short name for each path. The name has as many of the path's last components as are needed to tell the
    path from the other paths."""
    parts = [path.split("/") for path in paths]
    names = []
    for own in parts:
        length = 1
        while length < len(own) and sum(other[-length:] == own[-length:] for other in parts) > 1:
            length += 1
        names.append("/".join(own[-length:]))
    return names


@dataclass(slots=True)
class HeldTexts:
    """Holds the runs (13 words in a row) of all held texts (texts of evaluation sets), for look-up. `runs` has the
    hashes of the runs, sorted. `files` says for each run in which file it is, as an index into `names`."""

    runs: draws.UInt64s
    files: npt.NDArray[np.uint16]
    names: list[str]
    bitmap: npt.NDArray[np.uint8]
    shift: np.uint64
    hasher: RunHasher

    def find(self, sentences: Sequence[str]) -> Match | None:
        """Return the first passage of a document that is also in a held text (a text of an evaluation set), or None if
        there is no such passage. `sentences` are the document's text."""
        for runs in self.hasher.hash_text(sentences):
            bits = runs.hashes >> self.shift
            may_be = np.flatnonzero(self.bitmap[bits >> np.uint64(3)] & _bit(bits))
            places = np.searchsorted(self.runs, runs.hashes[may_be])
            places[places == self.runs.size] = 0
            sure = np.flatnonzero(self.runs[places] == runs.hashes[may_be])
            if sure.size:
                run = may_be[sure[0]]
                words = (word[:_SHOWN_CHARACTERS] for word in runs.words[runs.starts[run] : runs.ends[run]])
                return Match(self.names[self.files[places[sure[0]]]], " ".join(words))
        return None


@lru_cache(maxsize=1)
def open_runs(path: str) -> HeldTexts:
    """Return the runs (13 words in a row) in a file that write_runs wrote. A local file is mapped into memory, so that
    all workers of a machine share this memory."""
    source = storage.read_bytes(path) if storage.is_url(path) else pa.memory_map(path)
    reader = pa.ipc.open_file(source)
    batch = reader.get_batch(0)
    runs, files = (batch.column(place).to_numpy() for place in range(2))
    names = reader.schema.metadata[_NAMES].decode("utf-8", "surrogateescape").split("\0")
    width = min(_MOST_BITS, max(3, (runs.size * _BITS_PER_RUN).bit_length()))
    shift = np.uint64(64 - width)
    bitmap = np.zeros(1 << (width - 3), np.uint8)
    for bits in _pieces(runs, shift=shift):
        np.bitwise_or.at(bitmap, bits >> np.uint64(3), _bit(bits))
    return HeldTexts(runs, files, names, bitmap, shift, RunHasher())


def _pieces(runs: draws.UInt64s, *, shift: np.uint64) -> Iterator[draws.UInt64s]:
    for start in range(0, runs.size, 1 << 20):
        yield runs[start : start + (1 << 20)] >> shift


def _bit(bits: draws.UInt64s) -> npt.NDArray[np.uint8]:
    return np.left_shift(np.uint8(1), (bits & np.uint64(7)).astype(np.uint8))
