"""Audits one shard in its own process: the file, the schema and the rows. If rows have next-sentence labels, every row
group is read twice. Only the second reading can compare a label with all rows of the shard.

Records of rows and documents go to temporary files (the spill) for checks over all shards. Memory: one row group as
flat int64 arrays (about 16 bytes a token) and 40 bytes for each pair labelled not next.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline import storage
from pipeline.audit import data_set
from pipeline.audit.across import Spill, describe_documents, describe_rows
from pipeline.audit.blocks import Block, Bools, Facts, Vocabulary
from pipeline.audit.findings import Findings, Place
from pipeline.audit.following import Negatives
from pipeline.audit.masks import check_masks, check_shape
from pipeline.audit.rows import Counts, check_rows, count_labels
from pipeline.audit.shortcuts import Sources
from pipeline.audit.words import find_words, join_published
from pipeline.dataset import Manifest, Shard, read_manifest


@dataclass(frozen=True, slots=True)
class ShardJob:
    """The task of auditing one shard of the data set at `root`. `number` is the shard's index in the manifest. `spill`
    is the folder for temporary records of rows and documents. `parts` says into how many parts the records are divided.

    Each process reads the manifest once, because a manifest of 20,000 shards (10 MB) is too large to send with each
    job.
    """

    root: str
    number: int
    facts: Facts
    spill: str
    parts: int

    @property
    def manifest(self) -> Manifest:
        """The manifest of the data set."""
        return _read_manifest_once(self.root, self.spill)

    @property
    def entry(self) -> Shard:
        """The shard's entry in the manifest."""
        return self.manifest.shards[self.number]


@lru_cache(maxsize=1)
def _read_manifest_once(root: str, audit: str) -> Manifest:
    """Return the manifest of the data set at `root`. In one audit, a process reads it only once. `audit` is a text that
    is different in each audit, so that a later audit reads the manifest again."""
    return read_manifest(root)


@dataclass(slots=True)
class Result:
    """The result of auditing one shard.

    `token_counts` (int64[vocabulary]) has the number of occurrences of each token id; it is None if some rows could not
    be read.
    """

    findings: Findings
    counts: Counts
    token_counts: npt.NDArray[np.int64] | None = None


def audit_shard(job: ShardJob) -> Result:
    """Check everything about one shard that needs no other shard, and return the result. Also write records of the
    shard's rows and documents to the folder job.spill."""
    findings = Findings()
    path = storage.join(job.root, job.entry.path)
    result = Result(findings, Counts())
    if not data_set.check_file(job.root, job.entry, findings=findings):
        return result
    try:
        with storage.open_parquet(path) as file:
            if data_set.check_schema(file, job.entry, job.manifest, findings=findings):
                _audit_groups(file, job, result)
    except (OSError, pa.ArrowException) as error:
        storage.raise_outage(error, url=path)
        findings.looked("pages")
        findings.add("pages", Place(job.entry.path), f"cannot be read: {_short(error)}")
    return result


def _audit_groups(file: pq.ParquetFile, job: ShardJob, result: Result) -> None:
    findings = result.findings
    # Findings() is thrown away here, because run.audit has already reported faults of the tokenizer folder
    vocabulary, backend = data_set.load_vocabulary(job.root, job.manifest, findings=Findings())
    spill = Spill(Path(job.spill), parts=job.parts)
    negatives, sources = Negatives(), Sources()
    seeks = job.facts.next_sentence == "random_document"
    group_rows, group_tokens, good_groups = list[int](), list[int](), list[int]()
    masked, most = 0, 0
    tokens: npt.NDArray[np.int64] | None = np.zeros(vocabulary.size, np.int64)
    for group in range(file.metadata.num_row_groups):
        findings.looked("pages")
        try:
            block, mismatched = data_set.read_block(file, group, name=job.entry.path, findings=findings)
        except (OSError, pa.ArrowException) as error:
            storage.raise_outage(error, url=storage.join(job.root, job.entry.path))
            findings.add("pages", Place(job.entry.path, group), f"cannot be read: {_short(error)}")
            tokens = None
            continue
        group_rows.append(len(block))
        group_tokens.append(int(block.ids.size))
        masked += int(block.positions.size)
        most = max([most, *np.diff(block.list_offsets).tolist()])
        if tokens is not None:
            known = block.ids[(block.ids >= 0) & (block.ids < tokens.size)]
            tokens += np.bincount(known, minlength=tokens.size)
        sound = _audit_block(block, mismatched, vocabulary=vocabulary, backend=backend, facts=job.facts, result=result)
        if not sound.any():
            continue
        good_groups.append(group)
        block = block.take(sound)
        records = describe_rows(block, shard=job.number, facts=job.facts, vocabulary=vocabulary)
        spill.add("rows", records, key=records["pair"][:, 0])
        documents = describe_documents(block, shard=job.number)
        spill.add("documents", documents, key=documents["id"][:, 0])
        sources.add(block)
        if seeks:
            negatives.add(block, vocabulary=vocabulary)
    spill.flush()
    result.token_counts = tokens
    if tokens is not None:
        _check_entry(job, group_rows, group_tokens, masked, most, findings=findings)
    if job.facts.next_sentence != "none" and good_groups:
        _read_again(file, job, vocabulary, negatives, sources, good_groups, result=result)


def _audit_block(
    block: Block, mismatched: Bools, *, vocabulary: Vocabulary, backend: Any, facts: Facts, result: Result
) -> Bools:
    findings, counts = result.findings, result.counts
    sound = check_rows(block, facts=facts, vocabulary=vocabulary, findings=findings, counts=counts)
    sound &= check_shape(block, facts=facts, findings=findings, mismatched=mismatched)
    if not sound.any():
        return sound
    part = block.take(sound)
    starts, known = find_words(part, vocabulary=vocabulary, backend=backend)
    known &= ~np.isin(part.source, facts.dictionary_sources)
    words = np.cumsum(starts)
    first_words = words[part.offsets[:-1] + part.first_length - 2] - words[part.offsets[:-1]]
    first_words = np.where(known, first_words, np.where(part.first_length <= 6, 1, 2))
    count_labels(part, first_words=first_words, counts=counts)
    if facts.published and facts.masking == "whole_word":
        starts = join_published(part, starts, vocabulary=vocabulary)
    check_masks(part, starts=starts, known=known, facts=facts, vocabulary=vocabulary, findings=findings, counts=counts)
    return sound


def _read_again(
    file: pq.ParquetFile,
    job: ShardJob,
    vocabulary: Vocabulary,
    negatives: Negatives,
    sources: Sources,
    groups: list[int],
    *,
    result: Result,
) -> None:
    """Read some row groups a second time, for two checks. `groups` has the indices of these row groups.

    The first check reports each of the `negatives` (pairs labelled not next) that is wrong, because another row shows
    that its second segment follows the first. The second check measures how often shortcuts (rules that guess labels
    without reading the text) are right. Here, only counts of rows are added to `result`. The accuracy of the shortcuts
    is later computed from the counts of all shards (pipeline/instances/shortcuts.py).
    """
    sorted_negatives = negatives.sort() if job.facts.next_sentence == "random_document" else None
    num_sources = len(job.manifest.sources)
    for group in groups:
        block, _ = data_set.read_block(file, group, name=job.entry.path, findings=Findings())
        sound = check_rows(block, facts=job.facts, vocabulary=vocabulary, findings=Findings(), counts=Counts())
        block = block.take(sound)
        sources.count(block, facts=job.facts, num_sources=num_sources, counts=result.counts)
        if sorted_negatives is not None and sorted_negatives.keys.size:
            sorted_negatives.search(block, vocabulary=vocabulary)
    if sorted_negatives is not None:
        sorted_negatives.report(result.findings, file=job.entry.path, published=job.facts.published)


def _check_entry(
    job: ShardJob, rows: list[int], tokens: list[int], masked: int, most: int, *, findings: Findings
) -> None:
    """Compare the shard's manifest entry with what was counted.

    `rows` and `tokens` have the number of rows and of tokens in each row group. `masked` is the number of masked
    positions in the shard. `most` is the largest number of masked positions in one mask set (choice of positions to
    predict in one row).
    """
    entry = job.entry
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
            text = f"{what}: the manifest says {_cut(stated)}, counted {_cut(found)}"
            findings.add("counts", Place(entry.path), text)


def _cut(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
