"""What determines the bytes of a data set besides its config and input: our code and the libraries under it."""

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

CODE_VERSION = "4"
"""Version of our cleaning, pairing and masking; raise it if the same input gives other bytes."""
_LIBRARIES = ("sentencex", "tokenizers", "numpy", "pyarrow")
_NEAR_DUPLICATE_LIBRARIES = ("datasketch",)
SHAPING = (
    *("build", "cleaning", "config", "dataset", "dedup", "documents.py", "draws.py", "engines/dask_runner.py"),
    *("instances", "shuffle", "sources", "tally.py", "tokenizer", "vocabulary", "wikitext"),
)
"""Packages and modules that decide the bytes of a shard, a spill file or a record. Others run a build, report on it,
or move its bytes unchanged (storage)."""


def describe_code() -> dict[str, str]:
    """Hash of our code and versions under it: if these are equal, a worker elsewhere makes the same bytes."""
    libraries = {name: version(name) for name in (*_LIBRARIES, *_NEAR_DUPLICATE_LIBRARIES)}
    if library_version() is not None:
        libraries["icu4py"] = str(library_version())
    python = ".".join(map(str, sys.version_info[:2]))
    return {"the pipeline's code": hash_code(), "Python": python, "unicode": unicodedata.unidata_version, **libraries}


def library_versions(config: PipelineConfig) -> dict[str, str]:
    """Versions of everything that determines the data."""
    names = _LIBRARIES + (_NEAR_DUPLICATE_LIBRARIES if config.cleaning.near_duplicates else ())
    libraries = {name: version(name) for name in names}
    if config.dictionary_words:
        libraries["icu4py"] = library_version() or "absent"
    return {**libraries, "unicode": unicodedata.unidata_version, "cloze_data": CODE_VERSION}


@cache
def hash_code() -> str:
    """Hash of our sources that determine the data: only the same code may resume an unfinished build."""
    return hash_sources(Path(__file__).parent)


def hash_sources(folder: Path) -> str:
    """Hash of SHAPING in `folder`, which is this package or a copy of it."""
    files = [path for name in SHAPING for path in ((folder / name).rglob("*") if "." not in name else [folder / name])]
    digest = hashlib.sha256()
    for path in sorted(path for path in files if path.suffix in (".py", ".tsv", ".txt")):
        digest.update(f"{path.relative_to(folder).as_posix()}\0{file_sha256(path)}\0".encode())
    return digest.hexdigest()[:16]
