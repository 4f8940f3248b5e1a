"""Every dump of the real data builds, or is refused with the right reason."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from corpora import make_config
from pipeline.build.recipe import build
from pipeline.dataset.manifest import Manifest

TOO_FEW = r"the sources hold 1 distinct document with text; at least 2 are needed"
NO_XML = r"%s: not a MediaWiki XML dump: it begins with '%s"
LARGER = {
    "dumpster-dive/ltg-tinywiki-latest-pages-articles.xml": 7,
    "dumpster-dive/ltgwiki-latest-pages-articles.xml.bz2": 877,
    "gensim/bgwiki-latest-pages-articles-shortened.xml.bz2": TOO_FEW,
    "gensim/enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2": 105,
    "gensim/enwiki-table-markup.xml.bz2": 5,
    "json-wikipedia/en-Cenozoic": NO_XML % ("en-Cenozoic", r"\{\{Vital article"),
    "json-wikipedia/en-International_Military_Tribunal_for_the_Far_East": NO_XML % ("Far_East", r"\{\{Redirect"),
    "json-wikipedia/en-Phantom_kangaroo": NO_XML % ("en-Phantom_kangaroo", "==France=="),
    "json-wikipedia/en-mercedes.xml": TOO_FEW,
    "json-wikipedia/it-categories.xml.gz": r"it-categories.*: no article in this source .*34738 not_main_namespace",
    "json-wikipedia/it-small-dump.xml.gz": 481,
    "json-wikipedia/misc-wikipedia-small-test.xml.bz2": 3,
    "multistream-repacked/enwiki-gensim206-pages-articles-multistream-index.txt.bz2": NO_XML % ("index.*", "638:10:"),
    "multistream-repacked/enwiki-gensim206-pages-articles-multistream.xml.bz2": 105,
    "multistream-repacked/ltgwiki-pages-articles-multistream-index.txt.bz2": NO_XML % ("index.*", "627:1:"),
    "multistream-repacked/ltgwiki-pages-articles-multistream.xml.bz2": 877,
    "wikipedia2vec/enwiki-pages-articles-sample.xml.bz2": 2,
}


def language_of(path: Path) -> str:
    found = re.match(r"([a-z]+)wiki", path.name)
    if found:
        return found.group(1)
    return "it" if path.name.startswith(("it-", "misc-")) else "ltg" if path.name.startswith("ltg") else "en"


def build_dumps(folder: Path, paths: list[Path], *, said: list[str] | None = None) -> Manifest:
    sources = [{"kind": "wikipedia", "path": str(path), "language": language_of(path)} for path in paths]
    vocabulary = {"path": str(folder / "vocab.txt"), "strip_accents": False}  # which the marks of many scripts need
    config = make_config(folder, sources=sources, vocabulary=vocabulary)
    return build(config, say=(said if said is not None else []).append)


def num_documents(manifest: Manifest) -> int:
    return sum(source["documents"] for source in manifest.statistics["sources"])


def test_all_mini_dumps_build_together(shared_data: Path, tmp_path: Path) -> None:
    paths = sorted((shared_data / "wiki/dumps/dbpedia-minidumps").glob("*.bz2"))
    assert len(paths) == 62
    said: list[str] = []
    manifest = build_dumps(tmp_path, paths, said=said)
    by_language = {source["language"]: source["documents"] for source in manifest.statistics["sources"]}
    assert {language for language, documents in by_language.items() if not documents} == {"commons", "wikidata"}
    assert [line for line in said if "wikidatawiki.xml.bz2: none of its articles is wikitext" in line]
    assert [line for line in said if "commonswiki.xml.bz2: its articles have nothing but lists" in line]
    assert {"list_item", "tail_section"} <= manifest.drops.keys()
    assert manifest.num_rows("train") > 2_000


def test_every_larger_dump_is_listed(shared_data: Path) -> None:
    folder = shared_data / "wiki/dumps"
    apart = ("dbpedia-minidumps", "wikiclean")
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert {name for name in names if not name.startswith(apart)} == set(LARGER)


@pytest.mark.parametrize("name", LARGER)
def test_each_larger_dump_builds_or_is_refused_with_the_reason(shared_data: Path, tmp_path: Path, name: str) -> None:
    expected = LARGER[name]
    path = shared_data / "wiki/dumps" / name
    if isinstance(expected, str):
        with pytest.raises(ValueError, match=expected):
            build_dumps(tmp_path, [path])
    else:
        manifest = build_dumps(tmp_path, [path])
        assert num_documents(manifest) == expected
        assert manifest.num_rows("train") > 0


def test_all_fragments_build_together(shared_data: Path, tmp_path: Path) -> None:
    paths = sorted((shared_data / "wiki/dumps/wikiclean").glob("*.xml"))
    assert num_documents(build_dumps(tmp_path, paths)) == len(paths) == 28
