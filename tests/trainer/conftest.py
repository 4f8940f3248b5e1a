"""A small data set and the trainer's command on it; a data set with a tokenizer, and the export of a run on it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from small_runs import write_small_set
from trainer.model import BertForPretraining
from untrained_run import write_data, write_export


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


@pytest.fixture(scope="session")
def tokenized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set with real tokenizer files; tests copy it before they change it."""
    root = tmp_path_factory.mktemp("tokenized")
    write_data(root)
    return root


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory, tokenized: Path) -> tuple[Path, BertForPretraining]:
    """An export of a run that was not trained, and its model; tests copy it before they change it."""
    return write_export(tmp_path_factory.mktemp("run"), data=tokenized)


@pytest.fixture
def folder(exported: tuple[Path, BertForPretraining], tmp_path: Path) -> Path:
    """A copy of the export, to be changed."""
    return Path(shutil.copytree(exported[0], tmp_path / "model"))
