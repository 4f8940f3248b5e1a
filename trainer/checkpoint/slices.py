"""Writes a checkpoint's tensors, and reads ranges of a tensor's elements, with any number of ranks.

Each rank's file holds parts of the flattened parameters and moments. The file's metadata gives the offset of each
part. A rank reads only the elements that it needs: files on a disk are memory-mapped, and files on a store are read by
ranges of bytes. This module needs neither DeepSpeed nor a process group.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from pipeline.storage import Location, locate
from trainer.checkpoint.format import CheckpointError, open_manifest, write_tensors
from trainer.checkpoint.ranges import RangedTensors
from trainer.engine import MOMENTS, LocalSlice

KINDS = ("parameter", *MOMENTS)
_GENERATOR = "generator/"


def part_name(rank: int, *, world_size: int) -> str:
    """Return the name of the file into which a rank writes its tensors of a checkpoint that `world_size` ranks
    write."""
    return f"rank-{rank:05d}-of-{world_size:05d}.safetensors"


def write_part(path: Location, *, slices: Iterable[LocalSlice], generators: Mapping[str, Tensor]) -> dict[str, Any]:
    """Write one rank's file of a checkpoint. Return the file's manifest entry, {"bytes": size, "sha256": hash}.

    `slices` are the rank's parts of the flattened parameters and moments, and must be on the CPU. `generators` maps
    "cpu" and "cuda" to the states of the rank's random number generators.
    """
    tensors: dict[str, Tensor] = {}
    places: dict[str, Any] = {}
    for piece in slices:
        places[piece.name] = {"start": piece.start, "shape": list(piece.shape)}
        tensors.update({f"{kind}/{piece.name}": values for kind, values in piece.tensors.items()})
    tensors.update({f"{_GENERATOR}{name}": state for name, state in generators.items()})
    return write_tensors(path, tensors=tensors, metadata={"slices": json.dumps(places)})


@dataclass(frozen=True, slots=True)
class _Piece:
    start: int
    stop: int
    file: Any


class SavedTensors:
    """A reader for the tensors of a checkpoint, to be used in a `with` block.

    `shapes` maps each parameter's name to its full shape. Raises CheckpointError if an element of a parameter is
    missing from the ranks' files, or is there twice.
    """

    def __init__(self, folder: Location) -> None:
        self.folder = folder
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._pieces: dict[str, list[_Piece]] = {}
        self._kinds: dict[str, list[str]] = {}
        files_folder, files = open_manifest(folder)
        parts = [name for name in sorted(files) if name.endswith(".safetensors")]
        with ExitStack() as stack:
            self._parts: dict[str, Any] = {
                name: stack.enter_context(_open(locate(files_folder, name), num_files=len(parts))) for name in parts
            }
            self._index()
            self._close = stack.pop_all().close

    def __enter__(self) -> SavedTensors:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def _index(self) -> None:
        for part in self._parts.values():
            stored = set(part.keys())
            for name, place in json.loads(part.metadata()["slices"]).items():
                self._kinds[name] = [kind for kind in KINDS if f"{kind}/{name}" in stored]
                (numel,) = part.get_slice(f"parameter/{name}").get_shape()
                self.shapes[name] = tuple(place["shape"])
                self._pieces.setdefault(name, []).append(_Piece(place["start"], place["start"] + numel, part))
        for name, pieces in self._pieces.items():
            pieces.sort(key=lambda piece: piece.start)
            self._check_cover(name, pieces)

    def read(self, name: str, start: int, stop: int, *, kinds: Iterable[str] | None = None) -> dict[str, Tensor]:
        """Return elements [start, stop) of the flattened parameter `name`, and of its moments.

        The result is a dict with one 1-D fp32 tensor for each of `kinds` (None: all that are stored). The kind
        "parameter" stands for the parameter's values. The other kinds are the names of the moments.
        """
        wanted = [piece for piece in self._pieces[name] if piece.start < stop and start < piece.stop]
        return {
            kind: torch.cat(
                [
                    piece.file.get_slice(f"{kind}/{name}")[
                        max(start, piece.start) - piece.start : min(stop, piece.stop) - piece.start
                    ]
                    for piece in wanted
                ]
            )
            for kind in (self._kinds[name] if kinds is None else kinds)
        }

    def read_generators(self, rank: int, *, world_size: int) -> dict[str, Tensor]:
        """Return the states of the rank's random generators by device ("cpu" or "cuda").

        The dict is empty if the checkpoint was written with another world size.
        """
        part = self._parts.get(part_name(rank, world_size=world_size))
        if part is None:
            return {}
        names = [key for key in part.keys() if key.startswith(_GENERATOR)]  # noqa: SIM118 (not a mapping)
        return {name.removeprefix(_GENERATOR): part.get_tensor(name) for name in names}

    def _check_cover(self, name: str, pieces: list[_Piece]) -> None:
        reached = 0
        for piece in pieces:
            if piece.start != reached:
                raise CheckpointError(
                    f"{self.folder}: elements {reached} to {piece.start} of {name} are "
                    f"{'missing' if piece.start > reached else 'present twice'}"
                )
            reached = piece.stop
        total = math.prod(self.shapes[name])
        if reached != total:
            raise CheckpointError(f"{self.folder}: elements {reached} to {total} of {name} are missing")


def _open(path: Location, *, num_files: int) -> Any:
    return safe_open(path, framework="pt") if isinstance(path, Path) else RangedTensors(path, num_files=num_files)
