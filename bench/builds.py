"""Measures whole builds by the command that users run, and on the same text `tokenizers` alone and, if installed, LDDL.

They run in turn, `repeat` times, and the fewest CPU seconds of all processes together count. If LDDL is not installed,
a build is compared with it through `tokenizers`: in an earlier measurement, LDDL took LDDL_TIMES the CPU seconds of
`tokenizers`, called once per sentence.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from bench.processes import ROOT, Cost, watch
from bench.repeats import Texts, write_corpus
from bench.stages import encode_all
from bench.storage import Storage, measure_storage
from pipeline.config import PipelineConfig, SourceConfig
from pipeline.dataset import Manifest, read_manifest
from pipeline.documents import Document
from pipeline.settings import to_tree
from pipeline.sources import list_splits, read_documents
from pipeline.tokenizer import WordTokenizer

LDDL_TIMES = 4.1
_TINY_BYTES = 200_000


@dataclass(frozen=True, slots=True)
class Build:
    """A build of the corpus: its cost in the run with the fewest CPU seconds, and how much it produced."""

    name: str
    cost: Cost
    rows: int
    tokens: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Whole:
    """All builds, and the CPU seconds of the libraries on the same text. `lddl` is None if LDDL was not measured."""

    text_mb: float
    documents: int
    document_tokens: int
    builds: tuple[Build, ...]
    tokenizers_cpu_s: float
    lddl: Cost | None
    lddl_rows: int

    def ratio(self, build: Build) -> float:
        """Return the CPU seconds of a build, divided by those of `tokenizers` alone."""
        return build.cost.cpu_s / self.tokenizers_cpu_s


def measure_whole(
    texts: Texts, *, config: PipelineConfig, workers: Sequence[int], mask_sets: int, lddl: str | None, repeat: int
) -> Whole:
    """Measure builds of the corpus: one for each number of workers, one with `mask_sets` mask sets, and one of a tiny
    part.

    A mask set is one choice of masked tokens for every row. The other builds have one mask set. The build of a tiny
    part of the corpus shows what a build costs without data. `lddl` is a Python that has the `lddl` package (None: LDDL
    is not measured).
    """
    with tempfile.TemporaryDirectory(prefix="cloze-bench-") as name:
        folder = Path(name)
        sources = write_corpus(texts, folder / "corpus")
        tiny = write_corpus(_first_of(texts), folder / "tiny")
        documents = list(_read_all(sources))
        assert config.vocabulary.path is not None
        tokenizer = WordTokenizer.from_path(config.vocabulary.path, lowercase=config.vocabulary.lowercase)
        cases = [(f"{count} worker{'s' if count > 1 else ''}, K = 1", sources, count, 1) for count in workers]
        cases += [(f"1 worker, K = {mask_sets}", sources, 1, mask_sets), ("1 worker, next to nothing", tiny, 1, 1)]
        if lddl is not None:
            _write_lddl_source(documents, folder / "lddl")
        found: dict[str, Build] = {}
        tokenizers_cpu_s, lddl_cost, lddl_rows, tokens = float("inf"), None, 0, 0
        for _ in range(repeat):
            for title, inputs, count, sets in cases:
                chosen = config.model_copy(update={"sources": inputs, "workers": count, "masks_per_pair": sets})
                build, _ = run_build(chosen, folder=folder, name=title)
                found[title] = build if title not in found else _least(found[title], build)
            began = time.process_time()
            tokens = encode_all(documents, tokenizer.backend)
            tokenizers_cpu_s = min(tokenizers_cpu_s, time.process_time() - began)
            if lddl is not None:
                cost, lddl_rows = run_lddl(lddl, source=folder / "lddl", config=config, output=folder / "lddl-out")
                lddl_cost = cost if lddl_cost is None or cost.cpu_s < lddl_cost.cpu_s else lddl_cost
    return Whole(
        text_mb=sum(len(sentence.encode()) + 1 for document in documents for sentence in document.sentences) / 1e6,
        documents=len(documents),
        document_tokens=tokens,
        builds=tuple(found.values()),
        tokenizers_cpu_s=tokenizers_cpu_s,
        lddl=lddl_cost,
        lddl_rows=lddl_rows,
    )


def run_build(config: PipelineConfig, *, folder: Path, name: str, keep: bool = False) -> tuple[Build, Manifest]:
    """Build the data set of `config` into `folder`/set, by the command that users run.

    Returns the build's measurement and the data set's manifest. The data set is deleted unless `keep` is true.
    """
    output = folder / "set"
    path = folder / "config.yaml"
    tree = {**to_tree(config), "output": str(output)}
    path.write_text(yaml.safe_dump(tree), encoding="utf-8")
    cost = watch([sys.executable, str(ROOT / "pipeline" / "run.py"), "--config", str(path)])
    manifest = read_manifest(output)
    if not keep:
        shutil.rmtree(output)
    shards = manifest.shards
    rows, tokens, size = (sum(getattr(shard, each) for shard in shards) for each in ("rows", "tokens", "bytes"))
    return Build(name, cost, rows=rows, tokens=tokens, bytes=size), manifest


def measure_sizes(texts: Texts, *, config: PipelineConfig, mask_sets: Sequence[int], workers: int) -> list[Storage]:
    """Build the corpus once for each number of mask sets in `mask_sets`. Return the sizes of the data sets on disk."""
    found = []
    with tempfile.TemporaryDirectory(prefix="cloze-bench-") as name:
        folder = Path(name)
        sources = write_corpus(texts, folder / "corpus")
        for count in mask_sets:
            chosen = config.model_copy(update={"sources": sources, "workers": workers, "masks_per_pair": count})
            _, manifest = run_build(chosen, folder=folder, name=f"K = {count}", keep=True)
            found.append(measure_storage(folder / "set", manifest=manifest))
            shutil.rmtree(folder / "set")
    return found


def run_lddl(python: str, *, source: Path, config: PipelineConfig, output: Path) -> tuple[Cost, int]:
    """Run LDDL on the documents in the folder `source`, and return its cost and how many rows it wrote.

    Vocabulary and row length are those of `config`. `python` is a Python that has the `lddl` package. Raises SystemExit
    if LDDL fails or writes no rows.
    """
    import pyarrow.parquet as pq

    job = str(ROOT / "bench" / "lddl_job.py")
    assert config.vocabulary.path is not None
    words = [str(source), config.vocabulary.path, str(output), str(config.max_seq_length)]
    cost = watch([python, job, *words], environment={"PYTHONPATH": "", "TOKENIZERS_PARALLELISM": "false"})
    rows = sum(pq.read_metadata(path).num_rows for path in output.rglob("*.parquet"))
    shutil.rmtree(output)
    if not rows:
        raise SystemExit(f"{python} {job}: LDDL wrote no rows; check that package")
    return cost, rows


def _write_lddl_source(documents: Sequence[Document], folder: Path) -> None:
    """Write the documents in the format that LDDL reads: one document per line, after the document's name."""
    folder.mkdir()
    with open(folder / "0.txt", "w", encoding="utf-8") as file:
        for number, document in enumerate(documents):
            file.write(f"document-{number} {' '.join(document.sentences)}\n")


def _read_all(sources: Sequence[SourceConfig]) -> Iterator[Document]:
    for split in list_splits(sources):
        for item in read_documents(split, sources[split.source]):
            if isinstance(item, Document):
                yield item


def _first_of(texts: Texts) -> Texts:
    """Return a tiny part of the corpus that is enough for a build: two pieces of a book or 20 articles."""
    if texts.books:
        name, data = texts.books[0]
        half = min(len(data), _TINY_BYTES) // 2
        return replace(texts, books=((name, data[:half]), (f"2-{name}", data[half : 2 * half])), articles=())
    return replace(texts, articles=texts.articles[:20])


def _least(one: Build, other: Build) -> Build:
    return one if one.cost.cpu_s <= other.cost.cpu_s else other


def to_json(whole: Whole) -> dict[str, Any]:
    """Return everything measured for the JSON file, with the ratios to `tokenizers` and LDDL."""
    tree = asdict(whole)
    for build, entry in zip(whole.builds, tree["builds"], strict=True):
        entry["of_tokenizers"] = whole.ratio(build)
        entry["of_lddl"] = None if whole.lddl is None else build.cost.cpu_s / whole.lddl.cpu_s
    return tree
