"""AdamW's groups for fine-tuning: what learns, at which share of the rate, decayed or not.

Invariant: the groups are a function of the model and the settings alone.
"""

from __future__ import annotations

import re
from typing import Any

import torch

from pipeline.settings import ConfigError
from trainer.config import TrainerConfig
from trainer.engine import count_updates, learning_rate
from trainer.finetune.config import FinetuneOptimizer
from trainer.finetune.heads import TaskModel

_LAYER = re.compile(r"bert\.encoder\.layers\.(\d+)\.")


def depth_of(name: str, *, num_layers: int) -> int:
    """0: embeddings, 1 to num_layers: layers, num_layers + 1: pooler and head."""
    layer = _LAYER.match(name)
    if layer is not None:
        return int(layer.group(1)) + 1
    if name.startswith("bert.embeddings."):
        return 0
    return num_layers if name.startswith("bert.encoder.") else num_layers + 1


def freeze(model: TaskModel, *, config: FinetuneOptimizer) -> None:
    """Let what is frozen learn nothing; ConfigError where there are fewer layers."""
    if config.frozen_layers is None:
        return
    num_layers = model.bert.config.num_layers
    if config.frozen_layers > num_layers:
        raise ConfigError(
            f"optimizer.frozen_layers={config.frozen_layers}: the model has {num_layers} layers; lower it"
        )
    for name, parameter in model.named_parameters():
        if depth_of(name, num_layers=num_layers) <= config.frozen_layers:
            parameter.requires_grad_(False)


def build_optimizer(model: TaskModel, *, config: FinetuneOptimizer) -> torch.optim.AdamW:
    """AdamW over what learns; every group has `peak`, its greatest rate, and rate zero until set_rates.

    Matrices are decayed, biases and LayerNorm are not. bias_correction as in pretraining.
    """
    num_layers = model.bert.config.num_layers
    groups: dict[tuple[float, float], list[torch.nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        depth = depth_of(name, num_layers=num_layers)
        peak = config.learning_rate * config.layer_decay ** (num_layers + 1 - depth)
        if name.startswith(("head.", "bilstm.")) and config.head_learning_rate is not None:
            peak = config.head_learning_rate
        decay = config.weight_decay if parameter.dim() > 1 else 0.0
        groups.setdefault((peak, decay), []).append(parameter)
    listed: list[dict[str, Any]] = [
        {"params": parameters, "weight_decay": decay, "peak": peak} for (peak, decay), parameters in groups.items()
    ]
    optimizer = torch.optim.AdamW(listed, lr=0.0, betas=(config.beta1, config.beta2), eps=config.epsilon, fused=True)
    if not config.bias_correction:
        for parameter in (each for group in listed for each in group["params"]):
            optimizer.state[parameter] = {
                "step": torch.tensor(count_updates(0, config=config), device=parameter.device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
    return optimizer


def set_rates(optimizer: torch.optim.AdamW, *, step: int, config: TrainerConfig) -> float:
    """Set every group's rate for update `step` (1, 2, ...); returns its share of the peaks."""
    share = learning_rate(step, config) / config.optimizer.learning_rate
    for group in optimizer.param_groups:
        group["lr"] = group["peak"] * share
    return share
