"""Pushes that are refused or stopped: one line with the repository and a remedy, and nothing of others is lost."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from hub_server import OWNER, TOKEN, Hub
from pushed_runs import REPOSITORY, check_loads, fails, report_of
from trainer import push
from trainer.export import export
from trainer.export import folder as export_folder

pytest.importorskip("transformers")


def test_answers_of_the_hub_name_the_repository_and_a_remedy(
    hub: Hub, run: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for pattern, status, part in (
        ("commit/main", 500, "the hub failed (500: planted by the test); run the same command again"),
        ("commit/main", 409, "was changed by another while this was pushed"),
        ("commit/main", 403, "this token may not write there"),
        ("commit/main", 404, "not found (404"),
        ("repos/create", 403, "this token may not write there"),
        ("whoami", 401, "refuses the token (401"),
        ("commit/main", 422, "refuses this (422"),
    ):
        hub.repositories.clear()
        hub.answers = {pattern: status}
        said = fails(capsys, str(run), REPOSITORY)
        assert said.startswith(f"error: {REPOSITORY}: ")
        assert part in said
        assert list(temporary.glob("cloze-*")) == []
    hub.answers = {}
    assert "this token may not write there (403" in fails(capsys, str(run), "another/bert")
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    assert "hf auth login" in fails(capsys, str(run), REPOSITORY)
    monkeypatch.delenv("HF_TOKEN")
    said = fails(capsys, str(run), REPOSITORY)
    assert f"{REPOSITORY}: no token for the hub; log in with `hf auth login`, or set HF_TOKEN" in said
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    assert "the hub at http://127.0.0.1:9 cannot be reached" in fails(capsys, str(run), REPOSITORY)


@pytest.mark.parametrize("name", ["a/b/c", "me/-x", "me/a..b", "me/ü", "", "me/a.git"])
def test_names_that_are_none(name: str, hub: Hub, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "give OWNER/NAME" in fails(capsys, str(run), name)
    assert hub.log == []


def test_repositories_that_are_not_for_this_model(hub: Hub, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "names no owner; give OWNER/NAME, such as me/bert" in fails(capsys, str(run), "bert")
    hub.create("dataset", f"{OWNER}/set")
    assert "is a dataset repository, and this is a model" in fails(capsys, str(run), f"{OWNER}/set")
    hub.create("model", f"{OWNER}/open", private=False)
    assert "is public; give --public to push there" in fails(capsys, str(run), f"{OWNER}/open")
    assert hub.model(f"{OWNER}/open").titles() == ["initial commit"]


def test_files_that_others_wrote_are_not_lost(hub: Hub, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hub.create("model", REPOSITORY).add("main", title="My model", changes={"config.json": b"{}", "mine.bin": b"1"})
    said = fails(capsys, str(run), REPOSITORY)
    assert f"{REPOSITORY}: config.json in main was not written by this command, but by the commit 'My model'" in said
    assert "give --replace" in fails(capsys, str(run), REPOSITORY, "--dry-run")
    assert hub.model().titles() == ["My model", "initial commit"]
    assert push.main([str(run), REPOSITORY, "--replace"]) == 0
    assert "mine.bin" not in hub.model().files()

    hub.model().add("main", title="Update README.md", changes={"README.md": b"---\n---\nBetter.\n"})
    assert push.main([str(run), REPOSITORY, "--step", "5", "--replace", "--dry-run"]) == 0
    said = fails(capsys, str(run), REPOSITORY, "--step", "5")
    assert "README.md in main was not written by this command, but by the commit 'Update README.md'" in said


def test_a_change_by_another_meanwhile_is_not_overwritten(
    hub: Hub, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert push.main([str(run), REPOSITORY, "--step", "5"]) == 0

    def change_once(request: str) -> None:
        if "/preupload/" in request and "Mine" not in hub.model().titles():
            hub.model().add("main", title="Mine", changes={"config.json": b"{}"})

    hub.before = change_once
    said = fails(capsys, str(run), REPOSITORY)
    assert "was changed by another while this was pushed (412" in said
    assert hub.model().titles()[0] == "Mine"


def test_a_card_that_the_hub_refuses(hub: Hub, run: Path, tokenized: Path, tmp_path: Path,
                                     capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    moved = Path(shutil.copytree(tokenized, tmp_path / "set"))
    (moved / "README.md").write_text("---\nlicense: mine-1.0\n---\n# Pairs\n")
    said = fails(capsys, str(run), REPOSITORY, "--data", str(moved))
    assert "the hub refuses the card" in said
    assert '"license" must be one of' in said
    (moved / "README.md").write_text("# Pairs\n")
    assert push.main([str(run), REPOSITORY, "--data", str(moved)]) == 0
    assert "note: the card names no licence" in capsys.readouterr().out


def test_a_full_disk_names_the_folder(
    hub: Hub, run: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full_disk(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(export_folder, "save_file", full_disk)
    said = fails(capsys, str(run), REPOSITORY)
    assert f"{REPOSITORY}: the disk is full while step 20 is exported to {temporary}" in said
    assert "set TMPDIR" in said
    assert list(temporary.glob("cloze-*")) == []
    assert hub.changes() == []


def test_one_checkpoint_has_no_revisions(hub: Hub, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = str(run / "checkpoints" / "step-00000012")
    assert "--revisions needs the run directory" in fails(capsys, one, REPOSITORY, "--revisions")
    assert "holds no checkpoint" in fails(capsys, str(run / "nothing"), REPOSITORY)
    assert push.main([one, REPOSITORY]) == 0
    assert hub.model().titles()[0] == "Cloze: step 12"


def test_tasks_of_another_checkpoint_are_refused(
    hub: Hub, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export(run, out=tmp_path / "model", step=12)
    tasks = str(report_of(tmp_path / "tasks", model=tmp_path / "model"))
    said = fails(capsys, str(run), REPOSITORY, "--tasks", tasks)
    assert "the tasks were fine-tuned on another checkpoint, of step 12; give --step 12" in said
    assert hub.log == []
    assert push.main([str(run), REPOSITORY, "--tasks", tasks, "--step", "12"]) == 0
    path = tmp_path / "tasks" / "report.json"
    whole = json.loads(path.read_text())
    for change, part in (
        ({"checkpoint": None}, "is no export of a run"),
        ({"rows": []}, "has no task"),
        ({"rows": [{**whole["rows"][0], "value": 7.0}]}, "rows.0.value"),
        ({"step": "12"}, "step: "),
    ):
        path.write_text(json.dumps({**whole, **change}))
        assert part in fails(capsys, str(run), REPOSITORY, "--tasks", tasks)
    path.write_text("{")
    assert "is damaged" in fails(capsys, str(run), REPOSITORY, "--tasks", tasks)
    path.unlink()
    assert "report.json: is missing" in fails(capsys, str(run), REPOSITORY, "--tasks", tasks)


# --- stops


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_a_push_that_is_stopped_continues_by_the_same_command(
    number: signal.Signals, status: int, hub: Hub, run: Path, tmp_path: Path, repository: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Stopped while the second of three revisions is committed."""
    held, reached = threading.Event(), threading.Event()

    def hold(request: str) -> None:
        if request.endswith("/commit/step-0000012"):
            reached.set()
            held.wait(60)

    hub.before = hold
    environment = {
        **os.environ, "HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN, "HF_HUB_DISABLE_XET": "1", "TMPDIR": str(tmp_path),
        "PYTHONPATH": str(repository),
    }  # fmt: skip
    words = [sys.executable, "-m", "trainer.push", str(run), REPOSITORY, "--revisions"]
    child = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert reached.wait(300), child.communicate()
    child.send_signal(number)
    _, said = child.communicate()
    assert child.returncode == status
    assert "Traceback" not in said
    if number != signal.SIGKILL:
        assert "the same command goes on from what the hub has received" in said
        assert not list(tmp_path.glob("cloze-push-*"))
    hub.before = lambda request: None
    held.set()
    sent = len(hub.large)
    assert 1 <= sent <= 2
    head = hub.model().branches["step-0000005"]
    assert push.main([str(run), REPOSITORY, "--revisions"]) == 0
    assert hub.model().branches["step-0000005"] == head
    assert hub.model().titles("step-0000012")[0] == "Cloze: step 12"
    check_loads(hub, tmp_path, revision="main", step=20, run=run)
