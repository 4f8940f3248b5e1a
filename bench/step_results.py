"""Runs each step of a build once on real text, so that a simulation can return the results instead of working.

A step works on a split, on a range of buckets (groups of documents), on one bucket or on one shard. Real text is
repeated, as distinct documents, until each of these is as large as in a large build.

Usage: python -c "from bench.step_results import main; main()" FOLDER RESULTS SPLITS TEXT_BYTES

bench.cluster runs this command. With `python -m`, the pickled objects would belong to the module `__main__`, and no
other process could load them.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from bench.pipeline import bench_config, choose_sources
from bench.repeats import Texts, read_texts, write_corpus
from pipeline.build import build_shard, spill_documents
from pipeline.build.read_split import SplitResult
from pipeline.config import PipelineConfig, SourceConfig
from pipeline.dataset import id_type, shard_name
from pipeline.documents import Document, Drop, Split
from pipeline.runtime import PROGRESS, RESULTS, SHARDS, SPILLS, BuildContext, WorkReport
from pipeline.shuffle import (
    BucketCount,
    Buckets,
    Extent,
    SpillFile,
    choose_buckets,
    divide_buckets,
    find_extents,
    join_spills,
)
from pipeline.shuffle.buckets import TEXT_BYTES_PER_BUCKET
from pipeline.sources import list_splits, read_documents
from pipeline.tally import BuildResult
from pipeline.tokenizer import WordTokenizer

_LENGTH = 512


@dataclass(frozen=True, slots=True)
class StepResults:
    """The result of each step. `joined` is None if the build does not need the second step of the shuffle."""

    split: SplitResult
    joined: SpillFile | None
    extents: tuple[Extent, ...]
    """Where the documents of one bucket (group of documents) are in one spill file."""
    count: BucketCount
    shard: BuildResult

    def sizes(self) -> dict[str, int]:
        """Return how many bytes each result takes when an engine sends it (pickled). The keys are the names of the
        fields."""
        return {name: len(pickle.dumps(getattr(self, name))) for name in self.__slots__}


def main() -> None:
    """Run each step once in FOLDER and write a pickled StepResults to the file RESULTS.

    The steps are those of a build of TEXT_BYTES bytes of text in SPLITS splits.
    """
    folder, results, num_splits, text_bytes = sys.argv[1:]
    found = make_results(
        read_texts(_choose_wikipedia()),
        config=choose_config(),
        buckets=buckets_of(int(text_bytes)),
        split_bytes=int(text_bytes) // int(num_splits),
        num_splits=int(num_splits),
        folder=Path(folder),
    )
    Path(results).write_bytes(pickle.dumps(found))


def choose_config() -> PipelineConfig:
    """Return the config of the build: that of bench.pipeline, but with Wikipedia text only."""
    return bench_config(_choose_wikipedia(), vocabulary=None, max_seq_length=_LENGTH)


def buckets_of(text_bytes: int) -> Buckets:
    """Return how many buckets (groups of documents) a build of `text_bytes` bytes has if nothing is held out."""
    return choose_buckets(text_bytes=text_bytes, shards="auto", validation_fraction=0.0)


def make_results(
    texts: Texts, *, config: PipelineConfig, buckets: Buckets, split_bytes: int, num_splits: int, folder: Path
) -> StepResults:
    """Run each step of a build once in `folder`, and return the results.

    The build has `num_splits` splits, each of `split_bytes` bytes of text, and the buckets (groups of documents)
    `buckets`. The steps read one split, collect one range of buckets, and build the shard of one bucket.
    """
    from pipeline.engines import local  # noqa: F401, I001 (first, since it makes Beam quiet)
    from pipeline.build.graph import count_bucket

    for name in (SPILLS, SHARDS, PROGRESS, RESULTS):
        (folder / name).mkdir(parents=True)
    sources = write_corpus(texts, folder / "corpus")
    items = [item for split in list_splits(sources) for item in read_documents(split, sources[split.source])]
    if not any(isinstance(item, Document) for item in items):
        raise ValueError(f"{folder}: the corpus has no document")
    config = config.model_copy(update={"sources": sources[:1]})
    assert config.vocabulary.path is not None
    tokenizer = WordTokenizer.from_path(config.vocabulary.path, lowercase=config.vocabulary.lowercase)
    types = id_type(tokenizer.vocab_size)
    context = BuildContext(
        config=config,
        buckets=buckets,
        tokenizer="",
        vocabulary_size=tokenizer.vocab_size,
        work=str(folder),
        build="bench",
        inputs={},
    )
    spills = context.spills

    def spill(num_bytes: int, buckets: Buckets) -> SplitResult:
        return spill_documents(
            repeat_documents(items, num_bytes=num_bytes),
            split=Split(0, str(folder / "part-00000.jsonl"), 0, -1, num_bytes, num_bytes),
            context=replace(context, buckets=buckets),
            tokenizer=tokenizer,
            report=WorkReport(None, stage="read"),
        )

    split = spill(split_bytes, buckets)
    (file,) = split.spills
    _, joins = divide_buckets(buckets)
    joined = None
    if joins:
        join = joins[0]
        # This file stands for those of all other splits too, so that the step has as much text as in the build.
        files = [replace(file, key=join.part)] * max(1, num_splits // join.parts)
        joined = join_spills(join, files=files, folder=spills, buckets=buckets, id_type=types)
    known = joined or file
    last = known.buckets.first + known.buckets.rows * known.buckets.width
    extents = max(
        (find_extents([known], folder=spills, bucket=bucket) for bucket in range(known.buckets.first, last)), key=len
    )

    alone = Buckets(1, 0, 0.0)
    (file,) = spill(TEXT_BYTES_PER_BUCKET, alone).spills
    content = find_extents([file], folder=spills, bucket=0)
    shard = build_shard(
        content,
        config=config,
        tokenizer=tokenizer,
        split="train",
        name=shard_name("train", 0, buckets.train),
        folder=context.shards,
        scratch=spills,
    )
    return StepResults(split, joined, tuple(extents), count_bucket(0, content), shard)


def repeat_documents(items: Sequence[Document | Drop], *, num_bytes: int) -> Iterator[Document | Drop]:
    """Yield `items` again and again, until the documents yielded have `num_bytes` bytes of text.

    Each copy of a document begins with a sentence of its own, so that no two copies are equal.
    """
    left = num_bytes
    for copy in count():
        for item in items:
            if left <= 0:
                return
            if isinstance(item, Document):
                sentences = (f"This is copy {copy}.", *item.sentences)
                left -= sum(len(sentence.encode()) + 1 for sentence in sentences)
                yield replace(item, sentences=sentences, group=b"")
            else:
                yield item


def _choose_wikipedia() -> list[SourceConfig]:
    return [source for source in choose_sources([]) if source.kind == "wikipedia"]
