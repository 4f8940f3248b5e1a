"""The Beam graph that counts words and keeps the most frequent ones.

A worker counts the words of a group of splits (ranges of input files) at a time, because counting a thousand small
files one by one takes twice as long. A hash of a word decides to which of a few parts it belongs, so that several
workers can add up the counts, each for its own parts. For each part, a worker that counts writes a run (sorted counts).
Then the runs of each part are merged.

Only file names and positions in files cross the shuffle. A worker needs memory for a WordCounter and for the words that
are kept. Counts are exact, so the result is the same for any engine, number of workers and attempt.
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
from pipeline.tokenizer import DOTTED_I, DOTTED_I_LANGUAGES, word_rules
from pipeline.vocabulary.letters import has_dotted_i
from pipeline.vocabulary.word_counts import (
    JOINT_SIDES,
    NUM_PARTS,
    Run,
    WordCounter,
    join_most_common,
    write_most_common,
)

WORDS_NAME = "words.tsv"
GROUP_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class WordContext:
    """The settings and folders that every worker needs to count words."""

    config: PipelineConfig
    folder: str
    """The folder for all files that are written, which all workers must be able to reach."""
    limit: int
    """How many different words to keep. The most frequent words are kept."""
    notes: str = ""
    """A folder for progress counts and failures. If empty, they go to `folder`."""

    @property
    def results_folder(self) -> str:
        """The folder to which workers write how far they are and what failed."""
        return self.notes or self.folder


def group_splits(splits: Sequence[Split]) -> list[tuple[Split, ...]]:
    """Return groups of neighbouring splits. Each group has at least GROUP_BYTES of text, except perhaps the last
    group."""
    groups: list[tuple[Split, ...]] = []
    held: list[Split] = []
    for split in splits:
        held.append(split)
        if sum(each.text_bytes for each in held) >= GROUP_BYTES:
            groups.append(tuple(held))
            held = []
    return [*groups, tuple(held)] if held else groups


def build_word_graph(pipeline: beam.Pipeline, *, groups: Sequence[tuple[Split, ...]], context: WordContext) -> None:
    """Add to `pipeline` the steps that count words. The last step writes the result to WORDS_NAME in the context's
    folder."""
    runs = (
        pipeline
        | "List groups" >> beam.Create(groups, reshuffle=False)
        | "Spread groups" >> beam.Reshuffle()
        | "Read, clean, count" >> beam.ParDo(CountSplits(context))
        | "Gather runs" >> beam.combiners.ToList()
    )
    _ = (
        pipeline
        | "List parts" >> beam.Create(range(NUM_PARTS), reshuffle=False)
        | "Spread parts" >> beam.Reshuffle()
        | "Merge runs" >> beam.ParDo(MergeRuns(context), runs=beam.pvalue.AsSingleton(runs))
        | "Gather parts" >> beam.CombineGlobally(join_paths)
        | "Leave the words" >> beam.ParDo(LeaveWords(context))
    )


class _Step(beam.DoFn):
    def __init__(self, context: WordContext) -> None:
        self.context = context


class CountSplits(_Step):
    """Beam step: counts the words of a group of splits (ranges of input files). A hash of a word decides to which part
    it belongs, so that each part can be added up separately. The step yields a list with a run (a file range with
    sorted counts) for each part that has words."""

    def process(self, splits: tuple[Split, ...]) -> Iterator[list[Run]]:
        with report_failure(self.context.results_folder):
            yield count_splits(splits, context=self.context)


class MergeRuns(_Step):
    """Beam step: merges the runs (sorted files of word counts) of one part (some of the words, chosen by hash).

    Yields a list with the path of one new file, which has the most frequent words of the part and their counts. If the
    part has no words, yields nothing.
    """

    def process(self, part: int, runs: list[list[Run]]) -> Iterator[list[str]]:
        with report_failure(self.context.results_folder):
            own = [run for each in runs for run in each if run.part == part]
            if own:
                yield [write_most_common(own, folder=self.context.folder, limit=self.context.limit)]


class LeaveWords(_Step):
    """Beam step: chooses the most frequent of all words from the files of MergeRuns, and writes them with their counts
    to the file WORDS_NAME. Because Beam steps cannot return values to the main process, the main process reads this
    file."""

    def process(self, paths: list[str]) -> None:
        with report_failure(self.context.results_folder):
            joined = join_most_common(paths, folder=self.context.folder, limit=self.context.limit)
            storage.write_bytes(storage.join(self.context.folder, WORDS_NAME), storage.read_bytes(joined))


def count_splits(splits: Sequence[Split], *, context: WordContext) -> list[Run]:
    """Count the words of the documents in `splits`, and return the runs (ranges of files) that hold the counts.

    Only documents that pass the filters of a build with the same settings are counted. A build also removes duplicate
    documents, but their words are counted here.
    """
    settings = context.config.vocabulary
    normalizer, splitter = word_rules(settings, dotted_i=has_dotted_i(context.config))
    lowers_i = settings.lowercase and not has_dotted_i(context.config)
    name = Path(splits[0].path).name[:40]
    with (
        WorkReport(context.results_folder, stage="read") as report,
        WordCounter(
            normalizer=normalizer,
            splitter=splitter,
            folder=context.folder,
            name=name,
            joint=JOINT_SIDES[settings.algorithm],
        ) as counter,
    ):
        num_bytes = sum(split.num_bytes for split in splits)
        report.add(of_bytes=num_bytes, of_text=sum(split.text_bytes for split in splits))
        for split in splits:
            source = context.config.sources[split.source]
            documents = DocumentFilter(context.config.cleaning, source=source)
            for document in read_documents(split, source):
                if isinstance(document, Document) and documents.reject(document) is None:
                    sentences: Iterable[str] = document.sentences
                    if lowers_i and source.language in DOTTED_I_LANGUAGES:
                        sentences = [sentence.translate(DOTTED_I) for sentence in sentences]
                    dictionary = source.language if context.config.has_dictionary(source.language) else ""
                    counter.add(sentences, dictionary=dictionary)
                    report.add(documents=1, characters=sum(map(len, document.sentences)))
        report.add(bytes=num_bytes)
        return counter.finish()
