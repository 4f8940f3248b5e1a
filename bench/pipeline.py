"""Measures what preparing data costs: single stages, whole builds, memory, storage, and planning a very large data set.

Usage: python -m bench.pipeline [--help] [BOOKS.txt|BOOKS.tar.xz|DUMP.xml.bz2 ...]
The default corpus is the 100 novels of LitBank and an extract of an English Wikipedia dump if these files are in
shared/data beside the checkout, and otherwise the sample corpus. CPU seconds count, not wall time. Libraries and our
code run in turn, so that other work on the machine slows both. The results go to bench/pipeline.json and
bench/pipeline.md. A section that is not measured this time keeps its earlier results and their date.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

from bench import builds, memory, scale, shortcuts, storage
from bench.pipeline_tables import render
from bench.processes import ROOT, describe_machine
from bench.repeats import Texts, read_texts
from bench.stages import measure_stages
from pipeline.config import PipelineConfig, SourceConfig
from pipeline.settings import validate
from pipeline.tokenizer import WordTokenizer

SHARED = ROOT.parent / "shared" / "data"
SAMPLE = ROOT / "data" / "sample"
_CORPUS = (
    ("books", SHARED / "books" / "litbank-100-novels.tar.xz"),
    ("wikipedia", SHARED / "wiki/dumps/gensim/enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"),
)
_SAMPLE = (("books", SAMPLE / "books"), ("wikipedia", SAMPLE / "wikipedia"))
_VOCABULARIES = (SHARED / "bert" / "bert-base-uncased-vocab.txt", SAMPLE / "vocabulary" / "vocab.txt")
_SECTIONS = ("stages", "whole", "storage", "scale")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the sections that the user asks for, write the tables, and return the exit status."""
    given = _parse(arguments)
    sources = choose_sources(given.corpus)
    config = bench_config(sources, vocabulary=given.vocabulary, max_seq_length=given.max_seq_length)
    limit = None if given.megabytes is None else round(1e6 * given.megabytes)
    needs_texts = given.memory_mb or {"stages", "whole", "storage"} & set(given.sections)
    texts = read_texts(sources, most_bytes=limit) if needs_texts else None
    found = {name: measure(name, texts=texts, config=config, given=given) for name in given.sections}
    if given.memory_mb:
        found["memory"] = measure("memory", texts=texts, config=config, given=given)
    if given.shortcuts:
        found["shortcuts"] = shortcuts.measure_sets(given.shortcuts)
    stamp = {"date": str(date.today()), "machine": describe_machine(), "load": os.getloadavg()[1]}
    path = given.out / "pipeline.json"
    tree: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    tree.update({name: {**stamp, **section} for name, section in found.items()})
    given.out.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(tree, indent=1) + "\n", encoding="utf-8")
    (given.out / "pipeline.md").write_text(render(tree), encoding="utf-8")
    print(render({name: tree[name] for name in found}))
    return 0


def measure(name: str, *, texts: Texts | None, config: PipelineConfig, given: argparse.Namespace) -> dict[str, Any]:
    """Measure the section `name` and return its part of pipeline.json. `given` holds the options of the command."""
    if name == "scale":
        return scale.to_json(scale.measure_scale(rows=200_000_000, shards=20_000, ranks=1_024))
    assert texts is not None
    corpus = f"{len(texts.books)} books, {len(texts.articles)} articles, {texts.num_bytes / 1e6:,.1f} MB"
    assert config.vocabulary.path is not None
    about = {
        "corpus": f"{corpus}; {Path(config.vocabulary.path).name}, length {config.max_seq_length}",
        "python": sys.version.split()[0],
    }
    if name == "stages":
        tokenizer = WordTokenizer.from_path(config.vocabulary.path, lowercase=config.vocabulary.lowercase)
        rows = measure_stages(texts, config=config, tokenizer=tokenizer, repeat=given.repeat)
        return {**about, "rows": [{each: getattr(row, each) for each in row.__slots__} for row in rows]}
    if name == "whole":
        whole = builds.measure_whole(
            texts,
            config=config,
            workers=given.workers,
            mask_sets=given.mask_sets,
            lddl=given.lddl_python,
            repeat=given.repeat,
        )
        return {**about, **builds.to_json(whole)}
    if name == "storage":
        sizes = builds.measure_sizes(texts, config=config, mask_sets=(1, given.mask_sets), workers=max(given.workers))
        return {**about, "sets": [storage.to_json(size) for size in sizes]}
    points = memory.measure_memory(
        texts, config=config, sizes=[round(1e6 * size) for size in given.memory_mb], workers=max(given.workers)
    )
    return {**about, "workers": max(given.workers), "points": memory.to_json(points)}


def choose_sources(files: Sequence[str]) -> tuple[SourceConfig, ...]:
    """Return the corpus that consists of `files`, or the default corpus if there are no files.

    A file is a Wikipedia dump if its name contains .xml, and otherwise it holds books. Raises SystemExit if there is no
    default corpus.
    """
    if files:
        return tuple(
            SourceConfig(kind="wikipedia" if ".xml" in Path(name).name else "books", path=name) for name in files
        )
    for corpus in (_CORPUS, _SAMPLE):
        if all(path.exists() for _, path in corpus):
            entries = [{"kind": kind, "path": str(path)} for kind, path in corpus]
            return tuple(validate(SourceConfig, entry, origin="bench") for entry in entries)
    raise SystemExit(f"{SAMPLE} is absent: run `make sample` first, or name files")


def bench_config(sources: Sequence[SourceConfig], *, vocabulary: str | None, max_seq_length: int) -> PipelineConfig:
    """Return the config of the benchmarks' builds: one pass over the documents, masks of whole words, nothing held out.

    Raises SystemExit if there is no vocabulary.
    """
    known = [Path(vocabulary)] if vocabulary is not None else [path for path in _VOCABULARIES if path.is_file()]
    if not known or not known[0].is_file():
        raise SystemExit(f"{(known or _VOCABULARIES)[-1]} is absent: run `make vocabulary` first, or name --vocabulary")
    tree = {
        "sources": [source.model_dump() for source in sources],
        "vocabulary": {"path": str(known[0])},
        "output": "unused",
        "max_seq_length": max_seq_length,
        "validation_fraction": 0.0,
    }
    return validate(PipelineConfig, tree, origin="bench")


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.pipeline")
    parser.add_argument("corpus", nargs="*", help="files of books (.txt, archives) and dumps (*.xml*)")
    parser.add_argument("--sections", nargs="*", choices=_SECTIONS, default=list(_SECTIONS))
    parser.add_argument("--repeat", type=int, default=2, help="turns; the least CPU seconds count")
    parser.add_argument("--megabytes", type=float, help="take the first books up to so many MB")
    parser.add_argument("--workers", type=int, nargs="+", default=sorted({1, len(os.sched_getaffinity(0))}))
    parser.add_argument("--mask-sets", type=int, default=10)
    parser.add_argument("--max-seq-length", type=int, default=512)
    parser.add_argument("--vocabulary", help="vocab.txt; default: bert-base-uncased, else the sample's")
    parser.add_argument("--memory-mb", type=float, nargs="*", default=[], help="sizes to build, such as 100 1000")
    parser.add_argument("--shortcuts", nargs="*", default=[], metavar="NAME=FOLDER", help="finished sets to measure")
    parser.add_argument("--out", type=Path, default=ROOT / "bench", help="folder of pipeline.json and pipeline.md")
    parser.add_argument(
        "--lddl-python",
        default=os.environ.get("LDDL_PYTHON") or None,
        help="a Python that has the lddl package (or LDDL_PYTHON): LDDL takes its turn on the same text",
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
