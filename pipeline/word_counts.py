"""How often each word stands in the corpus: exact counts in bounded memory.

Words are counted in a dict of bounded size; when it is full it becomes a sorted file (a run), and runs are summed by
merging. So the counts are the same for any number of workers, any order of documents and any bound.
"""

from __future__ import annotations

import heapq
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

MAX_WORD_CHARACTERS = 100
"""Longer words are no words (and [UNK] to WordPiece); they are left out."""
_MAX_ENTRIES = 500_000
_MAX_OPEN_RUNS = 64


class WordCounter:
    """Counts the words of sentences as a tokenizer's normalizer and pre-tokenizer make them.

    Runs go to `folder` as `name`-N.tsv (word, tab, count; sorted by code points).
    """

    def __init__(
        self, *, normalizer: Any | None, splitter: Any, folder: Path, name: str, max_entries: int = _MAX_ENTRIES
    ) -> None:
        self._normalizer, self._splitter = normalizer, splitter
        self._folder, self._name, self._max_entries = folder, name, max_entries
        self._chunks: Counter[str] = Counter()
        self._words: Counter[str] = Counter()
        self.runs: list[Path] = []
        """Files written so far."""

    def add(self, sentences: Iterable[str]) -> None:
        """Count the words of these sentences. Words end at spaces, whatever the pre-tokenizer."""
        for sentence in sentences:
            self._chunks.update(sentence.split(" "))
        if len(self._chunks) > self._max_entries:
            self._split_chunks()

    def finish(self) -> list[Path]:
        """Write what is left and return every run."""
        self._split_chunks()
        if self._words:
            self._write_run()
        return self.runs

    def _split_chunks(self) -> None:
        for chunk, count in self._chunks.items():
            text = chunk if self._normalizer is None else self._normalizer.normalize_str(chunk)
            for word, _ in self._splitter.pre_tokenize_str(text):
                if len(word) <= MAX_WORD_CHARACTERS:
                    self._words[word] += count
            if len(self._words) > self._max_entries:
                self._write_run()
        self._chunks.clear()

    def _write_run(self) -> None:
        path = self._folder / f"{self._name}-{len(self.runs)}.tsv"
        _write(path, sorted(self._words.items()))
        self.runs.append(path)
        self._words.clear()


def most_common(runs: Sequence[Path], *, folder: Path, limit: int) -> dict[str, int]:
    """The `limit` most frequent words of all runs with their counts; equal counts in code point order.

    Merges at most 64 files at a time, over new runs in `folder`. Memory: the words returned.
    """
    waiting = sorted(runs)
    made = 0
    while len(waiting) > _MAX_OPEN_RUNS:
        merged = folder / f"merged-{made}.tsv"
        _write(merged, _merge(waiting[:_MAX_OPEN_RUNS]))
        waiting = [*waiting[_MAX_OPEN_RUNS:], merged]
        made += 1
    return dict(heapq.nsmallest(limit, _merge(waiting), key=lambda entry: (-entry[1], entry[0])))


def _merge(paths: Iterable[Path]) -> Iterator[tuple[str, int]]:
    entries = heapq.merge(*map(_read, paths), key=itemgetter(0))
    for word, group in groupby(entries, key=itemgetter(0)):
        yield word, sum(count for _, count in group)


def _read(path: Path) -> Iterator[tuple[str, int]]:
    with open(path, encoding="utf-8", newline="\n") as file:
        for line in file:
            word, _, count = line.rpartition("\t")
            yield word, int(count)


def _write(path: Path, entries: Iterable[tuple[str, int]]) -> None:
    partial = path.with_suffix(f".{os.getpid()}")
    with open(partial, "w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{word}\t{count}\n" for word, count in entries)
    os.replace(partial, path)
