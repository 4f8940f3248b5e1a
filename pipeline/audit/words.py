"""Finds where words begin in rows of token ids, from the form of the tokens or by tokenizing a sample of rows again.

WordPiece marks tokens that continue a word ("##ing"), and BPE may mark tokens that end a word. Byte-level BPE marks
neither, so up to SAMPLED_ROWS rows of a row group are decoded and tokenized again. If this gives the same token ids,
the words of the row are known.
"""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from pipeline.audit.blocks import Block, Bools, Vocabulary
from pipeline.tokenizer import is_within_word

SAMPLED_ROWS = 200
_UNUSED = re.compile(r"\[unused\d+\]|<unused\d+>|madeupword\d+")


def describe_tokens(tokens: list[str], *, special: set[int], names: dict[str, int], backend: Tokenizer) -> Vocabulary:
    """Return the Vocabulary: arrays by token id that say, for example, whether a token continues a word.

    `tokens` has the text of each token, by id. `special` has the ids of all special tokens. `names` maps "unk", "cls",
    "sep" and "mask" to their ids. `backend` is the tokenizer; its model says how tokens show where words begin or end.
    """
    model = json.loads(backend.to_str())["model"]
    prefix = model.get("continuing_subword_prefix") if model["type"] == "WordPiece" else None
    suffix = model.get("end_of_word_suffix") if model["type"] == "BPE" else None
    return Vocabulary(
        tokens=tokens,
        keys=np.arange(len(tokens), dtype=np.uint64),
        special=np.array([index in special for index in range(len(tokens))], np.bool_),
        unused=np.array([bool(_UNUSED.fullmatch(token)) for token in tokens], np.bool_),
        continues=np.array([token.startswith(prefix) for token in tokens], np.bool_) if prefix else None,
        ends=np.array([token.endswith(suffix) for token in tokens], np.bool_) if suffix else None,
        **{name: names[name] for name in ("unk", "cls", "sep", "mask")},
    )


def find_words(block: Block, *, vocabulary: Vocabulary, backend: Tokenizer | None) -> tuple[Bools, Bools]:
    """Return (starts, known). `starts` (bool[tokens]) is true for tokens that begin a word, and `known` (bool[n]) is
    true for rows where `starts` is certain.

    Special tokens and the first token of a segment begin a word too. The rows must have the layout [CLS] A [SEP] B
    [SEP] (or [CLS] A [SEP]) and token ids inside the vocabulary. `backend` is the tokenizer. If it is None, and the
    tokens do not show where words begin or end, `known` is false everywhere.
    """
    ids = block.ids
    known = np.ones(len(block), np.bool_)
    if vocabulary.continues is not None:
        starts = ~vocabulary.continues[ids]
    elif vocabulary.ends is not None:
        starts = np.concatenate([[True], vocabulary.ends[ids][:-1]]) if ids.size else np.zeros(0, np.bool_)
    elif backend is not None:
        starts, known = _tokenize_again(block, backend=backend)
    else:
        return np.ones(ids.size, np.bool_), np.zeros(len(block), np.bool_)
    starts |= vocabulary.special[ids]
    starts[block.offsets[:-1] + 1] = True
    paired = block.first_length < block.lengths
    starts[(block.offsets[:-1] + block.first_length)[paired]] = True
    starts[block.offsets[1:] - 1] = True
    return starts, known


def join_published(block: Block, starts: Bools, *, vocabulary: Vocabulary) -> Bools:
    """Return `starts` (bool[tokens]: whether each token begins a word), changed to fit BERT's published algorithm.
    There, if the first token of a second segment begins with "##", it does not begin a word, but continues the last
    word of the first segment."""
    if vocabulary.continues is None:
        return starts
    paired = np.flatnonzero(block.first_length < block.lengths)
    place = (block.offsets[:-1] + block.first_length)[paired]
    joined = starts.copy()
    joined[place] = ~vocabulary.continues[block.ids[place]]
    joined[block.offsets[:-1] + 1] = True
    return joined


def _tokenize_again(block: Block, *, backend: Tokenizer) -> tuple[Bools, Bools]:
    starts = np.zeros(block.ids.size, np.bool_)
    known = np.zeros(len(block), np.bool_)
    for row in np.unique(np.linspace(0, len(block) - 1, min(len(block), SAMPLED_ROWS)).astype(np.int64)).tolist():
        begin, end = int(block.offsets[row]), int(block.offsets[row + 1])
        middle = begin + int(block.first_length[row])
        segments = [(begin + 1, middle - 1)] + ([(middle, end - 1)] if middle < end else [])
        known[row] = all(_mark(block, starts, first, last, backend=backend) for first, last in segments)
    return starts, known


def _mark(block: Block, starts: Bools, begin: int, end: int, *, backend: Any) -> bool:
    ids = block.ids[begin:end].tolist()
    text = backend.decode(ids, skip_special_tokens=False)
    encoding = backend.encode(text, add_special_tokens=False)
    words = encoding.word_ids
    if encoding.ids != ids or None in words:
        return False
    starts[begin:end] = [
        place == 0 or (words[place] != words[place - 1] and not is_within_word(text, encoding.offsets[place][0]))
        for place in range(len(words))
    ]
    return True
