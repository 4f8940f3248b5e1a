"""Which books are cut for several workers: only where these may then be ready sooner."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpora import make_config
from pipeline.config.schema import PipelineConfig, SourceConfig
from pipeline.documents import WHOLE, Piece, Split
from pipeline.engines.base import CLUSTER_WORKERS, count_readers
from pipeline.sources.splits import cut_split, deal_splits, list_splits, own_text_bytes, share_books


def test_a_book_of_21_mb_goes_to_both_workers(tmp_path: Path) -> None:
    for name, size in (("great.txt", 21_000_000), ("small.txt", 1_000_000), ("other.txt", 2_000_000)):
        with open(tmp_path / name, "wb") as file:
            file.truncate(size)
    configs = [SourceConfig(kind="books", path=str(tmp_path))]
    shared = share_books(list_splits(configs), sources=configs, workers=2)
    great = [split for split in shared if split.path.endswith("great.txt")]
    assert [split.piece for split in great] == [Piece(0, 2), Piece(1, 2)]
    assert [split.piece for split in shared if split not in great] == [WHOLE, WHOLE]
    for part in deal_splits(shared, hands=2):
        assert sum(split in great for split in part) == 1
    assert share_books(list_splits(configs), sources=configs, workers=1) == list_splits(configs)


def test_a_great_member_of_an_archive_is_shared_too(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for number, size in enumerate([100, 30_000_000, 100]):
            archive.writestr(f"{number}.txt", b"word " * (size // 5))
    configs = [SourceConfig(kind="books", path=str(tmp_path))]
    shared = share_books(list_splits(configs), sources=configs, workers=3)
    assert [(split.start, split.end, split.piece) for split in shared] == [
        *((0, 2, Piece(number, 3)) for number in range(3)),
        (2, 3, WHOLE),
    ]


def test_many_books_of_one_size_stay_whole() -> None:
    """Pieces take the reading anew: where all workers have enough to do they would only cost."""
    configs = [SourceConfig(kind="books", path="x")]
    splits = [Split(0, f"{number}.txt", 0, -1, 30 << 20, 30 << 20) for number in range(16)]
    assert share_books(splits, sources=configs, workers=2) == splits
    assert share_books(splits, sources=configs, workers=16) == splits
    assert {split.piece.of for split in share_books(splits, sources=configs, workers=64)} == {3}


@given(
    st.lists(st.tuples(st.sampled_from([0, 1]), st.integers(0, 200 << 20), st.sampled_from([1, 2])), max_size=12),
    st.integers(1, 40),
)
def test_books_are_shared_where_that_is_sooner(sizes: list[tuple[int, int, int]], workers: int) -> None:
    configs = [SourceConfig(kind="books", path="x"), SourceConfig(kind="text", path="y")]
    splits = [
        Split(source, f"{place}", 0, -1, size, size, parts=parts) for place, (source, size, parts) in enumerate(sizes)
    ]
    shared = share_books(splits, sources=configs, workers=workers)
    for split in splits:
        own = [each for each in shared if each.path == split.path]
        of = len(own)
        assert [each.piece for each in own] == [Piece(number, of) for number in range(of)]
        if split.source == 1 or split.parts > 1 or split.text_bytes < 16 << 20:
            assert own == [split]
        assert of <= workers
        assert split.num_bytes - of < sum(each.num_bytes for each in own) <= split.num_bytes
        assert own == cut_split(split, pieces=of)
    assert bound(shared, workers=workers) <= bound(splits, workers=workers)


def bound(splits: Sequence[Split], *, workers: int) -> float:
    """The least time in which so many workers may be ready."""
    sizes = [split.text_bytes for split in splits]
    return max(sum(sizes) / workers, *sizes, 0)


def test_what_pieces_tell_of_is_the_text_of_the_whole() -> None:
    split = Split(0, "x", 0, -1, 50_000_000, 50_000_000)
    for pieces in (1, 2, 3, 4):
        cut = cut_split(split, pieces=pieces)
        assert sum(own_text_bytes(piece) for piece in cut) == pytest.approx(50_000_000, abs=10)


def test_workers_of_an_engine_are_those_that_are_named(tmp_path: Path) -> None:
    """Sixteen taken for two would read every book twice for nothing."""

    def make(**settings: Any) -> PipelineConfig:
        return make_config(tmp_path, sources=[{"kind": "books", "path": "x"}], **settings)

    assert count_readers(make(engine="ray", workers=2), workers=8) == 2
    assert count_readers(make(engine="ray", workers=None), workers=8) == CLUSTER_WORKERS
    local = make(workers=3)
    assert count_readers(local, workers=3) == 3
    assert count_readers(make(workers=None), workers=8, beam_options=["--runner=FlinkRunner"]) == CLUSTER_WORKERS


def test_a_long_split_that_stays_makes_pieces_useless() -> None:
    """Of a book and a text of 24 MB each, three workers are ready when the text is; two such books are cut for four."""
    configs = [SourceConfig(kind="books", path="x"), SourceConfig(kind="text", path="y")]
    splits = [Split(source, f"{source}", 0, -1, 24 << 20, 24 << 20) for source in (0, 1)]
    assert share_books(splits, sources=configs, workers=3) == splits
    both = [Split(0, f"{number}", 0, -1, 24 << 20, 24 << 20) for number in (0, 1)]
    assert [split.piece.of for split in share_books(both, sources=configs, workers=4)] == [2] * 4
