"""Sentences and characters: boundaries, white space, controls, NFC, decoding, and time on pathological lines."""

from __future__ import annotations

import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.cleaning import sentences
from pipeline.cleaning.characters import has_words, normalize_line, normalize_text
from pipeline.cleaning.sentences import MAX_LINE_CHARACTERS, split_sentences


def test_sentences_of_several_languages() -> None:
    text = 'Hello Dr. Smith. He said "Go away. Now!" and left.\nA 3.5 m tree.'
    assert split_sentences(text, language="en") == [
        "Hello Dr. Smith.",
        'He said "Go away. Now!" and left.',
        "A 3.5 m tree.",
    ]
    korean = "\uadf8\ub294 \uac14\ub2e4. \ub098\ub294 \uc654\ub2e4."
    assert split_sentences(korean, language="ko") == ["\uadf8\ub294 \uac14\ub2e4.", "\ub098\ub294 \uc654\ub2e4."]
    assert split_sentences("\u6211\u53bb\u4e86\u3002\u4ed6\u6765\u4e86\u3002", language="zh") == [
        "\u6211\u53bb\u4e86\u3002",
        "\u4ed6\u6765\u4e86\u3002",
    ]
    assert split_sentences("One. Two is more.", language="no-such-language") == ["One.", "Two is more."]


@pytest.mark.parametrize(
    ("language", "sentences"),
    [
        (
            "ko",
            [
                '"\uac14\ub2e4."\ub77c\uace0 \ud588\ub2e4.',
                '"\uc654\ub2e4." \ub77c\uba70 \uc6c3\uc5c8\ub2e4.',
                '"\uc815\ub9d0?"',
                "\uadf8\uac00 \ubb3c\uc5c8\ub2e4.",
            ],
        ),
        (
            "ko",
            [
                "\u300e\uac14\ub2e4.\u300f\ub294 \ucc45\uc774\ub2e4.",
                "(\uadf8\ub294 \uac14\ub2e4.) \uadf8\ub140\ub294 \uc654\ub2e4.",
            ],
        ),
        ("ko", ["2010. 11. 12. \uc654\ub2e4.", "1. \uc870\ud56d\uc774\ub2e4.", "\uac00. \ud558\ub098"]),
        (
            "ko",
            ["\ub2e4. \uadf8\ub294 \uac14\ub2e4.", "\ub77c. \ub098\ub294 \uc654\ub2e4."],
        ),  # items da., ra. of a list
        ("ko", ["'97. 3. 1. \uc654\ub2e4.", "\u25cb \u201909. 12 \uac14\ub2e4.", "\ub05d."]),
        (
            "ja",
            [
                "\u300c\u884c\u3063\u305f\u3002\u300d\u3068\u8a00\u3063\u305f\u3002",
                "\u300e\u306f\u3044\u3002\u300f\u3068\u3044\u3046\u672c\u3002",
                "\u300c\u306f\u3044\u3002\u300d",
                "\u5f7c\u306f\u6765\u305f\u3002",
                "\u300c\u306f\u3044\u3002\u300d",
                "\u3068\u3053\u308d\u304c",
            ],
        ),
        (
            "zh",
            [
                "\u7532\u53bb\u4e86\u3002",
                "1936\u5e74\u6765\u4e86\uff01",
                "3\u4eba\uff08\u662f\u30022\u4eba\u3002\uff09\u8d70\u4e86\u3002",
                "\u201c\u53bb\u30021\u4eba\u3002\u201d",
                "\u4ed6\u8bf4\u3002",
            ],
        ),
        (
            "ja",
            [
                "\u7532\u3002",
                "\u300c\u4e59\u30023\u4eba\u3002\u300d\u3068\u8a00\u3063\u305f\u3002",
                "\uff15\u4eba\u3060\u3002",
            ],
        ),
        (
            "th",
            [
                "\u0e43\u0e19 \u0e1e.\u0e28. 2549 \u0e21\u0e35 70 \u0e15\u0e23.\u0e01\u0e21. \u0e43\u0e19 UN.",
                "\u0e40\u0e02\u0e32\u0e21\u0e32!",
            ],
        ),
        ("hr", ["Od 3. listopada 1990. godine.", "Bilo je 1991.", "On je."]),
        ("ka", ["\u10d0 3.", "\u10d1 4."]),
        ("en", ["1. The first item.", "2. The second, of 1998.", "It ended."]),
    ],
)
def test_ends_that_sentencex_sees_wrong(language: str, sentences: list[str]) -> None:
    text = (" " if language not in ("ja", "zh") else "").join(sentences)
    assert split_sentences(text, language=language) == sentences


@pytest.mark.parametrize(
    "sentences",
    [
        ["\uadf8\uac83\uc740 \uc88b\uc558\ub2e4.", "\ud558\uc9c0\ub9cc \ube44\uc30c\ub2e4."],
        ["\uc7ac\ubc0c\uc5b4\uc694..", "\uaf2d \ubcf4\uc138\uc694.", "\ub2e4\uc74c"],
        ["\ub2f5\ub2f5\ud568.", "\ub05d\uc784...", "\uac14\ub2e4."],
        ["\uac14\ub2e4.\ub77c\uace0 \ud588\ub2e4.", "\uac04\ub2e4.\ub294 \ub9d0."],  # a quotation without marks goes on
        ["\uc774\uac83\uc774\ub2e4.(\uc81c2\uc870) \uadf8\ub807\ub2e4.", "\uc6d0.\ub2ec\ub7ec 3.5\uc810\uc774\ub2e4."],
    ],
)
def test_korean_reviews_have_no_space_between_sentences(sentences: list[str]) -> None:
    assert split_sentences("".join(sentences), language="ko") == sentences


@pytest.mark.parametrize("space", [" ", "  ", "\t", " \u3000"])
def test_the_width_of_spaces_moves_no_end(space: str) -> None:
    """Printed books have two spaces behind a full stop."""
    sentences = ["(A picture of a LADY, Mary Anne interposed.)", "She went up the stairs to Mr. Smith.", "He ran."]
    text = space.join(" ".join(sentences).split(" "))
    assert split_sentences(text, language="en") == sentences


@pytest.mark.parametrize("language", ["en", "ja", "ko"])
@given(st.text(alphabet='a1. \n"()\u300d\u300e\uac00\ub77c\uace0\u3068\u3002\uff01\uff08\uff09'))
def test_mended_sentences_lose_no_letter(language: str, text: str) -> None:
    sentences = split_sentences(text, language=language)
    assert all(sentence == " ".join(sentence.split()) for sentence in sentences)
    assert "".join("".join(sentences).split()) == "".join(normalize_text(text).split())


@given(st.text())
def test_sentences_are_clean_and_lose_no_letter(text: str) -> None:
    sentences = split_sentences(text, language="en")
    for sentence in sentences:
        assert sentence
        assert sentence == " ".join(sentence.split())
        assert unicodedata.is_normalized("NFC", sentence)
    letters = [character for character in normalize_text(text) if not character.isspace()]
    assert [character for sentence in sentences for character in sentence if character != " "] == letters


@given(st.text())
def test_normalizing_again_changes_nothing(text: str) -> None:
    assert normalize_text(normalize_text(text)) == normalize_text(text)
    assert "\n" not in normalize_line(text)


def test_controls_go_joiners_and_line_breaks_stay() -> None:
    assert normalize_text("a\x00b\x07c\u200bd\xade\ufefff\ufffdg\u202eh") == "abcdefgh"
    assert (
        normalize_text("\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645")
        == "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645"
    )
    assert normalize_text("a\r\nb\rc\u2028d\x0ce") == "a\nb\nc\nd\ne"
    assert normalize_text("e\u0301") == "\xe9"
    assert normalize_text("e\xad\u0301 \u1112\u200b\u1161") == "\xe9 \ud558"  # what stood between them is removed
    assert normalize_text(long := "ab " * 1_000 + "e\xad\u0301") == long[:-3] + "\xe9"
    assert normalize_text("a\ufdd0b") == "ab"
    assert normalize_text("\xe9\ufdd0b", keep_reserved=True) == "\xe9\ufdd0b"
    assert normalize_line(" a \t\u00a0 b\n c ") == "a b c"
    assert has_words("... 7 ...")
    assert not has_words("* -- *")


@pytest.mark.parametrize("unit", ["a", "'", '"', ". ", "(", "He. ", '"He. ', "\u2019", "word "])
def test_a_million_characters_in_one_line_take_seconds_and_lose_nothing(unit: str) -> None:
    """pySBD#79, #58: hours on one line."""
    line = unit * (1_000_000 // len(unit))
    start = time.process_time()
    sentences = split_sentences(line, language="en")
    assert time.process_time() - start < 10
    assert "".join(sentences).replace(" ", "") == line.replace(" ", "")
    assert max(map(len, sentences)) <= MAX_LINE_CHARACTERS


def test_a_line_of_initials_is_cut_into_short_pieces() -> None:
    """sentencex takes the square of an Italian line's full stops: 1 s for 10,000 of them."""
    line = "A. " * 20_000
    pieces = list(sentences._pieces(line))
    assert max(map(len, pieces)) <= 1_000
    assert "".join(pieces) == line
    assert "".join(split_sentences(line, language="it")).replace(" ", "") == line.replace(" ", "")


@pytest.mark.parametrize(
    ("language", "stop"),
    [("zh", "\u3002"), ("ja", "\uff1f"), ("hy", "\u0589"), ("my", "\u104b"), ("ur", "\u06d4"), ("sat", "\u1c7e")],
)
def test_a_long_line_without_spaces_is_cut_between_its_sentences(language: str, stop: str) -> None:
    """pySBD#79, #58: hours on one line. sentencex takes the square of such a line's sentences: its pieces are short."""
    letter = {"hy": 0x561, "my": 0x1000, "ur": 0x628, "sat": 0x1C5A}.get(language, 0x4E00)
    expected = [chr(letter + number % 20) * (5 + number % 30) + stop for number in range(6_000)]
    expected[3::7] = [f"\uff08{sentence}\uff09{sentence}" for sentence in expected[3::7]]
    line = "".join(expected)
    assert len(line) > MAX_LINE_CHARACTERS
    assert max(map(len, sentences._pieces(line))) < 11_000
    assert "".join(sentences._pieces(line)) == line
    found = split_sentences(line, language=language)
    assert "".join(found) == line
    if language in ("zh", "ja"):
        assert found == expected


@pytest.mark.parametrize("unit", ["\u300a\u597d\uff1f\u300b\u597d", "\u300c\u597d\u3002\u300d"])
def test_a_long_line_of_titles_or_quotations_is_cut_behind_their_ends(unit: str) -> None:
    line = unit * (2 * MAX_LINE_CHARACTERS // len(unit))
    pieces = list(sentences._pieces(line))
    assert max(map(len, pieces)) < 11_000
    assert "".join(pieces) == line
    assert not any(piece.startswith(("\u300b", "\u300d")) for piece in pieces)
