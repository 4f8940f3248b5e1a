"""A data set with Wikipedia's lengths out of any books: their sentences, cut into documents as long as articles are.

Usage: python -m bench.lengths VOCAB.txt OUT BOOKS...   (BOOKS: files or an archive, as a source of kind books)
Most of Wikipedia's articles are shorter than a row of 512 tokens, so that its rows hold 256 on average and under a
quarter are full; novels fill nearly every row. Document lengths are drawn, with a fixed seed, as the constants say.
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
"""The logarithm of a document's words is normal: rows of 248 tokens on average, a fifth of them full."""
MOST_WORDS = 6_000_000
"""Enough for 200 steps of 32,768 tokens; what the books hold more is left."""


def main(arguments: Sequence[str]) -> int:
    """Cut and build; returns the exit status of the build."""
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
    """Build an uncased set of rows up to 512 tokens; returns the exit status."""
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
    """The books' sentences in order, in documents of drawn lengths."""
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
