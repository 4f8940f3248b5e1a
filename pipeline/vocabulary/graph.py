"""The Beam graph that counts words: counts splits into run files, merges each part, keeps the most frequent words.

An element is a group of splits: counting a thousand small files one by one takes twice the time.

Only names and places of files cross the shuffle; memory is WordCounter's plus the words kept. Counts are exact, so the
result is the same for any engine, number of workers and attempt.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import apache_beam as beam

from pipeline import storage
from pipeline.cleaning import DocumentFilter
from pipeline.config import PipelineConfig
from pipeline.documents import Document, Split
from pipeline.runtime import WorkReport, report_failure
from pipeline.sources import read_documents
from pipeline.tally import join_paths
from pipeline.tokenizer import word_rules
from pipeline.vocabulary.word_counts import Run, WordCounter, join_most_common, write_most_common

WORDS_NAME = "words.tsv"
GROUP_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class WordContext:
    """Settings and folders for every worker."""

    config: PipelineConfig
    folder: str
    """For all files written; must be visible to all workers."""
    limit: int
    """Number of different words kept, the most frequent ones."""
    notes: str = ""
    """Folder for progress counts and failures, if not `folder`."""

    @property
    def exchange(self) -> str:
        """Folder for progress counts and failures."""
        return self.notes or self.folder


def group_splits(splits: Sequence[Split]) -> list[tuple[Split, ...]]:
    """Group neighbouring splits until each group has GROUP_BYTES of text."""
    groups: list[tuple[Split, ...]] = []
    held: list[Split] = []
    for split in splits:
        held.append(split)
        if sum(each.text_bytes for each in held) >= GROUP_BYTES:
            groups.append(tuple(held))
            held = []
    return [*groups, tuple(held)] if held else groups


def build_word_graph(pipeline: beam.Pipeline, *, groups: Sequence[tuple[Split, ...]], context: WordContext) -> None:
    """Add the counting to `pipeline`; it writes its result to WORDS_NAME in the context's folder."""
    _ = (
        pipeline
        | "List groups" >> beam.Create(groups, reshuffle=False)
        | "Spread groups" >> beam.Reshuffle()
        | "Read, clean, count" >> beam.ParDo(CountSplits(context))
        | "Group by part" >> beam.GroupByKey()
        | "Merge runs" >> beam.ParDo(MergeRuns(context))
        | "Gather parts" >> beam.CombineGlobally(join_paths)
        | "Leave the words" >> beam.ParDo(LeaveWords(context))
    )


class _Step(beam.DoFn):
    def __init__(self, context: WordContext) -> None:
        self.context = context


class CountSplits(_Step):
    """Group of splits -> (part, run) for each part of its words."""

    def process(self, splits: tuple[Split, ...]) -> Iterator[tuple[int, Run]]:
        with report_failure(self.context.exchange):
            runs = count_splits(splits, context=self.context)
        for run in runs:
            yield run.part, run


class MergeRuns(_Step):
    """(part, runs) -> path of a file with the part's most frequent words."""

    def process(self, element: tuple[int, Iterable[Run]]) -> Iterator[list[str]]:
        with report_failure(self.context.exchange):
            yield [write_most_common(list(element[1]), folder=self.context.folder, limit=self.context.limit)]


class LeaveWords(_Step):
    """Paths of all parts -> the file WORDS_NAME, since engines cannot return values."""

    def process(self, paths: list[str]) -> None:
        with report_failure(self.context.exchange):
            joined = join_most_common(paths, folder=self.context.folder, limit=self.context.limit)
            storage.write_bytes(storage.join(self.context.folder, WORDS_NAME), storage.read_bytes(joined))


def count_splits(splits: Sequence[Split], *, context: WordContext) -> list[Run]:
    """Count the words of the documents that a build with the same settings would keep, duplicates included."""
    normalizer, splitter = word_rules(context.config.vocabulary)
    name = Path(splits[0].path).name[:40]
    with (
        WorkReport(context.exchange, stage="read") as report,
        WordCounter(normalizer=normalizer, splitter=splitter, folder=context.folder, name=name) as counter,
    ):
        num_bytes = sum(split.num_bytes for split in splits)
        report.add(of_bytes=num_bytes, of_text=sum(split.text_bytes for split in splits))
        for split in splits:
            source = context.config.sources[split.source]
            documents = DocumentFilter(context.config.cleaning, source=source)
            for document in read_documents(split, source):
                if isinstance(document, Document) and documents.reject(document) is None:
                    counter.add(document.sentences)
                    report.add(documents=1, characters=sum(map(len, document.sentences)))
        report.add(bytes=num_bytes)
        return counter.finish()
