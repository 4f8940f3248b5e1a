"""Slices of any cut put together give the tensors back; a gap or a double is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

from trainer.checkpoint.format import CheckpointError, step_name, write_manifest, write_tensors
from trainer.checkpoint.slices import KINDS, SavedTensors, part_name, write_part
from trainer.engine.zero_state import LocalSlice

SHAPES = {"embedding": (7, 5), "bias": (3,), "scalar": (1,)}


def make_state(seed: int) -> dict[str, dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return {name: {kind: torch.randn(shape, generator=generator) for kind in KINDS} for name, shape in SHAPES.items()}


def write_parts(folder: Path, *, state: dict[str, dict[str, Tensor]], cuts: dict[str, list[int]], world: int) -> None:
    """Rank r writes elements [cuts[r], cuts[r + 1]) of each parameter."""
    files: dict[str, Any] = {}
    for rank in range(world):
        slices = []
        for name, tensors in state.items():
            start, stop = cuts[name][rank], cuts[name][rank + 1]
            if start < stop:
                views = {kind: tensor.view(-1)[start:stop] for kind, tensor in tensors.items()}
                slices.append(LocalSlice(name=name, start=start, shape=SHAPES[name], tensors=views))
        path = folder / part_name(rank, world_size=world)
        generators = {"cpu": torch.tensor([rank], dtype=torch.uint8)}
        files[path.name] = write_part(path, slices=slices, generators=generators)
    write_manifest(folder, step=1, files=files)


@settings(max_examples=40)
@given(data=st.data(), world=st.integers(1, 5))
def test_any_cut_reads_back_any_range(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, world: int
) -> None:
    folder = tmp_path_factory.mktemp("checkpoint") / step_name(1)
    folder.mkdir()
    state = make_state(world)
    cuts = {}
    for name, shape in SHAPES.items():
        total = torch.Size(shape).numel()
        inner = data.draw(st.lists(st.integers(0, total), min_size=world - 1, max_size=world - 1).map(sorted))
        cuts[name] = [0, *inner, total]
    write_parts(folder, state=state, cuts=cuts, world=world)
    saved = SavedTensors(folder)
    assert saved.shapes == SHAPES
    for name, shape in SHAPES.items():
        total = torch.Size(shape).numel()
        start = data.draw(st.integers(0, total - 1))
        stop = data.draw(st.integers(start + 1, total))
        for kind, values in saved.read(name, start, stop).items():
            assert torch.equal(values, state[name][kind].view(-1)[start:stop])
    rank = data.draw(st.integers(0, world - 1))
    assert saved.read_generators(rank, world_size=world)["cpu"].tolist() == [rank]
    assert saved.read_generators(rank, world_size=world + 1) == {}


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ((5, 35), "elements 3 to 5 of embedding are missing"),
        ((2, 35), "elements 3 to 2 of embedding are present twice"),
        ((3, 34), "elements 34 to 35 of embedding are missing"),
    ],
)
def test_gaps_and_doubles_are_named(tmp_path: Path, second: tuple[int, int], message: str) -> None:
    folder = tmp_path / step_name(1)
    folder.mkdir()
    files = {}
    for rank, (start, stop) in enumerate([(0, 3), second]):
        values = {kind: torch.zeros(stop - start) for kind in KINDS}
        piece = LocalSlice(name="embedding", start=start, shape=SHAPES["embedding"], tensors=values)
        path = folder / part_name(rank, world_size=2)
        files[path.name] = write_part(path, slices=[piece], generators={})
    write_manifest(folder, step=1, files=files)
    with pytest.raises(CheckpointError, match=message):
        SavedTensors(folder)


def test_files_are_safetensors(tmp_path: Path) -> None:
    """The published reader agrees with our writer, and the hash is that of the bytes on disk."""
    import hashlib

    tensors = {"b": torch.arange(6.0).view(2, 3), "a": torch.tensor([1, 2, 3], dtype=torch.uint8), "c": torch.zeros(0)}
    path = tmp_path / "part.safetensors"
    entry = write_tensors(path, tensors=tensors, metadata={"slices": json.dumps({})})
    loaded = load_file(path)
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(loaded[name], tensor)
    data = path.read_bytes()
    assert entry == {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
