"""Checkpoints written without training, on a store or a disk, looked at and damaged."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from torch import nn

from pipeline import storage
from pipeline.storage import StorageError
from small_runs import make_config
from trainer.checkpoint import CheckpointWriter, find_checkpoints
from trainer.checkpoint.format import open_manifest, step_of
from trainer.engine.engine import Engine
from trainer.telemetry.log_files import RunFiles
from untrained_run import _StillEngine


def make_writer(
    run: str | Path, *, token: str | None = None, timeout_s: int = 60, files: RunFiles | None = None, **checkpoint: Any
) -> CheckpointWriter:
    """Of a model of nine numbers; no process group."""
    engine = _StillEngine(cast(Any, nn.Linear(2, 3)))
    config = make_config(Path(), Path(run), checkpoint={"every_steps": 1, **checkpoint}, evaluation={"every_steps": 1})
    config = config.model_copy(update={"collective_timeout_s": timeout_s})
    return CheckpointWriter(run, engine=cast(Engine, engine), config=config, lease_token=token, files=files)


def write(run: str | Path, *steps: int, **checkpoint: Any) -> None:
    writer = make_writer(run, **checkpoint)
    for step in steps:
        writer.save(step, plan_state={})
        writer.finish()


def kept(run: str | Path) -> list[int]:
    return [step_of(folder) for folder in find_checkpoints(run).folders]


def names_in(run: str) -> list[str]:
    """Of all objects, the attempts' names taken out."""
    files = storage.list_files(f"{run}/checkpoints")
    return [re.sub(r"[0-9a-f]{16}", "ATTEMPT", file.name) for file in files]


def part_of(folder: str) -> str:
    place, files = open_manifest(folder)
    return storage.join(place, next(name for name in files if name.endswith(".safetensors")))


def flip_bit(url: str) -> None:
    data = bytearray(storage.read_bytes(url))
    data[len(data) // 2] ^= 1
    storage.write_bytes(url, data)


def fail_times(times: int, original: Callable[..., Any]) -> Callable[..., Any]:
    """The function, after so many calls at which the store is too busy."""
    left = iter(range(times))

    def failing(*args: Any, **how: Any) -> Any:
        if next(left, None) is not None:
            raise StorageError("s3://b/x: the store was too busy")
        return original(*args, **how)

    return failing
