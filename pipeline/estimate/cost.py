"""Estimates what a build costs from a sample of its input.

The sample goes through the code of the build (reading, tokenizing, pairing, masking, writing) into a temporary folder.
The results are scaled to the size of the input. TOLERANCE and TIME_TOLERANCE, the errors to expect, come from
comparisons with real builds (docs/LOG.md).
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
from pipeline.estimate.sample_build import Measured, measure_source
from pipeline.estimate.sampling import Unit, choose_units, list_frame, read_units
from pipeline.runtime import SHARDS, SPILLS, BuildContext
from pipeline.shuffle import Buckets, choose_buckets
from pipeline.tokenizer import WordTokenizer
from pipeline.units import count_of, describe_bytes, describe_seconds
from pipeline.vocabulary import count_words, given_vocabulary, refuse_read_losses, train_tokenizer

TOLERANCE = 0.15
"""The largest relative error that the estimates of documents, tokens, rows and bytes had on any corpus measured."""
TIME_TOLERANCE = 0.3
"""The largest relative error that the estimates of CPU seconds and memory had, on an otherwise idle machine."""
_START_S = 6.0
"""Seconds to start the workers, and to check and publish the set."""
_START_CPU_S = 3.0
"""CPU seconds that each process needs to start."""
_WITHOUT_PAIRS = 0.75
"""If a document is the only one of its source, it gives this share of the rows that it would give beside other
documents. It has no pairs, and each of its chunks is used whole. Beside other documents, half of its chunks would give
their second half back to the next chunk, which makes more rows."""
_WORKER_BYTES = 440e6
_BYTES_PER_BUCKET_TOKEN = 3.0
_BYTES_PER_MASK_SET = 5.5e6
"""A worker needs memory for imports and buffers, for each token of a bucket (group of documents), and for each mask set
(one masking of the rows). See docs/LOG.md."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """The cost of a build, scaled from a sample.

    `bytes` is the size of all shards, `pair_bytes` their size without masks, and `temporary_bytes` the size of OUT/_tmp
    during the build. `cpu_s` and `wall_s` are CPU and wall-clock seconds. `worker_bytes` is the peak memory of a
    worker. The input consists of units (parts that can be read without the rest), and `sample_of_units` is their
    number. `sample_units` and `sample_characters` say how many units and characters the sample has, and `sample_s` how
    many seconds the sample took. `whole` is true if the sample is all of the input. `vocabulary` describes the
    vocabulary used.
    """

    documents: float
    tokens: float
    rows: float
    bytes: float
    temporary_bytes: float
    cpu_s: float
    wall_s: float
    worker_bytes: float
    pair_bytes: float
    mask_set_bytes: float
    """The bytes of one mask set (one masking of every row). `mask_sets` is the number of mask sets."""
    mask_sets: int
    workers: int
    shards: int
    sample_units: int
    sample_of_units: int
    sample_characters: int
    sample_s: float
    whole: bool
    beginnings: int
    """The number of compressed streams of which only the beginning was read."""
    vocabulary: str


def estimate(config: PipelineConfig, *, splits: Sequence[Split], workers: int) -> Estimate:
    """Measure a sample of the input, and return the estimate for a build of the whole input. `workers` is the number of
    workers of the build.

    `splits` are the splits of the whole input (from list_splits). Raises ValueError for bad input and settings, as the
    build does.
    """
    started = time.monotonic()
    frames = [list_frame(source, index=index) for index, source in enumerate(config.sources)]
    chosen = choose_units(frames)
    given = given_vocabulary(config)
    with tempfile.TemporaryDirectory(prefix="cloze-estimate-") as folder:
        for name in (SPILLS, SHARDS):
            (Path(folder) / name).mkdir()
        tokenizer, vocabulary = choose_vocabulary(config, given=given, chosen=chosen, folder=Path(folder))
        context = BuildContext(
            config=config,
            buckets=Buckets(1, 0, 0.0),
            tokenizer=str(Path(folder) / "tokenizer.json"),
            vocabulary_size=tokenizer.vocab_size,
            work=folder,
            build="estimate",
            inputs={},
        )
        measured = [
            measure_source(frame, units=units, context=context, tokenizer=tokenizer)
            for frame, units in zip(frames, chosen, strict=True)
        ]
    for source in measured:
        refuse_read_losses(config, read=source.read)
    if not any(source.groups for source in measured):
        raise ValueError(
            "the sample holds fewer than 2 documents, so rows cannot be estimated; check sources.*.path and kind, and "
            "what ends a document"
        )
    return combine(
        measured,
        config=config,
        splits=splits,
        trains=given is None,
        workers=workers,
        sample_s=time.monotonic() - started,
        vocabulary=vocabulary,
    )


def choose_vocabulary(
    config: PipelineConfig, *, given: WordTokenizer | None, chosen: Sequence[Sequence[Unit]], folder: Path
) -> tuple[WordTokenizer, str]:
    """Return a tokenizer, and a description of its vocabulary for people.

    The tokenizer is `given`; if that is None, a vocabulary is trained on the sample as `config` says and saved in
    `folder`. `chosen` has, for each source, the units (parts of the input) in the sample.
    """
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
    measured: Sequence[Measured],
    *,
    config: PipelineConfig,
    splits: Sequence[Split],
    trains: bool,
    workers: int,
    sample_s: float,
    vocabulary: str,
) -> Estimate:
    """Return the estimate for all sources together. Times and memory are computed from the splits (parts of the input)
    and buckets (groups of documents) that the build will have.

    `measured` has the measurements of each source. `trains` is true if the build first trains a vocabulary, for which
    it reads the whole input once more. `sample_s` (how long the sample took) and `vocabulary` (its description) are
    copied into the estimate.
    """
    buckets = choose_buckets(
        text_bytes=sum(split.text_bytes for split in splits),
        shards=config.shards,
        validation_fraction=config.validation_fraction,
    )
    held = config.validation_fraction

    def total(name: str) -> float:
        return sum(source.expand(name) for source in measured)

    def total_of_rows(name: str) -> float:
        """Return the sum of the measurement `name` over all sources. `name` is a measurement that grows with the number
        of rows, such as the bytes of the rows.

        If a source has a weight above 1, its training documents count that many times, and its held-out documents once.
        If the sample of a source gives no rows because it is a single document, the rows of this source are guessed
        from the rows per token of the other sources, times _WITHOUT_PAIRS.
        """
        known = [source for source in measured if source.groups]
        weights = [max(1.0, config.sources[source.frame.source].weight) for source in known]
        of_known = sum(
            source.expand(name) * (1 - held + held / weight) for source, weight in zip(known, weights, strict=True)
        )
        tokens = sum(source.expand("document_tokens") for source in known)
        pairless = _WITHOUT_PAIRS if config.next_sentence == "random_document" and config.mode == "strict" else 1.0
        return of_known * (tokens + pairless * (total("document_tokens") - tokens)) / tokens

    cpu_s_a_byte = {
        source.frame.source: source.expand("read_cpu_s")
        / max(1, sum(split.text_bytes for split in splits if split.source == source.frame.source))
        for source in measured
    }
    past = {path: seconds for source in measured for path, seconds in source.frame.skip_s.items()}
    read_s = [
        cpu_s_a_byte[split.source] * split.text_bytes + past.get(split.path, 0.0) * (1 - 1 / split.parts)
        for split in splits
    ]
    train_s = read_s if trains else []
    train = [(1 - held) / buckets.train] * buckets.train
    shares = train + [held / buckets.validation] * buckets.validation if buckets.validation else train
    write_cpu_s = total_of_rows("write_cpu_s")
    write_s = [write_cpu_s * share for share in shares]
    steps = (train_s, read_s, write_s)
    bucket_tokens = max(shares) * total("document_tokens")
    memory = _WORKER_BYTES + _BYTES_PER_BUCKET_TOKEN * bucket_tokens + _BYTES_PER_MASK_SET * config.masks_per_pair
    units = sum(len(source.units) for source in measured)
    return Estimate(
        documents=total("documents"),
        tokens=total_of_rows("tokens"),
        rows=total_of_rows("rows"),
        bytes=total_of_rows("bytes"),
        temporary_bytes=total("temporary_bytes"),
        cpu_s=_START_CPU_S * (1 + workers) + sum(map(sum, steps)),
        wall_s=_START_S + sum(makespan(each, workers=workers) for each in steps),
        worker_bytes=memory,
        pair_bytes=total_of_rows("pair_bytes"),
        mask_set_bytes=total_of_rows("mask_bytes") / config.masks_per_pair,
        mask_sets=config.masks_per_pair,
        workers=workers,
        shards=buckets.total,
        sample_units=units,
        sample_of_units=sum(len(source.frame.units) for source in measured),
        sample_characters=round(sum(unit["characters"] for source in measured for unit in source.units)),
        sample_s=sample_s,
        whole=all(source.whole for source in measured),
        beginnings=sum(unit.begins for source in measured for unit in source.frame.units),
        vocabulary=vocabulary,
    )


def makespan(seconds: Sequence[float], *, workers: int) -> float:
    """Return the seconds until all jobs are done, if each worker that is free takes the longest job left.

    `seconds` has the duration of each job.
    """
    ends = [0.0] * workers
    for each in sorted(seconds, reverse=True):
        heapq.heapreplace(ends, ends[0] + each)
    return max(ends)


def format_estimate(found: Estimate) -> list[str]:
    """Return the estimate `found` as lines of text."""
    how = "all of the input, which is small" if found.whole else f"{found.sample_of_units:,}, spread evenly"
    lines = [
        f"sample: {found.sample_units:,} units of {how}: {found.sample_characters / 1e6:,.1f} M characters in "
        f"{describe_seconds(found.sample_s)}",
        f"vocabulary: {found.vocabulary}",
        "",
    ]
    rows = [
        ("documents", f"{found.documents:,.0f}"),
        ("tokens in rows", f"{found.tokens / 1e6:,.2f} M"),
        ("rows", f"{found.rows:,.0f}"),
        (f"bytes of {count_of(found.shards, 'shard')}", describe_bytes(found.bytes)),
        ("temporary bytes in OUT/_tmp", describe_bytes(found.temporary_bytes)),
        ("CPU hours", f"{found.cpu_s / 3600:,.3g}"),
        (f"wall time, {count_of(found.workers, 'worker')}", describe_seconds(found.wall_s)),
        ("peak memory of a worker", describe_bytes(found.worker_bytes)),
    ]
    lines += [f"{name:<28} {value:>12}" for name, value in rows]
    counts = f"documents, tokens, rows and bytes: came within {100 * TOLERANCE:.0f}% on every corpus measured"
    if found.whole:
        counts = "documents: exact, as all of the input was read; tokens, rows and bytes: nearly so"
    lines += ["", counts]
    lines += [f"time and memory: within {100 * TIME_TOLERANCE:.0f}% on a machine like this one, otherwise idle"]
    if found.beginnings:
        streams = count_of(found.beginnings, "compressed stream")
        lines.append(f"only the beginning of {streams} was read; the rest may differ")
    pairs, masks, sets = found.pair_bytes, found.mask_set_bytes, found.mask_sets
    copies = max(10, sets)
    further = "" if copies == sets else f", {describe_bytes(pairs + copies * masks)} with {copies}"
    lines += [
        f"mask sets: {describe_bytes(pairs)} for the pairs, stored once, and {describe_bytes(masks)} a set: "
        f"{describe_bytes(pairs + sets * masks)} with masks_per_pair={sets}{further}; {copies} masked copies of every "
        f"row would take {describe_bytes(copies * (pairs + masks))}",
        "duplicates and near duplicates are not subtracted: only the whole input shows them",
    ]
    return lines
