"""A device that is out of memory ends the run at once, under both launchers, in one line with remedies."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.dataset.manifest import read_manifest
from pipeline.settings import ConfigError
from pipeline.signals import StopRequest
from small_runs import make_config
from trainer.checkpoint.load import find_checkpoints
from trainer.config.schema import TrainerConfig
from trainer.data.batch_shape import derive_shape
from trainer.data.phases import resolve_phases
from trainer.launch import processes, ray_train
from trainer.launch.preflight import check
from trainer.launch.ray_train import ray_session, run_on_ray
from trainer.launch.restarts import run_attempts
from trainer.launch.run_directory import write_config
from trainer.train import loop
from trainer.train.link import Link, Outcome, WorkerPlace
from trainer.train.memory_shortage import describe_shortage, find_shortage
from trainer_command import refusal

ASKED = "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 23.64 GiB"


def raise_wrapped() -> None:
    """As compiled code does."""
    try:
        raise torch.OutOfMemoryError(ASKED)
    except torch.OutOfMemoryError as error:
        raise RuntimeError("backend='inductor' raised") from error


def raise_while_handling(error: Exception) -> None:
    """Raise `error` with a shortage as its context."""
    try:
        raise torch.OutOfMemoryError(ASKED)
    except torch.OutOfMemoryError:
        raise error  # noqa: B904


@contextmanager
def run_out(link: Link, place: WorkerPlace) -> Iterator[Link]:
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


@pytest.mark.parametrize("kind", [ValueError, OSError, KeyError, ConfigError])
def test_an_error_that_is_raised_while_one_is_handled_is_its_own(kind: type[Exception]) -> None:
    with pytest.raises(kind) as caught:
        raise_while_handling(kind("the data set is gone"))
    assert find_shortage(caught.value) is None


def test_a_runtime_error_that_is_raised_while_one_is_handled_is_it() -> None:
    with pytest.raises(RuntimeError) as caught:
        raise_while_handling(RuntimeError("the group is gone"))
    assert isinstance(find_shortage(caught.value), torch.OutOfMemoryError)


def test_the_remedies_are_those_that_are_left(data: Path, tmp_path: Path) -> None:
    def describe(folder: Path = data, **changes: Any) -> str:
        config = make_config(folder, tmp_path, **changes)
        return describe_shortage(torch.OutOfMemoryError(ASKED), config=config, rank=1, device=torch.device("cpu"))

    text = describe(batch={"pairs": 8, "lanes": 2, "tokens_per_slot": 128}, zero_stage=1)
    assert text.startswith(
        "worker 1: out of memory on cpu (tried to allocate 2.50 GiB); a micro-batch has 128 tokens: double batch.lanes "
        "to 4 and lower batch.tokens_per_slot to 64, or raise zero_stage=1, or set precision=bf16, or set "
        "recompute=layers. "
    )
    assert text.endswith("A run that has begun keeps its micro-batches: changing them needs another output")
    (tmp_path / "checkpoints" / "step-00000003").mkdir(parents=True)
    assert describe().endswith(f"another output, with resume_from={tmp_path} from its newest checkpoint")
    assert "zero_stage" not in describe(workers=1)
    assert "precision" not in describe(precision="bf16")
    assert "recompute" not in describe(recompute="layers")
    assert "make micro-batches smaller (batch.lanes, batch.tokens_per_slot)" in describe(tmp_path / "gone")


@pytest.mark.parametrize(
    ("batch", "remedy"),
    [
        ({"pairs": 64, "lanes": 2}, {"batch.lanes": 4}),
        ({"pairs": 3, "lanes": 2}, {"batch.lanes": 3}),
        ({"pairs": 64, "tokens_per_slot": 100}, {"batch.tokens_per_slot": 50}),
        ({"pairs": 64, "greatest_slot": 128}, {"batch.greatest_slot": None}),
        ({"pairs": 64, "tokens_per_slot": 40}, {"batch.tokens_per_slot": 32}),  # the longest row
        ({"pairs": 64, "tokens_per_slot": 32}, {}),
        ({"pairs": 4, "lanes": 4}, {}),
        ({"pairs": 40, "lanes": 2, "exact_pairs": True}, {"batch.lanes": 4}),
        ({"pairs": 40, "exact_pairs": True, "greatest_slot": 320}, {"batch.greatest_slot": None}),
    ],
)
def test_a_remedy_is_one_that_the_program_takes(
    data: Path, tmp_path: Path, batch: dict[str, Any], remedy: dict[str, int | None]
) -> None:
    config = make_config(data, tmp_path, batch=batch, zero_stage=3, precision="bf16")
    error = torch.OutOfMemoryError(ASKED)
    text = describe_shortage(error, config=config, rank=0, device=torch.device("cpu"))
    found = {key: int(value) for key, value in re.findall(r"(?:double|raise|lower) (batch\.\w+) to (\d+)", text)}
    assert {key: found.get(key) if value else None for key, value in remedy.items()} == remedy
    assert found.keys() == remedy.keys()
    if not remedy:
        assert "no smaller micro-batches are possible: set recompute=layers, use GPUs with more memory, or" in text
        return
    changed = {key.removeprefix("batch."): value for key, value in found.items()}
    after = check(make_config(data, tmp_path / "other", batch={**batch, **changed}, workers=1)).config
    before = check(make_config(data, tmp_path / "other", batch=batch, workers=1)).config
    assert tokens_of(after) < tokens_of(before)


def tokens_of(config: TrainerConfig) -> int:
    (phase,) = resolve_phases(config)
    return derive_shape(read_manifest(config.data), batch=phase.config.batch).micro_batch.tokens


def test_processes_end_at_once_with_status_2(
    config_file: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = processes.run_in_processes
    monkeypatch.setattr(processes, "run_in_processes", partial(original, watch=run_out))
    line = refusal(capfd, "--config", config_file)
    assert "worker 1: out of memory on cpu (tried to allocate 2.50 GiB)" in line
    assert "a micro-batch has " in line
    assert ": double batch.lanes to 8" in line


@pytest.mark.ray
def test_workers_of_ray_end_at_once(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    train = ray_train._train

    def planted(task: Mapping[str, Any]) -> Outcome:
        import torch

        from trainer.train import loop

        def step(*_: Any, **__: Any) -> Any:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB.")

        loop.train_step = step
        return train(task)

    monkeypatch.setattr(ray_train, "_train", planted)
    said: list[str] = []
    config = make_config(data, tmp_path / "run", launcher="ray")
    with ray_session(config) as settled:
        write_config(config)
        attempt = partial(run_on_ray, settled, say=said.append, stop=StopRequest())
        with pytest.raises(
            ConfigError, match=r"^worker [01]: out of memory on cpu .*a micro-batch has .*: double batch\.lanes to 8"
        ):
            run_attempts(
                attempt, config=config, checkpoints=find_checkpoints(config.output), say=said.append, stop=StopRequest()
            )
    assert not any("starting the workers again" in line for line in said)
