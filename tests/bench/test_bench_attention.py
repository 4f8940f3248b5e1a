"""The bench of attention: ways that can run on a CPU give our output; the others are named with their reason."""

from __future__ import annotations

import pytest
import torch

from bench import attention
from trainer.model.attention import SequenceLayout

SHAPE = (96, 3, 2, 64)


@pytest.fixture(autouse=True)
def untimed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "time_way", lambda attend, qkv: {"forward": 1.0, "both": 3.0})


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_ways_are_compared_with_our_output() -> None:
    layouts = {
        "all 32": attention.evenly(32, tokens=96, device="cpu"),
        "mixed": SequenceLayout(torch.tensor([0, 5, 60, 60, 96], dtype=torch.int32), 64),
    }
    rows = [row for name in attention.WAYS for row in attention.try_way(name, layouts, shape=SHAPE)]
    ran = {(row["way"], row["lengths"]) for row in rows if "both" in row}
    flash, flex = "scaled_dot_product_attention, flash", "flex_attention, compiled, without dropout"
    assert ran >= {(attention.OURS, "all 32"), (attention.OURS, "mixed"), (flash, "all 32"), (flex, "mixed")}
    reasons = {(row["way"], row["lengths"]): row["reason"] for row in rows if "reason" in row}
    assert reasons[flash, "mixed"] == "takes sequences of one length only"
    assert len(rows) == len(ran) + len(reasons) == 2 * len(attention.WAYS)
    table = attention.describe({"rows": rows})
    assert f"| mixed | {flash} | not here: takes sequences of one length only | | |" in table
    assert f"| all 32 | {flash} | 1.000 | 3.000 | 1.00 |" in table


def test_a_way_with_another_output_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(attention.WAYS, "wrong", (lambda layout, dropout: lambda qkv: qkv[:, 0] * 2, 0.0))
    (row,) = attention.try_way("wrong", {"all 32": attention.evenly(32, tokens=96, device="cpu")}, shape=SHAPE)
    assert "not close" in row["reason"]


def test_a_failed_part_is_said_to_have_failed() -> None:
    assert "failed" in attention.describe({"part": "attention", "failed": 1})
