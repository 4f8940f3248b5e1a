"""Checks over all shards: identical rows, contradicting labels, documents in two shards, and documents in both training
and validation.

Workers write records to a temporary folder (the spill): 49 bytes for each row, and 24 bytes for each document of each
row group. Hashes divide the records into parts of about PART_BYTES. Only one part is sorted at a time, so memory does
not grow with the data set.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.audit.blocks import (
    Block,
    Bools,
    Facts,
    Vocabulary,
    are_repetitive,
    hash_runs,
    have_common_lines_only,
    mix,
)
from pipeline.audit.findings import Findings, Place
from pipeline.audit.following import document_keys

PART_BYTES = 64_000_000
_HELD_BYTES = 16_000_000
SURE_BITS = 10
"""Identical rows are a fault if chance would give less than one such row even in a data set 2 ** SURE_BITS times as
large. Otherwise they are a note."""
_ACTION_BITS = 0.6
"""-log2 of the chance that two random choices between [MASK], kept and random (80/10/10) are equal."""
MIN_TOKENS = 32
"""Rows with fewer tokens may be repeated by chance, so their repetition is a note. The check for leakage uses half of
max_seq_length as its limit if that is less."""
_FEWEST_DOCUMENTS = 3
"""A text that stands in this number of documents or more repeats all over the corpus."""
ROW = np.dtype(
    [
        ("pair", "<u8", 2),
        ("rest", "<u8"),
        ("document", "<u8"),
        ("shard", "<u4"),
        ("group", "<u4"),
        ("row", "<u4"),
        ("length", "<u2"),
        ("label", "i1"),
        ("bits", "u1"),
        ("repeats", "?"),
    ]
)
"""The record of one row. `pair` is a 128-bit hash of the unmasked token ids, and `rest` is a hash of the mask sets and
the label. `shard`, `group` and `row` are numbers that say where the row is. `length` is in tokens. `bits` is -log2 of
the chance that another row with the same token ids gets the same masks. `repeats` is true if the row repeats a few
lines (see are_repetitive), or has nothing but lines that repeat all over its row group."""
DOCUMENT = np.dtype([("id", "<u8", 2), ("shard", "<u4"), ("group", "<u4")])
"""The record of one document in one row group. `id` is the 16-byte document id. `shard` and `group` say where the row
group is."""


def num_parts(rows: int) -> int:
    """Return how many parts the temporary records of a data set are divided into, so that each part is small enough to
    be loaded and checked at once. `rows` is the number of rows in the data set."""
    return max(1, -(-rows * ROW.itemsize // PART_BYTES))


def describe_rows(block: Block, *, shard: int, facts: Facts, vocabulary: Vocabulary) -> npt.NDArray[Any]:
    """Return one record (of the type ROW: hashes, place, length and label) for each row of the block. `shard` is the
    index of the block's shard in the manifest."""
    found = np.zeros(len(block), ROW)
    keys = vocabulary.keys[block.ids]
    for half in range(2):
        found["pair"][:, half] = hash_runs(keys, block.offsets, salt=half)
    entries = block.positions.astype(np.uint64) * np.uint64(1 << 32) + vocabulary.keys[block.inputs] * np.uint64(31)
    lists = hash_runs(entries, block.list_offsets, salt=2)
    bounds = np.searchsorted(block.list_rows, np.arange(len(block) + 1))
    rest = hash_runs(lists, bounds, salt=4)
    found["rest"] = mix(rest + block.label.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    found["document"] = document_keys(block.document)
    found["shard"], found["group"], found["row"] = shard, block.row_group, block.numbers
    found["length"] = np.minimum(block.lengths, 65_535)
    found["label"] = block.label
    found["bits"] = np.minimum(255, _surprise(block))
    common = have_common_lines_only(block, documents=found["document"], fewest=_FEWEST_DOCUMENTS)
    found["repeats"] = are_repetitive(block) | common
    return found


def _surprise(block: Block) -> npt.NDArray[np.float64]:
    """Return float64[n]: for each row, -log2 of the chance that another row with the same token ids gets the same
    masks. A high value says that a repeated row is no accident.

    Neighbouring masked positions count as one choice.
    """
    lists, sizes = block.entry_lists, np.diff(block.list_offsets)
    new = np.ones(lists.size, np.bool_)
    new[1:] = (np.diff(block.positions) != 1) | (np.diff(lists) != 0)
    runs = np.bincount(lists[new], minlength=sizes.size)
    share = np.maximum(1.0, (block.lengths[block.list_rows] - 3) / np.maximum(1, sizes))
    bits = runs * (np.log2(share) + _ACTION_BITS)
    return np.asarray(np.bincount(block.list_rows, weights=bits, minlength=len(block)))


def describe_documents(block: Block, *, shard: int) -> npt.NDArray[Any]:
    """Return one record (of the type DOCUMENT: id and place) for each distinct document in the block. `shard` is the
    index of the block's shard in the manifest."""
    ids = np.concatenate([block.document, block.second[block.has_second]])
    halves = np.unique(np.ascontiguousarray(ids).view("<u8").reshape(-1, 2), axis=0)
    found = np.zeros(len(halves), DOCUMENT)
    found["id"], found["shard"], found["group"] = halves, shard, block.row_group
    return found


class Spill:
    """Writes records of rows and documents to temporary files of this process in `folder`. The records are divided into
    parts, which are checked one at a time; `parts` says how many parts there are. The files are named
    <kind>-<part>-<process id>.

    A process has one file for each kind and part, so the number of files does not depend on the number of shards.
    """

    def __init__(self, folder: Path, *, parts: int) -> None:
        self._folder, self._parts = folder, parts
        self._held: dict[str, list[tuple[npt.NDArray[Any], npt.NDArray[np.uint64]]]] = {}
        self._held_bytes = 0

    def add(self, kind: str, records: npt.NDArray[Any], *, key: npt.NDArray[np.uint64]) -> None:
        """Append records to temporary files, one for each part of the records. Call `flush` after the last `add`,
        because until then some records are only in memory. `kind` is "rows" or "documents".

        A hash of the record's entry in `key` (uint64[records]) decides to which part a record goes, so records with
        equal keys go to the same part.
        """
        self._held.setdefault(kind, []).append((records, mix(key) % np.uint64(self._parts)))
        self._held_bytes += records.nbytes
        if self._held_bytes >= _HELD_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write all records added so far."""
        for kind, held in self._held.items():
            records, part = (np.concatenate(columns) for columns in zip(*held, strict=True))
            order = np.argsort(part, kind="stable")
            cuts = np.searchsorted(part[order], np.arange(1, self._parts, dtype=np.uint64))
            for number, members in enumerate(np.split(order, cuts)):
                if members.size:
                    with open(self._folder / f"{kind}-{number}-{os.getpid()}", "ab") as stream:
                        stream.write(records[members].tobytes())
        self._held.clear()
        self._held_bytes = 0


def read_part(folder: Path, kind: str, part: int, *, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return the records of one part (a share of the temporary records, chosen by their hashes), from all shards,
    ordered by shard.

    `kind` is "rows" or "documents", and `part` is the index of the part. `dtype` is the type of the records: ROW or
    DOCUMENT.
    """
    files = sorted(folder.glob(f"{kind}-{part}-*"))
    found = np.concatenate([np.zeros(0, dtype), *(np.fromfile(path, dtype) for path in files)])
    return found[np.argsort(found["shard"], kind="stable")]


def check_part(
    folder: Path, part: int, *, shards: list[str], held_out: list[bool], num_rows: int, facts: Facts
) -> tuple[Findings, npt.NDArray[np.int64]]:
    """Check one part of the records in `folder`, and return the findings and an array of counts. `part` is the index of
    the part. Records of equal rows, or of one document, are always in the same part.

    The counts are int64[2, shards]. For each shard, they say how many rows in this part are in another shard too, and
    how many documents of the shard are in this part. `shards` lists the paths of all shards. `held_out` says for each
    shard whether it is validation data. `num_rows` is the number of rows in the whole data set.
    """
    findings = Findings()
    validation = np.array(held_out, np.bool_)
    rows = read_part(folder, "rows", part, dtype=ROW)
    repeated = _check_rows(
        rows, shards=shards, validation=validation, num_rows=num_rows, facts=facts, findings=findings
    )
    documents = read_part(folder, "documents", part, dtype=DOCUMENT)
    present = _check_documents(documents, shards=shards, validation=validation, findings=findings)
    return findings, np.stack([repeated, present])


def _check_rows(
    rows: npt.NDArray[Any], *, shards: list[str], validation: Bools, num_rows: int, facts: Facts, findings: Findings
) -> npt.NDArray[np.int64]:
    findings.looked("identical rows", rows.size)
    repeated = np.zeros(len(shards), np.int64)
    if not rows.size:
        return repeated
    order = np.lexsort(
        (rows["row"], rows["group"], rows["shard"], rows["rest"], rows["pair"][:, 1], rows["pair"][:, 0])
    )
    rows = rows[order]
    new_pair = np.append(True, (rows["pair"][1:] != rows["pair"][:-1]).any(axis=1))
    new_row = new_pair | np.append(True, rows["rest"][1:] != rows["rest"][:-1])
    twin = np.flatnonzero(~new_row)
    head = np.maximum.accumulate(np.where(new_row, np.arange(rows.size), 0))
    sure = rows["bits"][twin] >= SURE_BITS + np.log2(max(1, num_rows))
    for chosen, note in ((twin[sure], False), (twin[~sure], True)):
        if chosen.size:
            pairs = ((_place(rows[at], shards), _place(rows[head[at]], shards)) for at in chosen[:1000].tolist())
            place, other = min(pairs)
            text = f"identical to {other}" + " (short rows may be, by chance)" * note
            findings.add("identical rows", place, text, count=chosen.size, note=note)
    _count_repeated(rows, head, repeated)
    _check_labels(rows, new_pair, shards=shards, facts=facts, findings=findings)
    _check_leaks(rows, new_pair, shards=shards, validation=validation, facts=facts, findings=findings)
    return repeated


def _place(record: Any, shards: list[str]) -> Place:
    return Place(shards[int(record["shard"])], int(record["group"]), int(record["row"]))


def _count_repeated(rows: npt.NDArray[Any], head: npt.NDArray[np.int64], repeated: npt.NDArray[np.int64]) -> None:
    """Add to `repeated` (int64[shards]) how many rows of each shard are identical, including masks and label, to a row
    of another shard.

    Identical rows are neighbours in `rows` (records of the type ROW). For each row, `head` has the index of the first
    row that is identical to it.
    """
    shard = rows["shard"].astype(np.int64)
    starts = np.unique(head)
    mixed = np.minimum.reduceat(shard, starts) != np.maximum.reduceat(shard, starts)
    foreign = np.repeat(mixed, np.diff(starts, append=rows.size))
    repeated += np.bincount(shard[foreign], minlength=repeated.size)


def _check_labels(
    rows: npt.NDArray[Any], new_pair: Bools, *, shards: list[str], facts: Facts, findings: Findings
) -> None:
    """Report pairs of segments that one row labels next and another row labels not next, although both rows take the
    first segment from the same document.

    `rows` has records of the type ROW, in which rows with the same token ids (the same two segments) are neighbours.
    `new_pair` (bool[rows]) is true for the first row of each group of such neighbours.
    """
    if facts.next_sentence != "random_document":
        return
    group = np.cumsum(new_pair) - 1
    order = np.lexsort((rows["label"], rows["document"], group))
    rows, group = rows[order], group[order]
    same = (group[1:] == group[:-1]) & (rows["document"][1:] == rows["document"][:-1])
    clash = np.flatnonzero(same & (rows["label"][1:] == 1) & (rows["label"][:-1] == 0)) + 1
    documents = np.bincount(group[np.flatnonzero(np.append(True, ~same))])
    often = rows["repeats"] | (documents[group] >= _FEWEST_DOCUMENTS)
    long = (rows["length"][clash] >= MIN_TOKENS) & ~often[clash]
    for chosen, short in ((clash[long], False), (clash[~long], True)):
        if chosen.size:
            place, other = min(
                (_place(rows[at], shards), _place(rows[at - 1], shards)) for at in chosen[:1000].tolist()
            )
            text = f"labelled not next, but the same two segments are labelled next in {other}"
            findings.add("true next", place, text, count=chosen.size, note=short or facts.published)


def _check_leaks(
    rows: npt.NDArray[Any], new_pair: Bools, *, shards: list[str], validation: Bools, facts: Facts, findings: Findings
) -> None:
    if not validation.any():
        return
    findings.looked("leakage", rows.size)
    starts = np.flatnonzero(new_pair)
    held = validation[rows["shard"]]
    both = np.logical_or.reduceat(held, starts) & ~np.logical_and.reduceat(held, starts)
    inside = np.flatnonzero(np.repeat(both, np.diff(starts, append=rows.size)) & held)
    shortest = min(MIN_TOKENS, facts.max_seq_length // 2)
    long = rows["length"][inside] >= shortest
    other, often = _compare_documents(rows, new_pair, held=held)
    repeated = long & other[inside] & often[inside]
    for chosen, text, note in (
        (inside[long & ~repeated], f"held-out row of at least {shortest} tokens is in training too", False),
        (inside[repeated], "held-out row is in training too, from other documents: lines that repeat", True),
        (inside[~long], f"held-out row of fewer than {shortest} tokens is in training too", True),
    ):
        if chosen.size:
            place = min(_place(rows[at], shards) for at in chosen[:1000].tolist())
            findings.add("leakage", place, text, count=chosen.size, note=note)


def _compare_documents(rows: npt.NDArray[Any], new_pair: Bools, *, held: Bools) -> tuple[Bools, Bools]:
    """Return two arrays (bool[rows]) about the text of each row (both segments). They tell whether a row that is in
    training and in validation may come from repeated lines. The first array is true if no single document has this text
    in both. The second is true if the text repeats all over the corpus: it repeats lines within the row, or at least
    _FEWEST_DOCUMENTS documents have it.

    Rows with the same text are neighbours in `rows`, and `new_pair` is true for the first row of each text. `held` is
    true for rows of validation data.
    """
    group = np.cumsum(new_pair) - 1
    order = np.lexsort((held, rows["document"], group))
    names = np.append(True, (np.diff(group[order]) != 0) | (np.diff(rows["document"][order]) != 0))
    starts = np.flatnonzero(names)
    sides = held[order].astype(np.int64)
    both = np.maximum.reduceat(sides, starts) != np.minimum.reduceat(sides, starts)
    num_groups = int(group[-1]) + 1
    documents = np.bincount(group[order][starts], minlength=num_groups)
    shared = np.bincount(group[order][starts], weights=both, minlength=num_groups) > 0
    return ~shared[group], np.asarray(rows["repeats"] | (documents[group] >= _FEWEST_DOCUMENTS))


def _check_documents(
    documents: npt.NDArray[Any], *, shards: list[str], validation: Bools, findings: Findings
) -> npt.NDArray[np.int64]:
    """Check that each document is in one shard, and not in both training and validation. Return int64[shards]: the
    number of distinct documents in each shard.

    `documents` has records of the type DOCUMENT. `validation` (bool[shards]) is true for shards of validation data.
    """
    if not documents.size:
        return np.zeros(len(shards), np.int64)
    order = np.lexsort((documents["group"], documents["shard"], documents["id"][:, 1], documents["id"][:, 0]))
    documents = documents[order]
    starts = np.flatnonzero(np.append(True, (documents["id"][1:] != documents["id"][:-1]).any(axis=1)))
    findings.looked("documents", starts.size)
    several = np.minimum.reduceat(documents["shard"], starts) != np.maximum.reduceat(documents["shard"], starts)
    held = validation[documents["shard"]]
    leaked = np.logical_or.reduceat(held, starts) & ~np.logical_and.reduceat(held, starts)
    if validation.any():
        findings.looked("leakage", starts.size)
    for check, wrong, text in (
        ("documents", several & ~leaked, "in two shards"),
        ("leakage", leaked, "in both training and validation"),
    ):
        numbers = np.flatnonzero(wrong)
        if numbers.size:
            stops = np.append(starts[1:], documents.size)
            records = [documents[stops[number] - 1] for number in numbers[:1000].tolist()]
            record = min(records, key=lambda item: (shards[int(item["shard"])], int(item["group"])))
            name = record["id"].astype("<u8").tobytes().hex()
            place = Place(shards[int(record["shard"])], int(record["group"]))
            findings.add(check, place, f"document {name} is {text}", count=numbers.size)
    fresh = np.append(True, (documents["id"][1:] != documents["id"][:-1]).any(axis=1))
    fresh[1:] |= documents["shard"][1:] != documents["shard"][:-1]
    return np.bincount(documents["shard"][fresh], minlength=len(shards))
