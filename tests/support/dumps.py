"""Small Wikipedia dumps for tests, and what reading a dump gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.config.schema import SourceConfig
from pipeline.config.wikitext import WikitextConfig
from pipeline.documents import Document, Drop
from source_items import read_source

NAMESPACES = {-2: "Media", -1: "Special", 0: "", 1: "Talk", 6: "File", 10: "Template", 14: "Category"}
ENGLISH = "dumps/gensim/enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"
MULTISTREAM = "dumps/multistream-repacked/enwiki-gensim206-pages-articles-multistream.xml.bz2"


def head(version: str = "0.10", language: str = "en", namespaces: dict[int, str] = NAMESPACES) -> str:
    names = "".join(
        f'<namespace key="{key}" case="first-letter">{name}</namespace>' for key, name in namespaces.items()
    )
    return (
        f'<mediawiki xmlns="http://www.mediawiki.org/xml/export-{version}/" version="{version}" '
        f'xml:lang="{language}">\n'
        f"<siteinfo><sitename>W</sitename><dbname>{language}wiki</dbname><namespaces>{names}</namespaces></siteinfo>\n"
    )


def page(title: str, text: str, *, ns: int | None = 0, extra: str = "", model: str = "wikitext") -> str:
    return (
        f"<page><title>{title}</title>{'' if ns is None else f'<ns>{ns}</ns>'}<id>1</id>{extra}"
        f"<revision><id>2</id><timestamp>2020-01-01T00:00:00Z</timestamp>{f'<model>{model}</model>' if model else ''}"
        f'<text xml:space="preserve">{text}</text></revision></page>\n'
    )


def dump(*pages: str, **keywords: object) -> str:
    return head(**keywords) + "".join(pages) + "</mediawiki>\n"  # type: ignore[arg-type]


def read(path: Path, language: str = "en", **wikitext: Any) -> list[Document | Drop]:
    settings = WikitextConfig(**wikitext)
    return read_source(SourceConfig(kind="wikipedia", path=str(path), language=language, wikitext=settings))


def read_text(tmp_path: Path, text: str, language: str = "en", **wikitext: Any) -> list[Document | Drop]:
    (tmp_path / "x.xml").write_text(text, encoding="utf-8")
    return read(tmp_path / "x.xml", language, **wikitext)


def names(items: list[Document | Drop]) -> list[str]:
    return [item.name for item in items if isinstance(item, Document)]


def reasons(items: list[Document | Drop]) -> dict[str, str]:
    return {item.name: item.reason for item in items if isinstance(item, Drop)}
