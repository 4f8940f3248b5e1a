"""What a command prints of an error: one line, also of texts that would control the terminal."""

from __future__ import annotations

import pytest

from pipeline.console import fail, say_at_once


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b[31mb", r"a\x1b[31mb"),
        ("half \ud800", r"half \ud800"),
        ("\x07\x9b\u202e", r"\x07\x9b\u202e"),
        ("plain \u00e4 \u4e00", "plain \u00e4 \u4e00"),
    ],
)
def test_characters_that_cannot_be_shown_are_escaped(text: str, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert fail(ValueError(text)) == 2
    assert capsys.readouterr().err == f"error: {shown}\n"
    say_at_once(text)
    assert capsys.readouterr().out == f"{shown}\n"
