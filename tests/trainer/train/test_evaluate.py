"""Held-out loss by source: sums by hand, the same on any number of workers, part of what is recorded and said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from micro_batches import make_micro_batch
from pipeline.dataset.manifest import read_manifest
from small_runs import make_config, run
from synthetic import write_data_set
from trainer.data.batch_shape import derive_shape
from trainer.data.stream import MicroBatchStream
from trainer.engine.engine import Engine
from trainer.telemetry.evaluation import Evaluation, SourceLoss
from trainer.telemetry.metrics import read_json_lines
from trainer.train import evaluate
from trainer.train.evaluate import Evaluator, SourceSums
from worker_group import WorkerGroup


def test_sums_by_hand() -> None:
    """Pairs of sources 2, 0, 1 with 1, 2 and 1 masked positions."""
    micro_batch = make_micro_batch([3, 4, 3], masked=[1, 2, 1])
    micro_batch.sources[:] = (2, 0, 1)
    sums = SourceSums(3)
    sums.add(micro_batch, losses=np.array([1.0, 2.0, 3.0, 4.0]), unigram=np.array([10.0, 20.0, 30.0, 40.0]))
    assert sums.table.tolist() == [[1, 2, 5, 50], [1, 1, 4, 40], [1, 1, 1, 10]]
    sums.add(micro_batch, losses=np.ones(4), unigram=np.ones(4))
    assert sums.table[2].tolist() == [2, 2, 2, 11]


def test_sources_are_said_and_recorded_by_name() -> None:
    source = SourceLoss("books-en", pairs=4, masked=60, mlm_loss=3.25, unigram_loss=6.0)
    evaluation = Evaluation(9, 100, 1500, 5.0, 0.25, 0.5, 0.75, 6.25, sources=(source,))
    assert evaluation.lines()[-1] == (
        "held-out masked-LM loss on books-en 3.2500 nats (unigram 6.0000), over 60 masked tokens of 4 pairs"
    )
    record = evaluation.record()
    assert record["mlm_loss/books-en"] == 3.25
    assert (record["pairs/books-en"], record["masked/books-en"], record["unigram_loss/books-en"]) == (4, 60, 6.0)
    assert "sources" not in record
    assert Evaluation.of(record) == evaluation  # as a finished run is told again


def test_a_source_without_a_pair_does_not_vanish(worker_group: Callable[[int], WorkerGroup], tmp_path: Path) -> None:
    source = SourceLoss("books-en", pairs=4, masked=60, mlm_loss=3.25, unigram_loss=6.0)
    evaluation = Evaluation(9, 100, 1500, 5.0, 0.25, 0.5, 0.75, 6.25, sources=(source,), unseen=("a-en", "b/de"))
    assert evaluation.lines()[-2:] == [
        f"held-out masked-LM loss on {name}: unknown, none of the 100 pairs is from it; raise "
        "evaluation.max_pairs, or build the data set with more held-out rows"
        for name in ("a-en", "b/de")
    ]
    record = evaluation.record()
    assert (record["pairs/a-en"], record["masked/a-en"]) == (0, 0)
    assert "mlm_loss/a-en" not in record
    assert Evaluation.of(record) == evaluation
    data = tmp_path / "data"
    write_data_set(data, row_groups=1, rows=3, max_seq_length=32, vocabulary_size=256, num_sources=5)
    run(worker_group(1), make_config(data, tmp_path / "run", workers=1, max_steps=1))
    (found,) = map(Evaluation.of, read_json_lines(tmp_path / "run" / "evaluations.jsonl"))
    assert [source.name for source in found.sources] == ["source-0", "source-1", "source-2"]
    assert found.unseen == ("source-3", "source-4")


def test_losses_by_source_add_up_on_any_number_of_workers(
    worker_group: Callable[[int], WorkerGroup], tmp_path: Path
) -> None:
    data = tmp_path / "data"
    write_data_set(data, row_groups=1, rows=10, max_seq_length=32, vocabulary_size=256, num_sources=3)
    assert read_manifest(data).sources == ("source-0", "source-1", "source-2")
    records = []
    for world_size in (1, 3):
        output = tmp_path / str(world_size)
        config = make_config(data, output, max_steps=1, workers=world_size, evaluation={"max_pairs": None})
        report = run(worker_group(world_size), config)
        (record,) = read_json_lines(output / "evaluations.jsonl")
        assert sum("held-out masked-LM loss on source-" in line for line in report.said) == 3
        assert [record[f"pairs/source-{number}"] for number in range(3)] == [4, 3, 3]
        masked = [record[f"masked/source-{number}"] for number in range(3)]
        assert sum(masked) == record["masked"]
        for key in ("mlm_loss", "unigram_loss"):
            losses = [record[f"{key}/source-{number}"] for number in range(3)]
            assert np.dot(losses, masked) / sum(masked) == pytest.approx(record[key], rel=1e-6)
        assert len({record[f"mlm_loss/source-{number}"] for number in range(3)}) == 3
        records.append(record)
    assert {record.pop("data_hash") for record in records} == {read_manifest(data).hash}
    assert records[0]["phase"] == 0
    assert records[1] == pytest.approx(records[0], rel=1e-4)


def test_what_is_evaluated_depends_on_neither_batch_nor_lanes_nor_workers(
    worker_group: Callable[[int], WorkerGroup], tmp_path: Path
) -> None:
    """Of a model that no step has changed: the same rows, counts and sources, the same losses to rounding."""
    data = tmp_path / "data"
    write_data_set(data, row_groups=3, rows=40, max_seq_length=32, vocabulary_size=256, num_sources=2)
    batches: list[dict[str, Any]] = [
        {"pairs": 8, "lanes": 4},
        {"pairs": 70, "lanes": 5},
        {"tokens": 400},
        {"pairs": 12, "lanes": 3, "exact_pairs": True},
        {"pairs": 40, "lanes": 8, "tokens_per_slot": 300},
    ]
    records = []
    for world_size, batch in zip((1, 2, 3, 1, 3), batches, strict=True):
        output = tmp_path / str(len(records))
        facts: dict[str, Any] = {"workers": 1, "batch": batch, "evaluation": {"max_pairs": 50}}
        config = make_config(data, output, max_steps=1, optimizer={"learning_rate": 1e-30}, **facts)
        report = run(worker_group(world_size), config)
        records += read_json_lines(output / "evaluations.jsonl")
        lanes = [line for line in report.said if "empty micro-steps" in line]
        assert len(lanes) == (batch.get("lanes", 1) % world_size > 0), "of the workers that there are, not of config's"
    assert records[0]["pairs"] == 50
    assert len({record.pop("data_hash") for record in records}) == 1
    for record in records[1:]:
        assert record == pytest.approx(records[0], rel=1e-5)
        for name in ("pairs", "masked", "pairs/source-0", "masked/source-1", "mlm_accuracy", "nsp_accuracy"):
            assert record[name] == records[0][name], name


def test_an_evaluation_that_fails_leaves_nothing_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_data_set(tmp_path / "data", row_groups=1, rows=40, max_seq_length=32, vocabulary_size=256)
    config = make_config(tmp_path / "data", tmp_path / "run", workers=1, evaluation={"max_pairs": None})
    manifest = read_manifest(tmp_path / "data")
    evaluator = Evaluator(config, manifest=manifest, shape=derive_shape(manifest, batch=config.batch))
    closed: list[MicroBatchStream] = []

    def close(stream: MicroBatchStream) -> None:
        closed.append(stream)

    monkeypatch.setattr(MicroBatchStream, "close", close)
    engine = SimpleNamespace(rank=0, world_size=1, device=torch.device("cpu"), evaluation=fail)
    monkeypatch.setattr(evaluate, "sum_over_ranks", lambda counts: counts)
    with pytest.raises(RuntimeError, match="out of memory"):
        evaluator.evaluate(cast(Engine, engine), step=1)
    (stream,) = closed
    monkeypatch.undo()
    stream.close()


def fail() -> None:
    raise RuntimeError("out of memory")


def test_a_single_source_is_not_said_twice(worker_group: Callable[[int], WorkerGroup], tmp_path: Path) -> None:
    write_data_set(tmp_path / "data", row_groups=1, rows=8, max_seq_length=32, vocabulary_size=256)
    report = run(worker_group(1), make_config(tmp_path / "data", tmp_path / "run", max_steps=1, workers=1))
    (record,) = read_json_lines(tmp_path / "run" / "evaluations.jsonl")
    assert not [key for key in record if "/" in key]
    assert not [line for line in report.said if "loss on" in line]
