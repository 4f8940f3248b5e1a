"""Versions of our code and of libraries. Only these versions, the config and the input determine the bytes of a data
set."""

from __future__ import annotations

import hashlib
import sys
import unicodedata
from functools import cache
from importlib.metadata import version
from pathlib import Path

from pipeline.config import PipelineConfig
from pipeline.dataset import file_sha256
from pipeline.tokenizer import library_version

CODE_VERSION = "6"
"""The version of our cleaning, pairing and masking. Raise it if the same input gives other bytes."""
_LIBRARIES = ("sentencex", "tokenizers", "numpy", "pyarrow")
_NEAR_DUPLICATE_LIBRARIES = ("datasketch",)
SHAPING = (
    *("build", "cleaning", "config", "dataset", "dedup", "documents.py", "draws.py", "engines/dask_runner.py"),
    *("instances", "json_text.py", "parquet_bounds.py", "shuffle", "sources", "tally.py", "tokenizer", "vocabulary"),
    "wikitext",
)
"""Our packages and modules (by name, in this folder) that decide the bytes of a shard, a spill file or a record. All
other modules run a build, report on it, or move bytes unchanged (storage)."""


def describe_code() -> dict[str, str]:
    """Return the versions of Python and of libraries, and the hash of our code, by name. If this function returns the
    same on two machines, workers on both make the same bytes."""
    libraries = {name: version(name) for name in (*_LIBRARIES, *_NEAR_DUPLICATE_LIBRARIES)}
    if library_version() is not None:
        libraries["icu4py"] = str(library_version())
    python = ".".join(map(str, sys.version_info[:2]))
    return {"the pipeline's code": hash_code(), "Python": python, "unicode": unicodedata.unidata_version, **libraries}


def library_versions(config: PipelineConfig) -> dict[str, str]:
    """Return the versions of the libraries and of our own code that determine the data, by name."""
    names = _LIBRARIES + (_NEAR_DUPLICATE_LIBRARIES if config.cleaning.near_duplicates else ())
    libraries = {name: version(name) for name in names}
    if config.dictionary_words:
        libraries["icu4py"] = library_version() or "absent"
    return {**libraries, "unicode": unicodedata.unidata_version, "cloze_data": CODE_VERSION}


@cache
def hash_code() -> str:
    """Return a hash (16 hexadecimal digits) of our source files that determine the data. If a build was stopped and is
    started again, it uses the finished splits and shards only if this hash is the same."""
    return hash_sources(Path(__file__).parent)


def hash_sources(folder: Path) -> str:
    """Return a hash (16 hexadecimal digits) of the source files whose code determines the data. The constant SHAPING
    lists these packages and files. `folder` is the folder of the package `pipeline`, or of a copy of it."""
    files = [path for name in SHAPING for path in ((folder / name).rglob("*") if "." not in name else [folder / name])]
    digest = hashlib.sha256()
    for path in sorted(path for path in files if path.suffix in (".py", ".tsv", ".txt")):
        digest.update(f"{path.relative_to(folder).as_posix()}\0{file_sha256(path)}\0".encode())
    return digest.hexdigest()[:16]
