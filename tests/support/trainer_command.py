"""The trainer's command on a small set: fixtures `data` and `config_file`, and what a refusal prints.

A module that uses the fixtures imports both and lists them in __all__.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from small_runs import write_small_set
from trainer.run import main


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


def refusal(capfd: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line on stderr of a command that is refused."""
    assert main([str(argument) for argument in arguments]) == 2
    output = capfd.readouterr()
    assert "Traceback" not in output.out + output.err
    (line,) = output.err.splitlines()
    assert line.startswith("error: ")
    return line
