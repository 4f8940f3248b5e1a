"""Turns text into token ids and word starts, exactly like the `tokenizers` library but several times as fast.

Two caches save calls of the library: one for pieces of text between spaces, one for single words. The library's own
steps fill these caches, so the caches change only the speed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from pipeline.dataset import MAX_UINT16_VOCABULARY
from pipeline.documents import Document
from pipeline.tokenizer.files import build_wordpiece, read_tokenizer, read_vocabulary, save_tokenizer, vocabulary_hash

Ids: TypeAlias = npt.NDArray[Any]
"""Token ids, as uint16 or int32."""

_ASCII_WORDS = re.compile(r"[0-9A-Za-z]+|[^0-9A-Za-z]")
_PRINTABLE = re.compile(r"[!-~]*")
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
_MAX_CHUNKS = 400_000
_MAX_CHARACTERS = 16_000_000
_MAX_WORDS = 250_000
_BLOCK_CHARACTERS = 1 << 20


@dataclass(frozen=True, slots=True)
class SpecialIds:
    """The ids of the five special tokens."""

    pad: int
    unk: int
    cls: int
    sep: int
    mask: int


@dataclass(frozen=True, slots=True)
class TokenizedDocument:
    """A document as token ids, without sentences that have no tokens.

    `ids` are uint16, or int32 if the vocabulary has more than 65,536 entries. `word_starts` (bool) is true for the
    first token of each word of the pre-tokenizer. `sentence_lengths` (int32) are positive token counts. `source` is an
    index into PipelineConfig.source_names.
    Invariant: ids.size == word_starts.size == sentence_lengths.sum().
    """

    id: bytes
    ids: Ids
    word_starts: npt.NDArray[np.bool_]
    sentence_lengths: npt.NDArray[np.int32]
    source: int = 0


class WordTokenizer:
    """A tokenizer that also finds where words start. It treats "[MASK]" in a document as text, not as the special
    token."""

    def __init__(self, backend: Tokenizer, *, origin: str) -> None:
        """Wrap a Tokenizer of the `tokenizers` library. Raises ValueError if the ids have gaps, if a special token is
        missing, if there are no ordinary tokens, or if text outside the vocabulary cannot be tokenized. The message
        names `origin`, the tokenizer's file."""
        self.backend = backend
        """The library's tokenizer, which is saved beside the data."""
        vocabulary: dict[str, int] = backend.get_vocab(with_added_tokens=True)
        self.vocab_size = len(vocabulary)
        self.tokens: list[str] = sorted(vocabulary, key=vocabulary.__getitem__)
        """Every token in the order of the ids."""
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
        self._chunks = _ChunkTable(backend, id_dtype=self.id_dtype)

    @classmethod
    def from_path(cls, path: str | Path, *, lowercase: bool, strip_accents: bool | None = None) -> WordTokenizer:
        """Return the tokenizer of a BERT vocab.txt (one token per line) or of a tokenizer.json.

        `lowercase` and `strip_accents` tell how a vocab.txt was trained. They are ignored for a tokenizer.json, which
        has these settings itself. Raises ValueError, which names the file and what is wrong with the file.
        """
        origin = str(path)
        if origin.endswith(".json"):
            return cls(read_tokenizer(path), origin=origin)
        tokens = read_vocabulary(path)
        backend = build_wordpiece(tokens, lowercase=lowercase, strip_accents=strip_accents, origin=origin)
        return cls(backend, origin=origin)

    def tokenize(self, document: Document) -> TokenizedDocument:
        """Return the document as ids. Each sentence has the ids that the `tokenizers` library gives it, without added
        special tokens. Special tokens that occur in the text are treated like ordinary text (the library's setting
        encode_special_tokens)."""
        ids, word_starts, lengths = self._chunks.tokenize(document.sentences)
        return TokenizedDocument(document.id, ids, word_starts, lengths)

    def save(self, folder: str | Path, *, longest: int | None = None) -> None:
        """Write the files that AutoTokenizer reads: tokenizer.json, tokenizer_config.json and (WordPiece) vocab.txt.

        `longest` is the number of tokens in the longest row. The files' bytes depend only on `longest`, the vocabulary
        and the vocabulary's normalization.
        """
        names = {name: self.tokens[getattr(self.special, name)] for name in _NAMES}
        save_tokenizer(self.backend, Path(folder), tokens=self.tokens, special=names, longest=longest)


class _Numbers(dict[str, int]):
    """A dict that gives each text a number, in the order of first look-up. `fresh` lists the texts that were added
    since the list was last cleared."""

    def __init__(self) -> None:
        super().__init__()
        self.fresh: list[str] = []

    def __missing__(self, text: str) -> int:
        number = self[text] = len(self)
        self.fresh.append(text)
        return number


class _Column:
    """A numpy array that can grow at its end, by doubling its memory."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self.values: npt.NDArray[Any] = np.zeros(1024, dtype)
        self.size = 0

    def append(self, values: npt.NDArray[Any]) -> None:
        size = self.size + values.size
        if size > self.values.size:
            larger = np.zeros(max(size, 2 * self.values.size), self.values.dtype)
            larger[: self.size] = self.values[: self.size]
            self.values = larger
        self.values[self.size : size] = values
        self.size = size


class _ChunkTable:
    """A cache of the token ids of chunks (pieces of text between spaces), from which whole documents are put together.

    With BERT's normalizer and pre-tokenizer a space always ends a word, so a sentence has the ids of its chunks in
    order. For other tokenizers a chunk is a whole sentence, and nothing is kept between documents.
    """

    def __init__(self, backend: Tokenizer, *, id_dtype: np.dtype[Any]) -> None:
        self._id_dtype = id_dtype
        self._backend = Tokenizer.from_str(backend.to_str())
        self._backend.encode_special_tokens = True
        layout = json.loads(backend.to_str())
        normalizer = layout["normalizer"] or {}
        steps = normalizer.get("normalizers", [normalizer])
        self._by_space = (
            (layout["pre_tokenizer"] or {}).get("type") == "BertPreTokenizer"
            and [step.get("type") for step in steps] in (["BertNormalizer"], ["BertNormalizer", "NFC"])
            and all(token["special"] for token in layout["added_tokens"])
        )
        self._lowercase = self._by_space and bool(steps[0]["lowercase"])
        self._words: dict[str, list[int]] = {}
        self._forget()

    def tokenize(self, sentences: Sequence[str]) -> tuple[Ids, npt.NDArray[np.bool_], npt.NDArray[np.int32]]:
        """Return (ids, word starts, sentence lengths). The ids of all sentences are in one array, a word start is true
        for the first token of a word, and a length is the number of tokens of a sentence (sentences without tokens are
        left out)."""
        blocks = [self._tokenize(block) for block in _cut_blocks(sentences)]
        if len(blocks) == 1:
            return blocks[0]
        ids, word_starts, lengths = zip(*blocks, strict=True)
        return np.concatenate(ids), np.concatenate(word_starts), np.concatenate(lengths)

    def _tokenize(self, sentences: Sequence[str]) -> tuple[Ids, npt.NDArray[np.bool_], npt.NDArray[np.int32]]:
        if not self._by_space or len(self._numbers) > _MAX_CHUNKS or self._characters > _MAX_CHARACTERS:
            self._forget()
        if self._by_space:
            chunks: Sequence[str] = " ".join(sentences).split(" ")
            sizes = np.fromiter((sentence.count(" ") + 1 for sentence in sentences), np.int64, len(sentences))
        else:
            chunks, sizes = sentences, np.ones(len(sentences), np.int64)
        numbers = np.fromiter(map(self._numbers.__getitem__, chunks), np.int64, len(chunks))
        if self._numbers.fresh:
            self._learn()
        lengths = self._lengths.values[numbers]
        stops = np.cumsum(lengths)
        gather = np.repeat(self._begins.values[numbers] - (stops - lengths), lengths)
        gather += np.arange(gather.size)
        sentence_lengths = np.diff(stops[np.cumsum(sizes) - 1], prepend=0)
        return (
            self._ids.values[gather],
            self._word_starts.values[gather],
            sentence_lengths[sentence_lengths > 0].astype(np.int32),
        )

    def _forget(self) -> None:
        self._numbers = _Numbers()
        self._characters = 0
        self._ids = _Column(self._id_dtype)
        self._word_starts = _Column(np.dtype(np.bool_))
        self._begins = _Column(np.dtype(np.int64))
        self._lengths = _Column(np.dtype(np.int64))

    def _learn(self) -> None:
        """Tokenize the new chunks (pieces of text between spaces), and add their ids to the cache."""
        ids: list[int] = []
        starts = bytearray()
        lengths: list[int] = []
        take = self._split_chunk if self._by_space else self._encode_sentence
        for chunk in self._numbers.fresh:
            before = len(ids)
            take(chunk, ids, starts)
            lengths.append(len(ids) - before)
            self._characters += len(chunk)
        self._numbers.fresh.clear()
        sizes = np.array(lengths, np.int64)
        self._begins.append(self._ids.size + np.cumsum(sizes) - sizes)
        self._lengths.append(sizes)
        self._ids.append(np.array(ids, self._id_dtype))
        self._word_starts.append(np.frombuffer(bytes(starts), np.bool_))

    def _split_chunk(self, chunk: str, ids: list[int], starts: bytearray) -> None:
        """Append the token ids of `chunk`, a text without spaces, to `ids`. Append to `starts` a 1 for each token that
        starts a word, and a 0 for each other token. In printable ASCII a pattern finds the words, which is quicker than
        the library."""
        if _PRINTABLE.fullmatch(chunk):
            words: list[str] = _ASCII_WORDS.findall(chunk.lower() if self._lowercase else chunk)
        else:
            normal = self._backend.normalizer.normalize_str(chunk)
            words = [word for word, _ in self._backend.pre_tokenizer.pre_tokenize_str(normal)]
        for word in words:
            pieces = self._words.get(word)
            if pieces is None:
                if len(self._words) > _MAX_WORDS:
                    self._words.clear()
                pieces = self._words[word] = [token.id for token in self._backend.model.tokenize(word)]
            ids += pieces
            starts += b"\x01" + bytes(len(pieces) - 1)

    def _encode_sentence(self, sentence: str, ids: list[int], starts: bytearray) -> None:
        encoding = self._backend.encode(sentence, add_special_tokens=False)
        ids += encoding.ids
        words = encoding.word_ids
        starts += bytes(position == 0 or words[position] != words[position - 1] for position in range(len(words)))


def _cut_blocks(sentences: Sequence[str]) -> list[Sequence[str]]:
    """Divide sentences into blocks (at least one) of about _BLOCK_CHARACTERS, and return the blocks.

    This limits the memory for a large document, because each chunk (a piece of text between spaces) takes 150 bytes
    while its block is tokenized.
    """
    stops = np.cumsum(np.fromiter(map(len, sentences), np.int64, len(sentences)))
    if not stops.size or stops[-1] <= _BLOCK_CHARACTERS:
        return [sentences]
    cuts = np.searchsorted(stops, np.arange(_BLOCK_CHARACTERS, stops[-1], _BLOCK_CHARACTERS)) + 1
    edges = sorted({0, *cuts.tolist(), len(sentences)})
    return [sentences[start:stop] for start, stop in pairwise(edges)]


def _check_unknown(backend: Tokenizer, *, origin: str) -> None:
    """Raise ValueError naming `origin` if the tokenizer fails on text outside its vocabulary. WordLevel and Unigram
    models without [UNK] fail on such text."""
    try:
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
