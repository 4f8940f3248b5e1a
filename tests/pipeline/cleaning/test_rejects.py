"""Rejects on request: every document left out with source, name, reason and text, in the same bytes for any workers."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from corpora import make_config, make_documents, write_text
from pipeline.build.recipe import build
from pipeline.cleaning.rejects import REJECTS_NAME, RejectWriter, write_rejects
from pipeline.dataset.manifest import Manifest
from pipeline.runtime.command import absolute_paths
from pipeline.settings import ConfigError

DOCUMENTS = make_documents(30, sentences=(6, 9))
PARTS = [[*DOCUMENTS, ["ba de"], [*DOCUMENTS[2], "ba de fi"]], [DOCUMENTS[0], DOCUMENTS[1], ["fi go"], ["."]]]


def build_parts(folder: Path, *, workers: int, rejects: str | None) -> Manifest:
    sources = [
        {"kind": "text", "path": str(write_text(folder / f"part-{number}.txt", part))}
        for number, part in enumerate(PARTS)
    ]
    cleaning: dict[str, Any] = {"min_words": 4, "near_duplicates": {}, "keep_rejects": rejects}
    config = make_config(folder, sources=sources, cleaning=cleaning, shards=3, workers=workers)
    return build(config, say=lambda line: None)


def test_a_place_for_rejects_that_cannot_be_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("x")
    with pytest.raises(ConfigError, match=r"cleaning\.keep_rejects=.*kept is a file; give a folder"):
        build_parts(tmp_path, workers=1, rejects=str(tmp_path / "kept" / "rejects"))
    assert not (tmp_path / "out").exists()


def test_every_document_left_out_is_kept_with_its_reason(tmp_path: Path) -> None:
    manifests, written = [], []
    for name, workers in (("one", 1), ("two", 2)):
        (tmp_path / name).mkdir()
        manifests.append(build_parts(tmp_path / name, workers=workers, rejects=str(tmp_path / name / "kept")))
        written.append((tmp_path / name / "kept" / REJECTS_NAME).read_bytes())
        assert [path.name for path in (tmp_path / name / "kept").iterdir()] == [REJECTS_NAME]
    assert written[0] == written[1]
    entries = [json.loads(line) for line in written[0].decode().splitlines()]
    assert [list(entry) for entry in entries] == [["source", "name", "reason", "detail", "text"]] * 5
    found = [(entry["source"], entry["reason"], entry["text"]) for entry in entries]
    assert sorted(found) == sorted(
        [
            (0, "near_duplicate", "\n".join(DOCUMENTS[2])),
            (0, "too_few_words", "ba de"),
            (1, "duplicate", "\n".join(DOCUMENTS[0])),
            (1, "duplicate", "\n".join(DOCUMENTS[1])),
            (1, "too_few_words", "fi go"),
        ]
    )
    details = {entry["reason"]: entry["detail"] for entry in entries}
    assert details["too_few_words"] == "2 words, min_words=4"
    assert details["duplicate"].startswith("same text as part-0.txt, line ")
    assert " like part-0.txt, line " in details["near_duplicate"]
    assert manifests[0].drops == {
        "duplicate": 2,
        "empty": 1,
        "near_duplicate": 1,
        "sentence_without_words": 1,
        "too_few_words": 2,
    }
    (tmp_path / "none").mkdir()
    without = build_parts(tmp_path / "none", workers=1, rejects=None)
    assert without == manifests[0] == manifests[1]  # keeping rejects is no part of what a set is


def test_runs_of_bounded_size_are_merged_in_order_of_the_lines(tmp_path: Path) -> None:
    names = [f"n{number * 7 % 150:03d}" for number in range(150)]
    with RejectWriter(tmp_path, run_characters=1) as writer:
        for name in names:
            writer.add(source=0, name=name, reason="r", detail="", text="a\u2028b\r\n")
    assert len(writer.runs) == 150
    with RejectWriter(tmp_path) as one_run:
        for name in names:
            one_run.add(source=0, name=name, reason="r", detail="", text="a\u2028b\r\n")
    assert len(one_run.runs) == 1
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    path = Path(write_rejects(writer.runs[::-1], folder=tmp_path / "new" / "folder", scratch=scratch))
    with open(path, encoding="utf-8", newline="\n") as stream:
        lines = list(stream)
    assert [json.loads(line)["name"] for line in lines] == sorted(names)
    assert json.loads(lines[0])["text"] == "a\u2028b\r\n"
    assert Path(one_run.runs[0]).read_bytes() == path.read_bytes()
    assert list(scratch.iterdir())  # more than 64 runs are merged in rounds
    assert Path(write_rejects([], folder=tmp_path / "empty", scratch=scratch)).read_bytes() == b""


def test_a_writer_that_fails_or_has_no_folder_leaves_nothing(tmp_path: Path) -> None:
    with suppress(RuntimeError), RejectWriter(tmp_path, run_characters=1) as writer:
        writer.add(source=0, name="a", reason="r", detail="", text="t")
        assert len(list(tmp_path.iterdir())) == 1
        raise RuntimeError
    with RejectWriter(None) as writer:
        writer.add(source=0, name="a", reason="r", detail="", text="t")
    assert writer.runs == []
    assert list(tmp_path.iterdir()) == []


def test_the_folder_is_relative_to_the_current_one(tmp_path: Path) -> None:
    config = make_config(tmp_path, sources=[{"kind": "text", "path": "x"}], cleaning={"keep_rejects": "kept"})
    assert absolute_paths(config, base_of=lambda path: Path("/base")).cleaning.keep_rejects == "/base/kept"
