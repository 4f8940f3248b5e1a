"""`python -m trainer.evaluate` tells the losses that a run would, of any export, and refuses what does not fit."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from small_runs import make_config, run
from trainer.evaluate import main
from trainer.model import BertForPretraining
from trainer.telemetry.metrics import read_json_lines
from untrained_run import write_data, write_export
from worker_group import WorkerGroup


def test_the_losses_are_those_of_a_run_that_starts_from_the_model(
    worker_group: Callable[[int], WorkerGroup],
    exported: tuple[Path, BertForPretraining],
    tokenized: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """And a run evaluates them before its first step where evaluation.at_start says so, once."""
    settings = {"max_steps": 2, "workers": 1, "evaluation": {"at_start": True}, "precision": "fp32"}
    model = {"size": "tiny", "initialize_from": str(exported[0])}
    config = make_config(tokenized, tmp_path / "run", model=model, **settings)
    report = run(worker_group(1), config)
    assert any(
        f"training from step 0 of 2 (with the weights of {exported[0]}): BERT tiny" in line for line in report.said
    )
    start, end = read_json_lines(tmp_path / "run" / "evaluations.jsonl")
    assert (start["step"], end["step"]) == (0, 2)
    assert main([str(exported[0]), str(tokenized), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found.keys() == start.keys() - {"step", "phase"}
    assert found.pop("data_hash") == start["data_hash"]
    for key, value in found.items():
        assert value == pytest.approx(start[key], rel=1e-5), key
    assert main([str(exported[0]), str(tokenized), "--max-pairs", "9"]) == 0
    assert "masked tokens of 9 pairs" in capsys.readouterr().out.splitlines()[0]

    shutil.rmtree(tmp_path / "run" / "checkpoints")  # killed before its first checkpoint, and begun again
    run(worker_group(1), config.model_copy(update={"max_steps": 3}))
    assert [record["step"] for record in read_json_lines(tmp_path / "run" / "evaluations.jsonl")] == [0, 3]


def test_a_branch_evaluates_what_it_starts_from(
    worker_group: Callable[[int], WorkerGroup], tokenized: Path, tmp_path: Path
) -> None:
    run(worker_group(1), make_config(tokenized, tmp_path / "run", max_steps=2, workers=1))
    branch = {"resume_from": str(tmp_path / "run" / "checkpoints" / "step-00000002"), "evaluation": {"at_start": True}}
    run(worker_group(1), make_config(tokenized, tmp_path / "branch", max_steps=4, workers=1, **branch))
    assert [record["step"] for record in read_json_lines(tmp_path / "branch" / "evaluations.jsonl")] == [2, 4]


def test_a_model_without_next_sentences_tells_none(
    tokenized: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_data(tmp_path / "plain", next_sentence="none")
    masked_only, _ = write_export(tmp_path / "run", data=tmp_path / "plain")
    assert json.loads((masked_only / "config.json").read_text())["architectures"] == ["BertForMaskedLM"]
    assert main([str(masked_only), str(tokenized)]) == 0
    assert "next-sentence" not in capsys.readouterr().out


def test_what_does_not_fit_is_refused_in_one_line(
    exported: tuple[Path, BertForPretraining], tokenized: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_data(tmp_path / "other", size=500)
    run_folder = exported[0].parent
    for words, told in (
        ([tmp_path / "gone", tokenized], "gone: has no config.json; give the folder of an export"),
        ([run_folder, tokenized], "is a run directory, not a model; export it first"),
        ([exported[0], tokenized / "data"], f"is inside the data set {tokenized}; give the set itself"),
        ([exported[0], tmp_path / "other"], "its vocabulary"),
        ([exported[0], tokenized, "--max-pairs=0"], "--max-pairs=0: give at least 1"),
        ([exported[0], tokenized, "--device=cuda"], "--device=cuda: torch finds no GPU"),
    ):
        assert main(list(map(str, words))) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: ")
        assert error.count("\n") == 1
        assert told in error
