"""Chooses and reads a representative sample of the input: some of its units (parts that can be read without the rest).

The same files and settings give the same sample. The chosen units are evenly spaced over each source, because the first
articles of a dump are longer than the rest.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from pipeline import storage
from pipeline.config import SourceConfig
from pipeline.documents import Document, Drop, Split
from pipeline.sources import (
    BOOK_SUFFIXES,
    compression_of,
    is_archive,
    list_files,
    read_book,
    read_documents,
    read_members,
    split_file,
)

SHARE = 0.01
LEAST_UNITS = 8
"""At least this number of units (parts of the input that can be read without the rest) of a source is read, since fewer
say little about how much units differ."""
LEAST_TEXT_BYTES = 4_000_000
"""At least this number of bytes of text is read, from all sources together. An input of up to twice this size is read
completely."""
MOST_TEXT_BYTES = 256_000_000
_UNIT_BYTES = 1 << 18
_MOST_UNITS_OF_FILE = 4096
_PREFIX_BYTES = 4 << 20
_NO_PART = 1 << 40


@dataclass(frozen=True, slots=True)
class Unit:
    """A part of the input that can be read without the rest: a split, or one book of a compressed archive.

    `size` is in bytes. `member` is the index of the book in the archive, or -1 for a split. `begins` is true if the
    unit is only the beginning of a compressed stream.
    """

    split: Split
    size: int
    member: int = -1
    begins: bool = False


@dataclass(frozen=True, slots=True)
class Frame:
    """All units of a source. A unit is a part of the input that can be read without the rest.

    `source` is the index of the source in the config. `size` is the total number of bytes. If only the beginning of a
    stream is a unit, the rest of the stream is counted too. `text_bytes` is the estimated size of the plain text.
    `by_file` is true if units are text files, so that the number of documents is proportional to the number of units.
    `skip_s` maps the path of a compressed file to the CPU seconds that reading through it takes without making
    documents. If several splits of a build share the file, each of these splits must read through the whole file.
    """

    source: int
    units: tuple[Unit, ...]
    size: int
    text_bytes: int
    by_file: bool
    skip_s: Mapping[str, float]


def list_frame(source: SourceConfig, *, index: int) -> Frame:
    """Return the Frame of `source`. It lists all units of the source (parts that can be read without the rest). `index`
    is the index of the source in the config. Compressed archives are decompressed once; little or nothing of other
    files is read."""
    units: list[Unit] = []
    size = text_bytes = 0
    by_file = source.kind == "books"
    skip_s: dict[str, float] = {}
    for path in list_files(source, label=f"sources.{index} ({source.kind})"):
        step = max(_UNIT_BYTES, storage.size_of(path) // _MOST_UNITS_OF_FILE)
        splits = split_file(path, source=source, index=index, split_bytes=step)
        text_bytes += sum(split.text_bytes for split in splits)
        compressed = bool(compression_of(path))
        if by_file and is_archive(path) and compressed:
            started = time.process_time()
            found = _list_members(path, source=index)
            skip_s[path] = time.process_time() - started
        elif compressed and not by_file and len(splits) == 1 and splits[0].num_bytes > 2 * _PREFIX_BYTES:
            read = max(_PREFIX_BYTES, round(SHARE * splits[0].num_bytes))
            found = [Unit(splits[0], read, begins=True)]
            skip_s[path] = _time_skipping(found[0], source=source)
        else:
            found = [Unit(split, split.num_bytes) for split in splits]
        units += found
        size += sum(unit.split.num_bytes if unit.begins else unit.size for unit in found)
    return Frame(index, tuple(units), size, text_bytes, by_file, skip_s)


def choose_units(frames: Sequence[Frame]) -> list[list[Unit]]:
    """Return, for each frame (source), the units to read. A unit is a part of the input that can be read without the
    rest.

    The share of units to read is SHARE. It is larger if all frames together would otherwise give less than
    LEAST_TEXT_BYTES of text, and smaller if they would give more than MOST_TEXT_BYTES. At least LEAST_UNITS units of
    each frame are read. If the number to read is half of a frame's units or more, all its units are read.
    """
    text = max(1, sum(frame.text_bytes for frame in frames))
    share = max(SHARE, LEAST_TEXT_BYTES / text)
    chosen: list[list[Unit]] = []
    for frame in frames:
        count = len(frame.units)
        wanted = min(math.ceil(share * count), math.ceil(count * MOST_TEXT_BYTES / text))
        wanted = max(LEAST_UNITS, wanted)
        if 2 * wanted >= count:
            chosen.append(list(frame.units))
        else:
            chosen.append([frame.units[(2 * place + 1) * count // (2 * wanted)] for place in range(wanted)])
    return chosen


def read_units(units: Sequence[Unit], *, source: SourceConfig) -> Iterator[tuple[Unit, Iterable[Document | Drop]]]:
    """Yield each of `units` (parts of the input that can be read without the rest) with an iterable of its documents
    and drops (items left out). Documents are always read from the input, never from the folder clean_documents, in
    which an earlier build may have stored them."""
    source = source.model_copy(update={"clean_documents": None})
    archives: dict[str, dict[int, Unit]] = {}
    for unit in units:
        if unit.member >= 0:
            archives.setdefault(unit.split.path, {})[unit.member] = unit
        elif unit.begins:
            yield unit, _read_beginning(unit, source=source)
        else:
            yield unit, read_documents(unit.split, source)
    for path, wanted in archives.items():
        split = next(iter(wanted.values())).split
        for number, member in enumerate(read_members(split, suffixes=BOOK_SUFFIXES)):
            if number in wanted and member.data is not None:
                yield wanted[number], read_book(member.name, member.data, source=source, folder=storage.parent_of(path))
            if number == max(wanted):
                break


def _list_members(path: str, *, source: int) -> list[Unit]:
    """Return the books of the compressed archive `path` as units (parts of the input that can be read without the
    rest). The whole archive is read, because the sizes of the books are needed. `source` is the index of the source in
    the config."""
    whole = Split(source, path, 0, -1, storage.size_of(path), 0)
    members = enumerate(read_members(whole, suffixes=BOOK_SUFFIXES))
    return [Unit(whole, len(member.data), number) for number, member in members if member.data is not None]


def _time_skipping(unit: Unit, *, source: SourceConfig) -> float:
    """Return the CPU seconds needed to read through a whole compressed stream without making documents from it.

    `unit` is the beginning of the stream. The time is measured on this beginning, and scaled to the whole stream.
    """
    idle = replace(unit.split, part=_NO_PART, parts=_NO_PART + 1)
    source = source.model_copy(update={"clean_documents": None})
    started = time.process_time()
    with suppress(ValueError):  # the stream is cut off; other faults are reported later
        deque(_read_beginning(replace(unit, split=idle), source=source), maxlen=0)
    return (time.process_time() - started) * unit.split.num_bytes / unit.size


def _read_beginning(unit: Unit, *, source: SourceConfig) -> Iterator[Document | Drop]:
    """Yield the documents and drops (items left out) in the first `unit.size` bytes of a compressed stream. These bytes
    are copied to a temporary file, from which they are read."""
    path = unit.split.path
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / Path(path).name
        with storage.open_input(path) as stream:
            copy.write_bytes(stream.read(unit.size))
        given = False
        try:
            for item in read_documents(replace(unit.split, path=str(copy)), source):
                given = given or isinstance(item, Document)
                yield item
        except ValueError:
            if not given:  # the stream itself is to blame
                raise
