"""Audits a whole data set in two rounds of processes. In the first round, one job per shard checks the shard and writes
temporary records of its rows and documents. In the second round, one job per part of these records looks for rows and
documents that are in several shards."""

from __future__ import annotations

import math
import multiprocessing
import os
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from pipeline.audit import data_set
from pipeline.audit.across import check_part, num_parts
from pipeline.audit.blocks import Facts
from pipeline.audit.findings import Findings, Place
from pipeline.audit.rows import Counts
from pipeline.audit.shard_job import Result, ShardJob, audit_shard
from pipeline.audit.shortcuts import check_shortcuts
from pipeline.dataset import Manifest, read_manifest
from pipeline.instances import Shortcut
from pipeline.shuffle import MIN_DOCUMENTS, MIN_SHARE_OF_MEAN

DEVIATIONS = 5.0
"""A share is a fault if it is more than this number of binomial standard deviations from its expectation. By chance
this happens once in 1.7 million."""
PUBLISHED_NOT_NEXT = (0.4, 0.75)
"""Allowed share of not-next labels in a data set of the published algorithm, which gives this label to every text of a
single sentence. A share outside these bounds is a fault."""
_SLACK_WITHOUT_WORDS = 0.1
_WAITING = 4

In = TypeVar("In")
Out = TypeVar("Out")


@dataclass(frozen=True, slots=True)
class Audit:
    """The result of an audit of the data set at `root`. `published` is true if BERT's published algorithm built the
    data set. `shards`, `rows` and `tokens` say how many shards, rows and tokens the data set has."""

    root: str
    published: bool
    shards: int
    rows: int
    tokens: int
    findings: Findings
    shortcuts: list[Shortcut]
    """The accuracy of each shortcut, a rule that guesses the next-sentence label without reading the text."""


def audit(root: str | Path, *, workers: int | None = None) -> Audit:
    """Audit the finished data set at `root`, and return the result. `workers` is the number of processes; None means
    one for each core.

    Raises DataSetError (a ValueError) if the manifest is missing, damaged or of another version.
    """
    folder = str(root)
    findings = Findings()
    manifest = read_manifest(folder)
    names = [shard.path for shard in manifest.shards]
    held_out = [shard.split == "validation" for shard in manifest.shards]
    facts = data_set.describe_set(manifest)
    num_rows = sum(shard.rows for shard in manifest.shards)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    workers = min(workers or cores, max(1, len(names)))
    data_set.check_folder(folder, manifest, findings=findings)
    vocabulary, _ = data_set.load_vocabulary(folder, manifest, findings=findings)
    replaceable = vocabulary.size
    if not facts.published:
        replaceable = int(np.count_nonzero(~vocabulary.special & ~vocabulary.unused))
    with tempfile.TemporaryDirectory(prefix="cloze-audit-") as spill:
        parts = num_parts(num_rows)
        jobs = [ShardJob(folder, number, facts, spill, parts) for number in range(len(names))]
        whole = Sums()
        for result, held in zip(_map(audit_shard, jobs, workers=workers), held_out, strict=True):
            findings.merge(result.findings)
            whole.add(result, held=held)
        judge = partial(check_part, Path(spill), shards=names, held_out=held_out, num_rows=num_rows, facts=facts)
        judged = list(_map(judge, range(parts), workers=workers))
    by_shard = np.zeros((2, len(names)), np.int64)
    for of_part, numbers in judged:
        findings.merge(of_part)
        by_shard += numbers
    totals = whole.totals
    shortcuts = check_shortcuts(totals, manifest, facts=facts, findings=findings)
    _check_shares(totals, facts=facts, replaceable=replaceable, findings=findings)
    _check_repeated(by_shard[0], whole.rows, names, findings=findings)
    _check_even(by_shard[1], whole.tokens, manifest, findings=findings)
    counts = {"train": whole.train, "validation": whole.validation}
    data_set.check_counts(folder, manifest, counts=counts, token_counts=whole.token_counts, findings=findings)
    return Audit(folder, facts.published, len(names), totals.rows, totals.tokens, findings, shortcuts)


@dataclass(slots=True)
class Sums:
    """Collects the results of all shards. It holds sums over the shards, and how many rows and tokens each shard
    has."""

    totals: Counts = field(default_factory=Counts)
    train: Counts = field(default_factory=Counts)
    validation: Counts = field(default_factory=Counts)
    rows: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    """Rows and tokens of each shard, in order."""
    token_counts: Any = None
    """int64[vocabulary] over the training shards, or None if some rows could not be read."""
    _unknown: bool = False

    def add(self, result: Result, *, held: bool) -> None:
        """Add the result of one shard. Shards are added in the order of the manifest. `held` says whether the shard has
        validation (held-out) data."""
        self.totals.merge(result.counts)
        (self.validation if held else self.train).merge(result.counts)
        self.rows.append(result.counts.rows)
        self.tokens.append(result.counts.tokens)
        if held or self._unknown:
            return
        self._unknown = result.token_counts is None
        if self._unknown:
            self.token_counts = None
        elif self.token_counts is None:
            self.token_counts = result.token_counts
        else:
            self.token_counts += result.token_counts


def _map(function: Callable[[In], Out], items: Sequence[In], *, workers: int) -> Iterator[Out]:
    """Yield function(item) for every item, in order. The values are computed in several processes; `workers` says in
    how many. If there is one worker or one item, no process is started.

    At most a few results for each worker wait in this process, because the results of 20,000 shards would take 5 GB.
    """
    if workers == 1 or len(items) == 1:
        yield from map(function, items)
        return
    waiting: deque[Future[Out]] = deque()
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        for item in items:
            if len(waiting) == _WAITING * workers:
                yield waiting.popleft().result()
            waiting.append(pool.submit(function, item))
        while waiting:
            yield waiting.popleft().result()


def _check_shares(totals: Counts, *, facts: Facts, replaceable: int, findings: Findings) -> None:
    """Check the balance of labels, the mask rate and the shares 80/10/10 ([MASK], kept, random) of the whole data set.

    `totals` has the sums over all shards. `replaceable` is the number of token ids that may be drawn as a random
    replacement.
    """
    whole = Place("(all shards)")
    labels = totals.num_labels
    if facts.next_sentence != "none" and labels:
        share = totals.labels.get(1, 0) / labels
        chance = DEVIATIONS * math.sqrt(0.25 / labels)
        low, high = 0.5 - chance, 0.5 + chance + totals.short_negatives / labels
        findings.looked("label balance", labels)
        expectation = f"{100 * low:.2f} to {100 * high:.2f}% expected"
        findings.by_check["label balance"].remark = f"{100 * share:.2f}% not next; {expectation}"
        if not low <= share <= high:
            bottom, top = PUBLISHED_NOT_NEXT
            note = facts.published and bottom - chance <= share <= top + chance
            findings.add("label balance", whole, f"{100 * share:.2f}% of labels are not next", note=note)
    if not totals.entries:
        return
    expected = {"mask": 0.8, "kept": 0.1 + 0.1 / replaceable, "random": 0.1 - 0.1 / replaceable}
    if facts.published:
        expected = {"mask": 0.8 + 0.1 / replaceable, "kept": 0.1 + 0.1 / replaceable, "random": 0.1 - 0.2 / replaceable}
    findings.looked("80/10/10", totals.entries)
    shares = {name: totals.shown[name] / totals.entries for name in expected}
    findings.by_check["80/10/10"].remark = ", ".join(f"{100 * share:.2f}% {name}" for name, share in shares.items())
    for name, probability in expected.items():
        chance = DEVIATIONS * math.sqrt(probability * (1 - probability) * totals.run_squares) / totals.entries
        if abs(shares[name] - probability) > chance + 1 / totals.entries:
            text = f"{100 * shares[name]:.2f}% {name}, expected {100 * probability:.2f} +- {100 * chance:.2f}%"
            findings.add("80/10/10", whole, text)
    if totals.wanted:
        rate, due = totals.taken / totals.wanted, DEVIATIONS / math.sqrt(totals.wanted)
        finding = findings.by_check["mask rate"]
        finding.remark = f"{totals.taken:,} masked positions, the budgets sum to {totals.wanted:,}"
        if not finding.looked_at:
            findings.looked("mask rate", totals.wanted)
            if abs(rate - 1) > _SLACK_WITHOUT_WORDS + due:
                findings.add("mask rate", whole, finding.remark)


def _check_repeated(foreign: Any, rows: Sequence[int], names: Sequence[str], *, findings: Findings) -> None:
    """Report each shard that has more than half of its rows in common with other shards.

    For each shard, `foreign` (int64[shards]) has the number of rows that are in other shards too, `rows` has the number
    of rows, and `names` has the path.
    """
    findings.looked("repeated shards", len(names))
    for name, repeated, count in zip(names, foreign.tolist(), rows, strict=True):
        if repeated * 2 > count > 0:
            text = f"{repeated:,} of its {count:,} rows are in other shards too"
            findings.add("repeated shards", Place(name), text)


def _check_even(documents: Any, all_tokens: Sequence[int], manifest: Manifest, *, findings: Findings) -> None:
    """Check that no shard is smaller than the build allows. A shard is not checked if it is the only one of its split
    (train or validation).

    A shard needs at least MIN_DOCUMENTS documents; `documents` (int64[shards]) has the number of documents in each
    shard. A shard also needs a minimum of tokens. The build divides the documents of a split into buckets, and joins
    small buckets, so a shard has one bucket or more. The minimum is the mean number of tokens in a bucket, times
    MIN_SHARE_OF_MEAN / 2. If the config does not give the number of buckets, it is taken to be twice the number of
    shards.
    """
    stated = manifest.config.get("shards", "auto")
    for split in ("train", "validation"):
        own = [number for number, shard in enumerate(manifest.shards) if shard.split == split]
        findings.looked("even shards", len(own))
        tokens = [all_tokens[number] for number in own]
        buckets = stated if isinstance(stated, int) and split == "train" else 2 * len(own)
        least = float(MIN_SHARE_OF_MEAN) * sum(tokens) / max(1, buckets) / 2
        for number, count in zip(own, tokens, strict=True):
            place = Place(manifest.shards[number].path)
            if len(own) > 1 and 0 < documents[number] < MIN_DOCUMENTS:
                text = f"{documents[number]} documents, at least {MIN_DOCUMENTS} are written to a shard"
                findings.add("even shards", place, text)
            elif len(own) > 1 and count < least:
                findings.add("even shards", place, f"{count:,} tokens, at least {least:,.0f} are written to a shard")
