"""A run directory with checkpoints and the data set it names, without training: in a fraction of a second."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import torch

from pipeline.dataset.manifest import TOKENIZER_FOLDER, Manifest, file_sha256, write_manifest
from pipeline.tokenizer.tokenizer import WordTokenizer
from synthetic import make_manifest, vocabulary, write_data_set
from trainer.checkpoint import CheckpointWriter
from trainer.config import BatchConfig, ModelConfig, PhaseConfig, TrainerConfig
from trainer.engine.engine import Engine, LossScale
from trainer.engine.zero_state import LocalSlice
from trainer.export import folder as export
from trainer.model import BertForPretraining
from trainer.telemetry.metrics import EVALUATIONS_NAME, METRICS_NAME, JsonLines

VOCABULARY_SIZE = 512


def write_tokenizer(folder: Path, *, size: int = VOCABULARY_SIZE, lowercase: bool = True) -> str:
    """Tokenizer files of synthetic.vocabulary(size), as the pipeline writes them; returns the vocabulary's hash."""
    folder.mkdir(parents=True, exist_ok=True)
    words = folder / "vocab.txt"
    words.write_text("\n".join(vocabulary(size)) + "\n", encoding="utf-8")
    tokenizer = WordTokenizer.from_path(words, lowercase=lowercase)
    tokenizer.save(folder)
    return tokenizer.vocabulary_hash


def write_export(folder: Path, *, data: Path) -> tuple[Path, BertForPretraining]:
    """An export of a post-LN run, with its model; tests copy before they change it."""
    model = write_run(folder, data=data)
    export.export(folder, out=folder / "export")
    return folder / "export", model


def write_data(
    root: Path, *, size: int = VOCABULARY_SIZE, longest: int = 64, next_sentence: str = "random_document"
) -> Manifest:
    """A small data set with real tokenizer files, a data card and sources."""
    made = write_data_set(root, vocabulary_size=size, max_seq_length=longest, next_sentence=next_sentence)
    vocabulary_hash = write_tokenizer(root / TOKENIZER_FOLDER, size=size)
    files = {
        f"{TOKENIZER_FOLDER}/{path.name}": file_sha256(path) for path in sorted((root / TOKENIZER_FOLDER).iterdir())
    }
    plain = make_manifest(list(made.shards), vocabulary_size=size, max_seq_length=longest, next_sentence=next_sentence)
    manifest = plain.model_copy(
        update={
            "files": {**made.files, **files},
            "vocabulary_hash": vocabulary_hash,
            "config": {
                "sources": [
                    {"kind": "wikipedia", "language": "en"},
                    {"kind": "books", "language": "en", "name": "novels"},
                ]
            },
        }
    )
    write_manifest(root, manifest, run={})
    card = "---\nlicense: cc-by-sa-4.0\n---\n\n# Pairs\n\nThe texts keep the licences of their sources.\n"
    (root / "README.md").write_text(card, encoding="utf-8")
    return manifest


class _StillEngine:
    """What save() asks of an engine, around a model that is not trained."""

    rank, world_size, steps_taken = 0, 1, 7
    device = torch.device("cpu")
    loss_scale = LossScale()

    def __init__(self, model: BertForPretraining) -> None:
        self.model = model

    def broadcast_int(self, value: int) -> int:
        return value

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(parameter.shape) for name, parameter in self.model.named_parameters()}

    def local_slices(self) -> list[LocalSlice]:
        return [
            LocalSlice(
                name=name,
                start=0,
                shape=tuple(parameter.shape),
                tensors={
                    "parameter": parameter.detach().view(-1),
                    "exp_avg": torch.zeros(parameter.numel()),
                    "exp_avg_sq": torch.zeros(parameter.numel()),
                },
            )
            for name, parameter in self.model.named_parameters()
        ]


def write_run(
    run: Path,
    *,
    data: Path,
    steps: tuple[int, ...] = (7,),
    data_hash: str = "",
    phases: tuple[PhaseConfig, ...] = (),
    rows: dict[str, Any] | None = None,
    **changes: Any,
) -> BertForPretraining:
    """Checkpoints at `steps`, metrics up to 20 and an evaluation at 5; returns the model of the last checkpoint.

    `rows`: CheckpointState.rows.
    """
    config = TrainerConfig(
        data=str(data),
        output=str(run),
        model=ModelConfig(**{"size": "tiny", **changes}),
        batch=BatchConfig(pairs=8),
        max_steps=20,
        phases=phases,
    )
    for step in steps:
        model = BertForPretraining(config.model, vocabulary_size=VOCABULARY_SIZE, seed=step)
        generator = torch.Generator().manual_seed(step)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim < 2:
                    parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
        engine = cast(Engine, _StillEngine(model))
        writer = CheckpointWriter(run, engine=engine, config=config)
        writer.save(step, plan_state={}, data_hash=data_hash, rows=rows)
        writer.finish()
    metrics = JsonLines(run / METRICS_NAME, keep_through=0)
    for step in range(1, 21):
        metrics.write({"step": step, "mlm_loss": 8.0 + step / 100, "mlm_accuracy": 0.1, "nsp_loss": 0.6931})
    metrics.close()
    evaluations = JsonLines(run / EVALUATIONS_NAME, keep_through=0)
    for step, loss in ((5, 7.5), (20, 1.0)):
        evaluations.write({"step": step, "mlm_loss": loss, "mlm_accuracy": 0.2, "unigram_loss": 9.25})
    evaluations.close()
    return model.eval()
