"""Data sets that are swapped for others, or that no model can take: one line and status 2; brought back, it goes on."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from typing import Any

from changed_sets import change_values, restate, rewrite, swap

from .findings import Finding, judge
from .runs import Run, Stage


def swap_on_the_way(stage: Stage) -> Finding:
    """All training shards are replaced by others with the same counts, while the run reads them."""
    return _swap_on_the_way(stage, name="set-swapped", fault="training shards swapped for others of the same counts")


def swap_on_the_way_under_ray(stage: Stage) -> Finding:
    """The same with the workers under Ray."""
    return _swap_on_the_way(stage, "launcher=ray", name="set-swapped-ray", fault="training shards swapped, under Ray")


def swap_held_out(stage: Stage) -> Finding:
    """The held-out shards are replaced by others with the same counts, before an evaluation."""
    return _swap_on_the_way(
        stage, "evaluation.every_steps=5", name="held-out-swapped", fault="held-out shards swapped", split="validation"
    )


def _swap_on_the_way(stage: Stage, *settings: str, name: str, fault: str, split: Any = "train") -> Finding:
    run = stage.make_run(name, own_data=True)
    shutil.copytree(run.data, run.output.parent / "aside")
    settings = ("ingest.read_ahead_blocks=1", *settings)
    run.start(*settings)
    run.wait_for_step(12)
    swap(run.data, stage.manifest, split=split)
    return bring_back(run, *settings, fault=fault, expected=rf"{split}-\d+-of-\d+\.parquet, row group \d: footer hash")


def swap_between(stage: Stage) -> Finding:
    """The whole set, with its manifest, is replaced between two commands."""
    run = stage.make_run("set-swapped-between", own_data=True)
    shutil.copytree(run.data, run.output.parent / "aside")
    command = run.start()
    run.wait_for_step(12)
    command.process.terminate()
    command.wait()
    swap(run.data, stage.manifest)
    restate(run.data, stage.manifest)
    run.start()
    return bring_back(run, fault="set swapped between two commands", expected="data=")


def exceed_the_vocabulary(stage: Stage) -> Finding:
    """An id beyond the vocabulary in the last row group; the manifest agrees with the file."""

    def exceed(rows: list[Any]) -> None:
        rows[-1][1] = 60_000

    return _break(stage, "input_ids", exceed, name="an id out of range", expected="input_ids has the id 60000, but")


def exceed_the_vocabulary_in_masks(stage: Stage) -> Finding:
    """An id beyond the vocabulary in place of a masked one."""

    def exceed(rows: list[Any]) -> None:
        rows[-1][0][0] = 60_000

    return _break(stage, "masked_inputs", exceed, name="a masked id out of range", expected="masked_inputs has the id")


def leave_the_row(stage: Stage) -> Finding:
    """A position to predict that is behind the end of its row."""

    def exceed(rows: list[Any]) -> None:
        rows[-1][0][-1] = 500

    expected = "masked_positions has a position after the end"
    return _break(stage, "masked_positions", exceed, name="a position out of range", expected=expected)


def _break(stage: Stage, column: str, change: Callable[[list[Any]], object], *, name: str, expected: str) -> Finding:
    run = stage.make_run(name.replace(" ", "-"), own_data=True)
    shutil.copytree(run.data, run.output.parent / "aside")
    rewrite(run.data, stage.manifest.shards_of("train")[-1], change=change_values(column, change))
    restate(run.data, stage.manifest)
    run.start()
    return bring_back(run, fault=name, expected=rf"\.parquet, row group \d: {expected}", settings_changed=True)


def bring_back(run: Run, *settings: str, fault: str, expected: str, settings_changed: bool = False) -> Finding:
    """Judge the end of the last command, bring the set back and give the command again. With `settings_changed` the
    run was begun on the broken set, so it is begun anew."""
    status, broken = run.finish(), find_broken(run, expected=expected)
    error = error_of(run)
    if status != 2:
        broken.append(f"status {status}")
    shutil.rmtree(run.data)
    shutil.copytree(run.output.parent / "aside", run.data)
    done = run.executed()
    if settings_changed:
        shutil.rmtree(run.output)
    since = time.monotonic()
    run.start(*settings)
    happened = f"status 2: {shorten(error, run=run)}; brought back, the run went on"
    repeated = len(done) if settings_changed else 10
    return judge(run, fault=fault, happened=happened, since=since, repeated=repeated, broken=broken)


def find_broken(run: Run, *, expected: str) -> list[str]:
    """What is wrong with what the last command said: one line that names the fault, and no attempt to go on."""
    number, error = run.commands[-1].number, error_of(run)
    said = [line.text for line in run.lines if line.command == number]
    broken = [] if run.says(f"^error: .*{expected}") else [f"not the line that is expected: {error}"]
    if any("starting the workers again" in text for text in said):
        broken.append("the workers were started again")
    return broken + ["a traceback" for text in said if "Traceback" in text]


def error_of(run: Run) -> str:
    """The line in which the last command says why it ended."""
    number = run.commands[-1].number
    said = [line.text for line in run.lines if line.command == number]
    return next((text for text in said if text.startswith("error: ")), said[-1] if said else "")


def shorten(error: str, *, run: Run) -> str:
    """Without paths, for the table."""
    text = error.removeprefix("error: ").replace(f"{run.data}/", "").replace(str(run.output), "RUN")
    return text if len(text) < 160 else f"{text[:157]}..."


FAULTS = (
    swap_on_the_way,
    swap_on_the_way_under_ray,
    swap_held_out,
    swap_between,
    exceed_the_vocabulary,
    exceed_the_vocabulary_in_masks,
    leave_the_row,
)
