"""Reads parts of a safetensors file on an object store, because safetensors' own safe_open reads only local files.

The classes have the methods of safe_open that the trainer uses. A rank reads elements in the order in which they are
stored. So each request also fetches the bytes that the rank needs next. Cost: READ_AHEAD_BYTES of memory for each open
file, or less if all files together would take more than BUFFERED_BYTES.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from pipeline import storage
from pipeline.json_text import parse_json
from trainer.checkpoint.format import CheckpointError

READ_AHEAD_BYTES = 8 * 2**20
BUFFERED_BYTES = 256 * 2**20
_MIN_READ_BYTES = 2**16
_DTYPES = {"F32": torch.float32, "U8": torch.uint8}


def read_ahead_of(num_files: int) -> int:
    """Return how many bytes to read in one request while `num_files` files are open."""
    return min(READ_AHEAD_BYTES, max(_MIN_READ_BYTES, BUFFERED_BYTES // num_files))


class RangedTensors:
    """Reads tensors by name from a safetensors file on an object store. To be used in a `with` block.

    `num_files` says how many such files the caller has open at the same time. The more files are open, the fewer bytes
    are read ahead in each file. Raises CheckpointError if `url` is not a safetensors file.
    """

    def __init__(self, url: str, *, num_files: int = 1) -> None:
        self.url = url
        with ExitStack() as stack:
            self._file = stack.enter_context(storage.open_input(url, read_ahead=read_ahead_of(num_files)))
            try:
                (size,) = struct.unpack("<Q", self._file.read(8))
                header: dict[str, Any] = dict(parse_json(self._file.read(min(size, 2**30))))
            except (struct.error, ValueError, TypeError) as error:
                raise CheckpointError(f"{url}: is not a safetensors file ({error})") from error
            self._metadata: dict[str, str] = header.pop("__metadata__", {})
            self._entries: Mapping[str, Any] = header
            self._start = 8 + size
            stack.pop_all()

    def __enter__(self) -> RangedTensors:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def metadata(self) -> dict[str, str]:
        """Return the metadata in the file's header."""
        return self._metadata

    def keys(self) -> list[str]:
        """Return the names of the tensors."""
        return list(self._entries)

    def get_slice(self, name: str) -> RangedSlice:
        """Return a handle that reads parts of the 1-D tensor `name`."""
        return RangedSlice(self, name=name)

    def get_tensor(self, name: str) -> Tensor:
        """Read and return a whole tensor."""
        shape = self.shape(name)
        return self.read(name, 0, math.prod(shape)).view(shape)

    def shape(self, name: str) -> list[int]:
        """Return the shape of a tensor."""
        shape: list[int] = self._entries[name]["shape"]
        return shape

    def read(self, name: str, start: int, stop: int) -> Tensor:
        """Read and return elements [start, stop) of the flattened tensor `name`, as a 1-D tensor.

        Raises CheckpointError if the file ends before the last of these elements.
        """
        entry = self._entries[name]
        dtype = _DTYPES[entry["dtype"]]
        wanted = (stop - start) * dtype.itemsize
        self._file.seek(self._start + entry["data_offsets"][0] + start * dtype.itemsize)
        data = bytearray(self._file.read(wanted))
        if len(data) != wanted:
            raise CheckpointError(f"{self.url}: ends inside tensor {name}")
        return torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)


class RangedSlice:
    """A handle for a 1-D tensor in a file. `handle[start:stop]` reads and returns these elements of the tensor."""

    def __init__(self, file: RangedTensors, *, name: str) -> None:
        self._file, self._name = file, name

    def get_shape(self) -> list[int]:
        """Return the tensor's shape."""
        return self._file.shape(self._name)

    def __getitem__(self, elements: slice) -> Tensor:
        return self._file.read(self._name, elements.start, elements.stop)
