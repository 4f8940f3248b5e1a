"""The short form of `make chaos`: workers killed in every phase of one run; and the judge can tell a broken promise."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from chaos import __main__ as command
from chaos.findings import Finding, format_table, judge
from chaos.runs import EVERY_STEPS, MARK, MAX_STEPS, SETTINGS, ChaosError, Run, Stage, kill
from chaos.worker_faults import strike_in_a_save
from pipeline.settings import load_settings
from small_runs import run as run_in_group
from trainer.config.schema import TrainerConfig
from worker_group import WorkerGroup

REPEATED = 2 * 2 * EVERY_STEPS
"""Most steps that the survivor may execute again: it is killed twice after a step, and each kill may cost two
intervals."""


@pytest.fixture(scope="module")
def stage(worker_group: Callable[[int], WorkerGroup], tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """With the uninterrupted run made by the workers of the other tests."""
    made = Stage(tmp_path_factory.mktemp("chaos"), fork=True)
    reference = made.make_run("uninterrupted")
    words = [f"data={made.data}", f"output={reference.output}", *SETTINGS, "launcher=processes"]
    run_in_group(worker_group(2), load_settings(TrainerConfig, overrides=words))
    made.reference = reference
    return made


@pytest.fixture(scope="module")
def survivor(stage: Stage) -> Iterator[tuple[Run, Finding]]:
    """A run whose workers were killed while they started, in a step, and while they wrote a checkpoint."""
    run = stage.make_run("survivor")
    try:
        run.start()
        kill(run.wait_for_worker(1))
        line = run.wait_for("starting the workers again from step 0")
        run.wait_for_step(12, since=line.time)
        since = kill(run.wait_for_worker(1))
        line = run.wait_for("starting the workers again from the checkpoint of step", since=since)
        run.wait_for_step(22, since=line.time)
        since = strike_in_a_save(run, rank=0)
        assert run.finish() == 0, "\n".join(each.text for each in run.lines)
        yield run, judge(run, fault="three", happened="", since=since, repeated=REPEATED)
    finally:
        run.end()


def test_a_run_whose_workers_are_killed_again_and_again_is_the_uninterrupted_one(
    survivor: tuple[Run, Finding],
) -> None:
    """ray#42008, #50874, #58870, #22349: a lost rank ends the others' wait, and the group goes on in bounded time."""
    run, finding = survivor
    assert finding.broken == ()
    assert finding.equal == "bits"
    assert finding.seconds_to_next_step is not None
    restarts = [each.text for each in run.lines if "starting the workers again" in each.text]
    assert [text.split(" was lost")[0] for text in restarts] == ["worker 1", "worker 1", "worker 0"]
    assert all("(1 of max_restarts=3)" in text for text in restarts)


# ---- the judge


def change(run: Run, tmp_path: Path, *, file: str, line: int, edit: Callable[[dict], dict | None]) -> Run:  # type: ignore[type-arg]
    """A copy of a run with one line of a log changed, or taken out."""
    copy = replace(run, output=tmp_path / "run")
    shutil.copytree(run.output, copy.output)
    path = copy.output / file
    records = [json.loads(text) for text in path.read_text().splitlines()]
    changed = edit(records[line])
    records[line : line + 1] = [] if changed is None else [changed]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return copy


def test_another_loss_is_seen(survivor: tuple[Run, Finding], tmp_path: Path) -> None:
    run, _ = survivor
    last_bit = change(
        run,
        tmp_path / "a",
        file="metrics.jsonl",
        line=30,
        edit=lambda record: {**record, "loss": record["loss"] * (1 + 1e-15)},
    )
    finding = judge(last_bit, fault="", happened="", since=0.0, repeated=REPEATED)
    assert (finding.equal, finding.broken) == ("rounding", ("the loss curve: rounding",))
    assert judge(last_bit, fault="", happened="", since=0.0, repeated=REPEATED, compare="rounding").broken == ()
    other = change(
        run,
        tmp_path / "b",
        file="metrics.jsonl",
        line=30,
        edit=lambda record: {**record, "loss": record["loss"] * 1.01},
    )
    assert judge(other, fault="", happened="", since=0.0, repeated=REPEATED, compare="rounding").broken == (
        "the loss curve: differs",
    )
    missing = change(run, tmp_path / "c", file="metrics.jsonl", line=30, edit=lambda record: None)
    assert judge(missing, fault="", happened="", since=0.0, repeated=REPEATED).equal == "differs"


def test_lost_and_repeated_rows_are_seen(survivor: tuple[Run, Finding], tmp_path: Path) -> None:
    run, _ = survivor
    lost = change(
        run, tmp_path / "a", file="rows-1.jsonl", line=3, edit=lambda record: {**record, "rows": record["rows"][1:]}
    )
    broken = judge(lost, fault="", happened="", since=0.0, repeated=REPEATED).broken
    assert broken == ("other rows than in the uninterrupted run", "epoch 0: 1 rows lost, 0 repeated")
    twice = change(
        run,
        tmp_path / "b",
        file="rows-1.jsonl",
        line=3,
        edit=lambda record: {**record, "rows": record["rows"][:1] + record["rows"]},
    )
    assert (
        "epoch 0: 0 rows lost, 1 repeated" in judge(twice, fault="", happened="", since=0.0, repeated=REPEATED).broken
    )
    for path in lost.output.glob("rows-*.jsonl"):
        path.unlink()
    assert "no row log" in judge(lost, fault="", happened="", since=0.0, repeated=REPEATED).broken


def test_steps_done_again_and_leftovers_are_seen(
    survivor: tuple[Run, Finding], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, finding = survivor
    again = finding.steps_executed - MAX_STEPS
    assert again > 0
    (broken,) = judge(run, fault="", happened="", since=0.0, repeated=again - 1).broken
    assert broken == f"{again} steps were executed again, promised are at most {again - 1}"
    copy = replace(run, output=tmp_path / "run")
    shutil.copytree(run.output, copy.output)
    (copy.output / "checkpoints" / ".tmp-step-00000060-0").mkdir()
    (copy.output / "lease").mkdir()
    (copy.output / "lease" / "00000001-a.json").write_text("{}")
    assert judge(copy, fault="", happened="", since=0.0, repeated=REPEATED).broken == (
        ".tmp-step-00000060-0 is left behind",
        "the lease was not given back",
    )


def test_a_process_that_is_left_behind_is_seen(survivor: tuple[Run, Finding], monkeypatch: pytest.MonkeyPatch) -> None:
    import os
    import subprocess
    import sys

    run, _ = survivor
    monkeypatch.setattr("chaos.findings.END_S", 0.0)
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], env={**os.environ, MARK: run.mark}, stdin=subprocess.PIPE
    ) as orphan:
        (broken,) = judge(run, fault="", happened="", since=0.0, repeated=REPEATED).broken
        assert broken.startswith(f"process {orphan.pid} is left behind: ")
        assert run.remains()[0].pid == orphan.pid
        run.end()
    assert run.remains() == []


# ---- the command


def test_the_command_writes_a_line_a_fault_and_fails_for_a_broken_promise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Finding("a", "went on", 1.25, 61, "bits", ())
    broken = Finding("b", "hung", None, 12, "differs", ("the loss curve: differs",))

    def fine(stage: Stage) -> Finding:
        """Fine."""
        return kept

    def bad(stage: Stage) -> list[Finding]:
        """Bad."""
        return [kept, broken]

    def unplayable(stage: Stage) -> Finding:
        """Cannot be played."""
        raise ChaosError("no disk")

    monkeypatch.setattr(command, "GROUPS", {"one": (fine,), "two": (bad, unplayable)})
    out = ["--out", str(tmp_path)]
    assert command.main(["one", *out]) == 0
    assert command.main(["fine", *out]) == 0
    assert command.main(["unplayable", *out]) == 1
    assert "could not be played" in (tmp_path / "table.md").read_text()
    assert command.main(out) == 1
    lines = [json.loads(line) for line in (tmp_path / "findings.jsonl").read_text().splitlines()]
    assert lines[:3] == [json.loads(json.dumps(each.record())) for each in (kept, kept, broken)]
    assert lines[3]["broken"] == ["no disk"]
    assert (tmp_path / "table.md").read_text().startswith("| fault |")
    with pytest.raises(SystemExit):
        command.main(["three", *out])
    assert command.main(["--list"]) == 0
    assert "two: bad unplayable" in capsys.readouterr().out


def test_the_table_shows_each_finding() -> None:
    table = format_table(
        [Finding("a", "hung", None, 12, "differs", ("x", "y")), Finding("b", "went on", 2.0, 60, "bits", ())]
    )
    assert table.splitlines()[2:] == [
        "| a | hung | - | 12 | differs | BROKEN: x; y |",
        "| b | went on | 2.0 | 60 | bits | kept |",
    ]
