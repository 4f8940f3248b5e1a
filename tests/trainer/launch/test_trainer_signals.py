"""The command, launched as processes: failures, signals, lost workers, going on to the end."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from multiprocessing import resource_tracker
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.settings import ConfigError, load_settings
from pipeline.signals import StopRequest, stop_on_signals
from pipeline.storage.lease import hold
from small_runs import curve, make_config, run
from trainer import run as train_run
from trainer.checkpoint.load import find_checkpoints
from trainer.config.schema import TrainerConfig
from trainer.launch import processes
from trainer.launch.failures import WorkerError, WorkerFailure, raise_first
from trainer.launch.run_directory import write_config
from trainer.run import PROGRAM, main
from trainer.telemetry.metrics import read_json_lines
from trainer.train.link import Outcome
from trainer_command import refusal


def make_failure(rank: int, *, by_input: bool, time_s: float) -> WorkerFailure:
    return WorkerFailure(rank, f"from {rank}", by_input, "Traceback ...", time_s)


def test_the_first_cause_is_raised() -> None:
    raise_first([])
    with pytest.raises(WorkerError, match=r"worker 1 failed: from 1\nTraceback"):
        raise_first([make_failure(0, by_input=False, time_s=2.0), make_failure(1, by_input=False, time_s=1.0)])
    with pytest.raises(ConfigError, match="from 0"):  # rank 0 has heard what the others know
        raise_first([make_failure(1, by_input=True, time_s=1.0), make_failure(0, by_input=True, time_s=2.0)])
    with pytest.raises(ConfigError, match="from 1"):
        raise_first([make_failure(2, by_input=True, time_s=2.0), make_failure(1, by_input=True, time_s=1.0)])
    with pytest.raises(ConfigError, match="from 0"):
        raise_first([make_failure(0, by_input=True, time_s=2.0), make_failure(1, by_input=False, time_s=1.0)])


def test_the_cause_is_raised_although_rank_0_has_much_to_say_before_it() -> None:
    """As after the command was frozen: both have failed, and lines of 500 steps are in rank 0's pipe."""
    pipes = [multiprocessing.Pipe(duplex=False) for _ in range(2)]
    lines: list[str] = []
    for step in range(500):
        pipes[0][1].send(f"step {step}")
    for rank, (_, end) in enumerate(pipes):
        end.send(make_failure(rank, by_input=True, time_s=1.0))
        end.close()
    links = {start: rank for rank, (start, _) in enumerate(pipes)}
    with pytest.raises(ConfigError, match="from 0"):
        processes._listen(links, children=[], say=lines.append, stop=StopRequest())
    assert len(lines) == 500


def test_a_fault_that_rank_0_does_not_know_is_raised_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "INPUT_WAIT_S", 0.1)
    pipes = [multiprocessing.Pipe(duplex=False) for _ in range(2)]
    pipes[1][1].send(make_failure(1, by_input=True, time_s=1.0))
    pipes[1][1].close()
    links = {start: rank for rank, (start, _) in enumerate(pipes)}
    with pytest.raises(ConfigError, match="from 1"):
        processes._listen(links, children=[], say=print, stop=StopRequest())


def test_a_failure_says_whose_fault_it_is() -> None:
    for error, by_input in ((ValueError("a\nb"), True), (OSError(28, "No space"), True), (KeyError("x"), False)):
        try:
            raise error
        except Exception as caught:
            failure = WorkerFailure.of(caught, rank=3)
        assert (failure.rank, failure.by_input) == (3, by_input)
        assert "\n" not in failure.message
        assert type(error).__name__ in failure.traceback


def test_the_second_signal_interrupts() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with stop_on_signals() as stop:
        assert not stop
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop
        assert stop.signal_number == signal.SIGTERM
        os.kill(os.getpid(), signal.SIGTERM)  # from another program that ends the cluster too
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_the_lease_is_waited_for_names_itself_in_the_status(
    config_file: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, number: int, tmp_path: Path
) -> None:
    def say(line: str) -> None:
        print(line)
        if "waiting 60 s for a sign of life" in line:
            signal.raise_signal(number)

    monkeypatch.setattr(train_run, "say_at_once", say)
    with hold(tmp_path / "run", timeout_s=60, say=print, stop=StopRequest()):
        (claim,) = (tmp_path / "run" / "lease").glob("*.json")
        tree = json.loads(claim.read_text())
        claim.write_text(json.dumps({**tree, "holder": {**tree["holder"], "host": "elsewhere"}}))
        assert main(["--config", str(config_file)]) == 128 + number
    said = "terminated" if number == signal.SIGTERM else "interrupted"
    assert f"{said}; the same command goes on from the last checkpoint" in capfd.readouterr().err


def test_children_are_born_with_signals_blocked(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal that comes while they import would end them: no checkpoint, and a loss in place of status 130."""
    blocked: list[bool] = []

    class Child:
        def __init__(self, **_: object) -> None: ...

        def start(self) -> None:
            resource_tracker.getfd()  # type: ignore[attr-defined]  # as what starts a child does
            blocked.append(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))

        def is_alive(self) -> bool:
            return False

        def join(self) -> None: ...

    tracker = resource_tracker._resource_tracker  # type: ignore[attr-defined]
    context = SimpleNamespace(Pipe=multiprocessing.Pipe, Process=Child)
    done = Outcome(first_step=0, last_step=9, finished=True)
    with monkeypatch.context() as patch:
        patch.setattr(tracker, "_fd", None)
        patch.setattr(tracker, "_pid", None)
        patch.setattr(processes.multiprocessing, "get_context", lambda _: context)
        patch.setattr(processes, "_listen", lambda *_, **__: done)
        config = make_config(data, tmp_path / "run")
        assert processes.run_in_processes(config, say=print, stop=StopRequest()) == done
        os.close(tracker._fd)
    assert blocked == [True, True]
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def wait_for_steps(output: Path, count: int, *, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 300
    while len(read_json_lines(output / "metrics.jsonl")) < count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_signal_ends_a_run_with_a_checkpoint_and_the_same_command_finishes_it(
    config_file: Path, data: Path, repository: Path, tmp_path: Path, worker_group: object
) -> None:
    """The real command in real processes: SIGTERM, SIGKILL to all, then to the end; the curve is the whole one's.

    ray#22349, #63968: survivors of a lost node hang; the notice of pre-emption is not used.
    """
    output = tmp_path / "run"
    words = ["--config", str(config_file), "max_steps=60", "checkpoint.every_steps=10"]
    command = [sys.executable, str(repository / PROGRAM), *words]

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path)

    process = start()
    wait_for_steps(output, 3, process=process)
    process.send_signal(signal.SIGTERM)
    text, errors = process.communicate()
    assert process.returncode == 128 + signal.SIGTERM, errors
    steps = len(read_json_lines(output / "metrics.jsonl"))
    assert 3 <= steps < 60
    assert f"stopped at step {steps} of 60; the same command continues from there" in text
    assert [path.name for path in find_checkpoints(output).folders][-1] == f"step-{steps:08d}"

    process = start()
    wait_for_steps(output, steps + 2, process=process)
    process.kill()  # the parent alone: the workers must follow it
    process.communicate()
    assert_no_worker_of(process.pid)
    resumed_from = int(find_checkpoints(output).folders[-1].name.removeprefix("step-"))

    process = start()
    text, errors = process.communicate()
    assert process.returncode == 0, errors
    assert f"resumed at step {resumed_from} of 60" in text
    assert "held-out masked-LM loss" in text
    assert (output / "curve.png").stat().st_size > 10_000
    whole = make_config(data, tmp_path / "whole", max_steps=60)
    run(worker_group(2), whole)  # type: ignore[operator]
    assert curve(output) == curve(tmp_path / "whole")


def assert_no_worker_of(pid: int) -> None:
    deadline = time.monotonic() + 300
    while True:
        alive = []
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if f"parent_pid={pid}".encode() in entry.read_bytes():
                    alive.append(entry.parent.name)
            except OSError:  # it has just ended
                continue
        if not alive:
            return
        assert time.monotonic() < deadline, alive
        time.sleep(0.1)


def test_when_all_is_done_the_command_says_so_and_starts_nothing(
    config_file: Path, capfd: pytest.CaptureFixture[str], worker_group: object, tmp_path: Path
) -> None:
    config = load_settings(TrainerConfig, file=config_file)
    run(worker_group(2), config)  # type: ignore[operator]
    assert main(["--config", str(config_file)]) == 0
    text = capfd.readouterr().out
    assert "all 9 steps are done; nothing to train" in text
    assert "held-out masked-LM loss" in text
    assert str(tmp_path / "run" / "curve.png") in text
    assert len(find_checkpoints(tmp_path / "run").folders) == 1


def test_what_fails_in_a_worker_reaches_the_user_as_one_line(
    config_file: Path, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Every step diverges: the workers refuse in the midst of training."""
    line = refusal(
        capfd,
        *("--config", config_file, "optimizer.learning_rate=1e30", "optimizer.clip_norm=0", "schedule.name=constant"),
        "workers=1",
    )
    assert re.match(r"error: step \d: loss (nan|inf)", line)
    assert find_checkpoints(tmp_path / "run").folders == ()


def test_a_worker_that_is_lost_is_named(data: Path, tmp_path: Path) -> None:
    """ray#42008, #50874, #58870: one rank fails and the others wait for ever."""
    config = make_config(data, tmp_path / "run", max_steps=10_000)
    write_config(config)
    told: list[str] = []

    def say(line: str) -> None:
        told.append(line)
        if line.startswith("training from"):
            victims = [child for child in multiprocessing_children() if child.name == "worker-1"]
            os.kill(victims[0].pid or 0, signal.SIGKILL)

    with pytest.raises(WorkerError, match=r"worker 1 was lost: ended by signal 9 \(SIGKILL\); out of memory\?"):
        processes.run_in_processes(config, say=say, stop=StopRequest())
    assert multiprocessing_children() == []


def test_a_worker_that_is_lost_is_named_before_those_that_miss_it() -> None:
    """Their words may lie there before its end is looked at."""
    for _ in range(20):
        pipes = [multiprocessing.Pipe(duplex=False) for _ in range(2)]
        pipes[0][1].send(WorkerFailure(0, "Connection closed by peer", by_input=False, traceback="", time=1.0))
        for _, theirs in pipes:
            theirs.close()
        links = {ours: rank for rank, (ours, _) in enumerate(pipes)}
        ended: Any = SimpleNamespace(join=lambda timeout: None, exitcode=-signal.SIGKILL)
        with pytest.raises(WorkerError, match=r"worker 1 was lost: ended by signal 9"):
            processes._listen(links, children=[ended, ended], say=print, stop=StopRequest())


@pytest.mark.parametrize("by_input", [True, False])
def test_a_worker_that_fails_is_named_where_none_is_lost(by_input: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other still waits for it."""
    monkeypatch.setattr(processes, "LOSS_WAIT_S", 0.1)
    pipes = [multiprocessing.Pipe(duplex=False) for _ in range(2)]
    pipes[0][1].send(WorkerFailure(0, "no more", by_input=by_input, traceback="", time=1.0))
    pipes[0][1].close()
    links = {ours: rank for rank, (ours, _) in enumerate(pipes)}
    with pytest.raises(ConfigError if by_input else WorkerError, match="no more"):
        processes._listen(links, children=[], say=print, stop=StopRequest())


def test_a_message_that_breaks_off_is_the_end_of_its_worker() -> None:
    ours, theirs = multiprocessing.Pipe(duplex=False)
    os.write(theirs.fileno(), b"\0\0\1\0abc")
    theirs.close()
    assert processes._receive(ours) is None


def multiprocessing_children() -> list[object]:
    import multiprocessing

    return [child for child in multiprocessing.active_children() if child.name.startswith("worker-")]
