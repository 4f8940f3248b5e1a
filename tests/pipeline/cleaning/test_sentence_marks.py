"""Precision and recall of the ends of sentences on paragraphs marked by hand, held for each language."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench.sentence_ends import MARKS, ends_of, find_paragraphs, read_marks, score
from pipeline.cleaning import split_sentences

LEAST = {
    "bg": (0.99, 0.995),
    "ca": (0.995, 0.995),
    "da": (0.995, 0.99),
    "de": (0.995, 0.995),
    "el": (0.995, 0.985),
    "en": (0.995, 0.995),
    "es": (0.99, 0.995),
    "fr": (0.995, 0.995),
    "hi": (0.995, 0.995),
    "hu": (0.995, 0.995),
    "id": (0.995, 0.99),
    "it": (0.995, 0.99),
    "ja": (0.995, 0.995),
    "ko": (0.995, 0.99),
    "my": (0.995, 0.995),
    "pl": (0.995, 0.995),
    "pt": (0.995, 0.995),
    "ru": (0.995, 0.99),
    "sv": (0.995, 0.995),
    "tr": (0.995, 0.995),
    "uk": (0.995, 0.995),
    "vi": (0.995, 0.985),
}
"""Least precision and recall over both samples."""
LEAST_FOUND = 0.9
"""Share of the paragraphs that must still be found: other changes to cleaning may change the text of a few."""


@pytest.mark.parametrize("language", sorted(LEAST))
def test_ends_of_sentences_are_where_the_marks_are(shared_data: Path, language: str) -> None:
    folders = [shared_data, Path(os.environ.get("CLOZE_MARKED_TEXTS", shared_data))]
    marks = read_marks(language)
    places = {marked.file: folder / marked.file for folder in folders for marked in marks}
    places = {file: path if path.is_file() else shared_data / file for file, path in places.items()}
    here = [marked for marked in marks if places[marked.file].is_file()]
    absent = sorted({marked.file for marked in marks} - {marked.file for marked in here})
    if not here:
        pytest.skip(f"texts with marks are absent from {shared_data}: {', '.join(absent)} (sentence_marks/README.md)")
    texts: dict[str, str] = {}
    for file in {marked.file for marked in here}:
        texts |= find_paragraphs(places[file], language=language)
    found = [(marked, texts[marked.digest]) for marked in here if marked.digest in texts]
    assert len(found) >= LEAST_FOUND * len(here)
    result = score(lambda text, code: split_sentences(text, language=code), found, language=language)
    precision, recall = LEAST[language]
    assert result.precision >= precision, result
    assert result.recall >= recall, result


def test_every_language_with_marks_is_held_to_them() -> None:
    assert {file.stem for file in MARKS.glob("*.tsv")} == set(LEAST)
    ends = {language: sum(len(marked.ends) + 1 for marked in read_marks(language)) for language in LEAST}
    assert sum(number >= 200 for number in ends.values()) >= 12, ends


def test_the_shared_texts_alone_hold_twelve_languages_to_200_sentences(shared_data: Path) -> None:
    ends = {
        language: sum(len(marked.ends) + 1 for marked in read_marks(language) if (shared_data / marked.file).is_file())
        for language in LEAST
    }
    assert sum(number >= 200 for number in ends.values()) >= 12, ends


def test_ends_are_counted_in_the_paragraph() -> None:
    assert ends_of(["One  two.", "Three.", "Four"], "One two. Three. Four") == {8, 15}
    assert ends_of(["All."], "All.") == frozenset()
    with pytest.raises(ValueError, match="substring not found"):
        ends_of(["Other"], "Text.")
