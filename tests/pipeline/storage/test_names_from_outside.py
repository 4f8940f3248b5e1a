"""Names that a store lists: keys may hold any text, and none leads out of the folder that it is fetched into."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import fs

from pipeline import storage
from pipeline.storage import StorageError, files, stays_inside
from trainer.telemetry import RunFiles

HOSTILE = [
    "../x.jsonl",
    "../../x.jsonl",
    "/x.jsonl",
    "//x.jsonl",
    "a/../../x.jsonl",
    "mlflow/../../x",
    "a\\..\\x.jsonl",
]


class Listing:
    """A store that lists the given names below bucket/run."""

    type_name = "s3"

    def __init__(self, *names: str) -> None:
        self._names = names

    def get_file_info(self, asked: Any) -> Any:
        if isinstance(asked, str):
            return SimpleNamespace(type=fs.FileType.Directory)
        kind = fs.FileType.File
        return [SimpleNamespace(path=f"bucket/run/{name}", size=1, mtime_ns=1, type=kind) for name in self._names]


def serve(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    monkeypatch.setattr(files, "open_filesystem", lambda url: (Listing(*names), "bucket/run"))


@pytest.mark.parametrize("name", HOSTILE)
def test_a_listed_name_that_leads_out_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, "metrics.jsonl", name)
    for list_them in (storage.list_files, storage.list_names):
        with pytest.raises(StorageError, match=r"s3://bucket/run: holds an object whose name .* leads out"):
            list_them("s3://bucket/run")


@pytest.mark.parametrize("name", HOSTILE)
def test_nothing_is_written_outside_of_the_working_folder(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(monkeypatch, "metrics.jsonl", name)
    monkeypatch.setattr(storage, "fetch_file", lambda path, target: Path(target).write_text("theirs"))
    with pytest.raises(StorageError, match="leads out of the folder"):
        RunFiles("s3://bucket/run", working_folder=str(tmp_path / "work")).fetch_logs()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_other_names_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, "a..b/c", "..a", "a b", "\u00e9")
    assert [file.name for file in storage.list_files("s3://bucket/run")] == ["..a", "a b", "a..b/c", "\u00e9"]


@given(name=st.text(alphabet="ab./\\\0"))
def test_what_stays_inside_stays_inside(name: str) -> None:
    if stays_inside(name):
        root = Path("/sets/mine")
        assert (root / name).is_relative_to(root)
        assert ".." not in (root / name).parts
