"""Decides which checkpoints stay: the newest, one every N steps, and those with the lowest held-out loss.

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
"""Two evaluations are comparable if their records have equal values for these keys. A key that both records lack counts
as equal."""


def choose_kept(
    steps: Iterable[int], *, config: CheckpointConfig, rankings: Iterable[Mapping[int, float]] = ()
) -> set[int]:
    """Return those of `steps` whose checkpoints stay under the settings `config`.

    The newest `config.keep_last` steps and the multiples of `config.keep_every_steps` stay. Each of `rankings` maps
    step -> held-out loss, and the best `config.keep_best` steps of each ranking stay too. Losses of different rankings
    are not comparable.
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
    """Return the held-out losses of a run: one dict, step -> loss, for each set of comparable evaluations.

    Evaluations are comparable if their records in RUN/evaluations.jsonl have equal values for the keys in COMPARABLE.
    The loss is the sum of masked-LM and next-sentence loss. Losses that are not finite are left out. The last dict
    contains the newest evaluation.
    """
    rankings: dict[tuple[Any, ...], dict[int, float]] = {}
    for record in read_json_lines(locate(run_dir, EVALUATIONS_NAME)):
        labelled = record.get("nsp_accuracy") is not None  # if True, an nsp_loss of None was not finite
        if record.get("mlm_loss") is not None and not (labelled and record.get("nsp_loss") is None):
            key = tuple(record.get(name) for name in COMPARABLE)
            rankings[key] = rankings.pop(key, {}) | {
                record["step"]: record["mlm_loss"] + (record.get("nsp_loss") or 0.0)
            }
    return list(rankings.values())


def remove(folder: Location) -> None:
    """Remove a checkpoint, so that an interrupted removal leaves nothing that looks like a valid checkpoint.

    On a disk, the folder is renamed before the files are deleted. On a store, the manifest is deleted first.
    """
    if not isinstance(folder, Path):
        storage.delete(locate(folder, MANIFEST))
        storage.delete_tree(folder)
        return
    trash = folder.with_name(f".trash-{folder.name.lstrip('.')}-{secrets.token_hex(4)}")
    folder.rename(trash)
    shutil.rmtree(trash, ignore_errors=True)
