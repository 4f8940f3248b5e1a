"""The engine on CUDA and NCCL: as many ranks as there are GPUs, up to two. Also `python tests/test_engine_gpu.py`.

Without pytest it prints what was measured: start, checkpoint pause, write and restore of BERT-Large.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing

from toy_training import accumulate, gather_state, make_config, make_engine, save_checkpoint, train
from trainer.checkpoint import CheckpointWriter, load
from trainer.engine.engine import Engine
from trainer.model import BertForPretraining
from trainer.train.link import WorkerPlace
from trainer.train.worker import set_up_process

LAYOUTS = [(0, "fp32"), *[(stage, precision) for precision in ("fp32", "bf16", "fp16") for stage in (1, 2, 3)]]
TOLERANCE = {"fp32": 1e-4, "bf16": 0.03, "fp16": 0.03}


def serve(rank: int, world_size: int, folder: str) -> None:
    place, device = WorkerPlace(rank, world_size, rank, world_size), torch.device("cuda", rank)
    set_up_process(make_config(deterministic=True), place=place, device=device)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=120),
        device_id=device,
    )
    check_stages(rank, Path(folder))
    check_non_finite(rank)
    check_rules(rank)
    measure_large(rank, Path(folder))
    dist.barrier()
    dist.destroy_process_group()


def check_stages(rank: int, folder: Path) -> None:
    """Each layout follows the fp32 curve, goes on bit for bit after a resume, and takes over the layout before it."""
    reference: list[tuple[float, float]] = []
    for number, (stage, precision) in enumerate(LAYOUTS):
        config = make_config(zero_stage=stage, precision=precision)
        begun = time.perf_counter()
        engine = make_engine(config, device=f"cuda:{rank}")
        seconds = time.perf_counter() - begun
        run = folder / str(number)
        curve = train(engine, config, first=1, last=4)
        save_checkpoint(run, step=4, engine=engine, plan_state={}, config=config)
        state = gather_state(engine)
        curve += train(engine, config, first=5, last=8)
        engine.close()
        reference = reference or curve
        for (loss, norm), (expected_loss, expected_norm) in zip(curve, reference, strict=True):
            assert math.isclose(loss, expected_loss, rel_tol=TOLERANCE[precision]), (stage, precision, curve)
            assert math.isclose(norm, expected_norm, rel_tol=3 * TOLERANCE[precision]), (stage, precision, curve)
        engine = make_engine(config, seed=9, device=f"cuda:{rank}")
        found = load.resume(load.find_together(run), engine=engine)
        assert found is not None
        same = gather_state(engine)
        assert all(torch.equal(state[k][n], same[k][n]) for k in state for n in state[k])
        again = train(engine, config, first=5, last=8)
        assert again == curve[4:], (stage, precision, again, curve)
        if number:
            load.resume(load.find_together(folder / str(number - 1)), engine=engine)
            other = train(engine, config, first=5, last=8)
            assert math.isclose(other[-1][0], reference[-1][0], rel_tol=0.05)
        engine.close()
        say(rank, f"ZeRO {stage} {precision}: curve, exact resume, resume of the layout before; start {seconds:.1f} s")


def check_non_finite(rank: int) -> None:
    for stage, precision in LAYOUTS:
        config = make_config(zero_stage=stage, precision=precision)
        engine = make_engine(config, device=f"cuda:{rank}")
        train(engine, config, first=1, last=1)
        before = gather_state(engine)
        accumulate(engine, 2, poison=float("nan"))
        result = engine.step(1e-2)
        after = gather_state(engine)
        assert result.skipped, (stage, precision)
        assert all(torch.equal(before[k][n], after[k][n]) for k in before for n in before[k])
        assert all(math.isfinite(loss) for loss, _ in train(engine, config, first=3, last=4))
        engine.close()
    say(rank, "a NaN on one rank is skipped on all, in every layout")


def check_rules(rank: int) -> None:
    """Over stages and precisions each rule stays near ZeRO-1 in fp32; Newton-Schulz in bf16 stays near fp64.

    tests/trainer/engine/test_update_rules.py compares the rules with fp64 on the CPU.
    """
    from trainer.engine import update_rules

    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(3, 64, 48, generator=generator, dtype=torch.float64)
    exact = update_rules.orthogonalize(matrix)
    found = update_rules.orthogonalize(matrix.float().to(f"cuda:{rank}")).double().cpu()
    assert float((found - exact).norm() / exact.norm()) < 0.05  # 0.034 in bf16 on a CPU
    for name, peak in (("lamb", 2e-2), ("radam", 1e-2), ("sgd", 1e-1), ("muon", 2e-2)):
        final: dict[str, dict[str, torch.Tensor]] = {}
        for stage, precision in ((1, "fp32"), (2, "fp32"), (3, "fp32"), (1, "bf16"), (2, "bf16"), (3, "bf16")):
            config = make_config(zero_stage=stage, precision=precision, optimizer={"name": name, "learning_rate": peak})
            engine = make_engine(config, device=f"cuda:{rank}")
            train(engine, config, first=1, last=8)
            values = gather_state(engine)["parameter"]
            engine.close()
            for key, reference in final.setdefault("first", values).items():
                distance = float((values[key] - reference).norm() / (reference.norm() + 0.1))
                assert distance < {"fp32": 1e-2, "bf16": 0.1}[precision], (name, stage, precision, key, distance)
    say(rank, "LAMB, RAdam, SGD and Muon agree over stages and precisions")


def measure_large(rank: int, folder: Path) -> None:
    from packed import on_device, random_batch

    for stage in (1, 3):
        settings: dict[str, Any] = {
            "model": {"size": "large"},
            "zero_stage": stage,
            "precision": "bf16",
            "deepspeed": {},
        }
        config = make_config(**settings)
        device = torch.device("cuda", rank)
        begun = time.perf_counter()
        model = BertForPretraining(config.model, vocabulary_size=30522, seed=1)
        built = time.perf_counter()
        engine = Engine(model, config=config, device=device, micro_batches=1)
        ready = time.perf_counter()
        batch = on_device(random_batch([256] * 8, vocabulary_size=30522, seed=rank), device)
        for _ in range(2):
            output = engine(batch)
            engine.backward(output.mlm_loss_sum / batch.num_masked, last=True)
            result = engine.step(1e-4)
        assert math.isfinite(result.grad_norm)
        torch.cuda.synchronize()
        writer = CheckpointWriter(folder / f"large-{stage}", engine=engine, config=config)
        times = []
        for step in (1, 2):
            dist.barrier()
            start = time.perf_counter()
            writer.save(step, plan_state={})
            paused = time.perf_counter() - start
            writer.finish()
            times.append((paused, time.perf_counter() - start))
        start = time.perf_counter()
        assert load.resume(load.find_together(folder / f"large-{stage}"), engine=engine) is not None
        torch.cuda.synchronize()
        restored = time.perf_counter() - start
        peak = torch.cuda.max_memory_allocated() / 2**30
        engine.close()
        say(
            rank,
            f"BERT-Large, ZeRO {stage}, {dist.get_world_size()} GPUs: model {built - begun:.1f} s, engine "
            f"{ready - built:.1f} s, save: pause {times[0][0]:.2f} then {times[1][0]:.2f} s, committed after "
            f"{times[0][1]:.1f} and {times[1][1]:.1f} s, verify + restore {restored:.1f} s, peak {peak:.1f} GiB",
        )


def say(rank: int, line: str) -> None:
    if rank == 0:
        print(line, flush=True)


def main() -> None:
    world_size = min(2, torch.cuda.device_count())
    with tempfile.TemporaryDirectory(prefix="cloze-gpu-") as folder:
        torch.multiprocessing.spawn(serve, (world_size, folder), nprocs=world_size)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "4")
    main()
else:
    import pytest

    @pytest.mark.gpu
    def test_engine_on_gpus() -> None:
        if not torch.cuda.is_available():
            pytest.skip("no CUDA device")
        main()
