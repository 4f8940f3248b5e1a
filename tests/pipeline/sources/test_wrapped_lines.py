"""Hard-wrapped lines of scripts without spaces between words."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.sources.gutenberg import book_paragraphs

JAPANESE = (
    "\u543e\u8f29\u306f\u732b\u3067\u3042\u308b\u3002\u540d\u524d\u306f\u307e\u3060\u7121\u3044\u3002\u3069\u3053\u3067"
    "\u751f\u308c\u305f\u304b\u3068\u3093\u3068\u898b\u5f53\u304c\u3064\u304b\u306c\u3002\u4f55\u3067\u3082\u8584\u6697"
    "\u3044\u3058\u3081\u3058\u3081\u3057\u305f\u6240\u3067\u30cb\u30e3\u30fc\u30cb\u30e3\u30fc\u6ce3\u3044\u3066\u3044"
    "\u305f\u4e8b\u3060\u3051\u306f\u8a18\u61b6\u3057\u3066\u3044\u308b\u3002"
)
CHINESE = (
    "\u5b78\u800c\u6642\u7fd2\u4e4b\uff0c\u4e0d\u4ea6\u8aaa\u4e4e\uff1f\u6709\u670b\u81ea\u9060\u65b9\u4f86\uff0c\u4e0d"
    "\u4ea6\u6a02\u4e4e\uff1f\u4eba\u4e0d\u77e5\u800c\u4e0d\u614d\uff0c\u4e0d\u4ea6\u541b\u5b50\u4e4e\uff1f"
)
THAI = (
    "\u0e1b\u0e23\u0e30\u0e40\u0e17\u0e28\u0e44\u0e17\u0e22\u0e40\u0e1b\u0e47\u0e19\u0e1b\u0e23\u0e30\u0e40\u0e17\u0e28"
    "\u0e17\u0e35\u0e48\u0e15\u0e31\u0e49\u0e07\u0e2d\u0e22\u0e39\u0e48\u0e43\u0e19\u0e40\u0e2d\u0e40\u0e0a\u0e35\u0e22"
)


def wrap(text: str, width: int) -> str:
    return "\n".join(text[start : start + width] for start in range(0, len(text), width))


@pytest.mark.parametrize("text", [JAPANESE, CHINESE, THAI], ids=["ja", "zh", "th"])
@pytest.mark.parametrize("width", [20, 31, 40])
def test_lines_are_joined_without_a_space(text: str, width: int) -> None:
    whole = text * 3
    assert book_paragraphs("\n\n".join([wrap(whole, width)] * 3)) == [whole] * 3


@pytest.mark.parametrize("indent", ["\u3000", "\u3000\u3000"])
def test_an_ideographic_space_begins_a_paragraph(indent: str) -> None:
    texts = [JAPANESE * 2, JAPANESE[:20], JAPANESE * 3, CHINESE]
    lines = "\n".join(wrap(indent + text, 34) for text in texts)
    assert book_paragraphs(lines) == texts


def test_a_short_line_ends_a_paragraph_or_a_verse() -> None:
    verse = [JAPANESE[:12], JAPANESE[12:22], JAPANESE[22:36]]
    text = "\n".join([wrap(JAPANESE * 2, 34), *verse, wrap(JAPANESE * 2, 34)])
    assert book_paragraphs(text) == [JAPANESE * 2, *verse, JAPANESE * 2]


@pytest.mark.parametrize("space", ["", " "])
def test_foreign_words_keep_the_spaces_that_the_writer_uses(space: str) -> None:
    """Lines end before and after BERT, and most other places have the writer's space, or none."""
    han = CHINESE[:12]
    lines = [
        f"{han}{space}BERT{space}{han[:4]}",
        f"{han}{space}BERT{space}{han[:4]}",
        f"{han}{han[:4]}{space}BERT",
        f"{han}{space}BERT{space}{han[:4]}",
        f"{han}{han[:6]}",
        f"BERT{space}{han}{han[:4]}",
    ]
    whole = "".join(lines[:3]) + space + lines[3] + lines[4] + space + lines[5]
    assert book_paragraphs("\n".join(lines)) == [whole]


def test_korean_with_chinese_characters_keeps_its_spaces() -> None:
    words = (
        "\uae30\ubbf8\ub144 \uc0bc\uc6d4\uc5d0 \ub300\ud55c\uc758 \u7368\u7acb \u5ba3\u8a00 \uc11c\ub97c \uc77d\ub2e4"
    )
    text = " ".join([words] * 6)
    lines = [" ".join(text.split()[start : start + 8]) for start in range(0, 42, 8)]
    assert book_paragraphs("\n".join(lines)) == [text]


def test_the_wrapped_novel_of_the_cases_has_no_spaces(shared_data: Path) -> None:
    text = (shared_data / "cases/hard-wrapped-ja.txt").read_text(encoding="utf-8")
    found = book_paragraphs(text)
    assert found == ["".join(part.split()) for part in text.strip().split("\n\n")]
    assert len(found) == 4


def test_lines_that_break_between_letters_and_characters_are_joined_in_linear_time() -> None:
    """The habit of the text is found once, not at each line break (which would take hours here)."""
    line = "\u4e2d" * 36 + "ab"
    (paragraph,) = book_paragraphs(f"{line}\n" * 100_000)
    assert paragraph == line * 100_000
