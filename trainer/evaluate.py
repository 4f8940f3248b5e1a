"""Compute a model's held-out losses: `python -m trainer.evaluate MODEL DATA [--max-pairs N] [--device cuda] [--json]`.

MODEL is any folder that `model.initialize_from` takes. Evaluates as a training run does (trainer/train/evaluate.py) but
without a DeepSpeed engine: in fp32 on the CPU, in bf16 on a GPU.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from pipeline import storage
from pipeline.console import command, exit_with
from pipeline.dataset import TOKENIZER_FOLDER, open_data_set
from pipeline.settings import ConfigError
from pipeline.storage import expand_path
from trainer.config import BatchConfig, EvaluationConfig, TrainerConfig
from trainer.data import open_phases, resolve_phases
from trainer.hf import check_same_vocabulary, read_model
from trainer.model import BertForPretraining
from trainer.telemetry import Evaluation
from trainer.train import Evaluator

_TOKENS = 4096
"""Maximum tokens of a micro-batch, unless one row is longer."""


class _EvaluationEngine:
    """Takes the place of an Engine in an Evaluator. It runs the model, but cannot train it."""

    rank, world_size = 0, 1

    def __init__(self, model: BertForPretraining, *, device: torch.device) -> None:
        self._model, self.device = model.eval(), device
        self._model.to(device, torch.bfloat16 if device.type == "cuda" else torch.float32)

    def __call__(self, *inputs: Any) -> Any:
        return self._model(*inputs)

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        with torch.no_grad():
            yield


def evaluate(model: str, *, data: str, max_pairs: int | None = None, device: str = "cpu") -> Evaluation:
    """Evaluate the model in the folder `model` on held-out pairs of the data set `data`, at most `max_pairs` pairs
    (None: all). Return the losses and accuracies.

    Raises ValueError if the folder holds no model, if the model's vocabulary differs from the data set's, or if the
    model has too few positions for the rows.
    """
    manifest = open_data_set(data)
    weights, knows_pairs = read_model(model)
    check_same_vocabulary(storage.locate(model), data_tokenizer=storage.join(data, TOKENIZER_FOLDER))
    if manifest.max_seq_length > weights.config.max_positions:
        raise ConfigError(
            f"{model}: has {weights.config.max_positions} positions, but rows of {data} have up to "
            f"{manifest.max_seq_length} tokens; give a data set with shorter rows"
        )
    config = TrainerConfig(
        data=data,
        output="",
        model=weights.config,
        batch=BatchConfig(tokens=max(_TOKENS, manifest.max_seq_length), lanes=1),
        max_steps=1,
        evaluation=EvaluationConfig(max_pairs=max_pairs),
    )
    (opened,) = open_phases(resolve_phases(config), manifests=[manifest])
    engine: Any = _EvaluationEngine(weights, device=torch.device(device))
    with _single_process_group():
        found = Evaluator(config, manifest=manifest, shape=opened.shape).evaluate(engine, step=0)
    return found if knows_pairs else replace(found, nsp_loss=None, nsp_accuracy=None)


@contextmanager
def _single_process_group() -> Iterator[None]:
    """Make a torch.distributed group of this process alone for the `with` block, because an Evaluator sums over the
    ranks of a group."""
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


@command()
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status: 0 if it succeeded, 2 if it was refused."""
    parser = argparse.ArgumentParser(
        prog="python -m trainer.evaluate", description="Compute a model's losses on the held-out rows of a data set."
    )
    parser.add_argument("model", help="path or URL of an export, or of a BERT saved by transformers")
    parser.add_argument("data", help="path or URL of a data set with the model's vocabulary")
    parser.add_argument("--max-pairs", type=int, help="number of held-out pairs, from a fixed order (default: all)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cpu: fp32; cuda: bf16 (default: cpu)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options = parser.parse_args(arguments)
    if options.max_pairs is not None and options.max_pairs < 1:
        raise ConfigError(f"--max-pairs={options.max_pairs}: give at least 1")
    if options.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device=cuda: torch finds no GPU; leave --device out")
    model, data = (expand_path(getattr(options, key), key=key) for key in ("model", "data"))
    found = evaluate(model, data=data, max_pairs=options.max_pairs, device=options.device)
    if options.json:
        left_out = ("step", "phase")
        print(json.dumps({key: value for key, value in found.record().items() if key not in left_out}, indent=1))
    else:
        print("\n".join(found.lines()))
    return 0


if __name__ == "__main__":
    exit_with(main())
