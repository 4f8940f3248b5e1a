"""Several workers train as one: the same updates up to rounding, by processes and by Ray Train."""

from __future__ import annotations

import json
import multiprocessing
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from pipeline.signals import StopRequest
from task_models import assert_same_run, make_config, write_opinions
from trainer.finetune import Result, finetune
from trainer.launch import WorkerError, processes
from trainer.train import Outcome

pytest.importorskip("sklearn", reason="metrics are by scikit-learn")
pytest.importorskip("seqeval", reason="metrics are by seqeval")


def write_tags(folder: Path) -> None:
    """Sentences with other numbers of words, so that ranks have other numbers of targets."""
    lines = [f"{'so ' * (n % 5)}kim was {'good' if n % 2 else 'bad'}".split() for n in range(33)]
    text = "\n".join("".join(f"{word}\t{'B-PER' if word == 'kim' else 'O'}\n" for word in line) for line in lines)
    for name in ("wnut17train.conll", "emerging.dev.conll"):
        (folder / name).write_text(text)


def test_two_processes_make_the_updates_of_one(model: Path, tmp_path: Path) -> None:
    """33 sentences in batches of 8: the last batch has one, so that one rank has nothing."""
    write_tags(tmp_path)
    results = []
    for workers, launcher in ((1, "none"), (2, "processes")):
        said: list[str] = []
        config = make_config(
            "wnut17", model=model, data=tmp_path, output=tmp_path / str(workers), epochs=2.0, workers=workers,
            launcher=launcher, device="cpu", optimizer={"learning_rate": 5e-4, "epsilon": 1e-3},
        )  # fmt: skip
        found = finetune(config, say=said.append)
        assert isinstance(found, Result)
        results.append(found)
        assert sum(line.startswith("step 10 of 10") for line in said) == 1, said
    assert results[0].metrics["dev"] == pytest.approx(results[1].metrics["dev"])
    weights = [load_file(tmp_path / name / "model" / "model.safetensors") for name in "12"]
    for name, value in weights[0].items():
        torch.testing.assert_close(value, weights[1][name], rtol=1e-4, atol=1e-5)
    steps = [
        [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()] for name in "12"
    ]
    assert [line["step"] for line in steps[0]] == list(range(1, 11))
    assert [line["loss"] for line in steps[0]] == pytest.approx([line["loss"] for line in steps[1]], rel=1e-4)
    files = [(tmp_path / name / "wnut17-dev.txt").read_text() for name in "12"]
    assert files[0] == files[1]


def test_several_workers_need_a_launcher(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="workers=2 need a launcher; set launcher=ray or launcher=processes"):
        make_config("sst2", model=model, data=tmp_path, output=tmp_path, workers=2)


def test_bad_data_in_a_worker_is_told_as_in_the_command(model: Path, tmp_path: Path) -> None:
    write_opinions(tmp_path)
    (tmp_path / "dev.tsv").write_text("sentence\tlabel\ngood\t2\n")
    config = make_config(
        "sst2", model=model, data=tmp_path, output=tmp_path / "out", launcher="processes", device="cpu"
    )
    with pytest.raises(ValueError, match=r"dev.tsv line 2: label is '2', not one of 0, 1"):
        finetune(config, say=lambda line: None)


def test_a_tracker_gets_every_step_once_although_the_run_was_stopped(model: Path, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    write_opinions(tmp_path / "data")
    config = make_config(
        "sst2", model=model, data=tmp_path / "data", output=tmp_path / "out", epochs=1.0, tracker="tensorboard",
        state_steps=2, device="cpu",
    )  # fmt: skip
    stop = StopRequest()
    stop.signal_number = 15
    assert finetune(config, say=lambda line: None, stop=stop) is None
    assert finetune(config, say=lambda line: None) is not None
    board = EventAccumulator(str(tmp_path / "out" / "tensorboard"))
    board.Reload()
    assert [event.step for event in board.Scalars("loss")] == [1, 2, 3, 4, 5, 6]
    steps = [json.loads(line)["step"] for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert steps == [1, 2, 3, 4, 5, 6]


def test_killed_workers_are_started_again_and_change_no_bit(model: Path, tmp_path: Path) -> None:
    write_tags(tmp_path)
    said: list[str] = []

    def kill(line: str) -> None:
        """SIGKILL of worker 0 when step 3 of 10 is taken, and of worker 1 when step 7 is taken, each once."""
        said.append(line)
        for step, rank in ((3, 0), (7, 1)):
            if line.startswith(f"step {step} of 10") and said.count(line) == 1:
                (child,) = [child for child in multiprocessing.active_children() if child.name == f"worker-{rank}"]
                child.kill()

    for name, say in (("whole", lambda line: None), ("hit", kill)):
        config = make_config(
            "wnut17", model=model, data=tmp_path, output=tmp_path / name, epochs=2.0, workers=2, launcher="processes",
            device="cpu", state_steps=1,
        )  # fmt: skip
        assert finetune(config, say=say) is not None
    losses = [line for line in said if "starting the workers again" in line]
    for rank, line in enumerate(losses):
        start = "starting the workers again from the checkpoint of step"
        assert re.match(rf"worker {rank} was lost: .*SIGKILL.*; {start} \d+ \(1 of max_restarts=3\)", line), said
    assert len(losses) == 2
    assert_same_run(tmp_path / "hit", tmp_path / "whole")


def test_losses_without_a_new_state_end_the_run(model: Path, tmp_path: Path) -> None:
    write_tags(tmp_path)
    killed: list[int] = []

    def kill(line: str) -> None:
        if "training examples" in line:
            (victim,) = [child for child in multiprocessing.active_children() if child.name == "worker-0"]
            victim.kill()
            killed.append(victim.pid or 0)

    config = make_config(
        "wnut17", model=model, data=tmp_path, output=tmp_path / "out", workers=1, launcher="processes", device="cpu",
        max_restarts=1,
    )  # fmt: skip
    with pytest.raises(WorkerError, match=r"worker 0 was lost: .*the same command continues"):
        finetune(config, say=kill)
    assert len(killed) == 2


def test_a_run_that_is_done_is_not_trained_again_if_a_worker_is_lost_at_its_end(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_opinions(tmp_path)
    calls: list[int] = []
    run = processes.run_in_processes

    def lose(*arguments: Any, **named: Any) -> Outcome:
        calls.append(1)
        run(*arguments, **named)
        raise WorkerError("worker 1 was lost")

    monkeypatch.setattr(processes, "run_in_processes", lose)
    config = make_config(
        "sst2", model=model, data=tmp_path, output=tmp_path / "out", epochs=1.0, launcher="processes", device="cpu"
    )
    assert finetune(config, say=lambda line: None) is not None
    assert len(calls) == 1


def test_workers_that_end_for_others_are_followed_by_them(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Ray when a node will go away: nobody asked the run to stop."""
    write_opinions(tmp_path)
    run = processes.run_in_processes
    outcomes = iter([Outcome(0, 3, finished=False)])

    def end_early(*arguments: Any, **named: Any) -> Outcome:
        return next(outcomes, None) or run(*arguments, **named)

    monkeypatch.setattr(processes, "run_in_processes", end_early)
    said: list[str] = []
    config = make_config(
        "sst2", model=model, data=tmp_path, output=tmp_path / "out", epochs=1.0, launcher="processes", device="cpu"
    )
    assert finetune(config, say=said.append) is not None
    assert said[0] == "starting the workers again from step 3"
