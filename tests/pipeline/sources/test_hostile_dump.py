"""A dump with hostile pages builds: what is over budget is named in the report, the rest is in the set."""

from __future__ import annotations

from pathlib import Path

from corpora import make_config, make_documents
from pipeline.build.recipe import build


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
