"""One job at a time in a run directory: refused, waited for, taken over, fenced."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from torch import nn

from pipeline.signals import StopRequest
from pipeline.storage.lease import (
    LEASE_NAME,
    LOCK_NAME,
    LeaseError,
    beat_once,
    held,
    hold,
    refuse_if_alive,
    release,
    take,
)
from small_runs import check_output, make_config
from synthetic import write_data_set
from trainer.checkpoint.load import CheckpointError, CheckpointWriter, find_checkpoints
from trainer.engine.engine import Engine
from trainer.launch import preflight
from trainer.launch.run_directory import write_config
from untrained_run import _StillEngine


def never(_seconds: float) -> None:
    raise AssertionError("waited for a job that is known to be gone")


class Clock:
    """A clock that only sleeping moves; `at_sleep` is called with the number of each sleep."""

    def __init__(self, at_sleep: Callable[[int], object] = lambda count: None) -> None:
        self.now, self.count, self.at_sleep = 0.0, 0, at_sleep

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.count += 1
        self.at_sleep(self.count)


def acquire(folder: Path, *, said: list[str] | None = None, clock: Clock | None = None, **changes: Any) -> str:
    moves: dict[str, Any] = {"sleep": never} if clock is None else {"sleep": clock.sleep, "clock": lambda: clock.now}
    say = (said if said is not None else []).append
    return take(folder, timeout_s=60, say=say, stop=changes.get("stop", StopRequest()), **moves).token


def edit(folder: Path, **changes: Any) -> None:
    path = folder / LEASE_NAME
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_second_job_is_refused_while_the_first_lives(tmp_path: Path) -> None:
    """kuberay#1023, #3860, #5211: retries overlap; a second run on the same output is refused."""
    token = acquire(tmp_path)
    message = (
        rf"output={tmp_path}: another job trains in it \(process {os.getpid()} on .*, since .*\); wait for its end"
    )
    with pytest.raises(LeaseError, match=message):
        acquire(tmp_path)
    with pytest.raises(LeaseError, match=message):
        refuse_if_alive(tmp_path)
    release(tmp_path, token=token)
    refuse_if_alive(tmp_path)
    assert acquire(tmp_path) != token


def test_the_command_refuses_before_anything_starts(tmp_path: Path) -> None:
    write_data_set(tmp_path / "data", rows=10, max_seq_length=32, vocabulary_size=256)
    config = make_config(tmp_path / "data", tmp_path / "run")
    (tmp_path / "run").mkdir()
    token = acquire(tmp_path / "run")
    assert check_output(config) == []  # a lease alone makes no run
    write_config(config)
    with pytest.raises(LeaseError, match="another job trains in it"):
        preflight.check(config)
    release(tmp_path / "run", token=token)
    assert preflight.check(config).lines


def test_a_job_whose_process_is_gone_is_succeeded_at_once(tmp_path: Path, repository: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path\n"
        "from pipeline.signals import StopRequest; from pipeline.storage.lease import take\n"
        "take(Path(sys.argv[1]), timeout_s=60, say=print, stop=StopRequest())\n"
        "print('taken', flush=True); time.sleep(99)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE, text=True, cwd=repository
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "taken\n"
    with pytest.raises(LeaseError, match=f"process {process.pid} on"):
        acquire(tmp_path)
    process.kill()
    while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.01)
    said: list[str] = []
    token = acquire(tmp_path, said=said)  # not yet reaped: a zombie trains no more
    assert f"from process {process.pid} on" in said[0]
    assert said[0].endswith("which is gone")
    process.wait()
    edit(tmp_path, started=1)  # the number of a process is used again
    assert acquire(tmp_path) != token


def test_a_job_on_another_host_is_waited_for_and_then_taken_over(tmp_path: Path) -> None:
    acquire(tmp_path)
    edit(tmp_path, host="elsewhere", timeout_s=30)
    refuse_if_alive(tmp_path)  # cannot tell: the launch waits
    said: list[str] = []
    clock = Clock()
    token = acquire(tmp_path, said=said, clock=clock)
    assert 30 <= clock.now < 33
    assert "on elsewhere, since" in said[0]
    assert said[0].endswith(": waiting 30 s for a sign of life before taking it over")
    assert said[1].endswith("which is silent")
    assert json.loads((tmp_path / LEASE_NAME).read_text())["token"] == token


@pytest.mark.parametrize("where", ["boot", "pid_namespace"])
def test_a_restarted_host_or_another_container_is_another_host(tmp_path: Path, where: str) -> None:
    acquire(tmp_path)
    edit(tmp_path, **{where: "other"})
    clock = Clock()
    acquire(tmp_path, clock=clock)
    assert clock.now >= 60


def test_a_sign_of_life_refuses_and_an_end_lets_in(tmp_path: Path) -> None:
    token = acquire(tmp_path)
    edit(tmp_path, host="elsewhere")
    with pytest.raises(LeaseError, match="on elsewhere, since"):
        acquire(tmp_path, clock=Clock(lambda count: count == 3 and beat_once(tmp_path, token=token)))
    clock = Clock(lambda count: count == 3 and release(tmp_path, token=token))
    acquire(tmp_path, clock=clock)
    assert clock.count == 3


def test_a_signal_ends_the_wait(tmp_path: Path) -> None:
    acquire(tmp_path)
    edit(tmp_path, host="elsewhere")
    stop = StopRequest()
    with pytest.raises(KeyboardInterrupt):
        acquire(tmp_path, clock=Clock(lambda count: stop.receive(signal.SIGTERM, None)), stop=stop)


def race(count: int, attempt: Callable[[], str]) -> list[str | LeaseError]:
    """What so many attempts come to, all begun at once: tokens and refusals."""
    barrier = threading.Barrier(count)
    results: list[str | LeaseError] = []

    def run() -> None:
        barrier.wait()
        try:
            results.append(attempt())
        except LeaseError as error:
            results.append(error)

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == count
    return results


def test_of_many_at_once_one_gets_it(tmp_path: Path) -> None:
    """Also of many that wait for the same dead job."""
    acquire(tmp_path)
    edit(tmp_path, started=1)
    results = race(8, partial(acquire, tmp_path))
    assert len([result for result in results if isinstance(result, str)]) == 1


def test_a_lost_lease_asks_the_run_to_stop_and_is_not_given_back(tmp_path: Path) -> None:
    said: list[str] = []
    stop = StopRequest()
    with hold(tmp_path / "run", timeout_s=1, say=said.append, stop=stop) as token:
        assert beat_once(tmp_path / "run", token=token)
        edit(tmp_path / "run", token="another")
        deadline = time.monotonic() + 300
        while not stop:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert stop.signal_number == signal.SIGTERM
    assert said == [f"the lease on {tmp_path / 'run'} was taken by another job; this one stops"]
    assert (tmp_path / "run" / LEASE_NAME).exists()


def test_heartbeats_that_fail_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def fail(*_args: object) -> None:
        raise OSError(5, "Input/output error")

    with hold(tmp_path, timeout_s=1, say=said.append, stop=StopRequest()):
        monkeypatch.setattr(os, "utime", fail)
        deadline = time.monotonic() + 300
        while not said:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert "no heartbeat of the lease" in said[0]
    assert "Input/output error" in said[0]


def test_a_lease_that_cannot_be_written_names_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match=r"No space left on device: '.*/\.lease\.json\..*'"):
        acquire(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [LOCK_NAME]


def test_nothing_is_committed_without_the_lease(tmp_path: Path) -> None:
    """The fence: a job that was thought dead and wakes up leaves the successor's checkpoints alone."""
    config = make_config(tmp_path, tmp_path, checkpoint={"keep_last": 1})
    engine = cast(Engine, _StillEngine(cast(Any, nn.Linear(2, 3))))
    token = acquire(tmp_path)
    writer = CheckpointWriter(tmp_path, engine=engine, config=config, lease_token=token)
    writer.save(5, plan_state={})
    writer.finish()
    edit(tmp_path, token="another", host="elsewhere")
    writer.save(2, plan_state={})
    lost = r"step 2 is not committed: this job has lost its lease on .*, which is held by process \d+ on elsewhere"
    with pytest.raises(CheckpointError, match=lost):
        writer.finish()
    (tmp_path / LEASE_NAME).unlink()
    writer.save(6, plan_state={})
    with pytest.raises(CheckpointError, match="which was given up"):
        writer.finish()
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000005"]
    assert [path.name for path in find_checkpoints(tmp_path).folders] == ["step-00000005"]
    with held(tmp_path, token=None):  # who has no lease to lose needs none
        assert not (tmp_path / LEASE_NAME).exists()
