"""Shortcuts of the text stages change their speed and nothing else: each beside the plain way, on odd text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline.cleaning import characters as clean
from pipeline.cleaning.sentences import split_sentences
from pipeline.config.schema import SourceConfig
from pipeline.documents import Document
from pipeline.sources import books, wrapped_lines
from pipeline.sources.splits import list_splits, read_documents

ODD = "ab. A\u00e9e\u0301\t\n\r\x0b\x0c\x1c\x1f\x85\xa0\xad\u200b\u200c\u2003\u2028\u202e\ufdd0"
ODD += "\ufffe\ufeff\U0001f600\U000e0041"
LINES = st.text(alphabet="aB1 .-|\t\u2014\u3002\u00e9", max_size=24)


def plainly_normalized(text: str, *, keep_reserved: bool) -> str:
    removed = clean._REMOVED_BUT_RESERVED if keep_reserved else clean._REMOVED
    return clean.unicodedata.normalize("NFC", removed.sub("", clean._LINE_BREAKS.sub("\n", text)))


@settings(max_examples=150)
@given(st.text(alphabet=ODD, max_size=40) | st.text(max_size=20), st.booleans(), st.sampled_from([1, 7, 1_000]))
def test_text_without_anything_odd_is_passed_on(text: str, keep_reserved: bool, at_once: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clean, "_WORTH_A_LOOK", 0)
        patch.setattr(clean, "_LOOK_CHARACTERS", at_once)
        found = clean.normalize_text(text, keep_reserved=keep_reserved)
    assert found == plainly_normalized(text, keep_reserved=keep_reserved)


@pytest.mark.parametrize("odd", ["\x00", "\x85", "\u2028", "\ufeff", "\ud800", "\U000e0001"])
def test_one_odd_character_is_seen_wherever_it_stands(odd: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clean, "_LOOK_CHARACTERS", 4_000)
    for place in (0, 1, 3_999, 4_000, 8_001, 9_000):
        text = "\u00e9" * place + odd + "\u00e9" * (9_000 - place)
        assert odd not in clean.normalize_text(text)
    assert clean.normalize_text("\u00e9" * 2_000) == "\u00e9" * 2_000


@given(st.lists(LINES, min_size=1, max_size=6))
@example(["a . . . . b"])
@example(["a..... b"])
@example(["a|b"])
@example(["a\tb"])
@example(["a   b"])
def test_columns_are_looked_for_where_there_may_be_some(lines: list[str]) -> None:
    if any(map(wrapped_lines._COLUMNS.search, lines)):
        assert any(mark in "\n".join(lines) for mark in wrapped_lines._COLUMN_MARKS)


@given(st.lists(LINES.map(lambda line: line.replace("\u3002", "").strip()).filter(bool), min_size=1, max_size=6))
def test_lines_are_joined_with_a_space_but_after_hyphens_and_dashes(lines: list[str]) -> None:
    joined = lines[0]
    for line in lines[1:]:
        tight = joined.endswith(("--", "\u2014")) or (re.search(r"[^\W\d_]-$", joined) and line[0].islower())
        joined += line if tight else f" {line}"
    assert wrapped_lines._join(lines) == joined


@pytest.mark.parametrize("characters", [1, 30, 10_000])
def test_paragraphs_are_split_in_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, characters: int) -> None:
    paragraphs = [f"It is line {number}, e\u0301 and so on. Is it? Mr. Smith said no.\u200b" for number in range(9)]
    (tmp_path / "a.txt").write_text("\n\n".join(paragraphs) + "\n", encoding="utf-8")
    monkeypatch.setattr(books, "_RUN_CHARACTERS", characters)
    source = SourceConfig(kind="books", path=str(tmp_path / "a.txt"))
    (document,) = [item for item in read_documents(*list_splits([source]), source) if isinstance(item, Document)]
    assert list(document.sentences) == split_sentences("\n".join(paragraphs), language="en")
    assert len(document.sentences) == 27
