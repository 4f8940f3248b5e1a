"""The stated batch becomes lanes and micro-batches, and the numbers that are printed come true."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from pipeline.dataset.manifest import DataSetError, Manifest, Shard
from synthetic import Lengths, full_lengths, make_manifest, uniform_lengths, wikipedia_lengths, write_data_set
from trainer.config import BatchConfig
from trainer.data import batch_shape
from trainer.data.batch_shape import BatchShape, derive_shape
from trainer.data.plan import Plan, PlanError
from trainer.data.stream import MicroBatchStream


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Manifest]:
    root = tmp_path_factory.mktemp("shapes")
    manifest = write_data_set(
        root, shards=2, row_groups=2, rows=1500, max_seq_length=128, max_predictions=20, lengths=wikipedia_lengths
    )
    return root, manifest


def short_lengths(generator: np.random.Generator, count: int, longest: int) -> np.ndarray:
    """Sentences: most are a sixth of the longest, few are as long."""
    return np.minimum(longest, 5 + generator.geometric(6 / longest, count))


def two_lengths(generator: np.random.Generator, count: int, longest: int) -> np.ndarray:
    """As many headings as full rows."""
    return np.where(generator.random(count) < 0.5, longest // 8, longest)


def nearly_full_lengths(generator: np.random.Generator, count: int, longest: int) -> np.ndarray:
    """Novels."""
    return np.where(generator.random(count) < 0.9, longest, generator.integers(5, longest, count))


LENGTHS = [full_lengths, uniform_lengths, wikipedia_lengths, short_lengths, two_lengths, nearly_full_lengths]


def pairs_of_steps(data: tuple[Path, Manifest], shape: BatchShape, *, steps: int) -> list[int]:
    root, manifest = data
    plan = Plan(manifest, lanes=shape.lanes, shape=shape.micro_batch, seed=1, pairs=shape.pairs)
    stream = MicroBatchStream(plan, root)
    counts = [stream.next_step().num_pairs for _ in range(steps)]
    stream.close()
    return counts


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize(
    "batch",
    [
        BatchConfig(pairs=33, lanes=4),
        BatchConfig(pairs=32),
        BatchConfig(pairs=128),
        BatchConfig(pairs=40, lanes=40),
        BatchConfig(tokens=2000, lanes=2),
        BatchConfig(tokens=8192),
        BatchConfig(pairs=64, tokens_per_slot=1024),
        BatchConfig(pairs=32, lanes=2, tokens_per_slot=4096),
    ],
    ids=lambda batch: "-".join(f"{key}{value}" for key, value in batch.model_dump(exclude_defaults=True).items()),
)
def test_steps_hold_the_stated_batch(lengths: Lengths, batch: BatchConfig) -> None:
    """100,000 rows cut at the plan's pace: the mean is what was stated, within a hundredth, and what is said."""
    rows = lengths(np.random.default_rng(0), 100_000, 128).astype(np.int64)
    shape = derive_shape(manifest_of(rows), batch=batch)
    stated = batch.pairs or (batch.tokens or 0) / rows.mean()
    counts = cut_steps(rows, shape)
    assert np.mean(counts) == pytest.approx(stated, rel=0.01)
    assert np.mean(counts) == pytest.approx(shape.pairs_mean, rel=0.005)
    assert shape.tokens_mean == pytest.approx(stated * rows.mean())
    assert counts.min() >= shape.pairs_least
    assert counts.max() <= shape.pairs_most
    assert f"batch: {stated:,.{0 if float(stated).is_integer() else 1}f} pairs a step" in shape.describe()


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("size", [1, 1.6, 2, 5, 20, 31.5, 33.5, 70])
def test_the_mean_of_full_micro_batches_is_exact(lengths: Lengths, size: float) -> None:
    rows = lengths(np.random.default_rng(1), 200_000, 128).astype(np.int64)
    tokens = int(size * 128)
    starts = np.concatenate(([0], np.cumsum(rows)))
    micro_batches = place = 0
    while (end := int(np.searchsorted(starts, starts[place] + tokens, side="right")) - 1) < rows.size:
        micro_batches, place = micro_batches + 1, end
    assert batch_shape.Lengths(np.bincount(rows)).pairs_in(tokens) == pytest.approx(place / micro_batches, rel=0.003)


def test_micro_batches_are_hardly_larger_than_the_pace_needs() -> None:
    """8,192 tokens of pairs with lengths as Wikipedia's, in micro-batches that a greedy cut would fill to 97.6%."""
    rows = wikipedia_lengths(np.random.default_rng(0), 100_000, 512)
    shape = derive_shape(manifest_of(rows, longest=512), batch=BatchConfig(tokens=8192, lanes=1))
    assert 0.96 < shape.fill < 0.976


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("exact", [False, True])
def test_derived_micro_batches_keep_to_the_greatest(lengths: Lengths, exact: bool) -> None:
    manifest = manifest_of(lengths(np.random.default_rng(0), 100_000, 128).astype(np.int64))
    for greatest in (128, 256, 512, 1000, 4096):
        for pairs in (7, 16, 48, 64, 100, 256, 1000):
            batch = BatchConfig(pairs=pairs, greatest_slot=greatest, exact_pairs=exact)
            assert derive_shape(manifest, batch=batch).micro_batch.tokens <= greatest, batch


def manifest_of(rows: np.ndarray, *, longest: int = 128) -> Manifest:
    """A manifest of one shard with rows of these lengths, of which 15% are masked."""
    counts, tokens = np.bincount(rows, minlength=longest + 1), int(rows.sum())
    facts = {"bytes": 1, "sha256": "0", "footer_sha256": "0", "max_masked": 20, "masked": 2 * round(0.15 * tokens)}
    shard = Shard.model_validate(
        {
            "path": "data/train-00000-of-00001.parquet",
            "split": "train",
            "rows": rows.size,
            "tokens": tokens,
            "row_group_rows": (rows.size,),
            "row_group_tokens": (tokens,),
            **facts,
        }
    )
    return make_manifest([shard], max_seq_length=longest, max_predictions=20, lengths={"train": counts})


def cut_steps(rows: np.ndarray, shape: BatchShape) -> np.ndarray:
    """Pairs of an epoch's steps, without reading: lanes side by side, each micro-batch as Packer ends it."""
    plan = Plan(manifest_of(rows), lanes=shape.lanes, shape=shape.micro_batch, seed=1, pairs=shape.pairs)
    starts = np.concatenate(([0], np.cumsum(np.concatenate([rows, rows]))))
    first = rows.size // shape.lanes * np.arange(shape.lanes)
    done = np.zeros(shape.lanes, np.int64)
    counts = []
    for step in range(int(0.99 * rows.size / shape.pairs_mean)):
        place = first + done
        fits = np.searchsorted(starts, starts[place] + shape.micro_batch.tokens, side="right") - 1 - place
        taken = np.minimum.reduce([fits, plan.pairs_due(step + 1) - done, np.full_like(fits, shape.micro_batch.pairs)])
        done += taken
        counts.append(taken.sum())
    return np.array(counts)


@pytest.mark.parametrize(
    ("batch", "lanes"),
    [
        (BatchConfig(pairs=128), 4),
        (BatchConfig(pairs=96, lanes=6), 6),
        (BatchConfig(tokens=8192), 4),
        (BatchConfig(pairs=128, tokens_per_slot=1024), 9),
        (BatchConfig(pairs=64, tokens_per_slot=1536), 3),
        (BatchConfig(pairs=32, lanes=2, tokens_per_slot=4096), 2),
        (BatchConfig(pairs=16, lanes=16), 16),
    ],
)
def test_what_is_said_of_a_batch_comes_true(data: tuple[Path, Manifest], batch: BatchConfig, lanes: int) -> None:
    """As steps of the stream, over epochs: also where one ends."""
    shape = derive_shape(data[1], batch=batch)
    mean_length = data[1].num_tokens("train") / data[1].num_rows("train")
    stated = batch.pairs or (batch.tokens or 0) / mean_length
    assert shape.lanes == lanes
    assert shape.pairs_mean == pytest.approx(stated)
    counts = pairs_of_steps(data, shape, steps=150)
    assert np.mean(counts) == pytest.approx(stated, rel=0.01)
    assert min(counts) >= shape.pairs_least
    assert max(counts) <= shape.pairs_most
    assert shape.steps_per_epoch == math.ceil(6000 / stated)
    assert shape.fill == pytest.approx(shape.pairs_mean * mean_length / (lanes * shape.micro_batch.tokens))


def test_exact_batches(data: tuple[Path, Manifest]) -> None:
    shape = derive_shape(data[1], batch=BatchConfig(pairs=250, exact_pairs=True))
    assert (shape.lanes, shape.micro_batch.pairs, shape.micro_batch.tokens) == (8, 32, 32 * 128)
    assert set(pairs_of_steps(data, shape, steps=60)) == {250}
    assert "exactly 250 pairs a step" in shape.describe()


def test_shapes_do_not_fill_short_of_the_data_set(data: tuple[Path, Manifest]) -> None:
    shape = derive_shape(data[1], batch=BatchConfig(pairs=100_000, lanes=4))
    assert shape.pairs_mean == 6000
    assert shape.steps_per_epoch == 1
    assert sum(pairs_of_steps(data, shape, steps=5)) == pytest.approx(5 * 6000, rel=0.01)
    longest = derive_shape(data[1], batch=BatchConfig(pairs=8, lanes=1, tokens_per_slot=2**31 - 1))
    assert set(pairs_of_steps(data, longest, steps=9)) == {8}
    shard = data[1].shards[0].model_copy(update={"rows": 10**9, "tokens": 10**11})
    with pytest.raises(ValueError, match=r"tokens exceed the maximum of 2,147,483,647; .* raise batch\.lanes"):
        derive_shape(make_manifest([shard], max_seq_length=128), batch=BatchConfig(pairs=2**31 - 1, lanes=2))


def test_description(data: tuple[Path, Manifest]) -> None:
    text = derive_shape(data[1], batch=BatchConfig(pairs=128)).describe()
    assert "batch: 128 pairs a step (least 68, most 256), 8,4" in text
    assert "4 lanes (greatest number of workers)" in text


def test_batches_that_cannot_be_are_refused(data: tuple[Path, Manifest]) -> None:
    manifest = data[1]
    with pytest.raises(PlanError, match=r"batch.pairs=3 .* fewer than batch.lanes=4.*at most 3"):
        derive_shape(manifest, batch=BatchConfig(pairs=3, lanes=4))
    with pytest.raises(
        PlanError, match=r"is 32.0 pairs a micro-batch, but batch.tokens_per_slot=512 holds about .* set it to"
    ):
        derive_shape(manifest, batch=BatchConfig(pairs=128, lanes=4, tokens_per_slot=512))
    with pytest.raises(ValueError, match=r"tokens_per_slot=64 is below the data set's max_seq_length=128"):
        derive_shape(manifest, batch=BatchConfig(pairs=128, lanes=4, tokens_per_slot=64))
    with pytest.raises(
        PlanError, match=r"is 250.0 pairs a micro-batch, .*=12800 must hold them at any length; set it to 32000"
    ):
        derive_shape(manifest, batch=BatchConfig(pairs=250, lanes=1, tokens_per_slot=12_800, exact_pairs=True))
    other = manifest.model_copy(update={"statistics": {}})
    with pytest.raises(DataSetError, match=r"statistics\.splits\.train\.lengths has 0 rows, the shards have 6,000"):
        derive_shape(other, batch=BatchConfig(pairs=128))
    with pytest.raises(PlanError, match="holds no train rows"):
        derive_shape(make_manifest([]), batch=BatchConfig(pairs=8))
