"""Counts the words of a corpus exactly, in bounded memory.

Words are counted in a dict of bounded size. A hash of a word decides to which of NUM_PARTS parts it belongs, so that
each part can be added up separately. When the dict is full, its counts are written to a file as sorted lists, one for
each part (runs). Merging all runs of a part gives the counts of the part's words. The counts are the same for any
number of workers, order of documents and size of the dict.
"""

from __future__ import annotations

import heapq
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias
from zlib import crc32

from tokenizers import decoders, pre_tokenizers

from pipeline import storage
from pipeline.tokenizer import Dictionary

MAX_WORD_CHARACTERS = 100
"""Longer words are not counted; WordPiece maps them to [UNK]."""
JOINT = "\x1f"
"""Marks a word within a clause without spaces, at the side where its pieces must show that the clause goes on: in front
for WordPiece (##), behind for BPE (no end of a word). No text has this control character after cleaning."""
TOO_LONG = JOINT
"""The entry that counts the characters of words that are too long to be counted."""
NUM_PARTS = 32
_MAX_ENTRIES = 500_000
_MAX_OPEN_RUNS = 64

JointSide: TypeAlias = Literal["before", "after", "none"]
_FROM_BYTES = decoders.ByteLevel()
_TO_BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
JOINT_SIDES: dict[str, JointSide] = {"wordpiece": "before", "bpe": "after", "byte_level_bpe": "none"}
"""At which side of a word JOINT is put, by algorithm of the vocabulary. Words in bytes need no such mark."""

Entry = tuple[bytes, int]
"""A word in UTF-8 and its count. UTF-8 bytes sort in the order of code points."""


class Run(NamedTuple):
    """A range of a file with sorted word counts, one word per line: the word, a tab and the count. The range begins at
    byte `start` and ends before byte `stop`. A hash of a word decides to which of NUM_PARTS parts it belongs, so that
    each part can be added up separately. All words of the run belong to part number `part`."""

    path: str
    start: int
    stop: int
    part: int = 0


class WordCounter:
    """Counts the words in sentences. A tokenizer's normalizer and pre-tokenizer (`splitter`) decide what a word is.

    The counts go to new files in `folder`, as runs (sorted counts). If the with block of the counter raises an error,
    these files are removed. File names are `name` plus a random part, so that two attempts never write the same file.
    """

    def __init__(
        self,
        *,
        normalizer: Any | None,
        splitter: Any,
        folder: str | Path,
        name: str,
        joint: JointSide = "none",
        max_entries: int = _MAX_ENTRIES,
    ) -> None:
        """JOINT is a character that marks a word if the text goes on there without a space. `joint` says where it is
        put: "before" the word, "after" it, or nowhere ("none")."""
        self._joint = joint
        self._normalizer, self._splitter = normalizer, splitter
        self._folder, self._name, self._max_entries = str(folder), name, max_entries
        self._chunks: dict[str, Counter[str]] = {}
        """Text between spaces, by language of the dictionary; "" without a dictionary."""
        self._dictionaries: dict[str, Dictionary] = {}
        self._words: Counter[str] = Counter()
        self._runs: list[Run] = []
        self._files: list[str] = []

    def __enter__(self) -> WordCounter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            remove_files(self._files)

    def add(self, sentences: Iterable[str], *, dictionary: str = "") -> None:
        """Count the words of sentences. A space always ends a word, even if the pre-tokenizer would go on.

        `dictionary` is a language, such as th, whose ICU dictionary finds words in scripts without spaces. If it is "",
        no dictionary is used.
        """
        chunks = self._chunks.setdefault(dictionary, Counter())
        for sentence in sentences:
            chunks.update(sentence.split(" "))
        if sum(map(len, self._chunks.values())) > self._max_entries:
            self._split_chunks()

    def finish(self) -> list[Run]:
        """Write the remaining counts, and return all runs (ranges of files) that hold the counts."""
        self._split_chunks()
        if self._words:
            self._write_runs()
        return self._runs

    def _split_chunks(self) -> None:
        for language, chunks in self._chunks.items():
            cut = self._cutter(language)
            for chunk, count in chunks.items():
                text = chunk if self._normalizer is None else self._normalizer.normalize_str(chunk)
                for word in cut([word for word, _ in self._splitter.pre_tokenize_str(text)]):
                    if len(word) <= MAX_WORD_CHARACTERS:
                        self._words[word] += count
                    else:
                        self._words[TOO_LONG] += count * len(word)
                if len(self._words) > self._max_entries:
                    self._write_runs()
        self._chunks.clear()

    def _cutter(self, language: str) -> Callable[[list[str]], list[str]]:
        """Return a function that cuts words where ICU's dictionary of `language` finds the start of another word. In
        the text, the words that the function gets follow each other without a space. If `language` is empty, the
        function changes nothing."""
        if not language:
            return lambda words: words
        dictionary = self._dictionaries.setdefault(language, Dictionary(language))
        if self._joint == "none":
            return partial(_cut_bytes, dictionary=dictionary)
        front, behind = JOINT * (self._joint == "before"), JOINT * (self._joint == "after")

        def cut(words: list[str]) -> list[str]:
            if all(map(str.isascii, words)):
                return words
            parts = dictionary.cut(words)
            return [
                front * (place > 0) + part + behind * (place < len(found) - 1)
                for found in parts
                for place, part in enumerate(found)
            ]

        return cut

    def _write_runs(self) -> None:
        parts: list[list[Entry]] = [[] for _ in range(NUM_PARTS)]
        for word, count in self._words.items():
            data = word.encode("utf-8")
            parts[crc32(data) % NUM_PARTS].append((data, count))
        self._words.clear()
        path = storage.join(self._folder, f"{self._name}-{uuid.uuid4().hex[:16]}.tsv")
        self._files.append(path)
        with storage.open_output(path, in_place=True) as file:
            for number, entries in enumerate(parts):
                if entries:
                    start = file.tell()
                    file.writelines(map(_line, sorted(entries)))
                    self._runs.append(Run(path, start, file.tell(), number))


def _cut_bytes(words: list[str], *, dictionary: Dictionary) -> list[str]:
    """Cut words where ICU's dictionary of a language finds the start of another word, and return the pieces. Words and
    pieces are spelled in bytes, like in byte-level BPE. A space in front of a word stays with the word's first
    piece."""
    cut: list[str] = []
    for word, parts in zip(words, dictionary.cut([_FROM_BYTES.decode([word]) for word in words]), strict=True):
        if parts[0] == " " and len(parts) > 1:
            parts[:2] = [" " + parts[1]]
        cut += [word] if len(parts) == 1 else [_TO_BYTES.pre_tokenize_str(part)[0][0] for part in parts]
    return cut


def most_common(runs: Sequence[Run], *, folder: str | Path, limit: int) -> dict[str, int]:
    """Return {word: count} for the `limit` most frequent words, most frequent first. Equally frequent words are in code
    point order. The counts come from `runs` (files with sorted counts), and are added up over all runs.

    At most 64 runs are merged at a time; intermediate files go to `folder`. Memory holds only the words returned.
    """
    return {word.decode("utf-8"): count for word, count in _most_common(runs, folder=folder, limit=limit)}


def write_most_common(runs: Sequence[Run], *, folder: str | Path, limit: int) -> str:
    """Write the `limit` most frequent words and their counts to a new file in `folder`, and return the file's path. The
    counts come from `runs` (files with sorted counts), and are added up over all runs. If an error occurs, the file is
    removed."""
    return _write_new(folder, _most_common(runs, folder=folder, limit=limit), name="common")


def join_most_common(paths: Iterable[str], *, folder: str | Path, limit: int) -> str:
    """Write the `limit` most frequent words of several files to a new file in `folder`, and return the new file's path.

    The files at `paths` were written by write_most_common. No word may be in two of them, because the counts are not
    added up.
    """
    ranked = heapq.merge(*(_read(_whole(path)) for path in paths), key=_rank)
    return _write_new(folder, islice(ranked, limit), name="words")


def read_words(path: str | Path) -> dict[str, int]:
    """Return {word: count} from a file that write_most_common or join_most_common wrote, in the file's order."""
    return {word.decode("utf-8"): count for word, count in _read(_whole(path))}


def remove_files(paths: Iterable[str]) -> None:
    """Remove files. Ignore missing files and failures."""
    for path in paths:
        with suppress(OSError):
            storage.delete(path)


def _most_common(runs: Sequence[Run], *, folder: str | Path, limit: int) -> list[Entry]:
    waiting = sorted(runs)
    made: list[str] = []
    try:
        while len(waiting) > _MAX_OPEN_RUNS:
            made.append(_write_new(folder, _merge(waiting[:_MAX_OPEN_RUNS]), name="merged"))
            waiting = [*waiting[_MAX_OPEN_RUNS:], _whole(made[-1])]
        return heapq.nsmallest(limit, _merge(waiting), key=_rank)
    finally:
        remove_files(made)


def _merge(runs: Iterable[Run]) -> Iterator[Entry]:
    for word, group in groupby(heapq.merge(*map(_read, runs)), key=itemgetter(0)):
        yield word, sum(count for _, count in group)


def _rank(entry: Entry) -> tuple[int, bytes]:
    return -entry[1], entry[0]


def _line(entry: Entry) -> bytes:
    return b"%b\t%d\n" % entry


def _whole(path: str | Path) -> Run:
    return Run(str(path), 0, storage.size_of(path))


def _read(run: Run) -> Iterator[Entry]:
    left = run.stop - run.start
    with storage.open_input(run.path) as file:
        file.seek(run.start)
        while left > 0:
            line = file.readline()
            if not line.endswith(b"\n"):
                raise ValueError(f"{run.path}: the file ends before byte {run.stop}; run the command again")
            left -= len(line)
            word, _, count = line.rpartition(b"\t")
            yield word, int(count)


def _write_new(folder: str | Path, entries: Iterable[Entry], *, name: str) -> str:
    path = storage.join(folder, f"{name}-{uuid.uuid4().hex[:16]}.tsv")
    with storage.open_output(path, in_place=True) as file:
        file.writelines(map(_line, entries))
    return path
