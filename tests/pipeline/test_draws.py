"""Keyed draws: independent of platform and order, even, and different for different keys."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline import draws


def test_known_values():
    """The same on every machine and in every version; whoever changes them changes every data set."""
    assert draws.key_bytes(1, "a", b"b", 3).hex() == "690dc17d6616cedde92b876d2f3eb2ba"
    assert draws.key(1, "a") == 15202408862751360879
    assert draws.stream(1, "a").random() == 0.9270542884287415
    assert draws.stream(1, "a").randint(0, 10**6) == 972086
    assert draws.generator(1, "a").integers(0, 10**6, 3).tolist() == [49453, 606789, 726557]
    keys = draws.row_keys(5, "masks", ids=np.arange(32, dtype=np.uint8).reshape(2, 16), numbers=(np.array([0, 1]),))
    assert keys.tolist() == [3475754747072403112, 11959972288394287945]
    assert draws.derive(keys, 3).tolist() == [9661970477439017486, 2505545621497166988]


def test_splitmix64_sequence():
    """The published sequence for the seed 1234567 (Vigna's splitmix64.c)."""
    found = draws.mix(np.uint64(1234567) + draws.counters(np.arange(5)))
    assert found.tolist() == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


@pytest.mark.parametrize(
    ("left", "right"),
    [((1, "ab", "c"), (1, "a", "bc")), ((1, "1"), (1, 1)), ((1, b"a"), (1, "a")), ((1,), (2,)), ((1, ""), (1,))],
)
def test_parts_do_not_run_together(left, right):
    assert draws.key_bytes(*left) != draws.key_bytes(*right)


def test_row_keys_depend_on_every_bit_of_the_id_and_on_every_number():
    ids = np.zeros((129, 16), np.uint8)
    for bit in range(128):
        ids[bit + 1, bit // 8] = 1 << (bit % 8)
    plain = draws.row_keys(1, "x", ids=ids, numbers=(np.zeros(129, np.int32), np.zeros(129, np.int32)))
    first = draws.row_keys(1, "x", ids=ids, numbers=(np.ones(129, np.int32), np.zeros(129, np.int32)))
    second = draws.row_keys(1, "x", ids=ids, numbers=(np.zeros(129, np.int32), np.ones(129, np.int32)))
    assert np.unique(np.concatenate([plain, first, second])).size == 3 * 129


def test_below_is_even():
    values = draws.below(draws.mix(draws.counters(np.arange(100_000))), 10)
    counts = np.bincount(values, minlength=10)
    assert counts.size == 10
    assert np.abs(counts - 10_000).max() < 400  # 4 standard deviations


def test_threshold_is_the_probability():
    values = draws.mix(draws.counters(np.arange(100_000)))
    assert abs((values < draws.threshold(0.8)).mean() - 0.8) < 0.005
    assert (values < draws.threshold(1.0)).all()
    assert not (values < draws.threshold(0.0)).any()
