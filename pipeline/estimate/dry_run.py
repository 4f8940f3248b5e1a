"""Describes a build before anything is started or written: input, output, rows, bytes, time, disk space, price.

A sample of the input goes through the code of the build (pipeline/estimate/cost.py). This takes seconds for any size of
input.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from pipeline import storage
from pipeline.build import check_paths, list_advice, refuse_few_books
from pipeline.config import PipelineConfig
from pipeline.console import say_at_once
from pipeline.dataset import MANIFEST_NAME
from pipeline.engines import check_engine, choose_workers
from pipeline.estimate.cost import estimate, format_estimate
from pipeline.instances import fewest_documents
from pipeline.output import MARK_NAME, check_writable
from pipeline.settings import ConfigError
from pipeline.sources import list_splits
from pipeline.storage import free_bytes
from pipeline.units import count_of, describe_bytes
from pipeline.vocabulary import given_vocabulary, refuse_lost_letters

_ENOUGH_HELD = 5
"""If this many times the smallest number of held-out documents is expected, chance leaves fewer than the smallest
number in at most 1% of builds."""


def describe_build(
    config: PipelineConfig, *, beam_options: Sequence[str] = (), price: float | None = None
) -> Iterator[str]:
    """Yield lines of text that describe the build. If `price` (of a CPU hour) is given, the last line is the price of
    the build.

    `beam_options` are the options for Beam on the command line. Raises ValueError for every fault that would stop the
    build at its start.
    """
    check_engine(config, beam_options=beam_options)
    workers = choose_workers(config, say=say_at_once)
    check_paths(config)
    splits = list_splits(config.sources)
    total = sum(split.num_bytes for split in splits)
    yield f"input: {count_of(len(splits), 'split')}, {describe_bytes(total)}"
    yield describe_output(config.output)
    if is_finished(config.output):
        return
    refuse_few_books(config, splits=splits)
    given = given_vocabulary(config)
    refuse_lost_letters(config, tokenizer=given, splits=splits)
    for advice in list_advice(config, tokenizer=given):
        yield f"warning: {advice}"
    found = estimate(config, splits=splits, workers=workers)
    yield from advise_on_validation(config, documents=found.documents)
    yield from format_estimate(found)
    yield describe_room(config.output, needed=found.bytes + found.temporary_bytes)
    if price is not None:
        hours = found.cpu_s / 3600
        yield f"price: {hours * price:,.2f} for {hours:,.3g} CPU hours at {price:g}"


def advise_on_validation(config: PipelineConfig, *, documents: float) -> Iterator[str]:
    """Yield a warning if validation_fraction may hold out too few of the documents. Their hashes decide, so only the
    build finds out."""
    fewest, held = fewest_documents(config.next_sentence), config.validation_fraction * documents
    if config.validation_fraction and held < _ENOUGH_HELD * fewest:
        yield (
            f"warning: validation_fraction={config.validation_fraction:g} holds out about {held:.1f} of "
            f"{documents:,.0f} documents, but must hold out at least {fewest}, or the build fails after reading; raise "
            "it, add documents, or set it to 0 to hold out nothing"
        )


def describe_output(output: str) -> str:
    """Return a line that says whether `output` is new or holds a finished or unfinished build. Raises ConfigError if
    the build could not write there."""
    if is_finished(output):
        return f"output: {output}: holds a finished set; the same settings and input leave it unchanged"
    if not storage.is_url(output):
        check_writable(Path(output), key="output")
    names = storage.list_names(output)
    if not names:
        return f"output: {output}: new"
    if MARK_NAME in names:
        return f"output: {output}: holds an unfinished build; the same settings and input resume it"
    raise ConfigError(f"output={output}: contains files that no build has written; choose an empty or new folder")


def is_finished(output: str) -> bool:
    """Whether `output` has a manifest, which only a finished data set has."""
    return storage.find_file(storage.join(output, MANIFEST_NAME)) is not None


def describe_room(output: str, *, needed: float) -> str:
    """Return a line with `needed` (the bytes that the build writes at most) and the free bytes on the disk of `output`.

    Raises ConfigError if fewer bytes are free than needed. For an object store, free bytes are unknown and left out.
    """
    if storage.is_url(output):
        return f"room: {describe_bytes(needed)} at most"
    free = free_bytes(Path(output))
    if free < needed:
        raise ConfigError(
            f"output={output}: the build needs {describe_bytes(needed)} at most and {describe_bytes(free)} are free; "
            f"free space, or choose another output"
        )
    return f"room: {describe_bytes(needed)} at most, {describe_bytes(free)} are free"
