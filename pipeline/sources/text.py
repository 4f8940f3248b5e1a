"""Plain text: a sentence a line, a blank line between documents (the input format of the published BERT)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pipeline.clean import normalize_line
from pipeline.config import SourceConfig
from pipeline.decoding import AUTO
from pipeline.documents import Document, Drop, Split
from pipeline.sources.assembly import assemble
from pipeline.sources.textlines import after_blank_line, read_lines, split_lines


def split_text(path: Path, *, source: int, split_bytes: int | None = None) -> list[Split]:
    """Ranges of bytes cut after a blank line, so that no document is cut."""
    return split_lines(path, source=source, boundary=after_blank_line, split_bytes=split_bytes)


def read_text(split: Split, *, source: SourceConfig) -> Iterator[Document | Drop]:
    """Documents between blank lines; the end of the file ends one too."""
    encoding = "utf-8" if source.encoding == AUTO else source.encoding
    place = Path(split.path).name + (f" after byte {split.start}" if split.start else "")
    sentences: list[str] = []
    first = 0
    for number, text in read_lines(split, encoding=encoding):
        line = normalize_line(text)
        if line:
            first = first if sentences else number
            sentences.append(line)
        elif sentences:
            yield from assemble(f"{place}, line {first}", sentences)
            sentences = []
    if sentences:
        yield from assemble(f"{place}, line {first}", sentences)
