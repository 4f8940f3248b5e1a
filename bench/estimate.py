"""Compares the estimates of `pipeline.estimate` with real builds: documents, tokens, rows, bytes, CPU, time and memory.

Usage: python -m bench.estimate [--config FILE] [key.sub=value ...]
The default corpus is the 100 novels of LitBank, built with one and with ten mask sets (choices of masked tokens), if
they are in shared/data/books beside the checkout. Otherwise it is the sample corpus. The goal is an error of at most
10% for documents, tokens, rows and bytes.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from datetime import date
from pathlib import Path

from bench.processes import watch
from pipeline.dataset import read_manifest
from pipeline.engines import choose_workers
from pipeline.estimate.cost import Estimate, estimate
from pipeline.runtime import read_config
from pipeline.settings import split_arguments
from pipeline.sources import list_splits

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "bench" / "out"
GOAL = 0.10
NOVELS = ROOT.parent / "shared" / "data" / "books" / "litbank-100-novels.tar.xz"


def main(arguments: Sequence[str]) -> int:
    words = list(arguments)
    if not words and NOVELS.is_file():
        path = ROOT / "data" / "sample" / "vocabulary" / "vocab.txt"
        vocabulary = f"vocabulary={{path: {path}}}" if path.is_file() else "vocabulary={size: 8192}"
        words = [f"sources=[{{kind: books, path: {NOVELS}}}]", vocabulary, "max_seq_length=512", "shards=auto"]
        cases = [[*words, "masks_per_pair=1"], [*words, "masks_per_pair=10"]]
    else:
        cases = [words]
    results = [compare(case) for case in cases]
    heading = f"{date.today()}, {os.cpu_count()} cores"
    text = "\n\n".join([heading, *(table for table, _ in results)])
    print(text)
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "estimate.md").write_text(text + "\n")
    (OUT / "estimate.json").write_text(json.dumps({"machine": heading, "cases": [row for _, row in results]}, indent=1))
    return 0


def compare(words: Sequence[str]) -> tuple[str, dict[str, object]]:
    """Estimate and build one data set. Return a table that compares the two, and the same numbers as a dict.

    `words` are the words of the command line that describe the build.
    """
    parsed = split_arguments(list(words), program="bench.estimate")
    with tempfile.TemporaryDirectory(prefix="cloze-bench-") as folder:
        output = f"{folder}/set"
        config = read_config(parsed, say=lambda line: None).model_copy(update={"output": output})
        workers = choose_workers(config, say=lambda line: None)
        found = estimate(config, splits=list_splits(config.sources), workers=workers)
        cost = watch([sys.executable, str(ROOT / "pipeline" / "run.py"), *words, f"output={output}"])
        manifest = read_manifest(output)
    documents = sum(manifest.statistics["splits"][split]["documents"] for split in manifest.statistics["splits"])
    truth = {
        "documents": float(documents),
        "tokens": float(sum(shard.tokens for shard in manifest.shards)),
        "rows": float(sum(shard.rows for shard in manifest.shards)),
        "bytes": float(sum(shard.bytes for shard in manifest.shards)),
        "cpu_s": cost.cpu_s,
        "wall_s": cost.wall_s,
        "worker_bytes": float(cost.highest_bytes),
    }
    return "\n".join(format_case(found, truth=truth, words=words)), {
        "arguments": list(words),
        "estimate": asdict(found),
        "truth": truth,
    }


def format_case(found: Estimate, *, truth: dict[str, float], words: Sequence[str]) -> list[str]:
    """Return the comparison as lines of Markdown. `truth` has the numbers of the build, by name of the estimate's
    field."""
    lines = [
        " ".join(words),
        "",
        f"Read for it: {found.sample_characters / 1e6:.1f} M characters, {found.sample_units} of "
        f"{found.sample_of_units} parts, in {found.sample_s:.0f} s.",
        "",
        "| | estimate | build | estimate is off by | goal |",
        "|---|---|---|---|---|",
    ]
    for name, real in truth.items():
        value: float = getattr(found, name)
        off = value / real - 1
        goal = f"{100 * GOAL:.0f}%: {'met' if abs(off) <= GOAL else 'MISSED'}" if list(truth).index(name) < 4 else ""
        lines.append(f"| {name} | {value:,.0f} | {real:,.0f} | {100 * off:+.1f}% | {goal} |")
    return lines


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
