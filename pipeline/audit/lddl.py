"""LDDL's Parquet as blocks: A and B are word pieces joined by spaces, masked already where masking is static.

Its algorithm is the published one, so the published quirks are notes here too. Documents, limits and hashes are not
stored; the least of 128 and 512 that nearly all rows keep is taken as the limit.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.audit.blocks import ANY_LENGTH, Block, Bools, Facts, Int64s, Vocabulary, offsets_of
from pipeline.audit.findings import Findings, Place
from pipeline.draws import key
from pipeline.tokenizer import BERT_SPECIAL, PIECE_PREFIX

COLUMNS = {"A": "string", "B": "string", "is_random_next": "bool", "num_tokens": "uint16"}
STATIC_COLUMNS = {"masked_lm_positions": "binary", "masked_lm_labels": "string"}
KNOWN_COLUMNS = {"bin_id", "__index_level_0__"}
COUNTS_NAME = ".num_samples.json"
_NAME = re.compile(r".*\.parquet(_\d+)?")
_BALANCED = re.compile(r"shard-\d+\.parquet(_\d+)?")
_UNUSED = re.compile(r"\[unused\d+\]")
_CAPS = (128, 512)
_NEARLY_ALL = 0.95


def list_shards(root: Path) -> list[Path]:
    """LDDL's files in a folder: *.parquet, or *.parquet_<bin> where rows are binned by length."""
    return sorted(path for path in root.rglob("*") if path.is_file() and _NAME.fullmatch(path.name))


def is_lddl(paths: Iterable[Path]) -> bool:
    """Whether the first readable file has LDDL's columns."""
    for path in paths:
        try:
            return set(COLUMNS) <= set(pq.read_schema(path).names)
        except (OSError, pa.ArrowException):
            continue
    return False


def is_balanced(path: str) -> bool:
    """Whether LDDL's load balancer wrote the file: then shards of a bin differ by one row at most."""
    return _BALANCED.fullmatch(Path(path).name) is not None


def bin_of(path: str) -> str:
    """The bin of a file, from its name; empty where rows are not binned."""
    return Path(path).name.rpartition(".parquet")[2]


def choose_limit(lengths: dict[int, int]) -> int:
    """The least of 128 and 512 that holds 95% of the rows; 512 where neither does."""
    total = sum(lengths.values())
    for cap in _CAPS:
        if sum(count for length, count in lengths.items() if length <= cap) >= _NEARLY_ALL * total:
            return cap
    return _CAPS[-1]


def count_lengths(paths: Iterable[Path]) -> dict[int, int]:
    """Rows by num_tokens, over all files that can be read."""
    found: dict[int, int] = {}
    for path in paths:
        try:
            with pq.ParquetFile(path) as file:
                for group in range(file.num_row_groups):
                    table = file.read_row_group(group, columns=["num_tokens"])
                    for item in table["num_tokens"].value_counts().to_pylist():
                        found[int(item["values"] or 0)] = found.get(int(item["values"] or 0), 0) + item["counts"]
        except (OSError, KeyError, pa.ArrowException):
            continue  # the check of pages names it
    return found


def describe_set(paths: list[Path], *, masked_probability: float, max_seq_length: int | None) -> Facts:
    """The facts of a set of these files."""
    static = False
    for path in paths:
        try:
            static = "masked_lm_positions" in pq.read_schema(path).names
            break
        except (OSError, pa.ArrowException):
            continue
    return Facts(
        kind="lddl",
        published=True,
        max_seq_length=max_seq_length or choose_limit(count_lengths(paths)),
        max_predictions=ANY_LENGTH,
        mask_sets=int(static),
        next_sentence="random_document",
        masking="token",
        draw="piece",
        masked_probability=masked_probability,
        has_documents=False,
    )


def check_schema(file: pq.ParquetFile, name: str, facts: Facts, *, findings: Findings) -> bool:
    """Columns of a file; whether its rows can be read as blocks."""
    findings.looked("schema")
    expected = COLUMNS | (STATIC_COLUMNS if facts.mask_sets else {})
    found = file.schema_arrow
    readable = True
    for column, kind in expected.items():
        index = found.get_field_index(column)
        if index < 0:
            findings.add("schema", Place(name), f"column {column} is missing")
            readable = False
        elif str(found.field(index).type).removeprefix("large_") != kind and column != "num_tokens":
            findings.add("schema", Place(name), f"column {column} is {found.field(index).type}, not {kind}")
            readable = False
    for column in sorted({*found.names} - {*expected} - KNOWN_COLUMNS):
        findings.add("schema", Place(name), f"unknown column {column}")
    return readable


def check_counts(root: Path, rows: dict[str, int], *, findings: Findings) -> None:
    """Rows of each file as LDDL's own .num_samples.json has them."""
    path = root / COUNTS_NAME
    if not path.is_file():
        return
    try:
        stated = dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        findings.add("counts", Place(COUNTS_NAME), f"cannot be read ({error})")
        return
    for name, count in sorted(rows.items()):
        findings.looked("counts")
        if stated.get(Path(name).name) != count:
            findings.add("counts", Place(name), f"{count} rows, {COUNTS_NAME} says {stated.get(Path(name).name)}")


class Pieces:
    """Numbers word pieces in the order they come; keys are the same in every process."""

    def __init__(self) -> None:
        self.tokens: list[str] = []
        self._numbers: dict[str, int] = {}
        self._keys: list[int] = []
        for token in BERT_SPECIAL:
            self.number(token)

    def number(self, token: str) -> int:
        """The id of a piece."""
        found = self._numbers.get(token)
        if found is None:
            found = self._numbers[token] = len(self.tokens)
            self.tokens.append(token)
            self._keys.append(key(0, "lddl", token))
        return found

    def vocabulary(self) -> Vocabulary:
        """Tables of the pieces so far."""
        size = len(self.tokens)
        pad, unk, cls, sep, mask = (self._numbers[token] for token in BERT_SPECIAL)
        return Vocabulary(
            tokens=self.tokens,
            keys=np.array(self._keys, np.uint64),
            special=np.isin(np.arange(size), [pad, unk, cls, sep, mask]),
            unused=np.array([bool(_UNUSED.fullmatch(token)) for token in self.tokens], np.bool_),
            continues=np.array([token.startswith(PIECE_PREFIX) for token in self.tokens], np.bool_),
            ends=None,
            unk=unk,
            cls=cls,
            sep=sep,
            mask=mask,
        )


def read_block(file: pq.ParquetFile, group: int, *, name: str, pieces: Pieces, static: bool) -> tuple[Block, Bools]:
    """Row group `group`, unmasked, as a block; and the rows (bool[n]) whose positions and labels do not go together.

    Raises OSError or pyarrow.ArrowException where a page is damaged.
    """
    columns = [*COLUMNS, *(STATIC_COLUMNS if static else ())]
    table = file.read_row_group(group, columns=columns).to_pydict()
    number = pieces.number
    cls, sep = number("[CLS]"), number("[SEP]")
    ids: list[int] = []
    ends: list[int] = []
    first: list[int] = []
    for a, b in zip(table["A"], table["B"], strict=True):
        start = len(ids)
        ids += [cls, *map(number, (a or "").split()), sep]
        first.append(len(ids) - start)
        ids += [*map(number, (b or "").split()), sep]
        ends.append(len(ids))
    count = len(first)
    flat = np.array(ids, np.int64)
    offsets = np.concatenate([np.zeros(1, np.int64), np.array(ends, np.int64)])
    mismatched = np.zeros(count, np.bool_)
    sets = _read_masks(table, flat, offsets, mismatched, number) if static else None
    positions, inputs, sizes = sets or (np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64))
    absent = np.zeros((count, 16), np.uint8)
    rows = np.flatnonzero(~mismatched) if static else np.zeros(0, np.int64)
    block = Block(
        ids=flat,
        offsets=offsets,
        num_tokens=np.array([value or 0 for value in table["num_tokens"]], np.int64),
        first_length=np.array(first, np.int64),
        label=np.array([-1 if value is None else int(value) for value in table["is_random_next"]], np.int64),
        document=absent,
        second=absent,
        has_second=np.ones(count, np.bool_),
        source=np.zeros(count, np.int64),
        pass_number=np.zeros(count, np.int64),
        list_rows=rows,
        list_offsets=offsets_of(sizes),
        positions=positions,
        inputs=inputs,
        numbers=np.arange(count),
        file=name,
        row_group=group,
    )
    return block, mismatched


def _read_masks(
    table: dict[str, list[Any]], ids: Int64s, offsets: Int64s, mismatched: Bools, number: Any
) -> tuple[Int64s, Int64s, Int64s]:
    """Positions, what stands there and numbers of positions; `ids` gets its labels back, `mismatched` is filled in."""
    positions: list[Int64s] = [np.zeros(0, np.int64)]
    inputs: list[Int64s] = [np.zeros(0, np.int64)]
    for row, (packed, words) in enumerate(zip(table["masked_lm_positions"], table["masked_lm_labels"], strict=True)):
        found = unpack_positions(packed)
        labels = np.array(list(map(number, (words or "").split())), np.int64)
        if found is None or found.size != labels.size:
            mismatched[row] = True
            continue
        positions.append(found)
        inside = found < offsets[row + 1] - offsets[row]
        place = offsets[row] + np.where(inside, found, 0)
        inputs.append(ids[place])
        ids[place[inside]] = labels[inside]
    sizes = np.array([part.size for part in positions[1:]], np.int64)
    return np.concatenate(positions), np.concatenate(inputs), sizes


def unpack_positions(packed: bytes | None) -> Int64s | None:
    """The array in the bytes of a .npy file (one dimension, integers); None where they are none."""
    if packed is None or packed[:6] != b"\x93NUMPY" or len(packed) < 12 or packed[6] not in (1, 2):
        return None
    start = 10 if packed[6] == 1 else 12
    stop = start + int.from_bytes(packed[8:start], "little")
    try:
        header = ast.literal_eval(packed[start:stop].decode("latin-1"))
        dtype: np.dtype[Any] = np.dtype(header["descr"])
        values: npt.NDArray[Any] = np.frombuffer(packed[stop:], dtype)
    except (ValueError, SyntaxError, TypeError, KeyError):
        return None
    if dtype.kind not in "iu" or header.get("shape") != (values.size,):
        return None
    return values.astype(np.int64)
