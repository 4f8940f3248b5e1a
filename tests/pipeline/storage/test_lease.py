"""One command at a time in an output: refused, waited for, taken over, fenced; in folders, with locks and without, and
on object stores."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from object_store import bucket, s3_server
from pipeline import storage
from pipeline.signals import StopRequest
from pipeline.storage import LeaseError, StorageError, files, held, hold, lease, refuse_if_alive
from pipeline.storage.lease import beat_once, release, take

__all__ = ["bucket", "s3_server"]
FOLDERS = pytest.mark.parametrize("run", ["folder"], indirect=True)


@pytest.fixture(params=["folder", "folder without locks", "store"])
def run(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "store":
        return f"{request.getfixturevalue('bucket')}/runs/x"
    if request.param == "folder without locks":

        def no_locks(*_: object) -> None:
            raise OSError(37, "No locks available")

        monkeypatch.setattr(fcntl, "flock", no_locks)
    return str(tmp_path / "run")


def never(_seconds: float) -> None:
    raise AssertionError("waited for a command that is known to be gone")


class Clock:
    """A clock that only sleeping moves; `at_sleep` is called with the number of each sleep."""

    def __init__(self, at_sleep: Callable[[int], object] = lambda count: None) -> None:
        self.now, self.count, self.at_sleep = 0.0, 0, at_sleep

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.count += 1
        self.at_sleep(self.count)


def acquire(run: str, *, said: list[str] | None = None, clock: Clock | None = None, **changes: Any) -> str:
    moves: dict[str, Any] = {"sleep": never} if clock is None else {"sleep": clock.sleep, "clock": lambda: clock.now}
    say = (said if said is not None else []).append
    return take(run, timeout_s=60, say=say, stop=changes.get("stop", StopRequest()), **moves).token


def claims(run: str) -> list[str]:
    return [file.name for file in storage.list_files(f"{run}/lease") if file.name != ".lock"]


def edit(run: str, *, token: str, **changes: Any) -> None:
    """Change what a claim says of its holder."""
    (name,) = [name for name in claims(run) if token in name]
    tree = json.loads(storage.read_bytes(f"{run}/lease/{name}"))
    tree["holder"].update(changes)
    storage.write_bytes(f"{run}/lease/{name}", json.dumps(tree).encode())


def move_away(run: str, token: str, **changes: Any) -> None:
    edit(run, token=token, host="elsewhere", **changes)


def race(count: int, attempt: Callable[[], str]) -> list[str]:
    """The tokens of so many attempts, all begun at once; the others were refused."""
    barrier = threading.Barrier(count)
    results: list[str | LeaseError] = []

    def begin() -> None:
        barrier.wait()
        try:
            results.append(attempt())
        except LeaseError as error:
            results.append(error)

    threads = [threading.Thread(target=begin) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == count
    return [result for result in results if isinstance(result, str)]


def wait_until(look: Callable[[], object]) -> None:
    deadline = time.monotonic() + 300
    while not look():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_second_command_is_refused_while_the_first_lives(run: str) -> None:
    """kuberay#1023, #3860, #5211: retries overlap; a second run on the same output is refused."""
    token = acquire(run)
    message = rf"output={run}: another command works there \(process {os.getpid()} on .*, since .*\); wait until"
    for attempt in (acquire, refuse_if_alive):
        with pytest.raises(LeaseError, match=message):
            attempt(run)
    assert claims(run) == [f"00000001-{token}.json"]
    release(run, token=token)
    refuse_if_alive(run)
    assert storage.list_files(run) == []  # in a folder the lock file goes too
    assert acquire(run) != token


def test_the_output_is_called_as_its_user_calls_it(run: str) -> None:
    with hold(f"{run}/_tmp", timeout_s=60, say=print, name="output=x") as token:
        with (
            pytest.raises(LeaseError, match=r"^output=x: another command works there"),
            hold(f"{run}/_tmp", timeout_s=60, say=print, name="output=x"),
        ):
            raise AssertionError("two hold it")
        with held(f"{run}/_tmp", token=token, name="output=x"):
            assert len(claims(f"{run}/_tmp")) == 1
    with (
        pytest.raises(LeaseError, match=r"^output=x: this command lost its lease"),
        held(f"{run}/_tmp", token=token, name="output=x"),
    ):
        raise AssertionError("the block was entered")


@FOLDERS
def test_a_command_that_was_killed_is_succeeded_at_once(run: str, repository: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from pipeline.storage.lease import take\n"
        "take(Path(sys.argv[1]), timeout_s=60, say=print)\n"
        "print('taken', flush=True); time.sleep(99)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, run], stdout=subprocess.PIPE, text=True, cwd=repository)
    assert process.stdout is not None
    assert process.stdout.readline() == "taken\n"
    with pytest.raises(LeaseError, match=f"process {process.pid} on"):
        acquire(run)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    said: list[str] = []
    acquire(run, said=said)  # not yet reaped: a zombie works no more
    assert f"taking over from process {process.pid} on" in said[0]
    assert said[0].endswith("which is gone")
    process.wait()


def test_a_process_id_that_is_used_again_is_another_process(run: str) -> None:
    first = acquire(run)
    edit(run, token=first, started=1)
    said: list[str] = []
    second = acquire(run, said=said)
    assert said[0].startswith(f"output={run}: taking over from process ")
    assert said[0].endswith("which is gone")
    assert claims(run) == [f"00000002-{second}.json"]


def test_a_command_elsewhere_is_waited_for_and_then_taken_over(run: str) -> None:
    first = acquire(run)
    move_away(run, first, timeout_s=30)
    refuse_if_alive(run)  # cannot tell: the launch waits
    said: list[str] = []
    clock = Clock()
    second = acquire(run, said=said, clock=clock)
    assert 30 <= clock.now < 33
    assert "held by process" in said[0]
    assert "on elsewhere, since" in said[0]
    assert said[0].endswith("; waiting 30 s for a sign of life before taking it over")
    assert said[1].endswith("which is silent")
    assert claims(run) == [f"00000002-{second}.json"]


@pytest.mark.parametrize("where", ["boot", "pid_namespace"])
def test_a_restarted_host_or_another_container_is_elsewhere(run: str, where: str) -> None:
    edit(run, token=acquire(run), **{where: "other"})
    clock = Clock()
    acquire(run, clock=clock)
    assert clock.now >= 60


def test_a_sign_of_life_refuses_and_an_end_lets_in(run: str) -> None:
    token = acquire(run)
    move_away(run, token)
    with pytest.raises(LeaseError, match="on elsewhere, since"):
        acquire(run, clock=Clock(lambda count: count == 3 and beat_once(run, token=token)))
    if storage.is_url(run):  # a reader may have learned the size before the beat
        assert {file.size for file in storage.list_files(f"{run}/lease")} == {lease.CLAIM_BYTES}
    clock = Clock(lambda count: count == 3 and release(run, token=token))
    acquire(run, clock=clock)
    assert clock.count == 3


def test_a_signal_ends_the_wait(run: str) -> None:
    move_away(run, acquire(run))
    stop = StopRequest()
    with pytest.raises(KeyboardInterrupt):
        acquire(run, clock=Clock(lambda count: stop.receive(signal.SIGTERM, None)), stop=stop)


def test_who_was_thought_dead_is_fenced_even_if_its_claim_comes_back(run: str) -> None:
    """Its heartbeat may have been on the way to the store while another command took over."""
    first = acquire(run)
    move_away(run, first)
    old = {name: storage.read_bytes(f"{run}/lease/{name}") for name in claims(run)}
    second = acquire(run, clock=Clock())
    for came_back in (False, True):
        for name in old if came_back else ():
            storage.write_bytes(f"{run}/lease/{name}", old[name])
        assert not beat_once(run, token=first)
        with (
            pytest.raises(LeaseError, match=rf"output={run}: this command lost its lease .*; it is held by process"),
            held(run, token=first),
        ):
            raise AssertionError("the block was entered")
        with held(run, token=second):
            pass
        assert beat_once(run, token=second)
    with pytest.raises(LeaseError, match="another command works there"):
        acquire(run)
    release(run, token=second)
    release(run, token=first)
    with pytest.raises(LeaseError, match="it was given up"), held(run, token=second):
        raise AssertionError("the block was entered")
    with held(run, token=None):  # who has no lease to lose needs none
        assert claims(run) == []


@FOLDERS
def test_nobody_takes_over_a_folder_inside_the_block(run: str) -> None:
    """Also from a command that looks silent: it may only be slow to commit."""
    token = acquire(run)
    edit(run, token=token, started=1)
    tokens: list[str] = []
    thread = threading.Thread(target=lambda: tokens.append(acquire(run)))
    with held(run, token=token):
        thread.start()
        thread.join(0.5)
        assert tokens == []
        assert claims(run) == [f"00000001-{token}.json"]
    thread.join()
    assert claims(run) == [f"00000002-{tokens[0]}.json"]


def test_of_many_at_once_one_gets_it(run: str) -> None:
    """Also of many that wait for the same dead command."""
    edit(run, token=acquire(run), started=1)
    (token,) = race(6, lambda: take(run, timeout_s=60, say=lambda line: None).token)
    assert [name for name in claims(run) if not name.endswith(f"{token}.json")] == []


@pytest.mark.parametrize("at", ["before", "after"])
@pytest.mark.parametrize("number", [1, 2])
def test_between_a_claim_and_the_listing_another_may_claim(
    run: str, monkeypatch: pytest.MonkeyPatch, at: str, number: int
) -> None:
    """Two commands at once, the second whole before or after the first one's claim as candidate (1) or holder (2)."""
    write, outcomes, threads, count = lease._write, [], [], 0

    def attempt() -> None:
        try:
            outcomes.append(take(run, timeout_s=60, say=print).token)
        except LeaseError:
            outcomes.append("refused")

    def interrupted(url: storage.Location, claim: lease.Claim) -> None:
        nonlocal count
        count += 1
        if at == "after":
            write(url, claim)
        if count == number:
            threads.append(threading.Thread(target=attempt))
            threads[0].start()
            threads[0].join(1.0)  # it may wait for the first to go on
        if at == "before":
            write(url, claim)

    monkeypatch.setattr(lease, "_write", interrupted)
    attempt()
    for thread in threads:
        thread.join()
    assert len(threads) == 1
    assert len(outcomes) == 2
    assert outcomes.count("refused") == 1


def test_a_candidate_that_died_is_waited_for_once(run: str) -> None:
    dead = lease.identify(timeout_s=30)
    lease._write(storage.locate(run), lease.Claim(number=1, beat=0, holds=False, holder=dead))
    move_away(run, dead.token)
    clock = Clock()
    token = acquire(run, clock=clock)
    assert 30 <= clock.now < 33
    assert claims(run) == [f"00000002-{token}.json"]


def test_a_candidate_that_died_after_a_silent_holder_is_waited_for_once(
    run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had claimed right after the holder was given up."""
    move_away(run, acquire(run))
    contend = lease._contend

    def lose(*given: Any, **named: Any) -> bool:
        monkeypatch.setattr(lease, "_contend", contend)
        dead = lease.identify(timeout_s=30)
        lease._write(storage.locate(run), lease.Claim(number=2, beat=0, holds=False, holder=dead))
        move_away(run, dead.token)
        return False

    monkeypatch.setattr(lease, "_contend", lose)
    clock = Clock()
    token = acquire(run, clock=clock)
    assert 90 <= clock.now < 95
    assert claims(run) == [f"00000003-{token}.json"]


def test_a_command_that_is_interrupted_while_it_contends_leaves_no_claim(
    run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(lease, "replace", interrupt)
        with pytest.raises(KeyboardInterrupt):
            acquire(run)
    assert claims(run) == []


def test_what_is_no_claim_is_passed_over(run: str) -> None:
    for content in (b"", b"{}", b"[1]", b'{"holder": {"token": 1}}'):
        storage.write_bytes(f"{run}/lease/00000007-x.json", content)
        release(run, token=acquire(run))
        assert claims(run) == ["00000007-x.json"]


def test_a_lost_lease_asks_to_stop_and_is_not_given_back(run: str) -> None:
    said: list[str] = []
    stop, lost = StopRequest(), threading.Event()
    with hold(run, timeout_s=1, say=said.append, stop=stop, note_loss=lost.set) as token:
        (name,) = claims(run)
        taken = json.loads(storage.read_bytes(f"{run}/lease/{name}"))
        other = {**taken, "number": 2, "holder": {**taken["holder"], "token": "another"}}
        storage.write_bytes(f"{run}/lease/00000002-another.json", json.dumps(other).encode())
        wait_until(lost.is_set)
        assert token in name
    assert stop.signal_number == signal.SIGTERM
    assert said == [f"output={run}: another command took over the lease; this one stops"]
    assert claims(run) == ["00000002-another.json"]


def test_heartbeats_that_fail_are_said(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def fail(*_args: object) -> None:
        raise StorageError("the store was too busy")

    with hold(run, timeout_s=1, say=said.append):
        with monkeypatch.context() as patch:
            patch.setattr(*((files, "write_bytes") if storage.is_url(run) else (os, "utime")), fail)
            wait_until(lambda: said)
        assert f"output={run}: cannot renew the lease (the store was too busy)" in said[0]
    assert claims(run) == []


@FOLDERS
def test_a_lease_that_cannot_be_written_names_its_file(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    edit(run, token=acquire(run), started=1)

    def full_disk(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match=r"No space left on device: '.*/lease/00000002-.*\.json'"):
        acquire(run)
    assert len(claims(run)) == 1


@FOLDERS
def test_what_earlier_releases_left_is_passed_over(run: str) -> None:
    Path(run).mkdir()
    for name in ("lease.json", ".lease.lock"):
        (Path(run) / name).write_text("{}")
    release(run, token=acquire(run))
    assert storage.list_names(run) == {"lease.json", ".lease.lock"}


def claim_tree(**changes: Any) -> dict[str, Any]:
    holder = {
        "host": "elsewhere", "boot": "", "pid_namespace": "", "pid": 1, "started": 1, "token": "f" * 32,
        "since": "now", "timeout_s": 5,
    }  # fmt: skip
    tree = {"number": 1, "beat": 0, "holds": True, "holder": {**holder, **changes.pop("holder", {})}}
    return {**tree, **changes}


NO_CLAIMS: dict[str, str] = {
    "too deep": "[" * 100_000,
    "a list": "[]",
    "a number": "5",
    "a text as number": json.dumps(claim_tree(number="1")),
    "a truth value as number": json.dumps(claim_tree(number=True)),
    "a number as truth value": json.dumps(claim_tree(holds=1)),
    "a list as token": json.dumps(claim_tree(holder={"token": []})),
    "a text as time-out": json.dumps(claim_tree(holder={"timeout_s": "5"})),
    "a time-out of years": json.dumps(claim_tree(holder={"timeout_s": 10**9})),
    "a float as process": json.dumps(claim_tree(holder={"pid": 1.5})),
    "a list as host": json.dumps(claim_tree(holder={"host": [1]})),
    "another name": json.dumps(claim_tree(number=2)),
    "a token that leads elsewhere": json.dumps(claim_tree(holder={"token": "/../../../precious"})),
    "a holder that is none": json.dumps(claim_tree() | {"holder": 5}),
}


@pytest.mark.parametrize("kind", NO_CLAIMS)
def test_a_file_that_is_no_claim_stops_nobody(kind: str, tmp_path: Path) -> None:
    """Of any type and depth; no file elsewhere is removed because of it."""
    (tmp_path / "out" / "lease").mkdir(parents=True)
    name = f"00000001-{'f' * 32}.json"
    (tmp_path / "out" / "lease" / name).write_text(NO_CLAIMS[kind])
    (tmp_path / "precious.json").write_text("mine")
    said: list[str] = []
    with hold(tmp_path / "out", timeout_s=5, say=said.append) as token, held(tmp_path / "out", token=token):
        refuse_if_alive(tmp_path / "elsewhere")
    assert said == []
    assert (tmp_path / "precious.json").read_text() == "mine"


def test_a_claim_of_another_machine_is_read(tmp_path: Path) -> None:
    """The claim that those above are variants of."""
    (tmp_path / "lease").mkdir()
    (tmp_path / "lease" / f"00000001-{'f' * 32}.json").write_text(json.dumps(claim_tree()))
    (claim,) = lease._look(tmp_path)
    assert (claim.number, claim.holder.host, claim.holder.timeout_s) == (1, "elsewhere", 5)
