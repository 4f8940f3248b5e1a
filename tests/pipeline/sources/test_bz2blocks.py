"""Blocks of bzip2 streams found at any bit and decoded alone; every fault named with its byte."""

from __future__ import annotations

import bz2
import random
from pathlib import Path

import pytest

from pipeline.sources.bz2blocks import Mark, decode_block, find_marks, read_blocks


def make_text(num_bytes: int, *, seed: int = 0) -> bytes:
    """Words that compress to about half."""
    generator = random.Random(seed)
    return b" ".join(b"%x" % generator.randrange(1 << 24) for _ in range(num_bytes // 6))


@pytest.mark.parametrize("shift", range(8))
def test_marks_are_found_at_every_bit(shift: int) -> None:
    for mark, is_end in ((0x314159265359, False), (0x177245385090, True)):
        for before in (0, 3):
            bits = 8 * before + shift
            data = (mark << (8 - shift)).to_bytes(7, "big")
            whole = b"\x5a" * before + data + b"\0"
            assert find_marks(whole) == [Mark(bits, is_end)]
            assert find_marks(whole[:-3]) == []


def test_blocks_of_one_and_several_streams_give_the_content(tmp_path: Path) -> None:
    text = make_text(800_000)
    path = tmp_path / "x.bz2"
    one = bz2.compress(text, 1)
    several = b"".join(bz2.compress(text[i : i + 130_000], 1) for i in range(0, len(text), 130_000))
    for packed in (one, several, bz2.compress(b"") + one + bz2.compress(b"")):
        path.write_bytes(packed)
        blocks = list(read_blocks(path))
        assert len(blocks) >= 8
        assert b"".join(block.content for block in blocks) == text
        for start in (1, blocks[3].start, blocks[3].start + 1, len(packed) // 2, len(packed)):
            # A block that starts inside a byte starts after that byte.
            assert [b.content for b in read_blocks(path, start=start)] in (
                [b.content for b in blocks if b.start >= start],
                [b.content for b in blocks if b.start > start],
            )


def test_a_mark_by_chance_is_no_border(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = make_text(300_000)
    path = tmp_path / "x.bz2"
    path.write_bytes(bz2.compress(text, 1))
    blocks = list(read_blocks(path))
    chance = [Mark(8 * (block.start + 1_000) + 3, is_end) for block in blocks for is_end in (False, True)]

    def find(data: bytes) -> list[Mark]:
        return sorted([*find_marks(data), *(mark for mark in chance if len(data) > mark.bit // 8)])

    monkeypatch.setattr("pipeline.sources.bz2blocks.find_marks", find)
    assert list(read_blocks(path)) == blocks
    assert next(read_blocks(path, start=blocks[1].start + 500)) == blocks[2]


def test_no_block_is_no_content() -> None:
    packed = bz2.compress(make_text(5_000))
    start, end = (mark.bit for mark in find_marks(packed))
    assert decode_block(packed, start, end) == make_text(5_000)
    assert decode_block(packed, start, end - 40) is None
    assert decode_block(packed, start + 8, end) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data[:-3], r"ends at byte \d+, inside the checksum of a bz2 stream: it is truncated"),
        (lambda data: data[:-9], r"ends at byte \d+, inside the bz2 block that starts at byte \d+: it is truncated"),
        (lambda data: data[: len(data) // 2], r"inside the bz2 block that starts at byte \d+: it is truncated"),
        (lambda data: data[:500] + b"\xff" + data[501:], r"corrupt data in the bz2 block that starts at byte 4;"),
        (lambda data: data + b"more", r"corrupt data after the bz2 stream that ends at byte \d+"),
        (lambda data: b"x" * 1_000, "not bzip2 data, it has no block"),
    ],
)
def test_damage_is_named_with_its_byte(tmp_path: Path, change: object, message: str) -> None:
    path = tmp_path / "x.bz2"
    path.write_bytes(change(bz2.compress(make_text(300_000), 1)))  # type: ignore[operator]
    with pytest.raises(ValueError, match=rf"x\.bz2: .*{message}"):
        list(read_blocks(path))


def test_a_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.parquet_bounds._EXPANSION_FREE_BYTES", 1 << 20)
    path = tmp_path / "x.bz2"
    path.write_bytes(bz2.compress(b" " * 60_000_000))
    with pytest.raises(ValueError, match=r"x\.bz2: \d+ bytes .*expand to .*this cannot be text"):
        list(read_blocks(path))
