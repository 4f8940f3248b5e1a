"""Wikipedia dumps: splits at stream and page boundaries, articles to documents.

A multistream .bz2 is split where its streams start, found by the streams' ten-byte signature and checked by
decompressing: the index beside it says the same, but of the English dump it alone is over 1 GB to read. Any other .bz2
is split at blocks, plain XML at <page>: a page belongs to the split in which its <page> starts. Other compressions are
shared: each split parses all of the XML, and converts its pages.
"""

from __future__ import annotations

import bz2
import codecs
from collections.abc import Iterator
from pathlib import Path

from pipeline import storage
from pipeline.cleaning import split_sentences
from pipeline.config import SourceConfig
from pipeline.documents import Document, Drop, Split
from pipeline.sources.assembly import assemble
from pipeline.sources.bytestreams import compression_of, read_pieces
from pipeline.sources.bz2blocks import read_blocks
from pipeline.sources.dumpxml import DumpReader, Page, SiteInfo
from pipeline.wikitext import DEFAULT_BUDGET, PageOverBudgetError, WikiNames, wiki_names, wikitext_to_text

# Plain text in a byte of the file: an estimate that only steers the number of buckets.
_TEXT_SHARE = {"bz2": 4.0, "gzip": 3.0, "xz": 4.5, "zstd": 3.5, "": 1.0}
SPLIT_BYTES = {"bz2": 8 << 20, "": 32 << 20}
LEAST_BLOCK_SPLIT = 1 << 20
"""Bytes of a .bz2 split at blocks: less might hold no block at all."""
_WINDOW = 32 << 20
_MOST_TRIED_STREAMS = 16
_PAGE = b"<page>"
_ROOT_END = b"</mediawiki>"
_TAIL_BYTES = 64
_MOST_PARTS = 4
_PART_TEXT_BYTES = 32 << 20
_STREAM = b"1AY&SY"  # after BZh and a digit: the first block of a bz2 stream


def split_dump(path: str | Path, *, source: int, split_bytes: int | None = None) -> list[Split]:
    """Splits of one dump of about `split_bytes` each, cut at a stream or (where streams are no runs of pages) at any
    byte of a .bz2, at a page of plain XML; shares of anything else, or one split where `split_bytes` are given."""
    compression = compression_of(path)
    size = storage.size_of(path)
    step = split_bytes or SPLIT_BYTES.get(compression, size)
    starts = [0]
    if compression in SPLIT_BYTES:
        find = _next_stream if compression == "bz2" else _next_page
        while starts[-1] + step < size:
            found = find(path, starts[-1] + step)
            if found is None:
                break
            starts.append(found)
    if compression == "bz2" and len(starts) == 1:
        step = max(step, LEAST_BLOCK_SPLIT)
        starts = list(range(0, max(1, size - step // 2), step))
    share = _TEXT_SHARE[compression]
    ends = [*starts[1:], size]
    splits = [
        Split(source, str(path), start, end, end - start, round(share * (end - start)))
        for start, end in zip(starts, ends, strict=True)
    ]
    if compression not in SPLIT_BYTES and split_bytes is None:
        return splits[0].share(_MOST_PARTS, part_bytes=_PART_TEXT_BYTES)
    return splits


def _next_page(path: str | Path, position: int) -> int | None:
    return _search(path, position, _PAGE)


def _next_stream(path: str | Path, position: int) -> int | None:
    """Where the first stream at or after `position` starts whose content begins with a page; None where none of the
    next ones does."""
    for _ in range(_MOST_TRIED_STREAMS):
        found = _search(path, position, _STREAM)
        if found is None:
            return None
        start = found - 4
        if start >= position and _begins_with_page(path, start):
            return start
        position = found + 1
    return None


def _search(path: str | Path, position: int, wanted: bytes) -> int | None:
    """The first offset of `wanted` in the window after `position`; None where there is none."""
    end = position + _WINDOW
    with storage.open_input(path) as file:
        file.seek(position)
        tail = b""
        while position < end and (block := file.read(1 << 20)):
            data = tail + block
            found = data.find(wanted)
            if found >= 0:
                return position - len(tail) + found
            tail = data[-(len(wanted) - 1) :]
            position += len(block)
    return None


def _begins_with_page(path: str | Path, start: int) -> bool:
    with storage.open_input(path) as file:
        file.seek(start)
        if file.read(3) != b"BZh":
            return False
        file.seek(start)
        decompressor = bz2.BZ2Decompressor()
        content = b""
        try:
            while len(content) < 64 and not decompressor.eof and (block := file.read(1 << 20)):
                content += decompressor.decompress(block, 4096)
        except storage.StorageError:
            raise
        except OSError:
            return False
    return content.lstrip().startswith(_PAGE)


def read_site(path: str) -> SiteInfo:
    """The siteinfo at the head of a dump; empty where it has none."""
    head, found = b"", -1
    for piece in read_pieces(path):
        head += piece
        found = head.find(_PAGE)
        if found >= 0 or len(head) > _WINDOW:
            break
    if found >= 0 and not head[:found].removeprefix(codecs.BOM_UTF8).strip():
        return SiteInfo(is_fragment=True)
    reader = DumpReader(path, most_characters=0, ends_inside=True)
    for _ in reader.read([head[:found] if found >= 0 else head[:_WINDOW]]):
        break
    return reader.site


def read_dump(split: Split, *, source: SourceConfig) -> Iterator[Document | Drop]:
    """Documents of the articles in a split, in order; a Drop for every other page and every sentence left out.

    Raises RuntimeError, naming file and page, for a fault of our own in converting one.
    """
    size = storage.size_of(split.path)
    is_part = split.start > 0 or split.end not in (-1, size)
    head = read_site(split.path) if is_part else None
    is_fragment = head is not None and head.is_fragment
    reader = DumpReader(
        split.path,
        most_characters=DEFAULT_BUDGET.num_bytes,
        starts_inside=split.start > 0,
        ends_inside=split.end not in (-1, size) or is_fragment,
    )
    site = reader.site if head is None else head
    names: WikiNames | None = None
    for number, page in enumerate(reader.read(_read_split(split, size=size, is_fragment=is_fragment))):
        if not split.takes(number):
            continue
        if names is None:
            names = names_of_site(site, language=source.language)
        try:
            yield from convert_page(page, names=names, language=source.language)
        except Exception as error:  # whatever stands in a page, it is converted or dropped: the fault is ours
            fault = f"{type(error).__name__}: {error}"
            raise RuntimeError(f"{split.path}: page {page.title!r} cannot be converted: {fault}") from error


def _read_split(split: Split, *, size: int, is_fragment: bool) -> Iterator[bytes]:
    """The XML of the pages that start in a split."""
    path = split.path
    cuts = [cut for cut in (split.start, split.end) if cut not in (-1, 0, size)]
    if compression_of(path) == "bz2" and not all(_begins_with_page(path, cut) for cut in cuts):
        return _pages_of_blocks(split, size=size, is_fragment=is_fragment)
    return read_pieces(path, start=split.start, end=split.end)


def _pages_of_blocks(split: Split, *, size: int, is_fragment: bool) -> Iterator[bytes]:
    """From the first <page> in the blocks that start in the split to the first in those that start after it."""
    begun, past_end = split.start == 0, False
    held = b""  # what may be the first half of a <page>, or the end of the dump
    for block in read_blocks(split.path, start=split.start):
        if block.start >= split.end and not past_end:
            if not begun:
                return
            past_end, held = True, b""
        if begun and not past_end:
            yield block.content
            continue
        data = held + block.content
        found = data.find(_PAGE)
        if found >= 0 and past_end:
            yield data[:found]
            return
        held = data[-_TAIL_BYTES:]
        if past_end:
            yield data[:-_TAIL_BYTES]
        elif found >= 0:
            begun = True
            yield data[found:]
    if begun and past_end:
        yield held
        if not is_fragment and _ROOT_END not in held:
            missing = "the </mediawiki> at the end is missing"
            raise ValueError(
                f"{split.path}: the dump is truncated: {missing}, at byte {size}; remove it and fetch it again"
            )


def names_of_site(site: SiteInfo, *, language: str) -> WikiNames:
    """Names by the dump's siteinfo united with the known ones of its language and of the configured one."""
    languages = {language, site.language, site.database.removesuffix("wiki").replace("_", "-")}
    # English names work on every wiki; so a siteinfo in another language than the configured one must not hide any.
    return wiki_names(sorted(languages), siteinfo=site.namespaces)


def convert_page(page: Page, *, names: WikiNames, language: str) -> Iterator[Document | Drop]:
    """One page to its document, or to a Drop that says why it is none."""
    namespace = page.namespace if page.namespace is not None else names.namespace_of(page.title)
    if namespace != 0:
        yield Drop("not_main_namespace", page.title, str(namespace))
        return
    if page.is_redirect or names.is_redirect(page.text):
        yield Drop("redirect", page.title)
        return
    if page.model not in ("", "wikitext"):
        yield Drop("not_wikitext", page.title, page.model)
        return
    if page.over_budget:
        excess = f"{page.num_characters} characters of markup, more than {DEFAULT_BUDGET.num_bytes} bytes"
        yield Drop("page_over_budget", page.title, excess)
        return
    try:
        plain = wikitext_to_text(page.text, names=names, language=language, title=page.title)
    except PageOverBudgetError as error:
        yield Drop("page_over_budget", page.title, str(error))
        return
    kept: list[str] = []
    for sentence in split_sentences(plain.text, language=language, keep_reserved=True):
        missing = plain.hole_in(sentence)
        if missing is None:
            kept.append(sentence)
        else:
            yield Drop("sentence_with_unrendered_template", page.title, missing)
    yield from assemble(page.title, kept)
