"""The name of the card that is measured."""

from __future__ import annotations

from trainer.launch.cards import find_local_card


def name_card(device: str) -> str:
    """`NVIDIA H200`, as nvidia-smi tells it: torch would make a CUDA context that stays on the card; CPU without one.

    SystemExit where nvidia-smi names none.
    """
    if device != "cuda":
        return "CPU"
    card = find_local_card()
    if card is None:
        raise SystemExit("bench: nvidia-smi names no GPU, so the results would not say what they are of; install it")
    return card.name
