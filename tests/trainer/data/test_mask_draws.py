"""Masks drawn while training: the build's rule, its statistics, and the same masks for any world size and resume."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import small_runs
from ingest_streams import assert_same, make_plan, run
from pipeline import draws
from pipeline.dataset.manifest import Manifest, Special
from pipeline.instances.masking import make_masks
from pipeline.instances.pairs import make_pairs
from pipeline.instances.rows import assemble_rows
from pipeline.tokenizer.tokenizer import WordTokenizer
from small_runs import curve, make_config, write_small_set
from synthetic import SPECIAL, full_lengths, vocabulary, write_data_set
from tiny_text import FIRST_ID, make_document, make_tokenizer
from tiny_text import make_config as make_build
from trainer.config import BatchConfig, MaskingConfig
from trainer.data import derive_shape
from trainer.data.mask_draws import MaskDraws, read_tokens
from trainer.data.micro_batch import MicroBatch
from trainer.data.packing import Rows
from trainer.data.plan import Plan
from trainer.telemetry.metrics import read_json_lines
from worker_group import WorkerGroup

PIECES = 4000
BERT = Special(pad=0, unk=100, cls=101, sep=102, mask=103)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> WordTokenizer:
    pieces = [*(f"word{number}" for number in range(PIECES)), *(f"##s{number}" for number in range(PIECES))]
    return make_tokenizer(tmp_path_factory.mktemp("vocabulary"), pieces)


def draws_of(tokens: list[str], *, longest: int, special: Special = BERT, **changes: Any) -> MaskDraws:
    config = MaskingConfig.model_validate({"source": "drawn", **changes})
    return MaskDraws.make(config, tokens=tokens, special=special, seed=5, max_steps=100, longest=longest)


def with_marks(sentences: list[list[int]], *, name: int) -> Any:
    """A document whose ids of pieces after the first of a word are of the vocabulary's ## half."""
    starts = [piece == 0 for words in sentences for pieces in words for piece in range(pieces)]
    ids = [FIRST_ID + (name * 97 + place) % PIECES + (0 if start else PIECES) for place, start in enumerate(starts)]
    return make_document(sentences, name=name, ids=ids)


corpora = st.lists(
    st.lists(st.lists(st.integers(1, 3) | st.integers(1, 30), min_size=1, max_size=12), min_size=1, max_size=6),
    min_size=2,
    max_size=5,
).map(lambda corpus: [with_marks(document, name=name) for name, document in enumerate(corpus)])


@settings(max_examples=60, deadline=None)
@given(corpora, st.sampled_from([24, 62]), st.sampled_from([0.15, 0.4]), st.booleans())
def test_the_rule_is_the_builds(
    tokenizer: WordTokenizer, documents: Any, longest: int, rate: float, whole_words: bool
) -> None:
    """With the same keys the same masks, which other code draws when a data set is built."""
    config = make_build(
        max_seq_length=longest, masked_probability=rate, masking="whole_word" if whole_words else "token"
    )
    rows = assemble_rows(
        documents, make_pairs(documents, config=config, pass_number=0), special=tokenizer.special, seed=7
    )
    stored = make_masks(rows, config=config, tokenizer=tokenizer, mask_sets=[0])[0]
    ours = draws_of(tokenizer.tokens, longest=longest, rate=rate, whole_words=whole_words)
    keys = draws.derive(rows.keys, 0)
    positions, inputs, counts = ours.choose(rows.ids, rows.offsets, keys=keys, rate=rate)
    np.testing.assert_array_equal(positions, stored.positions)
    np.testing.assert_array_equal(inputs, stored.inputs)
    np.testing.assert_array_equal(counts, np.diff(stored.offsets))


def big_rows(count: int, length: int, *, first: int, stop: int) -> Rows:
    """Rows [CLS] words [SEP] of one length, with ids drawn from [first, stop)."""
    ids = np.random.default_rng(0).integers(first, stop, size=(count, length)).astype(np.uint16)
    ids[:, 0], ids[:, -1] = BERT.cls, BERT.sep
    nothing, zeros = np.zeros(0, np.uint16), np.zeros(count, np.int32)
    return Rows(
        ids=ids.ravel(),
        starts=np.arange(count + 1, dtype=np.int32) * length,
        masked_positions=nothing,
        masked_inputs=nothing,
        masked_starts=np.zeros(count + 1, np.int32),
        first_lengths=np.full(count, length, np.uint16),
        nsp_labels=np.full(count, -1, np.int8),
        sources=zeros.astype(np.uint16),
        shards=zeros,
        row_groups=zeros,
        rows=np.arange(count, dtype=np.int32),
        epoch=0,
    )


@pytest.mark.parametrize(("masked", "random"), [(0.8, 0.1), (1.0, 0.0), (0.5, 0.3)])
def test_shares_are_those_of_the_settings(tokenizer: WordTokenizer, masked: float, random: float) -> None:
    """Over 76,000 tokens: within 4 standard deviations. Random ids are neither special nor unused, and all alike."""
    rows = big_rows(2000, 128, first=FIRST_ID, stop=FIRST_ID + PIECES)
    ours = draws_of(tokenizer.tokens, longest=128, rate=0.3, masked_share=masked, random_share=random)
    drawn = ours.draw(rows, 0, len(rows), step=1)
    np.testing.assert_array_equal(np.diff(drawn.masked_starts), np.full(2000, 38))
    row = np.repeat(np.arange(2000), 38)
    labels = rows.ids[row * 128 + drawn.masked_positions]
    total = labels.size
    is_mask, is_same = drawn.masked_inputs == BERT.mask, drawn.masked_inputs == labels
    for found, share in ((is_mask, masked), (~is_mask & ~is_same, random), (is_same, 1 - masked - random)):
        deviation = max(1e-9, (share * (1 - share) / total) ** 0.5)
        assert abs(found.mean() - share) < 4 * deviation + 1e-3 * random, share
    others = drawn.masked_inputs[~is_mask & ~is_same].astype(int)
    assert (others >= FIRST_ID).all()
    if random:
        assert abs(others.mean() - (FIRST_ID + PIECES)) < 4 * (2 * PIECES / 12**0.5) / others.size**0.5
    places = np.bincount(drawn.masked_positions, minlength=128)
    assert places[0] == places[-1] == 0
    assert abs(places[1:-1] - total / 126).max() < 5 * (total / 126) ** 0.5
    assert drawn.masked_positions.reshape(2000, 38).argsort(axis=1).tolist() == [list(range(38))] * 2000


def test_words_are_masked_whole_and_alike(tokenizer: WordTokenizer) -> None:
    """Ids of both halves: a word is a piece and the ## pieces after it, and becomes [MASK] as a whole or stays."""
    rows = big_rows(500, 64, first=FIRST_ID, stop=FIRST_ID + 2 * PIECES)
    drawn = draws_of(tokenizer.tokens, longest=64, random_share=0.0).draw(rows, 0, 500, step=1)
    partly = 0
    for row in range(500):
        ids = rows.ids[row * 64 : row * 64 + 64]
        part = slice(drawn.masked_starts[row], drawn.masked_starts[row + 1])
        inputs = dict(zip(drawn.masked_positions[part].tolist(), drawn.masked_inputs[part].tolist(), strict=True))
        heads = [0, 1, *(place for place in range(2, 63) if ids[place] < FIRST_ID + PIECES), 63, 64]
        for begin, end in pairwise(heads):
            inside = [place in inputs for place in range(begin, end)]
            assert len(set(inside)) == 1, (row, begin)
            if inside[0]:
                masked = [inputs[place] == BERT.mask for place in range(begin, end)]
                assert len(set(masked)) == 1
                partly += end - begin > 1
        assert 1 <= len(inputs) <= 10
    assert partly > 100


def test_the_rate_moves_in_a_line_and_rows_follow_it(tokenizer: WordTokenizer) -> None:
    ours = draws_of(tokenizer.tokens, longest=128, rate=0.3, final_rate=0.15)
    rows = big_rows(20, 100, first=FIRST_ID, stop=FIRST_ID + PIECES)
    counts = {step: set(np.diff(ours.draw(rows, 0, 20, step=step).masked_starts)) for step in (1, 34, 67, 100, 200)}
    assert counts == {1: {30}, 34: {25}, 67: {20}, 100: {15}, 200: {15}}


def test_masks_change_with_the_epoch_and_the_row_and_not_with_the_range(tokenizer: WordTokenizer) -> None:
    ours = draws_of(tokenizer.tokens, longest=64)
    rows = big_rows(10, 64, first=FIRST_ID, stop=FIRST_ID + PIECES)
    rows = replace(rows, ids=np.tile(rows.ids[:64], 10))

    def of(made: Rows, row: int) -> list[int]:
        return made.masked_positions[made.masked_starts[row] : made.masked_starts[row + 1]].tolist()

    whole, part = ours.draw(rows, 0, 10, step=1), ours.draw(rows, 3, 7, step=1)
    later = ours.draw(replace(rows, epoch=1), 0, 10, step=1)
    assert [of(part, row) for row in range(10)] == [of(whole, row) if 3 <= row < 7 else [] for row in range(10)]
    assert len({tuple(of(made, row)) for made in (whole, later) for row in range(10)}) == 20


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Manifest]:
    root = tmp_path_factory.mktemp("ingest")
    return root, write_data_set(root, shards=3, row_groups=3, rows=21)


def test_the_same_masks_for_any_world_size_and_from_any_step(data: tuple[Path, Manifest]) -> None:
    root, manifest = data
    plan = make_plan(manifest)
    masks = draws_of(read_tokens(root), longest=64, special=SPECIAL, rate=0.15, final_rate=0.1)
    expected = run(plan, root, steps=40, masks=masks)
    assert expected[-1][0].state.epoch >= 2
    for world_size in (2, 3, 8):
        assert_same(run(plan, root, world_size=world_size, steps=40, masks=masks), expected)
    state = expected[16][0].state
    assert_same(run(plan, root, world_size=3, steps=23, state=state, masks=masks), expected[17:])
    stored = run(plan, root, steps=1)
    assert not np.array_equal(micro_batch(stored).masked_positions, micro_batch(expected).masked_positions)


def micro_batch(steps: Any) -> MicroBatch:
    found = steps[0][1][0]
    assert isinstance(found, MicroBatch)
    return found


def test_micro_batches_have_room_for_the_greatest_rate(tmp_path: Path) -> None:
    """At 40% as many rows fit as at 15%: the limit of masked positions follows the rate."""
    manifest = write_data_set(tmp_path, rows=64, lengths=full_lengths, max_seq_length=64)
    drawn = MaskingConfig(source="drawn", rate=0.15, final_rate=0.4)
    plain, more = (derive_shape(manifest, batch=BatchConfig(pairs=32), masking=masking) for masking in (None, drawn))
    assert plain == derive_shape(manifest, batch=BatchConfig(pairs=32), masking=MaskingConfig())
    assert (more.pairs_mean, more.micro_batch.tokens) == (plain.pairs_mean, plain.micro_batch.tokens)
    assert more.micro_batch.masked >= 0.4 * more.micro_batch.tokens
    plan = Plan(manifest, lanes=more.lanes, shape=more.micro_batch, seed=0, pairs=more.pairs)
    masks = MaskDraws.make(
        drawn, tokens=vocabulary(512), special=SPECIAL, seed=0, max_steps=1, longest=manifest.max_seq_length
    )
    for step, _ in run(plan, tmp_path, steps=12, masks=masks):
        assert step.num_masked == pytest.approx((0.15 if step.state.step == 1 else 0.4) * step.num_tokens, rel=0.05)


def test_a_run_with_drawn_masks_resumes_bit_for_bit_and_evaluates_on_the_stored_ones(
    worker_group: Callable[[int], WorkerGroup], tmp_path: Path
) -> None:
    small = write_small_set(tmp_path / "set")

    def configure(output: str, **changes: Any) -> Any:
        masking = {"source": "drawn", "rate": 0.3, "final_rate": 0.15}
        return make_config(small, tmp_path / output, **{"max_steps": 6, "masking": masking, **changes})

    pair = worker_group(2)
    whole = small_runs.run(pair, configure("whole"))
    small_runs.run(pair, configure("stopped"), stop_at=3)
    small_runs.run(pair, configure("stopped"))
    assert curve(tmp_path / "stopped") == curve(tmp_path / "whole")
    alone = small_runs.run(worker_group(1), configure("alone", workers=1))
    assert alone.micro_batches == whole.micro_batches
    stored = small_runs.run(pair, configure("stored", masking={}))
    assert stored.micro_batches != whole.micro_batches
    evaluated = [read_json_lines(tmp_path / run / "evaluations.jsonl")[-1] for run in ("whole", "stored")]
    assert len({(one["pairs"], one["masked"], one["unigram_loss"]) for one in evaluated}) == 1
    with pytest.raises(ValueError, match=r"masking\.rate: 0\.3 -> 0\.2"):
        small_runs.check_output(configure("whole", masking={"source": "drawn", "rate": 0.2, "final_rate": 0.15}))
    assert any("moves masking.final_rate" in line for line in small_runs.check_output(configure("whole", max_steps=9)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"masking": {"rate": 0.3}},
            r"masking\.rate=0\.3 .*=stored uses the masks of the data set; set masking\.source",
        ),
        ({"masking": {"source": "drawn", "masked_share": 0.8, "random_share": 0.3}}, r"are more than the whole"),
        ({"masking": {"source": "drawn", "final_rate": 0.3}, "max_hours": 1}, r"max_hours=1\.0 may forestall"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_config(tmp_path, tmp_path / "run", **changes)
