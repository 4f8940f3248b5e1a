"""Documents left out by length, repetition, symbols, script and stop words: each with its reason, none by default."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import pytest
from pydantic import ValidationError

from corpora import build_text, make_config, make_documents, write_text
from pipeline.build.recipe import build
from pipeline.cleaning.filters import EXCERPT_CHARACTERS, DocumentFilter, beginning, excerpt
from pipeline.cleaning.languages import _lists, script_of, scripts_of, stop_words
from pipeline.config.cleaning import CleaningConfig
from pipeline.config.schema import SourceConfig
from pipeline.documents import Document, Drop
from pipeline.sources.splits import list_splits
from pipeline.vocabulary.train import count_sources


def reject(*sentences: str, language: str = "en", **settings: float) -> Drop | None:
    source = SourceConfig(kind="text", path="x", language=language)
    return DocumentFilter(CleaningConfig(**settings), source=source).reject(Document("a name", sentences))


def reason(*sentences: str, language: str = "en", **settings: float) -> str | None:
    drop = reject(*sentences, language=language, **settings)
    return None if drop is None else drop.reason


def test_nothing_is_left_out_by_default() -> None:
    assert not CleaningConfig().measures_documents
    for sentences in (["x"], ["$$$ 12"], ["same"] * 50, ["слово " * 100], ["word " * 100_000]):
        assert reason(*sentences) is None


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"min_words": 5}, None),
        ({"min_words": 6}, Drop("too_few_words", "a name", "5 words, min_words=6")),
        ({"max_words": 5}, None),
        ({"max_words": 4}, Drop("too_many_words", "a name", "5 words, max_words=4")),
        ({"min_characters": 17}, None),
        ({"min_characters": 18}, Drop("too_few_characters", "a name", "17 characters, min_characters=18")),
        ({"max_characters": 17}, None),
        ({"max_characters": 16}, Drop("too_many_characters", "a name", "17 characters, max_characters=16")),
        ({"min_words": 6, "min_characters": 99}, Drop("too_few_words", "a name", "5 words, min_words=6")),
    ],
)
def test_length_limits_are_inclusive(settings: dict[str, int], expected: Drop | None) -> None:
    assert reject("one two 345", "si xyz", **settings) == expected


def test_share_of_repeated_lines() -> None:
    lines = ["a b", "c d", "a b", "a b"]
    assert reason(*lines, max_repeated_lines=0.5) is None
    assert reject(*lines, max_repeated_lines=0.49) == Drop(
        "repeated_lines", "a name", "0.50 repeated, max_repeated_lines=0.49"
    )
    assert reason("a", "b", max_repeated_lines=0.0) is None


def test_share_of_symbols() -> None:
    assert reason("ab12 $$ ..", max_symbols=0.5) is None
    assert reject("ab12 $$ ..", max_symbols=0.49) == Drop("symbols", "a name", "0.50 symbols, max_symbols=0.49")
    assert reason("हिन्दी में लिखा", language="hi", max_symbols=0.0) is None
    assert reason("می‌خواهم", language="fa", max_symbols=0.0) is None


def test_script_of_the_language() -> None:
    assert reason("ten letters", "двадцать", language="en", min_script=0.5) is None
    drop = reject("abcd", "двад", "1234", language="en", min_script=0.6)
    assert drop == Drop("other_script", "a name", "0.50 LATIN, min_script=0.6")
    assert reason("Всё хорошо", language="ru", min_script=1.0) is None
    assert reason("한국어 漢字", language="ko", min_script=1.0) is None
    assert reason("カタカナー ひらがな 漢字 々", language="ja", min_script=1.0) is None
    assert reason("中文字", language="zh-yue", min_script=1.0) is None
    assert reason("한국어", language="zh", min_script=0.1) == "other_script"
    assert reason("12 34", language="ko", min_script=1.0) is None  # no letters, no verdict


def test_scripts_are_the_first_words_of_unicode_names() -> None:
    assert [script_of(letter) for letter in "aéЖ가字あ"] == ["LATIN", "LATIN", "CYRILLIC", "HANGUL", "CJK", "HIRAGANA"]
    assert script_of("\uff21") == "LATIN"
    assert script_of("\ue000") == ""
    assert scripts_of("en-GB") == scripts_of("qqq") == ("LATIN",)


def test_stop_words_tell_running_text_in_a_language() -> None:
    english = "It is a truth that the man who has a good fortune must be in want of a wife as they all say so of him"
    german = "Es ist eine Wahrheit dass der Mann der ein Vermögen hat auch eine Frau haben muss wie man es von ihm sagt"
    for language, own, other in (("en", english, german), ("de", german, english)):
        assert reason(own, language=language, min_stop_words=0.3) is None
        assert reason(other, language=language, min_stop_words=0.3) == "few_stop_words"
    assert reason(" ".join(german.split()[:19]), language="en", min_stop_words=0.3) is None  # too few words to tell
    assert reason(german, language="qqq", min_stop_words=0.3) is None  # no list
    assert {"en", "de", "fr", "es", "ru"} < set(_lists())
    assert stop_words("de-AT") == stop_words("de")
    assert all(len(stop_words(language)) >= 30 for language in _lists())


def test_paragraphs_of_three_languages_are_told_apart(shared_data: Path) -> None:
    """The share that the config's help states, on paragraphs of XQuAD: the same text in each language."""
    texts = {}
    for language in ("en", "de", "es"):
        tree = json.loads((shared_data / f"eval/squad/xquad.{language}.json").read_text())
        texts[language] = [part["context"] for article in tree["data"] for part in article["paragraphs"]]
    for expected in texts:
        for actual, paragraphs in texts.items():
            kept = sum(reason(text, language=expected, min_stop_words=0.2) is None for text in paragraphs)
            assert (kept >= 0.97 * len(paragraphs)) if actual == expected else (kept <= 0.03 * len(paragraphs)), (
                expected,
                actual,
                kept,
            )


def test_korean_paragraphs_are_told_from_english_ones(shared_data: Path) -> None:
    korean = json.loads(lzma.decompress((shared_data / "korean/korquad/KorQuAD_v1.0_dev.json.xz").read_bytes()))
    english = json.loads((shared_data / "eval/squad/xquad.en.json").read_text())
    for tree, expected in ((korean, 0), (english, 1)):
        texts = [part["context"] for article in tree["data"] for part in article["paragraphs"]]
        dropped = sum(reason(text, language="ko", min_script=0.5) is not None for text in texts)
        assert abs(dropped - expected * len(texts)) <= 0.01 * len(texts)


def test_excerpts_are_short_and_of_one_line() -> None:
    assert excerpt(beginning(Document("", ("one", "two")))) == "one two"
    long = beginning(Document("", ("word " * 10, "more " * 10, "never")))
    assert "never" not in long
    assert len(excerpt(long)) <= EXCERPT_CHARACTERS
    assert excerpt(long).endswith("...")


def test_contradictory_bounds_are_refused() -> None:
    with pytest.raises(ValidationError, match="min_words=9 exceeds max_words=8"):
        CleaningConfig(min_words=9, max_words=8)
    with pytest.raises(ValidationError, match="min_characters=9 exceeds max_characters=8"):
        CleaningConfig(min_characters=9, max_characters=8)


def test_a_build_counts_what_its_filters_leave_out(tmp_path: Path) -> None:
    documents = [*make_documents(20), ["ba de"], ["fi go"], ["ba de fi go"] * 9]
    manifest = build_text(tmp_path, documents, cleaning={"min_words": 3, "max_repeated_lines": 0.5})
    assert manifest.drops == {"repeated_lines": 1, "too_few_words": 2}
    assert manifest.statistics["splits"]["train"]["documents"] == 20
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    by_reason = {drop["reason"]: drop for drop in report["drops"]}
    assert by_reason["too_few_words"]["count"] == 2
    assert by_reason["too_few_words"]["examples"][0]["detail"] == "2 words, min_words=3: ba de"
    assert report["sources"][0]["drops"] == manifest.drops
    assert manifest.config["cleaning"]["min_words"] == 3


def test_a_vocabulary_is_trained_on_what_the_filters_leave(tmp_path: Path) -> None:
    path = write_text(tmp_path / "a.txt", [["rare word"], ["many other words stand here"]])
    source = {"kind": "text", "path": str(path)}
    config = make_config(tmp_path, sources=[source], cleaning={"min_words": 3})
    counts = count_sources(config, splits=list_splits(config.sources), folder=str(tmp_path))
    assert set(counts) == {"many", "other", "words", "stand", "here"}


def test_filters_change_nothing_where_no_document_fails_them(tmp_path: Path) -> None:
    documents = make_documents(20)
    (tmp_path / "on").mkdir()
    (tmp_path / "off").mkdir()
    everything = {"min_words": 1, "max_words": 10**6, "max_repeated_lines": 1.0, "max_symbols": 1.0, "min_script": 0.0}
    on = build_text(tmp_path / "on", documents, cleaning=everything)
    off = build_text(tmp_path / "off", documents)
    assert [shard.sha256 for shard in on.shards] == [shard.sha256 for shard in off.shards]
    assert on.hash != off.hash  # the settings are part of what a set is
    config = make_config(tmp_path / "on", sources=[{"kind": "text", "path": str(tmp_path / "on" / "text")}])
    with pytest.raises(ValueError, match=r"cleaning.min_words: 1 -> null"):
        build(config, say=lambda line: None)
