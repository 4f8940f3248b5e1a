"""Cleaned documents kept as Parquet: the same data without parsing again, never stale, damage named."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from corpora import make_config, make_documents, write_text
from pipeline import versions
from pipeline.build.recipe import build
from pipeline.config.schema import SourceConfig
from pipeline.documents import Document, Drop
from pipeline.runtime.command import absolute_paths
from pipeline.sources import fingerprints, splits
from pipeline.sources.splits import list_splits, read_documents
from pipeline.vocabulary.train import train_vocabulary
from source_items import read_source

PAGES = "".join(
    f"<page><title>T{n}</title><ns>{n % 3 // 2}</ns><revision><text>First of {n}. It is {{{{mystery}}}}. Last one."
    "</text></revision></page>\n"
    for n in range(30)
)


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    path = tmp_path / "in" / "x.xml"
    path.parent.mkdir()
    path.write_text(f"<mediawiki>{PAGES}</mediawiki>")
    return path


def read(path: Path, folder: Path | None, **settings: object) -> list[Document | Drop]:
    source = SourceConfig(
        kind="wikipedia", path=str(path), clean_documents=None if folder is None else str(folder), **settings
    )  # type: ignore[arg-type]
    return read_source(source)


def refuse(*_: object, **__: object) -> Iterator[Document | Drop]:
    raise AssertionError("parsed again")
    yield


def test_kept_documents_are_read_instead_of_the_input(
    tmp_path: Path, dump: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "clean"
    expected = read(dump, None)
    assert {type(item) for item in expected} == {Document, Drop}
    assert read(dump, folder) == expected
    (kept,) = folder.iterdir()
    table = pq.read_table(kept)
    assert table.column("sentences").null_count == sum(isinstance(item, Drop) for item in expected)
    monkeypatch.setitem(splits._READERS, "wikipedia", refuse)
    assert read(dump, folder) == expected
    with pytest.raises(AssertionError, match="parsed again"):
        read(dump, None)


def test_the_name_of_the_input_may_be_as_long_as_the_file_system_has(tmp_path: Path, dump: Path) -> None:
    named = dump.with_name("\U0001f600" * 60 + dump.name[-8:])
    dump.rename(named)
    assert read(named, tmp_path / "clean") == read(named, tmp_path / "clean")


def test_other_input_settings_or_code_make_another_file(
    tmp_path: Path, dump: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "clean"
    read(dump, folder)
    read(dump, folder, language="de")
    assert len(list(folder.iterdir())) == 2
    dump.write_text(f"<mediawiki>{PAGES.replace('First', 'Other')}</mediawiki>")
    assert read(dump, folder) == read(dump, None)
    assert len(list(folder.iterdir())) == 3
    monkeypatch.setattr("pipeline.sources.document_cache.hash_code", lambda: "other")
    read(dump, folder)
    assert len(list(folder.iterdir())) == 4
    moved = dump.rename(tmp_path / "in" / "renamed.xml")
    moved.write_text(moved.read_text())
    read(moved, folder)
    assert len(list(folder.iterdir())) == 5


def test_a_change_of_the_cleaning_alone_makes_another_file(
    tmp_path: Path, dump: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has to raise a version for it."""
    code = tmp_path / "code"
    shutil.copytree(Path(versions.__file__).parent, code, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(versions, "__file__", str(code / "versions.py"))
    folder = tmp_path / "clean"
    for change in ("", "# another way to clean\n"):
        with open(code / "cleaning" / "characters.py", "a", encoding="utf-8") as module:
            module.write(change)
        versions.hash_code.cache_clear()
        read(dump, folder)
    versions.hash_code.cache_clear()
    assert len(list(folder.iterdir())) == 2


def test_a_large_file_must_also_be_of_the_same_time(
    tmp_path: Path, dump: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its hash does not look at every byte; where only the time was changed, setting that back finds what is kept."""
    monkeypatch.setattr(fingerprints, "_WHOLE_BYTES", 1)
    monkeypatch.setattr(fingerprints, "_PLACE_BYTES", 1)
    folder = tmp_path / "clean"
    first, before = read(dump, folder), dump.stat()
    dump.write_text(f"<mediawiki>{PAGES.replace('First of 7', 'Other of 7')}</mediawiki>")
    os.utime(dump, ns=(before.st_atime_ns, before.st_mtime_ns + 1_000_000))
    assert read(dump, folder) == read(dump, None) != first
    dump.write_text(f"<mediawiki>{PAGES}</mediawiki>")
    os.utime(dump, ns=(before.st_atime_ns, before.st_mtime_ns))
    monkeypatch.setitem(splits._READERS, "wikipedia", refuse)
    assert read(dump, folder) == first


def test_what_is_read_in_part_is_not_kept(tmp_path: Path, dump: Path) -> None:
    folder = tmp_path / "clean"
    source = SourceConfig(kind="wikipedia", path=str(dump), clean_documents=str(folder))
    (split,) = list_splits([source])
    items = iter(read_documents(split, source))
    next(items)
    items.close()  # type: ignore[attr-defined]
    assert list(folder.iterdir()) == []
    dump.write_text(f"<mediawiki>{PAGES}")
    with pytest.raises(ValueError, match="truncated"):
        read(dump, folder)
    assert list(folder.iterdir()) == []


def test_damage_is_named_with_its_remedy(tmp_path: Path, dump: Path) -> None:
    folder = tmp_path / "clean"
    read(dump, folder)
    (kept,) = folder.iterdir()
    whole = kept.read_bytes()
    metadata = {key: value for key, value in pq.read_metadata(kept).metadata.items() if key.startswith(b"cloze")}
    table = pq.read_table(kept).replace_schema_metadata(metadata)
    names = pa.array(["other", *table.column("name").to_pylist()[1:]], pa.string())
    pq.write_table(table.set_column(1, table.schema.field("name"), names), kept)
    with pytest.raises(
        ValueError,
        match=r"x\.xml-0-\w+\.parquet: its rows do not match their recorded hash; remove it, then the next build",
    ):
        read(dump, folder)
    pq.write_table(table.replace_schema_metadata({}), kept)
    with pytest.raises(ValueError, match=r"parquet: content does not match the key in its name; remove it"):
        read(dump, folder)
    kept.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"parquet: damaged: .*; remove it"):
        read(dump, folder)
    kept.unlink()
    assert read(dump, folder) == read(dump, None)


def test_a_build_has_the_same_bytes_from_kept_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = write_text(tmp_path / "text" / "corpus.txt", make_documents(30))
    folder = tmp_path / "clean"
    source = {"kind": "text", "path": str(text)}
    hashes = set()
    for name, entry in (("a", source), ("b", {**source, "clean_documents": str(folder)})):
        config = make_config(tmp_path, sources=[entry], output=str(tmp_path / name))
        hashes.add(build(config, say=lambda line: None).hash)
    monkeypatch.setitem(splits._READERS, "text", refuse)
    config = make_config(tmp_path, sources=[config.sources[0].model_dump()], output=str(tmp_path / "c"))
    hashes.add(build(config, say=lambda line: None).hash)
    assert len(hashes) == 1
    train_vocabulary(config, splits=list_splits(config.sources), path=tmp_path / "trained.txt")
    assert (tmp_path / "trained.txt").stat().st_size > 0


def test_its_path_is_made_absolute(tmp_path: Path) -> None:
    config = make_config(tmp_path, sources=[{"kind": "text", "path": "a.txt", "clean_documents": "kept"}])
    moved = absolute_paths(config, base_of=lambda path: tmp_path)
    assert moved.sources[0].clean_documents == str(tmp_path / "kept")
    assert moved.data_tree() == config.data_tree()
