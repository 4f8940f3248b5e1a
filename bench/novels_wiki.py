"""Builds a data set of novels and Wikipedia articles with rows of up to 512 tokens, small enough to send to a GPU host.

Usage: python -m bench.novels_wiki VOCAB.txt OUT BOOKS DUMP [SHARE [FRACTION]]

SHARE is the share of the chapters to use, 0 to 1. With the default, LitBank's 100 novels and gensim's extract of the
English dump make 11 million tokens, 22 MB. FRACTION is the share of the novels and articles that is held out, chosen by
hash.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from bench.lengths import build

FRACTION, MASK_SETS, SHARE = 0.02, 2, 0.5


def main(arguments: Sequence[str]) -> int:
    """Build the data set, and return the exit status of the build."""
    if not 4 <= len(arguments) <= 6:
        raise SystemExit("usage: python -m bench.novels_wiki VOCAB.txt OUT BOOKS DUMP [SHARE [FRACTION]]")
    vocabulary, out, books, dump = (str(Path(path).resolve()) for path in arguments[:4])
    share, fraction = (*map(float, arguments[4:]), *(SHARE, FRACTION)[len(arguments) - 4 :])
    novels = {"kind": "books", "path": books, "unit": "chapter", "weight": share}
    articles = {"kind": "wikipedia", "path": dump}
    settings = {"masks_per_pair": MASK_SETS, "validation_fraction": fraction}
    return build([novels, articles], vocabulary=vocabulary, out=out, **settings)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
