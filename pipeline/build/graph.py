"""The Beam graph of a build.

It has few, large elements, and only names and counts cross the shuffles. It avoids tagged outputs and output from
finish_bundle, because some engines lose them. Beam's counters are for display only. Every engine gives the same shards,
because every group is sorted and every random draw is keyed by the data.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.metrics import Metrics

from pipeline import storage
from pipeline.build.read_split import SplitResult, spill_split, split_key
from pipeline.build.write_shard import build_shard
from pipeline.dataset import SplitName, file_sha256, shard_name
from pipeline.dedup import BandExtent, find_matches, read_dropped, write_dropped
from pipeline.documents import Split
from pipeline.instances import fewest_documents
from pipeline.runtime import PLAN_NAME, BuildContext, Stage, WorkReport, raise_if_abandoned, report_failure
from pipeline.shuffle import BucketCount, Extent, ShardPlan, membership, plan_shards, read_index
from pipeline.sources import deal_splits, refuse_empty_source
from pipeline.tally import (
    BuildResult,
    ReadTally,
    join_paths,
    merge_reads,
    merge_results,
    reads_from_tree,
    reads_to_tree,
    results_from_tree,
    results_to_tree,
)
from pipeline.tokenizer import WordTokenizer

RESULT_NAME = "result.json"
DROPPED_NAME = "near-duplicates"


def build_graph(
    pipeline: beam.Pipeline, *, splits: Sequence[Split], context: BuildContext, workers: int | None = None
) -> None:
    """Add the steps of a whole build to `pipeline`. The last step writes RESULT_NAME into the exchange folder, which
    the main process and all workers can reach.

    Give `workers` if the engine hands out all elements at once, like FnApiRunner: every worker then gets about the same
    amount of input. If `workers` is None, any idle worker takes the next split.
    """
    dealt = [(split,) for split in splits] if workers is None else deal_splits(splits, workers=workers)
    read = (
        pipeline
        | "List splits" >> beam.Create(dealt, reshuffle=False)
        | "Spread splits" >> beam.Reshuffle()
        | "Take each" >> beam.FlatMap(_each)
        | "Read, clean, tokenize, spill" >> beam.ParDo(SpillSplits(context))
    )
    tally = read | "Tallies" >> beam.Map(_tally_of) | "Sum tallies" >> beam.CombineGlobally(merge_reads)
    grouped = read | "Extents" >> beam.FlatMap(_extents_of) | "Group by bucket" >> beam.GroupByKey()
    near = {"dropped": find_near_duplicates(read, context=context)} if context.config.cleaning.near_duplicates else {}
    counts = grouped | "Count buckets" >> beam.ParDo(CountBuckets(context), **near)
    plan = tally | "Plan shards" >> beam.ParDo(PlanShards(context), counts=beam.pvalue.AsList(counts))
    only_plan = beam.pvalue.AsSingleton(plan)
    results = (
        grouped
        | "Join small buckets" >> beam.FlatMap(assign_shard, plan=only_plan)
        | "Group by shard" >> beam.GroupByKey()
        | "Pair, mask, write" >> beam.ParDo(WriteShards(context), **near)
        | "Gather shards" >> beam.CombineGlobally(merge_results)
    )
    _ = results | "Leave the result" >> beam.ParDo(LeaveResult(context), tally=beam.pvalue.AsSingleton(tally))


def find_near_duplicates(read: beam.PCollection, *, context: BuildContext) -> beam.pvalue.AsSingleton:
    """Add the steps that search for near duplicates to the Beam graph. `read` is the graph's collection of
    SplitResults. Return the result as a side input (an argument of later steps): the path of the list of documents to
    leave out (see dedup.read_dropped)."""
    dropped = (
        read
        | "Band keys" >> beam.FlatMap(_bands_of)
        | "Group by band key" >> beam.GroupByKey()
        | "Compare signatures" >> beam.ParDo(CompareSignatures(context))
        | "Gather near duplicates" >> beam.CombineGlobally(join_paths)
        | "Choose what stays" >> beam.ParDo(ChooseDropped(context))
    )
    return beam.pvalue.AsSingleton(dropped)


class _Step(beam.DoFn):
    def __init__(self, context: BuildContext) -> None:
        self.context = context


class _TokenizerStep(_Step):
    def setup(self) -> None:
        self.tokenizer = WordTokenizer.from_path(
            self.context.tokenizer, lowercase=self.context.config.vocabulary.lowercase
        )


class CompareSignatures(_Step):
    """A Beam step. It compares the MinHash signatures of some documents (a partition). If it finds near duplicates
    among these documents, it writes them to a file and yields a list with the file's path."""

    def process(self, element: tuple[int, Iterable[BandExtent]]) -> Iterator[list[str]]:
        settings = self.context.config.cleaning.near_duplicates
        assert settings is not None
        with report_failure(self.context.exchange):
            matches = find_matches(element[1], threshold=settings.threshold)
            if matches.size:
                path = storage.join(self.context.spills, f"matches-{uuid.uuid4().hex[:16]}")
                storage.write_bytes(path, matches.tobytes())
                yield [path]


class ChooseDropped(_Step):
    """A Beam step. It takes the paths of all files of near duplicates, decides which of these documents to leave out,
    and yields the path of the list of them."""

    def process(self, paths: list[str]) -> Iterator[str]:
        with report_failure(self.context.exchange):
            path = storage.join(self.context.exchange, DROPPED_NAME)
            write_dropped(paths, path=path)
            yield path


class SpillSplits(_TokenizerStep):
    """A Beam step. It reads one split of the input, writes its documents to a spill file (an intermediate file), and
    yields the SplitResult."""

    def process(self, split: Split) -> Iterator[SplitResult]:
        with (
            report_failure(self.context.exchange, of_input=True),
            _report_work(self.context, stage="read", key=split_key(split, context=self.context)) as report,
        ):
            yield spill_split(split, context=self.context, tokenizer=self.tokenizer, report=report)


class CountBuckets(_Step):
    """A Beam step. It counts the documents of one bucket (a group of documents) that are not left out as copies or near
    duplicates, and yields the BucketCount."""

    def process(self, element: tuple[int, Iterable[Extent]], dropped: str | None = None) -> Iterator[BucketCount]:
        with report_failure(self.context.exchange):
            yield count_bucket(element, dropped)


class PlanShards(_Step):
    """A Beam step. From the counts of all buckets, it decides which bucket (group of documents) goes into which shard,
    and yields the ShardPlan. Raises ValueError if a source gave no document."""

    def process(self, tally: ReadTally, counts: list[BucketCount]) -> Iterator[ShardPlan]:
        with report_failure(self.context.exchange):
            for index, source in enumerate(self.context.config.sources):
                drops = tally.drops.get(index, Counter())
                others = tally.documents.total()
                refuse_empty_source(source, num_documents=tally.documents[index], drops=drops, others=others)
            config = self.context.config
            fewest = fewest_documents(config.next_sentence)
            whole_books = any(source.kind == "books" and source.unit == "book" for source in config.sources)
            plan = plan_shards(counts, buckets=self.context.buckets, fewest=fewest, whole_books=whole_books)
            size = {"shards": sum(plan.num_shards.values()), "tokens": sum(count.tokens for count in counts)}
            _leave(size, path=storage.join(self.context.progress, PLAN_NAME))
            yield plan


class WriteShards(_TokenizerStep):
    """A Beam step. It writes one shard and yields the BuildResult. An element has the shard's key (train or validation,
    index, number of shards) and the places of the shard's documents."""

    def process(
        self, element: tuple[tuple[str, int, int], Iterable[Sequence[Extent]]], dropped: str | None = None
    ) -> Iterator[BuildResult]:
        (name_of_split, index, count), groups = element
        extents = [extent for group in groups for extent in group]
        split: SplitName = "train" if name_of_split == "train" else "validation"
        name = shard_name(split, index, count)
        with report_failure(self.context.exchange), _report_work(self.context, stage="shard", key=name) as report:
            yield write_shard(
                extents,
                context=self.context,
                tokenizer=self.tokenizer,
                split=split,
                name=name,
                dropped=dropped,
                report=report,
            )


class LeaveResult(_Step):
    """A Beam step. It writes the result and the counts of the input to RESULT_NAME in the exchange folder, where the
    main process reads them, because engines cannot return values."""

    def process(self, result: BuildResult, tally: ReadTally) -> None:
        with report_failure(self.context.exchange):
            tree = {"result": results_to_tree(result), "read": reads_to_tree(tally)}
            _leave(tree, path=storage.join(self.context.exchange, RESULT_NAME))


def load_result(context: BuildContext) -> tuple[BuildResult, ReadTally]:
    """Return (result of the build, counts of the input), which LeaveResult wrote."""
    tree = json.loads(storage.read_bytes(storage.join(context.exchange, RESULT_NAME)))
    folder = context.spills
    return results_from_tree(tree["result"], folder=folder), reads_from_tree(tree["read"], folder=folder)


def write_shard(
    extents: Sequence[Extent],
    *,
    context: BuildContext,
    tokenizer: WordTokenizer,
    split: SplitName,
    name: str,
    dropped: str | None,
    report: WorkReport,
) -> BuildResult:
    """Return the result of building the shard `name`. If an earlier start of the build wrote this shard from the same
    documents, the result comes from the shard's record.

    Otherwise build the shard and record its result. `dropped` is the path of the list of near duplicates to leave out,
    or None.
    """
    content = sorted((extent.checksum, extent.index_bytes, extent.num_bytes) for extent in extents)
    key = [name, content, None if dropped is None else file_sha256(dropped)]
    recorded = context.ledger.find("shard", key=key)
    if recorded is not None:
        result = results_from_tree(recorded, folder=context.spills)
        (shard,), (tally,) = result.shards, result.tallies.values()
        report.add(kept=1, documents=tally.documents, rows=shard.rows, bytes=shard.bytes)
        report.add(of_tokens=tally.document_tokens, drops=sum(result.left_out.count_reasons().values()))
        return result
    result = build_shard(
        extents,
        config=context.config,
        tokenizer=tokenizer,
        split=split,
        name=name,
        folder=context.shards,
        scratch=context.spills,
        dropped=dropped,
        report=report,
    )
    files = [storage.join(context.shards, storage.base_name(name)), *result.left_out.rejects]
    context.ledger.record("shard", key=key, files=files, content=results_to_tree(result))
    return result


def _report_work(context: BuildContext, *, stage: Stage, key: Any) -> WorkReport:
    """Return a progress report (WorkReport) that also adds to Beam's counters (cloze/read_documents ...). `key`
    identifies the split or shard of this report. If a worker has failed at another split or shard, adding to the report
    raises AbandonedError."""

    def count(name: str, value: int) -> None:
        raise_if_abandoned(context.exchange)
        Metrics.counter("cloze", f"{stage}_{name}").inc(value)

    return WorkReport(context.progress, stage=stage, count=count, key=key)


def _leave(tree: Any, *, path: str) -> None:
    storage.write_bytes(path, json.dumps(tree).encode("ascii"), make_folders=False)


def count_bucket(element: tuple[int, Iterable[Extent]], dropped: str | None = None) -> BucketCount:
    """Return the number of distinct documents, and of their tokens, in one bucket (a group of documents). `element` is
    (number of the bucket, its extents). Only the index of each extent (a range of a file) is read. Documents in the
    list of near duplicates at the path `dropped` are not counted."""
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
    """Yield one pair: the key of the shard that gets a bucket, and the bucket's extents (ranges of files). The key is
    (train or validation, index, number of shards). `element` is (number of the bucket, its extents)."""
    bucket, extents = element
    split, index = plan.shard_of[bucket]
    yield (split, index, plan.num_shards[split]), tuple(extents)


def _each(splits: tuple[Split, ...]) -> tuple[Split, ...]:
    return splits


def _tally_of(result: SplitResult) -> ReadTally:
    return result.tally


def _bands_of(result: SplitResult) -> Iterable[tuple[int, BandExtent]]:
    return result.bands


def _extents_of(result: SplitResult) -> Iterable[tuple[int, Extent]]:
    return result.extents
