"""Wikitext of all real dumps to text: no residue of markup, and the prose is kept."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import mwparserfromhell

from pipeline.sources.bytestreams import read_pieces
from pipeline.sources.dumpxml import DumpReader
from pipeline.sources.wikipedia import names_of_site
from pipeline.wikitext.scanner import PlainText, wikitext_to_text

RESIDUE = re.compile(
    r"\{\{|\}\}|\[\[|\]\]|\{\||\|\}|</?(?:ref|br|div|span|gallery|math|table|small|sup|sub|nowiki|center|font)\b"
    r"|</?references"
    r"|<!--|\|thumb|thumb\||\b\d+px\b|'''?|__[A-Z]{3,}__|^==|==$|\bcolspan|\browspan|\bstyle\s?=\s?\""
    r"|\bclass\s?=\s?\""
    r"|^(?i:category|file|image|datei|kategorie|archivo|fichier|immagine|categoria|\u0444\u0430\u0439\u043b)\s?:\S"
    r"|#(?i:redirect)\b|\ufdd0"
)
# Residue-like text that articles on markup and file names do hold, as their readers see it.
QUOTED = {"HTML": 10, "ASCII art": 5}


def articles(shared_data: Path, *, each: int) -> Iterator[tuple[str, str, str, PlainText]]:
    """(language, title, markup, text) of articles in every dump; of dumps with many pages each `each`-th."""
    folder = shared_data / "wiki/dumps"
    for path in sorted([*folder.glob("*/*.xml*"), *folder.glob("gensim/*shortened.bz2")]):
        if "index" in path.name or "multistream" in path.name or path.name.startswith(("wikidata", "it-categories")):
            continue
        found = re.match(r"([a-z]+)wiki", path.name)
        language = found.group(1) if found else "it" if path.name.startswith(("it-", "misc")) else "ltg"
        reader = DumpReader(str(path), most_characters=10**7)
        for index, page in enumerate(reader.read(read_pieces(path))):
            names = names_of_site(reader.site, language=language)
            article = page.namespace == 0 or (page.namespace is None and names.namespace_of(page.title) == 0)
            if (
                (index < 4 or index % each == 0)
                and article
                and not page.is_redirect
                and not names.is_redirect(page.text)
            ):
                text = wikitext_to_text(page.text, names=names, language=language, title=page.title)
                yield language, page.title, page.text, text


def test_no_markup_remains_in_any_dump(shared_data: Path) -> None:
    """datasets#3400: localised redirects, File:, categories, magic words left in."""
    residues: list[str] = []
    num_lines = 0
    for language, title, _, converted in articles(shared_data, each=3):
        lines = [line for line in converted.text.split("\n") if converted.hole_in(line) is None]
        num_lines += len(lines)
        found = [match for line in lines if (match := RESIDUE.search(line))]
        if len(found) > QUOTED.get(title, 0):
            residues += [f"{language} {title}: {m.string[max(0, m.start() - 30) : m.end() + 30]!r}" for m in found]
    assert num_lines > 15_000
    assert len(residues) <= num_lines / 10_000, residues[:30]


def test_the_prose_of_a_full_parse_is_kept(shared_data: Path) -> None:
    """At least 95% of the characters of plain prose that mwparserfromhell's strip_code gives."""
    kept = total = 0
    for _, _, markup, converted in articles(shared_data, each=25):
        if len(markup) < 40_000:
            parsed = mwparserfromhell.parse(markup)
            for tag in parsed.filter_tags(
                matches=lambda node: node.tag in ("table", "ref", "gallery"), recursive=False
            ):
                parsed.remove(tag)
            have = Counter(re.findall(r"\w+", converted.text))
            for line in parsed.strip_code().split("\n"):
                if len(line) > 60 and line.strip().endswith((".", "!", "?", "\u3002", "\u06d4")) and "|" not in line:
                    words = Counter(re.findall(r"\w+", line))
                    total += sum(len(word) * count for word, count in words.items())
                    kept += sum(len(word) * count for word, count in (words & have).items())
                    have -= words
    assert total > 300_000
    assert kept >= 0.95 * total, kept / total
