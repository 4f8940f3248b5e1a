"""What a build will cost, from a sample of its input: `python -m pipeline.estimate --config FILE key.sub=value`.

The sample goes through the build's own code (reading, tokenizing, pairing, masking, writing) into a temporary folder,
and what comes out is scaled by size. Every number has a band of 95%: the truth is inside it 19 times of 20.
"""

from __future__ import annotations

import heapq
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.cleaning import DocumentFilter
from pipeline.config import PipelineConfig
from pipeline.documents import Document, Split
from pipeline.engines import count_readers
from pipeline.estimate.intervals import Quantity
from pipeline.estimate.sample_build import Measured, measure_source
from pipeline.estimate.sampling import Unit, choose_units, list_frame, read_units
from pipeline.runtime import SHARDS, SPILLS, Job, describe_seconds
from pipeline.shuffle import Buckets, choose_buckets
from pipeline.sources import list_splits, share_books
from pipeline.tokenizer import WordTokenizer
from pipeline.units import count_of
from pipeline.vocabulary import count_words, given_vocabulary, train_tokenizer

_TIME_BAND = 0.3
"""Times are not known better than this: other load, the state of the machine."""
_START_S = 6.0
"""Seconds until the workers are ready, and to check and publish."""
_START_CPU_S = 3.0
"""CPU seconds of every process before it does anything."""
_COMPRESSION_BAND = 0.02
"""A bucket mixes more documents than the sample has, which are compressed a little worse."""
_MEMORY_BAND = 0.25
_WORKER_BYTES = 440e6
_BYTES_PER_BUCKET_TOKEN = 3.0
_BYTES_PER_MASK_SET = 5.5e6
"""Resident memory of a worker: imports and buffers, documents of a bucket, a mask set of a row group (docs/LOG.md)."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a build will cost. `bytes` are those of the shards; `temporary_bytes` lie in OUT/_tmp meanwhile."""

    documents: Quantity
    tokens: Quantity
    rows: Quantity
    bytes: Quantity
    temporary_bytes: Quantity
    cpu_s: Quantity
    wall_s: Quantity
    worker_bytes: Quantity
    pair_bytes: Quantity
    mask_set_bytes: Quantity
    """Of each of the config's masks_per_pair mask sets."""
    mask_sets: int
    workers: int
    shards: int
    sample_units: int
    sample_of_units: int
    sample_characters: int
    sample_s: float
    whole: bool
    vocabulary: str


def estimate(config: PipelineConfig, *, workers: int) -> Estimate:
    """Read the sample and scale it. Raises ValueError as the build would, for input and settings."""
    started = time.monotonic()
    frames = [list_frame(source, index=index) for index, source in enumerate(config.sources)]
    chosen = choose_units(frames)
    with tempfile.TemporaryDirectory(prefix="cloze-estimate-") as folder:
        for name in (SPILLS, SHARDS):
            (Path(folder) / name).mkdir()
        tokenizer, vocabulary = choose_vocabulary(config, chosen=chosen, folder=Path(folder))
        job = Job(
            config=config,
            buckets=Buckets(1, 0, 0.0),
            tokenizer=str(Path(folder) / "tokenizer.json"),
            vocabulary_size=tokenizer.vocab_size,
            work=folder,
            build="estimate",
            inputs={},
        )
        measured = [
            measure_source(frame, units=units, job=job, tokenizer=tokenizer)
            for frame, units in zip(frames, chosen, strict=True)
        ]
    if not any(source.groups for source in measured):
        raise ValueError(
            "the sample holds fewer than 2 documents, so nothing can be said of rows; check sources.*.path and kind, "
            "and what ends a document"
        )
    return combine(
        measured,
        config=config,
        workers=workers,
        sample_s=time.monotonic() - started,
        vocabulary=vocabulary,
    )


def choose_vocabulary(
    config: PipelineConfig, *, chosen: Sequence[Sequence[Unit]], folder: Path
) -> tuple[WordTokenizer, str]:
    """The config's vocabulary, where it is there; else one of its kind and size trained on the sample; and which."""
    given = given_vocabulary(config)
    if given is not None:
        return given, f"{config.vocabulary.path} ({given.vocab_size:,} entries)"
    settings = config.vocabulary
    counts = count_words(_read_sentences(config, chosen=chosen), settings=settings)
    if not counts:
        raise ValueError("the sample has no words to train a vocabulary on; check sources.*.path and kind")
    path = folder / "tokenizer.json"
    train_tokenizer(counts, settings=settings).save(str(path))
    tokenizer = WordTokenizer.from_path(path, lowercase=settings.lowercase, strip_accents=settings.strip_accents)
    note = f"none yet; {tokenizer.vocab_size:,} entries were trained on the sample"
    if tokenizer.vocab_size < settings.size:
        note += f" (too small for size={settings.size:,}, so there will be fewer tokens)"
    return tokenizer, note


def _read_sentences(config: PipelineConfig, *, chosen: Sequence[Sequence[Unit]]) -> Iterable[str]:
    for source, units in zip(config.sources, chosen, strict=True):
        documents = DocumentFilter(config.cleaning, source=source)
        for _, items in read_units(units, source=source):
            for item in items:
                if isinstance(item, Document) and documents.reject(item) is None:
                    yield from item.sentences


def combine(
    measured: Sequence[Measured], *, config: PipelineConfig, workers: int, sample_s: float, vocabulary: str
) -> Estimate:
    """The whole from its sources, and times and memory from the splits and buckets that the build will have."""
    splits = list_splits(config.sources)
    buckets = choose_buckets(
        text_bytes=sum(split.text_bytes for split in splits),
        shards=None if config.shards == "auto" else config.shards,
        validation_fraction=config.validation_fraction,
    )
    held = config.validation_fraction

    def total(name: str) -> Quantity:
        return sum((source.expand(name) for source in measured), Quantity(0.0, 0.0))

    def total_of_rows(name: str) -> Quantity:
        """Held-out documents have no further passes for a weight above 1. A source whose sample makes no rows of its
        own (a single document) counts like the others, by its tokens."""
        known = [source for source in measured if source.groups]
        parts = [
            source.expand(name).scale(1 - held + held / max(1.0, config.sources[source.frame.source].weight))
            for source in known
        ]
        tokens = sum(source.expand("document_tokens").value for source in known)
        return sum(parts, Quantity(0.0, 0.0)).scale(total("document_tokens").value / tokens)

    cpu_s_a_byte = {
        source.frame.source: source.expand("read_cpu_s").value
        / max(1, sum(split.text_bytes for split in splits if split.source == source.frame.source))
        for source in measured
    }
    past = {path: seconds for source in measured for path, seconds in source.frame.passing_s.items()}

    def reading_s(each: Sequence[Split]) -> list[float]:
        return [
            cpu_s_a_byte[split.source] * split.text_bytes + past.get(split.path, 0.0) * (1 - 1 / split.parts)
            for split in each
        ]

    read_s = reading_s(share_books(splits, sources=config.sources, workers=count_readers(config, workers=workers)))
    train_s = reading_s(splits) if given_vocabulary(config) is None else []
    write = total_of_rows("write_cpu_s")
    train = [(1 - held) / buckets.train] * buckets.train
    shares = train + [held / buckets.validation] * buckets.validation if buckets.validation else train
    write_s = [write.value * share for share in shares]
    once = total("read_cpu_s").scale(2.0 if train_s else 1.0)
    again_s = sum(read_s) + sum(train_s) - once.value
    cpu = once + write + Quantity(again_s + _START_CPU_S * (1 + workers), 0.0)
    wall_s = _START_S + sum(makespan(each, workers=workers) for each in (train_s, read_s, write_s))
    band_s = None if cpu.band is None else wall_s * cpu.band / cpu.value
    bucket_tokens = max(shares) * total("document_tokens").value
    memory = _WORKER_BYTES + _BYTES_PER_BUCKET_TOKEN * bucket_tokens + _BYTES_PER_MASK_SET * config.masks_per_pair
    units = sum(len(source.units) for source in measured)
    return Estimate(
        documents=total("documents"),
        tokens=total_of_rows("tokens"),
        rows=total_of_rows("rows"),
        bytes=total_of_rows("bytes").widen(_COMPRESSION_BAND),
        temporary_bytes=total("temporary_bytes"),
        cpu_s=cpu.widen(_TIME_BAND),
        wall_s=Quantity(wall_s, band_s).widen(_TIME_BAND),
        worker_bytes=Quantity(memory, _MEMORY_BAND * memory),
        pair_bytes=total_of_rows("pair_bytes"),
        mask_set_bytes=total_of_rows("mask_bytes").scale(1 / config.masks_per_pair),
        mask_sets=config.masks_per_pair,
        workers=workers,
        shards=buckets.total,
        sample_units=units,
        sample_of_units=sum(len(source.frame.units) for source in measured),
        sample_characters=round(sum(unit["characters"] for source in measured for unit in source.units)),
        sample_s=sample_s,
        whole=all(source.whole for source in measured),
        vocabulary=vocabulary,
    )


def makespan(seconds: Sequence[float], *, workers: int) -> float:
    """When the last of `workers` is done, if each takes the longest piece that is left."""
    ends = [0.0] * workers
    for each in sorted(seconds, reverse=True):
        heapq.heapreplace(ends, ends[0] + each)
    return max(ends)


def format_estimate(found: Estimate) -> list[str]:
    """Lines for people."""
    how = "all of the input, which is small" if found.whole else f"{found.sample_of_units:,}, spread evenly"
    lines = [
        f"sample: {found.sample_units:,} parts of {how}: {found.sample_characters / 1e6:,.1f} M characters in "
        f"{describe_seconds(found.sample_s)}",
        f"vocabulary: {found.vocabulary}",
        "",
    ]
    rows = [
        ("documents", f"{found.documents.value:,.0f}", found.documents),
        ("tokens in rows", f"{found.tokens.value / 1e6:,.2f} M", found.tokens),
        ("rows", f"{found.rows.value:,.0f}", found.rows),
        (f"bytes of {count_of(found.shards, 'shard')}", describe_bytes(found.bytes.value), found.bytes),
        ("bytes in OUT/_tmp meanwhile", describe_bytes(found.temporary_bytes.value), found.temporary_bytes),
        ("CPU hours", f"{found.cpu_s.value / 3600:,.3g}", found.cpu_s),
        (f"wall time, {count_of(found.workers, 'worker')}", describe_seconds(found.wall_s.value), found.wall_s),
        ("peak memory of a worker", describe_bytes(found.worker_bytes.value), found.worker_bytes),
    ]
    near = "of all of the input" if found.whole else "exact"
    lines += [
        f"{name:<28} {value:>12}   {_describe_band(quantity, known='exact' if name == 'documents' else near)}"
        for name, value, quantity in rows
    ]
    pairs, masks, sets = found.pair_bytes.value, found.mask_set_bytes.value, found.mask_sets
    copies = max(10, sets)
    further = "" if copies == sets else f", {describe_bytes(pairs + copies * masks)} with {copies}"
    lines += [
        "",
        f"mask sets: {describe_bytes(pairs)} for the pairs, stored once, and {describe_bytes(masks)} a set: "
        f"{describe_bytes(pairs + sets * masks)} with masks_per_pair={sets}{further}; {copies} masked copies of every "
        f"row would take {describe_bytes(copies * (pairs + masks))}",
        "not subtracted: copies and near duplicates, which only the whole input shows",
    ]
    return lines


def describe_bytes(count: float) -> str:
    """123 kB, 4.5 MB, 67 GB: three digits."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}" if count < 999.5 else f"1 {unit}"
        count /= 1000
    return f"{count:,.4g} TB"


def _describe_band(quantity: Quantity, *, known: str) -> str:
    if quantity.band is None:
        return "+- unknown: a single part was read"
    if not quantity.value or quantity.band / quantity.value < 5e-4:
        return known
    return f"+- {100 * quantity.band / quantity.value:.2g}%"
