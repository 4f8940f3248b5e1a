"""Temporary files of a build on a store: none stay, and a full TMPDIR is named."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

import pytest

from corpora import make_documents, write_text, write_vocabulary
from full_disk import files_of_at_most
from object_store import bucket, s3_server
from pipeline import storage
from pipeline.build.write_shard import _partial_file
from pipeline.run import main

__all__ = ["bucket", "s3_server"]
_IN_A_WORKER = """
import os, tempfile
if "CLOZE_ABORT_FILE" in os.environ:
    os.close(tempfile.mkstemp(prefix="left-")[0])
    open(os.environ["TEST_STARTS"], "a").write(tempfile.gettempdir() + "\\n")
"""


def test_what_workers_leave_is_removed(
    tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Workers end at once where the build has failed: here each leaves a file however it ends."""
    monkeypatch.chdir(tmp_path)
    documents = make_documents(60)
    for number in range(2):
        write_text(tmp_path / "text" / f"{number}.txt", documents[number::2])
    write_vocabulary(tmp_path / "vocab.txt")
    (tmp_path / "c.yaml").write_text(
        f"sources: [{{kind: text, path: text}}]\nvocabulary: {{path: vocab.txt}}\noutput: {bucket}/out\n"
        "max_seq_length: 32\nvalidation_fraction: 0.1\nshards: 2\nworkers: 2\n"
    )
    for name in ("temporary", "site"):
        (tmp_path / name).mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(_IN_A_WORKER)
    monkeypatch.setenv("TEST_STARTS", str(tmp_path / "starts"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    assert main(["--config", "c.yaml"]) == 0, capsys.readouterr().err
    starts = (tmp_path / "starts").read_text().splitlines()
    assert len(starts) >= 2
    assert all(start.startswith(f"{tmp_path}/temporary/") for start in starts)
    assert list((tmp_path / "temporary").iterdir()) == []
    assert os.environ["TMPDIR"] == str(tmp_path / "temporary")


def test_a_full_folder_of_temporary_files_is_named(bucket: str) -> None:
    """Not the store, which has room. What says where it failed is left as it is."""
    said = f"for temporary files; free space there, or set TMPDIR to another folder: '{tempfile.gettempdir()}'"
    with (
        pytest.raises(OSError, match=said) as failure,
        files_of_at_most(1 << 16),
        storage.open_output(f"{bucket}/x") as file,
    ):
        file.write(bytes(1 << 20))
    assert (failure.value.errno, failure.value.filename) == (errno.EFBIG, tempfile.gettempdir())
    assert storage.list_files(bucket) == []
    with (
        pytest.raises(OSError, match=said),
        files_of_at_most(1 << 16),
        _partial_file(f"{bucket}/x.parquet", scratch="") as path,
    ):
        path.write_bytes(bytes(1 << 20))
    for error in (OSError(errno.ENOSPC, "full", "elsewhere"), OSError(errno.EIO, "broken")):
        with pytest.raises(OSError, match=error.strerror) as failure, storage.open_output(f"{bucket}/x"):
            raise error
        assert failure.value is error
