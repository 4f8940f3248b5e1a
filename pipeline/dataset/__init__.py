"""The contract between pipeline and trainer: columns, manifest and file names of a data set."""

from pipeline.dataset import schema
from pipeline.dataset.manifest import (
    MANIFEST_NAME,
    TOKEN_COUNTS_NAME,
    TOKENIZER_FOLDER,
    DataSetError,
    Manifest,
    Shard,
    Special,
    SplitName,
    canonical_json,
    file_sha256,
    footer_sha256,
    open_data_set,
    read_manifest,
    resolve_inside,
    shard_name,
    verify_shard,
    verify_shards,
    write_manifest,
)
from pipeline.dataset.schema import MAX_UINT16_VOCABULARY, SCHEMA_VERSION, id_type, token_counts_schema
from pipeline.dataset.shard_reader import read_row_group
from pipeline.dataset.tokenizer_file import TOKENIZER_FILES, name_panics, parse_tokenizer, parse_tokenizer_config
