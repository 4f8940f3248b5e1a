"""A device that is out of memory ends the run at once, under both launchers, in one line with remedies."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import make_config
from trainer_command import config_file, data, refusal

from pipeline.settings import ConfigError
from trainer import launch_processes, launch_ray, loop
from trainer.launch import Link, Outcome, Place, StopRequest
from trainer.launch_ray import ray_session, run_on_ray
from trainer.memory_shortage import describe_shortage, find_shortage
from trainer.restarts import run_attempts
from trainer.run_directory import write_config

__all__ = ["config_file", "data"]

ASKED = "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 23.64 GiB"


def raise_wrapped() -> None:
    """As compiled code does."""
    try:
        raise torch.OutOfMemoryError(ASKED)
    except torch.OutOfMemoryError as error:
        raise RuntimeError("backend='inductor' raised") from error


@contextmanager
def run_out(link: Link, place: Place) -> Iterator[Link]:
    """Worker 1 runs out of memory in its first step."""

    def step(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError(ASKED)

    if place.rank == 1:
        loop.train_step = step
    yield link


def test_every_form_of_a_shortage_is_known() -> None:
    for words in (
        "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "NCCL error in: ProcessGroupNCCL.cpp:2093, unhandled cuda error\nLast error:\nCuda failure 2 'out of memory'",
        "[enforce fail at alloc_cpu.cpp:118] err == 0. DefaultCPUAllocator: can't allocate memory: you tried",
    ):
        assert find_shortage(RuntimeError(words)) is not None, words
    with pytest.raises(RuntimeError) as caught:
        raise_wrapped()
    found = find_shortage(caught.value)
    assert isinstance(found, torch.OutOfMemoryError)
    assert find_shortage(RuntimeError("CUDA error: an illegal memory access was encountered")) is None
    assert find_shortage(ValueError("CUDA out of memory")) is None


def test_the_remedies_are_those_that_are_left(data: Path, tmp_path: Path) -> None:
    def describe(folder: Path = data, **changes: Any) -> str:
        config = make_config(folder, tmp_path, **changes)
        return describe_shortage(torch.OutOfMemoryError(ASKED), config=config, rank=1, device=torch.device("cpu"))

    text = describe(batch={"pairs": 8, "lanes": 2, "tokens_per_slot": 128}, zero_stage=1)
    assert text.startswith(
        "worker 1: out of memory on cpu (tried to allocate 2.50 GiB); batch.tokens_per_slot is 128: halve it to 64, "
        "or raise zero_stage=1, or set precision=bf16. "
    )
    assert text.endswith("A run that has begun keeps its slots: other slots need another output")
    (tmp_path / "checkpoints" / "step-00000003").mkdir(parents=True)
    assert describe().endswith(f"another output, with resume_from={tmp_path} from its newest checkpoint")
    assert "zero_stage" not in describe(workers=1)
    assert "precision" not in describe(precision="bf16")
    assert "batch.tokens_per_slot is too large" in describe(tmp_path / "gone")


def test_processes_end_at_once_with_status_2(
    config_file: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = launch_processes.run_in_processes
    monkeypatch.setattr(launch_processes, "run_in_processes", partial(original, watch=run_out))
    line = refusal(capfd, "--config", config_file)
    assert "worker 1: out of memory on cpu (tried to allocate 2.50 GiB)" in line
    assert "batch.tokens_per_slot is " in line


@pytest.mark.ray
def test_workers_of_ray_end_at_once(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    train = launch_ray._train

    def planted(task: Mapping[str, Any]) -> Outcome:
        import torch

        from trainer import loop

        def step(*_: Any, **__: Any) -> Any:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB.")

        loop.train_step = step
        return train(task)

    monkeypatch.setattr(launch_ray, "_train", planted)
    said: list[str] = []
    config = make_config(data, tmp_path / "run", launcher="ray")
    with ray_session(config) as settled:
        write_config(config)
        attempt = partial(run_on_ray, settled, say=said.append, stop=StopRequest())
        with pytest.raises(ConfigError, match=r"^worker 0: out of memory on cpu .*batch\.tokens_per_slot is "):
            run_attempts(attempt, config=config, say=said.append, stop=StopRequest())
    assert not any("starting the workers again" in line for line in said)
