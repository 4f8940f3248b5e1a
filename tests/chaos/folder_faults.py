"""A run folder that is deleted or moved under a run, and logs and leases that are damaged inside."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

from pipeline.storage import LEASE_FOLDER
from small_runs import curve
from trainer.telemetry.metrics import read_json_lines

from .findings import Finding, judge
from .runs import MAX_STEPS, ChaosError, Run, Stage
from .set_faults import error_of, find_broken, shorten


def delete_the_folder(stage: Stage) -> Finding:
    """The run directory is deleted while the run trains: one line; the same command begins anew."""
    run = stage.make_run("folder-deleted")
    run.start()
    run.wait_for_step(12)
    shutil.rmtree(run.output)
    status, broken = run.finish(), find_broken(run, expected="")
    if status not in (1, 2) or str(run.output) not in error_of(run):
        broken.append(f"status {status}: {error_of(run)}")
    done, since = len(run.executed()), time.monotonic()
    run.start()
    happened = f"status {status}: {shorten(error_of_command(run, 0), run=run)}; the same command began anew"
    fault = "run directory deleted on the way"
    return judge(run, fault=fault, happened=happened, since=since, repeated=done, broken=broken)


def move_the_folder(stage: Stage) -> Finding:
    """The run directory is renamed while the run trains, and renamed back before the command is given again."""
    run, aside = stage.make_run("folder-moved"), stage.folder / "folder-moved" / "aside"
    run.start()
    run.wait_for_step(12)
    run.output.rename(aside)
    status, broken = run.finish(), find_broken(run, expected="")
    if status not in (1, 2) or str(run.output) not in error_of(run):
        broken.append(f"status {status}: {error_of(run)}")
    shutil.rmtree(run.output, ignore_errors=True)
    aside.rename(run.output)
    since = time.monotonic()
    run.start()
    happened = f"status {status}: {shorten(error_of_command(run, 0), run=run)}; moved back, the run went on"
    return judge(run, fault="run directory moved on the way", happened=happened, since=since, broken=broken)


def error_of_command(run: Run, number: int) -> str:
    """The line in which a command says why it ended."""
    return next((line.text for line in run.lines if line.command == number and line.text.startswith("error: ")), "")


def stop_a_run(stage: Stage, *, name: str) -> Run:
    """A run that was asked to stop at about step 27."""
    run = stage.make_run(name)
    command = run.start()
    run.wait_for_step(27)
    command.process.send_signal(signal.SIGTERM)
    if command.wait() != 128 + signal.SIGTERM:
        raise ChaosError("\n".join(line.text for line in run.lines[-20:]))
    return run


def delete_the_checkpoints(stage: Stage) -> Finding:
    """All checkpoints of a stopped run are deleted: it begins anew and says so, and its logs hold each step once."""
    run = stop_a_run(stage, name="checkpoints-deleted")
    done = len(run.executed())
    shutil.rmtree(run.output / "checkpoints")
    since = time.monotonic()
    run.start()
    happened = "the same command began at step 0, and cut the logs back"
    return judge(run, fault="all checkpoints deleted", happened=happened, since=since, repeated=done)


def damage_a_line(path: Path, *, number: int) -> None:
    """Replace the middle of a line by zero bytes, as a disk may give them back after a power cut."""
    lines = path.read_bytes().splitlines(keepends=True)
    line = lines[number]
    lines[number] = line[:10] + bytes(len(line) - 20) + line[-10:]
    path.write_bytes(b"".join(lines))


def damage_the_metrics(stage: Stage) -> Finding:
    """A line inside of metrics.jsonl is damaged while the run is stopped: the other lines stay."""
    run = stop_a_run(stage, name="metrics-damaged")
    damage_a_line(run.output / "metrics.jsonl", number=9)
    since = time.monotonic()
    run.start()
    run.finish()
    expected = [each for each in curve(stage.reference.output) if each[0] != 10]
    broken = [] if curve(run.output) == expected else ["other steps than the damaged one are missing or differ"]
    restore_line(run.output / "metrics.jsonl", stage.reference.output / "metrics.jsonl", number=9)
    happened = "the run went on; only the damaged line is lost"
    return judge(
        run, fault="a line inside metrics.jsonl damaged", happened=happened, since=since, repeated=0, broken=broken
    )


def restore_line(path: Path, other: Path, *, number: int) -> None:
    """Take one line from another file, so that the rest can be compared."""
    lines = path.read_bytes().splitlines(keepends=True)
    lines[number] = other.read_bytes().splitlines(keepends=True)[number]
    path.write_bytes(b"".join(lines))


def damage_the_row_log(stage: Stage) -> Finding:
    """A line inside of a file of row numbers is damaged while the run is stopped."""
    run = stop_a_run(stage, name="rows-damaged")
    rows = run.output / "rows-1.jsonl"
    before = rows.read_bytes()
    damage_a_line(rows, number=4)
    damaged = rows.read_bytes()
    since = time.monotonic()
    run.start()
    run.finish()
    broken = [] if rows.read_bytes().startswith(damaged) else ["lines that are whole were dropped"]
    rows.write_bytes(before + rows.read_bytes()[len(damaged) :])
    happened = "the run went on; only the damaged line is lost"
    fault = "a line inside rows-1.jsonl damaged"
    return judge(run, fault=fault, happened=happened, since=since, repeated=0, broken=broken)


def end_the_metrics_in_zeros(stage: Stage) -> Finding:
    """metrics.jsonl ends in a page of zero bytes, as after a power cut."""

    def damage(path: Path) -> None:
        with open(path, "ab") as stream:
            stream.write(bytes(4096))

    return _damage_the_end(stage, damage, name="metrics-zeros", fault="metrics.jsonl ends in zero bytes")


def end_the_metrics_in_a_line(stage: Stage) -> Finding:
    """metrics.jsonl ends inside of a line that is nested a hundred thousand times."""

    def damage(path: Path) -> None:
        with open(path, "ab") as stream:
            stream.write(b'{"step": ' + b"[" * 100_000)

    return _damage_the_end(stage, damage, name="metrics-deep", fault="metrics.jsonl ends in a line nested without end")


def _damage_the_end(stage: Stage, damage: Callable[[Path], None], *, name: str, fault: str) -> Finding:
    run = stop_a_run(stage, name=name)
    damage(run.output / "metrics.jsonl")
    since = time.monotonic()
    run.start()
    run.finish()
    found = len(read_json_lines(run.output / "metrics.jsonl"))
    broken = [] if found == MAX_STEPS else [f"{found} lines of metrics"]
    happened = "the damaged end was cut off, and the run went on"
    return judge(run, fault=fault, happened=happened, since=since, repeated=0, broken=broken)


def damage_the_lease(stage: Stage) -> Finding:
    """The lease of a killed command, and two files beside it, hold what no command wrote: nobody waits for them."""
    run = stage.make_run("lease-damaged")
    command = run.start()
    run.wait_for_step(12)
    command.process.kill()
    command.wait()
    folder = run.output / LEASE_FOLDER
    claims = [path for path in folder.iterdir() if path.suffix == ".json"]
    for path in claims:
        path.write_text("[" * 100_000)
    (folder / f"99999999-{'f' * 32}.json").write_text('{"number": "99999999", "holder": {"token": []}}')
    (folder / "claim.json").write_bytes(b"\xff\xfe\x00")
    since = time.monotonic()
    run.start()
    run.finish()
    for path in folder.glob("*.json"):
        path.unlink()  # nobody's: a command removes only what it reads as a claim
    happened = "the damaged claims were passed over, and the same command resumed"
    return judge(run, fault="the lease damaged, after SIGKILL", happened=happened, since=since)


FAULTS = (
    delete_the_folder,
    move_the_folder,
    delete_the_checkpoints,
    damage_the_metrics,
    damage_the_row_log,
    end_the_metrics_in_zeros,
    end_the_metrics_in_a_line,
    damage_the_lease,
)
