"""Cut one long sequence of rows, known in blocks, into G ranges whose token counts differ by at most one row.

Such a cut always exists (Barany and Grinberg, "Block partitions of sequences", 2013). It is found from the token
counts of the blocks and the row lengths of about one block a lane: 64 lanes in 5 ms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

ReadBlocks = Callable[[Sequence[int]], Sequence[NDArray[np.integer]]]
"""Places of blocks in the sequence -> lengths of the rows of each, in the order of the sequence."""


class RowSequence:
    """Rows in blocks one after another. A cut is a place between rows: (rows before it, tokens before it)."""

    def __init__(self, rows: NDArray[np.int64], *, tokens: NDArray[np.int64], read_blocks: ReadBlocks) -> None:
        self.row_starts = np.concatenate(([0], np.cumsum(rows)))
        self.token_starts = np.concatenate(([0], np.cumsum(tokens)))
        self.num_rows, self.num_tokens = int(self.row_starts[-1]), int(self.token_starts[-1])
        self.longest = 1
        self._read_blocks = read_blocks
        self._ends: dict[int, NDArray[np.int64]] = {}

    def load(self, blocks: Sequence[int]) -> None:
        """Read the lengths of blocks that are not known yet, in one call."""
        missing = [block for block in dict.fromkeys(blocks) if block not in self._ends]
        if not missing:
            return
        for block, lengths in zip(missing, self._read_blocks(missing), strict=True):
            assert lengths.size == self.row_starts[block + 1] - self.row_starts[block]
            ends = np.cumsum(lengths, dtype=np.int64)
            assert ends[-1] == self.token_starts[block + 1] - self.token_starts[block]
            self._ends[block] = ends
            self.longest = max(self.longest, int(lengths.max()))

    def blocks_at(self, tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        """The block that holds the token at each place, 0 <= place < num_tokens."""
        return np.searchsorted(self.token_starts, tokens, side="right") - 1

    def cut_at_or_after(self, tokens: int) -> tuple[int, int]:
        """First cut with at least `tokens` before it; 0 <= tokens <= num_tokens."""
        if tokens <= 0:
            return 0, 0
        block = int(np.searchsorted(self.token_starts, tokens, side="left")) - 1
        if tokens == self.token_starts[block + 1]:
            return int(self.row_starts[block + 1]), tokens
        ends = self._known(block)
        base = int(self.token_starts[block])
        index = int(np.searchsorted(ends, tokens - base, side="left"))
        return int(self.row_starts[block]) + index + 1, base + int(ends[index])

    def cut_at_or_before(self, tokens: int) -> tuple[int, int]:
        """Last cut with at most `tokens` before it; 0 <= tokens."""
        if tokens >= self.num_tokens:
            return self.num_rows, self.num_tokens
        block = int(np.searchsorted(self.token_starts, tokens, side="right")) - 1
        if tokens == self.token_starts[block]:
            return int(self.row_starts[block]), tokens
        ends = self._known(block)
        base = int(self.token_starts[block])
        index = int(np.searchsorted(ends, tokens - base, side="right"))
        return int(self.row_starts[block]) + index, base + (int(ends[index - 1]) if index else 0)

    def _known(self, block: int) -> NDArray[np.int64]:
        self.load([block])
        return self._ends[block]


def cut_evenly(sequence: RowSequence, *, lanes: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows and tokens before each of lanes + 1 cuts, from 0 to all.

    The greatest and the least lane differ by at most the longest row, in tokens. Cuts stay as near as that
    allows to equal shares.
    """
    if lanes == 1:
        return np.array([0, sequence.num_rows]), np.array([0, sequence.num_tokens])
    shares = np.arange(1, lanes, dtype=np.int64) * sequence.num_tokens // lanes
    sequence.load([int(block) for block in np.unique(sequence.blocks_at(shares))])
    while True:
        longest = sequence.longest
        cuts = _cut(sequence, lanes=lanes, spread=longest)
        if cuts is not None and sequence.longest == longest:
            rows, tokens = zip(*cuts, strict=True)
            return np.array(rows, dtype=np.int64), np.array(tokens, dtype=np.int64)


def _cut(sequence: RowSequence, *, lanes: int, spread: int) -> list[tuple[int, int]] | None:
    """Cuts with every lane in [least, least + spread] tokens; None where a row longer than `spread` turned up.

    From a set of neighbouring cuts the next lane can end at a set of neighbouring cuts again (no row is longer than
    `spread`), so the cuts that l lanes can reach are all those between the lowest and the highest. The greatest
    `least` whose lowest path does not overshoot reaches the end exactly.
    """
    total = sequence.num_tokens
    below, above = max(0, total // lanes - spread), total // lanes + 1
    while above - below > 1:
        middle = (below + above) // 2
        if _lowest_path(sequence, lanes=lanes, least=middle) is None:
            above = middle
        else:
            below = middle
    least = below
    lowest = _lowest_path(sequence, lanes=lanes, least=least)
    assert lowest is not None
    highest = [0]
    for _ in range(lanes):
        highest.append(sequence.cut_at_or_before(highest[-1] + least + spread)[1])
    if sequence.longest > spread:
        return None
    assert highest[-1] == total

    cuts = [(sequence.num_rows, total)]
    for lane in range(lanes - 1, 0, -1):
        after = cuts[-1][1]
        low = max(lowest[lane], after - least - spread)
        high = min(highest[lane], after - least)
        wanted = min(max(lane * total // lanes, low), high)
        cut = sequence.cut_at_or_after(wanted)
        cuts.append(cut if cut[1] <= high else sequence.cut_at_or_before(high))
    cuts.append((0, 0))
    return cuts[::-1]


def _lowest_path(sequence: RowSequence, *, lanes: int, least: int) -> list[int] | None:
    """Tokens before each cut when every lane ends as soon as it holds `least`; None where that overshoots."""
    path = [0]
    for _ in range(lanes):
        wanted = path[-1] + least
        if wanted > sequence.num_tokens:
            return None
        path.append(sequence.cut_at_or_after(wanted)[1])
    return path
