"""Reads plain text: a sentence per line, a blank line between documents (the input format of the published BERT).

A text without blank lines (the original BookCorpus) is cut into documents of rows_per_document lines. One document is
in memory at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pipeline.cleaning import normalize_line
from pipeline.config import SourceConfig
from pipeline.documents import Document, Drop, Split, shown_name
from pipeline.sources.assembly import MOST_CHARACTERS, assemble
from pipeline.sources.decoding import AUTO
from pipeline.sources.groups import Stretches
from pipeline.sources.textlines import after_blank_line, next_line, read_lines, split_lines


def split_text(path: str | Path, *, source: int, config: SourceConfig, split_bytes: int | None = None) -> list[Split]:
    """Return the splits of a file, which are ranges of bytes that end after blank lines, or after any line if
    rows_per_document is set. `source` is the source's index in the config."""
    boundary = after_blank_line if config.rows_per_document is None else next_line
    return split_lines(path, source=source, boundary=boundary, split_bytes=split_bytes)


def read_text(split: Split, *, source: SourceConfig) -> Iterator[Document | Drop]:
    """Yield the documents of a split, and a Drop (a counted omission) for each sentence that is left out. A document
    ends at a blank line, at the end of the file, or after rows_per_document lines.

    Raises ValueError for a document of more than MOST_CHARACTERS.
    """
    encoding = "utf-8" if source.encoding == AUTO else source.encoding
    place = shown_name(split.path) + (f" after byte {split.start}" if split.start else "")
    sentences: list[str] = []
    first = characters = documents = 0
    stretches = Stretches() if source.rows_per_document is not None else None
    for number, text in read_lines(split, encoding=encoding):
        # Documents of other splits are only counted. Cleaning keeps letters and digits, so a line with one of them is
        # not blank.
        line = text[:1] if not split.takes(documents) and text[:1].isalnum() else normalize_line(text)
        if line:
            if stretches is not None:
                stretches.add(text)
            first = first if sentences else number
            sentences.append(line)
            characters += len(line)
            if characters > MOST_CHARACTERS:
                raise ValueError(
                    f"{split.path}, line {first}: the document that begins here does not end within "
                    f"{MOST_CHARACTERS} characters; put a blank line between documents, or set rows_per_document"
                )
        if sentences and (not line or len(sentences) == source.rows_per_document):
            group = b"" if stretches is None else stretches.end_document()
            if split.takes(documents):
                yield from assemble(f"{place}, line {first}", sentences, group=group)
            sentences, characters = [], 0
            documents += 1
    if sentences and split.takes(documents):
        group = b"" if stretches is None else stretches.end_document()
        yield from assemble(f"{place}, line {first}", sentences, group=group)
