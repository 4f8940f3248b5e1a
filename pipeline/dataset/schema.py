"""The columns of a data set, which are the contract between pipeline and trainer.

One row is one sentence pair (A, B), stored once and unmasked, with K mask sets (choices of masked positions). Whoever
changes the columns must increase SCHEMA_VERSION. Token ids are uint16 up to 65,536 vocabulary entries and int32 above.
"""

from __future__ import annotations

import pyarrow as pa

SCHEMA_VERSION = 2

INPUT_IDS = "input_ids"
"""list<id>: [CLS] A [SEP] B [SEP], or [CLS] A [SEP] if there is no second segment; unmasked."""
NUM_TOKENS = "num_tokens"
"""uint16: length of input_ids."""
FIRST_LENGTH = "first_length"
"""uint16: number of tokens of [CLS] A [SEP], which have segment id 0; the tokens after them have segment id 1."""
NEXT_SENTENCE_LABEL = "next_sentence_label"
"""uint8: 0 if B follows A, 1 if it does not (the convention of transformers); null if there is no second segment."""
MASKED_POSITIONS = "masked_positions"
"""list<list<uint16>>: K lists of ascending positions to predict; the label is input_ids at the position."""
MASKED_INPUTS = "masked_inputs"
"""list<list<id>>: K lists of the ids that the model gets at the masked positions: [MASK], the same id or another."""
DOCUMENT_ID = "document_id"
"""binary(16 bytes): 128-bit hash of the cleaned text of A's document."""
SECOND_DOCUMENT_ID = "second_document_id"
"""binary(16 bytes): 128-bit hash of the cleaned text of B's document; null if there is no second segment."""
PASS_NUMBER = "pass_number"
"""uint16: number of the pass over the corpus that made the pair, from 0."""
SOURCE = "source"
"""uint16: source of A's document, an index into the manifest's `sources`."""

METADATA_SCHEMA_VERSION = b"cloze.schema_version"
METADATA_VOCABULARY_HASH = b"cloze.vocabulary_hash"

MAX_UINT16_VOCABULARY = 65_536


def id_type(vocabulary_size: int) -> pa.DataType:
    """Return the Arrow type of token ids: uint16 if every id of a vocabulary of this size fits, else int32."""
    return pa.uint16() if vocabulary_size <= MAX_UINT16_VOCABULARY else pa.int32()


def sentence_pair_schema(vocabulary_size: int, *, vocabulary_hash: str) -> pa.Schema:
    """Return the Arrow schema of a shard, with the schema version and `vocabulary_hash` as key-value metadata."""
    ids = id_type(vocabulary_size)
    return pa.schema(
        [
            pa.field(INPUT_IDS, pa.list_(ids), nullable=False),
            pa.field(NUM_TOKENS, pa.uint16(), nullable=False),
            pa.field(FIRST_LENGTH, pa.uint16(), nullable=False),
            pa.field(NEXT_SENTENCE_LABEL, pa.uint8()),
            pa.field(MASKED_POSITIONS, pa.list_(pa.list_(pa.uint16())), nullable=False),
            pa.field(MASKED_INPUTS, pa.list_(pa.list_(ids)), nullable=False),
            pa.field(DOCUMENT_ID, pa.binary(), nullable=False),
            pa.field(SECOND_DOCUMENT_ID, pa.binary()),
            pa.field(PASS_NUMBER, pa.uint16(), nullable=False),
            pa.field(SOURCE, pa.uint16(), nullable=False),
        ],
        metadata={
            METADATA_SCHEMA_VERSION: str(SCHEMA_VERSION).encode(),
            METADATA_VOCABULARY_HASH: vocabulary_hash.encode(),
        },
    )


def token_counts_schema() -> pa.Schema:
    """Return the Arrow schema of token_counts.parquet, which counts each token id in the training rows.

    The columns are `id`, `token` (the text of the token) and `count`. Special tokens have the count 0.
    """
    return pa.schema(
        [
            pa.field("id", pa.int32(), nullable=False),
            pa.field("token", pa.string(), nullable=False),
            pa.field("count", pa.int64(), nullable=False),
        ]
    )
