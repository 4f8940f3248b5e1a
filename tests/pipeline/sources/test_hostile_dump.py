"""A dump with hostile pages builds: what is over budget is named in the report, the rest is in the set."""

from __future__ import annotations

from pathlib import Path

import pytest

from corpora import make_config, make_documents
from pipeline.build.recipe import build
from pipeline.config.schema import SourceConfig
from pipeline.output.report import _drops
from pipeline.sources import wikipedia
from pipeline.sources.splits import list_splits, read_documents
from pipeline.tally import ReadTally


def page(title: str, text: str) -> str:
    return f"<page><title>{title}</title><ns>0</ns><revision><text>{text}</text></revision></page>\n"


def test_a_dump_with_hostile_pages_builds_and_names_them(tmp_path: Path) -> None:
    """pySBD#79, #58: hours on one line; mwparserfromhell#286: one page takes 30 GB."""
    pages = [page(f"Good {n}", ". ".join(sentences)) for n, sentences in enumerate(make_documents(20))]
    pages.append(page("Brackets", "{{[[" * 2_500_000))
    pages.append(page("Deep", "{{a|[[b|" * 90))
    pages.append(page("Word", "ba" * 500_000 + " ba de. " + "fi " * 10))
    pages.append(page("Quotes", "\"ba' " * 100_000))
    path = tmp_path / "x.xml"
    path.write_text("<mediawiki>" + "".join(pages) + "</mediawiki>")
    config = make_config(tmp_path, sources=[{"kind": "wikipedia", "path": str(path)}])
    manifest = build(config, say=lambda line: None)
    assert manifest.drops["page_over_budget"] == 2
    report = (tmp_path / "out" / "report.html").read_text()
    assert "Brackets: 10000000 characters of markup, more than 4194304 bytes" in report
    assert "Deep: 101 levels of open templates and links, more than 100" in report
    assert manifest.statistics["sources"][0]["documents"] == 22


def test_a_fault_of_the_scanner_names_file_and_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no skip: sets of two machines would differ. Pages of any size are converted where they are read."""
    path = tmp_path / "x.xml"
    path.write_text("<mediawiki>" + page("Good", "It rains.") + page("Faulty", "It snows. " * 50_000) + "</mediawiki>")
    convert = wikipedia.wikitext_to_text

    def fail(text: str, *, title: str, **keywords: object) -> object:
        if title == "Faulty":
            raise KeyError("ours")
        return convert(text, title=title, **keywords)  # type: ignore[arg-type]

    monkeypatch.setattr(wikipedia, "wikitext_to_text", fail)
    source = SourceConfig(kind="wikipedia", path=str(path))
    (split,) = list_splits([source])
    with pytest.raises(RuntimeError, match=r"x\.xml: page 'Faulty' cannot be converted: KeyError: 'ours'"):
        list(read_documents(split, source))


def test_every_skipped_page_is_named_in_the_report() -> None:
    tally, other = ReadTally(), ReadTally()
    for number in range(20):
        tally.count_drop("page_over_budget", source=0, name=f"Page {number}", detail="much")
        other.count_drop("redirect", source=0, name=f"Other {number}", detail="")
    tally.merge(other)
    found = _drops(
        [
            {
                "reason": reason,
                "count": count,
                "examples": [{"name": name, "detail": detail} for name, detail in tally.examples[reason]],
            }
            for reason, count in tally.drops[0].items()
        ]
    )
    assert all(f"Page {number}: much" in found for number in range(20))
    assert found.count("Other") == 3
