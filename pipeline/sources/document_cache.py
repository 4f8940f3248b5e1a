"""Stores cleaned documents as Parquet, so that later builds and vocabulary training need not parse the input again.

Each split (a part of an input file) has one stored file, complete or absent. The stored file's name contains a key. The
key is a hash of everything that shapes the content: the input file's fingerprint, the split's place, the source's
settings, the code, and the libraries' versions. If one of these changes, the key changes, so stale content is never
read. The stored file's footer has a hash of all rows, and every reader checks this hash. Checksums of the Parquet pages
detect flipped bits. With Zstandard a dump's articles take about as much space as the .bz2.
"""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline import storage
from pipeline.config import SourceConfig
from pipeline.documents import Document, Drop, Note, Split
from pipeline.settings import to_tree
from pipeline.sources.fingerprints import fingerprint_inputs, list_modified
from pipeline.versions import hash_code

FORMAT = 3
_GROUP_CHARACTERS = 8 << 20
_NAME_BYTES = 160
"""A stored file's name repeats at most this many bytes of the input file's name, because file systems allow 255 bytes
for a whole name."""
_KEY, _HASH, _MADE_FROM = b"cloze.key", b"cloze.rows", b"cloze.made_from"

SCHEMA = pa.schema(
    [
        pa.field("document_id", pa.binary(16)),
        pa.field("name", pa.string(), nullable=False),
        pa.field("sentences", pa.list_(pa.string())),
        pa.field("reason", pa.string()),
        pa.field("detail", pa.string()),
        pa.field("noted", pa.bool_()),
        pa.field("group", pa.binary()),
    ]
)
"""Each row is an item, in input order: a document (document_id, sentences, group), a Drop (an omission, with reason and
detail) or a Note (which has the same columns as a Drop, but `noted` is true)."""


def read_through(
    items: Iterable[Document | Drop], *, split: Split, source: SourceConfig, folder: str
) -> Iterator[Document | Drop]:
    """Yield a split's items (documents and drops) from the file that stores this split in `folder`. If that file does
    not exist, yield `items` instead, and write them to the file, which appears once the caller has taken all items.

    `items` must be lazy: they are not read if the file exists. Raises ValueError naming a damaged file, OSError if the
    file cannot be written.
    """
    made_from = _describe(split, source=source)
    key = hashlib.sha256(json.dumps(made_from, sort_keys=True).encode()).hexdigest()
    place = f"{split.start}.{split.part}" if split.parts > 1 else str(split.start)
    name = Path(split.path).name[:60].encode("utf-8", "ignore")[:_NAME_BYTES].decode("utf-8", "ignore")
    path = storage.join(folder, f"{name}-{place}-{key[:16]}.parquet")
    if storage.find_file(path) is not None:
        yield from _read(path, key=key)
    else:
        yield from _keep(items, path=path, key=key, made_from=made_from)


def _describe(split: Split, *, source: SourceConfig) -> dict[str, Any]:
    settings = to_tree(source)
    del settings["path"], settings["clean_documents"], settings["name"], settings["weight"]
    versions = {"code": hash_code(), "sentencex": version("sentencex"), "unicode": unicodedata.unidata_version}
    return {
        "format": FORMAT,
        "input": fingerprint_inputs([split.path]),
        "modified": list(list_modified([split.path]).values()),
        "start": split.start,
        "end": split.end,
        **({"part": split.part, "parts": split.parts} if split.parts > 1 else {}),
        "source": settings,
        "versions": versions,
    }


def _keep(
    items: Iterable[Document | Drop], *, path: str, key: str, made_from: dict[str, Any]
) -> Iterator[Document | Drop]:
    rows: list[dict[str, Any]] = []
    held = 0
    digest = hashlib.sha256()
    with (
        storage.open_output(path) as stream,
        pq.ParquetWriter(stream, SCHEMA, compression="zstd", write_page_checksum=True) as writer,
    ):
        for item in items:
            row = _row(item)
            digest.update(_row_bytes(row))
            rows.append(row)
            held += sum(map(len, item.sentences)) if isinstance(item, Document) else 100
            if held > _GROUP_CHARACTERS:
                writer.write_table(pa.Table.from_pylist(rows, SCHEMA))
                rows, held = [], 0
            yield item
        writer.write_table(pa.Table.from_pylist(rows, SCHEMA))
        made = json.dumps(made_from, sort_keys=True)
        writer.add_key_value_metadata({_KEY: key, _HASH: digest.hexdigest(), _MADE_FROM: made})


def _row(item: Document | Drop) -> dict[str, Any]:
    if isinstance(item, Drop):
        noted = isinstance(item, Note)
        return {"name": item.name, "reason": item.reason, "detail": item.detail, "noted": noted}
    return {"document_id": item.id, "name": item.name, "sentences": list(item.sentences), "group": item.group}


def _row_bytes(row: dict[str, Any]) -> bytes:
    content = [row["name"], row.get("sentences"), row.get("reason"), row.get("detail"), row.get("noted")]
    content.append((row.get("group") or b"").hex())
    return json.dumps(content, ensure_ascii=True).encode() + b"\n"


def _read(path: str, *, key: str) -> Iterator[Document | Drop]:
    remedy = "remove it, then the next build creates it again"
    digest = hashlib.sha256()
    try:
        with storage.open_parquet(path) as file:
            metadata = file.metadata.metadata or {}
            if metadata.get(_KEY) != key.encode() or file.schema_arrow.names != SCHEMA.names:
                raise ValueError(f"{path}: content does not match the key in its name; {remedy}")
            for batch in file.iter_batches(batch_size=256):
                for row in batch.to_pylist():
                    digest.update(_row_bytes(row))
                    if row["sentences"] is None:
                        yield (Note if row["noted"] else Drop)(row["reason"], row["name"], row["detail"])
                    else:
                        yield Document(row["name"], tuple(row["sentences"]), row["group"])
    except storage.StorageError:
        raise
    except (pa.ArrowException, OSError, KeyError) as error:
        raise ValueError(f"{path}: damaged: {error}; {remedy}") from error
    if metadata.get(_HASH) != digest.hexdigest().encode():
        raise ValueError(f"{path}: its rows do not match their recorded hash; {remedy}")
