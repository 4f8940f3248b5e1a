"""Several workers train as one: the same updates up to rounding, by processes and by Ray Train."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from pipeline.signals import StopRequest
from task_models import make_config, write_opinions
from trainer.finetune import Result, finetune

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
