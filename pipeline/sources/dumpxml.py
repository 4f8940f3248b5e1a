"""Parses MediaWiki's XML export, schemas 0.5 to 0.11, into pages. The parser (expat) reads the file once.

Only the open page is in memory, with no more text than the caller allows. A file of bare <page> elements is accepted
too. A document type declaration is refused, so that no entity can expand.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from xml.parsers import expat


@dataclass
class Page:
    """One page with the text of its newest revision. `num_characters` is the length of this text. If the text was too
    long, `over_budget` is True and `text` is empty. `namespace` is None and `model` (the content model) is "" if the
    dump does not give them."""

    title: str = ""
    namespace: int | None = None
    is_redirect: bool = False
    model: str = ""
    text: str = ""
    num_characters: int = 0
    over_budget: bool = False


@dataclass
class _Revision:
    timestamp: str = ""
    model: str = ""
    pieces: list[str] = field(default_factory=list)
    num_characters: int = 0
    over_budget: bool = False


@dataclass
class SiteInfo:
    """What the head (the first lines) of a dump says: the wiki's language and database name. `namespaces` maps each
    namespace's name to its number. `complete` is True if the whole head was read, so it becomes True when the first
    page begins."""

    language: str = ""
    database: str = ""
    namespaces: dict[str, int] = field(default_factory=dict)
    complete: bool = False
    is_fragment: bool = False
    """True if the file has only bare <page> elements, without head or root."""


MOST_LEVELS = 100
"""The greatest number of elements around a place in a dump. MediaWiki's export has 6."""
MOST_MARKUP_BYTES = 4 << 20
"""The greatest length of a tag, comment or processing instruction in a dump. expat keeps all of it in memory, and older
versions of expat read it again with every piece."""
_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)  # expat recognizes UTF-16 by these byte order marks
_OF_EXPAT = ("UTF-8", "UTF-16", "UTF-16LE", "UTF-16BE", "ISO-8859-1", "US-ASCII")
_BYTES = bytes(range(256))
_NUMBER = re.compile(r"-?[0-9]{1,9}")
"""Matches the number of a namespace. Python refuses --5, and more than 4,300 digits."""
_CAPTURED = frozenset(("title", "ns", "timestamp", "model", "text", "namespace", "dbname", "role", "contentmodel"))


class DumpReader:
    """Parses the bytes of a dump with expat and yields pages. A page whose text exceeds `most_characters` comes without
    text.

    `name` is the file's name for messages. `starts_inside` says that the bytes begin after the dump's head, and
    `ends_inside` that the bytes may end before the dump's </mediawiki>.
    """

    def __init__(
        self, name: str, *, most_characters: int, starts_inside: bool = False, ends_inside: bool = False
    ) -> None:
        self.site = SiteInfo()
        self.num_pages = 0
        self._name = name
        self._most_characters = most_characters
        self._starts_inside = starts_inside
        self._ends_inside = ends_inside
        self._started = False
        self._path: list[str] = []
        self._capturing: list[str] | None = None
        self._pages: list[Page] = []
        self._page = Page()
        self._revision = _Revision()
        self._newest: _Revision | None = None
        self._role = ""
        self._content_revision = _Revision()
        self._namespace_key = ""
        self._num_bytes = 0
        self._parser = expat.ParserCreate()
        self._parser.buffer_text = True
        self._parser.buffer_size = 1 << 18
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._characters
        self._parser.StartDoctypeDeclHandler = self._doctype
        self._parser.XmlDeclHandler = self._declaration

    def read(self, pieces: Iterable[bytes]) -> Iterator[Page]:
        """Yield the pages of a dump in order. `pieces` are the dump's bytes, cut anywhere. Raises ValueError if the XML
        is not well-formed, is truncated, or is no MediaWiki export."""
        for piece in self._after_head(pieces):
            self._parse(piece)
            if self._pages:
                yield from self._pages
                self._pages = []
        if not self._started and not self._starts_inside:
            raise ValueError(f"{self._name}: the file is empty; give a MediaWiki XML dump")
        if self._path:
            place = "/".join(self._path)
            missing = "the </mediawiki> at the end is missing" if len(self._path) == 1 else f"it ends inside <{place}>"
            if not (self._ends_inside and len(self._path) == 1):
                raise ValueError(
                    f"{self._name}: the dump is truncated: {missing}, after {self.num_pages} pages and "
                    f"{self._parser.CurrentByteIndex} bytes of XML; remove it and fetch it again"
                )
            self._parse(b"</mediawiki>")
        yield from self._pages
        self._pages = []

    def _after_head(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        head = b""
        for piece in pieces:
            if self._started:
                yield piece
                continue
            head += piece
            stripped = head.removeprefix(b"\xef\xbb\xbf").lstrip()
            if len(stripped) < 64 and len(head) < 1 << 20:
                continue
            yield from self._open(stripped)
        if not self._started and (stripped := head.removeprefix(b"\xef\xbb\xbf").lstrip()):
            yield from self._open(stripped)

    def _open(self, head: bytes) -> Iterator[bytes]:
        self._started = True
        if self._starts_inside or head.startswith(b"<page"):
            # A file of bare pages has no </mediawiki> at its end.
            self._ends_inside = self._ends_inside or not self._starts_inside
            yield b"<mediawiki>"
        elif not head.startswith((b"<", *_UTF16_MARKS)):
            shown = head[:40].decode("utf-8", "replace")
            raise ValueError(
                f"{self._name}: not a MediaWiki XML dump: it begins with {shown!r}; give a file of <mediawiki> "
                f"or <page> elements, or use kind: text"
            )
        yield head

    def _parse(self, piece: bytes) -> None:
        self._num_bytes += len(piece)
        try:
            self._parser.Parse(piece, False)
            held = self._num_bytes - max(0, self._parser.CurrentByteIndex)
            if held > MOST_MARKUP_BYTES:
                raise ValueError(
                    f"{self._name}: a tag, comment or processing instruction of more than {MOST_MARKUP_BYTES} bytes at "
                    f"byte {self._num_bytes - held} of the XML; no MediaWiki dump has one, remove the file"
                )
        except expat.ExpatError as error:
            if error.code == expat.errors.codes[expat.errors.XML_ERROR_JUNK_AFTER_DOC_ELEMENT]:
                raise ValueError(
                    f"{self._name}: more data follow the </mediawiki> at byte "
                    f"{self._parser.ErrorByteIndex} of the XML; give one dump per file"
                ) from error
            raise ValueError(
                f"{self._name}: not well-formed at byte {self._parser.ErrorByteIndex} of the XML (line {error.lineno}, "
                f"column {error.offset}; page {self._page.title[:200]!r}): {expat.ErrorString(error.code)}; remove it "
                f"and fetch it again"
            ) from error

    def _declaration(self, version: str, encoding: str | None, standalone: int) -> None:
        """Raise ValueError for an encoding that expat cannot read. Expat can read its built-in encodings (_OF_EXPAT),
        and those of Python's encodings that have one byte per character."""
        with suppress(LookupError, UnicodeError):
            if (
                encoding is None
                or encoding.upper() in _OF_EXPAT
                or len(_BYTES.decode(encoding, "replace")) == len(_BYTES)
            ):
                return
        raise ValueError(
            f"{self._name}: its XML declaration names the encoding {str(encoding)[:80]}, which is not supported; "
            f"convert the file to UTF-8 and correct the declaration"
        )

    def _doctype(self, name: str, *_: object) -> None:
        raise ValueError(
            f"{self._name}: has a document type declaration (<!DOCTYPE {name[:80]}>), which no MediaWiki dump has and "
            f"which allows entities to expand without limit; remove it"
        )

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        depth = len(self._path)
        self._path.append(tag)
        if depth == MOST_LEVELS:
            raise ValueError(
                f"{self._name}: more than {MOST_LEVELS} elements in each other at byte {self._parser.CurrentByteIndex} "
                "of the XML; no MediaWiki dump has as many, remove the file"
            )
        if depth == 0:
            if tag != "mediawiki":
                raise ValueError(
                    f"{self._name}: the root element is <{tag}>, not <mediawiki>; give a MediaWiki XML dump"
                )
            self.site.language = attributes.get("xml:lang", "")
        elif tag == "page" and depth == 1:
            self._page, self._newest = Page(), None
            self.site.complete = True
        elif tag in ("revision", "upload") and depth == 2:
            self._revision = _Revision()
        elif tag == "content" and depth == 3:
            self._role, self._content_revision = "", _Revision()
        elif tag == "redirect" and depth == 2:
            self._page.is_redirect = True
        elif tag == "namespace":
            self._namespace_key = attributes.get("key", "")
        if tag in _CAPTURED:
            self._capturing = []

    def _characters(self, data: str) -> None:
        if self._capturing is None:
            return
        if self._path[-1] != "text":
            self._capturing.append(data[:1024])
            return
        revision = self._content_revision if "content" in self._path else self._revision
        revision.num_characters += len(data)
        if revision.num_characters > self._most_characters:
            revision.over_budget = True
            revision.pieces.clear()
        else:
            revision.pieces.append(data)

    def _end(self, tag: str) -> None:
        self._path.pop()
        captured, self._capturing = self._capturing, None
        value = "".join(captured).strip() if captured else ""
        depth = len(self._path)
        if tag == "page" and depth == 1:
            self._finish_page()
        elif tag == "revision" and depth == 2:
            # The newest revision has the latest time stamp (ISO 8601 sorts as text). If two are equal, the later one in
            # the file counts.
            if self._newest is None or self._revision.timestamp >= self._newest.timestamp:
                self._newest = self._revision
        elif tag == "content" and depth == 3:
            if self._role in ("main", "") and not self._revision.num_characters:
                chosen = self._content_revision
                chosen.timestamp = self._revision.timestamp
                self._revision = chosen
        elif captured is not None:
            self._take(tag, value, depth)

    def _take(self, tag: str, value: str, depth: int) -> None:
        if depth == 2 and tag == "title":
            self._page.title = value
        elif depth == 2 and tag == "ns":
            self._page.namespace = int(value) if _NUMBER.fullmatch(value) else None
        elif tag == "timestamp" and depth == 3:
            self._revision.timestamp = value
        elif tag == "model":
            (self._content_revision if "content" in self._path else self._revision).model = value
        elif tag == "role":
            self._role = value
        elif tag == "dbname":
            self.site.database = value
        elif tag == "namespace" and _NUMBER.fullmatch(self._namespace_key):
            self.site.namespaces[value] = int(self._namespace_key)

    def _finish_page(self) -> None:
        page, revision = self._page, self._newest or _Revision()
        page.model = revision.model
        page.text = "".join(revision.pieces)
        page.num_characters = revision.num_characters
        page.over_budget = revision.over_budget
        self.num_pages += 1
        self._pages.append(page)
