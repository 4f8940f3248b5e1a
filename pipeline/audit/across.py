"""Checks over all shards: identical rows, documents in two shards or both splits, contradicting labels.

Workers spill 48 bytes a row and 24 a document of each row group, cut by hash into parts of about PART_BYTES; each is
then sorted alone. So memory is flat, whatever the size of the set; the spill lies in a temporary folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.audit.blocks import Block, Bools, Facts, Vocabulary, hash_runs, mix
from pipeline.audit.findings import Findings, Place
from pipeline.audit.following import document_keys

PART_BYTES = 64_000_000
SURE_BITS = 10
"""Identical rows are a fault where chance would make less than one in a set of 2 ** SURE_BITS times as many rows; short
rows are notes."""
_ACTION_BITS = 0.6
"""-log2 of the chance that two draws of 80/10/10 agree."""
MIN_TOKENS = 32
"""Rows below so many tokens are said twice by chance, as are those below half of max_seq_length."""
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
    ]
)
"""pair: 128-bit hash of the unmasked ids. rest: of mask sets and label. bits: how unlikely equal masks are."""
DOCUMENT = np.dtype([("id", "<u8", 2), ("shard", "<u4"), ("group", "<u4")])


def num_parts(rows: int) -> int:
    """How many parts the spill of so many rows is cut into."""
    return max(1, -(-rows * ROW.itemsize // PART_BYTES))


def describe_rows(block: Block, *, shard: int, facts: Facts, vocabulary: Vocabulary) -> npt.NDArray[Any]:
    """One record of ROW for each row."""
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
    return found


def _surprise(block: Block) -> npt.NDArray[np.float64]:
    """float64[n]: bits by which equal masks of a row would be a surprise; a run of neighbours counts as one choice."""
    lists, sizes = block.entry_lists, np.diff(block.list_offsets)
    new = np.ones(lists.size, np.bool_)
    new[1:] = (np.diff(block.positions) != 1) | (np.diff(lists) != 0)
    runs = np.bincount(lists[new], minlength=sizes.size)
    share = np.maximum(1.0, (block.lengths[block.list_rows] - 3) / np.maximum(1, sizes))
    bits = runs * (np.log2(share) + _ACTION_BITS)
    return np.asarray(np.bincount(block.list_rows, weights=bits, minlength=len(block)))


def describe_documents(block: Block, *, shard: int) -> npt.NDArray[Any]:
    """One record of DOCUMENT for each document in the block."""
    ids = np.concatenate([block.document, block.second[block.has_second]])
    halves = np.unique(np.ascontiguousarray(ids).view("<u8").reshape(-1, 2), axis=0)
    found = np.zeros(len(halves), DOCUMENT)
    found["id"], found["shard"], found["group"] = halves, shard, block.row_group
    return found


class Spill:
    """Appends records to the parts of one shard: folder/<kind>-<part>-<shard>."""

    def __init__(self, folder: Path, *, shard: int, parts: int) -> None:
        self._folder, self._shard, self._parts = folder, shard, parts

    def add(self, kind: str, records: npt.NDArray[Any], *, key: npt.NDArray[np.uint64]) -> None:
        """Append records to the parts that their keys (uint64, evenly spread) choose."""
        part = mix(key) % np.uint64(self._parts)
        order = np.argsort(part, kind="stable")
        cuts = np.searchsorted(part[order], np.arange(1, self._parts, dtype=np.uint64))
        for number, members in enumerate(np.split(order, cuts)):
            if members.size:
                with open(self._folder / f"{kind}-{number}-{self._shard}", "ab") as stream:
                    stream.write(records[members].tobytes())


def read_part(folder: Path, kind: str, part: int, *, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """All records of one part, shards in their order."""
    files = sorted(folder.glob(f"{kind}-{part}-*"), key=lambda path: int(path.name.rsplit("-", 1)[1]))
    return np.concatenate([np.zeros(0, dtype), *(np.fromfile(path, dtype) for path in files)])


def check_part(
    folder: Path, part: int, *, shards: list[str], held_out: list[bool], num_rows: int, facts: Facts
) -> tuple[Findings, npt.NDArray[np.int64]]:
    """Judge one part; also returns int64[2, shards]: rows that stand in another shard too, and documents."""
    findings = Findings()
    validation = np.array(held_out, np.bool_)
    by_shard = np.zeros((2, len(shards)), np.int64)
    rows = read_part(folder, "rows", part, dtype=ROW)
    by_shard[0] = _check_rows(
        rows, shards=shards, validation=validation, num_rows=num_rows, facts=facts, findings=findings
    )
    documents = read_part(folder, "documents", part, dtype=DOCUMENT)
    by_shard[1] = _check_documents(documents, shards=shards, validation=validation, findings=findings)
    return findings, by_shard


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
            place, text = _twins(rows, chosen, head, shards)
            text += " (short rows do so by chance)" if note else ""
            findings.add("identical rows", place, text, count=chosen.size, note=note)
    _count_repeated(rows, head, repeated)
    _check_labels(rows, new_pair, shards=shards, facts=facts, findings=findings)
    _check_leaks(rows, new_pair, shards=shards, validation=validation, facts=facts, findings=findings)
    return repeated


def _place(record: Any, shards: list[str]) -> Place:
    return Place(shards[int(record["shard"])], int(record["group"]), int(record["row"]))


def _twins(rows: npt.NDArray[Any], chosen: Any, head: Any, shards: list[str]) -> tuple[Place, str]:
    places = [(_place(rows[number], shards), _place(rows[head[number]], shards)) for number in chosen[:1000].tolist()]
    place, other = min(places)
    return place, f"identical to {other}"


def _count_repeated(rows: npt.NDArray[Any], head: npt.NDArray[np.int64], repeated: npt.NDArray[np.int64]) -> None:
    """Rows of each shard that are identical to a row of another shard."""
    shard = rows["shard"].astype(np.int64)
    starts = np.unique(head)
    lowest = np.minimum.reduceat(shard, starts)
    highest = np.maximum.reduceat(shard, starts)
    mixed = lowest != highest
    foreign = np.repeat(mixed, np.diff(starts, append=rows.size))
    repeated += np.bincount(shard[foreign], minlength=repeated.size)


def _check_labels(
    rows: npt.NDArray[Any], new_pair: Bools, *, shards: list[str], facts: Facts, findings: Findings
) -> None:
    """The same two segments of one document, labelled next in one row and not next in another."""
    if facts.next_sentence != "random_document":
        return
    group = np.cumsum(new_pair) - 1
    order = np.lexsort((rows["label"], rows["document"], group))
    rows, group = rows[order], group[order]
    same = (group[1:] == group[:-1]) & (rows["document"][1:] == rows["document"][:-1])
    clash = np.flatnonzero(same & (rows["label"][1:] == 1) & (rows["label"][:-1] == 0)) + 1
    long = rows["length"][clash] >= MIN_TOKENS
    for chosen, short in ((clash[long], False), (clash[~long], True)):
        if chosen.size:
            place, other = min(
                (_place(rows[at], shards), _place(rows[at - 1], shards)) for at in chosen[:1000].tolist()
            )
            text = f"not next, but the same two segments are labelled next in {other}"
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
    for chosen, note in ((inside[long], False), (inside[~long], True)):
        if chosen.size:
            place = min(_place(rows[at], shards) for at in chosen[:1000].tolist())
            text = f"a held-out row of {'fewer than ' * note}{shortest} tokens{' or more' * (not note)}"
            findings.add("leakage", place, f"{text} stands in training too", count=chosen.size, note=note)


def _check_documents(
    documents: npt.NDArray[Any], *, shards: list[str], validation: Bools, findings: Findings
) -> npt.NDArray[np.int64]:
    """Documents of each shard."""
    if not documents.size:
        return np.zeros(len(shards), np.int64)
    order = np.lexsort((documents["group"], documents["shard"], documents["id"][:, 1], documents["id"][:, 0]))
    documents = documents[order]
    starts = np.flatnonzero(np.append(True, (documents["id"][1:] != documents["id"][:-1]).any(axis=1)))
    findings.looked("documents", starts.size)
    lowest = np.minimum.reduceat(documents["shard"], starts)
    highest = np.maximum.reduceat(documents["shard"], starts)
    held = validation[documents["shard"]]
    leaked = np.logical_or.reduceat(held, starts) & ~np.logical_and.reduceat(held, starts)
    split = (lowest != highest) & ~leaked
    if validation.any():
        findings.looked("leakage", starts.size)
    for check, wrong, text in (
        ("documents", split, "in two shards"),
        ("leakage", leaked, "in both training and validation"),
    ):
        numbers = np.flatnonzero(wrong)
        if numbers.size:
            stops = np.append(starts[1:], documents.size)
            records = [documents[stops[number] - 1] for number in numbers[:1000].tolist()]
            record = min(records, key=lambda item: (shards[int(item["shard"])], int(item["group"])))
            name = record["id"].astype("<u8").tobytes().hex()
            place = Place(shards[int(record["shard"])], int(record["group"]))
            findings.add(check, place, f"document {name} stands {text}", count=numbers.size)
    fresh = np.append(True, (documents["id"][1:] != documents["id"][:-1]).any(axis=1))
    fresh[1:] |= documents["shard"][1:] != documents["shard"][:-1]
    return np.bincount(documents["shard"][fresh], minlength=len(shards))
