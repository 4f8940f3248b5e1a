"""Divides Wikipedia dumps into splits, and turns their articles into documents.

A multistream .bz2 (many streams in one file) is split where a stream starts. Streams are found by their ten-byte
signature and checked by decompressing. The index file that comes with a dump lists the streams too, but is not used:
for English it has over 1 GB. Any other .bz2 is split at blocks, and plain XML at <page>; a page belongs to the split in
which its <page> starts. A file with another compression is divided into shares: each share parses all of the XML and
converts its own pages.
"""

from __future__ import annotations

import bz2
import codecs
from collections.abc import Iterator
from pathlib import Path

from pipeline import storage
from pipeline.cleaning import split_sentences
from pipeline.config import SourceConfig, WikitextConfig
from pipeline.documents import Document, Drop, Split
from pipeline.sources.assembly import assemble
from pipeline.sources.bytestreams import compression_of, read_pieces
from pipeline.sources.bz2blocks import read_blocks
from pipeline.sources.dumpxml import DumpReader, Page, SiteInfo
from pipeline.sources.textlines import cut_file
from pipeline.wikitext import DEFAULT_BUDGET, PageOverBudgetError, WikiNames, wiki_names, wikitext_to_text

SPLIT_BYTES = {"bz2": 8 << 20, "": 32 << 20}
LEAST_BLOCK_SPLIT = 1 << 20
"""Fewest bytes of a split if a .bz2 is split at blocks. A smaller split might contain no block."""
_WINDOW = 32 << 20
_MOST_TRIED_STREAMS = 16
_PAGE = b"<page>"
_ROOT_END = b"</mediawiki>"
_TAIL_BYTES = 64
_MOST_PARTS = 4
_PART_TEXT_BYTES = 12 << 20
TEXT_SHARE = {"bz2": 1.4, "gzip": 1.1, "xz": 1.5, "zstd": 1.3, "": 0.33}
"""Bytes of the articles' plain text per byte of a dump, by compression: about three quarters of a dump's XML are
markup, templates and pages that are no articles. Measured: 0.9 to 1.7 for .bz2 (docs/SCALE.md)."""
_STREAM = b"1AY&SY"  # follows "BZh" and a digit where a bz2 stream starts


def split_dump(path: str | Path, *, source: int, split_bytes: int | None = None) -> list[Split]:
    """Return the splits of a dump (its parts, each for one worker), in order. A split has about `split_bytes` of the
    file (default: the entry of SPLIT_BYTES for the compression). `source` is the source's index in the config.

    A .bz2 is cut where a stream starts with a page, or at any byte if no stream does. Plain XML is cut at pages. A file
    with another compression is divided into shares (each reads the whole file and takes some of the pages). With
    `split_bytes`, such a file stays one split.
    """
    compression = compression_of(path)
    size = storage.size_of(path)
    step = split_bytes or SPLIT_BYTES.get(compression, size)
    starts = [0]
    if compression in SPLIT_BYTES:
        while starts[-1] + step < size:
            position = starts[-1] + step
            found = _next_stream(path, position) if compression == "bz2" else _search(path, position, _PAGE)
            if found is None:
                break
            starts.append(found)
    if compression == "bz2" and len(starts) == 1:
        step = max(step, LEAST_BLOCK_SPLIT)
        starts = list(range(0, max(1, size - step // 2), step))
    splits = cut_file(path, cuts=[*starts, size], source=source, text_share=TEXT_SHARE)
    if compression not in SPLIT_BYTES and split_bytes is None:
        return splits[0].share(_MOST_PARTS, part_bytes=_PART_TEXT_BYTES)
    return splits


def _next_stream(path: str | Path, position: int) -> int | None:
    """Search from byte `position` on for a compressed stream that begins with a page. Return the offset of the first
    such stream, or None if none of the next _MOST_TRIED_STREAMS streams begins with a page."""
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
    """Return the first offset of `wanted` within _WINDOW bytes from `position`, or None if it is not there."""
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
    """Return what the first lines of a dump say about the wiki (language, namespaces). If the file lacks these lines,
    the fields of the SiteInfo are empty. The field `is_fragment` is True if the file has only bare <page> elements."""
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
    """Yield a document for each article of a split, in order. Between the documents, yield a Drop (a counted omission)
    for every page that is not an article, and for every sentence that is left out.

    Raises RuntimeError naming file and page if a page cannot be converted because of a bug.
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
            yield from convert_page(page, names=names, language=source.language, settings=source.wikitext)
        except Exception as error:  # every page must be converted or dropped, so this is a bug of ours
            fault = f"{type(error).__name__}: {error}"
            raise RuntimeError(f"{split.path}: page {page.title!r} cannot be converted: {fault}") from error


def _read_split(split: Split, *, size: int, is_fragment: bool) -> Iterator[bytes]:
    """Yield the XML of the pages that start in a split, in pieces. `size` is the file's size. `is_fragment` says that
    the file has only bare <page> elements."""
    path = split.path
    cuts = [cut for cut in (split.start, split.end) if cut not in (-1, 0, size)]
    if compression_of(path) == "bz2" and not all(_begins_with_page(path, cut) for cut in cuts):
        return _pages_of_blocks(split, size=size, is_fragment=is_fragment)
    return read_pieces(path, start=split.start, end=split.end)


def _pages_of_blocks(split: Split, *, size: int, is_fragment: bool) -> Iterator[bytes]:
    """Yield the XML of the pages that start in the bz2 blocks of a split, in pieces. The last page may continue in the
    blocks after the split. So these blocks are read too, up to their first <page>. `size` is the file's size.
    `is_fragment` says that the file has only bare <page> elements. Raises ValueError if the dump is truncated."""
    begun, past_end = split.start == 0, False
    held = b""  # may contain the first half of a <page>, or the end of the dump
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
    """Return the names of a wiki's namespaces, and the words that mark a redirect there. `site` (the head of the dump)
    gives some of the names. The names known for the dump's language and for `language` are added."""
    languages = {language, site.language, site.database.removesuffix("wiki").replace("_", "-")}
    # All are united, because a siteinfo in another language must not hide the configured language's known names.
    return wiki_names(sorted(languages), siteinfo=site.namespaces)


def convert_page(
    page: Page, *, names: WikiNames, language: str, settings: WikitextConfig | None = None
) -> Iterator[Document | Drop]:
    """Yield the document made from `page`, and a Drop (a counted omission) for each sentence, list item or tail section
    (such as the references at the end) that is left out. If the page gives no document, the last Drop says why."""
    settings = settings or WikitextConfig()
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
        plain = wikitext_to_text(
            page.text,
            names=names,
            language=language,
            title=page.title,
            lists=settings.lists,
            tail_sections=settings.tails,
        )
    except PageOverBudgetError as error:
        yield Drop("page_over_budget", page.title, str(error))
        return
    yield from (Drop(reason, page.title, detail) for reason, detail in plain.left_out)
    kept: list[str] = []
    for sentence in split_sentences(plain.text, language=language, keep_reserved=True):
        missing = plain.hole_in(sentence)
        if missing is None:
            kept.append(sentence)
        else:
            yield Drop("sentence_with_unrendered_template", page.title, missing)
    yield from assemble(page.title, kept)
