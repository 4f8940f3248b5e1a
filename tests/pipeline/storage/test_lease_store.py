"""One job at a time in a run on an object store: refused, waited for, taken over, fenced; without locks or renames."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_lease import Clock, never, race

from object_store import bucket, s3_server
from pipeline import storage
from pipeline.signals import StopRequest
from pipeline.storage import StorageError, files, lease_store
from pipeline.storage.lease import LeaseError, beat_once, held, hold, refuse_if_alive, release, take
from small_runs import check_output, make_config
from trainer.launch.run_directory import write_config

__all__ = ["bucket", "s3_server"]


@pytest.fixture
def run(bucket: str) -> str:
    return f"{bucket}/runs/x"


def acquire(run: str, *, said: list[str] | None = None, clock: Clock | None = None, **changes: Any) -> str:
    moves: dict[str, Any] = {"sleep": never} if clock is None else {"sleep": clock.sleep, "clock": lambda: clock.now}
    say = (said if said is not None else []).append
    return take(run, timeout_s=60, say=say, stop=changes.get("stop", StopRequest()), **moves).token


def claims(run: str) -> list[str]:
    return [file.name for file in storage.list_files(f"{run}/lease")]


def edit(run: str, *, token: str, **changes: Any) -> None:
    """Change what a claim says of its holder."""
    (name,) = [name for name in claims(run) if token in name]
    tree = json.loads(storage.read_bytes(f"{run}/lease/{name}"))
    tree["holder"].update(changes)
    storage.write_bytes(f"{run}/lease/{name}", json.dumps(tree).encode())


def move_away(run: str, token: str, **changes: Any) -> None:
    edit(run, token=token, host="elsewhere", **changes)


def test_a_second_job_is_refused_while_the_first_lives(run: str, tmp_path: Path) -> None:
    config = make_config(tmp_path, tmp_path).model_copy(update={"output": run})
    token = acquire(run)
    assert check_output(config) == []  # a lease alone makes no run
    write_config(config)
    for attempt in (acquire, refuse_if_alive):
        with pytest.raises(LeaseError, match=rf"output={run}: another job trains in it \(process \d+ on .*; wait for"):
            attempt(run)
    assert claims(run) == [f"00000001-{token}.json"]
    release(run, token=token)
    refuse_if_alive(run)
    assert acquire(run) != token


def test_a_job_whose_process_is_gone_is_succeeded_at_once(run: str) -> None:
    first = acquire(run)
    edit(run, token=first, started=1)
    said: list[str] = []
    second = acquire(run, said=said)
    assert said[0].startswith(f"taking over {run} from process ")
    assert said[0].endswith("which is gone")
    assert claims(run) == [f"00000002-{second}.json"]


def test_a_job_on_another_host_is_waited_for_and_then_taken_over(run: str) -> None:
    first = acquire(run)
    move_away(run, first, timeout_s=30)
    refuse_if_alive(run)  # cannot tell: the launch waits
    said: list[str] = []
    clock = Clock()
    second = acquire(run, said=said, clock=clock)
    assert 30 <= clock.now < 33
    assert said[0].endswith(": waiting 30 s for a sign of life before taking it over")
    assert said[1].endswith("which is silent")
    assert claims(run) == [f"00000002-{second}.json"]


def test_a_sign_of_life_refuses_and_an_end_lets_in(run: str) -> None:
    token = acquire(run)
    move_away(run, token)
    with pytest.raises(LeaseError, match="on elsewhere, since"):
        acquire(run, clock=Clock(lambda count: count == 3 and beat_once(run, token=token)))
    sizes = {file.size for file in storage.list_files(f"{run}/lease")}
    assert sizes == {lease_store.CLAIM_BYTES}  # a reader may have learned the size before the beat
    clock = Clock(lambda count: count == 3 and release(run, token=token))
    acquire(run, clock=clock)
    assert clock.count == 3


def test_a_signal_ends_the_wait(run: str) -> None:
    move_away(run, acquire(run))
    stop = StopRequest()
    with pytest.raises(KeyboardInterrupt):
        acquire(run, clock=Clock(lambda count: stop.receive(signal.SIGTERM, None)), stop=stop)


def test_who_was_thought_dead_is_fenced_even_where_its_claim_comes_back(
    run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its heartbeat may have been on the way to the store while another job took over."""
    first = acquire(run)
    move_away(run, first)
    old = {name: storage.read_bytes(f"{run}/lease/{name}") for name in claims(run)}
    second = acquire(run, clock=Clock())
    for came_back in (False, True):
        for name in old if came_back else ():
            storage.write_bytes(f"{run}/lease/{name}", old[name])
        assert not beat_once(run, token=first)
        with (
            pytest.raises(LeaseError, match=rf"has lost its lease on {run}, which is held by process \d+ on"),
            held(run, token=first),
        ):
            raise AssertionError("the block was entered")
        with held(run, token=second):
            assert beat_once(run, token=second)
    with pytest.raises(LeaseError, match="another job trains in it"):
        acquire(run)
    release(run, token=second)
    release(run, token=first)
    with pytest.raises(LeaseError, match="which was given up"), held(run, token=second):
        raise AssertionError("the block was entered")


def test_of_many_at_once_one_gets_it(run: str) -> None:
    """Also of many that wait for the same dead job."""
    edit(run, token=acquire(run), started=1)
    results = race(6, lambda: take(run, timeout_s=60, say=lambda line: None, stop=StopRequest()).token)
    (token,) = [result for result in results if isinstance(result, str)]
    assert [name for name in claims(run) if not name.endswith(f"{token}.json")] == []


@pytest.mark.parametrize("at", ["before", "after"])
@pytest.mark.parametrize("number", [1, 2])
def test_between_a_claim_and_the_listing_another_may_claim(
    run: str, monkeypatch: pytest.MonkeyPatch, at: str, number: int
) -> None:
    """Two jobs at once, the second whole before or after the first one's claim as candidate (1) or holder (2)."""
    write, outcomes, threads, count = lease_store._write, [], [], 0

    def attempt() -> None:
        try:
            outcomes.append(take(run, timeout_s=60, say=print, stop=StopRequest()).token)
        except LeaseError:
            outcomes.append("refused")

    def interrupted(url: str, claim: lease_store.Claim) -> None:
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

    monkeypatch.setattr(lease_store, "_write", interrupted)
    attempt()
    for thread in threads:
        thread.join()
    assert len(threads) == 1
    assert len(outcomes) == 2
    assert outcomes.count("refused") == 1


def test_a_candidate_that_died_is_waited_for_once(run: str) -> None:
    dead = lease_store.identify(timeout_s=30)
    claim = lease_store.Claim(number=1, beat=0, holds=False, holder=dead)
    lease_store._write(run, claim)
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
    contend = lease_store._contend

    def lose(*given: Any, **named: Any) -> bool:
        monkeypatch.setattr(lease_store, "_contend", contend)
        dead = lease_store.identify(timeout_s=30)
        lease_store._write(run, lease_store.Claim(number=2, beat=0, holds=False, holder=dead))
        move_away(run, dead.token)
        return False

    monkeypatch.setattr(lease_store, "_contend", lose)
    clock = Clock()
    token = acquire(run, clock=clock)
    assert 90 <= clock.now < 95
    assert claims(run) == [f"00000003-{token}.json"]


def test_what_is_no_claim_is_passed_over(run: str) -> None:
    for content in (b"", b"{}", b"[1]", b'{"holder": {"token": 1}}'):
        storage.write_bytes(f"{run}/lease/00000007-x.json", content)
        release(run, token=acquire(run))
        assert claims(run) == ["00000007-x.json"]


def test_a_lost_lease_asks_the_run_to_stop_and_is_not_given_back(run: str) -> None:
    said: list[str] = []
    stop = StopRequest()
    with hold(run, timeout_s=1, say=said.append, stop=stop) as token:
        (name,) = claims(run)
        taken = json.loads(storage.read_bytes(f"{run}/lease/{name}"))
        other = {**taken, "number": 2, "holder": {**taken["holder"], "token": "another"}}
        storage.write_bytes(f"{run}/lease/00000002-another.json", json.dumps(other).encode())
        wait_until(lambda: bool(stop))
        assert token in name
    assert stop.signal_number == signal.SIGTERM
    assert said == [f"the lease on {run} was taken by another job; this one stops"]
    assert claims(run) == ["00000002-another.json"]


def wait_until(look: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not look():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_heartbeats_that_fail_are_told(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def fail(*_args: object) -> None:
        raise StorageError(f"{run}: the store was too busy")

    with hold(run, timeout_s=1, say=said.append, stop=StopRequest()):
        with monkeypatch.context() as patch:
            patch.setattr(files, "write_bytes", fail)
            wait_until(lambda: bool(said))
        assert f"no heartbeat of the lease on {run}: {run}: the store was too busy" in said[0]
    assert claims(run) == []
