"""Damaged checkpoints and a full disk."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

from trainer.checkpoint.format import find_checkpoints

from .findings import Finding, judge
from .runs import ChaosError, Run, Stage

DISK_BYTES = 40_000_000
"""Room for four checkpoints and what else a run writes."""
DISK_FILES = 1_000
"""Far more than a run makes."""


def tear(checkpoint: Path) -> None:
    """Half of a tensor file, as after a power cut without fsync."""
    victim = _tensors(checkpoint)
    os.truncate(victim, victim.stat().st_size // 2)


def remove_a_file(checkpoint: Path) -> None:
    """One rank's tensors are gone."""
    _tensors(checkpoint).unlink()


def flip_a_bit(checkpoint: Path) -> None:
    """One bit of a tensor."""
    victim = _tensors(checkpoint)
    content = bytearray(victim.read_bytes())
    content[len(content) * 2 // 3] ^= 4
    victim.write_bytes(content)


def make_stale(checkpoint: Path) -> None:
    """An older checkpoint under the newest one's name."""
    older = find_checkpoints(checkpoint.parent.parent).folders[-2]
    shutil.rmtree(checkpoint)
    shutil.copytree(older, checkpoint)


def empty_the_manifest(checkpoint: Path) -> None:
    """The list of files has no byte."""
    (checkpoint / "manifest.json").write_bytes(b"")


def leave_a_half(checkpoint: Path) -> None:
    """A folder that was never committed lies beside, as after SIGKILL in a save; nothing else is damaged."""
    shutil.copytree(checkpoint, checkpoint.with_name(f".tmp-{checkpoint.name}-0123456789abcdef"))


DAMAGES: dict[str, Callable[[Path], None]] = {
    "torn": tear,
    "a file missing": remove_a_file,
    "a bit flipped": flip_a_bit,
    "stale": make_stale,
    "an empty manifest": empty_the_manifest,
    "a half-written one beside it": leave_a_half,
}


def damage_checkpoints(stage: Stage) -> list[Finding]:
    """The newest checkpoint of a stopped run, damaged in each way; then all of them."""
    stopped = stage.make_run("stopped")
    command = stopped.start()
    stopped.wait_for_step(27)
    command.process.send_signal(signal.SIGTERM)
    if command.wait() != 128 + signal.SIGTERM:
        raise ChaosError("\n".join(line.text for line in stopped.lines[-20:]))
    findings = []
    for name, damage in DAMAGES.items():
        run = continue_copy(stopped, name=f"checkpoint-{name.replace(' ', '-')}", damage=damage)
        whole = damage is leave_a_half
        broken = [] if whole or run.says(r"warning: checkpoint step-\d+ is skipped") else ["damage went unnoticed"]
        if run.executed()[len(stopped.executed())] != resumed_step(run) + 1:
            broken.append("the step after the checkpoint was not the next")
        happened = f"resumed at step {resumed_step(run)}, {'the newest' if whole else 'the newest was skipped'}"
        since = run.lines[len(stopped.lines)].time
        findings.append(judge(run, fault=f"newest checkpoint: {name}", happened=happened, since=since, broken=broken))
    findings.append(_damage_all(stopped))
    return findings


def continue_copy(stopped: Run, *, name: str, damage: Callable[[Path], None]) -> Run:
    """A copy of a stopped run, damaged, after the same command."""
    run = stopped.stage.make_run(name)
    shutil.copytree(stopped.output, run.output)
    run.lines += stopped.lines
    damage(find_checkpoints(run.output).folders[-1])
    run.start()
    run.finish()
    return run


def resumed_step(run: Run) -> int:
    """Where the last command went on."""
    lines = [line.text for line in run.lines if line.text.startswith("resumed at step ")]
    return int(lines[-1].split()[3]) if lines else 0


def _damage_all(stopped: Run) -> Finding:
    def damage_all(newest: Path) -> None:
        for checkpoint in find_checkpoints(newest.parent.parent).folders:
            flip_a_bit(checkpoint)

    run = continue_copy(stopped, name="checkpoint-all", damage=damage_all)
    broken, status = [], run.finish()
    (error,) = [line.text for line in run.lines if line.text.startswith("error: ")] or ["no error"]
    if status != 2 or "none of its" not in error:
        broken.append(f"status {status}: {error}")
    for folder in find_checkpoints(run.output).folders:
        shutil.rmtree(folder)
    shutil.rmtree(run.output / "checkpoints")
    shutil.copytree(stopped.output / "checkpoints", run.output / "checkpoints")
    since = time.monotonic()
    run.start()
    happened = "refused: none verifies, nothing starts from zero; brought back, the run went on"
    return judge(run, fault="all checkpoints damaged", happened=happened, since=since, broken=broken)


def fill_the_disk(stage: Stage) -> Finding:
    """No room before a save: the run stops with both numbers; with room again the same command goes on."""
    with small_disk(stage.folder / "disk-1") as disk:
        run = stage.make_run("disk-full-before", output=disk / "run")
        run.start()
        run.wait_for_step(12)
        fill = _fill(disk, leave=1_000_000)
        status, broken = run.finish(), []
        error = _error(run)
        if status != 2 or "are free; free space there" not in error:
            broken.append(f"status {status}: {error}")
        fill.unlink()
        return _go_on(run, fault="disk full before a save", broken=broken)


def fill_the_disk_in_a_save(stage: Stage) -> Finding:
    """The room goes while a checkpoint is written."""
    with small_disk(stage.folder / "disk-2") as disk:
        run = stage.make_run("disk-full-in-a-save", output=disk / "run")
        run.start()
        run.wait_for_step(8)
        workers = [run.wait_for_worker(rank) for rank in (0, 1)]
        for _ in range(20):
            folder = run.wait_for_save(after=run.newest_step())
            for worker in workers:
                worker.send_signal(signal.SIGSTOP)
            fill = _fill(disk)
            caught = folder.exists() and not (folder / "manifest.json").exists()
            if not caught:
                fill.unlink()
            for worker in workers:
                worker.send_signal(signal.SIGCONT)
            if caught:
                break
        else:
            raise ChaosError("no save was caught")
        status, broken = run.finish(), []
        if status != 2 or "no space left" not in _error(run).lower():
            broken.append(f"status {status}: {_error(run)}")
        fill.unlink()
        return _go_on(run, fault="disk full during a save", broken=broken)


def use_up_the_inodes(stage: Stage) -> Finding:
    """No file can be made any more, though there is room: the run stops at a save; with inodes again it goes on."""
    with small_disk(stage.folder / "disk-3") as disk:
        run = stage.make_run("inodes-full-before", output=disk / "run")
        run.start()
        run.wait_for_step(12)
        files = _use_up_inodes(disk)
        status, broken = run.finish(), []
        if status != 2 or "inode" not in _error(run):
            broken.append(f"status {status}: {_error(run)}")
        shutil.rmtree(files)
        return _go_on(run, fault="inodes used up before a save", broken=broken)


def use_up_the_inodes_before_the_start(stage: Stage) -> Finding:
    """No file can be made when the command is given: one line; with inodes again it begins."""
    with small_disk(stage.folder / "disk-4") as disk:
        run = stage.make_run("inodes-full-at-start", output=disk / "run")
        files = _use_up_inodes(disk)
        run.start()
        status, broken = run.finish(), []
        if status != 2 or "inode" not in _error(run):
            broken.append(f"status {status}: {_error(run)}")
        shutil.rmtree(files)
        return _go_on(run, fault="inodes used up before the start", broken=broken)


def _use_up_inodes(disk: Path) -> Path:
    folder = disk / "files"
    folder.mkdir()
    with suppress(OSError):
        for number in count():
            (folder / str(number)).touch()
    return folder


def _go_on(run: Run, *, fault: str, broken: list[str]) -> Finding:
    happened = f"status 2: {_error(run).removeprefix('error: ')[:160]}; with room again it went on"
    since = time.monotonic()
    run.start()
    return judge(run, fault=fault, happened=happened, since=since, broken=broken)


def _error(run: Run) -> str:
    return next((line.text for line in run.lines if line.text.startswith("error: ")), run.lines[-1].text)


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system of DISK_BYTES and DISK_FILES of its own: a tmpfs, which only root may mount. ChaosError where it
    cannot be."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},nr_inodes={DISK_FILES}", "tmpfs", str(folder)]
    made = subprocess.run(mount, capture_output=True, text=True, check=False)
    if made.returncode != 0:
        raise ChaosError(f"a small disk cannot be mounted ({made.stderr.strip()}); run as root to play this fault")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def _fill(disk: Path, *, leave: int = 0) -> Path:
    """Take the room that is left, but for so many bytes."""
    path = disk / "filler"
    with open(path, "wb") as stream:
        free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize - leave
        if leave:
            os.posix_fallocate(stream.fileno(), 0, free)
            return path
        while free > 0:
            try:
                os.posix_fallocate(stream.fileno(), os.fstat(stream.fileno()).st_size, free)
            except OSError:
                free //= 2
    return path


def _tensors(checkpoint: Path) -> Path:
    return sorted(checkpoint.glob("*.safetensors"))[-1]


FAULTS = (
    damage_checkpoints,
    fill_the_disk,
    fill_the_disk_in_a_save,
    use_up_the_inodes,
    use_up_the_inodes_before_the_start,
)
