"""What users of other systems report about preparing data: every report is named by a test; some are tested here."""

from __future__ import annotations

import ast
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from corpora import SYLLABLES, build_text, make_documents, write_text, write_vocabulary

SECTION = "## Preparing the data"


def read_reports(text: str) -> list[str]:
    """Every reference of the table: repository#number, or the words of a report without a number."""
    found: list[str] = []
    section = text.split(SECTION)[1].split("\n## ")[0]
    for line in section.splitlines():
        cell = line.split("|")[1].strip() if line.startswith("|") else ""
        if not cell or cell == "report" or set(cell) == {"-"}:
            continue
        repository = ""
        for item in re.split(r"[,;] ", cell):
            name, mark, number = item.partition("#")
            if not mark:
                found.append(item)
                continue
            repository = name.removesuffix("PR").split("/")[-1] or repository
            found.append(f"{repository}#{number.split()[0]}")
    return found


def is_named(report: str, docstrings: list[str]) -> bool:
    repository, mark, number = report.partition("#")
    pattern = rf"{re.escape(repository)}(PR)?(#\d+|, |PR)*#{number}\b" if mark else re.escape(report)
    return any(re.search(pattern, text) for text in docstrings)


def test_references_are_read_and_found() -> None:
    rows = ["| report | trigger |", "|---|---|", "| a/bert#1, #2; c#3, PR#4 | x |", "| LDDL (source) | y |"]
    table = "\n".join([SECTION, *rows, "## B", "| d#5 | z |"])
    reports = read_reports(table)
    assert reports == ["bert#1", "bert#2", "c#3", "c#4", "LDDL (source)"]
    text = ["(bert#1, #2) and c#30, PR#4; LDDL (source)"]
    assert [is_named(report, text) for report in reports] == [True, True, False, True, True]
    assert not is_named("bert#4", text)


def test_every_report_is_named_by_a_test(repository: Path) -> None:
    path = repository.parent / "shared" / "docs" / "PROBLEMS.md"
    if not path.is_file():
        pytest.skip(f"the list of reports is absent: {path}")
    docstrings = [
        re.sub(r"\s+", " ", ast.get_docstring(node) or "")
        for file in sorted((repository / "tests").rglob("test_*.py"))
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]
    reports = read_reports(path.read_text(encoding="utf-8"))
    assert len(reports) > 40
    assert [report for report in reports if not is_named(report, docstrings)] == []


def test_memory_does_not_grow_with_the_corpus(tmp_path: Path) -> None:
    """A corpus held in memory times the duplication factor; killed without a word.

    Reported as google-research/bert#117, #784, #1270; albert#204; NVIDIA/DeepLearningExamples#820. Four times the
    text in four times the buckets takes the same memory; as lists of tokens the rest of it alone would take 100 MB.
    """
    code = (
        "import sys; from pipeline.run import main; code = main(sys.argv[1:]);"
        "peak = next(line for line in open('/proc/self/status') if line.startswith('VmHWM'));"
        "print(int(peak.split()[1]) // 1024); sys.exit(code)"
    )
    vocabulary = write_vocabulary(tmp_path / "vocab.txt")
    rng = random.Random(0)
    words = ["".join(rng.choices(SYLLABLES, k=3)) for _ in range(2000)]  # few, so that no cache of words grows
    megabytes = []
    for times in (2, 8):
        folder = tmp_path / f"text{times}"
        for number in range(times):
            documents = [[" ".join(rng.choices(words, k=12)) for _ in range(30)] for _ in range(700)]
            write_text(folder / f"{number}.txt", documents)
        config = tmp_path / f"c{times}.yaml"
        config.write_text(
            f"sources: [{{kind: text, path: {folder}}}]\nvocabulary: {{path: {vocabulary}}}\n"
            f"output: {tmp_path}/out{times}\nvalidation_fraction: 0\nshards: {2 * times}\nworkers: 1\n"
            "max_seq_length: 128\npasses: 2\n"
        )
        command = [sys.executable, "-c", code, "--config", str(config)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        megabytes.append(int(done.stdout.splitlines()[-1]))
    assert megabytes[1] - megabytes[0] < 75, megabytes


def test_more_mask_sets_cost_their_positions_alone(tmp_path: Path) -> None:
    """Duplication factor 10 makes 390 GB, 2% of it used (mlcommons/training#497): a pair is stored once."""
    documents = make_documents(400)
    sizes = []
    for count in (1, 10):
        manifest = build_text(tmp_path / str(count), documents, masks_per_pair=count)
        assert manifest.mask_sets == count
        sizes.append((manifest.num_rows("train"), manifest.shards[0].bytes))
    assert sizes[0][0] == sizes[1][0]
    assert sizes[1][1] < 4 * sizes[0][1]
