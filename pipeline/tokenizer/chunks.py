"""Caches the token ids of pieces of text between spaces, and puts the ids of whole documents together from the caches.

The steps of the `tokenizers` library fill the caches, so the caches change only the speed. Words start where the
library's pre-tokenizer or a dictionary says.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from pipeline.documents import CLAUSE_CHARACTERS, TextLoss
from pipeline.tokenizer.dictionary import BY_TOKENIZER, START, Dictionary
from pipeline.tokenizer.marks import LostMarks

Ids: TypeAlias = npt.NDArray[Any]
"""Token ids, as uint16 or int32."""

_ASCII_WORDS = re.compile(r"[0-9A-Za-z]+|[^0-9A-Za-z]")
_PRINTABLE = re.compile(r"[!-~]*")
_MAX_CHUNKS = 400_000
_MAX_CHARACTERS = 16_000_000
_MAX_WORDS = 250_000
_BLOCK_CHARACTERS = 1 << 20


class _Numbers(dict[str, int]):
    """A dict that gives each text a number. The texts are numbered from 0 in the order in which they are first looked
    up. `fresh` lists the texts that were added since the list was last cleared."""

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


class ChunkTable:
    """A cache of the token ids of chunks (pieces of text between spaces), from which whole documents are put together.

    With BERT's normalizer and pre-tokenizer a space always ends a word, so a sentence has the ids of its chunks in
    order. For other tokenizers a chunk is a whole sentence, and nothing is kept between documents.
    """

    def __init__(
        self,
        backend: Tokenizer,
        *,
        id_dtype: np.dtype[Any],
        unknown: int,
        marks: LostMarks,
        words: Dictionary | None = None,
    ) -> None:
        """`unknown` is the id of the token [UNK]. `marks` counts vowel signs and tones that the normalizer removes.
        `words` finds where words start in scripts without spaces."""
        self._id_dtype = id_dtype
        self._unknown, self._marks, self._dictionary = unknown, marks, words
        self._backend = Tokenizer.from_str(backend.to_str())
        self._backend.encode_special_tokens = True
        layout = json.loads(backend.to_str())
        normalizer = layout["normalizer"] or {}
        steps = normalizer.get("normalizers", [normalizer])
        self._by_space = (
            (layout["pre_tokenizer"] or {}).get("type") == "BertPreTokenizer"
            and [step.get("type") for step in steps if not _is_dotted_i(step)]
            in (
                ["BertNormalizer"],
                ["BertNormalizer", "NFC"],
                ["NFC", "BertNormalizer"],
                ["NFC", "BertNormalizer", "NFC"],
            )
            and all(token["special"] for token in layout["added_tokens"])
        )
        self._lowercase = self._by_space and any(step.get("lowercase") for step in steps)
        self._is_plain = not any(map(_is_dotted_i, steps))
        """Whether the normalizer changes nothing in printable ASCII text, except that it may lower-case the text."""
        self._longest = layout["model"].get("max_input_chars_per_word") or _MAX_CHARACTERS
        self._words: dict[str, list[int]] = {}
        self._forget()

    def tokenize(
        self, sentences: Sequence[str], *, loss: TextLoss
    ) -> tuple[Ids, npt.NDArray[np.bool_], npt.NDArray[np.int32]]:
        """Return three arrays: token ids, word starts and sentence lengths. The first two have an entry for each token
        of all sentences, one sentence after the other. A word start is true for the first token of a word. A sentence
        length is a number of tokens; sentences without tokens are left out.

        Add to `loss` how much text is lost, for example because it becomes [UNK].
        """
        blocks = [self._tokenize(block, loss=loss) for block in _cut_blocks(sentences)]
        if len(blocks) == 1:
            return blocks[0]
        ids, word_starts, lengths = zip(*blocks, strict=True)
        return np.concatenate(ids), np.concatenate(word_starts), np.concatenate(lengths)

    def _tokenize(
        self, sentences: Sequence[str], *, loss: TextLoss
    ) -> tuple[Ids, npt.NDArray[np.bool_], npt.NDArray[np.int32]]:
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
        if self._losses:
            for number in numbers[self._loses.values[numbers]].tolist():
                loss.add(self._losses[number])
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
        self._loses = _Column(np.dtype(np.bool_))
        self._losses: dict[int, TextLoss] = {}
        """Maps the number of a chunk to what is lost of the chunk. It has only the chunks that `_loses` marks."""

    def _learn(self) -> None:
        """Tokenize the new chunks (pieces of text between spaces), and add their token ids to the cache."""
        ids: list[int] = []
        starts = bytearray()
        lengths: list[int] = []
        loses = bytearray()
        take = self._split_chunk if self._by_space else self._encode_sentence
        may_lose = self._marks.may_lose("".join(self._numbers.fresh))
        for chunk in self._numbers.fresh:
            before = len(ids)
            loss = take(chunk, ids, starts)
            found = self._marks.count(chunk) if may_lose else None
            if found is not None:
                loss = loss or TextLoss()
                loss.marks, loss.lost_marks, loss.letters = found
            if loss is not None:
                self._losses[self._loses.size + len(loses)] = loss
            loses.append(loss is not None)
            lengths.append(len(ids) - before)
            self._characters += len(chunk)
        self._numbers.fresh.clear()
        self._loses.append(np.frombuffer(bytes(loses), np.bool_))
        sizes = np.array(lengths, np.int64)
        self._begins.append(self._ids.size + np.cumsum(sizes) - sizes)
        self._lengths.append(sizes)
        self._ids.append(np.array(ids, self._id_dtype))
        self._word_starts.append(np.frombuffer(bytes(starts), np.bool_))

    def _split_chunk(self, chunk: str, ids: list[int], starts: bytearray) -> TextLoss | None:
        """Append the token ids of `chunk`, a text without spaces, to `ids`. Append to `starts` a 1 for each token that
        starts a word, and a 0 for each other token. In printable ASCII, a pattern finds the words, because this is
        quicker than the library.

        Return counts of the lost text, such as characters in [UNK], or None if nothing is lost.
        """
        if self._is_plain and _PRINTABLE.fullmatch(chunk):
            words: list[str] = _ASCII_WORDS.findall(chunk.lower() if self._lowercase else chunk)
        else:
            normal = self._backend.normalizer.normalize_str(chunk)
            words = [word for word, _ in self._backend.pre_tokenizer.pre_tokenize_str(normal)]
        if self._dictionary is not None and not chunk.isascii():
            return self._split_by_dictionary(words, ids, starts)
        unknown = clauses = 0
        for word in words:
            pieces = self._words.get(word)
            if pieces is None:
                if len(self._words) > _MAX_WORDS:
                    self._words.clear()
                pieces = self._words[word] = [token.id for token in self._backend.model.tokenize(word)]
            ids += pieces
            starts += b"\x01" + bytes(len(pieces) - 1)
            if self._unknown in pieces:
                unknown += len(word) if len(pieces) == 1 else pieces.count(self._unknown)
            if len(word) > CLAUSE_CHARACTERS:
                clauses += len(word)
        return self._lost_of(words, unknown=unknown, clauses=clauses)

    def _split_by_dictionary(self, words: Sequence[str], ids: list[int], starts: bytearray) -> TextLoss | None:
        """Append the token ids of `words`, which follow each other without a space, to `ids`. Append to `starts`
        whether each token starts a word. A dictionary of the language decides this in scripts without spaces, and the
        tokenizer elsewhere.

        Return counts of the lost text, such as characters in [UNK], or None if nothing is lost.
        """
        assert self._dictionary is not None
        marks = self._dictionary.mark("".join(words))
        begin = unknown = clauses = 0
        last = 0  # where the last word began
        for word in words:
            data = word.encode()
            for number, token in enumerate(self._backend.model.tokenize(word)):
                at, end = (len(data[:offset].decode()) for offset in token.offsets)
                mark = marks[begin + at]
                starts.append(mark == START if mark != BY_TOKENIZER else number == 0)
                ids.append(token.id)
                unknown += (end - at) * (token.id == self._unknown)
                if starts[-1]:
                    clauses += _of_clause(begin + at - last)
                    last = begin + at
            begin += len(word)
        return self._lost_of(words, unknown=unknown, clauses=clauses + _of_clause(begin - last))

    def _lost_of(self, words: Sequence[str], *, unknown: int, clauses: int) -> TextLoss | None:
        if not unknown and not clauses:
            return None
        longer = sum(len(word) > self._longest for word in words) if unknown else 0
        return TextLoss(unknown_characters=unknown, long_words=longer, clause_characters=clauses)

    def _encode_sentence(self, sentence: str, ids: list[int], starts: bytearray) -> TextLoss | None:
        """Append the ids of a sentence's tokens to `ids`, and to `starts` whether each token starts a word. Return
        counts of the lost text, such as characters in [UNK], or None if nothing is lost."""
        encoding = self._backend.encode(sentence, add_special_tokens=False)
        ids += encoding.ids
        words = encoding.word_ids
        marks = self._dictionary.mark(sentence) if self._dictionary is not None else bytes(len(sentence))
        unknown = clauses = longer = last = before = 0
        for position, (index, (at, end)) in enumerate(zip(encoding.ids, encoding.offsets, strict=True)):
            is_first = position == 0 or (words[position] != words[position - 1] and not is_within_word(sentence, at))
            mark = marks[at] if at < len(marks) else BY_TOKENIZER
            if position and mark != BY_TOKENIZER:
                is_first = mark == START and at >= before  # a byte-level token may be a part of a character
            starts.append(is_first)
            if is_first:
                clauses += _of_clause(before - last)
                last = at
            before = end
            if index == self._unknown:
                unknown += end - at
                longer += end - at > self._longest
        clauses += _of_clause(before - last)
        if not unknown and not clauses:
            return None
        return TextLoss(unknown_characters=unknown, long_words=longer, clause_characters=clauses)


def is_within_word(text: str, place: int) -> bool:
    """Whether the characters before and at index `place` certainly belong to one word. They do if one of them is a mark
    (such as a vowel sign) and the other is a letter or a mark.

    Byte-level tokenizers need this check, because they use GPT-2's pattern, which ends a word at each mark.
    """
    if not 0 < place < len(text):
        return False
    kinds = unicodedata.category(text[place - 1])[0] + unicodedata.category(text[place])[0]
    return kinds in ("LM", "ML", "MM")


def _of_clause(characters: int) -> int:
    return characters if characters > CLAUSE_CHARACTERS else 0


def _is_dotted_i(step: dict[str, Any]) -> bool:
    """Whether a step of a normalizer lower-cases I as Turkish does. files.bert_normalizer adds such steps."""
    return step.get("type") == "Replace" and step.get("pattern") in ({"String": "I"}, {"String": "\u0130"})


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
