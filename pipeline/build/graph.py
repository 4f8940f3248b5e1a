"""The Beam graph of a build.

No step groups by key. Instead, steps write files with a table of contents, by which a later step finds the data that it
needs. So an engine holds one file name for each split, not one for each bucket of each split. The graph avoids tagged
outputs and output from finish_bundle, because some engines lose them. Beam's counters are for display only. Every
engine gives the same shards, because every group is sorted and every random draw is keyed by the data.
"""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import apache_beam as beam
import numpy as np
from apache_beam.metrics import Metrics

from pipeline import storage
from pipeline.build.read_split import SplitResult, merge_splits, spill_split, split_key
from pipeline.build.write_shard import build_shard
from pipeline.dataset import SplitName, id_type, shard_name
from pipeline.dedup import (
    BandFile,
    Match,
    MatchFile,
    count_parts,
    find_bands,
    find_matches,
    join_matches,
    read_dropped,
    write_dropped,
    write_matches,
)
from pipeline.documents import Split
from pipeline.instances import fewest_documents
from pipeline.runtime import PLAN_NAME, BuildContext, Stage, WorkReport, raise_if_abandoned, report_failure
from pipeline.shuffle import (
    BucketCount,
    Extent,
    Join,
    ShardPlan,
    SpillFile,
    divide_buckets,
    find_extents,
    halves_of,
    join_spills,
    plan_shards,
    read_index,
)
from pipeline.sources import deal_splits, refuse_empty_source
from pipeline.tally import (
    BuildResult,
    ReadTally,
    merge_results,
    reads_from_tree,
    reads_to_tree,
    results_from_tree,
    results_to_tree,
)
from pipeline.tokenizer import WordTokenizer
from pipeline.vocabulary import refuse_read_losses

RESULT_NAME = "result.json"
DROPPED_NAME = "near-duplicates"


def build_graph(
    pipeline: beam.Pipeline, *, splits: Sequence[Split], context: BuildContext, workers: int | None = None
) -> None:
    """Add the steps of a whole build to `pipeline`. The last step writes RESULT_NAME into the results folder, which
    the main process and all workers can reach.

    Give `workers` if the engine hands out all splits at once, like Beam's FnApiRunner: every worker then gets about the
    same amount of input. If `workers` is None, any idle worker takes the next split.
    """
    read = (
        _spread(pipeline, "splits", splits)
        if workers is None
        else _spread(pipeline, "splits", deal_splits(splits, workers=workers)) | "Take each" >> beam.FlatMap(_each)
    ) | "Read, clean, tokenize, spill" >> beam.ParDo(SpillSplits(context))
    whole = read | "Sum splits" >> beam.CombineGlobally(merge_splits)
    tally = whole | "Tally" >> beam.Map(_tally_of)
    files = whole | "Spill files" >> beam.Map(_spills_of)
    _, joins = divide_buckets(context.buckets)
    if joins:
        files = (
            _spread(pipeline, "joins", joins)
            | "Join spill files" >> beam.ParDo(JoinSpills(context), files=beam.pvalue.AsSingleton(files))
            | "Gather joined files" >> beam.combiners.ToList()
        )
    found = {"files": beam.pvalue.AsSingleton(files)}
    if context.config.cleaning.near_duplicates:
        found["dropped"] = find_near_duplicates(pipeline, whole, context=context)
    buckets = range(context.buckets.total)
    counts = _spread(pipeline, "buckets", buckets) | "Count buckets" >> beam.ParDo(CountBuckets(context), **found)
    plan = tally | "Plan shards" >> beam.ParDo(PlanShards(context), counts=beam.pvalue.AsList(counts))
    found["plan"] = beam.pvalue.AsSingleton(plan)
    results = (
        _spread(pipeline, "shards", sorted(buckets, key=_scatter))
        | "Pair, mask, write" >> beam.ParDo(WriteShards(context), **found)
        | "Gather shards" >> beam.CombineGlobally(merge_results)
    )
    _ = results | "Leave the result" >> beam.ParDo(LeaveResult(context), tally=beam.pvalue.AsSingleton(tally))


def find_near_duplicates(
    pipeline: beam.Pipeline, whole: beam.PCollection, *, context: BuildContext
) -> beam.pvalue.AsSingleton:
    """Add the steps that search for near duplicates to `pipeline`. `whole` has one element, the SplitResult of all
    splits together.

    Return a side input (an argument of later steps). Its value is the MatchFile that names the list of documents to
    leave out (see dedup.read_dropped).
    """
    parts = range(count_parts(context.buckets))
    bands = whole | "Band files" >> beam.Map(_bands_of)
    matches = (
        _spread(pipeline, "partitions", parts)
        | "Compare signatures" >> beam.ParDo(CompareSignatures(context), bands=beam.pvalue.AsSingleton(bands))
        | "Gather matches" >> beam.combiners.ToList()
    )
    dropped = (
        _spread(pipeline, "parts", parts)
        | "Join matches" >> beam.ParDo(JoinMatches(context), matches=beam.pvalue.AsSingleton(matches))
        | "Gather near duplicates" >> beam.combiners.ToList()
        | "Choose what stays" >> beam.ParDo(ChooseDropped(context))
    )
    return beam.pvalue.AsSingleton(dropped)


def _spread(pipeline: beam.Pipeline, name: str, items: Iterable[Any]) -> beam.PCollection:
    """Return a collection of the items, dealt to the workers in turn."""
    return pipeline | f"List {name}" >> beam.Create(items, reshuffle=False) | f"Spread {name}" >> beam.Reshuffle()


class _Step(beam.DoFn):
    def __init__(self, context: BuildContext) -> None:
        self.context = context


class _TokenizerStep(_Step):
    def setup(self) -> None:
        self.tokenizer = WordTokenizer.from_path(
            self.context.tokenizer, lowercase=self.context.config.vocabulary.lowercase
        )


class CompareSignatures(_Step):
    """A Beam step for one partition of the search for near duplicates. In a partition, documents meet that have a hash
    of part of their MinHash signatures in common. The step compares the signatures of these documents. If it finds near
    duplicates, it writes them in pairs to a file, and yields the MatchFile that names the file."""

    def process(self, partition: int, bands: Sequence[BandFile]) -> Iterator[MatchFile]:
        settings = self.context.config.cleaning.near_duplicates
        assert settings is not None
        with report_failure(self.context.results_folder):
            raise_if_abandoned(self.context.results_folder)
            folder = self.context.spills
            matches = find_matches(find_bands(bands, folder=folder, partition=partition), threshold=settings.threshold)
            if matches.size:
                yield write_matches(matches, folder=folder, buckets=self.context.buckets)


class JoinMatches(_Step):
    """A Beam step for one part of the buckets (groups of documents). A match says that a document resembles a better
    one. The match belongs to the bucket of the worse document, and may have been found several times. The step writes
    each match of these buckets once to a file. It yields the MatchFile that names the file, or nothing if there are no
    matches."""

    def process(self, part: int, matches: Sequence[MatchFile]) -> Iterator[MatchFile]:
        with report_failure(self.context.results_folder):
            joined = join_matches(matches, part=part, folder=self.context.spills, buckets=self.context.buckets)
            if joined is not None:
                yield joined


class ChooseDropped(_Step):
    """A Beam step. Its input is the list of all files of matches (pairs of near duplicates). It decides which documents
    to leave out, writes the list of these documents to a file, and yields the MatchFile that names the file."""

    def process(self, files: list[MatchFile]) -> Iterator[MatchFile]:
        with report_failure(self.context.results_folder):
            path = storage.join(self.context.results_folder, DROPPED_NAME)
            grouped = self.context.config.has_groups
            yield write_dropped(files, path=path, buckets=self.context.buckets, grouped=grouped)


class SpillSplits(_TokenizerStep):
    """A Beam step. It reads one split of the input, writes its documents to a spill file (an intermediate file), and
    yields the SplitResult."""

    def process(self, split: Split) -> Iterator[SplitResult]:
        with (
            report_failure(self.context.results_folder, of_input=True),
            _report_work(self.context, stage="read", key=split_key(split, context=self.context)) as report,
        ):
            yield spill_split(split, context=self.context, tokenizer=self.tokenizer, report=report)


class JoinSpills(_Step):
    """A Beam step for builds with many buckets (groups of documents). The spill files (intermediate files) of such a
    build are first divided only into ranges of buckets. The step reads one range from several spill files, and writes
    it, divided into single buckets, to a new spill file. It yields the new file."""

    def process(self, join: Join, files: Sequence[SpillFile]) -> Iterator[SpillFile]:
        with report_failure(self.context.results_folder):
            raise_if_abandoned(self.context.results_folder)
            types = id_type(self.context.vocabulary_size)
            folder, buckets = self.context.spills, self.context.buckets
            yield join_spills(join, files=files, folder=folder, buckets=buckets, id_type=types)


class CountBuckets(_Step):
    """A Beam step. It counts the documents of one bucket (a group of documents) that stay once duplicates are dropped,
    and yields the BucketCount. For a bucket that never had documents, it yields nothing."""

    def process(
        self, bucket: int, files: Sequence[SpillFile], dropped: MatchFile | None = None
    ) -> Iterator[BucketCount]:
        with report_failure(self.context.results_folder):
            extents = find_extents(files, folder=self.context.spills, bucket=bucket)
            if extents:
                yield count_bucket(bucket, extents, near=_near([bucket], dropped))


class PlanShards(_Step):
    """A Beam step. From the counts of all buckets (groups of documents), it decides which buckets go into which shard,
    and yields the ShardPlan. Most shards have one bucket, but small buckets are joined. Raises ValueError if a source
    gave no document, or if the tokenizer removes too many vowel signs or tone marks of a source's script."""

    def process(self, tally: ReadTally, counts: list[BucketCount]) -> Iterator[ShardPlan]:
        with report_failure(self.context.results_folder):
            for index, source in enumerate(self.context.config.sources):
                drops = tally.drops.get(index, Counter())
                others = tally.documents.total()
                refuse_empty_source(source, num_documents=tally.documents[index], drops=drops, others=others)
            config = self.context.config
            refuse_read_losses(config, read=tally)
            fewest = fewest_documents(config.next_sentence)
            whole_books = any(source.kind == "books" and source.unit == "book" for source in config.sources)
            plan = plan_shards(
                counts, buckets=self.context.buckets, fewest=fewest, whole_books=whole_books, grouped=config.has_groups
            )
            size = {"shards": sum(plan.num_shards.values()), "tokens": sum(count.tokens for count in counts)}
            _write_json(size, path=storage.join(self.context.progress, PLAN_NAME))
            yield plan


class WriteShards(_TokenizerStep):
    """A Beam step for one bucket (a group of documents). Most shards have one bucket, but small buckets are joined. If
    the bucket is the first or only one of a shard, the step writes the whole shard and yields the BuildResult.
    Otherwise it does nothing."""

    def process(
        self, bucket: int, files: Sequence[SpillFile], plan: ShardPlan, dropped: MatchFile | None = None
    ) -> Iterator[BuildResult]:
        buckets = plan.buckets_of.get(bucket)
        if buckets is None:
            return
        split, index = plan.shard_of[bucket]
        name = shard_name(split, index, plan.num_shards[split])
        with report_failure(self.context.results_folder), _report_work(self.context, stage="shard", key=name) as report:
            folder = self.context.spills
            extents = [extent for bucket in buckets for extent in find_extents(files, folder=folder, bucket=bucket)]
            yield write_shard(
                extents,
                context=self.context,
                tokenizer=self.tokenizer,
                split=split,
                name=name,
                near=_near(buckets, dropped),
                report=report,
            )


class LeaveResult(_Step):
    """A Beam step. It writes the result of the build and the counts of the input to RESULT_NAME in the results folder,
    where the main process reads them, because engines cannot return values."""

    def process(self, result: BuildResult, tally: ReadTally) -> None:
        with report_failure(self.context.results_folder):
            tree = {"result": results_to_tree(result), "read": reads_to_tree(tally)}
            _write_json(tree, path=storage.join(self.context.results_folder, RESULT_NAME))


def load_result(context: BuildContext) -> tuple[BuildResult, ReadTally]:
    """Read the file that the step LeaveResult wrote. Return (result of the build, counts of the input)."""
    tree = json.loads(storage.read_bytes(storage.join(context.results_folder, RESULT_NAME)))
    folder = context.spills
    return results_from_tree(tree["result"], folder=folder), reads_from_tree(tree["read"], folder=folder)


def write_shard(
    extents: Sequence[Extent],
    *,
    context: BuildContext,
    tokenizer: WordTokenizer,
    split: SplitName,
    name: str,
    near: Mapping[bytes, Match],
    report: WorkReport,
) -> BuildResult:
    """Return the result of building the shard `name`. If an earlier start of the build wrote this shard from the same
    documents, the result comes from the shard's record.

    Otherwise build the shard and record its result. `near` has the near duplicates to leave out: it maps the id of each
    to its match (the document that it resembles).
    """
    content = sorted((extent.checksum, extent.index_bytes, extent.num_bytes) for extent in extents)
    key = [name, content, sorted((name.hex(), *match) for name, match in near.items())]
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
        near=near,
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
        raise_if_abandoned(context.results_folder)
        Metrics.counter("cloze", f"{stage}_{name}").inc(value)

    return WorkReport(context.progress, stage=stage, count=count, key=key)


def _write_json(tree: Any, *, path: str) -> None:
    storage.write_bytes(path, json.dumps(tree).encode("ascii"), make_folders=False)


def count_bucket(bucket: int, extents: Sequence[Extent], *, near: Collection[bytes] = ()) -> BucketCount:
    """Return how many distinct documents one bucket (a group of documents) has, and how many tokens these documents
    have. To count them, only the index of each extent (a range of a file) is read. `near` has the ids of near
    duplicates, which are not counted."""
    index = read_index(extents)
    kept = index.distinct()
    if near:
        kept = kept[[index.ids[position].tobytes() not in near for position in kept]]
    hashes = np.sort(halves_of(index.groups[kept])[:, 0]).tolist()  # as `membership`
    tokens = int(index.tokens[kept].sum())
    highest = hashes[-1] if hashes else 0
    return BucketCount(bucket, documents=kept.size, tokens=tokens, lowest=tuple(hashes[:2]), highest=highest)


def _scatter(bucket: int) -> int:
    """Return a number by which to sort the buckets (groups of documents). Small buckets are joined to a neighbour, so
    there is no shard to write for some of them. The order looks random but is always the same, and spreads these
    buckets evenly over the workers."""
    return zlib.crc32(bucket.to_bytes(8, "big"))


def _near(buckets: Sequence[int], dropped: MatchFile | None) -> dict[bytes, Match]:
    return {} if dropped is None else read_dropped(dropped, buckets=buckets)


def _each(splits: tuple[Split, ...]) -> tuple[Split, ...]:
    return splits


def _tally_of(result: SplitResult) -> ReadTally:
    return result.tally


def _bands_of(result: SplitResult) -> Sequence[BandFile]:
    return result.bands


def _spills_of(result: SplitResult) -> Sequence[SpillFile]:
    return result.spills
