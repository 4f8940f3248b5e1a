"""What came of a fault: the run is held against the uninterrupted one and against the promises that hold for all."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from pipeline.dataset.manifest import Manifest
from pipeline.storage import LEASE_FOLDER
from processes import command_of
from small_runs import curve, rows_by_step
from trainer.checkpoint.format import checkpoints_folder
from trainer.telemetry.metrics import read_json_lines

from .runs import EVERY_STEPS, MAX_STEPS, Run

ROUNDING = 1e-5
"""Greatest relative difference of losses where the number of workers changed."""
END_S = 120.0
"""Longest that a process may outlive its command: Ray's agents look for a head that was killed for a minute."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault and what came of it."""

    fault: str
    happened: str
    """What the run did."""
    seconds_to_next_step: float | None
    """From the fault (or from giving the command again) to the next step; None where no workers were started."""
    steps_executed: int
    """In all; the uninterrupted run executes MAX_STEPS."""
    equal: Literal["bits", "rounding", "differs"]
    """How the loss curve compares with the uninterrupted one."""
    broken: tuple[str, ...]
    """Promises that were not kept."""

    def record(self) -> dict[str, Any]:
        """For a JSON line."""
        return asdict(self)


def judge(
    run: Run,
    *,
    fault: str,
    happened: str,
    since: float,
    compare: Literal["bits", "rounding"] = "bits",
    repeated: int = 2 * EVERY_STEPS,
    broken: Iterable[str] = (),
) -> Finding:
    """Hold a run that has ended against the promises.

    `since`: when the fault came, or the command was given again. `repeated`: most steps that may be executed twice.
    `broken`: what the fault itself found.
    """
    reference, found = run.stage.reference, list(broken)
    status = run.finish()
    run.fetch()
    if status != 0:
        found.append(f"the last command ended with status {status}: {run.lines[-1].text if run.lines else ''}")
    equal = compare_curves(run.output, reference.output)
    if equal == "differs" or (compare == "bits" and equal != "bits"):
        found.append(f"the loss curve: {equal}")
    if rows_by_step(run.output) != rows_by_step(reference.output):
        found.append("other rows than in the uninterrupted run")
    found += find_lost_rows(run.output, manifest=run.stage.manifest)
    executed = run.executed()
    if len(executed) > MAX_STEPS + repeated:
        found.append(f"{len(executed) - MAX_STEPS} steps were executed again, promised are at most {repeated}")
    found += find_remains(run)
    seconds = run.seconds_to_next_step(since)
    rounded = None if seconds is None else round(seconds, 2)
    return Finding(fault, happened, rounded, len(executed), equal, tuple(found))


def compare_curves(output: Path, reference: Path) -> Literal["bits", "rounding", "differs"]:
    """Loss, gradient norm and learning rate of every step."""
    ours, theirs = curve(output), curve(reference)
    if ours == theirs:
        return "bits"
    if [(step, rate) for step, _, _, rate in ours] != [(step, rate) for step, _, _, rate in theirs]:
        return "differs"
    near = all(
        math.isclose(float.fromhex(mine), float.fromhex(other), rel_tol=ROUNDING)
        for (_, mine, _, _), (_, other, _, _) in zip(ours, theirs, strict=True)
    )
    return "rounding" if near else "differs"


def find_lost_rows(output: Path, *, manifest: Manifest) -> list[str]:
    """What is wrong with the row log: every epoch holds each row once; the last one may be unfinished."""
    epochs: dict[int, Counter[tuple[int, ...]]] = {}
    for path in output.glob("rows-*.jsonl"):
        for record in read_json_lines(path):
            for epoch, *row in record["rows"]:
                epochs.setdefault(epoch, Counter())[tuple(row)] += 1
    everything = {
        (index, group, row)
        for index, shard in enumerate(manifest.shards_of("train"))
        for group, rows in enumerate(shard.row_group_rows)
        for row in range(rows)
    }
    found = []
    for epoch, rows in sorted(epochs.items()):
        twice = sum(count > 1 for count in rows.values())
        lost = len(everything - rows.keys()) if epoch < max(epochs) else 0
        if twice or lost or rows.keys() - everything:
            found.append(f"epoch {epoch}: {lost} rows lost, {twice} repeated")
    return found or ([] if epochs else ["no row log"])


def find_remains(run: Run) -> list[str]:
    """Processes, lease and half-written checkpoints that outlive the last command."""
    deadline = time.monotonic() + END_S
    while (processes := run.remains()) and time.monotonic() < deadline:
        time.sleep(0.1)
    found = [f"process {process.pid} is left behind: {command_of(process)[:80]}" for process in processes]
    folder = checkpoints_folder(run.output)
    if folder.is_dir():
        found += [f"{path.name} is left behind" for path in folder.iterdir() if path.name.startswith(".")]
    if list(run.output.glob(f"{LEASE_FOLDER}/*")):
        found.append("the lease was not given back")
    return found


def format_table(findings: Iterable[Finding]) -> str:
    """A Markdown table."""
    lines = [
        "| fault | what happened | seconds to the next step | steps executed | curve | promise |",
        "|---|---|---|---|---|---|",
    ]
    for each in findings:
        seconds = "-" if each.seconds_to_next_step is None else f"{each.seconds_to_next_step:.1f}"
        kept = "kept" if not each.broken else "BROKEN: " + "; ".join(each.broken)
        lines.append(f"| {each.fault} | {each.happened} | {seconds} | {each.steps_executed} | {each.equal} | {kept} |")
    return "\n".join(lines)
