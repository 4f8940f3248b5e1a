"""Finds, splits, reads and fingerprints the input: Wikipedia dumps, books, text and records."""

from pipeline.sources.archives import read_members
from pipeline.sources.books import BOOK_SUFFIXES, read_book
from pipeline.sources.bytestreams import compression_of
from pipeline.sources.fingerprints import (
    ChangedInputError,
    fingerprint_files,
    join_fingerprints,
    list_changed,
    list_modified,
    list_versions,
)
from pipeline.sources.listing import check_brought, is_archive, list_any_files, list_files, refuse_own_files
from pipeline.sources.loose_texts import read_texts
from pipeline.sources.splits import (
    deal_splits,
    list_read_warnings,
    list_splits,
    read_documents,
    refuse_empty_source,
    split_file,
)
