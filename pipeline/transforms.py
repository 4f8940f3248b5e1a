"""The Beam graph of a build: few, coarse elements, nothing but names and counts across the shuffles.

It uses neither tagged outputs, finish_bundle output nor metrics, which some engines lose (docs/DESIGN.md).
Any engine gives the same shards, because every group is sorted and every draw is keyed by the data.
"""

from __future__ import annotations

import os
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import apache_beam as beam

from pipeline.buckets import BucketCount, Buckets, ShardPlan, membership, plan_shards
from pipeline.config import PipelineConfig
from pipeline.documents import Drop, Note, Split
from pipeline.failures import report_failure
from pipeline.filters import DocumentFilter, beginning, excerpt
from pipeline.manifest import shard_name
from pipeline.mixture import passes_of
from pipeline.progress import WorkReport
from pipeline.rejects import RejectWriter
from pipeline.schema import id_type
from pipeline.shards import build_shard
from pipeline.signatures import BandExtent, SignatureWriter, find_matches, read_dropped, write_dropped
from pipeline.sources import read_documents, refuse_empty_source
from pipeline.spill import Extent, Origin, SpillWriter, read_index
from pipeline.tally import BuildResult, ReadTally, merge_reads, merge_results, results_to_json
from pipeline.wordpieces import WordTokenizer

RESULT_NAME = "result.json"
DROPPED_NAME = "near-duplicates"


@dataclass(frozen=True, slots=True)
class Job:
    """What every worker needs to know. The folders are under OUT/_tmp and must be visible to all workers."""

    config: PipelineConfig
    buckets: Buckets
    tokenizer: str
    """tokenizer.json of the build."""
    vocabulary_size: int
    spills: str
    shards: str
    progress: str
    exchange: str


@dataclass(frozen=True, slots=True)
class SplitResult:
    """What reading one split gave: counts, and where the tokens of each bucket lie."""

    tally: ReadTally
    extents: tuple[tuple[int, Extent], ...]
    bands: tuple[tuple[int, BandExtent], ...] = ()
    """Where the band keys of each partition lie, where near duplicates are looked for."""


def build_graph(pipeline: beam.Pipeline, *, splits: Sequence[Split], job: Job) -> None:
    """Lay out the whole build on `pipeline`; its result is left as RESULT_NAME in the exchange folder."""
    read = (
        pipeline
        | "List splits" >> beam.Create(splits, reshuffle=False)
        | "Spread splits" >> beam.Reshuffle()
        | "Read, clean, tokenize, spill" >> beam.ParDo(SpillSplits(job))
    )
    tally = read | "Tallies" >> beam.Map(_tally_of) | "Sum tallies" >> beam.CombineGlobally(merge_reads)
    grouped = read | "Extents" >> beam.FlatMap(_extents_of) | "Group by bucket" >> beam.GroupByKey()
    near = {"dropped": find_near_duplicates(read, job=job)} if job.config.cleaning.near_duplicates else {}
    counts = grouped | "Count buckets" >> beam.Map(count_bucket, **near)
    plan = tally | "Plan shards" >> beam.ParDo(PlanShards(job), counts=beam.pvalue.AsList(counts))
    only_plan = beam.pvalue.AsSingleton(plan)
    results = (
        grouped
        | "Join small buckets" >> beam.FlatMap(assign_shard, plan=only_plan)
        | "Group by shard" >> beam.GroupByKey()
        | "Pair, mask, write" >> beam.ParDo(WriteShards(job), **near)
        | "Gather shards" >> beam.CombineGlobally(merge_results)
    )
    _ = results | "Leave the result" >> beam.ParDo(LeaveResult(job), tally=beam.pvalue.AsSingleton(tally))


def find_near_duplicates(read: beam.PCollection, *, job: Job) -> beam.pvalue.AsSingleton:
    """The path of the file that says which documents to leave out as near duplicates (signatures.read_dropped)."""
    dropped = (
        read
        | "Band keys" >> beam.FlatMap(_bands_of)
        | "Group by band key" >> beam.GroupByKey()
        | "Compare signatures" >> beam.ParDo(CompareSignatures(job))
        | "Gather near duplicates" >> beam.CombineGlobally(join_paths)
        | "Choose what stays" >> beam.ParDo(ChooseDropped(job))
    )
    return beam.pvalue.AsSingleton(dropped)


class CompareSignatures(beam.DoFn):
    """(partition, band extents) -> path of a file of matches, where there are any."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def process(self, element: tuple[int, Iterable[BandExtent]]) -> Iterator[list[str]]:
        """Compare the documents that share a band key."""
        settings = self.job.config.cleaning.near_duplicates
        assert settings is not None
        with report_failure(self.job.exchange):
            matches = find_matches(element[1], threshold=settings.threshold)
            if matches.size:
                path = Path(self.job.spills) / f"matches-{uuid.uuid4().hex[:16]}"
                matches.tofile(path)
                yield [str(path)]


class ChooseDropped(beam.DoFn):
    """Paths of all matches -> path of what to leave out."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def process(self, paths: list[str]) -> Iterator[str]:
        """Decide and write."""
        with report_failure(self.job.exchange):
            path = Path(self.job.exchange) / DROPPED_NAME
            write_dropped(paths, path=path)
            yield str(path)


class _Step(beam.DoFn):
    """A step that leaves the reason of its failure where the main process finds it."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def setup(self) -> None:
        """Load the tokenizer once a worker."""
        self.tokenizer = WordTokenizer.from_path(self.job.tokenizer, lowercase=self.job.config.vocabulary.lowercase)


class SpillSplits(_Step):
    """Split -> SplitResult."""

    def process(self, split: Split) -> Iterator[SplitResult]:
        """Read, clean, tokenize and spill one split."""
        with report_failure(self.job.exchange):
            yield spill_split(split, job=self.job, tokenizer=self.tokenizer)


class PlanShards(beam.DoFn):
    """(tally, all bucket counts) -> ShardPlan; refuses sources without documents."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def process(self, tally: ReadTally, counts: list[BucketCount]) -> Iterator[ShardPlan]:
        """Check what was read, then plan."""
        with report_failure(self.job.exchange):
            for index, source in enumerate(self.job.config.sources):
                drops = tally.drops.get(index, Counter())
                others = tally.documents.total()
                refuse_empty_source(source, num_documents=tally.documents[index], drops=drops, others=others)
            yield plan_shards(counts, buckets=self.job.buckets)


class WriteShards(_Step):
    """((split name, index, count), groups of extents) -> BuildResult of one shard."""

    def process(
        self, element: tuple[tuple[str, int, int], Iterable[Sequence[Extent]]], dropped: str | None = None
    ) -> Iterator[BuildResult]:
        """Load, pair, mask, write and verify one shard."""
        (split, index, count), groups = element
        extents = [extent for group in groups for extent in group]
        with report_failure(self.job.exchange), WorkReport(self.job.progress, stage="shard") as report:
            result = build_shard(
                extents,
                config=self.job.config,
                tokenizer=self.tokenizer,
                split="train" if split == "train" else "validation",
                name=shard_name("train" if split == "train" else "validation", index, count),
                folder=Path(self.job.shards),
                scratch=Path(self.job.spills),
                dropped=dropped,
            )
            report.add(rows=sum(shard.rows for shard in result.shards))
            yield result


class LeaveResult(beam.DoFn):
    """Writes the sum of everything where the main process finds it: engines cannot return values."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def process(self, result: BuildResult, tally: ReadTally) -> None:
        """Write RESULT_NAME."""
        path = Path(self.job.exchange) / RESULT_NAME
        partial = path.with_suffix(f".{uuid.uuid4().hex}")
        partial.write_text(results_to_json(result, tally), encoding="ascii")
        os.replace(partial, path)


def spill_split(split: Split, *, job: Job, tokenizer: WordTokenizer) -> SplitResult:
    """Read one split whole: documents go to a spill file, everything left out is counted with its reason."""
    tally = ReadTally()
    source = job.config.sources[split.source]
    number = job.config.source_names.index(source.called)
    name = Path(split.path).name[:40]
    types = id_type(job.vocabulary_size)
    cleaning = job.config.cleaning
    documents = DocumentFilter(cleaning, source=source)
    with (
        WorkReport(job.progress, stage="read") as report,
        RejectWriter(job.spills if cleaning.keep_rejects else None) as rejects,
        SpillWriter(job.spills, name=name, bucket_of=job.buckets.bucket_of, id_type=types) as writer,
        SignatureWriter(
            job.spills, name=name, config=cleaning.near_duplicates, partitions=job.buckets.total
        ) as signatures,
    ):
        for item in read_documents(split, source):
            if isinstance(item, Note):
                tally.count_note(item.reason, name=item.name, detail=item.detail)
                continue
            if isinstance(item, Drop):
                tally.count_drop(item.reason, source=split.source, name=item.name, detail=item.detail)
                continue
            text = "\n".join(item.sentences) if cleaning.keep_rejects else beginning(item)
            fault = documents.reject(item)
            if fault is not None:
                shown = f"{fault.detail}: {excerpt(text)}"
                tally.count_drop(fault.reason, source=split.source, name=item.name, detail=shown)
                rejects.add(source=split.source, name=item.name, reason=fault.reason, detail=fault.detail, text=text)
                continue
            document = tokenizer.tokenize(item)
            if not document.ids.size:
                detail = "nothing is left after normalisation"
                tally.count_drop("no_tokens", source=split.source, name=item.name, detail=detail)
                continue
            if not passes_of(document.id, weight=source.weight, passes=job.config.passes, seed=job.config.seed):
                tally.count_drop("weight", source=split.source, name=item.name, detail=f"weight {source.weight:g}")
                continue
            characters = sum(map(len, item.sentences))
            tally.documents[split.source] += 1
            tally.sentences[split.source] += len(item.sentences)
            tally.characters[split.source] += characters
            writer.add(replace(document, source=number), origin=Origin(split.source, item.name, text))
            signatures.add(item)
            report.add(documents=1, characters=characters)
    tally.rejects = rejects.runs
    return SplitResult(tally, tuple(writer.extents), tuple(signatures.extents))


def count_bucket(element: tuple[int, Iterable[Extent]], dropped: str | None = None) -> BucketCount:
    """Distinct documents of a bucket that stay; reads the index of each extent only."""
    bucket, extents = element
    index = read_index(extents)
    kept = index.distinct()
    if dropped is not None:
        near = read_dropped(dropped, [index.ids[position].tobytes() for position in kept])
        kept = kept[[index.ids[position].tobytes() not in near for position in kept]]
    lowest = sorted(membership(index.ids[position].tobytes()) for position in kept[:2])
    return BucketCount(bucket, documents=kept.size, tokens=int(index.tokens[kept].sum()), lowest=tuple(lowest))


def assign_shard(
    element: tuple[int, Iterable[Extent]], plan: ShardPlan
) -> Iterator[tuple[tuple[str, int, int], tuple[Extent, ...]]]:
    """Key a bucket's extents by the shard that it goes to."""
    bucket, extents = element
    split, index = plan.shard_of[bucket]
    yield (split, index, plan.num_shards[split]), tuple(extents)


def _tally_of(result: SplitResult) -> ReadTally:
    return result.tally


def _bands_of(result: SplitResult) -> Iterable[tuple[int, BandExtent]]:
    return result.bands


def join_paths(parts: Iterable[list[str]]) -> list[str]:
    """All paths in one list."""
    return [path for part in parts for path in part]


def _extents_of(result: SplitResult) -> Iterable[tuple[int, Extent]]:
    return result.extents
