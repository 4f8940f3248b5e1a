"""Real commands on a tiny data set, watched from outside: what they say, their worker processes, what they leave."""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import psutil

from pipeline import storage
from pipeline.dataset.manifest import Manifest
from processes import command_of
from ray_head import AS_OTHERS
from synthetic import write_data_set
from trainer.checkpoint.format import checkpoints_folder, find_checkpoints, step_of

REPOSITORY = Path(__file__).resolve().parent.parent.parent
MARK = "CLOZE_CHAOS"
"""Environment variable by which everything that a run starts can be found again."""
PROGRAM = "trainer/run.py"
MAX_STEPS, EVERY_STEPS = 60, 5
WAIT_S = 600.0
"""Longest wait for anything; far more than it takes."""
STARTED = re.compile(r"^(?:resumed at|training from) step (\d+) of")
STEP = re.compile(r"^step +(\d+)/\d+ ")
SETTINGS = (
    *(f"max_steps={MAX_STEPS}", f"checkpoint.every_steps={EVERY_STEPS}", "checkpoint.keep_last=4"),
    *("model.size=tiny", "batch.pairs=8", "batch.lanes=4", "workers=2", "precision=fp32", "device=cpu"),
    *("threads_per_worker=1", "optimizer.learning_rate=3e-3", "evaluation.max_pairs=16", "collective_timeout_s=60"),
    *("logging.every_steps=1", "logging.row_ids=true", "logging.tracker=none"),
)


T = TypeVar("T")


class ChaosError(AssertionError):
    """A run did not do what the fault waits for."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line that a command printed."""

    time: float
    command: int
    """Which command of the run."""
    text: str


class Command:
    """One process of the command, in a session of its own; its lines go to the run."""

    def __init__(self, words: list[str], *, environment: Mapping[str, str], number: int, lines: list[Line]) -> None:
        self.number = number
        self.process = subprocess.Popen(
            words,
            env=dict(environment),
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._thread = threading.Thread(target=self._read, args=(lines,), daemon=True)
        self._thread.start()

    def _read(self, lines: list[Line]) -> None:
        assert self.process.stdout is not None
        for text in self.process.stdout:
            lines.append(Line(time.monotonic(), self.number, text.rstrip("\n")))

    def wait(self) -> int:
        """The exit status, once everything that it printed is read."""
        try:
            status = self.process.wait(WAIT_S)
        except subprocess.TimeoutExpired as error:
            self.process.kill()
            raise ChaosError(f"the command did not end in {WAIT_S:.0f} s") from error
        self._thread.join(10)
        return status


@dataclass
class Run:
    """One run directory and the commands given for it, one after another or two at once."""

    stage: Stage
    name: str
    data: Path
    output: Path
    """The run directory; of a run on a store, what `fetch` copies of it."""
    target: str | None = None
    """URL of the run directory, where that is on a store."""
    mark: str = field(default_factory=lambda: secrets.token_hex(8))
    lines: list[Line] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)

    def start(self, *settings: str, **environment: str) -> Command:
        """Give the command; `settings` come after those of every run."""
        if self.stage.fork:
            environment = {**environment, "CHAOS_FORK": "1"}
        program = "tests/chaos/poisoned_run.py" if any(key.startswith("CHAOS_") for key in environment) else PROGRAM
        launcher = () if any(word.startswith("launcher=") for word in settings) else ("launcher=processes",)
        words = [f"data={self.data}", f"output={self.target or self.output}", *SETTINGS, *launcher, *settings]
        command = Command(
            [sys.executable, program, *("--config", str(self.stage.config_file), *words)],
            environment={**self.stage.environment, **environment, MARK: self.mark},
            number=len(self.commands),
            lines=self.lines,
        )
        self.commands.append(command)
        return command

    def wait_for(self, pattern: str, *, since: float = 0.0) -> Line:
        """The first line from `since` on that matches."""
        return self._await(f"a line like {pattern!r}", lambda: next(self._matching(pattern, since=since), None))

    def wait_for_step(self, step: int, *, since: float = 0.0) -> float:
        """When that step or a later one was first reported from `since` on."""

        def look() -> float | None:
            return next((when for when, done in self._steps() if when >= since and done >= step), None)

        return self._await(f"step {step}", look)

    def finish(self) -> int:
        """Exit status of the last command."""
        return self.commands[-1].wait()

    def executed(self) -> list[int]:
        """Steps in the order in which the commands reported them."""
        return [step for _, step in self._steps()]

    def seconds_to_next_step(self, since: float) -> float | None:
        """From `since` to the first step of the workers that were started after it."""
        start = next((line.time for line in self.lines if line.time >= since and STARTED.match(line.text)), None)
        if start is None:
            return None
        step = next((when for when, _ in self._steps() if when >= start), None)
        return None if step is None else step - since

    def says(self, pattern: str) -> bool:
        """Whether any line matches."""
        return next(self._matching(pattern, since=0.0), None) is not None

    def workers(self) -> list[psutil.Process]:
        """The worker processes of the last command, rank 0 first; [] while they are not all there."""
        found = []
        try:
            for child in psutil.Process(self.commands[-1].process.pid).children(recursive=True):
                if "spawn_main" in command_of(child) or self._is_fork(child):
                    found.append(child)
        except psutil.NoSuchProcess:
            return []
        return sorted(found, key=lambda child: (child.create_time(), child.pid))

    def wait_for_worker(self, rank: int) -> psutil.Process:
        """The process of a rank, as soon as it is there."""

        def look() -> psutil.Process | None:
            found = self.workers()
            return found[rank] if len(found) == 2 else None

        return self._await(f"the process of rank {rank}", look)

    def wait_for_save(self, *, after: int) -> Path:
        """The temporary folder of a checkpoint of a step above `after`, while it is being written."""

        def look() -> Path | None:
            try:
                names = os.listdir(checkpoints_folder(self.output))
            except FileNotFoundError:
                return None
            steps = {name: int(name.split("-")[2]) for name in names if name.startswith(".tmp-step-")}
            new = next((name for name, step in steps.items() if step > after), None)
            return None if new is None else checkpoints_folder(self.output) / new

        return self._await("a save", look, pause_s=0.0005)

    def newest_step(self) -> int:
        """Step of the newest committed checkpoint; 0 for none."""
        folders = find_checkpoints(self.target or self.output).folders
        return step_of(folders[-1]) if folders else 0

    def fetch(self) -> None:
        """Copy from the store what is compared and judged."""
        for file in storage.list_files(self.target or self.output):
            if self.target is not None and not file.name.endswith(".safetensors"):
                storage.fetch_file(f"{self.target}/{file.name}", self.output / file.name)

    def remains(self) -> list[psutil.Process]:
        """Processes that the run's commands started and that still live."""
        return marked(f"{MARK}={self.mark}")

    def end(self) -> None:
        """End what may be left, for a fault that did not go as it should."""
        for process in self.remains():
            process.kill()

    def _steps(self) -> Iterator[tuple[float, int]]:
        for line in list(self.lines):
            match = STEP.match(line.text)
            if match is not None:
                yield line.time, int(match[1])

    def _matching(self, pattern: str, *, since: float) -> Iterator[Line]:
        return (line for line in list(self.lines) if line.time >= since and re.search(pattern, line.text))

    def _is_fork(self, child: psutil.Process) -> bool:
        parent = child.parent()
        return "forkserver" in command_of(child) and parent is not None and "forkserver" in command_of(parent)

    def _await(self, what: str, look: Callable[[], T | None], *, pause_s: float = 0.005) -> T:
        deadline = time.monotonic() + WAIT_S
        while True:
            ended = all(command.process.poll() is not None for command in self.commands)
            found = look()
            if found is not None:
                return found
            if ended or time.monotonic() > deadline:
                said = "\n".join(line.text for line in self.lines[-20:])
                raise ChaosError(f"{self.name}: {what} did not come{' before the command ended' * ended}:\n{said}")
            time.sleep(pause_s)


@dataclass
class Stage:
    """Where the faults are played: a folder with a data set and the uninterrupted run that others are compared with."""

    folder: Path
    fork: bool = False
    """Workers are forked from a server that has loaded torch once; only launcher=processes. For a quick look."""
    runs: list[Run] = field(default_factory=list)
    """All that were made."""

    @cached_property
    def config_file(self) -> Path:
        """Says next to nothing: the settings are words of the command."""
        path = self.folder / "config.yaml"
        path.write_text(f"max_steps: {MAX_STEPS}\n")
        return path

    @cached_property
    def environment(self) -> dict[str, str]:
        """Of the commands."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
        return {
            **kept,
            "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'tests'}:{REPOSITORY / 'tests' / 'support'}",
            "PYTHONUNBUFFERED": "1",
            "DS_ACCELERATOR": "cpu",
            "TOKENIZERS_PARALLELISM": "false",
            "RAY_USAGE_STATS_ENABLED": "0",
            **AS_OTHERS,
        }

    @cached_property
    def manifest(self) -> Manifest:
        """Of the data set."""
        return self.write_data(self.data)

    @property
    def data(self) -> Path:
        """Folder of the data set that nobody changes."""
        return self.folder / "data"

    def write_data(self, folder: Path) -> Manifest:
        """120 training rows in 4 row groups, some held out: an epoch is about 15 steps."""
        return write_data_set(folder, shards=2, row_groups=2, rows=30, max_seq_length=32, vocabulary_size=256)

    @cached_property
    def reference(self) -> Run:
        """The uninterrupted run."""
        run = self.make_run("uninterrupted")
        run.start()
        if run.finish() != 0:
            raise ChaosError("\n".join(line.text for line in run.lines))
        return run

    def make_run(
        self, name: str, *, own_data: bool = False, output: Path | None = None, target: str | None = None
    ) -> Run:
        """A new run; with `own_data` on a data set that may be damaged, with `target` on a store."""
        _ = self.manifest
        folder = self.folder / name
        folder.mkdir()
        data = self.data
        if own_data:
            data = folder / "data"
            self.write_data(data)
        self.runs.append(Run(self, name, data=data, output=output or folder / "run", target=target))
        return self.runs[-1]


def marked(variable: str) -> list[psutil.Process]:
    """Processes that were born with an environment variable, given as NAME=value."""
    found = []
    for process in psutil.process_iter():
        try:  # not process.environ(): Ray's agents write their title over the first variables
            if variable.encode() in Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0"):
                found.append(process)
        except OSError:  # it has just ended, or is another user's
            continue
    return [process for process in found if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


def kill(process: psutil.Process) -> float:
    """SIGKILL; returns when."""
    now = time.monotonic()
    process.send_signal(signal.SIGKILL)
    return now
