"""Markup in the order of MediaWiki: raw content, quotes in labels, tables without an end, lists and tail sections."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dumps import read
from pipeline.config import Treatment
from pipeline.documents import Document
from pipeline.wikitext.names import fold_name, wiki_names
from pipeline.wikitext.scanner import PlainText, wikitext_to_text
from pipeline.wikitext.sections import headings_of

ENGLISH = wiki_names(["en"])


def convert(
    markup: str, *, language: str = "en", lists: Treatment = "keep", tail_sections: Treatment | None = None
) -> PlainText:
    return wikitext_to_text(markup, names=ENGLISH, language=language, lists=lists, tail_sections=tail_sections)


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        # an extension tag hides comments and other tags
        ("a <nowiki><!--</nowiki> b\n\nc", "a <!-- b\nc"),
        ("a <NOWIKI >-->&lt;<ref></NOWIKI > b<ref>c</ref>", "a --><<ref> b"),
        ("a <nowiki>{{b}} [[c]] ''d''\n* e</nowiki> f", "a {{b}} [[c]] ''d'' * e f"),
        ("a\n<pre>\n<!-- b\n</pre>\nc", "a\nc"),
        ("a\n<syntaxhighlight lang='html'>\n<!--\n</syntaxhighlight>\nb <!-- c --> d", "a\nb d"),
        ("a\n<source>{{ [[ <ref></source>\nb<ref>c</ref>", "a\nb"),
        ("a<ref>b <!-- c</ref> d<ref>e --> f</ref> g", "a d g"),
        ("a<ref>The tag <nowiki><ref></nowiki> opens.</ref> b", "a b"),
        ('a<ref name="b>c">d</ref> e', 'a e'),
        ("a\n<gallery>\nFile:x.jpg|<!-- b\n</gallery>\nc", "a\nc"),
        ("a <includeonly>b", "a"),
        # a comment hides tags
        ("a <!-- <nowiki> --> b <nowiki>c</nowiki>", "a b c"),
        ("a<!-- <ref> --> b<ref>c</ref>", "a b"),
        ("a <!---->b<!-- > -- > --> c", "a b c"),
        ("a\n <!-- b --> <!-- c --> \nd", "a d"),
        ("a\n<!-- b --> <!-- c --> d\ne", "a\nd\ne"),
        # the characters around a tag do not meet
        ("''Film''<ref>a</ref>'s end, '<nowiki/>''b'''", "Film's end, 'b'"),
        ("a\n<ref>b</ref>\nc", "a c"),
        ("<nowiki/>* a", "* a"),
        # code in a line
        ("The <syntaxhighlight lang=c inline>a == b;</syntaxhighlight> test.", "The a == b; test."),
        # unknown names in angle brackets are text
        ("A List<String> is <b>no</b> <i>x</i>. <dir> and x<y, z>y", "A List<String> is no x. <dir> and x<y, z>y"),
        ("x<sup><s>o</s></sup> and y<sub><i>2</i></sub>", "xo and y2"),
        ("a\n<ul><li>b</li>\n<li> c</li></ul>d", "a\nb\nc\nd"),
    ],
)  # fmt: skip
def test_raw_content_goes_before_comments(markup: str, text: str) -> None:
    assert convert(markup).text == text


def test_math_with_a_comment_mark_is_one_hole() -> None:
    converted = convert("<math>a <!-- b</math> is 1. Next.<!-- c --> Last.")
    assert converted.holes == ("<math>",)
    assert converted.text.endswith(" is 1. Next. Last.")


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("for ''[[The Word (x)|''The Word'']]'' until", "for The Word until"),
        ("the '''[[Foo (film)|'''Foo''']]''' was, '''''[[a b|''c'']]''''' is", "the Foo was, c is"),
        ("''[[a|b ''c]]'' d", "b c d"),
        ("''[['Allo|'Allo]]'' and ''[[Fishin']]'' end", "'Allo and Fishin' end"),
        ("[[Lista d''Oc]] is ''x'' here", "Lista d''Oc is x here"),
        ("''[[File:a.jpg|thumb|''b]]c'' d", "c d"),
        ("[http://x.org ''la bel''] or [http://x.org''la bel''] or ''[http://x.org la]''", "la bel or la bel or la"),
        ("[http://x.org/a'b c] [http://x.org \"d\"] [//x.org '''e''']", 'c "d" e'),
        ("[[http://x.org a ''b'']] or [http://x.org|c] or [HTTP://x.org d [[e|f]] g]", "a b or or d f g"),
        ("dell{{'}}''x''\nl'''amour''\nl'''amour'' y", "dell\u2019x l'amour l'amour y"),
    ],
)
def test_quotes_are_balanced_inside_a_label_and_a_line(markup: str, text: str) -> None:
    assert convert(markup).text == text


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("a\n{| class=x\n! h\n|-\n| b\nmore\n{{end}}\nc", "a\nc"),
        ("a\n{|\n| b\n{{Table end|x}}\nc\n{|\n| d\n|}\ne", "a\nc\ne"),
        ("a\n{|\n| b\n{{mystery bottom}}\nc\n\nd", "a\nc\nd"),
        ("a\n{|\n| b<br />b\n* b\n\nc", "a\nc"),
        ("a\n{{(!}} class=x\n| b\nb\n\nb\n{{!)}}\nc", "a\nc"),
        ("a\n{|\n| b\n\n| b\nb\n== H ==\nc", "a\nc"),
        ("a\n{{mystery top}}\n|-\n| b\nb\n|}\nc", "a\nc"),
        ("a\n{{mystery top}}\n|-\n| b\n{{mystery bottom}}\nc", "a\nc"),
        ("{{Infobox\n| a = b\n| c\n'''X''' is d.", "X is d."),
        ("a\n{|\n| {{FIN}}<br>b || c\n|}\nd", "a\nd"),
        ("a\n{|\n| b\nb\n</table>\nc\n\nd", "a\nc\nd"),
        ("a\n<table><tr><td>b</td>\n<tr><td>b\n\nc\n== H ==\n<table>\n<tr><td>d</table>e", "a\nc\ne"),
    ],
)
def test_tables_that_a_template_ends_or_begins_leave_nothing(markup: str, text: str) -> None:
    assert convert(markup).text == text


@pytest.mark.parametrize(
    "gone",
    ["[[File:a.jpg|thumb|b]]", "{{DEFAULTSORT:x}}", "{{Infobox\n|a=b\n}}", "<ref>b</ref>", "<i>", "<br>", "[http://x.org]",
     "__NOTOC__", "[[de:x]]", "{|\n| a\n|}", "{|\n| a\n{{end}}"],
)  # fmt: skip
def test_a_space_after_something_invisible_makes_no_preformatted_line(gone: str) -> None:
    for page in (f"{gone} The city\nis large", f"a\n\n{gone} The city\nis large"):
        converted = convert(page, lists="drop")
        assert converted.text.split("\n")[-1] == "The city is large"
        assert not converted.left_out
    assert convert(" The code\n x = y", lists="drop").text == ""


@pytest.mark.parametrize(
    "line",
    [
        "!Kung is a language.",
        "! is called an exclamation mark",
        "| is called a pipe.",
        "|x| is the absolute value of x.",
        "||v|| is the norm of v.",
        "|-5| is 5.",
        "= 5 is a number",
    ],
)
def test_prose_may_begin_with_the_marks_of_tables(line: str) -> None:
    assert convert(f"{line}\n\nMore.").text == f"{line}\nMore."
    assert convert(f"Before.\n\n{line}").text == f"Before.\n{line}"
    assert convert(f"{{|\n{line}\n|}}\nMore.").text == "More."


@pytest.mark.parametrize("line", ["| name = x", "|thumb|200px|A caption", "| a || b", "|", "|}"])
def test_left_over_arguments_and_cells_are_no_prose(line: str) -> None:
    assert convert(f"a\n\n{line}\n\nb").text == "a\nb"


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("if a == b and c == d then", "if a == b and c == d then"),
        ("x==y==z", "x==y==z"),
        ("a\nif b == c == d\n", "a if b == c == d"),
        ("== a == b ==\nc", "c"),
        ("=== a ==\nc\n==b== \nd", "c\nd"),
        ("==a== {{mystery}}\nc", "c"),
        ("==History==In 1900", "In 1900"),
        ("a<h2>b c</h2>d", "a\nd"),
        ("a\n__NOTOC__\nb __TOC__ c", "a\nb c"),
        ("==A==B==\nc\n==D==e", "c\ne"),
        ("a __FILE__ b __INIT__\n__X__\nc", "a __FILE__ b __INIT__\nc"),
        (".==Sub== in " + "a" * 2_000, ".==Sub== in " + "a" * 2_000),
        ("a" * 2_000 + ".==Sub==In 1900", "a" * 2_000 + ".\nIn 1900"),
    ],
)
def test_only_a_whole_line_is_a_heading(markup: str, text: str) -> None:
    assert convert(markup).text == text


# ---- lists and tail sections ----


@pytest.mark.parametrize("mark", ["*", "#", ":", ";", "**", "*:", "<li>", "<dd>"])
def test_every_kind_of_list_item_is_left_out(mark: str) -> None:
    converted = convert(f"a\n{mark} b [[c]]\n\nd", lists="drop")
    assert converted.text == "a\nd"
    assert converted.left_out == (("list_item", "b c"),)


def test_indented_lines_stay_if_they_are_whole_sentences() -> None:
    quotation = "Old:\n\n: A river is a road that moves.\n x = y\n: y = z\n"
    page = quotation + "* Item of a list, in five words.\n: It goes on in five words."
    converted = convert(page, lists="drop")
    assert converted.text == "Old:\nA river is a road that moves."
    assert [detail for _, detail in converted.left_out] == [
        "x = y",
        "y = z",
        "Item of a list, in five words.",
        "It goes on in five words.",
    ]


def test_the_title_of_a_list_goes_with_the_list() -> None:
    converted = convert("Waters:\n* b\n* c\nIt says:\n\nd\nThe waters of this long paragraph:\n* e", lists="drop")
    assert converted.text == "It says:\nd The waters of this long paragraph:"
    assert [detail for _, detail in converted.left_out] == ["Waters:", "b", "c", "e"]
    assert convert("\u6c34\u7cfb" * 20 + "\uff1a\n* b", language="zh", lists="drop").text.endswith("\uff1a")


@pytest.mark.parametrize(
    ("language", "line", "kept"),
    [
        ("en", "It is a list of rivers.", True),
        ("en", 'He said "It is a river."', True),
        ("en", "Moscow: Nauka, 1990.", False),
        ("en", "a long line of words without an end", False),
        ("ja", "\u6771\u4eac\u306f\u65e5\u672c\u306e\u9996\u90fd\u3067\u3042\u308b\u90fd\u3067\u3059\u3002", True),
        ("ja", "\u6771\u4eac\u3002", False),
        ("hi", "\u092f\u0939 \u090f\u0915 \u092c\u0921\u093c\u0940 \u0928\u0926\u0940 \u0939\u0948\u0964", True),
        ("ko", "\uc11c\uc6b8\uc740 \ud55c\uad6d\uc758 \uc218\ub3c4\uc774\ub2e4.", True),
        ("th", "\u0e01" * 60, True),
        ("th", "\u0e01" * 59, False),
    ],
)  # fmt: skip
def test_items_that_are_whole_sentences_can_be_kept(language: str, line: str, kept: bool) -> None:
    assert convert(f"* {line}", language=language, lists="sentences").text == (line if kept else "")


@pytest.mark.parametrize(
    ("language", "heading"),
    [
        ("en", "References"),
        ("en", "''Further reading'':"),
        ("en", "[[Discography]] (selected)"),
        ("en", "References and external links"),
        ("en", "Notes & references"),
        ("en", "5.1. References [edit]"),
        ("en", "External_links"),
        ("it", "Bibliografia essenziale"),
        ("fr", "Liens et documents externes"),
        ("ltg", "Teiklav\u012btys"),
        ("de", "Weblinks"),
        ("de", "Literatur und Quellen"),
        ("fr", "Notes et r\u00e9f\u00e9rences"),
        ("it", "Collegamenti esterni"),
        ("es", "V\u00e9ase tambi\u00e9n"),
        ("ru", "\u0421\u043c. \u0442\u0430\u043a\u0436\u0435"),
        ("tr", "D\u0131\u015f ba\u011flant\u0131lar"),
        ("ko", "\uac01\uc8fc"),
        ("zh", "\u5916\u90e8\u94fe\u63a5"),
        ("zh-yue", "\u5916\u90e8\u9023\u7d50"),
        ("no-such", "External links"),
    ],
)
def test_tail_sections_are_known_by_heading_and_language(language: str, heading: str) -> None:
    page = f"a\n== {heading} ==\nb\n=== Sub ===\n* c\n== History ==\nd"
    if language == "de":
        page = page.replace("== History ==\nd", "")
    converted = convert(page, language=language, tail_sections="drop")
    assert converted.text == ("a" if language == "de" else "a\nd")
    assert [reason for reason, _ in converted.left_out] == ["tail_section"]


def test_headings_that_may_be_subjects_count_at_the_end_only() -> None:
    page = (
        "a\n== Culture ==\n=== Literature ===\nProse.\n== Sources ==\nb\n== Literature ==\nc\n== External links ==\nd"
    )
    assert convert(page, tail_sections="drop").text == "a\nProse."
    assert convert(page + "\n== Legacy ==\ne", tail_sections="drop").text == "a\nProse.\nb\nc\ne"


def test_headings_of_the_table_are_in_their_compared_form() -> None:
    for language in ("en", "de", "tr", "zh"):
        for headings in headings_of(language):
            for heading in headings:
                assert fold_name(heading) == heading == heading.strip(" :.")


# ---- whole pages ----


def test_pages_about_markup_keep_their_prose(shared_data: Path) -> None:
    items = read(shared_data / "cases/comment-in-code.xml")
    pages = {item.name: item.sentences for item in items if isinstance(item, Document)}
    assert pages["HTML comment"] == (
        "HTML comments are marked up with <!-- at the start.",
        "Browsers do not show them.",
        "The second paragraph is ordinary prose.",
        "It says something about browsers.",
        "Comments came with the first version.",
        "They are older than scripts.",
    )
    assert pages["JavaScript"] == (
        "Scripts were once hidden from old browsers:",
        "This sentence stands between two listings.",
        "Readers see it.",
        "This sentence follows them.",
        "It is seen too.",
    )
    assert pages["Preformatted"] == ("An example:", "Everything after the example is prose.", "There is much of it.")


def test_quotes_in_the_labels_of_a_real_article(shared_data: Path) -> None:
    items = read(shared_data / "cases/quotes-in-link-labels.xml")
    pages = {item.name: item.sentences for item in items if isinstance(item, Document)}
    assert pages["Press"] == (
        "He wrote for The Word until 1893.",
        "In the Republic he wants to outlaw poetry.",
        "The film Foo was shown.",
    )


HOSTILE = ["<nowiki>", "<nowiki></nowiki>", "<ref name=x>", "<ref name=x", "<!--", "<!---->", "<!--a--> ", "<li>",
           "\n <!--a-->", "\n|a", "\n!a||b", "\n{|\n|a", "\n{|\n{{u}}", "\n|}", "\n==a==",
           "\n==notes==", "\n==notes and a==\n*b", "a and "]  # fmt: skip


@pytest.mark.parametrize("unit", HOSTILE)
def test_any_number_of_marks_is_read(unit: str) -> None:
    text = convert(unit * (40_000 // len(unit) if "{|" not in unit else 90), lists="drop").text
    assert not re.search("[\ufdd1-\ufdd4]", text)
