"""The lease on the output of a build: lost to another build, kept until the end; in a folder and on a store."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from corpora import make_documents, write_text, write_vocabulary
from object_store import bucket, s3_server
from pipeline import storage
from pipeline.build import graph, recipe
from pipeline.output import folder, object_store
from pipeline.run import main
from pipeline.runtime.failures import FAILURE_NAME
from pipeline.storage import lease
from pipeline.vocabulary import train

__all__ = ["bucket", "s3_server"]
TAKEN_OVER = "this command lost its lease while it was frozen or disconnected; it is held by process 1 on elsewhere"
STORE = pytest.mark.parametrize("output", ["store"], indirect=True)


@pytest.fixture(params=["folder", "store"])
def output(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Of c.yaml: two shards and one held out."""
    monkeypatch.chdir(tmp_path)
    write_text(tmp_path / "text" / "0.txt", make_documents(60))
    write_vocabulary(tmp_path / "vocab.txt")
    output = str(tmp_path / "out") if request.param == "folder" else f"{request.getfixturevalue('bucket')}/out"
    (tmp_path / "c.yaml").write_text(
        f"sources: [{{kind: text, path: text}}]\nvocabulary: {{path: vocab.txt}}\noutput: {output}\n"
        "max_seq_length: 32\nvalidation_fraction: 0.1\nshards: 2\nworkers: 1\n"
    )
    return output


def take_over(output: str) -> None:
    """What another build does that finds the holder silent for long enough."""
    place = storage.locate(output, "_tmp")
    for file in storage.list_files(f"{place}/lease"):
        if file.name != ".lock":
            storage.delete(f"{place}/lease/{file.name}")
    holder = replace(lease.identify(timeout_s=60), host="elsewhere", pid=1)
    lease._write(place, lease.Claim(number=9, beat=0, holds=True, holder=holder))


def holders(output: str) -> list[str]:
    """Hosts that have a claim."""
    return [claim.holder.host for claim in lease._look(storage.locate(output, "_tmp"))]


def spoil(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, *, first: Callable[..., None]) -> None:
    """Let `first` be called before OWNER.NAME, with the same arguments."""
    original = getattr(owner, name)

    def spoilt(*arguments: Any, **keywords: Any) -> Any:
        first(*arguments, **keywords)
        return original(*arguments, **keywords)

    monkeypatch.setattr(owner, name, spoilt)


@pytest.mark.parametrize("moment", ["before it is published", "while it is published"])
def test_a_build_that_was_taken_over_publishes_nothing(
    moment: str, output: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And leaves what is there to the other."""
    if moment == "before it is published":
        spoil(monkeypatch, recipe, "write_set", first=lambda *_, **__: take_over(output))
    elif storage.is_url(output):
        spoil(
            monkeypatch, storage, "store_file",
            first=lambda _, url: take_over(output) if url == f"{output}/report.html" else None,
        )  # fmt: skip
    else:
        publish = folder.OutputFolder.publish

        def lose(output_folder: folder.OutputFolder) -> None:
            publish(output_folder)
            take_over(output)

        monkeypatch.setattr(folder.OutputFolder, "publish", lose)
    assert main(["--config", "c.yaml"]) == 2
    assert f"error: output={output}: {TAKEN_OVER}" in capsys.readouterr().err
    names = storage.list_names(output)
    assert "manifest.json" not in names
    assert {"_build.json", "_tmp"} <= names
    assert storage.list_files(f"{output}/data") or storage.list_files(f"{output}/_tmp/data")
    assert ("report.html" in names) == (moment == "while it is published")
    assert holders(output) == ["elsewhere"]
    assert storage.list_files(f"{output}/_tmp/finished")


def test_settings_that_are_refused_late_remove_nothing_of_the_other_build(
    output: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They would: of a build that cannot succeed nothing is kept."""

    def refuse(*_: Any, **__: Any) -> None:
        take_over(output)
        raise ValueError("refused")

    spoil(monkeypatch, recipe, "check_labels", first=refuse)
    assert main(["--config", "c.yaml"]) == 2
    assert "error: refused" in capsys.readouterr().err
    assert holders(output) == ["elsewhere"]
    assert storage.list_files(f"{output}/data") or storage.list_files(f"{output}/_tmp/data")


def test_a_vocabulary_for_a_build_that_was_taken_over_is_not_noted(
    output: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The mark is the other build's."""
    spoil(monkeypatch, train, "train_vocabulary", first=lambda *_, **__: take_over(output))
    assert main(["--config", "c.yaml", "vocabulary={size: 150}"]) == 2
    assert TAKEN_OVER in capsys.readouterr().err
    assert "vocabulary_hash" not in json.loads(storage.read_bytes(f"{output}/_build.json"))


@STORE
def test_workers_of_a_build_that_was_taken_over_stop(
    output: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before they upload a shard more."""
    monkeypatch.setattr(lease, "BEATS", 1200)
    notes_folders: list[Path] = []
    spoil(
        monkeypatch, object_store.StoredOutput, "__enter__", first=lambda self: notes_folders.append(Path(self.notes))
    )

    def lose(*_: Any, **__: Any) -> None:
        deadline = time.monotonic() + 300
        while not (notes_folders[0] / "results" / FAILURE_NAME).exists():
            assert time.monotonic() < deadline
            take_over(output)  # again: a holder that is not silent may renew its claim between a look and a removal
            time.sleep(0.2)

    spoil(monkeypatch, graph, "build_shard", first=lose)
    assert main(["--config", "c.yaml"]) == 2
    assert f"error: output={output}: another build took it over; wait for its end" in capsys.readouterr().err
    assert storage.list_files(f"{output}/data") == []


def test_no_other_build_begins_before_a_failed_one_has_cleared(
    output: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would lose its hold and its first files."""
    said: list[str] = []

    def begin() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lease, "_locked", lambda *_, **__: nullcontext())  # it would wait for that
            with pytest.raises(ValueError, match="another command works there") as refusal:
                lease.take(f"{output}/_tmp", timeout_s=60, say=print)
        said.append(str(refusal.value))

    def clear(cleared: folder.BuildOutput) -> None:
        original(cleared)
        begin()

    kind = object_store.StoredOutput if storage.is_url(output) else folder.OutputFolder
    original = kind._clear
    monkeypatch.setattr(kind, "_clear", clear)
    Path("text/0.txt").write_bytes(b"\xff\n")
    assert main(["--config", "c.yaml"]) == 2
    assert "0.txt, line 1" in capsys.readouterr().err
    assert len(said) == 2  # at the beginning and at the end
    assert storage.list_files(output) == []
