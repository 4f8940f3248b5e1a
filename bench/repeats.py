"""Makes a corpus of any size by repeating a small corpus. Each copy of a document begins with a sentence of its own.

So no copy is an exact duplicate of another. Books are written as files of kind `books`, and articles as a Wikipedia
dump. One very large book, made of many books, can be added.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from xml.sax.saxutils import escape

from pipeline import storage
from pipeline.config import SourceConfig
from pipeline.sources import BOOK_SUFFIXES, is_archive, list_files, list_splits, read_members
from pipeline.sources.bytestreams import read_pieces, read_whole
from pipeline.sources.dumpxml import DumpReader, Page
from pipeline.wikitext import DEFAULT_BUDGET

_MOST_BOOK_BYTES = 256 << 20
_DUMP_HEAD = (
    '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" version="0.11" xml:lang="{language}">\n'
    "  <siteinfo><sitename>Wikipedia</sitename><dbname>{language}wiki</dbname><namespaces>"
    '<namespace key="0" case="first-letter" /></namespaces></siteinfo>\n'
)
_PAGE = (
    "  <page><title>{title}</title><ns>0</ns><id>{number}</id><revision><id>{number}</id>"
    "<timestamp>2020-01-01T00:00:00Z</timestamp><model>wikitext</model>"
    '<text xml:space="preserve">{text}</text></revision></page>\n'
)


@dataclass(frozen=True, slots=True)
class Texts:
    """The raw documents of a corpus: (file name, bytes) of each book, and (title, markup) of each article."""

    books: tuple[tuple[str, bytes], ...]
    articles: tuple[tuple[str, str], ...]
    language: str

    @property
    def num_bytes(self) -> int:
        """The size of all books and articles in bytes of UTF-8."""
        return sum(len(data) for _, data in self.books) + sum(len(text.encode()) for _, text in self.articles)


def read_texts(sources: Sequence[SourceConfig], *, most_bytes: int | None = None) -> Texts:
    """Return all articles of the sources (kinds `books` and `wikipedia`), and the first books up to about
    `most_bytes`."""
    books: list[tuple[str, bytes]] = []
    articles: list[tuple[str, str]] = []
    size = 0
    for source in sources:
        if source.kind == "wikipedia":
            articles += [(page.title, page.text) for page in read_articles(source)]
            continue
        for name, data in _read_books(source):
            if most_bytes is None or not books or size + len(data) <= most_bytes:
                books.append((name, data))
                size += len(data)
    return Texts(tuple(books), tuple(articles), language=sources[0].language)


def read_articles(source: SourceConfig) -> Iterator[Page]:
    """Yield every article of a source's dumps, in order. Redirects are left out, and so are pages that are too
    large."""
    for path in list_files(source, label="corpus"):
        for page in DumpReader(path, most_characters=DEFAULT_BUDGET.num_bytes).read(read_pieces(path)):
            if page.namespace in (0, None) and not page.is_redirect and not page.over_budget:
                yield page


def _read_books(source: SourceConfig) -> Iterator[tuple[str, bytes]]:
    for path in list_files(source, label="corpus"):
        if is_archive(path):
            whole = [split for split in list_splits([source]) if split.path == path]
            for split in sorted(whole, key=lambda split: (split.start, split.part)):
                members = read_members(split, suffixes=BOOK_SUFFIXES)
                yield from (
                    (member.name.partition("!")[2], member.data) for member in members if member.data is not None
                )
        else:
            data = read_whole(path, most_bytes=_MOST_BOOK_BYTES)
            if data is not None:
                yield storage.base_name(path), data


def write_corpus(
    texts: Texts, folder: Path, *, num_bytes: int | None = None, one_book_bytes: int = 0
) -> tuple[SourceConfig, ...]:
    """Write the texts as files to `folder`, and return the sources that read these files.

    If `num_bytes` is given, the texts are repeated as distinct documents, up to about this size. If `num_bytes` is
    None, they are written once, unchanged. If `one_book_bytes` is not 0, one more book of about this size is added.
    """
    copies = 1 if num_bytes is None else max(1, round((num_bytes - one_book_bytes) / max(1, texts.num_bytes)))
    sources: list[SourceConfig] = []
    if texts.books:
        books = folder / "books"
        books.mkdir(parents=True)
        for copy in range(copies):
            for number, (name, data) in enumerate(texts.books):
                first = b"" if num_bytes is None else b"This is copy %d of book %d.\n\n" % (copy, number)
                (books / f"{copy:04d}-{number:04d}-{Path(name).name}").write_bytes(first + data)
        if one_book_bytes:
            _write_one_book(texts, books / "one-book.txt", num_bytes=one_book_bytes)
        sources.append(SourceConfig(kind="books", path=str(books), language=texts.language))
    if texts.articles:
        path = folder / "articles.xml"
        folder.mkdir(parents=True, exist_ok=True)
        _write_dump(texts, path, copies=copies, distinct=num_bytes is not None)
        sources.append(SourceConfig(kind="wikipedia", path=str(path), language=texts.language))
    return tuple(sources)


def _write_one_book(texts: Texts, path: Path, *, num_bytes: int) -> None:
    written = 0
    with open(path, "wb") as file:
        for turn in count():
            for name, data in texts.books:
                if written >= num_bytes:
                    return
                written += file.write(b"%s, once more: part %d.\n\n" % (name.encode(), turn) + data + b"\n\n")


def _write_dump(texts: Texts, path: Path, *, copies: int, distinct: bool) -> None:
    number = count(1)
    with open(path, "w", encoding="utf-8") as file:
        file.write(_DUMP_HEAD.format(language=texts.language))
        for copy in range(copies):
            for title, text in texts.articles:
                first = f"This is copy {copy} of the article {title}.\n\n" if distinct else ""
                name = f"{title} {copy}" if distinct else title
                file.write(_PAGE.format(title=escape(name), number=next(number), text=escape(first + text)))
        file.write("</mediawiki>\n")
