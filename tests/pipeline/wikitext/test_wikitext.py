"""Wikitext to text: rules by hand, properties, hostile pages in bounded time; test_wikitext_dumps.py has dumps."""

from __future__ import annotations

import contextlib
import gc
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.wikitext import countries
from pipeline.wikitext.names import wiki_names
from pipeline.wikitext.scanner import PageBudget, PageOverBudgetError, PlainText, check_budget, wikitext_to_text
from pipeline.wikitext.tables import find_renderer, read_table

ENGLISH = wiki_names(["en"])
COUNTRIES = Path(countries.__file__).with_suffix(".tsv")


def convert(markup: str, *, language: str = "en", title: str = "T") -> PlainText:
    names = ENGLISH if language == "en" else wiki_names([language])
    return wikitext_to_text(markup, names=names, language=language, title=title)


def text_of(markup: str, *, language: str = "en") -> str:
    return convert(markup, language=language).text


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        # links
        ("a [[b]] c", "a b c"),
        ("a [[b (x)|c]]s", "a cs"),
        ("a [[Help:b (x)|]] c", "a b c"),
        ("a [[b, Texas|]] c", "a b c"),
        ("a [[b_c]]", "a b c"),
        ("[[:Category:Birds]] fly", "Birds fly"),
        ("[[wikt:bird|bird]] [[wikt:word]]", "bird word"),
        ("a [[de:Vogel]][[zh-min-nan:x]] b", "a b"),
        ("a [[:de:Vogel|Vogel]] b", "a Vogel b"),
        ("a [[File:x.jpg|thumb|left|A [[bird]] in {{convert|1|m}}.]]b", "a b"),
        ("a [[Datei:x.jpg|mini|Vogel]]b", "a b"),
        ("x [[Category:Birds|*]] y", "x y"),
        ("see [http://x.org/a?b=c the [sic] site] or [http://x.org] now", "see the [sic] site or now"),
        ("[[unclosed link", "unclosed link"),
        ("two]] closed}} ends", "two closed ends"),
        # tags
        ("a<ref>b</ref> c<ref name=x /> d<ref name='y'>{{cite web|u}}</ref>.", "a c d."),
        ("a<ref name=x> b<ref>c</ref> d", "a b d"),
        ("a <!-- b --> c", "a c"),
        ("a\n<!-- alone -->\nb", "a b"),
        ("a <!-- open {{ b", "a"),
        ("a <nowiki>[[b]] ''c'' {{d}}</nowiki> e", "a [[b]] ''c'' {{d}} e"),
        (
            "H<sub>2</sub>O, 10<sup>-6</sup>, E=mc<sup>2</sup>, x<sup>ab</sup>",
            "H\u2082O, 10\u207b\u2076, E=mc\xb2, xab",
        ),
        ("a<br/>b<p>c</p>", "a\nb\nc"),
        ("a <b>b</b> <span style='x'>c</span> <small>d</small>", "a b c d"),
        ("a\n<gallery>\nFile:x.jpg|y\n</gallery>\nb", "a\nb"),
        ("a\n<table><tr><td><table>x</table></td></tr></table>b", "a\nb"),
        ("a <br< b </small c", "a b c"),
        ("<ruby><rb>a</rb><rp>(</rp><rt>b</rt><rp>)</rp></ruby>c <ruby>d<rt>e</rt></ruby>", "ac d"),
        ("a <includeonly>b</includeonly>c <noinclude>d</noinclude>", "a c d"),
        # tables, headings, lists
        ("a\n{| class=x\n! h\n|-\n| b || {{c|d}} [[e]]\n{|\n|nested\n|}\n|}\nf", "a\nf"),
        ("== H ==\ntext\n=== [[x]] ===\nmore", "text\nmore"),
        ("== H ==lost break", "lost break"),
        ("if a == b == c, or x==y==z", "if a == b == c, or x==y==z"),
        ("one\nif a == b and c == d", "one if a == b and c == d"),
        ("= 5 is less than 6", "= 5 is less than 6"),
        ("a\nb\n\nc", "a b\nc"),
        ("* a\n** b\n# c\n: d\n; e", "a\nb\nc\nd\ne"),
        ("----\na", "a"),
        # quotes, entities, magic words
        ("'''a''' ''b'' '''''c''''' d's", "a b c d's"),
        ("l'''amour'' x", "l'amour x"),
        ("a&nbsp;b &lt;c&gt; &amp;nbsp; &#65; &#x42; &bogus; AT&T", "a b <c> &nbsp; A B &bogus; AT&T"),
        ("__NOTOC__ a __KEIN_INHALTSVERZEICHNIS__ b __init__", "a b __init__"),
        # templates that are boxes
        ("{{Infobox x\n|a={{b|c}}\n|d=[[e|f]]\n}}'''A''' is b.", "A is b."),
        ("{{Mystery notice}}\n{{Other|x}}\n'''A''' is b.", "A is b."),
        ("{{DEFAULTSORT:x}}a {{DISPLAYTITLE:''b''}}", "a"),
        # parentheses that lost their content
        ("A ({{IPA|x}}) is", "A is"),
        ("A ({{lang-el|\u03b1}}, {{IPA|x}}; born 1900) is", "A (\u03b1; born 1900) is"),
        ("A ({{mystery}}, b) is", "A is"),
    ],
)
def test_rules_by_hand(markup: str, text: str) -> None:
    assert text_of(markup) == text


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("an area of {{convert|1300|mi|km}} and", "an area of 1,300 mi and"),  # WikiExtractor#189
        ("{{convert|5|to|7|km2|sqmi}}", "5 to 7 km\xb2"),
        ("{{convert|6|ft|2|in|m}}", "6 ft 2 in"),
        ("a {{convert|5|km|mi|adj=on}} road", "a 5-km road"),
        ("{{formatnum:1234567.5}}", "1,234,567.5"),
        ("{{formatnum:1234567|R}}", "1234567"),
        ("{{val|1.5|0.1|e=-6|u=m}}", "(1.5 \xb1 0.1)\xd710\u207b\u2076 m"),
        ("{{frac|1|2}} {{frac|3|1|2}} {{frac|4}}", "1/2 3 1/2 1/4"),
        ("{{US$|1500}} {{\u20ac|20}}", "US$1,500 \u20ac20"),
        ("{{lang|fr|b{{=}}c}} {{lang-de|Haus}} {{transl|el|ISO|ab}} {{lang|fr|text=x}}", "b=c Haus ab x"),
        ("{{nowrap|a [[b|c]]}} {{nowrap|1=d=e}}", "a c d=e"),
        ("{{ill|Name|de|Nome|lt=label}} {{ill|Name|de}}", "label Name"),
        (
            "{{birth date|1990|2|3}} {{birth date|1990|2|3|df=yes}} {{start date|1990}}",
            "February 3, 1990 3 February 1990 1990",
        ),
        ("{{as of|2009|3}}, {{as of|2009|lc=y}}", "As of March 2009, as of 2009"),
        ("{{age|1990|5|1|2020|4|30}}", "29"),
        ("{{circa|1500}} {{reign|1|2}} {{floruit|300}}", "c. 1500 r. 1\u20132 fl. 300"),
        (
            "{{USS|Enterprise|CV-6}} {{HMS|Hood||6}} {{sclass|Nimitz|carrier}}",
            "USS Enterprise (CV-6) HMS Hood Nimitz-class carrier",
        ),
        ("{{nihongo|English|\u6f22|kanji}} {{zh|t=\u6f22|p=han}}", "English (\u6f22, kanji) \u6f22, han"),
        ("a{{snd}}b{{nbsp}}c{{ndash}}d {{!}} {{'}}", "a \u2013 b c\u2013d | \u2019"),
        ("{{chem|H|2|O}} {{sub|2}}{{sup|x}} 5{{e|-3}}", "H\u2082O \u2082x 5\xd710\u207b\xb3"),
        ("{{hlist|a|b}} {{sic|x|y}} {{abbr|a.b.|c}}", "a, b xy a.b."),
        ("He said: {{quote|Yes {{nowrap|a}}.|Me}} Then.", "He said:\nYes a.\nThen."),
        ("{{PAGENAME}} {{lc:ABC}} {{ucfirst:abc}} {{uc:a}} {{lcfirst:ABC}}", "T abc Abc A aBC"),
        ("in 1900{{citation needed|date=x}}, b.{{sfn|A|1}}{{r|a}} C", "in 1900, b. C"),
        ("{{{1|default}}} a", "default a"),
        ("at {{coord|13|19|N|169|9|W|type:event}}, in", "at 13\u00b019\u2032N 169\u00b09\u2032W, in"),
        ("a{{coord|13.5|N|169|9|30|W}} b", "a13.5\u00b0N 169\u00b09\u203230\u2033W b"),
        (
            "at {{coord|13|19|N|169|9|W|display=inline,title}}, {{coord|1.5|-2}}",
            "at 13\u00b019\u2032N 169\u00b09\u2032W, 1.5\u00b0N 2\u00b0W",
        ),
        ("A lake. {{coord|13|19|N|169|9|W|display=title}}\n{{coord|13|19|N|169|9|W|display=inline,title}}", "A lake."),
        ("a {{RailGauge|1435mm|disp=1}} line", "a 1,435 mm line"),
        ("{{nowrap begin}}AA-.{{nowrap end}} {{TeX}} {{color|red|b}} {{midsize|c}}", "AA-. TeX b c"),
        ("* {{es}} A book. {{lang|de}}", "A book."),
    ],
)
def test_inline_templates_are_rendered(markup: str, text: str) -> None:
    """A vanished template leaves "an area of and" (WikiExtractor#189)."""
    converted = convert(markup)
    assert converted.text == text


@pytest.mark.parametrize(
    ("language", "markup", "text"),
    [
        (
            "fr",
            "au {{s|XIX}}, {{unit\xe9|1500|km|2}}, {{date|1|janvier|1900}}",
            "au XIXe si\xe8cle, 1 500 km\xb2, 1 janvier 1900",
        ),
        ("de", "{{formatnum:1234567}} [[Datei:x|mini|y]]", "1.234.567"),
        ("ko", "{{llang|en|Korea}} [[\ud30c\uc77c:x.jpg]]{{\ud55c\uc790|\u97d3}}", "Korea \u97d3"),
        ("ko", "{{\ubcf8\ubb38|Seq2seq#\uc5ed\uc0ac}}\n\ub458\uc9f8.", "\ub458\uc9f8."),
        (
            "ko",
            "'''\ubca0\ub97c\ub9b0'''({{llang|de|Berlin}} {{\uc18c\ub9ac|x.ogg}})\uc740",
            "\ubca0\ub97c\ub9b0(Berlin)\uc740",
        ),
        (
            "ko",
            "{{\uad6d\uae30\ub098\ub77c|\ub3c5\uc77c}} \uc0ac\ub78c. {{\uc11c\uc801 \uc778\uc6a9|\uc81c\ubaa9=x}}",
            "\ub3c5\uc77c \uc0ac\ub78c.",
        ),
        ("ja", "{{ruby|\u6f22|\u304b\u3093}}\u5b57", "\u6f22\u5b57"),
        ("zh", "-{zh-hans:\u8ba1;zh-hant:\u8a08}- -{T|x}- -{y}-", "\u8ba1 y"),
        ("fr", "du {{XXe si\u00e8cle}} {{colore|red|x}}", "du XXe si\u00e8cle x"),
        ("sk", "zhruba {{km|70|m}}, v\u00fd\u0161ka {{mnm|115}}", "zhruba 70 km, v\u00fd\u0161ka 115 m n. m."),
        ("eo", "La {{daton|18|januaro|1791}}", "La 18 januaro 1791"),
        ("sv", "Berlin {{de ikon}} x", "Berlin x"),
        ("hr", "do grada ({{border|[[Datoteka:x.svg|30px]]}}, B)", "do grada (B)"),
        ("ru", "A. {{\u043d\u0430\u0447\u0430\u043b\u043e \u0446\u0438\u0442\u0430\u0442\u044b}}B.", "A.\nB."),
        ("tt", "{{\u0411\u0430\u0439\u0440\u0430\u043a/X}} [[P]]", "P"),
        (
            "ar",
            "{{\u0644\u063a\u0629-\u0623\u0644|Berlin}} x {{\u0623\u064a\u0642\u0648\u0646\u0629 \u0623}}",
            "Berlin x",
        ),
        ("ja", "{{\u4eee\u30ea\u30f3\u30af|\u540d|en|Name}}", "\u540d"),
    ],
)
def test_templates_of_other_languages(language: str, markup: str, text: str) -> None:
    assert text_of(markup, language=language) == text


@pytest.mark.parametrize(
    ("language", "markup", "text"),
    [
        ("en", "from {{ROU}} to {{ USA }} and {{GER}}", "from Romania to United States and Germany"),
        ("en", "by {{USA|1912}} and {{GBR|name=Great Britain|size=20px}}", "by United States and Great Britain"),
        ("en", "{{flagcountry|KOR}}, {{flag|KOR}}, {{CAN}}", "South Korea, KOR, Canada"),
        ("it", "in {{ITA}}, {{KOR}}: {{Bandiera|GBR|nome}} {{Bandiera|GBR}}", "in Italia, Corea del Sud: Regno Unito"),
    ],
)
def test_codes_of_countries_read_their_names(language: str, markup: str, text: str) -> None:
    assert text_of(markup, language=language) == text


@pytest.mark.parametrize(
    ("language", "code"),
    [("en", "COD"), ("en", "Rou"), ("en", "USA|w=1"), ("en", "USA|#"), ("it", "TPE"), ("it", "Bandiera|TPE|nome"),
     ("de", "USA"), ("eo", "TUR")],
)  # fmt: skip
def test_codes_without_a_certain_name_leave_a_hole(language: str, code: str) -> None:
    converted = convert(f"It is in {{{{{code}}}}} now.", language=language)
    assert converted.holes == (code.partition("|")[0],)


def test_every_code_has_one_name_and_every_language_the_common_ones() -> None:
    seen = set()
    for line in COUNTRIES.read_text(encoding="utf-8").splitlines()[3:]:
        language, codes, name = line.split("\t")
        assert name == name.strip()
        for code in codes.split("|"):
            assert re.fullmatch("[A-Z]{3}", code)
            assert (language, code) not in seen
            seen.add((language, code))
    assert {(language, code) for language in ("en", "it") for code in ("DEU", "FRA", "JPN", "USA")} <= seen


def test_what_cannot_be_rendered_leaves_a_named_hole() -> None:
    converted = convert("It is {{mystery|a}} wide. Where <math>x</math> and {{#if:a|b}} are, {{age|1990|1|1}} too.")
    first, second = converted.text.split(". ", 1)
    assert converted.hole_in(first) == "mystery"
    assert converted.hole_in(second) == "<math>"
    assert converted.hole_in("whole") is None
    assert converted.holes == ("<math>", "mystery", "#if:a", "age")


def test_noncharacters_of_the_input_are_not_taken_for_holes() -> None:
    converted = convert("a\ufdd0\ufde0b")
    assert converted.text == "ab"
    assert converted.hole_in(converted.text) is None


def test_names_of_a_siteinfo_are_united_with_the_known_ones() -> None:
    names = wiki_names(["de", "no-such"], siteinfo={"Wikitravel": 4, "Portal": 0, "": 0, "Bild_alt": 6})
    assert [names.namespace_of(t) for t in ("Vorlage:X", "wikitravel:X", "Portal:X", "Nothing", "a:b")] == [
        10,
        4,
        0,
        0,
        0,
    ]
    assert {"bild alt", "datei", "\ud30c\uc77c"} <= names.invisible
    assert names.is_redirect("#Weiterleitung: [[X]]")
    assert not names.is_redirect("# Erstens [[X]]")


def test_every_template_name_of_the_table_is_in_its_compared_form_and_once_for_a_wiki() -> None:
    seen = set()
    for wikis, names, _ in read_table():
        for name in names:
            assert name == " ".join(name.split()).casefold(), name
            for wiki in wikis:
                assert (wiki, name) not in seen, (wiki, name)
                seen.add((wiki, name))
    assert find_renderer("convert", language="de") is not None
    assert find_renderer("infobox country", language="de") is not None
    assert find_renderer("mystery", language="de") is None


# ---- properties ----

MARKUP = st.lists(
    st.sampled_from(
        ["{{", "}}", "[[", "]]", "{|", "|}", "|", "=", "==", "\n", "''", "'''", "<ref>", "</ref>", "<!--", "-->", "<b>",
         "a", "B.", " ", "{{{", "}}}", "<nowiki>", "</nowiki>", "File:", "convert", "lang", "1", "(", ")", "*",
         "http://x", "[", "]",
         "&amp;", "-{", "}-", "__X__", "<math>", "</math>", "<br>", "{{unk}}", "[[File:x|y]]", ",", ";", "\u00a0"]
    ),
    max_size=60,
).map("".join)  # fmt: skip


@given(MARKUP)
def test_any_markup_gives_lines_without_brackets_or_outer_spaces(markup: str) -> None:
    converted = convert(markup)
    for line in converted.text.split("\n"):
        assert line == line.strip()
        assert line or not converted.text
        if "nowiki" not in markup and "&" not in markup:
            assert not re.search(r"\[\[|\]\]|\{\{|\}\}|\{\||\|\}|<!--", line)


@given(
    st.text(st.characters(categories=("L", "Nd")), min_size=1), st.text(st.characters(categories=("L",)), min_size=1)
)
def test_plain_text_is_untouched(first: str, second: str) -> None:
    assert text_of(f"{first} {second}, {first}.") == f"{first} {second}, {first}."


# ---- hostile pages ----


@pytest.mark.parametrize(
    ("markup", "message"),
    [
        ("x" * 5_000_000, "5000000 bytes of markup, more than 4194304"),
        ("\u00e9" * 2_200_000, "4400000 bytes"),
        ("[[" * 250_000, "250000 openings"),
        ("{{a|" * 150, "101 levels of open templates"),
    ],
)
def test_pages_over_budget_say_what_they_have_too_much_of(markup: str, message: str) -> None:
    """mwparserfromhell#286, #206; wikitextparser#37: one page takes 30 GB or never ends."""
    start = time.process_time()
    with without_collection(), pytest.raises(PageOverBudgetError, match=message):
        convert(markup)
    assert time.process_time() - start < 1


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """What other tests have left in memory costs the collector seconds."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def test_the_budget_is_a_setting() -> None:
    check_budget("{{a}}", budget=PageBudget(num_bytes=5, openings=1))
    with pytest.raises(PageOverBudgetError, match="5 bytes"):
        check_budget("{{a}}", budget=PageBudget(num_bytes=4))


@pytest.mark.parametrize(
    "unit",
    ["{{a}}", "[[a]]", "<ref>", "<ref>a</ref>", "<b>", "\n{|\n|}", "}}", "]]", "<nowiki>", "<table>", "<sup>",
    "-{", "{{{a|",
     "'''", "''a'''b", "[http://a ", "&amp;", "(", "(,", " ( ,", "__A", "\n*", "\n==a", "==a==", "<a ", "<",
     "(\ufdd0", "{{u}}(", "({{u}},", "a{{IPA|x}} (", "([{{IPA|x}}])", "a {{cn}} ,", "a,{{cn}}",
     "{{u}}'", "{{u}}.", ",", "a\n{{u}}\n", "{{stub}}", "{{portal|x}}", "[[Category:x]]",
     "|", "\n= ", "\n<!--a-->", "<!--a--> ", "<ref name=x>", "<ref name=x", "\n|a", "\n| a || b", "\n{|\n|a",
     "\n\n==a==\n{|"],
)  # fmt: skip
def test_time_is_linear_in_the_page(unit: str) -> None:
    def seconds(length: int) -> float:
        start = time.process_time()
        with without_collection(), contextlib.suppress(PageOverBudgetError):
            convert(unit * (length // len(unit)))
        return time.process_time() - start

    assert seconds(400_000) < 0.2 + 12 * max(seconds(100_000), 0.02)
