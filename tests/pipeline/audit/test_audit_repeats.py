"""A text with lines that repeat: the build names them, and the audit notes what follows from them, without a fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from audit_sets import faults, notes
from corpora import make_config, make_documents
from pipeline.audit.run import audit
from pipeline.build.recipe import build

LINE = "bada gefi lomu nera pito zuba kola reva"
FOOTER = ["tamo sire nulo pagi bede fuza rimo", "kate lipo muna dore sabi tufe gani zelo rumi"]


def build_set(folder: Path, documents: list[list[str]], *, length: int) -> list[str]:
    """Build the set into folder/out and return its warnings."""
    (folder / "corpus.txt").write_text("\n\n".join("\n".join(document) for document in documents) + "\n")
    said: list[str] = []
    source = {"kind": "text", "path": str(folder / "corpus.txt")}
    settings = {"max_seq_length": length, "validation_fraction": 0.2, "not_next_bounds": [0.0, 1.0]}
    build(make_config(folder, sources=[source], **settings), say=said.append)
    return [line for line in said if line.startswith("warning: the line")]


@pytest.mark.parametrize("length", [64, 256])
def test_documents_of_one_line_over_and_over(tmp_path: Path, length: int) -> None:
    own = make_documents(60, seed=8, sentences=(1, 1))
    (warning,) = build_set(tmp_path, [[LINE] * 30 + one for one in own], length=length)
    assert f"the line {LINE!r} stands 1,800 times in 60 of 60 documents (97% of all sentences)" in warning
    found = audit(tmp_path / "out", workers=1)
    assert set(faults(found)) <= {"label balance"}  # few second segments do not follow, which is a fault of the set
    assert "true next" in notes(found)


@pytest.mark.parametrize(("seed", "sentences"), [(9, (3, 9)), (13, (10, 40))])
def test_documents_that_end_alike(tmp_path: Path, seed: int, sentences: tuple[int, int]) -> None:
    """With seed 13, one held-out document and one of training have a row of the two lines and nothing else."""
    documents = [[*document, *FOOTER] for document in make_documents(300, seed=seed, sentences=sentences)]
    warnings = build_set(tmp_path, documents, length=64)
    assert [warning.split("'")[1] for warning in warnings] in (FOOTER, FOOTER[::-1])
    assert all("stands 300 times in 300 of 300 documents" in warning for warning in warnings)
    assert faults(audit(tmp_path / "out", workers=1)) == {}


def test_a_text_without_such_lines_has_no_warning(tmp_path: Path) -> None:
    assert build_set(tmp_path, make_documents(100, seed=2), length=64) == []


def test_the_repeated_lines_of_the_cases(tmp_path: Path, shared_data: Path) -> None:
    vocabulary = {"path": str(shared_data / "bert/bert-base-uncased-vocab.txt")}
    source = {"kind": "text", "path": str(shared_data / "cases/repeated-lines.txt")}
    said: list[str] = []
    config = make_config(
        tmp_path, sources=[source], vocabulary=vocabulary, max_seq_length=128, validation_fraction=0.05
    )
    build(config, say=said.append)
    assert any("'click here to subscribe to our newsletter today.' stands 1,800 times" in line for line in said)
    found = audit(tmp_path / "out", workers=1)
    assert faults(found) == {}
    assert set(notes(found)) >= {"leakage", "true next"}
