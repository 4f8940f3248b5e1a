"""Writes a run as a transformers model: `python -m trainer.export RUN OUT [--best | --step N] [--data DIR]`.

Files are written to a folder beside OUT, which is then renamed to OUT. So OUT is never half written. The export needs
no DeepSpeed, transformers or GPU. Pre-LN models become `megatron-bert`, transformers' name for that layout.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from pipeline import storage
from pipeline.dataset import (
    MANIFEST_NAME,
    TOKENIZER_FILES,
    TOKENIZER_FOLDER,
    DataSetError,
    Manifest,
    file_sha256,
    parse_tokenizer,
    parse_tokenizer_config,
    read_manifest,
    resolve_inside,
)
from pipeline.json_text import parse_json
from pipeline.storage import Location, expand_path, locate, put_in_place, sync
from trainer.checkpoint import (
    MANIFEST,
    STATE,
    CheckpointState,
    find_checkpoints,
    is_checkpoint,
    newest_verified,
    rank_evaluations,
    read_state,
    read_weights,
    step_of,
)
from trainer.config import TrainerConfig, validate_saved
from trainer.data import resolve_phases
from trainer.export.history import History
from trainer.export.model_card import render_model_card
from trainer.export.task_scores import TaskReport
from trainer.hf import (
    CONFIG_FILE,
    MODEL_TYPES,
    TOKENIZER_CONFIG_FILE,
    WEIGHTS_FILE,
    to_transformers,
    transformers_config,
)
from trainer.telemetry import CURVE_NAME, EVALUATIONS_NAME, METRICS_NAME, read_last_lines

MARKER = "cloze_export.json"
"""The file that lists an export's files with their sha256. A later export may replace a folder that holds this file."""
FORMAT = "cloze-export-1"
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class ExportError(ValueError):
    """Raised if the run cannot be exported, or cannot be exported to the given folder."""


@dataclass(frozen=True, slots=True)
class Export:
    """The result of an export: the folder written, the checkpoint exported, and the model's type and size."""

    folder: Path
    checkpoint: Location
    step: int
    model_type: str
    num_parameters: int


def export(
    source: str | Path,
    *,
    out: str | Path,
    data: str | Path | None = None,
    step: int | None = None,
    best: bool = False,
    dtype: str = "fp32",
    tasks: TaskReport | None = None,
    repository: str | None = None,
    revisions: Sequence[str] = (),
) -> Export:
    """Export a checkpoint to the folder `out` and return what was written.

    `source` is a checkpoint folder or a run directory. From a run directory, the newest valid checkpoint is exported by
    default. If `step` is given, the checkpoint of this step is exported. If `best` is true, the checkpoint with the
    lowest held-out loss is exported; its evaluation must be comparable with the newest evaluation
    (retention.COMPARABLE), and it must still exist. `data` is the new place of the data set, if the data set was moved.
    `dtype` is a key of DTYPES. `tasks` is what fine-tuning found of an export of the same checkpoint. If the model is
    published in `repository`, the card names it and the `revisions` there.

    Writes config.json, model.safetensors, the data set's tokenizer files (tokenizer_config.json also gets the length of
    the longest trained row), README.md, curve.png (if steps are recorded) and MARKER (a list of the files). The weights
    have transformers' names. Like in save_pretrained, the tied decoder is left out. Pooler and next-sentence head are
    left out if nothing trained them.
    One rename replaces an earlier export in `out`. On an error, raises ValueError (ExportError, CheckpointError,
    DataSetError) and leaves `out` unchanged.
    """
    target = Path(os.path.abspath(expand_path(str(out), key="out", local_only=True)))
    _check_target(target)
    checkpoint = find_checkpoint(locate(source), step=step, best=best)
    state = read_state(checkpoint)
    identity = identify(checkpoint)
    if tasks is not None:
        check_tasks(tasks, checkpoint=checkpoint)
    config = validate_saved(state.config, origin=str(locate(checkpoint, STATE)))
    phase = max(phase.index for phase in resolve_phases(config) if phase.first_step < max(1, state.step))
    root = str(data if data is not None else resolve_phases(config)[phase].config.data)
    manifest, tokenizer_files = _open_tokenizer(root)
    if state.data_hash and state.data_hash != manifest.hash:
        raise ExportError(
            f"{checkpoint}: was trained on data set {state.data_hash[:12]}, but {root} is {manifest.hash[:12]}, whose "
            f"ids may mean other tokens; give the run's data set with --data"
        )
    weights = read_weights(checkpoint)
    if len(weights["mlm_head.bias"]) != manifest.vocabulary_size:
        raise ExportError(
            f"{checkpoint}: its vocabulary has {len(weights['mlm_head.bias'])} entries, but that of {root} has "
            f"{manifest.vocabulary_size}: this is not the run's data set; give that with --data"
        )
    longest, pair_heads = _find_rows(state, config=config, phase=phase, manifest=manifest)
    pair_heads = pair_heads and config.model.objective == "masked_next_sentence"
    tensors = to_transformers(
        weights, norm=config.model.norm, vocabulary_size=manifest.vocabulary_size, pair_heads=pair_heads
    )
    tensors = {name: _round(tensor, name=name, dtype=dtype) for name, tensor in tensors.items()}
    num_parameters = sum(tensor.numel() for tensor in tensors.values())
    card_path = storage.join(root, "README.md")
    history = History.read(_run_of(checkpoint), through=state.step)
    card = render_model_card(
        config,
        manifest=manifest,
        data_card=_read_text(card_path),
        card_origin=card_path,
        step=state.step,
        phase=phase,
        pair_heads=pair_heads,
        num_parameters=num_parameters,
        training=_last_record(checkpoint, name=METRICS_NAME, step=state.step),
        evaluation=_last_record(checkpoint, name=EVALUATIONS_NAME, step=state.step),
        history=history,
        state=state,
        tasks=tasks,
        repository=repository,
        revisions=revisions,
    )
    others = {"README.md": card.encode("utf-8"), **tokenizer_files}
    curve = history.draw()
    if curve is not None:
        others[CURVE_NAME] = curve
    settings = transformers_config(
        config.model,
        vocabulary_size=manifest.vocabulary_size,
        pad=manifest.special.pad,
        pair_heads=pair_heads,
        dtype=str(DTYPES[dtype]).removeprefix("torch."),
    )
    partial = target.with_name(f".{target.name}.partial")
    try:
        _write_folder(partial, tensors=tensors, settings=settings, others=others)
        _write_longest(partial / TOKENIZER_CONFIG_FILE, length=longest)
        _write_marker(partial, step=state.step, checkpoint=identity, manifest=manifest)
        replaced = put_in_place(partial, final=target)
        if replaced is not None:
            shutil.rmtree(replaced, ignore_errors=True)
    except OSError as error:
        raise ExportError(f"{target}: cannot be written: {error}; free space or choose another folder") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return Export(target, checkpoint, state.step, MODEL_TYPES[config.model.norm], num_parameters)


def identify(checkpoint: Location) -> str:
    """Return what tells a checkpoint from all others: the sha256 of its manifest, which has the hashes of its files."""
    return file_sha256(locate(checkpoint, MANIFEST))


def check_tasks(tasks: TaskReport, *, checkpoint: Location) -> None:
    """Raise ExportError if `tasks` was found with an export of another checkpoint."""
    if tasks.checkpoint != identify(checkpoint):
        raise ExportError(
            f"{checkpoint}: the tasks were fine-tuned on another checkpoint, of step {tasks.step:,}; give --step "
            f"{tasks.step}, or fine-tune an export of this one"
        )


def read_export_mark(folder: Location) -> tuple[str, int] | None:
    """Return (sha256 of the checkpoint's manifest, step) of the export in `folder`; None if it is none, or of an older
    release."""
    path = locate(folder, MARKER)
    if storage.find_file(path) is None:
        return None
    try:
        tree = parse_json(storage.read_bytes(path))
        return str(tree["checkpoint"]), int(tree["step"])
    except (ValueError, TypeError, KeyError):
        return None


def _check_target(target: Path) -> None:
    if not target.exists():
        return
    if not target.is_dir() or target.is_symlink():
        raise ExportError(f"{target}: is not a folder; choose another place")
    present = {path.name for path in target.iterdir()}
    if not present:
        return
    if MARKER not in present:
        raise ExportError(f"{target}: is not empty and not an earlier export; choose a new folder")
    try:
        listed = set(parse_json((target / MARKER).read_bytes())["files"])
    except (ValueError, TypeError, KeyError) as error:
        raise ExportError(f"{target / MARKER}: is damaged; remove {target} or choose a new folder") from error
    foreign = sorted(present - {MARKER} - listed)
    if foreign:
        raise ExportError(
            f"{target}: besides an earlier export it holds {', '.join(foreign)}, which would be lost; move that away "
            f"or choose a new folder"
        )


def find_checkpoint(source: Location, *, step: int | None, best: bool) -> Location:
    """Return the folder of the checkpoint that `export` takes. Raises ExportError if there is none."""
    if is_checkpoint(source):
        if step is not None or best:
            raise ExportError(f"{source}: is one checkpoint; give the run directory with --step or --best")
        return source
    if step is not None or best:
        found = {step_of(folder): folder for folder in find_checkpoints(source).folders}
        if step is not None:
            wanted, what = [step], f"of step {step}"
        else:
            losses = (rank_evaluations(source) or [{}])[-1]
            wanted, what = sorted(losses, key=lambda one: (losses[one], one)), "that was evaluated"
        chosen = next((found[one] for one in wanted if one in found), None)
        if chosen is None:
            steps = ", ".join(map(str, found)) or "none"
            keep = "; checkpoint.keep_best keeps the best ones" if best else ""
            raise ExportError(f"{source}: has no checkpoint {what}; it has: {steps}{keep}")
        return chosen
    newest = newest_verified(find_checkpoints(source))
    if newest is None:
        raise ExportError(f"{source}: holds no checkpoint; train first, or give a run directory or a checkpoint")
    return newest


def _find_rows(state: CheckpointState, *, config: TrainerConfig, phase: int, manifest: Manifest) -> tuple[int, bool]:
    """Return (length in tokens of the longest trained row, whether next-sentence prediction was trained).

    Newer checkpoints record both facts. For an older checkpoint, both are taken from data sets' manifests: `manifest`,
    which belongs to the phase (part of the run) with index `phase`, and the manifests of all earlier phases. If an
    earlier manifest cannot be read, or if training started from the weights of another model (model.initialize_from),
    the second result is True.
    """
    if state.rows:
        return state.rows["longest"], state.rows["next_sentence"]
    manifests, certain = [manifest], config.model.initialize_from is None
    for earlier in resolve_phases(config)[:phase]:
        try:
            manifests.append(read_manifest(earlier.config.data))
        except DataSetError:
            certain = False
    pairs = not certain or any(each.next_sentence != "none" for each in manifests)
    return max(each.max_seq_length for each in manifests), pairs


def _round(tensor: Tensor, *, name: str, dtype: str) -> Tensor:
    rounded = tensor.to(DTYPES[dtype])
    if not rounded.isfinite().all() and tensor.isfinite().all():
        raise ExportError(
            f"{name}: holds {tensor.abs().max():g}, which {dtype} cannot represent; give --dtype bf16 or fp32"
        )
    return rounded


def _open_tokenizer(root: str) -> tuple[Manifest, dict[str, bytes]]:
    """Return the manifest of the data set in `root`, and the contents of its tokenizer files by file name.

    Raises ExportError if a file is missing, if its hash differs from the manifest's, or if the manifest lists a file in
    the tokenizer's folder that the pipeline does not write there: such a file could replace the model or its card, or
    contain code. Raises ValueError if tokenizer.json or tokenizer_config.json may harm those who load them.
    """
    try:
        manifest = read_manifest(root)
    except DataSetError as error:
        raise ExportError(f"the tokenizer comes from the run's data set: {error} (moved? --data DIR)") from error
    files: dict[str, bytes] = {}
    allowed = {f"{TOKENIZER_FOLDER}/{file}": file for file in TOKENIZER_FILES}
    for name, expected in manifest.files.items():
        path = resolve_inside(root, name)
        if PurePosixPath(name).parts[0].lower() != TOKENIZER_FOLDER:
            continue
        if name not in allowed:
            raise ExportError(
                f"{storage.join(root, MANIFEST_NAME)}: lists '{name}', but a tokenizer has only "
                f"{', '.join(TOKENIZER_FILES)}; do not trust this data set, or build it again"
            )
        if storage.find_file(path) is None:
            raise ExportError(f"{path}: listed in the data set's manifest but missing; restore it")
        content = storage.read_bytes(path)
        found = hashlib.sha256(content).hexdigest()
        if found != expected:
            raise ExportError(f"{path}: sha256 {found} differs from the manifest's {expected}; restore it")
        files[allowed[name]] = content
    if "tokenizer.json" not in files:
        raise ExportError(f"{root}: its manifest lists no {TOKENIZER_FOLDER}/tokenizer.json; build the data set again")
    for name, parse in (("tokenizer.json", parse_tokenizer), (TOKENIZER_CONFIG_FILE, parse_tokenizer_config)):
        if name in files:
            parse(files[name], origin=storage.join(root, TOKENIZER_FOLDER, name))
    return manifest, files


def _run_of(checkpoint: Location) -> Location:
    return locate(storage.parent_of(storage.parent_of(checkpoint)))


def _last_record(checkpoint: Location, *, name: str, step: int) -> dict[str, Any] | None:
    records = read_last_lines(locate(_run_of(checkpoint), name), through=step)
    return records[-1] if records else None


def _read_text(path: str) -> str:
    if storage.find_file(path) is None:
        return ""
    try:
        return storage.read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ExportError(
            f"{path}: byte {error.start} is not UTF-8; restore the data set's card, or remove it"
        ) from error


def _write_folder(
    folder: Path,
    *,
    tensors: Mapping[str, Tensor],
    settings: Mapping[str, Any],
    others: Mapping[str, bytes],
) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    save_file(dict(tensors), folder / WEIGHTS_FILE, metadata={"format": "pt"})
    (folder / CONFIG_FILE).write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n", encoding="ascii")
    # save_file makes the file readable only by its owner, whatever the umask is.
    (folder / WEIGHTS_FILE).chmod((folder / CONFIG_FILE).stat().st_mode)
    for name, content in others.items():
        (folder / name).write_bytes(content)


def _write_longest(file: Path, *, length: int) -> None:
    """Write into `file` (tokenizer_config.json) that `truncation=True` cuts a text to this length in tokens.

    The model was not trained on positions after `length`.
    """
    tree = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    text = json.dumps({**tree, "model_max_length": length}, indent=2, sort_keys=True, ensure_ascii=False)
    file.write_text(text + "\n", encoding="utf-8")


def _write_marker(folder: Path, *, step: int, checkpoint: str, manifest: Manifest) -> None:
    """Write MARKER (a list of the files), then fsync all files and `folder`, so that all are on disk before `folder` is
    renamed."""
    files = {path.name: file_sha256(path) for path in sorted(folder.iterdir())}
    tree = {
        "format": FORMAT,
        "step": step,
        "checkpoint": checkpoint,
        "vocabulary_hash": manifest.vocabulary_hash,
        "files": files,
    }
    (folder / MARKER).write_text(json.dumps(tree, indent=1) + "\n", encoding="ascii")
    for path in [*folder.iterdir(), folder]:
        sync(path)
