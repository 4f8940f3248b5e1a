"""Measures the attention of one layer in every way that this GPU offers, forward and backward.

Usage: python -m bench.attention DATA [SIZE]   (part of `make bench-trainer`)
Every way takes q, k and v as one tensor and writes their gradients into one tensor, as the model does. If a way does
not run here, the table gives the reason. Without dropout, its output must equal that of the model's own attention.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from bench.trainer_parts import TOKENS, Setting, measure, read_steps
from trainer.model.attention import SequenceLayout, attend_flash, attention
from trainer.model.dropout import draw_seeds

LENGTHS = (512, 256, 128)
"""Lengths of the sequences, all of one length at a time. The lengths of the data set's rows are measured too."""
DROPOUT = 0.1
TOLERANCE = 0.02
"""The largest difference allowed from the output of our attention, at dropout 0. It is a few bf16 roundings around
1."""
OURS = "ours"

Attend = Callable[[Tensor], Tensor]
"""A function from qkv [T, 3, heads, d] to the output of attention, [T, heads, d]."""
Way = Callable[[SequenceLayout, float], Attend]
"""A function that returns the Attend for a layout and a dropout probability. It raises an error if it cannot run
here."""


def measure_attention(data: str, size: str) -> dict[str, Any]:
    """Measure every way of attention with every layout of sequences, and return {"rows": [a dict for each way and
    layout]}.

    A row has "lengths", "way", and the milliseconds per layer, "forward" and "both" (forward and backward). If the way
    does not run, "reason" replaces the milliseconds.
    """
    setting = Setting(data, size)
    _, batches = read_steps(setting, constant_shapes=True)
    config = setting.config()
    heads = config.model.num_heads
    shape = (TOKENS, 3, heads, config.model.width // heads)
    layouts = {f"all {length}": evenly(length, tokens=TOKENS, device="cuda") for length in LENGTHS}
    layouts["the data set's"] = SequenceLayout(batches[0].offsets, batches[0].max_length)
    return {"rows": [row for name in WAYS for row in try_way(name, layouts, shape=shape)]}


def evenly(length: int, *, tokens: int, device: str) -> SequenceLayout:
    """Return the layout of `tokens` tokens in sequences of `length` tokens each."""
    return SequenceLayout(torch.arange(0, tokens + 1, length, dtype=torch.int32, device=device), length)


def try_way(name: str, layouts: Mapping[str, SequenceLayout], *, shape: tuple[int, ...]) -> Iterator[dict[str, Any]]:
    """Yield a row of results of the way `name` for each layout. `shape` is the shape of qkv, [T, 3, heads, d]."""
    way, dropout = WAYS[name]
    for lengths, layout in layouts.items():
        device = layout.offsets.device
        generator = torch.Generator(device).manual_seed(1)
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        qkv = torch.randn(shape, generator=generator, device=device).to(dtype).requires_grad_()
        expected = ours(layout, 0.0)(qkv.detach())
        row: dict[str, Any] = {"lengths": lengths, "way": name}
        try:
            found = way(layout, 0.0)(qkv.detach())
            torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=0.0)
            row |= time_way(way(layout, dropout), qkv)
        except (RuntimeError, ImportError, AttributeError, TypeError, ValueError, AssertionError) as error:
            row["reason"] = (str(error).strip() or repr(error)).splitlines()[0][:120]
        yield row


def time_way(attend: Attend, qkv: Tensor) -> dict[str, float]:
    """Return {"forward": milliseconds of a forward pass, "both": milliseconds of a forward and a backward pass}."""
    upstream = torch.ones_like(qkv[:, 0])

    def forward(_: int) -> None:
        with torch.no_grad():
            attend(qkv)

    def both(_: int) -> None:
        qkv.grad = None
        torch.autograd.backward(attend(qkv), upstream)

    return {
        "forward": 1e3 * measure(forward, begun=time.perf_counter())[0],
        "both": 1e3 * measure(both, begun=time.perf_counter())[0],
    }


# ---- the ways ----


def ours(layout: SequenceLayout, dropout: float) -> Attend:
    """Return the attention that the model uses for sequences of these lengths."""
    seed = draw_seeds(1, device=layout.offsets.device)[0]
    return partial(attention, layout=layout, dropout=dropout, seed=seed)


def flash_2(layout: SequenceLayout, dropout: float) -> Attend:
    """Return flash attention 2 over packed sequences, by the torch operator that has dropout."""
    return partial(attend_flash, layout=layout, dropout=dropout)


def varlen(layout: SequenceLayout, dropout: float, *, version: str | None = None) -> Attend:
    """Return torch.nn.attention.varlen, which has no dropout, so `dropout` is ignored.

    `version` is FA3 or FA4, which need packages of their own, or None for flash attention 2.
    """
    from torch.nn import attention as functions
    from torch.nn.attention.varlen import varlen_attn

    if version is not None:
        functions.activate_flash_attention_impl(version)
    offsets, most, _ = layout

    def attend(qkv: Tensor) -> Tensor:
        query, key, value = qkv.unbind(1)
        output = varlen_attn(query, key, value, offsets, offsets, most, most)
        assert isinstance(output, Tensor)  # the other quantities were not asked for
        return output

    return attend


def padded(layout: SequenceLayout, dropout: float, *, backend: SDPBackend) -> Attend:
    """Return scaled_dot_product_attention with the given backend, for sequences that all have the same length.

    So there is no padding, and no mask is needed. Raises ValueError if the lengths differ.
    """
    length = layout.max_length
    if not bool((layout.offsets.diff() == length).all()):
        raise ValueError("takes sequences of one length only")

    def attend(qkv: Tensor) -> Tensor:
        query, key, value = qkv.view(-1, length, *qkv.shape[1:]).permute(2, 0, 3, 1, 4).unbind(0)
        with sdpa_kernel(backend):
            output = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout)
        return output.transpose(1, 2).flatten(0, 1)

    return attend


def flex(layout: SequenceLayout, dropout: float) -> Attend:
    """Return flex_attention, compiled, with a mask that keeps our sequences apart. It takes all tokens as one sequence.

    It has no dropout, so `dropout` is ignored.
    """
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    offsets = layout.offsets
    tokens = int(offsets[-1])
    sequence = torch.searchsorted(offsets, torch.arange(tokens, device=offsets.device), right=True)

    def same(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return sequence[query] == sequence[key]

    mask = create_block_mask(same, None, None, tokens, tokens, device=str(offsets.device))
    compiled = torch.compile(flex_attention, dynamic=False) if offsets.is_cuda else flex_attention

    def attend(qkv: Tensor) -> Tensor:
        query, key, value = qkv.permute(1, 2, 0, 3).unsqueeze(1).unbind(0)
        output: Tensor = compiled(query, key, value, block_mask=mask)
        return output[0].transpose(0, 1)

    return attend


WAYS: Mapping[str, tuple[Way, float]] = {
    OURS: (ours, DROPOUT),
    "ours, without dropout": (ours, 0.0),
    "flash attention 2 by offsets": (flash_2, DROPOUT),
    "torch's varlen (flash attention 2), without dropout": (varlen, 0.0),
    "scaled_dot_product_attention, flash": (partial(padded, backend=SDPBackend.FLASH_ATTENTION), DROPOUT),
    "scaled_dot_product_attention, cuDNN": (partial(padded, backend=SDPBackend.CUDNN_ATTENTION), DROPOUT),
    "flex_attention, compiled, without dropout": (flex, 0.0),
    "torch's varlen, FA3, without dropout": (partial(varlen, version="FA3"), 0.0),
    "torch's varlen, FA4, without dropout": (partial(varlen, version="FA4"), 0.0),
}
"""For each name, (the Way, the dropout with which it is timed). FA3 and FA4 come last, because they stay switched
on."""


def describe(result: Mapping[str, Any]) -> str:
    """Return a Markdown table of what measure_attention returned."""
    rows: list[dict[str, Any]] = result.get("rows", [])
    if not rows:
        return "\n## Attention of a layer\n\nfailed\n"
    order = list(dict.fromkeys(row["lengths"] for row in rows))
    ours_took = {row["lengths"]: row["both"] for row in rows if row["way"] == OURS and "both" in row}
    lines = [
        "\n## Attention of a layer\n",
        f"{TOKENS:,} tokens, dropout {DROPOUT} unless said otherwise; ms, forward and backward with the stacking of "
        "the gradients of q, k and v.\n",
        "| lengths | how | forward | forward and backward | of ours |",
        "|---|---|---|---|---|",
    ]
    for row in sorted(rows, key=lambda row: order.index(row["lengths"])):
        if "reason" in row:
            lines.append(f"| {row['lengths']} | {row['way']} | not here: {row['reason'].replace('|', '/')} | | |")
            continue
        of_ours = f"{row['both'] / ours_took[row['lengths']]:.2f}" if row["lengths"] in ours_took else ""
        lines.append(f"| {row['lengths']} | {row['way']} | {row['forward']:.3f} | {row['both']:.3f} | {of_ours} |")
    return "\n".join(lines) + "\n"


def main(data: str, size: str = "large") -> None:
    """Print the table, and below it the measurements as one line of JSON."""
    result = measure_attention(data, size)
    print(describe(result))
    print(json.dumps({"part": "attention", **result}))


if __name__ == "__main__":
    main(*sys.argv[1:])
