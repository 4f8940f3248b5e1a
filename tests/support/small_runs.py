"""Whole runs of trainer.train.worker.work on a synthetic data set, by the ranks of a WorkerGroup."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from pipeline.storage import locate
from synthetic import write_data_set
from trainer.checkpoint.format import find_checkpoints
from trainer.config.saved import read_run_config
from trainer.config.schema import TrainerConfig
from trainer.data.micro_batch import MicroBatch
from trainer.data.stream import Step
from trainer.launch.run_directory import check_run_directory, write_config
from trainer.telemetry.metrics import read_json_lines
from trainer.train import loop
from trainer.train.link import Outcome, WorkerPlace
from trainer.train.prefetch import RunFeed
from trainer.train.worker import work


@dataclass(frozen=True)
class RunReport:
    """What one rank saw of a run."""

    outcome: Outcome
    executed: list[int]
    """Steps that were computed in this call, counted where they are computed."""
    said: list[str]
    micro_batches: dict[tuple[int, int], str]
    """(step, lane) -> hash of tokens, masks and labels there; of all ranks, for steps whose data was taken."""


class TestLink:
    """Collects lines; asks to stop once `stop_at` steps have been computed."""

    __test__ = False

    def __init__(self, *, executed: list[int], stop_at: int | None) -> None:
        self.said: list[str] = []
        self._executed, self._stop_at = executed, stop_at

    def say(self, line: str) -> None:
        self.said.append(line)

    def stop_requested(self) -> bool:
        return self._stop_at is not None and self._executed[-1] >= self._stop_at


def write_small_set(folder: Path, *, seed: int = 0) -> Path:
    """40 training rows of at most 32 tokens in 2 shards of 2 row groups, some held out; returns the folder."""
    write_data_set(folder, shards=2, row_groups=2, rows=10, max_seq_length=32, vocabulary_size=256, seed=seed)
    return folder


def make_config(data: Path, output: Path, **changes: Any) -> TrainerConfig:
    settings: dict[str, Any] = {
        "data": str(data),
        "output": str(output),
        "model": {"size": "tiny"},
        "batch": {"pairs": 8, "lanes": 4},
        "max_steps": 9,
        "workers": 2,
        "precision": "fp32",
        "device": "cpu",
        "launcher": "processes",
        "threads_per_worker": 1,
        "optimizer": {"learning_rate": 3e-3},
        "checkpoint": {"every_steps": 1000},
        "logging": {"tracker": "none", "row_ids": True, "every_steps": 1000},
        "evaluation": {"max_pairs": 16},
    }
    return TrainerConfig.model_validate({**settings, **changes})


def check_output(config: TrainerConfig) -> list[str]:
    """check_run_directory with what is in the output now."""
    saved = read_run_config(locate(config.output))
    return check_run_directory(config, saved=saved, checkpoints=find_checkpoints(config.output))


def run_rank(rank: int, config: TrainerConfig, stop_at: int | None, device: str = "cpu") -> RunReport:
    """Call `work` in this rank; `stop_at`: rank 1 is asked to stop once it has computed that step."""
    executed: list[int] = []
    micro_batches: dict[tuple[int, int], str] = {}
    compute, take = loop.train_step, RunFeed.next_step

    def counted(context: loop.TrainContext, step: int, **how: float) -> Any:
        executed.append(step)
        return compute(context, step, **how)

    def noted(feed: RunFeed) -> Step:
        data = take(feed)
        for micro_batch, lane in zip(data.micro_batches, data.lanes, strict=True):
            if micro_batch is not None:
                micro_batches[data.state.step, lane] = hash_micro_batch(micro_batch)
        return data

    world_size = dist.get_world_size()
    link = TestLink(executed=executed, stop_at=stop_at if rank == world_size - 1 else None)
    loop.train_step, RunFeed.next_step = counted, noted  # type: ignore[method-assign]
    try:
        place = WorkerPlace(rank, world_size, rank, world_size)
        outcome = work(config, place=place, link=link, device=torch.device(device))
    finally:
        loop.train_step, RunFeed.next_step = compute, take  # type: ignore[method-assign]
        torch.use_deterministic_algorithms(False)
    return RunReport(outcome, executed, link.said, micro_batches)


def hash_micro_batch(micro_batch: MicroBatch) -> str:
    """Of all that the model gets to see."""
    digest = hashlib.sha256()
    for field in ("input_ids", "lengths", "first_lengths", "masked_positions", "masked_labels", "nsp_labels"):
        values = getattr(micro_batch, field)
        digest.update(f"{field} {values.dtype} {values.size} ".encode() + values.tobytes())
    return digest.hexdigest()


def run(group: Any, config: TrainerConfig, *, stop_at: int | None = None) -> RunReport:
    """Run `config` on all ranks of a WorkerGroup as the launchers do; rank 0's report, micro-batches of all."""
    write_config(config)
    reports = group.run(run_rank, config, stop_at)
    assert all(report.outcome == reports[0].outcome for report in reports)
    assert all(report.executed == reports[0].executed for report in reports)
    return replace(
        reports[0], micro_batches={key: value for report in reports for key, value in report.micro_batches.items()}
    )


def curve(output: Path) -> list[tuple[int, str, str, str]]:
    """(step, loss, gradient norm, learning rate) of metrics.jsonl; floats in hexadecimal, so that == means all bits."""
    return [
        (record["step"], record["loss"].hex(), record["grad_norm"].hex(), record["learning_rate"].hex())
        for record in read_json_lines(output / "metrics.jsonl")
    ]


def rows_by_step(output: Path) -> dict[int, list[tuple[int, ...]]]:
    """Step -> sorted rows that the ranks took together."""
    rows: dict[int, list[tuple[int, ...]]] = {}
    for path in output.glob("rows-*.jsonl"):
        for record in read_json_lines(path):
            rows.setdefault(record["step"], []).extend(tuple(row) for row in record["rows"])
    return {step: sorted(taken) for step, taken in sorted(rows.items())}
