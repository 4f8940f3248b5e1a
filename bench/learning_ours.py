"""Our runs for bench/learning.py: starts trainer/run.py as users do, and reads the losses from its metrics.jsonl."""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import yaml

from bench.learning_tasks import TIMED, Curve, Task
from trainer.telemetry import EVALUATIONS_NAME, METRICS_NAME, read_json_lines

ROOT = Path(__file__).resolve().parent.parent
POLL_S = 0.2


def train_ours(task: Task, *, environment: Mapping[str, str], log: IO[str]) -> Curve:
    """Train with trainer/run.py and return the run's curve, without the entries of `describe_run`.

    The run `resume` is stopped halfway by SIGTERM and started again by the same command. Raises RuntimeError if steps
    or evaluations are missing at the end.
    """
    folder = Path(tempfile.mkdtemp(prefix="bench-"))
    try:
        run = folder / "run"
        (folder / "run.yaml").write_text(yaml.safe_dump({**task.settings(), "output": str(run)}))
        command = [sys.executable, "trainer/run.py", "--config", str(folder / "run.yaml")]
        start = Start(command, run=run, environment=environment, log=log)
        stops: list[int] = []
        if task.part == "resume":
            start.go(stop_at=task.steps // 2)
            stops.append(len(read_json_lines(run / METRICS_NAME)))
        start.go(seconds=task.seconds if task.part == "time" else math.inf)
        steps, evaluations = read_json_lines(run / METRICS_NAME), read_json_lines(run / EVALUATIONS_NAME)
    finally:
        shutil.rmtree(folder)
    curve = {"mlm": [step["mlm_loss"] for step in steps], "nsp": [step["nsp_loss"] for step in steps]}
    if task.part in TIMED:
        if not evaluations:
            raise RuntimeError(f"trainer/run.py ended at step {len(steps)} without an evaluation")
        return curve | time_evaluations(steps, evaluations, began_s=start.first_s)
    if [step["step"] for step in steps] != list(range(1, task.steps + 1)):
        raise RuntimeError(f"trainer/run.py left {len(steps)} of {task.steps} steps")
    return curve | {"stops": stops, "took_s": sum(step["step_s"] for step in steps[1:])}


class Start:
    """Starts one command, as often as `go` is called."""

    def __init__(self, command: Sequence[str], *, run: Path, environment: Mapping[str, str], log: IO[str]) -> None:
        self._command, self._run, self._environment, self._log = command, run, environment, log
        self.first_s = math.nan
        """Seconds from the last start of the command to the end of its first step."""

    def go(self, *, stop_at: float = math.inf, seconds: float = math.inf) -> None:
        """Run the command to its end, or stop it by SIGTERM.

        It is stopped once its run has done `stop_at` steps, or has trained for `seconds` since the end of its first
        step.
        """
        metrics = self._run / METRICS_NAME
        before, begun, told = count_lines(metrics), time.perf_counter(), False
        self.first_s = math.nan
        process = subprocess.Popen(
            self._command, cwd=ROOT, env=self._environment, stdout=self._log, stderr=subprocess.STDOUT
        )
        while process.poll() is None:
            made = count_lines(metrics)
            if made > before and math.isnan(self.first_s):
                self.first_s = time.perf_counter() - begun
            if not told and (made >= stop_at or (math.isfinite(seconds) and clock_of(metrics) >= seconds)):
                told = True
                process.terminate()
            time.sleep(POLL_S)
        if process.returncode != (143 if told else 0):
            print(f"{' '.join(self._command)}: exit status {process.returncode}", file=self._log, flush=True)


def clock_of(metrics: Path) -> float:
    """Return the sum of the times of all steps but the first, in seconds."""
    return float(sum(step["step_s"] for step in read_json_lines(metrics)[1:]))


def time_evaluations(
    steps: Sequence[Mapping[str, Any]], evaluations: Sequence[Mapping[str, Any]], *, began_s: float
) -> Curve:
    """Return the evaluations with their times "time_s", and the times of start-up and training, in seconds.

    "time_s" counts from the end of the first step and leaves out evaluations. `began_s` is the time from the start of
    the command to the end of the first step.
    """
    clock, times = 0.0, {}
    for step in steps:
        clock += step["step_s"] if step["step"] > 1 else 0.0
        times[step["step"]] = clock
    first = steps[0]["step_s"]
    keys = ("step", "mlm_loss", "pairs", "masked")
    return {
        "evaluations": [{key: each[key] for key in keys} | {"time_s": times[each["step"]]} for each in evaluations],
        "start_up_s": began_s - first,
        "first_step_s": first,
        "took_s": clock,
    }


def count_lines(path: Path) -> int:
    """Return the number of lines of a file, or 0 if the file does not exist yet."""
    return path.read_bytes().count(b"\n") if path.exists() else 0
