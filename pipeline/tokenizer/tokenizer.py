"""Turns text into token ids and word starts, exactly like the `tokenizers` library but several times as fast.

Two caches (chunks.py) save calls of the library: one for pieces of text between spaces, one for single words. The
library's own steps fill these caches, so the caches change only the speed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from pipeline.dataset import MAX_UINT16_VOCABULARY, name_panics
from pipeline.documents import Document, TextLoss
from pipeline.tokenizer.chunks import ChunkTable, Ids
from pipeline.tokenizer.dictionary import Dictionary
from pipeline.tokenizer.files import (
    DOTTED_I,
    DOTTED_I_LANGUAGES,
    MAX_WORD_CHARACTERS,
    build_wordpiece,
    read_tokenizer,
    read_vocabulary,
    save_tokenizer,
    vocabulary_hash,
)
from pipeline.tokenizer.marks import LostMarks

_UNUSED = re.compile(r"\[unused\d+\]|<unused\d+>|madeupword\d+")
_NAMES = {
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]", "<s>"),
    "sep": ("[SEP]", "</s>"),
    "mask": ("[MASK]", "<mask>"),
}
RARE_LETTERS = "\u16a0\u2d4d\u13a0\ua999"
"""One letter each of four scripts that are in few vocabularies; no normalizer removes these letters."""


@dataclass(frozen=True, slots=True)
class SpecialIds:
    """The token ids of the five special tokens."""

    pad: int
    unk: int
    cls: int
    sep: int
    mask: int


@dataclass(frozen=True, slots=True)
class TokenizedDocument:
    """A document as token ids, without sentences that have no tokens.

    `ids` are token ids: uint16, or int32 if the vocabulary has more than 65,536 entries. `word_starts` (bool) is true
    for the first token of each word. `sentence_lengths` (int32) says how many tokens each sentence has, at least 1.
    `source` is an index into PipelineConfig.source_names, the distinct names of the sources. Invariant: ids.size ==
    word_starts.size == sentence_lengths.sum().
    """

    id: bytes
    ids: Ids
    word_starts: npt.NDArray[np.bool_]
    sentence_lengths: npt.NDArray[np.int32]
    source: int = 0


class WordTokenizer:
    """A tokenizer that also finds where words start, so that whole words can be masked. It treats "[MASK]" in a
    document as text, not as the special token."""

    def __init__(self, backend: Tokenizer, *, origin: str) -> None:
        """Wrap a Tokenizer of the `tokenizers` library. Raises ValueError if the ids have gaps, if a special token is
        missing, if there are no ordinary tokens, or if text outside the vocabulary cannot be tokenized. The message
        names `origin`, the tokenizer's file."""
        self._origin = origin
        self.backend = backend
        """The library's tokenizer, which is saved beside the data."""
        vocabulary: dict[str, int] = backend.get_vocab(with_added_tokens=True)
        self.vocab_size = len(vocabulary)
        self.tokens: list[str] = sorted(vocabulary, key=vocabulary.__getitem__)
        """All tokens, in the order of their ids."""
        if vocabulary[self.tokens[-1]] != self.vocab_size - 1:
            raise ValueError(
                f"{origin}: {self.vocab_size} tokens, but the greatest id is {vocabulary[self.tokens[-1]]}; "
                f"ids must run from 0 without gaps"
            )
        _check_unknown(backend, origin=origin)
        self.special = SpecialIds(**{name: _find(vocabulary, name, origin=origin) for name in _NAMES})
        special = {index for index, token in backend.get_added_tokens_decoder().items() if token.special}
        special |= {getattr(self.special, name) for name in _NAMES}
        unused = {index for index, token in enumerate(self.tokens) if _UNUSED.fullmatch(token)}
        kept = [index for index in range(self.vocab_size) if index not in special and index not in unused]
        if not kept:
            raise ValueError(f"{origin}: the vocabulary has only special and unused tokens; train one on real text")
        self.special_ids: npt.NDArray[np.int64] = np.array(sorted(special), dtype=np.int64)
        """Ids of special tokens, which masking neither chooses nor draws as a random replacement."""
        self.unused_ids: npt.NDArray[np.int64] = np.array(sorted(unused), dtype=np.int64)
        self.replaceable_ids: npt.NDArray[np.int64] = np.array(kept, dtype=np.int64)
        """Ids that masking may draw as a random replacement: neither special nor unused."""
        self.id_dtype: np.dtype[Any] = np.dtype(np.uint16 if self.vocab_size <= MAX_UINT16_VOCABULARY else np.int32)
        self.vocabulary_hash: str = vocabulary_hash(backend, tokens=self.tokens)
        self.lost_marks = LostMarks(backend.normalizer)
        """Counts the marks of a text that this tokenizer's normalizer removes."""
        self._lowers_i = backend.normalizer is not None and backend.normalizer.normalize_str("I") == "i"
        self._tables = {"": self._new_table()}
        """Caches by language of the dictionary; "" without a dictionary."""

    @classmethod
    def from_path(
        cls,
        path: str | Path,
        *,
        lowercase: bool,
        strip_accents: bool | None = None,
        dotted_i: bool = False,
        max_word_characters: int = MAX_WORD_CHARACTERS,
    ) -> WordTokenizer:
        """Return the tokenizer of a BERT vocab.txt (one token per line) or of a tokenizer.json.

        The keywords say how text is treated, because a vocab.txt does not say it (see build_wordpiece). They are
        ignored for a tokenizer.json, which has these settings itself. Raises ValueError, which names the file and says
        what is wrong with it.
        """
        origin = str(path)
        if origin.endswith(".json"):
            return cls(read_tokenizer(path), origin=origin)
        tokens = read_vocabulary(path)
        backend = build_wordpiece(
            tokens,
            lowercase=lowercase,
            strip_accents=strip_accents,
            origin=origin,
            dotted_i=dotted_i,
            max_word_characters=max_word_characters,
        )
        return cls(backend, origin=origin)

    def tokenize(self, document: Document, *, language: str = "", dictionary: bool = False) -> TokenizedDocument:
        """Return the document as token ids. Each sentence has the ids that the `tokenizers` library gives it, without
        added special tokens. Special tokens that occur in the text are treated like ordinary text (the library's
        setting encode_special_tokens).

        `language` and `dictionary` are explained at tokenize_and_count.
        """
        return self.tokenize_and_count(document, language=language, dictionary=dictionary)[0]

    def tokenize_and_count(
        self, document: Document, *, language: str = "", dictionary: bool = False
    ) -> tuple[TokenizedDocument, TextLoss]:
        """Return the document as `tokenize` does, and counts of the text that the model will not see, for example
        because it becomes [UNK].

        `language` is a code such as tr. If the tokenizer lower-cases, and the language has a dotless i, as Turkish
        does, I becomes a dotless i. With `dictionary`, a dictionary of the language finds where words start in scripts
        without spaces. The ids are the same with and without `dictionary`.
        """
        words_of = language if dictionary else ""
        if words_of not in self._tables:
            self._tables[words_of] = self._new_table(Dictionary(words_of))
        sentences = document.sentences
        if self._lowers_i and language in DOTTED_I_LANGUAGES:
            sentences = tuple(sentence.translate(DOTTED_I) for sentence in sentences)
        loss = TextLoss()
        with name_panics(self._origin):
            ids, word_starts, lengths = self._tables[words_of].tokenize(sentences, loss=loss)
        return TokenizedDocument(document.id, ids, word_starts, lengths), loss

    def _new_table(self, words: Dictionary | None = None) -> ChunkTable:
        return ChunkTable(
            self.backend, id_dtype=self.id_dtype, unknown=self.special.unk, marks=self.lost_marks, words=words
        )

    def save(self, folder: str | Path, *, longest: int | None = None) -> None:
        """Write the files that AutoTokenizer reads: tokenizer.json, tokenizer_config.json and (WordPiece) vocab.txt.

        `longest` is how many tokens the longest row (training example) has. The files' bytes depend only on `longest`,
        the vocabulary and the vocabulary's normalization.
        """
        names = {name: self.tokens[getattr(self.special, name)] for name in _NAMES}
        save_tokenizer(self.backend, Path(folder), tokens=self.tokens, special=names, longest=longest)


def _check_unknown(backend: Tokenizer, *, origin: str) -> None:
    """Raise ValueError naming `origin` (the tokenizer's file) if the tokenizer fails on text outside its vocabulary, as
    WordLevel and Unigram models without [UNK] do."""
    try:
        with name_panics(origin):
            backend.encode(RARE_LETTERS, add_special_tokens=False)
    except Exception as error:  # the library raises plain Exception
        raise ValueError(
            f"{origin}: text outside the vocabulary cannot be tokenized: {error}; set the model's unk_token to a token "
            f"of the vocabulary"
        ) from error


def _find(vocabulary: dict[str, int], name: str, *, origin: str) -> int:
    for token in _NAMES[name]:
        if token in vocabulary:
            return vocabulary[token]
    raise ValueError(f"{origin}: the vocabulary has none of {', '.join(_NAMES[name])}; add one of them")
