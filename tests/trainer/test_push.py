"""Pushes of runs to a hub: what it then holds loads as the local export does, and nothing of others is lost."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard

from hub_server import OWNER, TOKEN, Hub
from trainer import push
from trainer.export import export
from trainer.export import folder as export_folder
from trainer.export.folder import MARKER
from trainer.telemetry.metrics import EVALUATIONS_NAME
from untrained_run import write_run

transformers = pytest.importorskip("transformers")

REPOSITORY = f"{OWNER}/bert"


@pytest.fixture(scope="module")
def trained(tokenized: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with checkpoints of steps 5, 12 and 20, of which 20 has the lowest held-out loss."""
    run = tmp_path_factory.mktemp("push") / "run"
    write_run(run, data=tokenized, steps=(5, 12, 20))
    return run


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of it, to be changed."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for exports, which every push leaves empty."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def fails(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line of a push that is refused."""
    capsys.readouterr()
    assert push.main(list(words)) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    return said


def check_loads(hub: Hub, folder: Path, *, revision: str, step: int, run: Path) -> None:
    """What the hub holds is a local export of the step, as transformers loads it."""
    pushed = hub.model().write_to(folder / revision, revision)
    export(run, out=folder / f"{revision}-local", step=step)
    ours, theirs = (
        transformers.AutoModelForPreTraining.from_pretrained(each) for each in (folder / f"{revision}-local", pushed)
    )
    for (name, first), (_, second) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        assert torch.equal(first, second), name
    tokenizer = transformers.AutoTokenizer.from_pretrained(pushed)
    assert tokenizer("t104")["input_ids"] == [101, 104, 102]
    assert json.loads((pushed / MARKER).read_text())["step"] == step


# --- what the hub holds


def test_every_revision_loads_as_its_local_export(
    hub: Hub, run: Path, tmp_path: Path, temporary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert push.main([str(run), REPOSITORY, "--revisions"]) == 0
    said = capsys.readouterr().out
    assert f"{hub.url}/{REPOSITORY}: new, private" in said
    stored = hub.model()
    assert stored.private
    assert sorted(stored.branches) == ["main", "step-0000005", "step-0000012", "step-0000020"]
    for revision, step in (("main", 20), ("step-0000005", 5), ("step-0000012", 12), ("step-0000020", 20)):
        check_loads(hub, tmp_path, revision=revision, step=step, run=run)
        assert stored.titles(revision) == [f"Cloze: step {step}", "initial commit"]
    assert list(temporary.glob("cloze-*")) == []

    card = stored.files()["README.md"].decode()
    for part in ("- `step-0000005`", "- `step-0000020`", f'from_pretrained("{REPOSITORY}", revision="step-0000005")'):
        assert part in card
    assert "## Revisions" not in stored.files("step-0000005")["README.md"].decode()
    assert stored.files()["curve.png"].startswith(b"\x89PNG")


def test_the_same_push_again_sends_nothing(hub: Hub, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [str(run), REPOSITORY, "--revisions", "--public"]
    assert push.main(words) == 0
    assert not hub.model().private
    hub.log.clear()
    capsys.readouterr()
    assert push.main(words) == 0
    assert hub.changes() == []
    assert capsys.readouterr().out.count("left alone, the hub has the same files") == 4


def test_a_run_that_went_on_adds_revisions_and_replaces_main(hub: Hub, run: Path, tokenized: Path) -> None:
    newest = run / "checkpoints" / "step-00000020"
    aside = newest.rename(run / "later")
    assert push.main([str(run), REPOSITORY, "--revisions"]) == 0
    assert hub.model().titles() == ["Cloze: step 5", "initial commit"], "step 5 is the best of those kept"
    aside.rename(newest)
    heads = {name: hub.model().branches[name] for name in ("step-0000005", "step-0000012")}
    assert push.main([str(run), REPOSITORY, "--revisions"]) == 0
    assert hub.model().titles() == ["Cloze: step 20", "Cloze: step 5", "initial commit"]
    assert heads.items() <= hub.model().branches.items()
    weights = [hub.model().files(name)["model.safetensors"] for name in ("main", "step-0000020", "step-0000005")]
    assert weights[0] == weights[1] != weights[2]
    assert len(weights[0]) == len(weights[2])


def test_files_that_an_export_no_longer_has_are_deleted(hub: Hub, run: Path) -> None:
    assert push.main([str(run), REPOSITORY]) == 0
    assert "curve.png" in hub.model().files()
    (run / "metrics.jsonl").unlink()
    assert push.main([str(run), REPOSITORY]) == 0
    assert "curve.png" not in hub.model().files()
    assert ".gitattributes" in hub.model().files()


@pytest.mark.parametrize(
    ("words", "evaluated", "step"),
    [((), True, 20), ((), False, 20), (("--step", "12"), True, 12), (("--best",), True, 20)],
)
def test_which_checkpoint_is_pushed(
    words: tuple[str, ...], evaluated: bool, step: int, hub: Hub, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if not evaluated:
        (run / EVALUATIONS_NAME).unlink()
    assert push.main([str(run), REPOSITORY, *words, "--dtype", "bf16"]) == 0
    assert hub.model().titles()[0] == f"Cloze: step {step}"
    assert json.loads(hub.model().files()["config.json"])["dtype"] == "bfloat16"


def test_the_best_is_pushed_even_if_it_is_not_the_newest(hub: Hub, run: Path) -> None:
    (run / EVALUATIONS_NAME).write_text('{"step": 5, "mlm_loss": 7.0}\n{"step": 12, "mlm_loss": 6.0}\n')
    assert push.main([str(run), REPOSITORY]) == 0
    assert hub.model().titles()[0] == "Cloze: step 12"


def test_a_damaged_checkpoint_is_no_revision_and_said(hub: Hub, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "checkpoints" / "step-00000012" / "state.json").write_text("{}")
    assert push.main([str(run), REPOSITORY, "--revisions"]) == 0
    assert "left out: step 12 is damaged" in capsys.readouterr().out
    assert sorted(hub.model().branches) == ["main", "step-0000005", "step-0000020"]
    assert "step-0000012" not in hub.model().files()["README.md"].decode()


# --- a dry run


@pytest.mark.parametrize("state", ["new", "pushed", "no token", "no network"])
def test_a_dry_run_shows_the_plan_and_sends_nothing(
    state: str, hub: Hub, run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(run), REPOSITORY, "--revisions"]
    if state == "pushed":
        assert push.main(words) == 0
        (run / "metrics.jsonl").unlink()
    if state == "no token":
        monkeypatch.delenv("HF_TOKEN")
    if state == "no network":
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    hub.log.clear()
    capsys.readouterr()
    assert push.main([*words, "--dry-run"]) == 0
    assert hub.changes() == []
    said = capsys.readouterr().out
    assert "dry run: nothing was sent" in said
    state_of_weights = {"new": "to send", "pushed": "the same there"}.get(state, "not asked")
    line = next(line for line in said.splitlines() if line.startswith("  model.safetensors"))
    assert line.endswith(f",744 bytes  {state_of_weights}")
    assert said.count("model.safetensors") == 4
    if state == "pushed":
        assert "  curve.png  to delete" in said
        assert "exists, private" in said
    if state == "no token":
        assert "not asked: the hub (no token)" in said
        assert hub.log == []
    if state == "no network":
        assert "cannot be reached" in said
    if state == "new":
        assert not hub.repositories


# --- the card


def report_of(folder: Path, *, model: Path) -> Path:
    """The report that trainer.finetune writes of two tasks."""
    from trainer.finetune.report import Row, write_report

    rows = [
        Row("sst2", "sst2", "classification", "batch 32", "accuracy", 0.91, 0.93, (0.9, 0.91, 0.93), {}, 0.51,
            {"train": 67_349, "dev": 872}, False),
        Row("cola-x|y", "cola", "classification", "batch 16", "matthews", 0.4, 0.4, (0.4,), {"accuracy": 0.8}, 0.0,
            {"train": 10, "dev": 5}, True),
        Row("cola-x|y", "cola", "classification", "batch 32", "matthews", 0.3, 0.3, (0.3,), {"accuracy": 0.7}, 0.0,
            {"train": 10, "dev": 5}, True),
    ]  # fmt: skip
    folder.mkdir()
    write_report(folder, rows=rows, model=str(model), left_out=())
    return folder


def test_the_card_has_tasks_losses_curve_and_a_recipe(hub: Hub, run: Path, tmp_path: Path, tokenized: Path) -> None:
    export(run, out=tmp_path / "model", step=20)
    tasks = report_of(tmp_path / "tasks", model=tmp_path / "model")
    assert push.main([str(run), REPOSITORY, "--revisions", "--tasks", str(tasks)]) == 0
    pushed = hub.model().write_to(tmp_path / "pushed")
    card = ModelCard.load(pushed / "README.md")
    assert card.data.language == ["en"]
    assert card.data.license == "cc-by-sa-4.0"
    assert card.data.model_name == "bert"
    found = {(each.dataset_name, each.metric_type): each for each in card.data.eval_results}
    sst2 = found["sst2", "accuracy"]
    assert (sst2.dataset_type, sst2.dataset_config, sst2.dataset_split) == ("nyu-mll/glue", "sst2", "validation")
    assert (sst2.task_type, sst2.metric_value) == ("text-classification", 0.91)
    assert sst2.metric_name == "accuracy, median of 3 seeds"
    by_hash = found["cola-x|y (split by hash)", "matthews_correlation"]
    assert (by_hash.metric_value, by_hash.dataset_split) == (0.4, None)
    for part in (
        "| sst2 | accuracy | 91.0 | 93.0 | 3 | 51.0 | 67,349 | 872 | batch 32 |",
        r"| cola-x\|y | matthews (accuracy 80.0) | 40.0 | 40.0 | 1 | 0.0 | 10 | 5 by hash | batch 16 |",
        "![Losses over steps](curve.png)",
        "| 5 | 8.0500 | 7.5000 | 0.6931 |  |",
        "python trainer/run.py --config recipe.yaml data=SET output=RUN",
    ):
        assert part in card.text, part
    assert "## Fine-tuned on tasks" in hub.model().files("step-0000020")["README.md"].decode()
    assert "## Fine-tuned on tasks" not in hub.model().files("step-0000012")["README.md"].decode()


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


# --- what is refused


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
