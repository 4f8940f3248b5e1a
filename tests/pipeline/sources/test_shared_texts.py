"""Tokenization equal to the library's on every file of ../shared/data, whatever it holds, by a sample of its lines.

Markup, JSON and tables are text like any other here: odd characters are what they are read for.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import tarfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer

from pipeline.documents import Document
from pipeline.tokenizer.tokenizer import WordTokenizer

LINES = 24
"""Of each file (of each member of an archive a few), evenly spread."""
LONGEST = 1_500
_OPEN = {".bz2": bz2.open, ".gz": gzip.open, ".xz": lzma.open}


def read_lines(path: Path) -> Iterator[list[str]]:
    """The lines of each text in a file."""
    if ".tar" in path.name:
        with tarfile.open(path) as archive:
            for member in archive:
                if member.isfile():
                    yield cut_lines(archive.extractfile(member).read())  # type: ignore[union-attr]
    elif path.suffix == ".parquet":
        table = pq.read_table(path)
        for name in table.column_names:
            if table.schema.field(name).type == "string":
                yield cut_lines("\n".join(map(str, table[name].to_pylist())).encode())
    elif path.suffix in _OPEN:
        with _OPEN[path.suffix](path, "rb") as file:
            yield cut_lines(file.read())  # type: ignore[arg-type]
    else:
        yield cut_lines(path.read_bytes())


def cut_lines(data: bytes) -> list[str]:
    return data.decode("utf-8", "replace").split("\n")


def sample(lines: list[str], *, count: int) -> list[str]:
    """Some lines, evenly spread, with something on them; of long ones a part from the middle."""
    full = [line for line in lines if line.strip()]
    chosen = [full[place] for place in np.unique(np.linspace(0, len(full) - 1, count).astype(int))] if full else []
    return [line[max(0, len(line) // 2 - LONGEST) : len(line) // 2 + LONGEST // 2] for line in chosen]


@pytest.fixture(scope="module")
def texts(shared_data: Path) -> dict[str, list[str]]:
    """A sample of the lines of every file."""
    found: dict[str, list[str]] = {}
    for path in sorted(path for path in shared_data.rglob("*") if path.is_file()):
        parts = list(read_lines(path))
        each = max(2, LINES // max(1, len(parts)))
        found[path.relative_to(shared_data).as_posix()] = [
            line for part in parts for line in sample(part, count=each if len(parts) > 1 else LINES)
        ]
    return found


@pytest.mark.parametrize("name", ["bert-base-uncased", "bert-base-multilingual-cased"])
def test_every_text_is_tokenized_as_by_the_library(shared_data: Path, texts: dict[str, list[str]], name: str) -> None:
    assert len(texts) > 180
    tokenizer = WordTokenizer.from_path(shared_data / "bert" / f"{name}-vocab.txt", lowercase="uncased" in name)
    library = Tokenizer.from_str(tokenizer.backend.to_str())
    library.encode_special_tokens = True
    tokens = 0
    for file, lines in texts.items():
        encodings = [library.encode(line, add_special_tokens=False) for line in lines]
        found = tokenizer.tokenize(Document(file, tuple(lines)))
        assert found.ids.tolist() == [index for encoding in encodings for index in encoding.ids], file
        assert found.sentence_lengths.tolist() == [len(encoding.ids) for encoding in encodings if encoding.ids], file
        starts = [word != before for each in encodings for before, word in pairwise([None, *each.word_ids])]
        assert found.word_starts.tolist() == starts, file
        tokens += found.ids.size
    assert tokens > 250_000
