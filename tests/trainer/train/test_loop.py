"""The loop: losses over all ranks, evaluation that leaves no trace, every row once, non-finite numbers."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from pathlib import Path

import pytest
import torch

from pipeline.dataset.manifest import read_manifest
from small_runs import curve, make_config, rows_by_step, run, write_small_set
from synthetic import write_data_set
from trainer.checkpoint.load import find_checkpoints, newest_verified, read_weights
from trainer.data.batch_shape import derive_shape
from trainer.data.plan import Plan
from trainer.data.stream import MicroBatchStream
from trainer.model import BertForPretraining
from trainer.model.batch import to_batch
from trainer.telemetry.metrics import read_json_lines
from trainer.train.evaluate import unigram_log_probabilities
from trainer.train.loop import dropout_seed
from worker_group import WorkerError, WorkerGroup


@pytest.fixture(scope="module")
def groups(worker_group: Callable[[int], WorkerGroup]) -> dict[int, WorkerGroup]:
    return {world_size: worker_group(world_size) for world_size in (1, 2, 3)}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_small_set(folder)
    return folder


def test_numbers_do_not_depend_on_the_number_of_workers(
    groups: dict[int, WorkerGroup], data: Path, tmp_path: Path
) -> None:
    """Four lanes on 1, 2 and 3 workers (3: with empty micro-batches): same rows, same losses, norms and evaluation."""
    for world_size, group in groups.items():
        run(group, make_config(data, tmp_path / str(world_size), max_steps=4, workers=world_size))
    expected = read_json_lines(tmp_path / "1" / "metrics.jsonl")
    held_out = read_json_lines(tmp_path / "1" / "evaluations.jsonl")
    for world_size in (2, 3):
        output = tmp_path / str(world_size)
        assert rows_by_step(output) == rows_by_step(tmp_path / "1")
        for record, same in zip(read_json_lines(output / "metrics.jsonl"), expected, strict=True):
            for key in ("loss", "mlm_loss", "nsp_loss", "grad_norm"):
                assert record[key] == pytest.approx(same[key], rel=1e-5), (world_size, record["step"], key)
            for key in ("tokens", "pairs", "masked", "mlm_accuracy", "nsp_accuracy", "epoch", "learning_rate"):
                assert record[key] == same[key], (world_size, record["step"], key)
        (evaluation,) = read_json_lines(output / "evaluations.jsonl")
        assert evaluation.pop("data_hash") == held_out[0]["data_hash"]
        assert evaluation == pytest.approx({key: held_out[0][key] for key in evaluation}, rel=1e-4)
        assert evaluation.keys() | {"data_hash"} == held_out[0].keys()


def test_a_step_is_that_of_one_great_batch_in_plain_torch(
    groups: dict[int, WorkerGroup], data: Path, tmp_path: Path
) -> None:
    """Losses over all masked tokens and all pairs of the step: not a mean of the lanes' means."""
    model_settings = {"size": "tiny", "dropout": 0.0, "attention_dropout": 0.0}
    config = make_config(data, tmp_path / "run", max_steps=1, model=model_settings)
    run(groups[2], config)
    (record,) = read_json_lines(tmp_path / "run" / "metrics.jsonl")

    manifest = read_manifest(data)
    shape = derive_shape(manifest, batch=config.batch)
    plan = Plan(manifest, lanes=shape.lanes, shape=shape.micro_batch, seed=config.seed, pairs=shape.pairs)
    stream = MicroBatchStream(plan, data)
    step = stream.next_step()
    stream.close()
    model = BertForPretraining(config.model, vocabulary_size=manifest.vocabulary_size, seed=config.seed)
    outputs = [
        model(to_batch(micro_batch, shape=shape.micro_batch, special=manifest.special, constant_shapes=True))
        for micro_batch in step.micro_batches
    ]
    masked = [micro_batch.num_masked for micro_batch in step.micro_batches if micro_batch is not None]
    assert len(set(masked)) > 1, "lanes must weigh differently, or a mean of means would pass"
    mlm_loss = sum(output.mlm_loss_sum for output in outputs) / sum(masked)
    nsp_loss = sum(output.nsp_loss_sum for output in outputs) / record["pairs"]
    (mlm_loss + nsp_loss).backward()
    norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    assert record["mlm_loss"] == pytest.approx(float(mlm_loss.detach()), rel=1e-5)
    assert record["nsp_loss"] == pytest.approx(float(nsp_loss.detach()), rel=1e-5)
    assert record["grad_norm"] == pytest.approx(float(norm), rel=1e-5)


def test_an_epoch_reads_every_row_once(groups: dict[int, WorkerGroup], data: Path, tmp_path: Path) -> None:
    """ray#66085, #63285: a shuffle buffer gives short batches; an equal split drops rows silently."""
    output = tmp_path / "run"
    run(groups[2], make_config(data, output, max_steps=13))
    rows = list(chain.from_iterable(rows_by_step(output).values()))
    for epoch in (0, 1):
        expected = [(epoch, shard, group, row) for shard in (0, 1) for group in (0, 1) for row in range(10)]
        assert sorted(row for row in rows if row[0] == epoch) == expected
    records = read_json_lines(output / "metrics.jsonl")
    assert records[-1]["epoch"] == 2
    assert min(record["pairs"] for record in records) >= 4, "a step at the end of an epoch runs on into the next"


def test_evaluation_between_steps_leaves_no_trace(groups: dict[int, WorkerGroup], data: Path, tmp_path: Path) -> None:
    plain, evaluated = tmp_path / "plain", tmp_path / "evaluated"
    run(groups[2], make_config(data, plain, max_steps=4))
    run(groups[2], make_config(data, evaluated, max_steps=4, evaluation={"every_steps": 1, "max_pairs": 8}))
    assert curve(evaluated) == curve(plain)
    assert [record["step"] for record in read_json_lines(evaluated / "evaluations.jsonl")] == [1, 2, 3, 4]


def test_an_evaluation_reads_exactly_max_pairs(groups: dict[int, WorkerGroup], data: Path, tmp_path: Path) -> None:
    run(groups[2], make_config(data, tmp_path / "some", max_steps=1, evaluation={"max_pairs": 7}))
    run(groups[2], make_config(data, tmp_path / "all", max_steps=1, evaluation={"max_pairs": None}))
    (some,) = read_json_lines(tmp_path / "some" / "evaluations.jsonl")
    (everything,) = read_json_lines(tmp_path / "all" / "evaluations.jsonl")
    assert everything["pairs"] == 20
    assert some["pairs"] == 7


def test_a_model_without_next_sentences_trains(groups: dict[int, WorkerGroup], tmp_path: Path) -> None:
    write_data_set(tmp_path / "data", rows=10, max_seq_length=32, vocabulary_size=256, next_sentence="none")
    report = run(groups[2], make_config(tmp_path / "data", tmp_path / "run", max_steps=2))
    records = read_json_lines(tmp_path / "run" / "metrics.jsonl")
    assert [(record["nsp_loss"], record["nsp_accuracy"]) for record in records] == [(None, None)] * 2
    assert all(record["loss"] == record["mlm_loss"] for record in records)
    assert not any("next-sentence" in line for line in report.said)


def test_the_output_bias_may_start_from_the_frequencies_of_the_training_tokens(
    groups: dict[int, WorkerGroup], data: Path, tmp_path: Path
) -> None:
    expected = torch.from_numpy(unigram_log_probabilities(data, vocabulary_size=256))
    for start, bias in (("unigram", expected), ("zeros", torch.zeros(256))):
        model = {"size": "tiny", "output_bias": start}
        config = make_config(
            data, tmp_path / start, max_steps=1, workers=1, model=model, optimizer={"learning_rate": 1e-9}
        )
        run(groups[1], config)
        checkpoint = newest_verified(find_checkpoints(tmp_path / start))
        assert checkpoint is not None
        assert torch.allclose(read_weights(checkpoint)["mlm_head.bias"], bias.float(), atol=1e-6)


def test_a_data_set_that_holds_nothing_out_trains_without_evaluation(
    groups: dict[int, WorkerGroup], tmp_path: Path
) -> None:
    write_data_set(tmp_path / "data", rows=10, max_seq_length=32, vocabulary_size=256, validation_shards=0)
    report = run(groups[1], make_config(tmp_path / "data", tmp_path / "run", max_steps=1, workers=1))
    assert report.outcome.finished
    assert read_json_lines(tmp_path / "run" / "evaluations.jsonl") == []


def test_checkpoints_are_written_on_time_and_at_the_end(
    groups: dict[int, WorkerGroup], data: Path, tmp_path: Path
) -> None:
    output = tmp_path / "run"
    run(groups[2], make_config(data, output, max_steps=5, checkpoint={"every_steps": 2, "keep_last": 9}))
    assert [path.name for path in find_checkpoints(output).folders] == [
        "step-00000002",
        "step-00000004",
        "step-00000005",
    ]


def test_a_run_that_leaves_the_finite_numbers_stops_before_it_saves(
    groups: dict[int, WorkerGroup], data: Path, tmp_path: Path
) -> None:
    optimizer = {"learning_rate": 1e30, "clip_norm": 0.0}
    config = make_config(data, tmp_path / "run", optimizer=optimizer, schedule={"name": "constant"})
    with pytest.raises(WorkerError, match=r"DivergenceError: step \d: loss (nan|inf).*no checkpoint to go back to"):
        run(groups[1], config.model_copy(update={"workers": 1}))
    assert find_checkpoints(tmp_path / "run").folders == ()


def test_dropout_seeds_differ_by_seed_step_and_lane() -> None:
    seeds = {dropout_seed(seed, step=step, lane=lane) for seed in (1, 2) for step in (1, 2) for lane in range(4)}
    assert len(seeds) == 16
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert dropout_seed(12_345, step=1, lane=0) == dropout_seed(12_345, step=1, lane=0)
