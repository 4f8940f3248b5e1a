"""Trains subword vocabularies from counted words: WordPiece, BPE and byte-level BPE.

The same counts give the same tokens in the same order on any machine. 8,192 tokens from a text of 2.7 M words take 4 s
on one core.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from tokenizers import pre_tokenizers

from pipeline.tokenizer import END_OF_WORD, PIECE_PREFIX
from pipeline.vocabulary.merges import Criterion, MergeTable
from pipeline.vocabulary.word_counts import JOINT

LAYOUT = ("[PAD]", *(f"[unused{number}]" for number in range(1, 100)), "[UNK]", "[CLS]", "[SEP]", "[MASK]")
"""The first 104 entries of every vocabulary, as in BERT's."""
_DROPPED_SHARE, _DROPPED_SHARE_AT_MOST = 1e-5, 1e-4
_FALL = 0.8

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Subwords:
    """A trained vocabulary. `tokens` are in the order of their ids, and begin with the special and unused tokens
    (LAYOUT). `merges` are the merged pairs, in order."""

    tokens: list[str]
    merges: list[tuple[str, str]]


def train_wordpiece(
    word_counts: Mapping[str, int], *, size: int, criterion: Criterion = "likelihood", min_pair_count: int | None = None
) -> list[str]:
    """Train a WordPiece vocabulary, and return its tokens: first the special and unused tokens (LAYOUT), then
    characters, then longer pieces in the order of the merges. `size` is the number of tokens.

    With `criterion` "frequency", each step merges the most frequent pair. With "likelihood" (Schuster and Nakajima
    2012), each step merges the pair (s, t) that raises the likelihood of the text most per occurrence. This pair has
    the greatest count(st) / (count(s) count(t)). Because rare pairs score highest, pairs that occur less than
    `min_pair_count` times are not considered. If `min_pair_count` is None, this bound starts at the count of the most
    frequent pair. Whenever no pair reaches the bound, the bound falls by a fifth, down to 2. So frequent words come
    first, and the criterion chooses among pairs of similar frequency (measured in docs/LOG.md).

    Raises ValueError if `size` is too small for the characters. Logs a warning if there are too few pairs for `size`.
    """
    return _train(word_counts, size=size, criterion=criterion, min_pair_count=min_pair_count, kind="wordpiece").tokens


def train_bpe(
    word_counts: Mapping[str, int], *, size: int, byte_level: bool = False, min_pair_count: int | None = None
) -> Subwords:
    """Train byte-pair encoding (Sennrich et al. 2016), and return its tokens and merges. `size` is the number of
    tokens.

    Each step merges the most frequent pair, as long as that pair occurs at least `min_pair_count` times (None means 2).
    Tokens that end a word end in END_OF_WORD. With `byte_level`, words come from the ByteLevel pre-tokenizer, and
    END_OF_WORD is not used. The alphabet is then all 256 bytes, so no text is unknown.

    Raises ValueError if `size` is too small for the characters. Logs a warning if there are too few pairs for `size`.
    """
    kind = "byte_level_bpe" if byte_level else "bpe"
    return _train(word_counts, size=size, criterion="frequency", min_pair_count=min_pair_count or 2, kind=kind)


def _train(
    word_counts: Mapping[str, int], *, size: int, criterion: Criterion, min_pair_count: int | None, kind: str
) -> Subwords:
    alphabet, table = _spell(word_counts, kind=kind, most=(size - len(LAYOUT)) // 2)
    tokens = dict.fromkeys([*LAYOUT, *alphabet])
    if len(tokens) > size:
        raise ValueError(
            f"a vocabulary of {size} entries is too small: {len(LAYOUT)} are special or unused and {len(alphabet)} are "
            f"characters; set vocabulary.size to at least {len(tokens)}"
        )
    merges: list[tuple[str, str]] = []
    floor = 2 if min_pair_count is None else min_pair_count
    bound = float(floor) if min_pair_count is not None else float(table.greatest_count)
    while len(tokens) < size:
        pair = table.best(criterion=criterion, min_count=max(floor, int(bound)))
        if pair is None and bound <= floor:
            _logger.warning(
                "the vocabulary has %d entries, not %d: no pair of units occurs %d times or more in %d different "
                "words; give more text, lower vocabulary.min_pair_count, or set vocabulary.size=%d",
                *(len(tokens), size, floor, len(word_counts), len(tokens)),
            )
            break
        if pair is None:
            bound *= _FALL
            continue
        merges.append(table.names(pair))
        tokens[table.merge(pair)] = None
    return Subwords(list(tokens), merges)


def _spell(word_counts: Mapping[str, int], *, kind: str, most: int) -> tuple[list[str], MergeTable]:
    """Return (alphabet, table). The alphabet is the list of single-character symbols. The table is a MergeTable of the
    words, spelled in these symbols. `kind` is "wordpiece", "bpe" or "byte_level_bpe".

    The rarest characters, and the words that contain one of them, are left out. These characters make up at most 1 in
    100,000 of the text, or 1 in 10,000 if the alphabet would otherwise exceed `most` entries. The byte-level alphabet
    always has every byte. The character JOINT at a side of a word says that the text goes on there without a space. If
    JOINT stands before a word, its first character has ## too (WordPiece). If JOINT stands after a word, its last
    character has no end-of-word mark (BPE).
    """
    spelled_words = sorted(word for word, count in word_counts.items() if word.strip(JOINT) and count > 0)
    counts = np.array([word_counts[word] for word in spelled_words], np.int64)
    words = [word.strip(JOINT) for word in spelled_words]
    within = np.array([len(word) for word in words], np.int64) < [len(word) for word in spelled_words]
    lengths = np.array([len(word) for word in words], np.int64)
    characters = np.frombuffer("".join(words).encode("utf-32-le"), np.uint32).astype(np.int64)
    weight = np.repeat(counts, lengths)
    stops = np.cumsum(lengths)
    marked = np.zeros(characters.size, np.int64)
    if kind == "wordpiece":
        marked[:] = 1
        marked[(stops - lengths)[~within]] = 0
    elif kind == "bpe":
        marked[(stops - 1)[~within]] = 1
    codes, spelled = np.unique(characters * 2 + marked, return_inverse=True)
    symbols = [_symbol(chr(code >> 1), marked=bool(code & 1), kind=kind) for code in codes.tolist()]
    if kind == "byte_level_bpe":
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        kept = np.ones(codes.size, np.bool_)
    else:
        kept = _keep_frequent(codes, np.bincount(spelled, weights=weight).astype(np.float64), most=most)
        alphabet = [symbol for symbol, keep in zip(symbols, kept.tolist(), strict=True) if keep]
    if not words:
        return alphabet, MergeTable([], words=np.zeros(0, np.int32), lengths=lengths, counts=counts, prefix="")
    whole = np.logical_and.reduceat(kept[spelled], stops - lengths)
    if not whole.all():
        _logger.info(
            "%d of %d characters are left out; words with them, %.4f%% of the text, are [UNK]",
            *(int((~kept).sum()), codes.size, 100 * counts[~whole].sum() / counts.sum()),
        )
    table = MergeTable(
        symbols,
        words=spelled[np.repeat(whole, lengths)].astype(np.int32),
        lengths=lengths[whole],
        counts=counts[whole],
        prefix=PIECE_PREFIX if kind == "wordpiece" else "",
    )
    return alphabet, table


def _symbol(character: str, *, marked: bool, kind: str) -> str:
    if not marked:
        return character
    return PIECE_PREFIX + character if kind == "wordpiece" else character + END_OF_WORD


def _keep_frequent(
    codes: npt.NDArray[np.int64], counts: npt.NDArray[np.float64], *, most: int
) -> npt.NDArray[np.bool_]:
    """Return an array that is True for each of `codes` whose character is frequent enough to stay. The rarest
    characters are dropped. The dropped characters make up at most 1 in 100,000 of the text, or at most 1 in 10,000 if
    more than `most` codes would stay otherwise. Of equally frequent characters, the last in code point order is dropped
    first.

    A code is a symbol: a character's code point times 2, plus 1 if the symbol has a mark such as ##. `counts` has the
    count of each code. The two codes of a character are counted together.
    """
    characters, of = np.unique(codes >> 1, return_inverse=True)
    totals = np.bincount(of, weights=counts)
    order = np.lexsort((characters, -totals))
    before = np.cumsum(totals[order]) - totals[order]
    stays = np.zeros(characters.size, np.bool_)
    for share in (_DROPPED_SHARE, _DROPPED_SHARE_AT_MOST):
        stays[order] = before < (1 - share) * totals.sum()
        kept: npt.NDArray[np.bool_] = stays[of]
        if kept.sum() <= most:
            break
    return kept
