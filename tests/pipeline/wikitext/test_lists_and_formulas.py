"""Lists in every notation, bibliographies among them, displayed formulas, and what is left out without a hole."""

from __future__ import annotations

import pytest

from pipeline.cleaning import split_sentences
from pipeline.config import Treatment
from pipeline.wikitext.names import wiki_names
from pipeline.wikitext.scanner import PlainText, wikitext_to_text

ENGLISH = wiki_names(["en"])


def convert(markup: str, *, language: str = "en", lists: Treatment = "keep") -> PlainText:
    return wikitext_to_text(markup, names=ENGLISH, language=language, lists=lists)


def whole_sentences(markup: str, *, lists: Treatment = "keep") -> list[str]:
    """The sentences without a missing template or formula."""
    plain = convert(markup, lists=lists)
    sentences = split_sentences(plain.text, language="en", keep_reserved=True)
    return [sentence for sentence in sentences if plain.hole_in(sentence) is None]


@pytest.mark.parametrize(
    ("markup", "items"),
    [
        ("* b<br />c goes on here.\n* d", ["b", "c goes on here.", "d"]),
        ("<ul><li>b<br>c</li></ul>", ["b", "c"]),
        (": * b\n: ## c", ["b", "c"]),
        ("\u2022 b\n\u2022 c", ["b", "c"]),
        ("; b : c is d.", ["b", "c is d."]),
        ("'''b c'''\n* d", ["b c", "d"]),
        ("'''[[B]] c:'''\n# d", ["B c:", "d"]),
        ("{{unbulleted list|b.|c}}", ["b.", "c"]),
        ("{{plainlist|\n* b\n* c\n}}", ["b", "c"]),
    ],
)
def test_lists_in_every_notation_are_left_out(markup: str, items: list[str]) -> None:
    for page in (f"A is b.\n{markup}\n\nD is e.", f"A is b.\n\n{markup}\n\nD is e."):
        dropped, kept = convert(page, lists="drop"), convert(page)
        assert dropped.text == "A is b.\nD is e."
        assert dropped.left_out == tuple(("list_item", item) for item in items)
        assert kept.text.split("\n") == ["A is b.", *items, "D is e."]


def test_what_is_no_list_stays() -> None:
    page = "A is\n'''b c'''\nin d.\n\n'''E f'''\n\nG <br> h.\n\nI {{hlist|j|k}} l : m."
    assert convert(page, lists="drop").text == "A is b c in d.\nE f\nG\nh.\nI j, k l : m."
    assert convert("* a{{quote|It is a quotation of words.}}", lists="drop").text == "It is a quotation of words."


@pytest.mark.parametrize(
    "entry",
    [
        "Scott, James C., ''Two Cheers for Anarchism'', Princeton University Press, 2012.",
        "Friboulet, Jean-Jacques: Histoire de la pens\u00e9e \u00e9conomique, Zurigo, 2004",
        "Durgnat, The strange case of Alfred Hitchcock, London 1974.",
        "Halper, Edward C. (2009). One and Many in Aristotle's Metaphysics.",
        "A history of the city in four parts. ISBN 978-0-86543-266-6.",
        "Essays by many hands, among them Long, A. and Radcliffe, Mark (2000). Nurses. Rome: Name.",
        "Bender, Lionel et al. 2003. Selected Studies of all the Languages.",
        'Moges, Awet, 2006, "The Philosophy of Schopenhauer."',
        "Heythrop Journal, Volume 50, Number 2, pp. 228\u2013242.",
    ],
)
def test_an_entry_of_a_bibliography_is_no_whole_sentence(entry: str) -> None:
    assert convert(f"* {entry}", lists="sentences").text == ""
    assert convert(f"* {entry}").text != ""


@pytest.mark.parametrize(
    "sentence",
    [
        "He won the cup with his team in May 1974.",
        "The film Up (2009) was shown in many countries, and won a prize.",
        "Achilles is a character in The Song of Achilles (2011), which won a prize.",
        "He was born in 1901, and his brother in 1905, as the list says.",
    ],
)
def test_a_sentence_with_a_year_is_one(sentence: str) -> None:
    assert convert(f"* {sentence}", lists="sentences").text == sentence


@pytest.mark.parametrize(
    ("markup", "kept"),
    [
        ("The value is:\n:<math>x</math>,\nwhere x is old. Yes.", ["Yes."]),
        ("The value is\n\n<math>x</math>\n\n:<math>y</math>\n\nwhere x is old. Yes.", ["Yes."]),
        ("The value is as follows.\n:<math>x</math>\nwhere x is old. Yes.", ["The value is as follows.", "Yes."]),
        ("The value is\n:<math>x</math>.\nWhere x is old. Yes.", ["Where x is old.", "Yes."]),
        ("The value is\n: {{NumBlk|<math>x</math>}}\nNow x is old.", ["Now x is old."]),
        ("* The value is\n:<math>x</math>\nNow x is old.", ["Now x is old."]),
        ("== Value ==\n:<math>x</math>\nNow x is old.", ["Now x is old."]),
    ],
)
def test_a_displayed_formula_is_part_of_its_sentence(markup: str, kept: list[str]) -> None:
    for lists in ("keep", "drop") if markup[0] != "*" else ("keep",):
        assert whole_sentences(f"Old.\n\n{markup}\n\nNext.", lists=lists) == ["Old.", *kept, "Next."]


def test_what_leaves_no_hole_is_counted_by_name() -> None:
    page = "A (of {{mystery}}) is b.{{riddle}} C is {{puzzle}}. D.\n\n:<math>x</math>.\n\n{{boxed}}\n* E {{enigma}}\n"
    names = [("unrendered_template", name) for name in ("<math>", "mystery", "riddle")]
    assert list(convert(page).left_out) == names
    assert list(convert(page, lists="drop").left_out[1:]) == names


@pytest.mark.parametrize(
    ("markup", "kept"),
    [
        ("{{so it goes on without an end.\n\nNext.", ["so it goes on without an end.", "Next."]),
        ("He lived {{circa|1900 in Rome. He died.\n\nNext.", ["He died.", "Next."]),
        ("{{Infobox person|name=X. So it is.\n'''X''' is d.", ["X is d."]),
        ("One.<ref>unclosed Two.\n\nNext.", ["One.", "unclosed Two.", "Next."]),
        ("[[Foo{{!}}bar]] and [[Foo (x)|{{nowrap|b c}}]].", ["bar and b c."]),
        ("Old.\n{{{!}} class=x\n{{!}} a\n{{!}}-\n{{!}} b\n{{!}}}\nNext.", ["Old.", "Next."]),
        ("The ({{mystery}})-2-butene is a gas. The ({{mystery}})Be too. Next.", ["Next."]),
        ("!Kung is a language.\n\nThe code <nowiki><!--</nowiki> begins it.",
         ["!Kung is a language.", "The code <!-- begins it."]),
    ],
)  # fmt: skip
def test_broken_markup_and_marks_inside_words(markup: str, kept: list[str]) -> None:
    assert whole_sentences(markup) == kept


@pytest.mark.parametrize(
    "unit",
    ["\n:<math>x</math>", "\na\n:<math>x</math>\n\n", "\n* a<br>", "<br>", "\n'''a'''", "* * ", "\u2022", "{{a|b "],
)
def test_the_time_for_lists_and_formulas_is_linear(unit: str) -> None:
    number = 20_000 if "{{" not in unit else 90
    assert convert(unit * number, lists="drop").text.count("\n") <= 2 * number
    assert convert("*" * 50_000 + "a<br>" * 50_000, lists="drop").text == ""


def test_music_in_a_sentence_is_a_hole_and_music_of_its_own_is_none() -> None:
    page = "It begins <score>c d</score> and ends. A is b.\n\n<score>e</score>\n\nC is d."
    assert whole_sentences(page) == ["A is b.", "C is d."]


@pytest.mark.parametrize(
    ("language", "letter", "stop"),
    [("my", "\u1000", "\u104b"), ("zh", "\u4e00", "\u3002"), ("bo", "\u0f40", "\u0f0d"), ("km", "\u1780", "\u17d4")],
)
def test_spaces_between_phrases_do_not_make_a_sentence_short(language: str, letter: str, stop: str) -> None:
    whole = f"{letter * 6} {letter * 7} {letter * 5}{stop}"
    page = f"* {whole}\n* A b.\n* {letter}{stop}"
    assert convert(page, language=language, lists="sentences").text == whole
