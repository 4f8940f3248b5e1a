"""Ends of sentences by language: marks, ordinals, abbreviations, dates, quotations, and what is taken for a list."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.cleaning import split_sentences

CASES = [
    tuple(line.split("\t"))
    for line in Path(__file__).with_name("sentence_ends_cases.tsv").read_text(encoding="utf-8").splitlines()
]
"""A language and its sentences, with " | " between them."""


@pytest.mark.parametrize(("language", "sentences"), CASES)
def test_sentences_end_where_the_language_ends_them(language: str, sentences: str) -> None:
    expected = sentences.split(" | ")
    assert split_sentences(" ".join(expected), language=language) == expected


def test_a_lower_cased_document_keeps_its_ends() -> None:
    """A small letter is a sign of an abbreviation only in a text that has capitals."""
    assert split_sentences("he ran far. she sat. it was so.", language="pl") == [
        "he ran far.",
        "she sat.",
        "it was so.",
    ]


def test_a_sentence_that_goes_on_behind_a_quotation_stays_whole() -> None:
    text = 'She said "I came. I saw." and left. "We go. They stay," he said.'
    assert split_sentences(text, language="en") == [
        'She said "I came. I saw." and left.',
        '"We go. They stay," he said.',
    ]


@pytest.mark.parametrize("language", ["km", "bo", "my", "de", "pl", "mr"])
def test_rules_lose_no_letter(language: str) -> None:
    unit = '"Dr. (5 m) II. 19. x. A. B." \u17d4\u0f0d \u104b\u0964 1990. 12 '
    text = unit * 2_000
    sentences = split_sentences(text, language=language)
    assert "".join("".join(sentences).split()) == "".join(text.split())
