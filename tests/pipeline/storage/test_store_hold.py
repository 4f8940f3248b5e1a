"""The hold on an output folder of a store: lost to another build, left by a process that ended, kept until the end."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from corpora import make_documents, write_text, write_vocabulary
from object_store import bucket, s3_server
from pipeline import storage
from pipeline.build import graph, recipe
from pipeline.errors import PassingError
from pipeline.output import object_store
from pipeline.run import main
from pipeline.runtime.failures import FAILURE_NAME
from pipeline.storage import build_hold, files
from pipeline.storage.build_hold import StoreHold
from pipeline.vocabulary import train

__all__ = ["bucket", "s3_server"]
OTHERS = "others.json"
TAKEN_OVER = "another build took it over while this one stood still or was cut off from the store; wait for the end"


@pytest.fixture
def output(tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Of c.yaml: two shards and one held out, on a store."""
    monkeypatch.chdir(tmp_path)
    write_text(tmp_path / "text" / "0.txt", make_documents(60))
    write_vocabulary(tmp_path / "vocab.txt")
    (tmp_path / "c.yaml").write_text(
        f"sources: [{{kind: text, path: text}}]\nvocabulary: {{path: vocab.txt}}\noutput: {bucket}/out\n"
        "max_seq_length: 32\nvalidation_fraction: 0.1\nshards: 2\nworkers: 1\n"
    )
    return f"{bucket}/out"


def take_over(output: str) -> None:
    """What another build does that finds the holder silent for long enough."""
    folder = f"{output}/_tmp/{object_store.HOLDERS_NAME}"
    for file in storage.list_files(folder):
        storage.delete(f"{folder}/{file.name}")
    storage.write_bytes(f"{folder}/{OTHERS}", b"{}")


def test_what_is_renewed_keeps_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader on a store gets the size of one object and the bytes of the next."""
    monkeypatch.setattr(build_hold, "BEAT_S", 0.01)
    written: list[int] = []
    monkeypatch.setattr(
        files, "write_bytes", lambda url, data: written.append(len(data)) or Path(url).write_bytes(data)
    )
    clock = iter([1.5, *(1.25 + count for count in range(99_999))])
    monkeypatch.setattr(build_hold.time, "time", lambda: next(clock))
    hold = StoreHold(str(tmp_path), note_loss=lambda: None)
    hold.take(root="OUT")
    deadline = time.monotonic() + 300
    while len(written) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    hold.release()
    assert set(written) == {256}


def test_a_hold_that_was_taken_over_stays_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_hold, "BEAT_S", 0.01)
    lost = threading.Event()
    hold = StoreHold(str(tmp_path), note_loss=lost.set)
    hold.take(root="OUT")
    hold.check(root="OUT")
    (path,) = tmp_path.glob("*.json")
    path.unlink()
    assert lost.wait(30)
    time.sleep(0.05)
    with pytest.raises(PassingError, match=f"output=OUT: {TAKEN_OVER}"):
        hold.check(root="OUT")
    hold.release()
    assert list(tmp_path.glob("*.json")) == []


def test_a_renewal_that_comes_late_gives_way_to_who_took_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its object is there again, and both hold the folder."""
    monkeypatch.setattr(build_hold, "BEAT_S", 0.01)
    monkeypatch.setattr(build_hold, "DEAD_S", 0.5)
    asked, answer, lost = threading.Event(), threading.Event(), threading.Event()
    hold = StoreHold(str(tmp_path), note_loss=lost.set)
    hold.take(root="OUT")
    original = storage.write_bytes

    def stall(url: str, data: bytes, **keywords: Any) -> None:
        asked.set()
        assert answer.wait(300)
        original(url, data, **keywords)

    monkeypatch.setattr(files, "write_bytes", stall)
    assert asked.wait(300)
    time.sleep(0.6)
    (own,) = tmp_path.glob("*.json")
    own.unlink()
    (tmp_path / OTHERS).write_text("{}")
    answer.set()
    assert lost.wait(300)
    assert [path.name for path in tmp_path.glob("*.json")] == [OTHERS]
    with pytest.raises(PassingError, match=TAKEN_OVER):
        hold.check(root="OUT")
    hold.release()


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
    else:
        spoil(
            monkeypatch, storage, "store_file",
            first=lambda _, url: take_over(output) if url == f"{output}/report.html" else None,
        )  # fmt: skip
    assert main(["--config", "c.yaml"]) == 2
    assert f"error: output={output}: {TAKEN_OVER}" in capsys.readouterr().err
    names = storage.list_names(output)
    assert "manifest.json" not in names
    assert {"_build.json", "data"} <= names
    assert ("report.html" in names) == (moment == "while it is published")
    assert storage.list_names(f"{output}/_tmp/holders") == {OTHERS}
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
    assert storage.list_names(f"{output}/_tmp/holders") == {OTHERS}
    assert storage.list_files(f"{output}/data")


def test_a_vocabulary_for_a_build_that_was_taken_over_is_not_noted(
    output: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The mark is the other build's."""
    spoil(monkeypatch, train, "train_vocabulary", first=lambda *_, **__: take_over(output))
    assert main(["--config", "c.yaml", "vocabulary={size: 150}"]) == 2
    assert TAKEN_OVER in capsys.readouterr().err
    assert "vocabulary_hash" not in json.loads(storage.read_bytes(f"{output}/_build.json"))


def test_workers_of_a_build_that_was_taken_over_stop(
    output: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before they upload a shard more."""
    monkeypatch.setattr(build_hold, "BEAT_S", 0.05)
    exchanges: list[Path] = []
    spoil(monkeypatch, object_store.StoredOutput, "__enter__", first=lambda self: exchanges.append(Path(self.notes)))

    def lose(*_: Any, **__: Any) -> None:
        deadline = time.monotonic() + 300
        while not (exchanges[0] / "exchange" / FAILURE_NAME).exists():
            assert time.monotonic() < deadline
            take_over(output)  # again: a holder that is not silent may renew its hold between a look and a removal
            time.sleep(0.2)

    spoil(monkeypatch, graph, "build_shard", first=lose)
    assert main(["--config", "c.yaml"]) == 2
    assert f"error: output={output}: {TAKEN_OVER}" in capsys.readouterr().err
    assert storage.list_files(f"{output}/data") == []


def test_a_zombie_holds_nothing(tmp_path: Path) -> None:
    """A killed build whose parent has not asked after it yet."""
    child = subprocess.Popen(["sleep", "60"])
    started = build_hold._started(child.pid)
    assert started
    tree = {"machine": build_hold._machine(), "process": child.pid, "started": started}
    (tmp_path / "child.json").write_text(json.dumps(tree))
    try:
        with pytest.raises(ValueError, match="another build is writing there"):
            StoreHold(str(tmp_path)).take(root="OUT")
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        hold = StoreHold(str(tmp_path))
        hold.take(root="OUT")
        hold.release()
    finally:
        child.kill()
        child.wait()
    assert list(tmp_path.iterdir()) == []


def test_no_other_build_begins_before_a_failed_one_has_cleared(
    output: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would lose its hold and its first files."""
    said: list[str] = []

    def begin() -> None:
        with pytest.raises(ValueError, match="another build is writing there") as refusal:
            StoreHold(f"{output}/_tmp/holders").take(root=output)
        said.append(str(refusal.value))

    def clear(folder: object_store.StoredOutput) -> None:
        original(folder)
        begin()

    original = object_store.StoredOutput._clear
    monkeypatch.setattr(object_store.StoredOutput, "_clear", clear)
    Path("text/0.txt").write_bytes(b"\xff\n")
    assert main(["--config", "c.yaml"]) == 2
    assert "0.txt, line 1" in capsys.readouterr().err
    assert len(said) == 2  # at the beginning and at the end
    assert storage.list_files(output) == []
