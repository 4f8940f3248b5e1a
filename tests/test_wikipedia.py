"""Wikipedia dumps: every schema, compression and fault; which pages are articles; splits at stream boundaries."""

from __future__ import annotations

import bz2
import gzip
import lzma
import random
import re
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from itertools import chain, pairwise
from pathlib import Path

import pyarrow as pa
import pytest

from pipeline.config import SourceConfig
from pipeline.documents import Document, Drop
from pipeline.sources import list_splits, read_documents, refuse_empty_source
from pipeline.sources import wikipedia as wikipedia_module
from pipeline.sources.bytestreams import read_pieces
from pipeline.sources.dumpxml import DumpReader, Page
from pipeline.sources.wikipedia import read_dump, read_site, split_dump

NAMESPACES = {-2: "Media", -1: "Special", 0: "", 1: "Talk", 6: "File", 10: "Template", 14: "Category"}
ENGLISH = "dumps/gensim/enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"
MULTISTREAM = "dumps/multistream-repacked/enwiki-gensim206-pages-articles-multistream.xml.bz2"


def head(version: str = "0.10", language: str = "en", namespaces: dict[int, str] = NAMESPACES) -> str:
    names = "".join(
        f'<namespace key="{key}" case="first-letter">{name}</namespace>' for key, name in namespaces.items()
    )
    return (
        f'<mediawiki xmlns="http://www.mediawiki.org/xml/export-{version}/" version="{version}" '
        f'xml:lang="{language}">\n'
        f"<siteinfo><sitename>W</sitename><dbname>{language}wiki</dbname><namespaces>{names}</namespaces></siteinfo>\n"
    )


def page(title: str, text: str, *, ns: int | None = 0, extra: str = "", model: str = "wikitext") -> str:
    return (
        f"<page><title>{title}</title>{'' if ns is None else f'<ns>{ns}</ns>'}<id>1</id>{extra}"
        f"<revision><id>2</id><timestamp>2020-01-01T00:00:00Z</timestamp>{f'<model>{model}</model>' if model else ''}"
        f'<text xml:space="preserve">{text}</text></revision></page>\n'
    )


def dump(*pages: str, **keywords: object) -> str:
    return head(**keywords) + "".join(pages) + "</mediawiki>\n"  # type: ignore[arg-type]


def read(path: Path, language: str = "en") -> list[Document | Drop]:
    source = SourceConfig(kind="wikipedia", path=str(path), language=language)
    return [item for split in list_splits([source]) for item in read_documents(split, source)]


def read_text(tmp_path: Path, text: str, language: str = "en") -> list[Document | Drop]:
    (tmp_path / "x.xml").write_text(text, encoding="utf-8")
    return read(tmp_path / "x.xml", language)


def names(items: list[Document | Drop]) -> list[str]:
    return [item.name for item in items if isinstance(item, Document)]


def reasons(items: list[Document | Drop]) -> dict[str, str]:
    return {item.name: item.reason for item in items if isinstance(item, Drop)}


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
    items = read_text(tmp_path, dump(*pages, page("B", "#1 is a list. #REDIRECT is a word.")), "de")
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
    items = [item for split in list_splits([source]) for item in read_documents(split, source)]
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
        with pytest.raises(ValueError, match=r"not one article .*34738 not_main_namespace"):
            refuse_empty_source(source, num_documents=0, drops=drops, others=others)


def test_a_source_of_another_content_model_alone_is_left_out_beside_others() -> None:
    source = SourceConfig(kind="wikipedia", path="wikidatawiki.xml")
    drops = {"not_main_namespace": 5, "not_wikitext": 2}
    refuse_empty_source(source, num_documents=0, drops=drops, others=7)
    with pytest.raises(ValueError, match=r"not one article .*5 not_main_namespace, 2 not_wikitext"):
        refuse_empty_source(source, num_documents=0, drops=drops, others=0)
    with pytest.raises(ValueError, match=r"not one article"):
        refuse_empty_source(source, num_documents=0, drops={**drops, "empty": 1}, others=7)


# ---- compression ----


def zstd(data: bytes) -> bytes:
    return bytes(pa.compress(data, codec="zstd", asbytes=True))


COMPRESSIONS = {".bz2": bz2.compress, ".gz": gzip.compress, ".xz": lzma.compress, ".zst": zstd}


@pytest.mark.parametrize("suffix", COMPRESSIONS)
def test_compressed_dumps_read_the_same(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x.xml{suffix}"
    path.write_bytes(COMPRESSIONS[suffix](dump(page("A", "One."), page("B", "Two.")).encode()))
    assert names(read(path)) == ["A", "B"]


@pytest.mark.parametrize("suffix", [".bz2", ".gz", ".xz"])
def test_concatenated_streams_are_one_dump(tmp_path: Path, suffix: str) -> None:
    parts = [head(), page("A", "One."), page("B", "Two."), "</mediawiki>"]
    path = tmp_path / f"x.xml{suffix}"
    path.write_bytes(b"".join(COMPRESSIONS[suffix](part.encode()) for part in parts))
    assert names(read(path)) == ["A", "B"]


@pytest.mark.parametrize("suffix", COMPRESSIONS)
def test_truncation_inside_a_stream_names_file_and_offset(tmp_path: Path, suffix: str) -> None:
    """apache/beam 2.77 (measured): a truncated bz2 is read short without a word."""
    data = COMPRESSIONS[suffix](dump(*(page(f"A{i}", f"Number {i * 7919}.") for i in range(500))).encode())
    path = tmp_path / f"x.xml{suffix}"
    path.write_bytes(data[: len(data) * 2 // 3])
    with pytest.raises(ValueError, match=r"x\.xml\.\w+: .*truncated"):
        read(path)


@pytest.mark.parametrize("kept", [2, 3])
def test_truncation_between_streams_is_seen_in_the_xml(tmp_path: Path, kept: int) -> None:
    parts = [head(), page("A", "One."), page("B", "Two."), "</mediawiki>"]
    path = tmp_path / "x.xml.bz2"
    path.write_bytes(b"".join(bz2.compress(part.encode()) for part in parts[:kept]))
    with pytest.raises(ValueError, match=rf"truncated: the </mediawiki> at the end is missing, after {kept - 1} pages"):
        read(path)


@pytest.mark.parametrize("suffix", [".bz2", ".gz", ".xz"])
def test_corrupt_data_names_the_stream(tmp_path: Path, suffix: str) -> None:
    data = bytearray(COMPRESSIONS[suffix](dump(*(page(f"A{i}", f"Number {i * 7919}.") for i in range(500))).encode()))
    for index in range(len(data) // 2, len(data) // 2 + 40):
        data[index] ^= 0xA5
    path = tmp_path / f"x.xml{suffix}"
    path.write_bytes(data)
    with pytest.raises(
        ValueError, match=r"x\.xml\.\w+: .*(corrupt data in the \w+ stream that starts at byte 0|not well-formed)"
    ):
        read(path)


@pytest.mark.parametrize("suffix", COMPRESSIONS)
def test_bombs_are_refused_in_flat_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    monkeypatch.setattr("pipeline.sources.bytestreams._EXPANSION_FREE_BYTES", 1 << 20)
    data = (head() + "<page><title>A</title><ns>0</ns><revision><text>").encode() + b" " * 40_000_000
    path = tmp_path / f"x.xml{suffix}"
    path.write_bytes(COMPRESSIONS[suffix](data))
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"x\.xml\.\w+: \d+ bytes .*expand to .*this is no text"):
        read(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20e6


def test_the_real_bounds_of_expansion_and_memory_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """42 MB of one character in each of 5 streams: 150 bytes of bz2 give more than the 64 MB that are free."""
    path = tmp_path / "x.xml.bz2"
    path.write_bytes(bz2.compress(head().encode()) + bz2.compress(b" " * 42_000_000) * 5)
    with pytest.raises(ValueError, match=r"x\.xml\.bz2: \d+ bytes .*expand to .*this is no text"):
        read(path)
    monkeypatch.setattr("pipeline.sources.bytestreams._XZ_MEMORY", 1 << 20)
    path = tmp_path / "x.xml.xz"
    path.write_bytes(lzma.compress(dump(page("A", "One.")).encode(), preset=9))
    with pytest.raises(ValueError, match=r"in the xz stream that starts at byte 0: Memory usage limit exceeded"):
        read(path)


# ---- splits ----


def test_a_multistream_dump_is_split_and_reads_the_same(
    shared_data: Path, english: list[Document | Drop], monkeypatch: pytest.MonkeyPatch
) -> None:
    """WikiExtractor#124: multistream gives no article."""
    path = shared_data / "wiki" / MULTISTREAM
    index = bz2.decompress(path.with_name(path.name.replace(".xml", "-index.txt")).read_bytes()).decode()
    offsets = sorted({int(line.split(":")[0]) for line in index.splitlines()})
    monkeypatch.setitem(wikipedia_module.SPLIT_BYTES, "bz2", 300_000)
    source = SourceConfig(kind="wikipedia", path=str(path))
    splits = sorted(list_splits([source]), key=lambda split: split.start)
    assert len(splits) > 2
    assert {split.start for split in splits} - {0} <= set(offsets)
    assert [split.end for split in splits[:-1]] == [split.start for split in splits[1:]]
    assert [item for split in splits for item in read_documents(split, source)] == english


def test_a_truncated_multistream_dump_is_an_error_in_its_last_split(tmp_path: Path) -> None:
    parts = [head(), *(page(f"A{i}", f"Number {i}.") for i in range(20)), "</mediawiki>"]
    streams = [bz2.compress(part.encode()) for part in parts]
    path = tmp_path / "x-multistream.xml.bz2"
    source = SourceConfig(kind="wikipedia", path=str(path))
    path.write_bytes(b"".join(streams))
    splits = split_dump(path, source=0, split_bytes=400)
    assert len(splits) > 5
    assert len([item for split in splits for item in read_dump(split, source=source)]) == 20
    path.write_bytes(b"".join(streams[:-1]))
    *others, last = split_dump(path, source=0, split_bytes=400)
    assert all(list(read_dump(split, source=source)) for split in others)
    with pytest.raises(ValueError, match="the </mediawiki> at the end is missing"):
        list(read_dump(last, source=source))


def test_plain_dumps_are_split_at_pages_with_the_names_of_their_head(tmp_path: Path) -> None:
    pages = [page(f"Seite {i}", f"Nummer {i}. [[Datei:x.jpg|mini|Bild]]") for i in range(50)]
    pages.insert(25, page("Vorlage:X", "Nein.", ns=None))
    path = tmp_path / "x.xml"
    path.write_text(dump(*pages, language="de", namespaces={10: "Vorlage", 6: "Datei"}))
    source = SourceConfig(kind="wikipedia", path=str(path))
    splits = split_dump(path, source=0, split_bytes=1_000)
    assert len(splits) > 5
    assert read_site(str(path)).namespaces == {"Vorlage": 10, "Datei": 6}
    assert [item for split in splits for item in read_dump(split, source=source)] == read(path)


@pytest.fixture
def many_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, list[Document | Drop]]:
    """A dump whose pages vary from a few bytes to several blocks of 100 kB, and what is in it."""
    monkeypatch.setattr(wikipedia_module, "LEAST_BLOCK_SPLIT", 1)
    generator = random.Random(7)

    def sentence(length: int) -> str:
        return "Of " + " ".join(f"{generator.randrange(10**6):x}" for _ in range(length)) + "."

    lengths = [generator.choice([2, 20, 1_000]) for _ in range(60)] + [30_000, 3, 15_000] + [3] * 40
    text = dump(*(page(f"Seite {i}", sentence(length)) for i, length in enumerate(lengths)), language="de")
    return text, read_text(tmp_path, text, "de")


@pytest.mark.parametrize("split_bytes", [9_000, 40_000, 70_000])
@pytest.mark.parametrize("streams", [1, 3])
def test_one_great_stream_is_split_at_its_blocks(
    tmp_path: Path, many_pages: tuple[str, list[Document | Drop]], split_bytes: int, streams: int
) -> None:
    """Also several streams cut anywhere, as parallel compressors write them."""
    text, expected = many_pages
    data = text.encode()
    path = tmp_path / "x.xml.bz2"
    cuts = [len(data) * number // streams for number in range(streams + 1)]
    path.write_bytes(b"".join(bz2.compress(data[a:b], 1) for a, b in pairwise(cuts)))
    source = SourceConfig(kind="wikipedia", path=str(path), language="de")
    splits = split_dump(path, source=0, split_bytes=split_bytes)
    assert len(splits) > 2
    parts = [list(read_dump(split, source=source)) for split in splits]
    assert sum(map(bool, parts)) > 1
    assert [item for part in parts for item in part] == expected


@pytest.mark.parametrize("kept", ["</page>", "</page", ""])
def test_a_truncated_stream_is_an_error_in_its_last_parts(
    tmp_path: Path, many_pages: tuple[str, list[Document | Drop]], kept: str
) -> None:
    text, _ = many_pages
    path = tmp_path / "x.xml.bz2"
    source = SourceConfig(kind="wikipedia", path=str(path), language="de")
    if kept:  # the stream is whole, the text in it is not
        path.write_bytes(bz2.compress((text[: text.rindex("</page>")] + kept).encode(), 1))
        message = "truncated: (it ends inside|the </mediawiki> at the end is missing)"
    else:
        path.write_bytes(bz2.compress(text.encode(), 1)[:-20_000])
        message = r"the file ends at byte \d+, inside the bz2 block that starts at byte \d+: it is truncated"
    splits = split_dump(path, source=0, split_bytes=40_000)
    with pytest.raises(ValueError, match=r"x\.xml\.bz2: .*" + message):
        list(chain.from_iterable(read_dump(split, source=source) for split in splits))


def test_great_fragments_without_a_root_are_split_too(
    tmp_path: Path, many_pages: tuple[str, list[Document | Drop]]
) -> None:
    text, expected = many_pages
    pages = text[text.index("<page>") : text.index("</mediawiki>")]
    source = SourceConfig(kind="wikipedia", path=str(tmp_path), language="de")
    (tmp_path / "y.xml").write_text(pages)
    (tmp_path / "y.xml.bz2").write_bytes(bz2.compress(pages.encode(), 1))
    for path in (tmp_path / "y.xml", tmp_path / "y.xml.bz2"):
        splits = split_dump(path, source=0, split_bytes=50_000)
        assert len(splits) > 3
        assert [item for split in splits for item in read_dump(split, source=source)] == expected


def test_a_signature_inside_other_data_is_no_stream(tmp_path: Path) -> None:
    path = tmp_path / "x.xml.bz2"
    path.write_bytes(bz2.compress(dump(page("A", "One.")).encode()) + b"BZh91AY&SY" + b"\0" * 500)
    assert [split.start for split in split_dump(path, source=0, split_bytes=64)] == [0]


# ---- real dumps ----


def test_the_normal_english_dump(english: list[Document | Drop]) -> None:
    items = english
    drops = Counter(item.reason for item in items if isinstance(item, Drop))
    assert len(names(items)) == 106
    assert (drops["redirect"], drops["not_main_namespace"]) == (99, 1)
    documents = {item.name: item for item in items if isinstance(item, Document)}
    assert documents["Autism"].sentences[0].startswith("Autism is a neurodevelopmental disorder")
    assert len({item.id for item in documents.values()}) == 106


@pytest.mark.parametrize(
    ("name", "language", "articles", "redirects"),
    [
        ("dumpster-dive/ltgwiki-latest-pages-articles.xml.bz2", "ltg", 895, 147),
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
            assert names(read(path, language)), path.name


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
