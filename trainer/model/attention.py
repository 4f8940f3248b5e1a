"""Self-attention over packed sequences: a token attends only to its own sequence.

attention() has four backends. On a CPU, attention_cpu.py takes one sequence after another. On a GPU in bf16 or fp16,
our own kernel takes short sequences, and flash attention takes long ones and causal attention, both directly on the
packed tokens. The fourth backend pads each sequence to a row and calls scaled_dot_product_attention. It is the
reference in tests, and the fallback in all other cases (fp32 on a GPU, torch.compile on a CPU).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.config import ModelConfig
from trainer.model import attention_gpu
from trainer.model.attention_cpu import attend_each, keep_weights
from trainer.model.layers import Linear


class SequenceLayout(NamedTuple):
    """Says where each sequence lies in the packed tokens. It is made once per micro-batch and shared by all layers."""

    offsets: Tensor
    """int32 [S + 1]: cumulative lengths of the S sequences, from 0 to T."""
    max_length: int
    """Upper bound of the sequence lengths."""
    causal: bool = False
    """Whether a token attends only to itself and to the tokens before it in its sequence."""


def attention(qkv: Tensor, *, layout: SequenceLayout, dropout: float, seed: Tensor) -> Tensor:
    """Return softmax(q k^T / sqrt(d)) v, computed inside each sequence: [T, heads, d] for `qkv` [T, 3, heads, d].

    q, k and v come as one tensor, so that their gradients are written into one tensor. `dropout` is the probability of
    dropping an attention weight; pass 0 outside training. `seed` is int32 on the device of `qkv`, and only its first
    element is used. Two backends ignore `seed` and draw from torch's global generator: flash attention, and
    attend_padded on a GPU. This function does not wait for a GPU.
    """
    if qkv.is_cpu and not torch.compiler.is_compiling():
        return attend_each(
            qkv, lengths=layout.offsets.diff().tolist(), dropout=dropout, seed=seed, causal=layout.causal
        )
    if qkv.is_cuda and qkv.dtype in (torch.bfloat16, torch.float16):
        short = layout.max_length <= attention_gpu.MAX_LENGTH and not layout.causal
        if short and qkv.shape[-1] in attention_gpu.HEAD_WIDTHS:
            return attend_short(qkv, layout=layout, dropout=dropout, seed=seed)
        if qkv.shape[-1] <= attention_gpu.FLASH_WIDTH:
            return attend_flash(qkv, layout=layout, dropout=dropout)
    return attend_padded(qkv, layout=layout, dropout=dropout, seed=seed)


def attend_padded(qkv: Tensor, *, layout: SequenceLayout, dropout: float, seed: Tensor | None = None) -> Tensor:
    """Return softmax(q k^T / sqrt(d)) v of each sequence, [T, heads, d], with sequences padded to equal length.

    Tests compare the other backends with this one. On a CPU, `seed` gives the same dropout mask as in attention_cpu.py
    and in our GPU kernel. Because this mask is applied to all attention weights at once, all attention weights are in
    memory. On a GPU, `seed` is ignored and torch draws the mask.
    """
    num_tokens, _, heads, head_width = qkv.shape
    offsets, max_length, causal = layout
    tokens = torch.arange(num_tokens, device=qkv.device)
    sequence = torch.searchsorted(offsets, tokens, right=True) - 1
    index = sequence * max_length + tokens - offsets.index_select(0, sequence)
    lengths = offsets.diff().clamp(min=1)  # softmax over no keys is NaN in some kernels
    key_mask = (torch.arange(max_length, device=qkv.device) < lengths[:, None])[:, None, None, :]
    if causal:
        key_mask = key_mask & torch.ones(max_length, max_length, dtype=torch.bool, device=qkv.device).tril()
    num_sequences = lengths.shape[0]
    rows = qkv.new_zeros(num_sequences * max_length, 3, heads, head_width).index_copy(0, index, qkv)
    query, key, value = rows.view(num_sequences, max_length, 3, heads, head_width).permute(2, 0, 3, 1, 4).unbind(0)
    if dropout > 0.0 and seed is not None and qkv.is_cpu:
        scores = query @ key.transpose(2, 3) * head_width**-0.5
        weights = torch.softmax(scores.masked_fill(~key_mask, -torch.inf), -1)
        places = offsets[:-1, None] + torch.arange(max_length, dtype=torch.int32)
        kept = keep_weights(places, max_length, heads=heads, dropout=dropout, seed=seed).transpose(0, 1)
        output = torch.where(kept, weights * (1.0 / (1.0 - dropout)), 0.0) @ value
    else:
        output = F.scaled_dot_product_attention(query, key, value, attn_mask=key_mask, dropout_p=dropout)
    return output.transpose(1, 2).reshape(-1, heads, head_width).index_select(0, index)


def attend_flash(qkv: Tensor, *, layout: SequenceLayout, dropout: float) -> Tensor:
    """Return softmax(q k^T / sqrt(d)) v of each sequence, [T, heads, d], by flash attention 2, without padding.

    It is for long sequences, and heads of widths that our kernel does not take, on a GPU in bf16 or fp16. Heads whose
    width is not a multiple of 8 are padded with zeros. torch.nn.attention.varlen calls the same operator but offers no
    dropout. Of the 1.57 ms that a layer takes, dropout takes 0.1 ms. If sequences are padded, a layer takes 5.90 ms, of
    which dropout takes 4.4 ms (BERT-Large, 32,768 tokens of Wikipedia's lengths, H100).
    """
    width = qkv.shape[-1]
    padding = -width % attention_gpu.FLASH_MULTIPLE
    query, key, value = (F.pad(qkv, (0, padding)) if padding else qkv).unbind(1)
    output = _flash_forward(query, key, value, layout=layout, dropout=dropout, scale=width**-0.5)
    return output[..., :width]


def _flash_forward(
    query: Tensor, key: Tensor, value: Tensor, *, layout: SequenceLayout, dropout: float, scale: float
) -> Tensor:
    offsets, max_length, causal = layout
    output: Tensor = torch.ops.aten._flash_attention_forward(
        query, key, value, offsets, offsets, max_length, max_length, dropout, causal, False, scale=scale
    )[0]
    return output


def attend_short(qkv: Tensor, *, layout: SequenceLayout, dropout: float, seed: Tensor) -> Tensor:
    """Return softmax(q k^T / sqrt(d)) v of each sequence, [T, heads, d], by our own deterministic kernel.

    It is for short sequences on a GPU in bf16 or fp16. Dropout takes almost no time. Forward and backward of a layer
    take 0.91 ms; with attend_flash they take 1.45 ms (BERT-Large, 32,768 tokens of Wikipedia's lengths, dropout 0.1,
    H100).
    """
    threshold = attention_gpu.count_dropped_draws(dropout)
    output, _ = attention_gpu.short_attention(qkv, layout.offsets, seed, layout.max_length, threshold)
    return output  # type: ignore[no-any-return]


class SelfAttention(nn.Module):
    """Multi-head self-attention (Vaswani et al. 2017, section 3.2). The dropout and residual after it are not
    included."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.dropout = config.attention_dropout
        self.qkv = Linear(config.width, 3 * config.width)
        self.qkv.num_matrices = 3
        self.output = Linear(config.width, config.width)

    def forward(
        self, hidden: Tensor, *, layout: SequenceLayout, seeds: Tensor, with_bias_gradient: bool = True
    ) -> Tensor:
        """Return the output of self-attention, [T, width], for `hidden` [T, width].

        `seeds` is one row of the result of dropout.draw_seeds. If `with_bias_gradient` is false, another module
        computes the gradient of the output layer's bias.
        """
        num_tokens, width = hidden.shape
        qkv = self.qkv(hidden).view(num_tokens, 3, self.num_heads, width // self.num_heads)
        context = attention(qkv, layout=layout, dropout=self.dropout if self.training else 0.0, seed=seeds)
        return self.output(context.reshape(num_tokens, width), with_bias_gradient=with_bias_gradient)  # type: ignore[no-any-return]
