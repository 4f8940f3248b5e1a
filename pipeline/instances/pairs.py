"""Makes sentence pairs: the first and the second segment of each row, as ranges of tokens in documents.

The algorithm is the published one (Devlin et al. 2019, section 3.1 and appendix A.2). It needs sentence lengths, not
tokens. Reference mode repeats BERT's published script: it draws from one random generator in the published order.
Strict mode (our own rules) has a generator for each document, seeded by (seed, document id, pass). So its pairs do not
depend on the order of the documents.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline import draws
from pipeline.config import NextSentence, PipelineConfig
from pipeline.instances.partners import Chunk, cut_chunks, pair_chunks
from pipeline.instances.segments import (
    NEXT,
    NO_LABEL,
    NOT_NEXT,
    Corpus,
    Int32s,
    Pair,
    Segment,
    cut_units,
    fit_one,
    fit_two,
    row_room,
    units_before,
    units_segment,
)
from pipeline.tokenizer import TokenizedDocument

_TRIES = 10


@dataclass(frozen=True, slots=True)
class Rules:
    """Says for each of three quirks of BERT's published algorithm whether to fix it (True) or to keep it (False).

    STRICT fixes all of them, and REFERENCE keeps all.
    """

    target_per_pair: bool
    """True: draw a target length for each pair. False: draw it once for each document and pass, so that rows are less
    full."""
    balance_labels: bool
    """True: offer a true next segment whenever the document has one (see pair_document). False: every chunk of one
    sentence is NOT_NEXT, so 50 to 60% of all labels are NOT_NEXT."""
    whole_word_cuts: bool
    """True: truncate segments between words. False: truncate them anywhere. (Strict mode also cuts sentences longer
    than a row into pieces, by segments.cut_units.)"""


STRICT = Rules(target_per_pair=True, balance_labels=True, whole_word_cuts=True)
REFERENCE = Rules(target_per_pair=False, balance_labels=False, whole_word_cuts=False)


@dataclass(frozen=True, slots=True)
class PairTable:
    """A table of n pairs, stored as columns of length n.

    `first_document` and `second_document` are indices into the list given to make_pairs. `second_document` is -1 if
    there is no second segment. A segment consists of its document's tokens from start to stop (exclusive). `label` is
    NEXT, NOT_NEXT or NO_LABEL. `ordinal` numbers the pairs of a document within a pass, from 0.
    """

    first_document: Int32s
    first_start: Int32s
    first_stop: Int32s
    second_document: Int32s
    second_start: Int32s
    second_stop: Int32s
    label: npt.NDArray[np.int8]
    ordinal: Int32s
    pass_number: Int32s

    @classmethod
    def concatenate(cls, tables: Sequence[PairTable]) -> PairTable:
        """Return one table with the pairs of all `tables`, which must refer to the same list of documents."""
        names = [field.name for field in fields(cls)]
        return cls(*(np.concatenate([getattr(table, name) for table in tables]) for name in names))

    @classmethod
    def from_pairs(cls, pairs: Sequence[tuple[Pair, int, int]], *, documents: Sequence[int]) -> PairTable:
        """Return the table of `pairs`. Each entry is (pair, ordinal, pass number), where the ordinal counts the pairs
        of a document within a pass. A document that has the number d in `pairs` gets the number documents[d] in the
        table."""
        rows = [(*pair.first, *(pair.second or (-1, 0, 0)), pair.label, *rest) for pair, *rest in pairs]
        columns = np.array(rows, np.int64).reshape(-1, 9).T
        given = np.array([*documents, -1], np.int64)
        columns[0], columns[3] = given[columns[0]], given[columns[3]]
        numbers: list[Any] = [np.ascontiguousarray(column, np.int32) for column in columns]
        numbers[6] = numbers[6].astype(np.int8)
        return cls(*numbers)

    def __len__(self) -> int:
        return int(self.label.size)

    def take(self, rows: npt.NDArray[np.integer[Any]] | slice) -> PairTable:
        """Return a table of the pairs that `rows` (indices or a slice) selects, in this order."""
        return PairTable(*(getattr(self, field.name)[rows] for field in fields(self)))

    @property
    def num_tokens(self) -> npt.NDArray[np.int64]:
        """The length of each pair's row in tokens, special tokens included."""
        second = self.second_stop - self.second_start
        num_special = np.where(self.second_document >= 0, 3, 2)
        return (self.first_stop - self.first_start + second + num_special).astype(np.int64)


def make_pairs(
    documents: Sequence[TokenizedDocument],
    *,
    config: PipelineConfig,
    pass_number: int,
    passes: Sequence[int] | None = None,
) -> PairTable:
    """Return all pairs of one pass over the documents of a bucket, in the order of document ids. These are our own
    rules (mode: strict), not those of BERT's published script.

    `passes` has the number of passes for each document; None means that every document takes part in every pass. In
    each of its passes a document gives at least one pair. In later passes it gives no pairs, but it still supplies
    negatives (second segments that do not follow) to other documents. The order of `documents` does not matter. Raises
    ValueError if a document has no tokens, if two documents have the same id, or if config.next_sentence is
    random_document and there are fewer than two documents.
    """
    order = sorted(range(len(documents)), key=lambda index: documents[index].id)
    check_documents(documents, next_sentence=config.next_sentence)
    ranked = [documents[index] for index in order]
    room = row_room(config.max_seq_length, next_sentence=config.next_sentence)
    bounds = [cut_units(document, room=room, rng_parts=(config.seed, document.id, pass_number)) for document in ranked]
    corpus = Corpus(ranked, bounds=bounds)
    takes_part = [passes is None or passes[index] > pass_number for index in order]
    rngs = (draws.stream(config.seed, "pairs", document.id, pass_number) for document in ranked)
    short = config.short_sequence_probability
    rows: list[tuple[Pair, int, int]] = []
    if config.next_sentence == "random_document":
        chunks: list[Chunk] = []
        of_source = Counter(document.source for document in ranked)
        for index, rng in enumerate(rngs):
            chunks += cut_chunks(
                bounds[index],
                document=index,
                room=room,
                short_sequence_probability=short,
                is_alone=of_source[ranked[index].source] < 2,
                rng=rng,
            )
        pairs = pair_chunks(corpus, chunks, room=room, seed=config.seed, pass_number=pass_number, takes_part=takes_part)
        rows += ((pair, ordinal, pass_number) for pair, ordinal in pairs)
        return PairTable.from_pairs(rows, documents=order)
    for index, rng in enumerate(rngs):
        if not takes_part[index]:
            continue
        found = pair_document(
            corpus,
            index=index,
            max_seq_length=config.max_seq_length,
            short_sequence_probability=short,
            next_sentence=config.next_sentence,
            rules=STRICT,
            rng=rng,
        )
        rows += ((pair, ordinal, pass_number) for ordinal, pair in enumerate(found))
    return PairTable.from_pairs(rows, documents=order)


def pair_document(
    corpus: Corpus,
    *,
    index: int,
    max_seq_length: int,
    short_sequence_probability: float,
    next_sentence: NextSentence,
    rules: Rules,
    rng: random.Random,
) -> Iterator[Pair]:
    """Yield the pairs of one document, truncated to fit a row. `index` is the document's index in `corpus`. The caller
    may draw from `rng` between two pairs.

    There are two modes: strict (our own rules) and reference (those of BERT's published script). In strict mode, if
    `next_sentence` is random_document, partners.pair_chunks makes the pairs instead of this function.

    Units (sentences, or pieces of long sentences) are collected in a chunk until it reaches the target length. If
    `next_sentence` is none, the chunk is the only segment. Otherwise a uniformly drawn number of its units becomes
    segment A. A fair coin decides whether segment B is the rest of the chunk (the true next segment) or a negative (a
    wrong next segment). If `next_sentence` is sentence_order, a negative is the true pair with its segments swapped. If
    it is random_document, a negative consists of consecutive units of another document, from a uniformly drawn unit on;
    the rest of the chunk, which is then unused, starts the next chunk.

    With rules.balance_labels a chunk takes a second unit even if the first unit by itself reaches the target. If only
    the document's last unit remains for a chunk, this unit becomes B, and the units before it are used again as A.
    """
    bounds = corpus.bounds[index]
    last = len(bounds) - 1
    room = row_room(max_seq_length, next_sentence=next_sentence)
    target = begin = 0
    while begin < last:
        if begin == 0 or rules.target_per_pair:
            target = room
            if rng.random() < short_sequence_probability:
                target = rng.randint(2, room)
        end = min(bisect_left(bounds, bounds[begin] + target, begin + 1), last)
        if next_sentence == "none":
            yield Pair(fit_one(corpus, units_segment(corpus, index, begin, end), room=room, rng=rng), None, NO_LABEL)
            begin = end
            continue
        if rules.balance_labels and end == begin + 1 < last:
            end += 1
        lead, split = begin, end
        if end - begin >= 2:
            split = begin + rng.randint(1, end - begin - 1)
        elif rules.balance_labels and begin > 0:
            lead = units_before(bounds, begin, length=target - (bounds[end] - bounds[begin]))
        true_next: tuple[Segment, Segment] | None = None
        if split < end:
            true_next = units_segment(corpus, index, begin, split), units_segment(corpus, index, split, end)
        elif lead < begin:
            true_next = units_segment(corpus, index, lead, begin), units_segment(corpus, index, begin, end)
        alone = units_segment(corpus, index, begin, split)
        if next_sentence == "sentence_order":
            begin = end
            if true_next is None:
                yield Pair(fit_one(corpus, alone, room=room + 1, rng=rng), None, NO_LABEL)
                continue
            first, second = fit_two(corpus, *true_next, room=room, whole_words=rules.whole_word_cuts, rng=rng)
            swapped = rng.random() < 0.5
            yield Pair(second, first, NOT_NEXT) if swapped else Pair(first, second, NEXT)
            continue
        if true_next is None or rng.random() < 0.5:
            length = target - (alone.stop - alone.start)
            other = _draw_other(corpus, but=index, length=length, rng=rng)
            first, second = fit_two(corpus, alone, other, room=room, whole_words=rules.whole_word_cuts, rng=rng)
            yield Pair(first, second, NOT_NEXT)
            begin = split
        else:
            first, second = fit_two(corpus, *true_next, room=room, whole_words=rules.whole_word_cuts, rng=rng)
            yield Pair(first, second, NEXT)
            begin = end


def fewest_documents(next_sentence: NextSentence) -> int:
    """Return the smallest number of documents that training and validation data must each have for `next_sentence`.

    The number is 2 if `next_sentence` is random_document, because a wrong next segment comes from another document.
    Otherwise it is 1.
    """
    return 2 if next_sentence == "random_document" else 1


def check_documents(documents: Sequence[TokenizedDocument], *, next_sentence: NextSentence) -> None:
    """Raise ValueError if a document has no tokens, if two documents have the same id, or if `next_sentence` is
    random_document and there are fewer than two documents."""
    if next_sentence == "random_document" and len(documents) < 2:
        raise ValueError(
            f"next_sentence: random_document takes second segments from other documents, but there are "
            f"{len(documents)} in the bucket; give at least two, or set next_sentence: sentence_order or none"
        )
    seen: set[bytes] = set()
    for document in documents:
        if document.id in seen:
            raise ValueError(f"document id {document.id.hex()} appears twice in a bucket; drop duplicates first")
        seen.add(document.id)
        if not document.ids.size:
            raise ValueError(f"document {document.id.hex()} has no tokens; drop it before pairing")


def _draw_other(corpus: Corpus, *, but: int, length: int, rng: random.Random) -> Segment:
    """Return a random segment, drawn as in BERT's published script: consecutive units (sentences or pieces of them) of
    one document.

    The document is drawn uniformly. `but` is the index of a document to avoid: if this document is drawn, the draw is
    repeated, but after ten draws the last one counts. The first unit is drawn uniformly. The segment ends when it has
    `length` tokens, or with the document.
    """
    for _ in range(_TRIES):
        index = rng.randint(0, len(corpus.documents) - 1)
        if index != but:
            break
    bounds = corpus.bounds[index]
    start = rng.randint(0, len(bounds) - 2)
    stop = min(bisect_left(bounds, bounds[start] + length, start + 1), len(bounds) - 1)
    return Segment(index, bounds[start], bounds[stop])
