"""Measures how well the ends of sentences are found, against paragraphs marked by hand (docs/sentence-ends.md).

The marks are in tests/pipeline/cleaning/sentence_marks, and the texts are in shared/data beside the checkout. This
project's splitting is compared with the library sentencex alone, and with pysbd and ICU (PyICU) if they are installed.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import lzma
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import sentencex

from pipeline.cleaning import normalize_text, split_sentences
from pipeline.sources.bytestreams import read_pieces
from pipeline.sources.dumpxml import DumpReader
from pipeline.sources.wikipedia import names_of_site
from pipeline.wikitext import DEFAULT_BUDGET, WikiNames, wikitext_to_text

REPOSITORY = Path(__file__).resolve().parents[1]
MARKS = REPOSITORY / "tests" / "pipeline" / "cleaning" / "sentence_marks"
SHARED_DATA = REPOSITORY.parent / "shared" / "data"
Splitter = Callable[[str, str], Iterable[str]]
"""Splits a paragraph (the first argument) in a language (a code, the second) into sentences. The sentences must keep
all letters of the paragraph."""


@dataclass(frozen=True, slots=True)
class MarkedParagraph:
    """A paragraph of the file `file`, marked by hand.

    `ends` holds the offsets at which its sentences end, except for the last sentence. `undecided` holds offsets that do
    not count, because it is not clear whether a sentence ends there. `digest` identifies the paragraph's text.
    """

    sample: int
    file: str
    digest: str
    ends: frozenset[int]
    undecided: frozenset[int]


@dataclass(frozen=True, slots=True)
class Score:
    """How many ends of sentences a splitter found rightly, how many it found wrongly, and how many it missed."""

    right: int
    wrong: int
    missed: int

    @property
    def precision(self) -> float:
        """The share of right ends among the ends found; 1 if none was found."""
        return self.right / max(1, self.right + self.wrong) if self.right + self.wrong else 1.0

    @property
    def recall(self) -> float:
        """The share of the marked ends that were found."""
        return self.right / max(1, self.right + self.missed)


def read_marks(language: str) -> list[MarkedParagraph]:
    """Return the paragraphs of a language that were marked by hand."""
    paragraphs: list[MarkedParagraph] = []
    for line in (MARKS / f"{language}.tsv").read_text(encoding="utf-8").splitlines():
        sample, file, digest, ends, undecided = line.split("\t")
        offsets = [frozenset(map(int, field.split())) for field in (ends, undecided)]
        paragraphs.append(MarkedParagraph(int(sample), file, digest, *offsets))
    return paragraphs


@cache
def find_paragraphs(path: Path, *, language: str) -> dict[str, str]:
    """Return {hash of the paragraph: paragraph} for the cleaned paragraphs of a file.

    The file is a Wikipedia dump, or a question-answering data set in JSON, of which only the contexts are used.
    """
    is_dump = ".json" not in path.suffixes
    texts = _texts_of_dump(path, language=language) if is_dump else _contexts(path)
    lines = (" ".join(line.split()) for text in texts for line in normalize_text(text).split("\n"))
    return {hashlib.sha256(line.encode()).hexdigest()[:16]: line for line in lines if line}


def _texts_of_dump(path: Path, *, language: str) -> Iterator[str]:
    reader = DumpReader(str(path), most_characters=DEFAULT_BUDGET.num_bytes, ends_inside=True)
    names: WikiNames | None = None
    for page in reader.read(read_pieces(str(path))):
        if names is None:
            names = names_of_site(reader.site, language=language)
        if page.namespace in (0, None) and not page.is_redirect and not page.over_budget:
            yield wikitext_to_text(page.text, names=names, language=language, title=page.title).text


def _contexts(path: Path) -> Iterator[str]:
    content = path.read_bytes()
    for article in json.loads(lzma.decompress(content) if path.suffix == ".xz" else content)["data"]:
        for paragraph in article["paragraphs"]:
            yield paragraph["context"]


def score(split: Splitter, paragraphs: Iterable[tuple[MarkedParagraph, str]], *, language: str) -> Score:
    """Split each paragraph with `split`, and compare the ends of the sentences with the marked ends."""
    right = wrong = missed = 0
    for marked, text in paragraphs:
        found = ends_of(split(text, language), text) - marked.undecided
        right += len(found & marked.ends)
        wrong += len(found - marked.ends)
        missed += len(marked.ends - found)
    return Score(right, wrong, missed)


def ends_of(sentences: Iterable[str], text: str) -> frozenset[int]:
    """Return the offsets in `text` at which its sentences end, except for the last sentence.

    Raises ValueError if the sentences have letters that `text` does not have.
    """
    ends: list[int] = []
    position = 0
    for sentence in sentences:
        for letter in "".join(sentence.split()):
            position = text.index(letter, position) + 1
        ends.append(position)
    return frozenset(ends) - {0, len(text.rstrip())}


def split_by_sentencex(text: str, language: str) -> list[str]:
    """Split a text with the library sentencex alone."""
    sentences: list[str] = sentencex.segment(language, text)
    return sentences


def _split_here(text: str, language: str) -> list[str]:
    return split_sentences(text, language=language)


def _split_by_pysbd(text: str, language: str) -> list[str]:
    pysbd: Any = importlib.import_module("pysbd")
    if language not in pysbd.languages.LANGUAGE_CODES:
        return []
    sentences: list[str] = pysbd.Segmenter(language=language, clean=False).segment(text)
    return sentences


def _split_by_icu(text: str, language: str) -> list[str]:
    icu: Any = importlib.import_module("icu")
    breaks = icu.BreakIterator.createSentenceInstance(icu.Locale(language))
    units = text.encode("utf-16-le")
    breaks.setText(text)
    ends = [0, *breaks]
    return [units[2 * a : 2 * b].decode("utf-16-le") for a, b in pairwise(ends)]


SPLITTERS: dict[str, Splitter] = {
    "here": _split_here,
    "sentencex": split_by_sentencex,
    "pysbd": _split_by_pysbd,
    "icu": _split_by_icu,
}


def main() -> None:
    """Print a table with a row for each language: how many ends are marked, and precision and recall of each
    splitter."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=[SHARED_DATA], nargs="+", help="folders like shared/data")
    parser.add_argument("--sample", type=int, default=1, choices=(1, 2))
    options = parser.parse_args()
    splitters = {name: split for name, split in SPLITTERS.items() if name in ("here", "sentencex") or _installed(name)}
    print("| language | paragraphs | ends |", " | ".join(splitters), "|")
    for file in sorted(MARKS.glob("*.tsv")):
        language = file.stem
        found: list[tuple[MarkedParagraph, str]] = []
        for marked in read_marks(language):
            paths = [folder / marked.file for folder in options.data if (folder / marked.file).is_file()]
            text = find_paragraphs(paths[0], language=language).get(marked.digest) if paths else None
            if text is not None and marked.sample == options.sample:
                found.append((marked, text))
        if not found:
            continue
        cells: list[str] = []
        for name, split in splitters.items():
            if name == "pysbd" and not split(found[0][1], language):
                cells.append("-")
                continue
            result = score(split, found, language=language)
            cells.append(f"{100 * result.precision:.1f} / {100 * result.recall:.1f}")
        print(
            "|",
            language,
            "|",
            len(found),
            "|",
            sum(len(marked.ends) for marked, _ in found),
            "|",
            " | ".join(cells),
            "|",
        )


def _installed(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True


if __name__ == "__main__":
    main()
