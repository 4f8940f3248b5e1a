"""The stated batch becomes lanes and slots, and the numbers that are printed come true."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from synthetic import make_manifest, wikipedia_lengths, write_data_set

from pipeline.manifest import Manifest
from trainer.config import BatchConfig
from trainer.ingest import SlotStream
from trainer.plan import Plan, PlanError
from trainer.shapes import BatchShape, derive_shape


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Manifest]:
    root = tmp_path_factory.mktemp("shapes")
    manifest = write_data_set(
        root, shards=2, row_groups=2, rows=1500, max_seq_length=128, max_predictions=20, lengths=wikipedia_lengths
    )
    return root, manifest


def pairs_of_steps(data: tuple[Path, Manifest], shape: BatchShape) -> list[int]:
    root, manifest = data
    plan = Plan.from_manifest(manifest, lanes=shape.lanes, shape=shape.slot, seed=1, exact_pairs=shape.exact_pairs)
    stream = SlotStream(plan, root)
    counts = [step.num_pairs for step in stream.one_epoch()]
    stream.close()
    return counts


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
def test_steps_hold_the_stated_batch_on_average(data: tuple[Path, Manifest], batch: BatchConfig, lanes: int) -> None:
    shape = derive_shape(data[1], batch=batch)
    mean_length = data[1].num_tokens("train") / data[1].num_rows("train")
    stated = batch.pairs or (batch.tokens or 0) / mean_length
    assert shape.lanes == lanes
    assert shape.pairs_mean == pytest.approx(stated, rel=0.04)
    counts = pairs_of_steps(data, shape)
    full = counts[: int(0.9 * len(counts))]
    assert np.mean(full) == pytest.approx(shape.pairs_mean, rel=0.03)
    assert min(full) >= shape.pairs_least
    assert max(counts) <= shape.pairs_most
    # lanes are equal in tokens; where pairs end the slots, lanes of shorter rows take a little longer
    assert len(counts) == pytest.approx(shape.steps_per_epoch, rel=0.06, abs=1)
    assert shape.fill == pytest.approx(shape.pairs_mean * mean_length / (lanes * shape.slot.tokens))


def test_exact_batches(data: tuple[Path, Manifest]) -> None:
    shape = derive_shape(data[1], batch=BatchConfig(pairs=250, exact_pairs=True))
    assert (shape.lanes, shape.slot.pairs, shape.slot.tokens) == (8, 32, 32 * 128)
    assert set(pairs_of_steps(data, shape)) == {250}
    assert "exactly 250 pairs a step" in shape.describe()


def test_shapes_do_not_fill_short_of_the_data_set(data: tuple[Path, Manifest]) -> None:
    shape = derive_shape(data[1], batch=BatchConfig(pairs=100_000, lanes=4))
    assert shape.pairs_mean == 6000
    assert shape.steps_per_epoch == 1
    assert pairs_of_steps(data, shape) == [6000]
    longest = derive_shape(data[1], batch=BatchConfig(pairs=8, lanes=1, tokens_per_slot=2**31 - 1))
    assert pairs_of_steps(data, longest)[0] == 8
    with pytest.raises(ValueError, match=r"slots of .* tokens exceed the 2,147,483,647 .* raise batch\.lanes"):
        derive_shape(data[1], batch=BatchConfig(pairs=2**31 - 1, lanes=2))


def test_description(data: tuple[Path, Manifest]) -> None:
    text = derive_shape(data[1], batch=BatchConfig(pairs=128)).describe()
    assert "batch: 12" in text
    assert "4 lanes (greatest number of workers)" in text


def test_batches_that_cannot_be_are_refused(data: tuple[Path, Manifest]) -> None:
    manifest = data[1]
    with pytest.raises(PlanError, match=r"batch.pairs=3 .* fewer than batch.lanes=4.*at most 3"):
        derive_shape(manifest, batch=BatchConfig(pairs=3, lanes=4))
    with pytest.raises(
        PlanError, match=r"is 32.0 pairs a slot, but batch.tokens_per_slot=512 holds about .* set it to"
    ):
        derive_shape(manifest, batch=BatchConfig(pairs=128, lanes=4, tokens_per_slot=512))
    with pytest.raises(ValueError, match=r"tokens_per_slot=64 is below the data set's max_seq_length=128"):
        derive_shape(manifest, batch=BatchConfig(pairs=128, lanes=4, tokens_per_slot=64))
    with pytest.raises(PlanError, match="holds no train rows"):
        derive_shape(make_manifest([]), batch=BatchConfig(pairs=8))
