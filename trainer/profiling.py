"""Profile a training step: `python -m trainer.profiling --config FILE [key.sub=value ...]`.

Runs a few steps of the real training loop on this machine. Writes OUTPUT-profile/trace.json (for chrome://tracing or
Perfetto) and parts.md, with times by kind of work and by phase of the step (forward, backward, update). The run in
OUTPUT is not touched. Recording costs about 20 us an operation, so small models look slower than they are.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from pipeline import storage
from pipeline.console import command
from pipeline.settings import ConfigError, describe, refuse_flags, split_arguments
from pipeline.signals import stop_on_signals
from trainer.config import TrainerConfig
from trainer.launch import WorkerError, check, processes, read_config, write_config
from trainer.train import Link, WorkerPlace

REPOSITORY = Path(__file__).resolve().parent.parent
PROGRAM = "python -m trainer.profiling"
WARM_UP, RECORDED = 5, 5
"""WARM_UP is the number of steps before recording, in which the model is compiled. RECORDED is the number of recorded
steps."""
TRACE, PARTS = "trace.json", "parts.md"

KINDS = {
    "communication": ("nccl", "gloo", "all_reduce", "allreduce", "reduce_scatter", "all_gather"),
    "attention": ("attention", "flash", "fmha"),
    "matrix products": ("gemm", "nvjet", "cutlass", "cublas", "splitk", "addmm", "aten::mm", "aten::bmm", "linear"),
    "GELU": ("gelu",),
    "LayerNorm, dropout, residual": ("layer_norm", "layernorm", "norm_forward", "norm_backward", "dropout"),
    "optimizer": ("fusedoptimizer", "fused_adam", "adamw", "lerp", "addcmul"),
    "cross-entropy": ("nll_loss", "softmax", "cross_entropy"),
    "copies and fills": ("memcpy", "memset", "copy_", "foreach_copy", "tensorlist", "fill", "zero_"),
    "sums": ("red_fused_sum", "reduce_kernel", "per_fused_sum", "aten::sum"),
}
"""Maps a kind of work to parts of the names of its kernels (on a CPU: its operators). A kernel belongs to the first
kind with a part that its name contains."""
OTHER = "other"

HELP = f"""usage: {PROGRAM} [--config FILE] [key.sub=value ...]

Records {RECORDED} steps after {WARM_UP} warm-up steps, with the settings of trainer/run.py in spawned processes, and
writes OUTPUT-profile/{TRACE} and OUTPUT-profile/{PARTS}. On a host with GPUs workers=2 shows communication too.
"""


@dataclass(frozen=True, slots=True)
class Parts:
    """The times of a step on the first worker, in milliseconds."""

    kinds: dict[str, float]
    """Maps a kind of work to the time in which its kernels ran (on a CPU: its operators)."""
    phases: dict[str, float]
    """Maps each phase of a step (forward, backward, update) to the time from the first to the last kernel of the phase.
    Empty on a CPU."""
    launches: float
    """Number of kernels in a step; 0 on a CPU."""
    step_ms: float
    """Time from one step to the next."""

    @property
    def idle_ms(self) -> float:
        """Time of a step, in milliseconds, in which none of the work in `kinds` ran."""
        return max(0.0, self.step_ms - sum(self.kinds.values()))

    def table(self) -> str:
        """Return the times as two Markdown tables: by kind of work and, on a GPU, by phase of the step."""
        rows = sorted(self.kinds.items(), key=lambda item: -item[1])
        lines = ["| part | ms per step | share |", "|---|---|---|"]
        lines += [f"| {name} | {ms:.2f} | {ms / self.step_ms:.1%} |" for name, ms in rows if ms > 0]
        lines += [f"| idle (host, waiting) | {self.idle_ms:.2f} | {self.idle_ms / self.step_ms:.1%} |"]
        lines += [f"| whole step | {self.step_ms:.2f} | {self.launches:,.0f} kernels |"]
        if self.phases:
            lines += ["", "| phase | ms per step |", "|---|---|"]
            lines += [f"| {name} | {ms:.2f} |" for name, ms in self.phases.items()]
        return "\n".join(lines) + "\n"


@command()
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status: 0 if it succeeded, 1 if it failed, 2 if it was refused."""
    try:
        words = split_arguments(sys.argv[1:] if arguments is None else arguments, program=PROGRAM)
        refuse_flags(words.flags, program=PROGRAM)
        if "--help" in words.flags:
            print(HELP + describe(TrainerConfig))
            return 0
        config = read_config(words, repository=REPOSITORY)
        name = storage.base_name(config.output) if storage.is_url(config.output) else config.output
        folder = Path(f"{name}-profile")
        print(profile_run(config, folder=folder).table(), end="")
        print(f"trace and table: {folder}")
        return 0
    except WorkerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def profile_run(config: TrainerConfig, *, folder: Path) -> Parts:
    """Train a few steps, write the trace and the times to `folder`, which is created, and return the times.

    Raises ConfigError if the config has too few steps.
    """
    steps = WARM_UP + 1 + RECORDED  # one step warms up the recorder
    if config.max_steps <= steps:
        raise ConfigError(f"max_steps={config.max_steps}: recording needs more than {steps} steps; raise max_steps")
    scratch = folder / "run"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    config = config.model_copy(
        update={
            "output": str(scratch),
            "launcher": "processes",
            "logging": config.logging.model_copy(update={"tracker": "none", "row_ids": False}),
            "evaluation": config.evaluation.model_copy(update={"every_steps": None}),
            "checkpoint": config.checkpoint.model_copy(update={"every_steps": config.max_steps, "keep_best": 0}),
        }
    )
    for line in check(config).lines:
        print(line, flush=True)
    config = processes.resolve_device(config)
    write_config(config)
    with stop_on_signals() as stop:
        processes.run_in_processes(config, say=print, stop=stop, watch=partial(record, folder=str(folder)))
    shutil.rmtree(scratch)
    parts = read_parts(folder / TRACE)
    (folder / PARTS).write_text(parts.table(), encoding="utf-8")
    return parts


@contextmanager
def record(link: Link, place: WorkerPlace, *, folder: str) -> Iterator[Link]:
    """Record this worker's steps inside the `with` block. At the end, the first worker writes the trace to `folder`.

    `link` is the worker's connection to its launcher. Yields a link that takes its place and also asks the worker to
    stop after the last recorded step.
    """
    activities = [torch.profiler.ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(torch.profiler.ProfilerActivity.CUDA)

    def write(profiler: torch.profiler.profile) -> None:
        if place.rank == 0:
            profiler.export_chrome_trace(f"{folder}/{TRACE}")

    schedule = torch.profiler.schedule(wait=WARM_UP, warmup=1, active=RECORDED, repeat=1)
    with torch.profiler.profile(activities=activities, schedule=schedule, on_trace_ready=write) as profiler:
        yield _CountingLink(link, profiler=profiler)


class _CountingLink:
    """A worker's connection to its launcher that also tells the profiler when a step ends.

    The training loop asks this connection once a step whether to stop. Each time, the profiler advances by one step.
    """

    def __init__(self, link: Link, *, profiler: torch.profiler.profile) -> None:
        self._link, self._profiler, self._steps = link, profiler, 0

    def say(self, line: str) -> None:
        self._link.say(line)

    def stop_requested(self) -> bool:
        self._steps += 1
        self._profiler.step()
        return self._steps >= WARM_UP + 1 + RECORDED or self._link.stop_requested()


def read_parts(trace: Path) -> Parts:
    """Return the times of a step, by kind of work and by phase of the step, from a trace that `record` wrote."""
    events = [event for event in json.loads(trace.read_text(encoding="utf-8"))["traceEvents"] if "dur" in event]
    steps = [event for event in events if str(event["name"]).startswith("ProfilerStep")]
    count = len({event["name"] for event in steps})
    by_host = [event for event in steps if event.get("cat") == "user_annotation"]
    span_us = max(end_of(event) for event in by_host) - min(float(event["ts"]) for event in by_host)
    kernels = [event for event in events if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    kinds: dict[str, float] = defaultdict(float)
    for event in kernels or own_times(events):
        kinds[kind_of(str(event["name"]))] += event["dur"] / 1e3 / count
    phases = {
        name: sum(e["dur"] for e in events if e.get("cat") == "gpu_user_annotation" and e["name"] == name) / 1e3 / count
        for name in ("forward", "backward", "update")
    }
    return Parts(
        kinds=dict(kinds),
        phases={name: ms for name, ms in phases.items() if ms > 0},
        launches=len(kernels) / count,
        step_ms=span_us / 1e3 / count,
    )


def own_times(events: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield {"name": the operator's name, "dur": its own time in us} for each CPU operator among the trace's `events`.

    The own time of an operator does not include the operators that it called.
    """
    threads: dict[Any, list[Mapping[str, Any]]] = defaultdict(list)
    for event in events:
        if event.get("cat") == "cpu_op":
            threads[event["tid"]].append(event)
    for members in threads.values():
        members.sort(key=lambda event: (event["ts"], -event["dur"]))
        open_operators: list[dict[str, Any]] = []
        for event in members:
            while open_operators and end_of(open_operators[-1]) <= event["ts"]:
                yield _closed(open_operators.pop())
            if open_operators:
                open_operators[-1]["inner"] += event["dur"]
            open_operators.append({**event, "inner": 0.0})
        while open_operators:
            yield _closed(open_operators.pop())


def end_of(event: Mapping[str, Any]) -> float:
    """Return the end time of a trace event, in us."""
    return float(event["ts"]) + float(event["dur"])


def kind_of(name: str) -> str:
    """Return the kind of work that a kernel or operator with this name does: a key of KINDS, or OTHER."""
    small = name.lower()
    return next((kind for kind, parts in KINDS.items() if any(part in small for part in parts)), OTHER)


def _closed(event: dict[str, Any]) -> dict[str, Any]:
    return {"name": event["name"], "dur": max(0.0, event["dur"] - event["inner"])}


if __name__ == "__main__":
    sys.exit(main())
