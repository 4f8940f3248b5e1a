"""A small data set, and the trainer's command on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from small_runs import write_small_set


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_set(tmp_path_factory.mktemp("data"))


@pytest.fixture
def config_file(data: Path, tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(
        f"data: {data}\noutput: {tmp_path / 'run'}\nmodel: {{size: tiny}}\nbatch: {{pairs: 8, lanes: 4}}\n"
        f"max_steps: 9\nworkers: 2\nprecision: fp32\nlauncher: processes\ndevice: cpu\nthreads_per_worker: 1\n"
        f"optimizer: {{learning_rate: 3e-3}}\nlogging: {{every_steps: 1}}\nevaluation: {{max_pairs: 16}}\n"
    )
    return path
