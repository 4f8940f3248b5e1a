"""The data sets that the trainer's benches are run on."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import novels_wiki
from corpora import make_documents, write_vocabulary
from dumps import dump, page
from pipeline.dataset.manifest import read_manifest


def test_novels_and_articles_make_one_set_with_rows_held_out(tmp_path: Path) -> None:
    books = tmp_path / "books"
    books.mkdir()
    for number in range(2):
        chapters = (
            f"CHAPTER {chapter + 1}\n\n" + "\n\n".join(". ".join(part) + "." for part in make_documents(4, seed=seed))
            for chapter, seed in enumerate(range(500 * number, 500 * number + 120))
        )
        (books / f"{number}.txt").write_text("\n\n".join(chapters))
    articles = (page(f"A{n}", "\n\n".join(". ".join(d) + "." for d in make_documents(9, seed=n))) for n in range(200))
    (tmp_path / "dump.xml").write_text(dump(*articles))
    vocabulary = write_vocabulary(tmp_path / "vocab.txt")
    words = [str(path) for path in (vocabulary, tmp_path / "out", books, tmp_path / "dump.xml")]
    assert novels_wiki.main([*words, "0.5"]) == 0
    manifest = read_manifest(tmp_path / "out")
    assert (manifest.max_seq_length, manifest.mask_sets) == (512, novels_wiki.MASK_SETS)
    assert sorted(manifest.sources) == ["books-en", "wikipedia-en"]
    assert manifest.num_rows("train") > manifest.num_rows("validation") > 0
    with pytest.raises(SystemExit, match="usage: "):
        novels_wiki.main(words[:3])
