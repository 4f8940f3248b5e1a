"""Turns pairs (token ranges of documents) into rows [CLS] A [SEP] B [SEP], as flat arrays. A row takes 3 us."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from pipeline import draws
from pipeline.instances.pairs import PairTable
from pipeline.tokenizer import SpecialIds, TokenizedDocument

Ids: TypeAlias = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Rows:
    """Holds n unmasked rows. The token ids of row r are ids[offsets[r]:offsets[r + 1]].

    `ids` has the same dtype as the token ids of the documents; `offsets` is int64[n + 1]. `word_starts` (bool, for each
    token) marks special tokens and the first token of each word and of each segment, so that no word crosses a [SEP].
    `first_length` (int32[n]) is the number of tokens of [CLS], first segment and [SEP] together. `label` (int8[n]) is
    -1 if the row has no label. `document_id` and `second_document_id` (uint8[n, 16]) are the ids of the documents of
    the two segments. `has_second` (bool[n]) says whether there is a second segment; if not, `second_document_id` is
    zero. `pass_number` is int32[n]. `source` (uint16[n]) is the index of the first document's source. `keys`
    (uint64[n]) are random keys for the masks.
    """

    ids: Ids
    offsets: npt.NDArray[np.int64]
    word_starts: npt.NDArray[np.bool_]
    first_length: npt.NDArray[np.int32]
    label: npt.NDArray[np.int8]
    document_id: npt.NDArray[np.uint8]
    second_document_id: npt.NDArray[np.uint8]
    has_second: npt.NDArray[np.bool_]
    pass_number: npt.NDArray[np.int32]
    source: npt.NDArray[np.uint16]
    keys: npt.NDArray[np.uint64]

    def __len__(self) -> int:
        return int(self.label.size)


def assemble_rows(documents: Sequence[TokenizedDocument], pairs: PairTable, *, special: SpecialIds, seed: int) -> Rows:
    """Return the rows of `pairs`, in order. `documents` is the list that the pairs' document indices refer to.

    Masks are drawn with Rows.keys. The key of a row depends only on `seed`, the id of the first segment's document, the
    pass and the ordinal (the pair's number in this document). So masks do not depend on batches or order.
    """
    dtype = documents[0].ids.dtype if documents else np.dtype(np.uint16)
    cls, sep = np.array([special.cls], dtype), np.array([special.sep], dtype)
    true = np.ones(1, np.bool_)
    ids: list[Ids] = [cls[:0]]
    starts: list[npt.NDArray[np.bool_]] = [true[:0]]
    columns = [pairs.first_document, pairs.first_start, pairs.first_stop]
    columns += [pairs.second_document, pairs.second_start, pairs.second_stop]
    for first, start, stop, second, second_start, second_stop in zip(*(c.tolist() for c in columns), strict=True):
        document = documents[first]
        ids += (cls, document.ids[start:stop], sep)
        starts += (true, document.word_starts[start:stop], true)
        if second >= 0:
            document = documents[second]
            ids += (document.ids[second_start:second_stop], sep)
            starts += (document.word_starts[second_start:second_stop], true)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(pairs.num_tokens)])
    first_length = pairs.first_stop - pairs.first_start + np.int32(2)
    has_second = pairs.second_document >= 0
    word_starts = np.concatenate(starts)
    word_starts[offsets[:-1] + 1] = True
    word_starts[(offsets[:-1] + first_length)[has_second]] = True
    names = np.frombuffer(b"".join(document.id for document in documents) + bytes(16), np.uint8).reshape(-1, 16)
    document_id = names[pairs.first_document]
    sources = np.array([document.source for document in documents], np.uint16)
    return Rows(
        ids=np.concatenate(ids),
        offsets=offsets,
        word_starts=word_starts,
        first_length=first_length,
        label=pairs.label,
        document_id=document_id,
        second_document_id=names[pairs.second_document],
        has_second=has_second,
        pass_number=pairs.pass_number,
        source=sources[pairs.first_document],
        keys=draws.row_keys(seed, "masks", ids=document_id, numbers=(pairs.pass_number, pairs.ordinal)),
    )
