"""Worker processes that die, freeze or compute nonsense; launched as processes."""

from __future__ import annotations

import signal
import time

from small_runs import rows_by_step
from trainer.telemetry.metrics import read_json_lines

from .findings import Finding, find_remains, judge
from .runs import MAX_STEPS, ChaosError, Run, Stage, kill


def kill_in_a_step(stage: Stage) -> Finding:
    """SIGKILL of a worker in a step."""
    run = stage.make_run("kill-in-a-step")
    run.start()
    run.wait_for_step(12)
    since = kill(run.wait_for_worker(1))
    return conclude(run, fault="SIGKILL of a worker in a step", since=since)


def kill_first_rank_in_a_step(stage: Stage) -> Finding:
    """SIGKILL of the worker that commits checkpoints, in a step."""
    run = stage.make_run("kill-rank-0-in-a-step")
    run.start()
    run.wait_for_step(23)
    since = kill(run.wait_for_worker(0))
    return conclude(run, fault="SIGKILL of rank 0 in a step", since=since)


def kill_in_a_save(stage: Stage) -> Finding:
    """SIGKILL of a worker while a checkpoint is written."""
    return _kill_in_a_save(stage, rank=1)


def kill_first_rank_in_a_save(stage: Stage) -> Finding:
    """SIGKILL of the worker that commits, before it has."""
    return _kill_in_a_save(stage, rank=0)


def _kill_in_a_save(stage: Stage, *, rank: int) -> Finding:
    run = stage.make_run(f"kill-rank-{rank}-in-a-save")
    run.start()
    run.wait_for_step(8)
    since = strike_in_a_save(run, rank=rank)
    return conclude(run, fault=f"SIGKILL of rank {rank} during a save", since=since)


def strike_in_a_save(run: Run, *, rank: int) -> float:
    """Kill a rank while the folder of a checkpoint that is not committed is there; returns when."""
    for _ in range(20):
        victim = run.wait_for_worker(rank)
        folder = run.wait_for_save(after=run.newest_step())
        victim.send_signal(signal.SIGSTOP)
        time.sleep(0.01)
        if folder.exists():
            return kill(victim)
        victim.send_signal(signal.SIGCONT)
    raise ChaosError(f"{run.name}: no save was caught")


def kill_in_the_start(stage: Stage) -> Finding:
    """SIGKILL of a worker that has not said a word yet."""
    run = stage.make_run("kill-in-the-start")
    run.start()
    since = kill(run.wait_for_worker(1))
    return conclude(run, fault="SIGKILL of a worker during start", since=since)


def freeze(stage: Stage) -> Finding:
    """SIGSTOP of a worker: no process is gone, but none gets on; the collective's time-out ends it."""
    run = stage.make_run("freeze")
    run.start("collective_timeout_s=15")
    run.wait_for_step(12)
    victim = run.wait_for_worker(1)
    since = time.monotonic()
    victim.send_signal(signal.SIGSTOP)
    return conclude(run, fault="a worker freezes (SIGSTOP), time-out 15 s", since=since)


def kill_without_end(stage: Stage) -> Finding:
    """A worker that dies at every start: the budget ends the run, and the same command goes on."""
    run, broken = stage.make_run("kill-without-end"), []
    command = run.start("max_restarts=1")
    run.wait_for_step(12)
    kill(run.wait_for_worker(1))
    line = run.wait_for("starting the workers again from the checkpoint")
    while command.process.poll() is None and not (found := run.workers()):
        time.sleep(0.01)
    kill(found[0])
    status = command.wait()
    if status != 1 or not run.says("^error: worker . was lost: ended by signal 9"):
        broken.append(f"status {status} once the budget was spent: {run.lines[-1].text}")
    since = time.monotonic()
    run.start()
    run.finish()
    happened = f"{line.text}; then the run ended with status 1, and the same command finished it"
    return judge(run, fault="SIGKILL of workers, budget of 1 spent", happened=happened, since=since, broken=broken)


def poison_a_gradient(stage: Stage) -> Finding:
    """NaN in the gradient of one lane: not applied, noted; the run is the same when it is killed on the way."""
    poison = {"CHAOS_NAN_STEPS": "22,23"}
    settings = ("guard.max_bad_steps=2", "guard.skip_before=1")
    whole = stage.make_run("poisoned")
    whole.start(*settings, **poison)
    if whole.finish() != 0:
        raise ChaosError("\n".join(line.text for line in whole.lines[-20:]))
    run = stage.make_run("poisoned-and-killed")
    run.start(*settings, **poison)
    line = run.wait_for("back to the checkpoint of step 20")
    run.wait_for_step(27, since=line.time)
    since = kill(run.wait_for_worker(1))
    run.finish()
    happened = f"{line.text.removeprefix('warning: ')}; then a worker was killed"
    return judge_poisoned(run, whole=whole, happened=happened, since=since)


def judge_poisoned(run: Run, *, whole: Run, happened: str, since: float) -> Finding:
    """Against the poisoned run that nobody killed, and up to the first bad step against the clean one."""
    broken = find_remains(run)
    clean = curve_without_nan(run.stage.reference)
    ours, theirs = curve_without_nan(run), curve_without_nan(whole)
    if ours != theirs or rows_by_step(run.output) != rows_by_step(whole.output):
        broken.append("other steps than in the poisoned run that nobody killed")
    if ours[:20] != clean[:20]:
        broken.append("other steps than in the clean run before the window that was skipped")
    if [step for step, *_ in ours] != [*range(1, 21), *range(24, MAX_STEPS + 1)]:
        broken.append("other steps are missing than those that were skipped")
    return Finding(
        "NaN in the gradient of steps 22 and 23, then SIGKILL of a worker",
        happened,
        round(run.seconds_to_next_step(since) or 0.0, 2),
        len(run.executed()),
        "bits" if not broken else "differs",
        tuple(broken),
    )


def curve_without_nan(run: Run) -> list[tuple[int, float, float]]:
    """Step, loss and gradient norm of the steps that stand in metrics.jsonl (null is NaN)."""
    return [
        (record["step"], record["loss"], record["grad_norm"])
        for record in read_json_lines(run.output / "metrics.jsonl")
        if record["grad_norm"] is not None
    ]


def conclude(run: Run, *, fault: str, since: float) -> Finding:
    """Judge a run that started its workers again by itself."""
    run.finish()
    happened, broken = tell_restart(run)
    return judge(run, fault=fault, happened=happened, since=since, broken=broken)


def tell_restart(run: Run) -> tuple[str, list[str]]:
    """The lines in which a run says that it started its workers again; a complaint where it did not."""
    lines = [line.text for line in run.lines if "starting the workers again" in line.text]
    return "; then ".join(lines), [] if lines else ["the fault had no effect: the workers were not started again"]


FAULTS = (
    kill_in_a_step,
    kill_first_rank_in_a_step,
    kill_in_a_save,
    kill_first_rank_in_a_save,
    kill_in_the_start,
    freeze,
    kill_without_end,
    poison_a_gradient,
)
