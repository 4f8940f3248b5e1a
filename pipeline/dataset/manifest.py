"""The manifest, which lists everything in a data set. It is written last: a folder without one is not a data set.

Readers open only what the manifest lists. Opening a data set checks size and footer hash of every shard (milliseconds
each). Every read checks page checksums. Whole-file hashes are checked on request.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import count
from operator import mul
from pathlib import Path, PurePosixPath
from typing import IO, Any, Literal, TypeAlias

from pydantic import ValidationError

from pipeline import storage
from pipeline.dataset.plausible import find_implausible
from pipeline.dataset.schema import SCHEMA_VERSION
from pipeline.json_text import parse_json
from pipeline.settings import Settings

MANIFEST_NAME = "manifest.json"
TOKENIZER_FOLDER = "tokenizer"
TOKEN_COUNTS_NAME = "token_counts.parquet"
PARQUET_MAGIC = b"PAR1"
_TAIL_BYTES = 1 << 16
"""The number of bytes read from the end of a Parquet file in one request. Most footers fit into it."""
_STORE_THREADS = 16
"""The number of shards checked at the same time on an object store. Each shard takes two requests."""
_MISSING = (FileNotFoundError, IsADirectoryError, NotADirectoryError)

SplitName: TypeAlias = Literal["train", "validation"]


class DataSetError(ValueError):
    """A data set is absent, incomplete, changed, or of another version. The message is one line, even if texts of the
    data set are in it."""

    def __init__(self, message: str) -> None:
        super().__init__(message.replace("\n", "\\n").replace("\r", "\\r"))


class Shard(Settings):
    """The manifest's entry for one Parquet file of the data set."""

    path: str
    """The path relative to the data set's folder, with forward slashes."""
    split: SplitName
    """Whether the file belongs to the training or the validation data."""
    rows: int
    """The number of sentence pairs in the file."""
    tokens: int
    """The number of tokens (sum of the column num_tokens)."""
    bytes: int
    """The size of the file in bytes."""
    sha256: str
    """The sha256 of the whole file, in hexadecimal."""
    footer_sha256: str
    """The sha256 of the Parquet footer (metadata, the length of the metadata, and the magic bytes)."""
    row_group_rows: tuple[int, ...]
    """The number of rows in each row group."""
    row_group_tokens: tuple[int, ...]
    """The number of tokens in each row group."""
    max_masked: int
    """The largest number of masked positions in any mask set of any row."""
    masked: int
    """The number of masked positions, summed over all mask sets of all rows."""


class Special(Settings):
    """The ids of the special tokens."""

    pad: int
    """The id of [PAD]."""
    unk: int
    """The id of [UNK]."""
    cls: int
    """The id of [CLS]."""
    sep: int
    """The id of [SEP]."""
    mask: int
    """The id of [MASK]."""


class Manifest(Settings):
    """Everything that identifies a data set: its files, the settings and versions that shaped them, and counts of the
    content."""

    schema_version: int
    """The version of the columns (dataset.schema.SCHEMA_VERSION)."""
    config: dict[str, Any]
    """The settings that shape the data (PipelineConfig.data_tree)."""
    seed: int
    """The seed of all random draws."""
    versions: dict[str, str]
    """The versions of the libraries and of our own code that shape the data."""
    vocabulary_hash: str
    """The hash of the vocabulary: its entries in order, and how it normalises text."""
    vocabulary_size: int
    """The number of token ids."""
    special: Special
    """The ids of the special tokens."""
    max_seq_length: int
    """The largest number of tokens that a row may have."""
    max_predictions: int
    """The largest number of positions that a mask set may have."""
    mask_sets: int
    """K, the number of mask sets (choices of masked positions) of each row."""
    next_sentence: str
    """How the second segment was chosen (PipelineConfig.next_sentence). If this is none, rows have no second
    segment."""
    sources: tuple[str, ...]
    """The names of the sources. The column `source` is an index into them."""
    shards: tuple[Shard, ...]
    """Every Parquet file of the set, ordered by path."""
    files: dict[str, str]
    """The sha256 of every other file that readers use (tokenizer, token counts), by relative path."""
    drops: dict[str, int]
    """The number of documents, pages or sentences left out, by reason."""
    statistics: dict[str, Any]
    """The counts and measurements that the report and the data card show. The keys are "sources", "text", "shortcuts",
    "notes" and "splits"."""

    @property
    def hash(self) -> str:
        """The sha256 of all fields, in hexadecimal. No field depends on the machine, the time or the number of workers,
        so every build of the same data with the same settings and versions has the same hash."""
        return hashlib.sha256(canonical_json(self.model_dump(mode="json"))).hexdigest()

    @property
    def best_shortcut(self) -> float | None:
        """The share of next-sentence labels that the best shortcut guesses right. A shortcut is a rule that does not
        read the text, but uses, for example, the lengths of the segments.

        None if the data set has no labels or does not record its shortcuts.
        """
        return max(self.statistics.get("shortcuts", {}).values(), default=None)

    def shards_of(self, split: SplitName) -> tuple[Shard, ...]:
        """Return the training shards or the validation shards, ordered by path."""
        return tuple(shard for shard in self.shards if shard.split == split)

    def num_rows(self, split: SplitName) -> int:
        """Return the number of rows in the training or the validation data."""
        return sum(shard.rows for shard in self.shards_of(split))

    def num_tokens(self, split: SplitName) -> int:
        """Return the number of tokens in the training or the validation data, special tokens included."""
        return sum(shard.tokens for shard in self.shards_of(split))

    def row_lengths(self, split: SplitName) -> tuple[int, ...]:
        """Return how long the rows of the training or the validation data are. Entry n of the tuple is the number of
        rows with n tokens.

        Raises DataSetError if the tuple does not give as many rows and tokens as the shards have.
        """
        found = self.statistics.get("splits", {}).get(split, {}).get("lengths", ())
        if (sum(found), sum(map(mul, found, count()))) != (self.num_rows(split), self.num_tokens(split)):
            raise DataSetError(
                f"{MANIFEST_NAME}: statistics.splits.{split}.lengths has {sum(found):,} rows, the shards have "
                f"{self.num_rows(split):,}, or their tokens differ; build the set again"
            )
        return tuple(found)


def canonical_json(tree: Any) -> bytes:
    """Return `tree` (JSON data) as JSON in ASCII, with sorted keys and without spaces. Equal trees give equal bytes."""
    return json.dumps(tree, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def shard_name(split: SplitName, index: int, count: int) -> str:
    """Return the relative path of one shard, such as data/train-00000-of-00064.parquet. `index` counts the shards of
    the same kind (train or validation) from 0, and `count` says how many there are of this kind."""
    return f"data/{split}-{index:05d}-of-{count:05d}.parquet"


def write_manifest(root: str | Path, manifest: Manifest, *, run: dict[str, Any]) -> str:
    """Write manifest.json into `root` atomically and durably, and return its path.

    `run` has facts of this build such as workers, time and host. The file has these facts too, but no hash covers them.
    """
    tree = {"hash": manifest.hash, "run": run, **manifest.model_dump(mode="json")}
    path = storage.join(root, MANIFEST_NAME)
    text = json.dumps(tree, indent=1, ensure_ascii=False) + "\n"
    storage.write_bytes(path, text.encode("utf-8"))
    return path


def read_manifest(root: str | Path) -> Manifest:
    """Read manifest.json in `root`, compare its content with the hash that it contains, and return the manifest.

    Raises DataSetError if the file is missing, damaged, edited or of another version. Raises OSError if an object store
    cannot be reached or denies access.
    """
    path = storage.join(root, MANIFEST_NAME)
    try:
        text = storage.read_bytes(path)
    except _MISSING as error:
        above = _find_set_above(root)
        if above is not None:
            raise DataSetError(f"{root}: is inside the data set {above}; give the set itself, {above}") from error
        if not storage.exists(root) or isinstance(error, NotADirectoryError):
            no_bucket = f" ({error})" if storage.is_url(root) else ""
            raise DataSetError(
                f"{root}: no such data set folder{no_bucket}; build it with `make preprocess` or correct `data`"
            ) from error
        raise DataSetError(
            f"{root}: has no {MANIFEST_NAME}, so it is not a (finished) data set; run the same `make preprocess` again"
        ) from error
    try:
        tree = parse_json(text)
        stated, _ = tree.pop("hash"), tree.pop("run")
        version = tree.get("schema_version")
        if version != SCHEMA_VERSION:
            raise DataSetError(
                f"{path}: schema version {version!r}, but this release reads {SCHEMA_VERSION}; build the set again"
            )
        manifest = Manifest.model_validate_json(json.dumps(tree))
    except DataSetError:
        raise
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise DataSetError(f"{path}: damaged manifest ({key}: {first['msg']}); build the set again") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataSetError(f"{path}: damaged manifest ({error}); build the set again") from error
    if manifest.hash != stated:
        raise DataSetError(f"{path}: content does not match its own hash {stated}; it was edited: build the set again")
    for name in [shard.path for shard in manifest.shards] + list(manifest.files):
        resolve_inside(root, name)
    fault = find_implausible(manifest)
    if fault:
        raise DataSetError(f"{path}: {fault}; do not trust this data set, or build it again")
    return manifest


def _find_set_above(root: str | Path) -> str | None:
    """Return the path of the data set that contains the folder or file `root`. Return None if no data set contains it,
    or if the object store cannot be asked."""
    folder = str(root).rstrip("/")
    with suppress(OSError):
        for _ in range(2):
            folder = storage.parent_of(folder)
            if storage.find_file(storage.join(folder, MANIFEST_NAME)) is not None:
                return folder
    return None


def open_data_set(root: str | Path, *, full: bool = False) -> Manifest:
    """Verify every file that the manifest of `root` lists, and return the manifest.

    For shards, only size and footer hash are checked; with `full`, also the sha256 of the whole file. Raises
    DataSetError, which names the file and what differs.
    """
    manifest = read_manifest(root)
    verify_shards(root, manifest.shards, full=full)
    for name, expected in manifest.files.items():
        path = resolve_inside(root, name)
        try:
            found = file_sha256(path)
        except _MISSING as error:
            raise DataSetError(
                f"{path}: listed in the manifest but missing; restore it or build the set again"
            ) from error
        if found != expected:
            raise DataSetError(f"{path}: sha256 {found} differs from the manifest's {expected}; restore it")
    return manifest


def verify_shards(root: str | Path, shards: Sequence[Shard], *, full: bool = False) -> None:
    """Check the files of `shards` (entries of the manifest) in the data set `root`, as verify_shard does.

    On an object store, several files are checked at the same time. Raises DataSetError for the first mismatch.
    """
    if not storage.is_url(root):
        for shard in shards:
            verify_shard(root, shard, full=full)
        return
    with ThreadPoolExecutor(max_workers=_STORE_THREADS, thread_name_prefix="verify-shard") as pool:
        list(pool.map(partial(verify_shard, root, full=full), shards))  # raises the first error


def verify_shard(root: str | Path, shard: Shard, *, full: bool = False) -> None:
    """Check the file of `shard` (an entry of the manifest) in the data set `root`: its size and footer hash, and with
    `full` also the sha256 of the whole file.

    Raises DataSetError, which names the file, the expected value and the value found.
    """
    path = resolve_inside(root, shard.path)
    try:
        with storage.open_input(path) as stream:
            size = stream.seek(0, os.SEEK_END)
            if size != shard.bytes:
                raise DataSetError(
                    f"{path}: {size} bytes, the manifest says {shard.bytes}; restore it or build the set again"
                )
            found = _hash_footer(stream, path=path)
    except _MISSING as error:
        raise DataSetError(f"{path}: listed in the manifest but missing; restore it or build the set again") from error
    if found != shard.footer_sha256:
        raise DataSetError(f"{path}: footer hash {found} differs from the manifest's {shard.footer_sha256}; restore it")
    if full:
        found = file_sha256(path)
        if found != shard.sha256:
            raise DataSetError(f"{path}: sha256 {found} differs from the manifest's {shard.sha256}; restore it")


def resolve_inside(root: str | Path, name: str) -> str:
    """Return the path or URL of the file `name` (a relative path) under `root`. Raises DataSetError if `name` is
    absolute or leaves `root`."""
    if not storage.stays_inside(name):
        where = storage.join(root, MANIFEST_NAME)
        raise DataSetError(f"{where}: path '{name}' leaves the data set's folder; build the set again")
    return storage.join(root, str(PurePosixPath(name)))


def file_sha256(path: str | Path) -> str:
    """Return the sha256 (in hexadecimal) of a whole file, which is read in blocks."""
    with storage.open_input(path, read_ahead=8 * storage.READ_AHEAD_BYTES) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()  # type: ignore[arg-type]


def footer_sha256(path: str | Path) -> str:
    """Return the sha256 (in hexadecimal) of a Parquet file's footer. Raises DataSetError if the file does not end like
    a Parquet file."""
    with storage.open_input(path) as stream:
        return _hash_footer(stream, path=path)


def _hash_footer(stream: IO[bytes], *, path: str | Path) -> str:
    return hashlib.sha256(read_footer(stream, path=path)).hexdigest()


def read_footer(stream: IO[bytes], *, path: str | Path) -> bytes:
    """Return the footer of a Parquet file: metadata, the length of the metadata, and the magic bytes. `stream` is the
    open file. Raises DataSetError naming `path`, the file, if it does not end like a Parquet file."""
    size = stream.seek(0, os.SEEK_END)
    if size < 12:
        raise DataSetError(f"{path}: {size} bytes are too few for a Parquet file")
    stream.seek(max(0, size - _TAIL_BYTES))
    tail = stream.read()
    length = int.from_bytes(tail[-8:-4], "little")
    if tail[-4:] != PARQUET_MAGIC or length + 12 > size:
        raise DataSetError(f"{path}: does not end as a Parquet file does (truncated?)")
    if length + 8 > len(tail):
        stream.seek(size - 8 - length)
        tail = stream.read()
    return tail[-8 - length :]
