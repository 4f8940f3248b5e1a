"""Which checkpoints of a run to keep: the newest, those at round steps, those with the lowest held-out loss.

The writer and the command line share this rule. The newest checkpoint always stays.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pipeline import storage
from pipeline.storage import Location, locate
from trainer.checkpoint.format import MANIFEST
from trainer.config import CheckpointConfig
from trainer.telemetry import EVALUATIONS_NAME, read_json_lines

COMPARABLE = ("phase", "data_hash", "pairs", "masked")
"""Evaluations are comparable if they agree in these keys; a missing key equals another missing one."""


def choose_kept(
    steps: Iterable[int], *, config: CheckpointConfig, rankings: Iterable[Mapping[int, float]] = ()
) -> set[int]:
    """Return the steps whose checkpoints stay. `rankings`: step -> held-out loss, one mapping per comparable set.

    Each ranking keeps its own best `keep_best`, since losses of different rankings are not comparable.
    """
    ordered = sorted(steps)
    kept = set(ordered[-config.keep_last :])
    if config.keep_every_steps is not None:
        kept.update(step for step in ordered if step % config.keep_every_steps == 0)
    for losses in rankings:
        evaluated = [step for step in ordered if step in losses]
        kept.update(sorted(evaluated, key=lambda step: (losses[step], step))[: config.keep_best])
    return kept


def rank_evaluations(run_dir: str | Path) -> list[dict[int, float]]:
    """Return step -> held-out masked-LM plus next-sentence loss, one mapping per comparable set of evaluations.

    Reads RUN/evaluations.jsonl and leaves out losses that are not finite. The newest evaluation is in the last mapping.
    """
    rankings: dict[tuple[Any, ...], dict[int, float]] = {}
    for record in read_json_lines(locate(run_dir, EVALUATIONS_NAME)):
        labelled = record.get("nsp_accuracy") is not None  # so a loss of null was not finite
        if record["mlm_loss"] is not None and not (labelled and record["nsp_loss"] is None):
            key = tuple(record.get(name) for name in COMPARABLE)
            rankings[key] = rankings.pop(key, {}) | {
                record["step"]: record["mlm_loss"] + (record.get("nsp_loss") or 0.0)
            }
    return list(rankings.values())


def remove(folder: Location) -> None:
    """Remove a checkpoint; its name goes first, so that a half-removed folder never looks like a checkpoint."""
    if not isinstance(folder, Path):
        storage.delete(locate(folder, MANIFEST))
        storage.delete_tree(folder)
        return
    trash = folder.with_name(f".trash-{folder.name.lstrip('.')}-{secrets.token_hex(4)}")
    folder.rename(trash)
    shutil.rmtree(trash, ignore_errors=True)
