"""Jobs submitted to a Ray head, which is started for the test and ended by process ids."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipeline.settings import load_settings
from ray_head import Head
from small_runs import curve, run, write_small_set
from trainer.checkpoint.load import list_checkpoints
from trainer.config.schema import TrainerConfig
from trainer.telemetry.metrics import read_json_lines
from worker_group import WorkerGroup

MAX_STEPS = 150
"""Far more than are taken while a request to stop is on its way."""


@pytest.fixture
def head(repository: Path) -> Iterator[Head]:
    made = Head(repository)
    yield made
    made.close()


@pytest.mark.ray
def test_a_stopped_job_is_continued_by_one_with_uploaded_code(
    head: Head, repository: Path, tmp_path: Path, worker_group: Callable[[int], WorkerGroup]
) -> None:
    """`ray job submit -- python trainer/run.py`, `ray job stop`, then `ray job submit --working-dir .`.

    ray#45516, #46814: after the loss of the head a run starts again from epoch 1.
    """
    data, output = tmp_path / "data", tmp_path / "run"
    write_small_set(data)
    settings = [
        *(f"data={data}", f"output={output}", f"max_steps={MAX_STEPS}", "batch.pairs=8", "batch.lanes=4"),
        *("logging.tracker=none", "evaluation.max_pairs=16", "checkpoint.every_steps=1000"),
        *("threads_per_worker=1", "workers=1"),
    ]
    head.submit("--no-wait", "--submission-id=first", "--", sys.executable, "trainer/run.py", *settings)
    deadline = time.monotonic() + 600
    while len(read_json_lines(output / "metrics.jsonl")) < 3:
        assert time.monotonic() < deadline, head.call("job", "logs", "first")
        time.sleep(0.1)
    head.call("job", "stop", "first")
    steps = len(read_json_lines(output / "metrics.jsonl"))
    assert 3 <= steps < MAX_STEPS
    assert [path.name for path in list_checkpoints(output)] == [f"step-{steps:08d}"]
    assert f"stopped at step {steps} of {MAX_STEPS}" in head.call("job", "logs", "first")

    copy = tmp_path / "copy"
    for package in ("pipeline", "trainer"):
        shutil.copytree(repository / package, copy / package, ignore=shutil.ignore_patterns("__pycache__"))
    worker = copy / "trainer" / "train" / "worker.py"
    worker.write_text(worker.read_text().replace('"resumed at step', '"uploaded code resumed at step'))
    text = head.call("job", "submit", "--working-dir=.", "--", sys.executable, "trainer/run.py", *settings, cwd=copy)
    assert f"uploaded code resumed at step {steps} of {MAX_STEPS}" in text
    assert "succeeded" in text
    settled = load_settings(TrainerConfig, file=output / "config.yaml")
    whole = settled.model_copy(update={"output": str(tmp_path / "whole"), "device": "cpu", "launcher": "processes"})
    run(worker_group(1), whole)
    assert curve(output) == curve(tmp_path / "whole")
