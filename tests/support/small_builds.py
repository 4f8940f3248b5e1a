"""A small corpus with its config, and a build of it that must be refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from corpora import make_documents, write_text, write_vocabulary
from pipeline.run import main


def write_build(tmp_path: Path) -> Path:
    """corpus.txt, vocab.txt and c.yaml (its paths relative to this folder)."""
    write_text(tmp_path / "corpus.txt", make_documents(40))
    write_vocabulary(tmp_path / "vocab.txt")
    (tmp_path / "c.yaml").write_text(
        "sources: [{kind: text, path: corpus.txt}]\nvocabulary: {path: vocab.txt}\noutput: out\n"
        "max_seq_length: 32\nvalidation_fraction: 0\nshards: 1\nworkers: 1\n"
    )
    return tmp_path


def write_build_of_files(folder: Path, documents: list[list[str]], *, files: int) -> None:
    """Documents dealt to text/0.txt and so on, vocab.txt, and c.yaml: two shards, one held out, one worker."""
    for number in range(files):
        write_text(folder / "text" / f"{number}.txt", documents[number::files])
    write_vocabulary(folder / "vocab.txt")
    (folder / "c.yaml").write_text(
        "sources: [{kind: text, path: text}]\nvocabulary: {path: vocab.txt}\noutput: out\n"
        "max_seq_length: 32\nvalidation_fraction: 0.1\nshards: 2\nworkers: 1\n"
    )


def refused(folder: Path, *words: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Run with c.yaml; the one line of the error. Nothing may be left behind."""
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert main(["--config", str(folder / "c.yaml"), *words]) == 2
    error = capsys.readouterr().err.strip().splitlines()
    assert error[-1].startswith("error: ")
    assert not any("Traceback" in line for line in error)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    return error[-1]
