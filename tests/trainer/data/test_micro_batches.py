"""Micro-batches: cut where the next pair would not fit, whole pairs only, masks in place, nearly full."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.dataset import schema
from synthetic import wikipedia_lengths
from trainer.data.micro_batch import NO_LABEL, MicroBatch, MicroBatchShape
from trainer.data.packing import Packer, Rows
from trainer.data.row_groups import ROW, ROW_GROUP, SHARD


def make_table(lengths: Sequence[int], masked: Sequence[int], *, first_row: int = 0) -> pa.Table:
    """Rows as read_slice gives them: token j of row i is 1000 + 10 i + j, masked from its second token on."""
    count = len(lengths)
    return pa.table(
        {
            schema.INPUT_IDS: pa.array(
                [[1000 + 10 * (first_row + i) + j for j in range(n)] for i, n in enumerate(lengths)],
                pa.list_(pa.uint16()),
            ),
            schema.FIRST_LENGTH: pa.array([1] * count, pa.uint16()),
            schema.NEXT_SENTENCE_LABEL: pa.array([[0, 1, None][i % 3] for i in range(count)], pa.uint8()),
            schema.MASKED_POSITIONS: pa.array([list(range(1, 1 + m)) for m in masked], pa.list_(pa.uint16())),
            schema.MASKED_INPUTS: pa.array([[7] * m for m in masked], pa.list_(pa.uint16())),
            schema.SOURCE: pa.array([(first_row + i) % 3 for i in range(count)], pa.uint16()),
            SHARD: np.full(count, 4, np.int32),
            ROW_GROUP: np.full(count, 5, np.int32),
            ROW: np.arange(first_row, first_row + count, dtype=np.int32),
        }
    )


def cut_all(packer: Packer, rows: int) -> Iterator[MicroBatch]:
    while (micro_batch := packer.pack(max_rows=rows)) is not None:
        rows -= micro_batch.num_pairs
        yield micro_batch


def test_micro_batches_by_hand_over_two_blocks() -> None:
    tables = iter([make_table([3, 4, 2], [1, 2, 0]), make_table([5, 3], [1, 1], first_row=3)])
    shape = MicroBatchShape(tokens=10, pairs=3, masked=4, max_seq_length=5)
    packer = Packer(shape, next_rows=lambda: Rows.from_table(next(tables), epoch=0))
    first, second = cut_all(packer, 5)
    assert first.input_ids.tolist() == [1000, 7, 1002, 1010, 7, 7, 1013, 1020, 1021]
    assert first.masked_positions.tolist() == [1, 4, 5]
    assert first.masked_labels.tolist() == [1001, 1011, 1012]
    assert first.lengths.tolist() == [3, 4, 2]
    assert first.nsp_labels.tolist() == [0, 1, NO_LABEL]
    assert first.sources.tolist() == [0, 1, 2]
    assert first.masked_sources.tolist() == [0, 1, 1]
    assert second.masked_sources.tolist() == [0, 1]
    assert second.input_ids.tolist() == [1030, 7, 1032, 1033, 1034, 1040, 7, 1042]
    assert (second.shards.tolist(), second.row_groups.tolist(), second.rows.tolist()) == ([4, 4], [5, 5], [3, 4])
    assert packer.pack(max_rows=0) is None


def test_a_micro_batch_that_spans_blocks_is_joined() -> None:
    tables = iter([make_table([3], [1]), make_table([4], [2], first_row=1)])
    shape = MicroBatchShape(tokens=10, pairs=3, masked=4, max_seq_length=5)
    packer = Packer(shape, next_rows=lambda: Rows.from_table(next(tables), epoch=0))
    (micro_batch,) = cut_all(packer, 2)
    assert micro_batch.input_ids.tolist() == [1000, 7, 1002, 1010, 7, 7, 1013]
    assert micro_batch.masked_labels.tolist() == [1001, 1011, 1012]
    assert micro_batch.rows.tolist() == [0, 1]


def test_a_micro_batch_names_the_epoch_of_each_row_and_lost_rows_count() -> None:
    first, second = (
        Rows.from_table(make_table([3], [1]), epoch=4),
        Rows.from_table(make_table([4] * 5, [1] * 5), epoch=5),
    )
    tables = iter([first, 2, second, 7])
    packer = Packer(MicroBatchShape(tokens=50, pairs=9, masked=9, max_seq_length=5), next_rows=lambda: next(tables))
    micro_batch = packer.pack(max_rows=5)
    assert micro_batch is not None
    assert micro_batch.epochs.tolist() == [4, 5, 5]
    micro_batch = packer.pack(max_rows=9)
    assert micro_batch is not None
    assert micro_batch.epochs.tolist() == [5] * 3
    assert packer.pack(max_rows=-1) is None


def test_sliced_and_chunked_tables_read_alike() -> None:
    """ray#44615: list columns become object arrays; here they stay Arrow's offsets and values."""
    whole = make_table([3, 4, 2, 5], [1, 2, 0, 1])
    chunked = pa.concat_tables([whole.slice(0, 1), whole.slice(1, 2), whole.slice(3)])
    shape = MicroBatchShape(tokens=20, pairs=9, masked=9, max_seq_length=5)
    micro_batches = [
        Packer(shape, next_rows=lambda table=table: Rows.from_table(table, epoch=0)).pack(max_rows=3)
        for table in (whole.slice(1), chunked.slice(1), whole.take([1, 2, 3]))
    ]
    for micro_batch in micro_batches:
        assert micro_batch is not None
        assert micro_batch.input_ids.tolist() == [1010, 7, 7, 1013, 1020, 1021, 1030, 7, 1032, 1033, 1034]


@settings(max_examples=150)
@given(
    rows=st.lists(st.tuples(st.integers(2, 9), st.integers(0, 3)), min_size=1, max_size=40),
    cuts=st.lists(st.integers(0, 40), max_size=4),
    tokens=st.integers(9, 30),
    pairs=st.integers(1, 5),
    masked=st.integers(3, 9),
)
def test_a_micro_batch_ends_exactly_where_the_next_pair_does_not_fit(
    rows: list[tuple[int, int]], cuts: list[int], tokens: int, pairs: int, masked: int
) -> None:
    lengths = [length for length, _ in rows]
    counts = [min(count, length - 1) for length, count in rows]
    bounds = sorted({0, len(rows), *(cut for cut in cuts if cut < len(rows))})
    tables = iter(
        [make_table(lengths[start:stop], counts[start:stop], first_row=start) for start, stop in pairwise(bounds)]
    )
    shape = MicroBatchShape(tokens=tokens, pairs=pairs, masked=masked, max_seq_length=9)
    place = 0
    for micro_batch in cut_all(Packer(shape, next_rows=lambda: Rows.from_table(next(tables), epoch=0)), len(rows)):
        assert micro_batch.rows.tolist() == list(range(place, place + micro_batch.num_pairs))
        place += micro_batch.num_pairs
        assert micro_batch.num_tokens <= tokens
        assert micro_batch.num_pairs <= pairs
        assert micro_batch.num_masked <= masked
        if place < len(rows):
            assert (
                micro_batch.num_tokens + lengths[place] > tokens
                or micro_batch.num_pairs == pairs
                or micro_batch.num_masked + counts[place] > masked
            )
        restored = micro_batch.input_ids.copy()
        restored[micro_batch.masked_positions] = micro_batch.masked_labels
        begin = place - micro_batch.num_pairs
        expected = [1000 + 10 * i + j for i in range(begin, place) for j in range(lengths[i])]
        assert restored.tolist() == [value % 65536 for value in expected]
    assert place == len(rows)


@pytest.mark.parametrize("quota", [1, 3])
def test_a_micro_batch_holds_no_more_pairs_than_asked_for(quota: int) -> None:
    tables = iter([make_table([3, 4, 2, 5], [1] * 4), make_table([5] * 5, [1] * 5, first_row=4)])
    shape = MicroBatchShape(tokens=15, pairs=3, masked=9, max_seq_length=5)
    packer = Packer(shape, next_rows=lambda: Rows.from_table(next(tables), epoch=0))
    micro_batches = [packer.pack(max_rows=quota) for _ in range(9 // quota)]
    assert [micro_batch.num_pairs for micro_batch in micro_batches if micro_batch is not None] == [quota] * (9 // quota)
    assert [row for micro_batch in micro_batches if micro_batch is not None for row in micro_batch.rows] == list(
        range(9)
    )


def test_micro_batches_are_over_95_percent_full_from_200_000_rows_on() -> None:
    """64 lanes, lengths as Wikipedia's at 512, the last micro-batch of each lane included."""
    rows, lanes, longest = 200_000, 64, 512
    lengths = wikipedia_lengths(np.random.default_rng(0), rows, longest)
    starts = np.concatenate(([0], np.cumsum(lengths)))
    counts = np.maximum(1, np.rint(0.15 * lengths).astype(np.int64))
    masked_starts = np.concatenate(([0], np.cumsum(counts)))
    nothing = np.zeros(rows, dtype=np.int32)
    everything = Rows(
        ids=np.broadcast_to(np.uint16(0), starts[-1:]),
        starts=starts,
        masked_positions=np.broadcast_to(np.uint16(0), masked_starts[-1:]),
        masked_inputs=np.broadcast_to(np.uint16(0), masked_starts[-1:]),
        masked_starts=masked_starts,
        first_lengths=nothing.astype(np.uint16),
        nsp_labels=nothing.astype(np.int8),
        sources=nothing.astype(np.uint16),
        shards=nothing,
        row_groups=nothing,
        rows=nothing,
        epoch=0,
    )
    shape = MicroBatchShape(tokens=16_384, pairs=128, masked=2900, max_seq_length=longest)
    packer = Packer(shape, next_rows=lambda: everything)
    ends = np.searchsorted(starts, starts[-1] * np.arange(1, lanes + 1) // lanes)
    micro_batches, place = 0, 0
    for end in ends.tolist():
        for micro_batch in cut_all(packer, end - place):
            micro_batches += 1
            place += micro_batch.num_pairs
    assert place == rows
    assert starts[-1] / (micro_batches * shape.tokens) > 0.95
