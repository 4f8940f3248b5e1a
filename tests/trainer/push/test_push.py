"""Pushes of runs to a hub: what it then holds loads as the local export does, and what a dry run shows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from hub_server import Hub
from pushed_runs import REPOSITORY, check_loads, report_of
from trainer import push
from trainer.export import export
from trainer.telemetry.metrics import EVALUATIONS_NAME

pytest.importorskip("transformers")

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
