"""The name of the GPU that a benchmark measures."""

from __future__ import annotations

from trainer.launch.cards import find_local_card


def name_card(device: str) -> str:
    """Return the GPU's name, such as `NVIDIA H200`, or `CPU` if `device` is not cuda.

    The name comes from nvidia-smi, because torch would create a CUDA context that stays on the GPU. Raises SystemExit
    if nvidia-smi names no GPU.
    """
    if device != "cuda":
        return "CPU"
    card = find_local_card()
    if card is None:
        raise SystemExit("bench: nvidia-smi names no GPU, so the results would not say what they are of; install it")
    return card.name
