"""Texts of unknown origin in Markdown: shown as they are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.markdown import code_block, code_span, escape_markdown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("CC BY-SA 4.0", "CC BY-SA 4.0"),
        ("<b>a</b> & c", r"\<b\>a\</b\> \& c"),
        ("a\n\n# b\x00\u2028c", r"a \# b c"),
        ("---", r"\---"),
        ("a | b", r"a \| b"),
        ("![x](y) [z]", r"\!\[x\](y) \[z\]"),
        ("a\\", r"a\\"),
    ],
)
def test_text_is_escaped(text: str, shown: str) -> None:
    assert escape_markdown(text) == shown


@given(text=st.text())
def test_escaped_text_is_one_line_without_markup(text: str) -> None:
    shown = escape_markdown(text)
    assert shown.isprintable()
    plain = shown.replace("\\\\", "")
    assert not any(f"{sign}" in plain.replace(f"\\{sign}", "") for sign in "`*_[]<>#|~&!")


@given(text=st.text(alphabet="`~a\n "))
def test_code_ends_where_it_is_meant_to(text: str) -> None:
    first, *_, last = code_block(text, language="yaml")
    assert first.removesuffix("yaml") == last
    assert last not in text
    assert len(last) >= 3
    span = code_span(text)
    ticks = len(span) - len(span.lstrip("`"))
    assert "\n" not in span
    assert "`" * ticks not in span.strip("`")
