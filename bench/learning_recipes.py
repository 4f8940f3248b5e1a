"""The recipes that bench/learning.py trains for equal minutes on one GPU, to find out which reaches the lowest held-out
loss.

One reference, recipes that change one thing of it, and published recipes with their own batch, learning rate, schedule
and masks (sources: trainer/configs). Each has the time as its schedule's length, so each ends with a full fall.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

EVALUATED_TOKENS = 20_000_000
"""Mean tokens between two evaluations."""
REFERENCE: Mapping[str, Any] = {
    "batch": {"tokens": 65_536},
    "optimizer": {"learning_rate": 4e-4},
    "schedule": {"name": "linear", "warmup_fraction": 0.06},
}


def join(*trees: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of all trees as one. Of two values for a key, the later one counts."""
    joined: dict[str, Any] = {}
    for tree in trees:
        for key, value in tree.items():
            joined[key] = join(joined.get(key, {}), value) if isinstance(value, Mapping) else value
    return joined


RECIPES: Mapping[str, Mapping[str, Any]] = {
    "reference": REFERENCE,
    "drawn-15": join(REFERENCE, {"masking": {"source": "drawn", "rate": 0.15}}),
    "drawn-30": join(REFERENCE, {"masking": {"source": "drawn", "rate": 0.3}}),
    "pre-ln": join(REFERENCE, {"model": {"norm": "pre"}}),
    "muon": join(REFERENCE, {"optimizer": {"name": "muon"}}),
    "growing-batch": join(REFERENCE, {"batch": {"tokens": 131_072, "warmup_steps": 1_000, "warmup_from": 0.25}}),
    "google": {  # bert_large_two_phases.yaml, for BERT-Base: 256 rows of 512 tokens
        "batch": {"tokens": 131_072},
        "optimizer": {"learning_rate": 1e-4, "bias_correction": False},
        "schedule": {"name": "linear", "warmup_fraction": 0.01, "fall_from": "start"},
    },
    "24-hours": {  # bert_large_24_hours.yaml
        "model": {"norm": "pre"},
        "batch": {"tokens": 524_288},
        "optimizer": {"learning_rate": 1e-3, "beta2": 0.98, "clip_norm": 0.0},
        "schedule": {"name": "linear", "warmup_fraction": 0.06},
    },
    "mosaic": {  # bert_base_mosaic.yaml
        "model": {"attention_dropout": 0.0},
        "batch": {"tokens": 524_288},
        "masking": {"source": "drawn", "rate": 0.3, "whole_words": False},
        "optimizer": {"learning_rate": 5e-4, "beta2": 0.98, "weight_decay": 0.02, "clip_norm": 0.0},
        "schedule": {"name": "linear", "warmup_fraction": 0.06, "final_factor": 0.02},
    },
    "one-evening": {  # bert_base_one_evening.yaml
        "model": {"norm": "pre", "dropout": 0.0, "attention_dropout": 0.0},
        "batch": {"tokens": 196_608},
        "masking": {"source": "drawn", "rate": 0.25, "whole_words": False},
        "optimizer": {"learning_rate": 1e-3, "beta2": 0.98, "epsilon": 1e-12, "clip_norm": 0.5},
        "schedule": {"name": "linear", "warmup_fraction": 0.75},
    },
}
"""Settings of trainer/run.py by the recipe's name."""
EVALUATION: Mapping[str, Mapping[str, Any]] = {
    "evaluation-ours": {
        "model": {"norm": "pre", "dropout": 0.0, "attention_dropout": 0.0},
        "batch": {"tokens": 65_536},
        "masking": {"source": "drawn", "rate": 0.25, "whole_words": False},
        "optimizer": {"name": "muon", "learning_rate": 1e-3, "beta2": 0.98},
        "schedule": {"name": "linear", "warmup_fraction": 0.25},
        "cuda_graphs": True,
    },
    "evaluation-transformers": {
        "batch": {"tokens": 32_768},
        "masking": {"source": "drawn", "rate": 0.15},
        "optimizer": {"learning_rate": 1e-4},
        "schedule": {"name": "linear", "warmup_fraction": 0.1},
    },
}
"""What bench/evaluation.py trains, by the recipe's name. Each is the best of those tried for its trainer (docs/LOG.md).
transformers has neither Muon nor a BERT with LayerNorm before its layers."""


def settings_of(recipe: str, *, seconds: float, tokens: int | None = None) -> dict[str, Any]:
    """Return the settings of a run that trains for `seconds`. `tokens` is the batch, or None for the recipe's own."""
    settings = join({**RECIPES, **EVALUATION}[recipe], {"max_hours": seconds / 3600})
    if tokens is not None:
        settings["batch"]["tokens"] = tokens
    every_steps = max(1, round(EVALUATED_TOKENS / settings["batch"]["tokens"]))
    return join(settings, {"evaluation": {"every_steps": every_steps, "max_pairs": None}})
