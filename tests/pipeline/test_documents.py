"""Document ids come from the text alone; splits cover the input and do not depend on the order of listing."""

from __future__ import annotations

import errno
import hashlib
import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.config.schema import PipelineConfig, SourceConfig
from pipeline.documents import Document, Drop, Split
from pipeline.settings import validate
from pipeline.sources.listing import refuse_own_files
from pipeline.sources.splits import deal_splits, list_splits, refuse_empty_source
from source_items import read_source

SENTENCES = st.lists(
    st.text(st.characters(exclude_characters="\n", exclude_categories=("Cs",)), min_size=1), min_size=1
)


def test_the_id_is_the_hash_of_the_sentences() -> None:
    expected = hashlib.blake2b(b"One.\nTwo.", digest_size=16).digest()
    assert Document("anything", ("One.", "Two.")).id == expected


@given(SENTENCES, SENTENCES)
def test_ids_are_equal_exactly_where_texts_are(first: list[str], second: list[str]) -> None:
    same = Document("a", tuple(first)).id == Document("b", tuple(second)).id
    assert same == (first == second)


def test_files_with_the_same_text_give_the_same_id_under_any_name(tmp_path: Path) -> None:
    for name, text in (("a.txt", "It rained.\n\nAll  day."), ("b.txt", "\ufeffIt rained.\r\n\r\nAll day.\r\n")):
        (tmp_path / name).write_bytes(text.encode())
    source = SourceConfig(kind="books", path=str(tmp_path))
    documents = read_source(source)
    assert len(documents) == 2
    assert len({item.id for item in documents if isinstance(item, Document)}) == 1


def test_splits_come_largest_first_whatever_order_the_paths_have(tmp_path: Path) -> None:
    for name, size in (("a.txt", 10), ("b.txt", 300), ("c.txt", 20)):
        (tmp_path / name).write_text("x" * size)
    paths = [str(tmp_path / name) for name in ("a.txt", "b.txt", "c.txt")]
    first = list_splits([SourceConfig(kind="books", path=tuple(paths))])
    second = list_splits([SourceConfig(kind="books", path=tuple(reversed(paths)))])
    assert first == second == list_splits([SourceConfig(kind="books", path=str(tmp_path / "*.txt"))])
    assert [Path(split.path).name for split in first] == ["b.txt", "c.txt", "a.txt"]
    assert [split.text_bytes for split in first] == [300, 20, 10]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("absent.txt", "no such file or folder: .*absent.txt.*check path"),
        ("none/*.txt", "the glob .* matches no file"),
        (".", "no file for kind books below the folder"),
    ],
)
def test_missing_input_is_named_with_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"sources\.0 \(books\): " + message):
        list_splits([SourceConfig(kind="books", path=path)])


def test_empty_and_unreadable_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    with pytest.raises(ValueError, match=r"empty\.txt is empty"):
        list_splits([SourceConfig(kind="text", path=str(tmp_path / "empty.txt"))])
    (tmp_path / "dump.xml.7z").write_bytes(b"7z")
    with pytest.raises(ValueError, match=r"7-Zip archives are not supported; unpack it first"):
        list_splits([SourceConfig(kind="wikipedia", path=str(tmp_path / "dump.xml.7z"))])


def test_a_file_listed_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    source = SourceConfig(kind="text", path=str(tmp_path / "a.txt"))
    with pytest.raises(ValueError, match=r"sources\.1 \(text\): .*is also read by sources\.0"):
        list_splits([source, source])


def test_files_of_another_kind_in_a_folder_are_named_in_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a.txt", "cover.jpg", ".hidden.txt"):
        (tmp_path / name).write_text("x")
    assert len(list_splits([SourceConfig(kind="books", path=str(tmp_path))])) == 1
    assert "skipping 1 file not of kind books: cover.jpg" in caplog.text


def test_links_below_a_folder_are_followed(tmp_path: Path) -> None:
    """Path.rglob passes over a link to a folder: its books would be missing without a word."""
    folder, other = tmp_path / "books", tmp_path / "other"
    for place in (folder, other / "deep", other / ".hidden"):
        place.mkdir(parents=True)
        (place / "a.txt").write_text("x")
    (folder / "linked").symlink_to(other)
    (folder / "loop").symlink_to(folder)
    (other / "back").symlink_to(other)
    source = SourceConfig(kind="books", path=str(folder))
    found = [split.path for split in list_splits([source])]
    assert found == [str(folder / "a.txt"), str(folder / "linked/deep/a.txt")]
    (folder / "gone.txt").symlink_to(tmp_path / "nowhere.txt")
    for path in (str(folder), str(folder / "*.txt")):
        with pytest.raises(ValueError, match=r"gone\.txt is a broken link to .*nowhere\.txt; repair or remove"):
            list_splits([SourceConfig(kind="books", path=path)])


@pytest.mark.parametrize(
    ("kind", "path", "settings", "key"),
    [
        (
            "books",
            "in",
            {"output": "set", "vocabulary": {"path": "in/vocab.txt", "train": True}},
            "vocabulary.path=in/vocab.txt",
        ),
        ("text", "in/*.txt", {"vocabulary": {"path": "in/vocab.txt"}}, "vocabulary.path=in/vocab.txt"),
        ("text", "in/vocab.txt", {"vocabulary": {"path": "in/vocab.txt"}}, "vocabulary.path=in/vocab.txt"),
        ("text", ".", {}, "output=in/out"),
        ("jsonl", "in/*/*.json", {}, "output=in/out"),
        ("parquet", "in/**", {}, "output=in/out"),
        ("jsonl", "in/rejects", {"cleaning": {"keep_rejects": "in/rejects"}}, "cleaning.keep_rejects=in/rejects"),
        ("books", "in/*.txt", {"vocabulary": {"path": "in/deep/vocab.txt"}}, None),
        ("wikipedia", "in", {"vocabulary": {"path": "in/vocab.txt"}}, None),
        ("books", "in/ou", {}, None),
        ("books", "s3://bucket/in", {}, None),
    ],
)
def test_what_a_build_writes_is_no_source(kind: str, path: str, settings: dict[str, object], key: str | None) -> None:
    """A vocabulary trained beside the books would be a book of the next build."""
    config = validate(
        PipelineConfig, {"output": "in/out", "sources": [{"kind": kind, "path": path}], **settings}, origin="c"
    )
    if key is None:
        refuse_own_files(config)
        return
    with pytest.raises(
        ValueError, match=rf"{re.escape(key)}: sources\.0 \({kind}\) reads {re.escape(path)}, .*another path"
    ):
        refuse_own_files(config)


def test_a_folder_that_cannot_be_listed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "closed").mkdir()
    (tmp_path / "a.txt").write_text("x")
    scandir, listdir = os.scandir, os.listdir

    def refuse(path: str, *, call: Callable[[str], Any]) -> Any:
        if str(path).endswith("closed"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return call(path)

    monkeypatch.setattr(os, "scandir", partial(refuse, call=scandir))
    monkeypatch.setattr(os, "listdir", partial(refuse, call=listdir))
    with pytest.raises(PermissionError, match=r"Permission denied: '.*closed'"):
        list_splits([SourceConfig(kind="books", path=str(tmp_path))])


def test_a_source_without_documents_is_an_error_that_says_what_was_dropped() -> None:
    source = SourceConfig(kind="wikipedia", path="x.xml")
    refuse_empty_source(source, num_documents=1, drops={})
    with pytest.raises(
        ValueError, match=r"x\.xml: no article in this source .*dropped: 7 redirect, 2 empty.*language=en"
    ):
        refuse_empty_source(source, num_documents=0, drops={"empty": 2, "redirect": 7})


def test_a_document_without_words_is_dropped_with_a_reason(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("* * *\n")
    source = SourceConfig(kind="text", path=str(tmp_path / "a.txt"))
    items = read_source(source)
    assert [item.reason for item in items if isinstance(item, Drop)] == ["sentence_without_words", "empty"]


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(1, 5))
def test_splits_are_dealt_evenly(sizes: list[int], workers: int) -> None:
    splits = [Split(0, "a", place, -1, size, size) for place, size in enumerate(sizes)]
    dealt = deal_splits(splits, workers=workers)
    assert sorted((split for each in dealt for split in each), key=lambda split: split.start) == splits
    assert len(dealt) <= workers
    assert all(dealt)
    loads = sorted([sum(split.text_bytes for split in each) for each in dealt] + [0] * (workers - len(dealt)))
    assert loads[-1] - loads[0] <= max(sizes, default=0)
    assert all(
        [split.text_bytes for split in each] == sorted((s.text_bytes for s in each), reverse=True) for each in dealt
    )


def test_a_large_file_is_alone_if_the_rest_is_no_more() -> None:
    splits = [Split(0, "a", place, -1, size, size) for place, size in enumerate([2] * 10 + [50] + [2] * 10)]
    great, rest = deal_splits(splits, workers=2)
    assert [split.text_bytes for split in great] == [50]
    assert [split.start for split in rest] == [place for place in range(21) if place != 10]
