"""Books: a file (or a member of an archive) is a document; Gutenberg's header and licence cut, wrapped lines rejoined.

Archives (.zip, .tar and compressed tar) are read member by member without unpacking to disk. One book is in memory at
a time.
"""

from __future__ import annotations

import lzma
import re
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from pipeline.booktext import book_paragraphs
from pipeline.clean import decode_text
from pipeline.config import SourceConfig
from pipeline.documents import Document, Drop, Split
from pipeline.sentences import split_sentences
from pipeline.sources.assembly import assemble
from pipeline.sources.bytestreams import PIECE_BYTES, read_whole
from pipeline.sources.listing import is_archive

MOST_BOOK_BYTES = 256 << 20
_TEXT_SHARE = {".xz": 3.5, ".txz": 3.5, ".bz2": 3.5, ".tbz2": 3.5, ".gz": 2.6, ".tgz": 2.6, ".zip": 2.6, ".zst": 2.8}
_SPLIT_BYTES = 16 << 20
_BOOK_NAME = re.compile(r".+\.(?:txt|text)", re.I)


def split_books(path: Path, *, source: int) -> list[Split]:
    """One split a file; a zip of many members is split by ranges of them (start, end: indices of members)."""
    size = path.stat().st_size
    share = _TEXT_SHARE.get(path.suffix.lower(), 1.0)
    if path.suffix.lower() != ".zip":
        return [Split(source, str(path), 0, -1, size, round(share * size))]
    splits: list[Split] = []
    with _open_zip(path) as archive:
        members = archive.infolist()
    first = packed = text = 0
    for index, member in enumerate(members):
        packed += member.compress_size
        text += member.file_size
        if packed >= _SPLIT_BYTES or index == len(members) - 1:
            splits.append(Split(source, str(path), first, index + 1, packed, text))
            first, packed, text = index + 1, 0, 0
    if not splits:
        raise ValueError(f"{path}: the archive has no members; give one with books, or remove it")
    return splits


def read_books(split: Split, *, source: SourceConfig) -> Iterator[Document | Drop]:
    """The books of a split, in order."""
    path = Path(split.path)
    if path.suffix.lower() == ".zip":
        books = _read_zip(path, split.start, split.end)
    elif is_archive(path):
        books = _read_tar(path)
    else:
        books = iter([(path.name, read_whole(path, most_bytes=MOST_BOOK_BYTES))])
    for name, data in books:
        if data is None:
            yield Drop("book_over_budget", name, f"more than {MOST_BOOK_BYTES} bytes")
        elif not _BOOK_NAME.fullmatch(name) and is_archive(path):
            yield Drop("not_a_text_file", name)
        else:
            yield from read_book(name, data, language=source.language)


def read_book(name: str, data: bytes, *, language: str) -> Iterator[Document | Drop]:
    """One book's document from the bytes of its file."""
    if b"\0" in data[:4096] and not data.startswith((b"\xff\xfe", b"\xfe\xff")):
        yield Drop("not_a_text_file", name, "holds NUL bytes")
        return
    paragraphs = book_paragraphs(decode_text(data).text)
    yield from assemble(name, split_sentences("\n".join(paragraphs), language=language))


def _read_tar(path: Path) -> Iterator[tuple[str, bytes | None]]:
    """(name, content) of every regular file in a tar, streamed."""
    try:
        with tarfile.open(path, "r|*", bufsize=PIECE_BYTES) as archive:
            for member in archive:
                if not member.isfile() or _is_hidden(member.name):
                    continue
                name = f"{path.name}/{member.name}"
                file = archive.extractfile(member)
                if member.size > MOST_BOOK_BYTES or file is None:
                    yield name, None
                elif _BOOK_NAME.fullmatch(name):
                    yield name, file.read()
                else:
                    yield name, b""
    except (tarfile.TarError, lzma.LZMAError, zlib.error, EOFError, OSError) as error:
        raise ValueError(f"{path}: the archive is truncated or corrupt: {error}; fetch it again") from error


def _read_zip(path: Path, start: int, end: int) -> Iterator[tuple[str, bytes | None]]:
    with _open_zip(path) as archive:
        for member in archive.infolist()[start:end]:
            if member.is_dir() or _is_hidden(member.filename):
                continue
            name = f"{path.name}/{member.filename}"
            if member.file_size > MOST_BOOK_BYTES:
                yield name, None
                continue
            try:
                yield name, archive.read(member) if _BOOK_NAME.fullmatch(name) else b""
            except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError) as error:
                raise ValueError(
                    f"{path}: member {member.filename} (byte {member.header_offset}) cannot be read: {error}; "
                    f"fetch the archive again, or pack it without a password"
                ) from error


def _open_zip(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except zipfile.BadZipFile as error:
        raise ValueError(f"{path}: not a whole zip archive: {error}; fetch it again") from error


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") or part == "__MACOSX" for part in Path(name).parts)
