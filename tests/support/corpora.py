"""Small corpora and a vocabulary for the tests of the build: made of syllables, equal on every machine."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.build.recipe import build
from pipeline.config.schema import PipelineConfig
from pipeline.dataset.manifest import Manifest
from pipeline.settings import validate

SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def write_vocabulary(path: Path) -> Path:
    """A vocab.txt of 145 entries: every syllable as a word and as a piece."""
    tokens = [*SPECIAL, *SYLLABLES, *(f"##{syllable}" for syllable in SYLLABLES)]
    path.write_text("".join(f"{token}\n" for token in tokens), encoding="ascii")
    return path


def make_documents(count: int, *, seed: int = 0, sentences: tuple[int, int] = (2, 12)) -> list[list[str]]:
    """Documents of sentences of 3 to 12 words of 1 to 3 syllables."""
    rng = random.Random(seed)
    return [[_sentence(rng) for _ in range(rng.randint(*sentences))] for _ in range(count)]


def _sentence(rng: random.Random) -> str:
    words = ["".join(rng.choices(SYLLABLES, k=rng.randint(1, 3))) for _ in range(rng.randint(3, 12))]
    return " ".join(words)


def write_text(path: Path, documents: Sequence[Sequence[str]]) -> Path:
    """Documents as `kind: text` reads them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n\n".join("\n".join(document) for document in documents) + "\n", encoding="ascii")
    return path


def make_config(folder: Path, *, sources: Sequence[dict[str, Any]], **settings: Any) -> PipelineConfig:
    """A config over `sources` with the vocabulary above, writing to folder/out."""
    vocabulary = folder / "vocab.txt"
    if not vocabulary.exists():
        write_vocabulary(vocabulary)
    tree: dict[str, Any] = {
        "sources": list(sources),
        "vocabulary": {"path": str(vocabulary)},
        "output": str(folder / "out"),
        "max_seq_length": 64,
        "masks_per_pair": 2,
        "validation_fraction": 0.0,
        "shards": 1,
        "workers": 1,
        **settings,
    }
    return validate(PipelineConfig, tree, origin="test")


def build_text(folder: Path, documents: Sequence[Sequence[str]], **settings: Any) -> Manifest:
    """Build the set of these documents, in one file, into folder/out."""
    path = write_text(folder / "text" / "corpus.txt", documents)
    return build(make_config(folder, sources=[{"kind": "text", "path": str(path)}], **settings), say=lambda line: None)


def read_rows(root: Path, manifest: Manifest) -> pa.Table:
    """All rows of a set, in order of the manifest."""
    return pa.concat_tables(pq.read_table(root / shard.path) for shard in manifest.shards)


def find_sides(folder: Path, manifest: Manifest) -> dict[str, set[bytes]]:
    """The ids of the documents in the rows of each part of a set, second segments included."""
    sides: dict[str, set[bytes]] = {"train": set(), "validation": set()}
    for shard in manifest.shards:
        table = pq.read_table(folder / "out" / shard.path, columns=["document_id", "second_document_id"])
        for column in table.columns:
            sides[shard.split] |= {name for name in column.to_pylist() if name is not None}
    return sides
