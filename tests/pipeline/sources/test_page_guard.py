"""Pages that take too much time or memory: skipped by name after two tries, the rest goes on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import unruly
from pipeline.config.schema import SourceConfig
from pipeline.documents import Document, Drop
from pipeline.output.report import _drops
from pipeline.sources import wikipedia as wikipedia_module
from pipeline.sources.dumpxml import Page
from pipeline.sources.page_guard import GUARDED_CHARACTERS, PageGuard
from pipeline.sources.splits import list_read_warnings, list_splits, read_documents
from pipeline.sources.wikipedia import convert_page
from pipeline.tally import ReadTally
from unruly import convert


@pytest.fixture
def guard(monkeypatch: pytest.MonkeyPatch) -> Iterator[PageGuard]:
    monkeypatch.setenv("PYTHONPATH", str(Path(unruly.__file__).parent))  # where the child finds `convert`
    guard = PageGuard(convert, page_time_s=5, memory_bytes=2 << 30)
    yield guard
    guard.close()


@pytest.mark.parametrize(
    ("title", "reason"),
    [
        ("endless", "more than 5 s, twice; 9 characters of markup"),
        ("greedy", "more than 2048 MB of memory, twice; 9 characters of markup"),
        ("fatal", "its process ended with status 7, twice; 9 characters of markup"),
    ],
)
def test_a_page_over_resources_is_tried_twice_and_named(
    guard: PageGuard, tmp_path: Path, title: str, reason: str
) -> None:
    """mwparserfromhell#286, #206; wikitextparser#37: one page takes 30 GB or never ends."""
    log = tmp_path / "log"
    good = [Document("good", ("Fine.",))]
    assert guard.convert(Page(title="good"), log=str(log)) == good
    assert guard.convert(Page(title=title, num_characters=9), log=str(log)) == [
        Drop("page_over_resources", title, reason)
    ]
    assert guard.convert(Page(title="good"), log=str(log)) == good
    processes = [line.split()[0] for line in log.read_text().splitlines()]
    assert processes[0] == processes[1]
    assert len(set(processes)) == 3
    assert len(processes) == 4
    assert str(os.getpid()) not in processes


def test_an_error_of_our_own_is_no_skip(guard: PageGuard, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"(?s)page 'faulty' cannot be converted:.*KeyError: 'ours'"):
        guard.convert(Page(title="faulty"), log=str(tmp_path / "log"))


def test_large_pages_of_a_dump_go_through_the_guard_and_come_out_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def note(page: Page, **keywords: object) -> list[Document | Drop]:
        seen.append(page.title)
        return list(wikipedia_module._GUARD.__class__(convert_page).convert(page, **keywords))

    texts = {"small": "It is small. ", "great": "It is [[great]]. " * (GUARDED_CHARACTERS // 16)}
    pages = "".join(
        f"<page><title>{title}</title><ns>0</ns><revision><text>{text}</text></revision></page>"
        for title, text in texts.items()
    )
    (tmp_path / "x.xml").write_text(f"<mediawiki>{pages}</mediawiki>")
    source = SourceConfig(kind="wikipedia", path=str(tmp_path / "x.xml"))

    def read() -> list[Document | Drop]:
        return [item for split in list_splits([source]) for item in read_documents(split, source)]

    items = read()
    assert [item.name for item in items] == ["small", "great"]
    monkeypatch.setattr(wikipedia_module._GUARD, "convert", note)
    assert read() == items
    assert seen == ["great"]


def test_every_skipped_page_is_named_in_the_report_and_warned_of() -> None:
    tally, other = ReadTally(), ReadTally()
    for number in range(20):
        tally.count_drop("page_over_budget", source=0, name=f"Page {number}", detail="much")
        other.count_drop("page_over_resources", source=0, name=f"Slow {number}", detail="long")
        other.count_drop("redirect", source=0, name=f"Other {number}", detail="")
    other.documents[0] = 1
    tally.merge(other)
    page = _drops(
        [
            {
                "reason": reason,
                "count": count,
                "examples": [{"name": name, "detail": detail} for name, detail in tally.examples[reason]],
            }
            for reason, count in tally.drops[0].items()
        ]
    )
    assert all(f"Page {number}: much" in page and f"Slow {number}: long" in page for number in range(20))
    assert page.count("Other") == 3
    (warning,) = list_read_warnings([SourceConfig(kind="wikipedia", path="x")], read=tally)
    assert "20 pages were skipped because they took too much time or memory" in warning
    assert "Slow 0 (long)" in warning
