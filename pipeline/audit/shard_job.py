"""The audit of one shard, in a process of its own: files, schema, every row group twice, and what it spills.

Memory: one row group as flat arrays (about 16 bytes a token of int64) and 40 bytes for each negative of the shard.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline import storage
from pipeline.audit import lddl, ours
from pipeline.audit.across import Spill, describe_documents, describe_rows
from pipeline.audit.blocks import Block, Bools, Facts, Vocabulary
from pipeline.audit.findings import Findings, Place
from pipeline.audit.following import Negatives
from pipeline.audit.masks import check_masks, check_shape
from pipeline.audit.rows import Counts, check_rows, count_labels
from pipeline.audit.words import find_words, join_published
from pipeline.dataset import Manifest


@dataclass(frozen=True, slots=True)
class Job:
    """Which shard to audit. name: its path relative to root. manifest: None for LDDL. parts: parts of the spill."""

    root: str
    name: str
    number: int
    facts: Facts
    manifest: Manifest | None
    spill: str
    parts: int


@dataclass(slots=True)
class Result:
    """What came of it. token_counts: int64[vocabulary]; None where not all rows could be read."""

    findings: Findings
    counts: Counts
    token_counts: npt.NDArray[np.int64] | None = None
    lengths: tuple[int, int] = (0, 0)


class _Reader:
    """Reads the row groups of a shard as blocks, with the vocabulary of their ids."""

    def __init__(self, job: Job, *, findings: Findings) -> None:
        self.job, self.findings = job, findings
        self.pieces = lddl.Pieces()
        self.backend: Any = None
        self._vocabulary: Vocabulary | None = None
        if job.manifest is not None:  # what the folder itself lacks was counted before, once
            self._vocabulary, self.backend = ours.load_vocabulary(job.root, job.manifest, findings=Findings())

    @property
    def vocabulary(self) -> Vocabulary:
        """Tables of the ids of every block so far."""
        return self._vocabulary or self.pieces.vocabulary()

    def read(self, file: pq.ParquetFile, group: int, *, findings: Findings) -> tuple[Block, Bools]:
        """A block and the rows whose mask columns do not go together."""
        if self.job.manifest is None:
            static = self.job.facts.mask_sets > 0
            return lddl.read_block(file, group, name=self.job.name, pieces=self.pieces, static=static)
        return ours.read_block(file, group, name=self.job.name, findings=findings)


def audit_shard(job: Job) -> Result:
    """Everything about one shard that can be seen without the others; rows and documents go to the spill."""
    findings, counts = Findings(), Counts()
    path = storage.join(job.root, job.name)
    entry = next((shard for shard in job.manifest.shards if shard.path == job.name), None) if job.manifest else None
    if entry is not None and not ours.check_file(job.root, entry, findings=findings):
        return Result(findings, counts)
    result = Result(findings, counts)
    try:
        with storage.open_parquet(path) as file:
            if job.manifest is not None and entry is not None:
                readable = ours.check_schema(file, entry, job.manifest, findings=findings)
            else:
                readable = lddl.check_schema(file, job.name, job.facts, findings=findings)
            if readable:
                _audit_groups(file, job, result)
    except (OSError, pa.ArrowException) as error:
        storage.raise_outage(error, url=path)
        findings.looked("pages")
        findings.add("pages", Place(job.name), f"cannot be read: {_short(error)}")
    return result


def _audit_groups(file: pq.ParquetFile, job: Job, result: Result) -> None:
    findings, counts = result.findings, result.counts
    reader = _Reader(job, findings=findings)
    spill = Spill(Path(job.spill), shard=job.number, parts=job.parts)
    negatives = Negatives()
    seeks = job.facts.has_documents and job.facts.next_sentence == "random_document"
    group_rows: list[int] = []
    group_tokens: list[int] = []
    masked, most = 0, 0
    tokens: npt.NDArray[np.int64] | None = np.zeros(reader.vocabulary.size if job.manifest else 0, np.int64)
    good_groups: list[int] = []
    for group in range(file.metadata.num_row_groups):
        findings.looked("pages")
        try:
            block, mismatched = reader.read(file, group, findings=findings)
        except (OSError, pa.ArrowException) as error:
            storage.raise_outage(error, url=storage.join(job.root, job.name))
            findings.add("pages", Place(job.name, group), f"cannot be read: {_short(error)}")
            tokens = None
            continue
        group_rows.append(len(block))
        group_tokens.append(int(block.ids.size))
        masked += int(block.positions.size)
        most = max([most, *np.diff(block.list_offsets).tolist()])
        if tokens is not None and job.manifest is not None:
            known = block.ids[(block.ids >= 0) & (block.ids < tokens.size)]
            tokens += np.bincount(known, minlength=tokens.size)
        sound = _audit_block(block, mismatched, reader=reader, facts=job.facts, result=result)
        if not sound.any():
            continue
        good_groups.append(group)
        block = block.take(sound)
        vocabulary = reader.vocabulary
        records = describe_rows(block, shard=job.number, facts=job.facts, vocabulary=vocabulary)
        spill.add("rows", records, key=records["pair"][:, 0])
        if job.facts.has_documents:
            documents = describe_documents(block, shard=job.number)
            spill.add("documents", documents, key=documents["id"][:, 0])
        if seeks:
            negatives.add(block, vocabulary=vocabulary)
    result.token_counts = tokens
    _check_entry(job, group_rows, group_tokens, masked, most, whole=tokens is not None, findings=findings)
    if seeks and good_groups:
        _seek_following(file, job, reader, negatives, good_groups, findings=findings)
    if counts.lengths:
        result.lengths = min(counts.lengths), max(counts.lengths)


def _audit_block(block: Block, mismatched: Bools, *, reader: _Reader, facts: Facts, result: Result) -> Bools:
    findings, counts = result.findings, result.counts
    vocabulary = reader.vocabulary
    sound = check_rows(block, facts=facts, vocabulary=vocabulary, findings=findings, counts=counts)
    if facts.mask_sets:
        sound &= check_shape(block, facts=facts, findings=findings, mismatched=mismatched)
    if not sound.any():
        return sound
    part = block.take(sound)
    starts, known = find_words(part, vocabulary=vocabulary, backend=reader.backend)
    words = np.cumsum(starts)
    first_words = words[part.offsets[:-1] + part.first_length - 2] - words[part.offsets[:-1]]
    first_words = np.where(known, first_words, np.where(part.first_length <= 6, 1, 2))
    count_labels(part, first_words=first_words, counts=counts)
    if facts.mask_sets:
        if facts.published and facts.masking == "whole_word":
            starts = join_published(part, starts, vocabulary=vocabulary)
        check_masks(
            part, starts=starts, known=known, facts=facts, vocabulary=vocabulary, findings=findings, counts=counts
        )
    return sound


def _seek_following(
    file: pq.ParquetFile, job: Job, reader: _Reader, negatives: Negatives, groups: list[int], *, findings: Findings
) -> None:
    """The second reading: does any segment show that a negative is the true next?"""
    sealed = negatives.seal()
    if sealed.keys.size:
        for group in groups:
            block, _ = reader.read(file, group, findings=Findings())
            sound = check_rows(
                block, facts=job.facts, vocabulary=reader.vocabulary, findings=Findings(), counts=Counts()
            )
            sealed.search(block.take(sound), vocabulary=reader.vocabulary)
    sealed.report(findings, file=job.name, published=job.facts.published)


def _check_entry(
    job: Job, rows: list[int], tokens: list[int], masked: int, most: int, *, whole: bool, findings: Findings
) -> None:
    """What the manifest says of the shard, counted again (where all of it could be read)."""
    entry = next((shard for shard in job.manifest.shards if shard.path == job.name), None) if job.manifest else None
    if entry is None or not whole:
        return
    for what, stated, found in (
        ("row_group_rows", list(entry.row_group_rows), rows),
        ("row_group_tokens", list(entry.row_group_tokens), tokens),
        ("rows", entry.rows, sum(rows)),
        ("tokens", entry.tokens, sum(tokens)),
        ("masked", entry.masked, masked),
        ("max_masked", entry.max_masked, most),
    ):
        findings.looked("counts")
        if stated != found:
            findings.add("counts", Place(job.name), f"{what}: the manifest says {_cut(stated)}, counted {_cut(found)}")


def _cut(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
