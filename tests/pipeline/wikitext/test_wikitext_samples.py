"""Sampled sentences of real dumps: nothing of the markup in 500; the 30 in docs are what the code gives."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from pipeline.config.schema import SourceConfig
from pipeline.documents import Document
from pipeline.sources.splits import list_splits, read_documents

DOCS = Path(__file__).parents[3] / "docs" / "wikitext-samples.md"
ENGLISH = (
    "gensim/enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2",
    "gensim/enwiki-table-markup.xml.bz2",
)
RESIDUE = {
    "template": r"\{\{|\}\}|\{\{\{",
    "link": r"\[\[|\]\]|\[https?:",
    "table": r"\{\||\|\}|\|-|\b(?:colspan|rowspan|cellpadding|cellspacing|bgcolor)\s*=|^[|!]",
    "attribute": r"\b(?:style|class|align|width|border|valign)\s*=\s*[\"'\w]",
    "tag": r"</?(?:ref|references|br|div|span|gallery|math|table|t[dr]|small|su[bp]|nowiki|center|font)\b",
    "comment": r"<!--|-->",
    "file": r"\|thumb|thumb\||\b\d+px\b|\.(?:jpe?g|svg|png|gif|ogg)\b\s*\|",
    "namespace": r"(?i)^(?:category|file|image|template|datei|kategorie|vorlage|archivo|fichier|cat\u00e9gorie|immagine"
    r"|categoria|\u0444\u0430\u0439\u043b|\u043a\u0430\u0442\u0435\u0433\u043e\u0440\u0438\u044f|\ud30c\uc77c|\ubd84\ub958)\s?:\S",
    "magic word": r"__[^\W\d_a-z]+__|(?i:\{?DEFAULTSORT)|#(?i:redirect)\b",
    "quotes": r"'''|''(?!')",
    "heading": r"^={2,}|={2,}$",
    "entity": r"&(?:nbsp|amp|lt|gt|ndash|mdash|quot|#\d+);",
    "reserved": "[\ufdd0-\ufdef]",
}


def rank(title: str, sentence: str) -> bytes:
    return hashlib.blake2b(f"{title}\n{sentence}".encode()).digest()


def read_sentences(paths: Iterable[Path]) -> Iterator[tuple[str, str]]:
    for path in paths:
        found = re.match(r"([a-z]+)wiki", path.name)
        assert found is not None
        source = SourceConfig(kind="wikipedia", path=str(path), language=found.group(1))
        for split in list_splits([source]):
            for item in read_documents(split, source):
                if isinstance(item, Document):
                    yield from ((item.name, sentence) for sentence in item.sentences)


@pytest.fixture(scope="module")
def english(shared_data: Path) -> list[tuple[str, str]]:
    """Sentences of the English samples in the order of a fixed draw."""
    paths = [shared_data / "wiki/dumps" / name for name in ENGLISH]
    return sorted(read_sentences(paths), key=lambda pair: rank(*pair))


def find_residue(pairs: Iterable[tuple[str, str]]) -> list[str]:
    return [
        f"{kind} in {title}: {sentence}"
        for title, sentence in pairs
        for kind, pattern in RESIDUE.items()
        if re.search(pattern, sentence)
    ]


def test_the_patterns_find_each_kind() -> None:
    samples = ["a {{b}}", "[[c]]", "{|", 'style="x"', "<br/>", "<!-- d", "|thumb", "File:e.jpg", "__NOTOC__", "'''f'''"]
    samples += ["== g", "&nbsp;", "\ufdd0"]
    assert [bool(find_residue([("T", sample)])) for sample in samples] == [True] * len(RESIDUE)
    assert not find_residue([("T", "It's 5 < 6, C# & D|E; the 1990s' best: a = b.")])


def test_nothing_of_markup_in_500_sampled_english_sentences(english: list[tuple[str, str]]) -> None:
    assert find_residue(english[:500]) == []


def test_nothing_of_markup_in_500_sampled_sentences_of_other_languages(shared_data: Path) -> None:
    folder = shared_data / "wiki/dumps"
    paths = sorted([*folder.glob("dbpedia-minidumps/*.bz2"), *folder.glob("wikiclean/*.xml")])
    paths = [path for path in paths if not path.name.startswith(("enwiki", "wikidata", "commons"))]
    sentences = sorted(read_sentences(paths), key=lambda pair: rank(*pair))
    assert len(sentences) > 8_000
    assert find_residue(sentences[:500]) == []


def render_samples(pairs: Iterable[tuple[str, str]]) -> str:
    def cell(text: str) -> str:
        return text.replace("|", "\\|").replace("*", "\\*").replace("_", "\\_").replace("<", "&lt;")

    def link(title: str) -> str:
        address = title.replace(" ", "_").replace("(", "%28").replace(")", "%29")
        return f"[{cell(title)}](https://en.wikipedia.org/wiki/{address})"

    return "".join(f"| {link(title)} | {cell(sentence)} |\n" for title, sentence in pairs)


def test_the_sentences_in_docs_are_the_first_30_of_the_draw(english: list[tuple[str, str]]) -> None:
    page = DOCS.read_text(encoding="utf-8")
    assert "CC BY-SA 4.0" in page
    assert page.endswith(render_samples(english[:30])), render_samples(english[:30])
