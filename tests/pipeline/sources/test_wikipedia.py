"""Wikipedia dumps: every schema and fault; which pages are articles; real dumps."""

from __future__ import annotations

import bz2
import re
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from dumps import ENGLISH, dump, head, names, page, read, read_text, reasons
from pipeline.config.schema import PipelineConfig, SourceConfig
from pipeline.config.wikitext import WikitextConfig
from pipeline.documents import Document, Drop
from pipeline.sources.bytestreams import read_pieces
from pipeline.sources.dumpxml import DumpReader, Page
from pipeline.sources.splits import refuse_empty_source
from source_items import read_source


@pytest.fixture(scope="module")
def english(shared_data: Path) -> list[Document | Drop]:
    """Everything that the normal English dump gives."""
    return read(shared_data / "wiki" / ENGLISH)


# ---- which pages are articles ----


@pytest.mark.parametrize("version", ["0.5", "0.6", "0.7", "0.8", "0.9", "0.10", "0.11"])
def test_every_schema_is_read(tmp_path: Path, version: str) -> None:
    items = read_text(tmp_path, dump(page("A", "It rains."), page("Talk:A", "Yes, it does.", ns=1), version=version))
    assert items == [Document("A", ("It rains.",)), Drop("not_main_namespace", "Talk:A", "1")]


def test_without_ns_the_prefix_of_the_title_decides(tmp_path: Path) -> None:
    titles = [
        "A",
        "Talk:A",
        "talk:A",
        "Category:X",
        "Star Wars: Episode I",
        "Kategorie:Y",
        "User talk:Z",
        "Image:P.jpg",
    ]
    items = read_text(tmp_path, dump(*(page(t, "Some text.", ns=None, model="") for t in titles), version="0.5"), "de")
    assert names(items) == ["A", "Star Wars: Episode I"]


def test_localised_names_count_though_the_siteinfo_is_foreign(tmp_path: Path) -> None:
    text = dump(
        page("\ubd84\ub958:\ub3c4\uc2dc", "\ubd84\ub958\ub2e4.", ns=None),
        page(
            "\uc11c\uc6b8",
            "\uc11c\uc6b8\uc774\ub2e4. [[\ud30c\uc77c:a.jpg|thumb|\uadf8\ub9bc]] [[\ubd84\ub958:\ub3c4\uc2dc]]",
        ),
        page("\ud55c\uc591", "#\ub118\uaca8\uc8fc\uae30 [[\uc11c\uc6b8]]"),
    )
    items = read_text(tmp_path, text, "ko")
    assert [item for item in items if isinstance(item, Document)] == [
        Document("\uc11c\uc6b8", ("\uc11c\uc6b8\uc774\ub2e4.",))
    ]
    assert reasons(items)["\ud55c\uc591"] == "redirect"


def test_redirects_in_every_form(tmp_path: Path) -> None:
    """Redirects as empty documents (WikiExtractor#303, PR#384)."""
    forms = ["#REDIRECT [[B]]", "#redirect:[[B]]", " # Redirect [[B]] x", "#WEITERLEITUNG [[B]]"]
    pages = [page(f"R{index}", form) for index, form in enumerate(forms)]
    pages.append(page("E", "looks like text", extra='<redirect title="B" />'))
    text = dump(*pages, page("B", "#1 is a list. #REDIRECT is a word."))
    items = read_text(tmp_path, text, "de", lists="keep")
    assert names(items) == ["B"]
    assert set(reasons(items).values()) == {"redirect"}


def test_the_newest_revision_counts_whatever_the_order(tmp_path: Path) -> None:
    def revision(day: int, text: str) -> str:
        return f"<revision><timestamp>2020-01-{day:02d}T00:00:00Z</timestamp><text>{text}</text></revision>"

    revisions = revision(2, "Middle one.") + revision(30, "Newest one.") + revision(1, "Oldest one.")
    items = read_text(tmp_path, head() + f"<page><title>A</title><ns>0</ns>{revisions}</page></mediawiki>")
    assert items == [Document("A", ("Newest one.",))]


def test_of_several_slots_the_main_one_is_read(tmp_path: Path) -> None:
    def slot(role: str, model: str, text: str) -> str:
        return f"<content><role>{role}</role><origin>1</origin><model>{model}</model><text>{text}</text></content>"

    start = "<page><title>A</title><ns>0</ns><revision><timestamp>2020-01-01T00:00:00Z</timestamp>"
    main = "<model>wikitext</model><text>The main slot.</text>"
    other = slot("mediainfo", "wikibase-mediainfo", "{}")
    expected = [Document("A", ("The main slot.",))]
    end = "</revision></page></mediawiki>"
    assert read_text(tmp_path, head("0.11") + start + main + other + end) == expected
    only_contents = other + slot("main", "wikitext", "The main slot.")
    assert read_text(tmp_path, head("0.11") + start + only_contents + end) == expected


def test_empty_text_other_models_and_deleted_text_are_counted(tmp_path: Path) -> None:
    """An empty text element swallows the next page (WikiExtractor#303, PR#384)."""
    text = dump(
        page("A", "").replace('<text xml:space="preserve"></text>', "<text/>"),
        page("B", "body{}", model="css"),
        page("C", "").replace('xml:space="preserve"', 'deleted="deleted"'),
        page("D", "After them."),
    )
    items = read_text(tmp_path, text)
    assert names(items) == ["D"]
    assert reasons(items) == {"A": "empty", "B": "not_wikitext", "C": "empty"}


def test_sentences_around_missing_templates_are_dropped_and_named(tmp_path: Path) -> None:
    items = read_text(tmp_path, dump(page("A", "First one. It is {{mystery|1}} wide. Last one.")))
    assert items == [
        Drop("sentence_with_unrendered_template", "A", "mystery"),
        Document("A", ("First one.", "Last one.")),
    ]


def test_pages_over_budget_are_skipped_and_named_in_flat_memory(tmp_path: Path) -> None:
    hostile = {"braces": "{{" * 5_000_000, "links": "[[" * 300_000, "deep": "{{a|" * 200}
    (tmp_path / "x.xml").write_text(dump(*(page(k, v) for k, v in hostile.items()), page("B", "Fine.")))
    del hostile
    source = SourceConfig(kind="wikipedia", path=str(tmp_path / "x.xml"))
    tracemalloc.start()
    items = read_source(source)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert names(items) == ["B"]
    details = {item.name: item.detail for item in items if isinstance(item, Drop)}
    assert re.fullmatch(r"\d+ characters of markup, more than 4194304 bytes", details["braces"])
    assert re.match(r"300000 openings", details["links"])
    assert re.match(r"101 levels", details["deep"])
    assert peak < 30e6


def test_memory_stays_flat_over_many_pages(tmp_path: Path) -> None:
    """iterparse never frees the root (tensorflow_datasets/HF Beam readers (measured))."""

    def pieces() -> Iterator[bytes]:
        yield head().encode()
        one = page("A", "word " * 400).encode()
        for _ in range(3_000):
            yield one
        yield b"</mediawiki>"

    tracemalloc.start()
    count = sum(1 for _ in DumpReader("x", most_characters=10_000).read(pieces()))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 3_000
    assert peak < 2e6


# ---- what is refused ----


def test_fragments_without_a_root_are_read(tmp_path: Path) -> None:
    assert names(read_text(tmp_path, "\ufeff\n  " + page("A", "One.") + page("B", "Two."))) == ["A", "B"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("'''Raw''' wikitext", r"not a MediaWiki XML dump: it begins with \"'''Raw''' wikitext\""),
        ("  \n", "the file is empty"),
        ("<html><p>x</p></html>", "the root element is <html>"),
        (
            '<?xml version="1.0"?><!DOCTYPE m [<!ENTITY a "b">]><mediawiki/>',
            r"document type declaration \(<!DOCTYPE m>",
        ),
        (
            '<?xml version="1.0" encoding="x-none"?><mediawiki/>',
            "declaration names the encoding x-none, which is not supported",
        ),
        (
            '<?xml version="1.0" encoding="gb2312"?><mediawiki/>',
            "declaration names the encoding gb2312, which is not supported",
        ),
        (head() + page("A", "One."), "truncated: the </mediawiki> at the end is missing, after 1 pages"),
        (head() + page("A", "One.")[:-30], "truncated: it ends inside <mediawiki/page/revision"),
        (head() + page("A", "One.") + page("B", "a & b"), r"not well-formed at byte \d+ .*line 4.*page 'B'"),
        (dump(page("A", "One.")) + "<page/>", "more data follow the </mediawiki>"),
    ],
)
def test_damaged_dumps_are_refused_with_place_and_remedy(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=r"x\.xml: .*" + message):
        read_text(tmp_path, text)


def test_zero_articles_is_an_error_for_the_build(shared_data: Path) -> None:
    path = shared_data / "wiki/dumps/json-wikipedia/it-categories.xml.gz"
    drops = Counter(item.reason for item in read(path, "it") if isinstance(item, Drop))
    assert drops == {"not_main_namespace": 34_738}
    source = SourceConfig(kind="wikipedia", path=str(path), language="it")
    for others in (0, 7):
        with pytest.raises(ValueError, match=r"no article in this source .*34738 not_main_namespace"):
            refuse_empty_source(source, num_documents=0, drops=drops, others=others)


def test_a_source_of_another_content_model_alone_is_left_out_beside_others() -> None:
    source = SourceConfig(kind="wikipedia", path="wikidatawiki.xml")
    drops = {"not_main_namespace": 5, "not_wikitext": 2}
    refuse_empty_source(source, num_documents=0, drops=drops, others=7)
    with pytest.raises(ValueError, match=r"no article in this source .*5 not_main_namespace, 2 not_wikitext"):
        refuse_empty_source(source, num_documents=0, drops=drops, others=0)
    with pytest.raises(ValueError, match=r"no article in this source"):
        refuse_empty_source(source, num_documents=0, drops={**drops, "empty": 1}, others=7)
    lists = {"list_item": 3, "empty": 1}
    refuse_empty_source(source, num_documents=0, drops=lists, others=7)
    with pytest.raises(ValueError, match=r"dropped: 3 list_item, 1 empty.* or set wikitext\.lists: keep"):
        refuse_empty_source(source, num_documents=0, drops=lists, others=0)


# ---- lists and tail sections ----

SECTIONS = """Rivers carry water. They are:
* [[Rhine]]
* The Danube flows through ten countries on its way.
: It ends in a delta at the sea.

: A river is a road that carries us where we want to go.
: x = y
== History ==
Old rivers are slow.
=== Notes ===
Notes about history are prose.
== References ==
A book of 1990 says more.
=== Web ===
* [http://x.org The site of the rivers is the largest of all.]
== Legacy ==
They still flow.
== Notes ==
Seen in May.
== External links ==
* [http://y.org Y]"""


def lines_of(items: list[Document | Drop]) -> list[str]:
    return [sentence for item in items if isinstance(item, Document) for sentence in item.sentences]


def test_lists_and_tail_sections_are_left_out_and_counted(tmp_path: Path) -> None:
    items = read_text(tmp_path, dump(page("A", SECTIONS)))
    assert lines_of(items) == [
        "Rivers carry water.",
        "They are:",
        "A river is a road that carries us where we want to go.",
        "Old rivers are slow.",
        "Notes about history are prose.",
        "They still flow.",
    ]
    assert [(item.reason, item.detail) for item in items if isinstance(item, Drop)] == [
        ("list_item", "Rhine"),
        ("list_item", "The Danube flows through ten countries on its way."),
        ("list_item", "It ends in a delta at the sea."),
        ("list_item", "x = y"),
        ("tail_section", "References"),
        ("tail_section", "Notes"),
        ("tail_section", "External links"),
    ]


def test_sentences_of_lists_are_kept_if_asked_for(tmp_path: Path) -> None:
    items = read_text(tmp_path, dump(page("A", SECTIONS)), lists="sentences")
    assert lines_of(items) == [
        "Rivers carry water.",
        "They are:",
        "The Danube flows through ten countries on its way.",
        "It ends in a delta at the sea.",
        "A river is a road that carries us where we want to go.",
        "Old rivers are slow.",
        "Notes about history are prose.",
        "A book of 1990 says more.",
        "The site of the rivers is the largest of all.",
        "They still flow.",
    ]


def test_lists_and_tail_sections_are_kept_if_asked_for(tmp_path: Path) -> None:
    text = dump(page("A", SECTIONS))
    kept = read_text(tmp_path, text, lists="keep")
    assert len(lines_of(kept)) == 14
    assert len(kept) == 1
    lists_only = read_text(tmp_path, text, lists="keep", tail_sections="drop")
    assert len(lines_of(lists_only)) == 10
    tails_only = lines_of(read_text(tmp_path, text, tail_sections="keep"))
    assert "Seen in May." in tails_only
    assert not {"Rhine", "Y"} & set(tails_only)


def test_wikitext_of_all_sources_counts_unless_a_source_has_its_own(tmp_path: Path) -> None:
    paths = [SourceConfig(kind="wikipedia", path="a"), SourceConfig(kind="books", path="b")]
    own = SourceConfig(kind="wikipedia", path="c", wikitext=WikitextConfig(lists="drop"))
    config = PipelineConfig(sources=(*paths, own), output="o", wikitext=WikitextConfig(lists="sentences"))
    assert [source.wikitext and source.wikitext.tails for source in config.sources] == ["sentences", None, "drop"]
    with pytest.raises(ValueError, match="wikitext is for kind wikipedia, not for kind books; remove it"):
        SourceConfig(kind="books", path="b", wikitext=WikitextConfig())


# ---- real dumps ----


def test_the_normal_english_dump(english: list[Document | Drop]) -> None:
    items = english
    drops = Counter(item.reason for item in items if isinstance(item, Drop))
    assert len(names(items)) == 105  # one page is a list
    assert (drops["redirect"], drops["not_main_namespace"]) == (99, 1)
    documents = {item.name: item for item in items if isinstance(item, Document)}
    assert documents["Autism"].sentences[0].startswith("Autism is a neurodevelopmental disorder")
    assert len({item.id for item in documents.values()}) == 105


@pytest.mark.parametrize(
    ("name", "language", "articles", "redirects"),
    [
        ("dumpster-dive/ltgwiki-latest-pages-articles.xml.bz2", "ltg", 877, 147),
        ("dumpster-dive/ltg-tinywiki-latest-pages-articles.xml", "ltg", 7, 1),
        ("gensim/bgwiki-latest-pages-articles-shortened.xml.bz2", "bg", 1, 0),
        ("gensim/enwiki-table-markup.xml.bz2", "en", 5, 0),
        ("json-wikipedia/en-mercedes.xml", "en", 1, 0),
        ("json-wikipedia/misc-wikipedia-small-test.xml.bz2", "it", 3, 0),
        ("wikipedia2vec/enwiki-pages-articles-sample.xml.bz2", "en", 2, 1),
        ("dbpedia-minidumps/wikidatawiki.xml.bz2", "en", 0, 0),
    ],
)
def test_articles_and_redirects_of_real_dumps(
    shared_data: Path, name: str, language: str, articles: int, redirects: int
) -> None:
    items = read(shared_data / "wiki/dumps" / name, language)
    assert len(names(items)) == articles
    assert Counter(item.reason for item in items if isinstance(item, Drop))["redirect"] == redirects


def test_each_mini_dump_and_fragment_gives_an_article(shared_data: Path) -> None:
    folder = shared_data / "wiki/dumps"
    for path in sorted([*folder.glob("dbpedia-minidumps/*"), *folder.glob("wikiclean/*")]):
        language = path.name.partition("wiki")[0]
        if path.name != "wikidatawiki.xml.bz2":
            assert names(read(path, language, lists="keep")), path.name


def test_raw_wikitext_is_refused(shared_data: Path) -> None:
    with pytest.raises(ValueError, match="not a MediaWiki XML dump"):
        read(shared_data / "wiki/dumps/json-wikipedia/en-Cenozoic")


def test_pages_hold_what_the_xml_says(shared_data: Path) -> None:
    path = shared_data / "wiki" / ENGLISH
    pages = list(DumpReader(str(path), most_characters=10**7).read(read_pieces(path)))
    xml = bz2.decompress(path.read_bytes()).decode()
    assert [page.title for page in pages] == re.findall(r"<title>(.*?)</title>", xml)
    assert sum(page.is_redirect for page in pages) == xml.count("<redirect ")
    assert isinstance(pages[0], Page)
