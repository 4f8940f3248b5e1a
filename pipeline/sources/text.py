"""Plain text: a sentence a line, a blank line between documents (the input format of the published BERT).

A text without blank lines (BookCorpus as it was) is cut every rows_per_document lines; a document is held whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pipeline.cleaning import normalize_line
from pipeline.config import SourceConfig
from pipeline.documents import Document, Drop, Split, shown_name
from pipeline.sources.assembly import assemble
from pipeline.sources.decoding import AUTO
from pipeline.sources.textlines import after_blank_line, next_line, read_lines, split_lines

MOST_CHARACTERS = 256 << 20
"""Of a document."""


def split_text(path: str | Path, *, source: int, config: SourceConfig, split_bytes: int | None = None) -> list[Split]:
    """Ranges of bytes cut after a blank line, so that no document is cut; after any line with rows_per_document."""
    boundary = after_blank_line if config.rows_per_document is None else next_line
    return split_lines(path, source=source, boundary=boundary, split_bytes=split_bytes)


def read_text(split: Split, *, source: SourceConfig) -> Iterator[Document | Drop]:
    """Documents between blank lines; the end of the file ends one too, and so do rows_per_document lines.

    Raises ValueError for a document of more than MOST_CHARACTERS.
    """
    encoding = "utf-8" if source.encoding == AUTO else source.encoding
    place = shown_name(split.path) + (f" after byte {split.start}" if split.start else "")
    sentences: list[str] = []
    first = characters = documents = 0
    for number, text in read_lines(split, encoding=encoding):
        # What another split takes is only counted; no letter or digit vanishes, so that such lines are not blank.
        line = text[:1] if not split.takes(documents) and text[:1].isalnum() else normalize_line(text)
        if line:
            first = first if sentences else number
            sentences.append(line)
            characters += len(line)
            if characters > MOST_CHARACTERS:
                raise ValueError(
                    f"{split.path}, line {first}: no blank line ends the document that begins here within "
                    f"{MOST_CHARACTERS} characters; put one between documents, or set rows_per_document"
                )
        if sentences and (not line or len(sentences) == source.rows_per_document):
            if split.takes(documents):
                yield from assemble(f"{place}, line {first}", sentences)
            sentences, characters = [], 0
            documents += 1
    if sentences and split.takes(documents):
        yield from assemble(f"{place}, line {first}", sentences)
