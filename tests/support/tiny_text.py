"""Small documents and vocabularies for the tests of pairs, masks and tokenization."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from pipeline.config.schema import PipelineConfig, SourceConfig
from pipeline.tokenizer.tokenizer import TokenizedDocument, WordTokenizer

SPECIAL_TOKENS = ["[PAD]", *(f"[unused{n}]" for n in range(1, 100)), "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
FIRST_ID = len(SPECIAL_TOKENS)


def make_tokenizer(folder: Path, pieces: Sequence[str], *, lowercase: bool = True) -> WordTokenizer:
    path = folder / "vocab.txt"
    path.write_text("".join(f"{token}\n" for token in [*SPECIAL_TOKENS, *pieces]), encoding="utf-8")
    return WordTokenizer.from_path(path, lowercase=lowercase)


def make_config(**settings: object) -> PipelineConfig:
    tree = {"sources": (SourceConfig(kind="text", path="x"),), "output": "out", "seed": 7} | settings
    return PipelineConfig(**tree)


def make_document(
    sentences: Sequence[Sequence[int]], *, name: int, ids: Sequence[int] | None = None
) -> TokenizedDocument:
    """A document from the piece counts of its words: sentences of words. Ids count up from a start of its own."""
    starts = [piece == 0 for words in sentences for pieces in words for piece in range(pieces)]
    if ids is None:
        ids = [FIRST_ID + (name * 1000 + place) % 9000 for place in range(len(starts))]
    return TokenizedDocument(
        id=hashlib.blake2b(str(name).encode(), digest_size=16).digest(),
        ids=np.array(ids, np.uint16),
        word_starts=np.array(starts, np.bool_),
        sentence_lengths=np.array([sum(words) for words in sentences], np.int32),
    )


words = st.integers(1, 3) | st.integers(1, 40)
sentences = st.lists(words, min_size=1, max_size=12)
corpora = st.lists(st.lists(sentences, min_size=1, max_size=8), min_size=2, max_size=6).map(
    lambda corpus: [make_document(document, name=name) for name, document in enumerate(corpus)]
)
