"""The arithmetic of a step by hand, and which devices' peaks are known."""

from __future__ import annotations

import pytest

from trainer.config import ModelConfig
from trainer.telemetry.flops import count_flops, find_peak


def test_bert_large_by_hand() -> None:
    """One sequence of 512, 77 masked: 72 * 24 * 1024^2 * 512 + 12 * 24 * 1024 * 512^2 + 6 * (1024 V + 1024^2) * 77."""
    found = count_flops(
        ModelConfig(size="large"), vocabulary_size=30_522, num_tokens=512, num_squared=512**2, num_masked=77
    )
    assert found == 927_712_935_936 + 77_309_411_328 + 14_924_034_048 == 1_019_946_381_312
    assert found / 512 == pytest.approx(1.99e9, rel=2e-3)


def test_what_is_padded_costs_nothing() -> None:
    model = ModelConfig(size="tiny")
    assert count_flops(model, vocabulary_size=8, num_tokens=0, num_squared=0, num_masked=0) == 0
    one = count_flops(model, vocabulary_size=8, num_tokens=4, num_squared=16, num_masked=0)
    two = count_flops(model, vocabulary_size=8, num_tokens=4, num_squared=8, num_masked=0)
    assert one - two == 12 * 2 * 128 * 8


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989.0),
        ("NVIDIA H100 PCIe", 756.0),
        ("NVIDIA A100-SXM4-40GB", 312.0),
        ("NVIDIA A100 80GB PCIe", 312.0),
        ("NVIDIA H100 NVL", 835.0),
        ("NVIDIA H200", 989.0),
        ("NVIDIA B200", 2250.0),
        ("NVIDIA GH200 480GB", 989.0),
        ("NVIDIA L40S", 362.0),
        ("NVIDIA L40", 181.0),
        ("NVIDIA L4", 121.0),
        ("NVIDIA A10", 125.0),
        ("NVIDIA GeForce RTX 4090", 165.0),
        ("NVIDIA A10G", None),
        ("NVIDIA RTX A1000", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("Tesla V100-SXM2-16GB", None),
        ("A device nobody knows", None),
    ],
)
def test_peaks_by_name(name: str, peak: float | None) -> None:
    assert find_peak(name) == peak
