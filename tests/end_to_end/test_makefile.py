"""What make is told reaches the commands, whole, or is refused. Nothing is run: make -n prints."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


PYTHON = ".venv/bin/python"


def make(*words: str, dry_run: bool = True) -> subprocess.CompletedProcess[str]:
    # `make test ARGS=...` hands its variables on, itself and in MAKEFLAGS; below another make (MAKELEVEL) make prints
    # folders
    of_make = ("MAKEFLAGS", "MAKEOVERRIDES", "MAKELEVEL", "MFLAGS", "ARGS")
    outside = {key: value for key, value in os.environ.items() if key not in of_make}
    command = ["make", *(["-n"] if dry_run else []), *words]
    return subprocess.run(command, cwd=ROOT, env=outside, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["preprocess", "CONFIG=a.yaml", "output=/x"],
            "does not take output=/x; it takes ARGS= CONFIG=; give settings",
        ),
        (["preprocess", "CONFG=a.yaml"], "make preprocess does not take CONFG=a.yaml; it takes ARGS= CONFIG=; give"),
        (["estimate", "workers=2", "seed=1"], 'give settings as ARGS="'),
        (["train", "RUN=runs/mine"], "make train does not take RUN=runs/mine; it takes ARGS= CONFIG=;"),
        (["status", "ARGS=x"], "make status does not take ARGS=x; it takes JOB= RAY_ADDRESS=;"),
        (["status", "SET=east"], "make status does not take SET=east; it takes JOB= RAY_ADDRESS=;"),
        (["evaluate", "RUN=runs/mine"], "make evaluate does not take RUN=runs/mine; it takes ARGS= DATA= MODEL= OUT=;"),
        (["push", "MODEL=models/mine"], "make push does not take MODEL=models/mine; it takes ARGS= REPO= RUN=;"),
        (["preprocess", "LANGUAGE=ko"], "make preprocess does not take LANGUAGE=ko; it takes ARGS= CONFIG=;"),
        (["check", "ARGS=x"], "make check does not take ARGS=x; put environment variables before make"),
    ],
)
def test_what_a_target_would_ignore_is_refused(words: list[str], told: str) -> None:
    result = make(*words)
    assert result.returncode == 2
    assert told in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (
            ["preprocess", "CONFIG=my texts/it's.yaml", "ARGS=workers=2 output=/x"],
            [PYTHON, "pipeline/run.py", "--config", "my texts/it's.yaml", "workers=2", "output=/x"],
        ),
        (
            ["export", "RUN=my run", "OUT=my model", "ARGS=--step 7"],
            [PYTHON, "-m", "trainer.export", "my run", "my model", "--step", "7"],
        ),
        (["export", "RUN=my run"], [PYTHON, "-m", "trainer.export", "my run", "my run/export"]),
        (
            ["submit", "CONFIG=a b.yaml", "JOB=my job", "RAY_ADDRESS=http://head:8265"],
            [PYTHON, "-m", "cluster.submit", "--id", "my job", "train", "--config", "a b.yaml"],
        ),
        (["logs", "JOB=my job"], [PYTHON, "-m", "cluster.submit", "logs", "my job"]),
        (["cluster", "SET=my sets/a.yaml"], [PYTHON, "-m", "cluster.render", "my sets/a.yaml"]),
        (["check-cluster", "SET=east", "ARGS=--ready"], [PYTHON, "-m", "cluster.check", "east", "--ready"]),
        (
            ["evaluate", "MODEL=my model/", "DATA=my tasks", "ARGS=seeds=3"],
            [
                PYTHON,
                *["-m", "trainer.finetune", "--task", "all", "--model"],
                "my model/",
                "--data",
                "my tasks",
                "--output",
                "my model-tasks",
                "seeds=3",
            ],
        ),
        (["bench-trainer", "DATA=my set"], ["python", "-m", "bench.trainer", "my set"]),
    ],
)
def test_a_path_with_spaces_stays_one_word(words: list[str], command: list[str]) -> None:
    result = make(*words, "PYTHON=python3")
    assert result.returncode == 0, result.stderr
    assert shlex.split(result.stdout.splitlines()[-1]) == command


def test_every_target_of_the_sample_can_be_planned() -> None:
    assert make("pretrain").returncode == 0
    assert "make pretrain takes no CONFIG" in make("pretrain", "CONFIG=it's.yaml").stdout


def test_the_korean_sample_has_a_whole_path_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    # -o setup: the environment of this checkout is as it is
    plan = make("pretrain", "LANGUAGE=ko", "-o", "setup").stdout.splitlines()
    assert [shlex.split(line) for line in plan[-5:]] == [
        [PYTHON, "-m", "pipeline.download", "sample", "data/sample-ko", "ko"],
        [PYTHON, "pipeline/run.py", "--config", "pipeline/configs/sample_ko.yaml"],
        [PYTHON, "trainer/run.py", "--config", "trainer/configs/sample_ko.yaml"],
        [PYTHON, "-m", "trainer.export", "runs/sample-ko", "runs/sample-ko/export"],
        [PYTHON, "-m", "trainer.demonstrate", "runs/sample-ko/export", "--held-out", "data/sample-ko-set"],
    ]
    english = make("pretrain", "-o", "setup").stdout
    monkeypatch.setenv("LANGUAGE", "ko:en")  # gettext's
    assert make("pretrain", "-o", "setup").stdout == english
    assert "-ko" not in english


def test_a_language_without_a_sample_is_refused() -> None:
    refused = make("-o", "setup", "sample", "LANGUAGE=kr", dry_run=False)
    assert refused.returncode == 2
    assert "LANGUAGE=... is the language of the sample: en or ko" in refused.stderr
