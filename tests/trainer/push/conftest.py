"""A run to publish, and where its exports wait."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest

from untrained_run import write_run


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
