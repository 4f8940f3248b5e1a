"""What one core prepares: each stage of the pipeline, beside the library that it stands on, in the same run.

Usage: python -m bench.pipeline [--repeat N] [BOOK.txt|DUMP.xml.bz2 ...]   (default: the sample corpus in data/sample)
CPU seconds of this process are counted, not wall time; the minimum of N alternating runs is shown.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import mwparserfromhell
import numpy as np
from tokenizers import BertWordPieceTokenizer

from pipeline.config import PipelineConfig, SourceConfig
from pipeline.documents import Document
from pipeline.masking import mask_rows
from pipeline.pairs import make_pairs
from pipeline.rows import assemble_rows
from pipeline.settings import validate
from pipeline.sources import list_splits, read_documents
from pipeline.sources.bytestreams import read_pieces
from pipeline.sources.dumpxml import DumpReader
from pipeline.sources.wikipedia import names_of_site, read_site
from pipeline.wikitext import DEFAULT_BUDGET, wikitext_to_text
from pipeline.wikitext_names import WikiNames
from pipeline.wordpieces import TokenizedDocument, WordTokenizer

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "bench" / "out"


def main(arguments: Sequence[str]) -> int:
    repeat = 3
    files = list(arguments)
    if files[:1] == ["--repeat"]:
        repeat, files = int(files[1]), files[2:]
    sources = choose_sources(files)
    documents = [
        item
        for split in list_splits(sources)
        for item in read_documents(split, sources[split.source])
        if isinstance(item, Document)
    ]
    vocabulary = ROOT / "data" / "sample" / "vocabulary" / "vocab.txt"
    if not vocabulary.is_file():
        raise SystemExit(f"{vocabulary} is absent: run `make vocabulary` first")
    rows = [*bench_wikitext(sources, repeat=repeat), *bench_tokens(documents, vocabulary, repeat=repeat)]
    table = "\n".join(format_table(rows))
    heading = (
        f"{date.today()} {platform.processor() or platform.machine()}, one core, Python {platform.python_version()}"
    )
    print(heading)
    print(table)
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "pipeline.json").write_text(json.dumps({"machine": heading, "rows": rows}, indent=1) + "\n")
    (OUT / "pipeline.md").write_text(f"{heading}\n\n{table}\n")
    return 0


def choose_sources(files: Sequence[str]) -> tuple[SourceConfig, ...]:
    """Sources of the given files by their names; without files, the sample corpus."""
    if not files:
        sample = ROOT / "data" / "sample"
        if not sample.is_dir():
            raise SystemExit(f"{sample} is absent: run `make sample` first, or name files")
        return (
            SourceConfig(kind="wikipedia", path=str(sample / "wikipedia")),
            SourceConfig(kind="books", path=str(sample / "books")),
        )
    return tuple(SourceConfig(kind="wikipedia" if ".xml" in name else "books", path=name) for name in files)


def bench_wikitext(sources: Sequence[SourceConfig], *, repeat: int) -> list[dict[str, Any]]:
    """Markup to text, ours beside mwparserfromhell's parse and strip_code, on the same pages."""
    pages = [page for source in sources if source.kind == "wikipedia" for page in read_articles(source)]
    if not pages:
        return []
    megabytes = sum(len(markup.encode()) for markup, _ in pages) / 1e6
    ours, library = alternate(
        lambda: [wikitext_to_text(markup, names=names) for markup, names in pages],
        lambda: [mwparserfromhell.parse(markup).strip_code() for markup, _ in pages],
        repeat=repeat,
    )
    return [
        {
            "stage": "wikitext to text",
            "unit": "MB/s",
            "rate": megabytes / ours,
            "ratio": library / ours,
            "beside": "mwparserfromhell",
        },
        {
            "stage": "mwparserfromhell, strip_code",
            "unit": "MB/s",
            "rate": megabytes / library,
            "ratio": 1.0,
            "beside": "",
        },
    ]


def read_articles(source: SourceConfig) -> list[tuple[str, WikiNames]]:
    """Markup of every article of a source, with the names of its wiki."""
    found: list[tuple[str, WikiNames]] = []
    for split in list_splits([source]):
        reader = DumpReader(split.path, most_characters=DEFAULT_BUDGET.num_bytes)
        names = names_of_site(read_site(split.path), language=source.language)
        pages = reader.read(read_pieces(split.path, start=split.start, end=split.end))
        found += [(page.text, names) for page in pages if page.namespace == 0 and not page.is_redirect]
    return found


def bench_tokens(documents: Sequence[Document], vocabulary: Path, *, repeat: int) -> list[dict[str, Any]]:
    """Tokens, pairs and masks, beside `tokenizers` called once a document."""
    tokenizer = WordTokenizer.from_path(vocabulary, lowercase=True)
    backend = BertWordPieceTokenizer(str(vocabulary), lowercase=True)
    ours, library = alternate(
        lambda: tokenize_all(documents, vocabulary),
        lambda: [backend.encode_batch(list(document.sentences), add_special_tokens=False) for document in documents],
        repeat=repeat,
    )
    tokenized = tokenize_all(documents, vocabulary)
    tokens = sum(document.ids.size for document in tokenized)
    config = validate(
        PipelineConfig,
        {"sources": [{"kind": "books", "path": "."}], "output": "unused", "max_seq_length": 512},
        origin="bench",
    )
    pairs_s = min(cpu(lambda: make_pairs(tokenized, config=config, pass_number=0)) for _ in range(repeat))
    pairs = make_pairs(tokenized, config=config, pass_number=0)
    rows_s = min(cpu(lambda: assemble_rows(tokenized, pairs, special=tokenizer.special, seed=1)) for _ in range(repeat))
    rows = assemble_rows(tokenized, pairs, special=tokenizer.special, seed=1)
    first = min(cpu(lambda: mask_rows(rows, config=config, tokenizer=tokenizer, mask_set=0)) for _ in range(repeat))
    output = float(np.sum(rows.offsets[-1]))
    return [
        {
            "stage": "text to token ids",
            "unit": "Mtok/s",
            "rate": tokens / ours / 1e6,
            "ratio": library / ours,
            "beside": "tokenizers",
        },
        {
            "stage": "tokenizers, encode_batch",
            "unit": "Mtok/s",
            "rate": tokens / library / 1e6,
            "ratio": 1.0,
            "beside": "",
        },
        {
            "stage": "pairs and rows",
            "unit": "Mtok/s",
            "rate": output / (pairs_s + rows_s) / 1e6,
            "ratio": None,
            "beside": "",
        },
        {
            "stage": "whole-word masks, one set",
            "unit": "Mtok/s",
            "rate": output / first / 1e6,
            "ratio": None,
            "beside": "",
        },
    ]


def tokenize_all(documents: Sequence[Document], vocabulary: Path) -> list[TokenizedDocument]:
    """Tokenize with an empty cache, as a worker that has just begun."""
    tokenizer = WordTokenizer.from_path(vocabulary, lowercase=True)
    return [tokenizer.tokenize(document) for document in documents]


def alternate(ours: Callable[[], Any], other: Callable[[], Any], *, repeat: int) -> tuple[float, float]:
    """Least CPU seconds of each of two functions, run in turn."""
    times = [(cpu(ours), cpu(other)) for _ in range(repeat)]
    return min(first for first, _ in times), min(second for _, second in times)


def cpu(function: Callable[[], Any]) -> float:
    """CPU seconds of this process while `function` runs."""
    started = time.process_time()
    function()
    return time.process_time() - started


def format_table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The rows as a Markdown table."""
    lines = ["| stage | rate | unit | times as fast as |", "|---|---|---|---|"]
    for row in rows:
        ratio = f"{row['ratio']:.2f} x {row['beside']}" if row["beside"] else ""
        lines.append(f"| {row['stage']} | {row['rate']:.2f} | {row['unit']} | {ratio} |")
    return lines


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
