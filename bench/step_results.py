"""Real results of each step of a build: of a split, of a piece of the second step, of a bucket and of a shard.

Real text is taken as often as it needs to reach the size that each of them has in a large build; every copy of a
document is another document. A simulation returns these results instead of working.

Usage: python -c "from bench.step_results import main; main()" FOLDER RESULTS SPLITS TEXT_BYTES
bench.cluster does this. With -m, the results would be pickled as objects of a module that no other process knows.
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
from pipeline.runtime import EXCHANGE, PROGRESS, SHARDS, SPILLS, BuildContext, WorkReport
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
    """What each step returned. `joined` is None if the build needs no second step."""

    split: SplitResult
    joined: SpillFile | None
    extents: tuple[Extent, ...]
    """Of one bucket in one of the files that buckets are read from."""
    count: BucketCount
    shard: BuildResult

    def sizes(self) -> dict[str, int]:
        """Return the bytes of each result as an engine sends it (pickled), by the name of the field."""
        return {name: len(pickle.dumps(getattr(self, name))) for name in self.__slots__}


def main() -> None:
    """Do each step once in FOLDER, for a build of TEXT_BYTES of text in SPLITS splits, and write StepResults, pickled,
    to the file RESULTS."""
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
    """Return the settings of the build: those of bench.pipeline, with Wikipedia text alone."""
    return bench_config(_choose_wikipedia(), vocabulary=None, max_seq_length=_LENGTH)


def buckets_of(text_bytes: int) -> Buckets:
    """Return the buckets of a build of so much text with nothing held out."""
    return choose_buckets(text_bytes=text_bytes, shards="auto", validation_fraction=0.0)


def make_results(
    texts: Texts, *, config: PipelineConfig, buckets: Buckets, split_bytes: int, num_splits: int, folder: Path
) -> StepResults:
    """Do each step once in `folder`, and return what it returns: for a split of `split_bytes` of text, one of
    `num_splits` of a build with `buckets`, and for one of its buckets."""
    from pipeline.engines import local  # noqa: F401, I001 (first, since it makes Beam quiet)
    from pipeline.build.graph import count_bucket

    for name in (SPILLS, SHARDS, PROGRESS, EXCHANGE):
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
        # The other splits' files are stood for by this one, so that the piece has as much text as in the build.
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
    """Yield the items again and again until their text has `num_bytes`. Copies begin with a sentence of their own."""
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
