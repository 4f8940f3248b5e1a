"""Templates never leave a hole: what wraps text shows it, what shows nothing vanishes, and the rest drops its "
"sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.cleaning import split_sentences
from pipeline.config.schema import SourceConfig
from pipeline.documents import Document
from pipeline.sources.splits import list_splits, read_documents
from pipeline.wikitext import wiki_names, wikitext_to_text


def whole_sentences(markup: str, *, language: str = "en") -> list[str]:
    """The sentences that are kept: those without a missing template."""
    plain = wikitext_to_text(markup, names=wiki_names([language]), language=language, title="T")
    sentences = split_sentences(plain.text, language=language, keep_reserved=True)
    return [sentence for sentence in sentences if plain.hole_in(sentence) is None]


def text_of(markup: str, *, language: str = "en") -> str:
    return " ".join(whole_sentences(markup, language=language))


def test_the_text_of_marks_of_doubt_stays_in_the_italian_case(shared_data: Path) -> None:
    path = shared_data / "cases" / "it-wrapping-templates.xml"
    source = SourceConfig(kind="wikipedia", path=str(path), language="it")
    items = [item for split in list_splits([source]) for item in read_documents(split, source)]
    document = next(item for item in items if isinstance(item, Document) and item.name == "Sanit\u00e0")
    assert document.sentences == (
        "Il sistema sanitario non \u00e8 molto conosciuto anche se \u00e8 all'avanguardia.",
        "Il brano dedicato ad Antoine usc\u00ec presto.",
        "La canzone si rivela un successone e spopoler\u00e0 ovunque, e ne verranno fatte cover.",
        "\u00c8 il ponte pi\u00f9 alto del mondo.",
    )


@pytest.mark.parametrize(
    ("language", "markup", "text"),
    [
        ("it", "\u00c8 {{cn|il pi\u00f9 alto}} qui{{cn}} e {{chiarire|ora|quando?}} l\u00ec {{cn|data=maggio 2010}}.",
         "\u00c8 il pi\u00f9 alto qui e ora l\u00ec."),
        ("it", "Era {{Senza_fonte|grande}}, {{citazione necessaria|{{quando|oggi}} no}}.", "Era grande, oggi no."),
        ("fr", "Il est {{refnec|le plus haut|date=mai 2010}} et {{quand|r\u00e9cent}}, dit {{qui|on}}{{r\u00e9f "
         "n\u00e9cessaire}}.",
         "Il est le plus haut et r\u00e9cent, dit on."),
        ("fr", "En {{refnec|date=mai 2011|1693}}, il vint.", "En 1693, il vint."),
        ("fr", "De l'{{R\u00e9f\u00e9rence n\u00e9cessaire|\u00e9change}} est {{pas clair|dit}} ici.", "De "
         "l'\u00e9change est dit ici."),
        ("sv", "Det \u00e4r {{k\u00e4lla beh\u00f6vs|den st\u00f6rsta|datum=2016-02}} staden{{k\u00e4lla "
         "beh\u00f6vs|datum=2016}}.",
         "Det \u00e4r den st\u00f6rsta staden."),
        ("de", "Er war {{Zitat-Inline|gro\u00df}} und {{Wann|damals}} alt{{Beleg fehlt}}.", "Er war gro\u00df und "
         "damals alt."),
        ("es", "Es {{cita requerida|la mayor}} ciudad{{cita requerida}}.", "Es la mayor ciudad."),
        ("pt", "\u00c9 {{carece de fontes|a maior|data=mar\u00e7o de 2012}} cidade{{carece de "
         "fontes|data=x}}.", "\u00c9 a maior cidade."),
        ("pl", "Jest {{fakt|najwi\u0119kszym}} miastem{{fakt|data=2012-03}}.", "Jest najwi\u0119kszym miastem."),
        ("nl", "Het is {{bron?|de grootste|2011|05|07}} stad{{Bron?||2011|05|07}}.", "Het is de grootste stad."),
        ("nl", "Het is zijn stad{{Bron?|Hoe dan?}}.{{Bron?|Waar staat dat?|2011|05|07}} Na een jaar.",
         "Het is zijn stad. Na een jaar."),
        ("ru", "\u042d\u0442\u043e {{\u043d\u0435\u0442 \u0410\u0418 "
         "2|\u0431\u043e\u043b\u044c\u0448\u043e\u0439|3|01|2018}} "
         "\u0433\u043e\u0440\u043e\u0434{{\u041d\u0435\u0442 \u0410\u0418|3|01|2018}}.",
         "\u042d\u0442\u043e \u0431\u043e\u043b\u044c\u0448\u043e\u0439 \u0433\u043e\u0440\u043e\u0434."),
        ("ja", "\u3053\u308c\u306f{{\u8981\u51fa\u5178\u7bc4\u56f2|\u5927\u304d\u3044|date=2020\u5e74}}\u90fd\u5e02"
         "{{\u8981\u51fa\u5178|date=2020\u5e74}}\u3002", "\u3053\u308c\u306f\u5927\u304d\u3044\u90fd\u5e02\u3002"),
        ("en", "It is {{citation needed span|the highest|date=May 2010}} now{{clarify|why?}} {{cn|date=May 2010}}.",
         "It is the highest now."),
        ("cs", "Je to {{Dopl\u0148te zdroj|nejv\u011bt\u0161\u00ed}} m\u011bsto{{Fakt/dne|20100501}}.", "Je to "
         "nejv\u011bt\u0161\u00ed m\u011bsto."),
        ("vec", "El xe {{citazione necessaria|grando}} cuà.", "El xe grando cuà."),
        ("id", "Kota {{citation needed|terbesar|date=May 2010}} di sini{{fact|date=May 2010}}.", "Kota terbesar di "
         "sini."),
    ],
)  # fmt: skip
def test_a_mark_of_doubt_shows_the_text_that_it_wraps(language: str, markup: str, text: str) -> None:
    assert text_of(markup, language=language) == text


@pytest.mark.parametrize(
    ("language", "markup"),
    [("it", "Vive qui {{cn|marzo 2013}} da solo."), ("it", "Vive qui {{cn|nel 1987}} da solo."),
     ("fr", "Il vit {{refnec|1987}} ici.")],
)  # fmt: skip
def test_what_may_be_a_date_or_a_text_drops_the_sentence(language: str, markup: str) -> None:
    assert whole_sentences(f"Ecco. {markup}", language=language) == ["Ecco."]


@pytest.mark.parametrize(
    "markup",
    [
        "Some CO{{x|2}} is here.",
        "Some CO''{{x|2}}'' is here.",
        "Some Ca(OH){{x|2}} is here.",
        "Some ({{x}})-2-butene is here.",
        "The king {{II}} is here.",
        "The 5{{x}} of them.",
        "Of f({{x}}) = 2 there is more.",
        "It is pronounced {{IPA|x}} in French.",
        "It is {{IPA-fr|x|lang}}, they say.",
        "It is pronounced [{{IPA|x}}].",
        "It is pronounced ({{IPA|x}}) in French.",
        "The sound [{{IPA|x}}] is here.",
        "The letter {{angbr|{{IPA|a}}}} is used.",
        "It is said as {{respell|ASS|kee}} here.",
        "According to {{cite book|title=X}}, it is old.",
        "See {{YouTube|abc}} and {{wikidata|property|P1082}} now.",
        "There are {{#expr:1+1}} people and {{NUMBEROFARTICLES:R}} pages.",
        "It lies at {{coord|x|N}} now.",
        "In {{CURRENTYEAR}} they came.",
        "They live in\n{{Mystery}}\nand in Rome.",
        "The river {{Mystery|[[File:x.jpg]]}}.",
    ],
)
def test_what_stands_for_text_that_cannot_be_rendered_drops_the_sentence(markup: str) -> None:
    assert whole_sentences(f"One. {markup}\n\nTwo.") == ["One.", "Two."]


@pytest.mark.parametrize(
    ("language", "markup", "text"),
    [
        # the end of a sentence, where footnotes stand
        ("en", "It is old.{{mystery}} It stands, {{mystery|1}}", "It is old."),
        ("en", "It is old.{{mystery}}{{mystery|2}} It \"stands.\"{{mystery}}", "It is old. It \"stands.\""),
        ("en", "It is old. {{cite book|title=X}}", "It is old."),
        ("ja", "\u53e4\u3044\u3002{{\u8b0e}}\u65b0\u3057\u3044\u3002", "\u53e4\u3044\u3002 \u65b0\u3057\u3044\u3002"),
        # parentheses
        ("en", "The city (of {{mystery}} people, in 1900) is old.", "The city is old."),
        ("en", "'''A''' ({{lang-el|\u03b1}}, {{IPA|x}}; born 1900) is old.", "A (\u03b1; born 1900) is old."),
        ("en", "'''A''' (pronounced {{IPA|x}}, in French {{IPA-fr|y}}; born 1900) is old.", "A (born 1900) is old."),
        ("en", "'''A''' (Greek: {{lang|el|\u0391\u03b2}} {{IPA|x}}) is old.", "A (Greek: \u0391\u03b2) is old."),
        ("de", "'''A''' [{{IPA|x}}] (auch [{{IPA|y}}], * 1900) ist alt.", "A (* 1900) ist alt."),
        ("it", "'''A''' ({{IPA|x}} {{Link audio|x.ogg|ascolta}}) \u00e8 vecchia.", "A \u00e8 vecchia."),
        ("it", "La '''B''' ({{IPA|x}}, anche in spagnolo; in inglese {{Link audio|x|ascolta}}, {{IPA|y}}) \u00e8.",
         "La B \u00e8."),
        ("it", "La '''B''' ({{IPA|x}}, anche in spagnolo ''Be'') \u00e8 c.", "La B (anche in spagnolo Be) \u00e8 c."),
        ("ko", "'''\uac00'''({{IPA|x}})\ub294 \ub3c4\uc2dc\ub2e4.", "\uac00\ub294 \ub3c4\uc2dc\ub2e4."),
    ],
)  # fmt: skip
def test_a_missing_template_is_let_go_where_the_sentence_is_whole_without_it(
    language: str, markup: str, text: str
) -> None:
    assert text_of(markup, language=language) == text


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("It is old {{cn}}. It is big{{cn}} , and new, {{cn}}, red,{{cn}}. Yes {{cn}}; no {{cn}}: so {{cn}}!",
         "It is old. It is big, and new, red. Yes; no: so!"),
        ("It is old ,{{cn}}. It is big ,{{mystery}}, and old{{cn}} ,{{mystery}}.", "It is old. It is big, and old."),
        ("It is old, <ref>x</ref>, big,<ref>x</ref>. New <ref>x</ref>.", "It is old, big. New."),
        ("(It is old {{cn}}) and big.", "(It is old) and big."),
        ("It is old.{{-}}It is big!{{cn}} So e.g.{{cn}}a U.{{cn}}S. law.", "It is old. It is big! So e.g.a U.S. law."),
        ("Numbers like 1,,2 and .5 and words ... stay; ,,so'' too.", "Numbers like 1,,2 and .5 and words ... stay; "
         ",,so too."),
    ],
)  # fmt: skip
def test_no_punctuation_is_left_behind(markup: str, text: str) -> None:
    assert text_of(markup) == text


def test_no_space_is_left_before_the_full_stops_of_other_scripts() -> None:
    urdu = "\u06cc\u06c1 \u06c1\u06d2 {{\u062d\u0648\u0627\u0644\u06c1 \u062f\u0631\u06a9\u0627\u0631}} \u06d4"
    assert text_of(urdu, language="ur") == "\u06cc\u06c1 \u06c1\u06d2\u06d4"
    assert text_of("\u53e4\u3044 {{\u8981\u51fa\u5178}} \u3002", language="ja") == "\u53e4\u3044\u3002"
    assert text_of("\u0939\u0948 {{cn}} \u0964", language="hi") == "\u0939\u0948\u0964"


@pytest.mark.parametrize(
    ("language", "markup", "text"),
    [
        # citations in running text
        ("en", "{{harvtxt|Boolos|Jeffrey|1974|p=3}} say so, as {{harvnb|Boole|1854}} did {{harv|A|B|C|1900|loc=ch. "
         "2}}.",
         "Boolos & Jeffrey (1974, p. 3) say so, as Boole 1854 did (A, B & C 1900, ch. 2)."),
        ("it", "Cos\u00ec in {{Cita|Rossi2005|p. 220|Rossi 2005}} si legge.", "Cos\u00ec in Rossi 2005, p. 220 si "
         "legge."),
        # verses
        ("en", "As {{bibleverse||Romans|5:12|KJV}}, {{bibleverse|1|Corinthians|13:4}} and {{bibleref|Mark|3:25|9}} "
         "say.",
         "As Romans 5:12, 1 Corinthians 13:4 and Mark 3:25 say."),
        ("it", "La Lettera {{passo biblico|Rm|16,11}} attesta.", "La Lettera Rm 16,11 attesta."),
        ("de", "Nach {{Bibel|Mt|5|3|LUT}} und {{B|Gen|1|1}} gilt das.", "Nach Mt 5,3 und Gen 1,1 gilt das."),
        # graphemes, signs, sort keys
        ("en", "The letters {{angbr|a}}, {{grapheme|b}} and {{vr|c}} come.", "The letters \u27e8a\u27e9, "
         "\u27e8b\u27e9 and \u27e8c\u27e9 come."),
        ("en", "Acid {{eqm}} base, A{{music|flat}} and A{{zwnj}}B.", "Acid \u21cc base, A\u266d and A\u200cB."),
        ("en", "The {{sort|Smith|John Smith}} of {{sortname|Ann|Lee}} has {{nts|1234}}{{hs|9}} men.",
         "The John Smith of Ann Lee has 1,234 men."),
        ("sv", "Den {{sortera|1|f\u00f6rsta}} dagen.", "Den f\u00f6rsta dagen."),
        # sounds with a label
        ("en", "The city of {{audio|De-Berlin.ogg|Berlin}} is old{{audio|x.ogg|listen}}.", "The city of Berlin is "
         "old."),
        ("sv", "Staden {{ljudl\u00e4nk|De-Berlin.ogg|Berlin}} \u00e4r gammal.", "Staden Berlin \u00e4r gammal."),
        # centuries and ordinals
        ("fr", "Aux {{s2|XVI|XVII}}, au {{sp-|VII|e|ou|VIII|e|}} et au {{-s|II}}, {{Ier}} et {{2e}}, {{XIXe "
         "si\u00e8cle}}.",
         "Aux XVIe et XVIIe si\u00e8cles, au VIIe ou VIIIe si\u00e8cle et au IIe si\u00e8cle av. J.-C., Ier et 2e, "
          "XIXe si\u00e8cle."),
        ("fr", "Le {{1er}} {{M.|Dupont}} au {{n\u00b0|5}} du {{s-|I|er}}, XIX{{e}}.", "Le 1er M. Dupont au n\u00b0 5 "
         "du Ier si\u00e8cle, XIXe."),
        ("es", "En el {{siglo|XIX||s}} y el {{siglo|XX}}, {{siglo|I|a|S}}", "En el siglo XIX y el XX, Siglo I a. C."),
        ("fr", "Le {{5e|arm\u00e9e}} et le {{XIXe}}.", "Le 5e arm\u00e9e et le XIXe."),
        ("en", "It has {{convert|22|e6acre|km2}} and {{convert|3|Goilbbl}}.",
         "It has 22 million acre and 3 billion barrels."),
        ("ca", "El {{segle|XIX}} i el {{segle|XIII|s}}.", "El segle XIX i el segle XIII."),
        # numbers with their units
        ("fr", "Il a {{nombre|12500|habitants}} et {{unit\u00e9|10|km||h|-1}}.", "Il a 12 500 habitants et 10 "
         "km\u22c5h\u207b\xb9."),
        ("it", "Ha {{M|12|k|B}}, {{M|61,5||km/h}}, {{M|5|0,1|m}} e {{Exp|1,9|19}} anni.",
         "Ha 12 kB, 61,5 km/h, 5 \xb1 0,1 m e 1,9\xd710\xb9\u2079 anni."),
        # lists inside
        ("en", "They are {{citation needed span|\n* a;\n* b.\n}}", "They are a; b."),
        ("en", "The {{clarify|text=large|reason=x}} {{h:title|tip|city}}{{cn|reason}}.", "The large city."),
        ("en", "See {{bibleverse|John|3:16|NIV|the verse}}.", "See the verse."),
        ("fr", "Le roi {{incise|dit-il}} vint.", "Le roi \u2013 dit-il \u2013 vint."),
        ("ltg", "Mīsts{{flagicon|x}} ir{{fakts}} lels.", "Mīsts ir lels."),
        # the same name on two wikis
        ("it", "{{S|archeologia}}\nL'arte \u00e8 vasta.", "L'arte \u00e8 vasta."),
        ("lt", "Festivalis ({{de|Fest}}) vyksta.", "Festivalis (Fest) vyksta."),
        ("en", "Its rank is {{ill|de|Haus|House|the house}} of {{script|Copt|A}} and {{rtl-lang|ar|x}}.",
         "Its rank is the house of A and x."),
    ],
)  # fmt: skip
def test_inline_templates_show_their_text(language: str, markup: str, text: str) -> None:
    plain = wikitext_to_text(markup, names=wiki_names([language]), language=language, title="T")
    assert " ".join(plain.text.split()) == text
    assert plain.holes == ()


@pytest.mark.parametrize(
    ("language", "markup"),
    [("ca", "Als {{segles|XIX|XX}} van venir."), ("es", "En los {{siglo|XIX|XX}} vinieron."),
     ("pt", "Nos {{s\u00e9culo|XIX|XX}} vieram."), ("fr", "Le roi Louis {{II}} vint.")],
)  # fmt: skip
def test_two_centuries_never_become_one_and_a_numeral_never_vanishes(language: str, markup: str) -> None:
    assert whole_sentences(markup, language=language) == []


def test_what_shows_nothing_vanishes_and_what_cannot_be_rendered_is_counted_by_name() -> None:
    markup = "A{{sfn|B|1}} c{{efn|d}} {{flagicon|USA}} e.{{Use dmy dates}} F {{wikidata|x}} g {{cite web|u}} h."
    plain = wikitext_to_text(markup, names=wiki_names(["en"]), language="en", title="T")
    first, second = plain.text.split(". ", 1)
    assert first == "A c e"
    assert plain.hole_in(second) == "wikidata"
    assert plain.holes == ("wikidata", "cite web")


@pytest.mark.parametrize(
    ("language", "markup", "text"),
    [
        ("en", "As {{harvs|txt|first=George|last=Boole|year=1854}} showed.", "As George Boole (1854) showed."),
        ("en", "So says {{harvs|nb|last=Boole|year=1854|p=3}} too.", "So says Boole 1854, p. 3 too."),
        ("en", "It is so {{harvs|last=Boole|year=1854}} too.", "It is so (Boole 1854) too."),
        ("en", "They {{harvs|txt|last=A|last2=B|year=1854}} showed.", ""),
        ("en", "It is {{as written|reciev|ed}} here.", "It is recieved here."),
        ("en", "It is {{font color|red|a}} {{font color|blue|white|word}}.", "It is a word."),
        ("en", "It has {{val|1.2|0.1|e=3|u=kg}} here.", "It has (1.2 \xb1 0.1)\xd710\xb3 kg here."),
        ("en", "Born {{circa}}1900 in Rome.", "Born c. 1900 in Rome."),
        ("de", "Das {{SortKey|x|Wort}} ist{{SortKey|y}} hier.", "Das Wort ist hier."),
        ("pt", "Tem {{fmtn|12345|habitantes}} ao todo.", "Tem 12.345 habitantes ao todo."),
        ("ja", "{{\u4eee\u30ea\u30f3\u30af|A|en|B|label=A-B}}\u3002", "A-B\u3002"),
        ("sr", "Ima {{formatnum:12345.5}} ljudi.", "Ima 12.345,5 ljudi."),
        ("sk", "M\u00e1 {{formatnum:12345.5}} \u013eud\u00ed.", "M\u00e1 12 345,5 \u013eud\u00ed."),
        ("en", "A [[Media:a.ogg|song]] ([[media:a.ogg|listen]]) is [[Media:a.ogg]].", "A song is a.ogg."),
        ("de", "Ein [[Medium:a.ogg|Lied]] ([[Media:a.ogg|anh\u00f6ren]]) ist hier.", "Ein Lied ist hier."),
    ],
)
def test_templates_show_all_of_their_text(language: str, markup: str, text: str) -> None:
    assert text_of(markup, language=language) == text


@pytest.mark.parametrize(
    ("language", "markup", "text"),
    [
        ("en", "It is {{cn|the oldest}} and large.", ""),
        ("en", "It is {{cn|May 2010}} old{{cn|why is it so}}.", "It is old."),
        ("zh", "\u57ce\u5e02{{\u6765\u6e90\u8bf7\u6c42|\u662f\u6700\u53e4\u8001\u7684}}\u5f88\u7f8e\u4e3d\u3002", ""),
        ("zh", "\u57ce\u5e02{{fact|time=2010}}\u5f88\u7f8e\u4e3d\u3002", "\u57ce\u5e02\u5f88\u7f8e\u4e3d\u3002"),
        ("ja", "\u753a\u306f{{\u8ab0|\u53e4\u3044\u4eba}}\u8a00\u3046\u3002", ""),
        ("ja", "\u753a\u306f{{\u8ab0|2010\u5e745\u6708}}\u8a00\u3046\u3002", "\u753a\u306f\u8a00\u3046\u3002"),
        ("ko", "\uadf8\ub294 {{\ub204\uac00|\uc5b4\ub5a4 \uc0ac\ub78c}} \ub9d0\ud55c\ub2e4.", ""),
    ],
)
def test_an_argument_that_may_be_text_or_a_reason_drops_the_sentence(language: str, markup: str, text: str) -> None:
    assert text_of(markup, language=language) == text


@pytest.mark.parametrize(
    ("language", "prefixes", "word", "template"),
    [
        (
            "ar",
            ["\u0648", "\u0627\u0644", "\u0648\u0628\u0627\u0644", "\u0644"],
            "\u0642\u062f\u064a\u0645",
            "\u0645\u0646",
        ),
        ("he", ["\u05d5", "\u05d4", "\u05d5\u05e9"], "\u05e2\u05ea\u05d9\u05e7\u05d4", "\u05de\u05d9"),
    ],
)
def test_words_written_together_with_the_next_word_are_no_end_of_a_text(
    language: str, prefixes: list[str], word: str, template: str
) -> None:
    for prefix in prefixes:
        markup = f"{word} {prefix}{{{{{template}|{word}}}}} {word}{{{{{template}|{word}}}}}."
        assert text_of(markup, language=language) == f"{word} {prefix}{word} {word}."


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("It is here. [[File:a.jpg|thumb|C [[d]] is e.\n\nF is g.", "It is here. F is g."),
        ("It is here. [[Category:C is d\n\nE is f.", "It is here. E is f."),
        ("A is [[b|c and d.\n\nE is [[f|g]].", "A is c and d. E is g."),
    ],
)
def test_a_link_that_is_never_closed_leaves_no_options_and_no_target(markup: str, text: str) -> None:
    assert text_of(markup) == text
