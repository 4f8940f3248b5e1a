"""Count model FLOPs as the scaling literature does: for real tokens only, without recomputation.

Forward and backward of BERT take L (24 H^2 + 12 H F) FLOPs per token (72 L H^2 if F is 4 H), 12 L H l^2 per sequence of
l tokens (attention, unpadded) and 6 (H V + H^2) per masked position, for L layers of width H with a feed-forward width
of F and a vocabulary of V (Kaplan et al. 2020, section 2.1). Embeddings, LayerNorm, GELU and the next-sentence head are
left out.
"""

from __future__ import annotations

import re

from trainer.config import ModelConfig

PEAK_TFLOPS = {
    "B200": 2250.0,
    "GH200": 989.0,
    "H200": 989.0,
    "H200 NVL": 835.0,
    "H100": 989.0,
    "H100 NVL": 835.0,
    "H100 PCIE": 756.0,
    "A100": 312.0,
    "A100 SXM4": 312.0,
    "A100 PCIE": 312.0,
    "L40S": 362.0,
    "L40": 181.0,
    "L4": 121.0,
    "A10": 125.0,
    "RTX 4090": 165.0,
}
"""Maps a GPU model to its peak rate in 10^12 FLOPs a second, for dense bf16 matrix products with fp32 sums. The rates
are those that the makers publish."""
_NO_MODEL = re.compile(r"NVIDIA|GEFORCE|\d+GB?|HBM\w+")
"""Words in a GPU's name that do not belong to the model: maker and memory."""


def count_flops(
    model: ModelConfig, *, vocabulary_size: int, num_tokens: int, num_squared: int, num_masked: int
) -> float:
    """Return the model FLOPs of forward and backward over some sequences.

    `num_tokens` and `num_masked` say how many tokens and masked positions the sequences have. `num_squared` is the sum
    of the squared sequence lengths.
    """
    layers, _, width, inner = model.shape
    encoder = layers * (24 * width**2 + 12 * width * inner) * num_tokens + 12 * layers * width * num_squared
    return float(encoder + 6 * (width * vocabulary_size + width**2) * num_masked)


def find_peak(device_name: str) -> float | None:
    """Return the peak rate of the GPU named `device_name` in 10^12 FLOPs a second, from the table PEAK_TFLOPS. Return
    None if the table does not list the GPU's model.

    The maker and the memory size in `device_name` are ignored. The rest must be exactly the name of a listed model,
    because a further word would mean another model, or only a part of a GPU.
    """
    words = re.split(r"[\s-]+", device_name.upper())
    return PEAK_TFLOPS.get(" ".join(word for word in words if not _NO_MODEL.fullmatch(word)))
