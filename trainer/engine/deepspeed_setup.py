"""Sets up DeepSpeed: derives its settings from the run's config, and imports DeepSpeed without compiling anything."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Mapping
from datetime import timedelta
from types import ModuleType
from typing import Any

import torch
from torch.distributed import distributed_c10d

from pipeline.settings import ConfigError
from trainer.config import Precision, TrainerConfig

INITIAL_LOSS_SCALE = 2.0**16
"""The loss scale that fp16 starts with. Our Engine changes the scale between steps; to DeepSpeed it is a constant."""

LARGEST_BUCKET = 2**25
"""Maximum number of gradient elements that one call reduces over the ranks. BERT-Large's word table fits into one
call."""


def deepspeed_dictionary(config: TrainerConfig, *, micro_batches: int, num_elements: int) -> dict[str, Any]:
    """Return DeepSpeed's settings (its JSON config as a dict) for a model of `num_elements` weights.

    `micro_batches` is the number of micro-batches per step on each rank. Settings in `config.deepspeed` override the
    settings made here, and nested mappings are merged key by key.
    """
    dictionary: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": micro_batches,
        "gradient_clipping": 0.0 if config.zero_stage == 0 else config.optimizer.clip_norm,
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 2**62,
    }
    if config.zero_stage > 0:
        dictionary["zero_optimization"] = _zero_settings(config.zero_stage, num_elements=num_elements)
    if config.precision == "bf16":
        # Checking every gradient for overflow takes a third of the step (608 kernel launches for BERT-Large).
        dictionary["bf16"] = {"enabled": True, "check_grad_overflow": False}
    if config.precision == "fp16":
        dictionary["fp16"] = {"enabled": True, "loss_scale": INITIAL_LOSS_SCALE}
    own_sums = config.zero_stage in (1, 2) and not config.deepspeed.given()  # by gradients.py
    if config.precision != "fp32" and not own_sums:
        send_fp32 = config.communication_data_type == "fp32"
        if send_fp32:
            dictionary["communication_data_type"] = "fp32"
        if send_fp32 or micro_batches > 1:
            # With 8 (bf16) or 11 bits (fp16) of mantissa, sums over micro-batches and ranks lose small gradients.
            dictionary["data_types"] = {"grad_accum_dtype": "fp32"}
    return _merge(dictionary, config.deepspeed.given())


def _zero_settings(stage: int, *, num_elements: int) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "stage": stage,
        # Each backward pass allocates a buffer of this size, even for a small model (default: 5e8 elements, 2 GB).
        "reduce_bucket_size": min(LARGEST_BUCKET, num_elements),
        # Overlap had race conditions with compiled models (DeepSpeed#8061, #5545); off until a parity test covers it.
        "overlap_comm": False,
        "contiguous_gradients": True,
        "reduce_scatter": True,
    }
    if stage == 3:
        # True would replace torch.nn.functional.linear for the whole process.
        settings["memory_efficient_linear"] = False
        # A parameter with fewer elements (biases, LayerNorm) stays whole on every rank.
        settings["stage3_param_persistence_threshold"] = 8192
    return settings


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        known = merged.get(key)
        merged[key] = _merge(known, value) if isinstance(known, Mapping) and isinstance(value, Mapping) else value
    return merged


def bound_waits(timeout_s: int) -> None:
    """Set the default time-out of all process groups created from now on to `timeout_s` seconds.

    DeepSpeed passes no time-out for its groups. With torch's default, ranks would wait half an hour (10 minutes on
    GPUs) for a frozen rank, even if the default group has a shorter time-out.
    """
    timeout = timedelta(seconds=timeout_s)
    distributed_c10d.default_pg_timeout = timeout
    distributed_c10d.default_pg_nccl_timeout = timeout  # type: ignore[attr-defined]


def _is_news(record: logging.LogRecord) -> bool:
    """Return False for DeepSpeed's warning of optimizers that it has not tested. Our tests cover them."""
    return "untested optimizer" not in record.getMessage()


def load_deepspeed(device: torch.device, *, precision: Precision, logs: bool) -> ModuleType:
    """Import DeepSpeed for `device` so that it compiles nothing, now or on first use. Return the module.

    If `logs` is true, DeepSpeed logs the reports for which its settings ask; otherwise it logs warnings only. Sets
    DS_ACCELERATOR, LOCAL_RANK and, on GPUs, TORCH_CUDA_ARCH_LIST in the environment. Raises ConfigError if the device
    cannot compute in `precision`.
    """
    os.environ["DS_ACCELERATOR"] = device.type
    if device.type == "cuda":
        os.environ["LOCAL_RANK"] = str(device.index)
        # DeepSpeed cannot parse architectures like "9.0a".
        architectures = os.environ.get("TORCH_CUDA_ARCH_LIST", "").replace("a", "")
        if architectures:
            os.environ["TORCH_CUDA_ARCH_LIST"] = architectures
    else:
        os.environ.setdefault("LOCAL_RANK", "0")
    import deepspeed
    import deepspeed.ops
    from deepspeed.runtime import bf16_optimizer

    # No log level turns these memory reports off, and each report runs a garbage collection (2 s per engine).
    bf16_optimizer.see_memory_usage = lambda *_args, **_kwargs: None
    # DeepSpeed calls collectives by names that torch 2.13 deprecates, with one warning per call.
    warnings.filterwarnings("ignore", message=r"`torch\.distributed\.\w+` is deprecated", category=FutureWarning)
    # Without this, DeepSpeed compiles its C++ collectives in shared memory on first use (50 s, needs g++).
    deepspeed.ops.__compatible_ops__ = {"deepspeed_shm_comm": False}
    logging.getLogger("DeepSpeed").setLevel(logging.INFO if logs else logging.WARNING)
    logging.getLogger("DeepSpeed").addFilter(_is_news)
    if precision == "fp16" and not deepspeed.accelerator.get_accelerator().is_fp16_supported():
        raise ConfigError(f"precision=fp16: not supported on this {device.type}; set precision=bf16 or fp32")
    module: ModuleType = deepspeed
    return module
