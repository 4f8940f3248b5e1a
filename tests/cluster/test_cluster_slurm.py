"""The batch scripts for Slurm, run by bash with stand-ins for Slurm's and Ray's commands."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.render import render, validate_values
from filled_values import filled_tree

STAND_INS = {
    # Runs what follows the options, as one task.
    "srun": 'while [[ "$1" == -* ]]; do shift; done\nexec "$@"\n',
    "scontrol": 'if [ "$1" = show ]; then printf "node1\\nnode2\\n"; else echo "$@" >> "$RECORD/scontrol"; fi\n',
    "hostname": 'if [ "$1" = --ip-address ]; then echo 127.0.1.1; else echo "127.0.0.1 10.1.2.3 fd00::1"; fi\n',
    "ray": 'echo "$RAY_TMPDIR $*" > "$RECORD/ray"\n[ -z "${NO_RAY:-}" ] || exit 0\nsleep "${RAY_STARTS_S:-0}"\n'
    'while [ "$1" != -- ]; do shift; done\nshift\nexec "$@"\n',
    # The job: it writes its checkpoint at SIGTERM, and by itself after a while.
    "python": 'if [ "$1" = -c ]; then echo token; exit 0; fi\n'
    'trap \'echo checkpoint > "$RECORD/checkpoint"; exit "${AT_TERM:-143}"\' TERM\n'
    'echo "$@" > "$RECORD/job"\nfor _ in $(seq 600); do sleep 0.05; done\nexit 9\n',
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkout with the stand-ins in .venv/bin, and the two scripts made for it."""
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    for name, text in STAND_INS.items():
        path = tmp_path / ".venv" / "bin" / name
        path.write_text(f"#!/usr/bin/env bash\n{text}", encoding="ascii")
        path.chmod(0o755)
    values = validate_values("slurm", filled_tree("slurm"), origin="test")
    here = values.model_copy(update={"repository": str(tmp_path)})  # which the values refuse: it is in /tmp
    for name, text in render("slurm", here).items():
        (tmp_path / Path(name).name).write_text(text, encoding="utf-8")
    return tmp_path


@pytest.fixture
def started(folder: Path) -> Iterator[Any]:
    """A function that starts a script; what still runs at the end is ended."""
    processes: list[subprocess.Popen[str]] = []

    def start(script: str = "train.sbatch", **variables: str) -> subprocess.Popen[str]:
        environment = {
            **os.environ,
            "RECORD": str(folder),
            "SLURM_JOB_ID": "4000123",
            "SLURM_JOB_NODELIST": "node[1-2]",
        }
        environment |= {"SLURM_JOB_NUM_NODES": "4", "SLURM_CPUS_PER_TASK": "96", **variables}
        # Slurm's commands are elsewhere on a node; the script itself puts .venv/bin first.
        process = subprocess.Popen(
            ["bash", str(folder / script)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def wait_for(path: Path) -> None:
    """Wait until a file exists."""
    deadline = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} does not come"
        time.sleep(0.02)


def requeued(folder: Path) -> str:
    """What the script said to `scontrol`, other than questions."""
    path = folder / "scontrol"
    return path.read_text(encoding="ascii").strip() if path.exists() else ""


@pytest.mark.parametrize("script", ["train.sbatch", "preprocess.sbatch"])
def test_near_the_time_limit_the_job_stops_and_goes_back_into_the_queue(
    folder: Path, started: Any, script: str
) -> None:
    process = started(script)
    wait_for(folder / "job")
    process.send_signal(signal.SIGUSR1)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 0, output
    assert (folder / "checkpoint").exists()
    assert requeued(folder) == "requeue 4000123"
    assert not list(folder.glob(".slurm-driver-*"))


def test_a_task_of_an_array_puts_only_itself_back(folder: Path, started: Any) -> None:
    """The last task of an array has the array's id as its own (Slurm's job_array page)."""
    process = started(SLURM_JOB_ID="4000123", SLURM_ARRAY_JOB_ID="4000123", SLURM_ARRAY_TASK_ID="3")
    wait_for(folder / "job")
    process.send_signal(signal.SIGUSR1)
    process.communicate(timeout=30)
    assert requeued(folder) == "requeue 4000123_3"


def test_scancel_with_a_signal_to_the_batch_shell_stops_for_good(folder: Path, started: Any) -> None:
    process = started()
    wait_for(folder / "job")
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 143, output
    assert (folder / "checkpoint").exists()
    assert requeued(folder) == ""


def test_a_signal_before_the_command_runs_is_passed_on_later(folder: Path, started: Any) -> None:
    process = started(RAY_STARTS_S="2")
    wait_for(folder / "ray")
    process.send_signal(signal.SIGUSR1)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    assert requeued(folder) == "requeue 4000123", "the command ended with status 143"


@pytest.mark.parametrize("status", [0, 2])
def test_a_job_that_ends_by_itself_at_the_time_limit_is_not_run_again(folder: Path, started: Any, status: int) -> None:
    process = started(AT_TERM=str(status))
    wait_for(folder / "job")
    process.send_signal(signal.SIGUSR1)
    process.communicate(timeout=30)
    assert process.returncode == status
    assert requeued(folder) == ""


def test_the_second_signal_of_the_time_limit_and_a_failed_trap_change_nothing(folder: Path, started: Any) -> None:
    """The command has gone when the signal comes: `kill` in the trap fails, and the script still ends in order."""
    (folder / ".venv" / "bin" / "python").write_text(
        '#!/usr/bin/env bash\nif [ "$1" = -c ]; then echo token; exit 0; fi\n'
        'echo 99999999 > "$RECORD/.slurm-driver-4000123.pid"\n'
        'echo > "$RECORD/job"\nsleep 2\nexit 0\n',
        encoding="ascii",
    )
    process = started()
    wait_for(folder / "job")
    process.send_signal(signal.SIGUSR1)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 0, output
    assert "the command did not get the signal" in output
    assert requeued(folder) == ""


def test_a_ray_that_does_not_start_is_a_failure(started: Any) -> None:
    """`ray symmetric-run` ends with status 0 if `ray start` fails (ray 2.60, scripts/symmetric_run.py)."""
    process = started(NO_RAY="1")
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "error: the command never started" in output


def test_ray_gets_an_address_of_the_first_node_and_a_folder_of_the_job(folder: Path, started: Any) -> None:
    process = started()
    wait_for(folder / "job")
    words = (folder / "ray").read_text(encoding="ascii").split()
    assert words[0] == "/tmp/cloze-4000123"
    assert words[1:4] == ["symmetric-run", "--address", "10.1.2.3:20123"]
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)


def test_preprocessing_runs_on_its_own_partition_with_its_resource(folder: Path) -> None:
    text = (folder / "preprocess.sbatch").read_text(encoding="utf-8")
    assert "--partition=mine\n" in text
    assert "--gpus-per-node" not in text
    assert "--num-cpus=64 --num-gpus=0 --resources='{\"preprocessing\":64}'" in text
    assert "exec python pipeline/run.py --config" in text
