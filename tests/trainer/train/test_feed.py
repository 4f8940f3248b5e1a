"""What a feed does ahead, while the device computes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pipeline.dataset.manifest import read_manifest
from small_runs import write_small_set
from trainer.config.schema import TrainerConfig
from trainer.data.phases import open_phases, resolve_phases
from trainer.data.stream import MicroBatchStream
from trainer.model.batch import Batch, to_batch
from trainer.train import prefetch as feed_module
from trainer.train.prefetch import Feed


def test_the_first_micro_batch_of_a_step_is_laid_out_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_small_set(tmp_path / "data")
    manifest = read_manifest(root)
    config = TrainerConfig.model_validate(
        {"data": str(root), "output": "none", "batch": {"pairs": 8, "lanes": 2}, "max_steps": 3}
    )
    (phase,) = open_phases(resolve_phases(config), manifests=[manifest])
    monkeypatch.setattr("torch.distributed.all_reduce", lambda counts, async_op: SimpleNamespace(wait=lambda: None))
    laid_out = []

    def counted(micro_batch: Any, **how: Any) -> Batch:
        laid_out.append(micro_batch)
        return to_batch(micro_batch, **how)

    monkeypatch.setattr(feed_module, "to_batch", counted)
    stream = MicroBatchStream(phase.plan, root)
    feed = Feed(stream, shape=phase.shape.micro_batch, special=manifest.special, device=torch.device("cpu"))
    for _ in range(2):
        feed.look_ahead()
        assert len(laid_out) == 1
        step = feed.next_step()
        first, second = step.micro_batches
        assert laid_out[0] is first
        batches = [feed.to_batch(micro_batch) for micro_batch in (first, second, first)]
        assert [micro_batch is first for micro_batch in laid_out] == [
            True,
            False,
            True,
        ]  # kept for one call, and for no other micro-batch
        assert torch.equal(batches[0].input_ids, batches[2].input_ids)
        assert not torch.equal(batches[0].input_ids, batches[1].input_ids)
        laid_out.clear()
    feed.close()
