"""A run on a GPU that is stopped and goes on has the bits of one that was never stopped, with `deterministic`.

Also `python tests/test_resume_gpu.py cpu`, which tries the test itself where there is no GPU.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import torch._inductor.config
import torch.distributed as dist
import torch.multiprocessing

from small_runs import curve, make_config, rows_by_step, run_rank, write_small_set
from trainer.checkpoint.load import find_checkpoints
from trainer.launch.run_directory import write_config
from trainer.train.link import WorkerPlace
from trainer.train.worker import set_up_process

STEPS = 9


def train_in_parts(rank: int, data: Path, output: Path, stops: Sequence[int], device: str) -> None:
    """The only rank of a process of its own, which chooses its kernels anew."""
    on_gpu = device != "cpu"
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
        store=dist.HashStore(),
        rank=0,
        world_size=1,
        device_id=torch.device(device) if on_gpu else None,
    )
    precision = "bf16" if on_gpu else "fp32"
    config = make_config(data, output, workers=1, device=device.split(":")[0], precision=precision, deterministic=True)
    write_config(config)
    done = 0
    for stop in (*stops, STEPS):
        report = run_rank(rank, config, stop if stop < STEPS else None, device)
        assert report.executed == list(range(done + 1, stop + 1))
        done = stop
    dist.destroy_process_group()


def check_same_bits(folder: Path, *, device: str) -> None:
    data = write_small_set(folder / "data")
    whole, parts = folder / "whole", folder / "parts"
    for output, stops in ((whole, ()), (parts, (3, 5, 7))):
        torch.multiprocessing.spawn(train_in_parts, (data, output, stops, device))
    assert len(curve(whole)) == STEPS
    assert curve(parts) == curve(whole)
    assert rows_by_step(parts) == rows_by_step(whole)
    (one,), (*_, other) = find_checkpoints(whole).folders, find_checkpoints(parts).folders
    assert one.name == other.name
    tensors = [sorted(path.relative_to(folder) for path in folder.rglob("*.safetensors")) for folder in (one, other)]
    assert tensors[0] == tensors[1] != []
    assert all((one / name).read_bytes() == (other / name).read_bytes() for name in tensors[0])


@pytest.mark.parametrize("deterministic", [False, True])
def test_the_setting_counts_on_gpus(monkeypatch: pytest.MonkeyPatch, deterministic: bool) -> None:
    """CUBLAS_WORKSPACE_CONFIG: without it torch refuses products, whose sums then vary."""
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    config = make_config(Path("data"), Path("run"), deterministic=deterministic)
    with torch._inductor.config.patch(deterministic=False):
        set_up_process(config, place=WorkerPlace(0, 1, 0, 1), device=torch.device("cuda", 0))
        found = torch.are_deterministic_algorithms_enabled(), torch._inductor.config.deterministic
        torch.use_deterministic_algorithms(False)
    assert found == (deterministic, deterministic)
    assert os.environ.get("CUBLAS_WORKSPACE_CONFIG") == (":4096:8" if deterministic else None)


@pytest.mark.gpu
def test_three_resumes_on_a_gpu_give_the_same_bits(tmp_path: Path) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    check_same_bits(tmp_path, device="cuda:0")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="cloze-resume-") as scratch:
        check_same_bits(Path(scratch), device=sys.argv[1])
