"""Builds a data set with the lengths of Wikipedia's articles from any books, by cutting the books into short documents.

Usage: python -m bench.lengths VOCAB.txt OUT BOOKS...   (BOOKS: files or an archive, as a source of kind `books`)
Most of Wikipedia's articles are shorter than a row of 512 tokens. So its rows hold 256 tokens on average, and less than
a quarter of them are full. Novels fill nearly every row. The lengths of the documents are drawn with a fixed seed, from
the distribution that the constants below describe.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from pipeline.config import SourceConfig
from pipeline.documents import Document
from pipeline.sources import list_splits, read_documents

ROOT = Path(__file__).resolve().parent.parent
MEDIAN_WORDS, SPREAD = 95.0, 1.45
"""The logarithm of a document's number of words has a normal distribution with this median (of the words) and standard
deviation. With these values, rows have 248 tokens on average, and a fifth of the rows are full."""
MOST_WORDS = 6_000_000
"""Words after which no further book is read. They are enough for 200 steps of 32,768 tokens."""


def main(arguments: Sequence[str]) -> int:
    """Cut the books, build the data set, and return the exit status of the build."""
    if len(arguments) < 3:
        raise SystemExit("usage: python -m bench.lengths VOCAB.txt OUT BOOKS...")
    vocabulary, out, *books = arguments
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        text = Path(folder) / "articles.txt"
        with open(text, "w", encoding="utf-8") as stream:
            for document in cut(books):
                stream.write("\n".join(document) + "\n\n")
        source = {"kind": "text", "path": str(text)}
        return build([source], vocabulary=vocabulary, out=out, validation_fraction=0.01)


def build(sources: Sequence[Mapping[str, Any]], *, vocabulary: str, out: str, **settings: Any) -> int:
    """Build an uncased data set with rows of up to 512 tokens, and return the exit status of the build."""
    config = {
        "sources": [dict(source) for source in sources],
        "vocabulary": {"path": vocabulary, "lowercase": True},
        "output": out,
        "max_seq_length": 512,
        **settings,
    }
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        path = Path(folder) / "set.yaml"
        path.write_text(yaml.safe_dump(config))
        return subprocess.run(
            [sys.executable, "pipeline/run.py", "--config", str(path)], cwd=ROOT, check=False
        ).returncode


def cut(books: Sequence[str]) -> Iterator[list[str]]:
    """Yield the sentences of the books in order, as documents (lists of sentences) of drawn lengths."""
    draw = random.Random(1)
    taken = 0
    sources = [SourceConfig(kind="books", path=path) for path in books]
    for split in list_splits(sources):
        for item in read_documents(split, sources[split.source]):
            if not isinstance(item, Document):
                continue
            document: list[str] = []
            words, limit = 0, draw.lognormvariate(0, SPREAD) * MEDIAN_WORDS
            for sentence in item.sentences:
                document.append(sentence)
                words += sentence.count(" ") + 1
                if words >= limit:
                    yield document
                    taken += words
                    document, words, limit = [], 0, draw.lognormvariate(0, SPREAD) * MEDIAN_WORDS
            if document:
                yield document
            if taken >= MOST_WORDS:
                return


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
