"""What a build reads, found once at its start: splits, fingerprints of their files, and the identity of the build."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.config import PipelineConfig
from pipeline.documents import Split
from pipeline.sources import (
    fingerprint_files,
    join_fingerprints,
    list_any_files,
    list_modified,
    list_splits,
    list_versions,
)
from pipeline.tokenizer import WordTokenizer
from pipeline.versions import hash_code, library_versions

HOLD_OUT = "(hold_out)"
"""Stands for the files of config.hold_out among the names of sources."""


@dataclass(frozen=True, slots=True)
class BuildInputs:
    """The input at the start of a build. `fingerprints`, `modified` (large files only) and `versions` are by path."""

    splits: Sequence[Split]
    fingerprints: Mapping[str, str]
    modified: Mapping[str, str]
    versions: Mapping[str, str]
    held_out: Mapping[str, str]
    """The fingerprint of each file of config.hold_out, by path."""

    @property
    def num_bytes(self) -> int:
        """Bytes on disk."""
        return sum(split.num_bytes for split in self.splits)

    @property
    def text_bytes(self) -> int:
        """Bytes of plain text, estimated."""
        return sum(split.text_bytes for split in self.splits)

    @property
    def contents(self) -> dict[str, str]:
        """The content of each file, by path: its fingerprint and, for a large one, its time of change."""
        return {path: f"{found} {self.modified.get(path, '')}" for path, found in self.fingerprints.items()}


def find_inputs(config: PipelineConfig) -> BuildInputs:
    """List the splits of the config's sources and fingerprint their files. Raises ValueError as list_splits does."""
    splits = list_splits(config.sources)
    versions = list_versions(split.path for split in splits)  # first: a file may change while it is hashed
    fingerprints = fingerprint_files(split.path for split in splits)
    held_out = fingerprint_files(list_any_files(config.hold_out, label="hold_out")) if config.hold_out else {}
    return BuildInputs(splits, fingerprints, list_modified(fingerprints), versions, held_out)


def describe_identity(
    config: PipelineConfig, *, inputs: BuildInputs, tokenizer: WordTokenizer | None
) -> dict[str, Any]:
    """Return what two builds must share to be the same. `tokenizer` is the given vocabulary; None if one is trained."""
    paths = {
        name: {split.path for split in inputs.splits if config.sources[split.source].called == name}
        for name in config.source_names
    }
    fingerprints, modified = inputs.fingerprints, inputs.modified
    identity: dict[str, Any] = {
        "config": config.data_tree(),
        "inputs": {name: join_fingerprints(fingerprints[path] for path in found) for name, found in paths.items()},
        "modified": {
            name: [modified[path] for path in sorted(found, key=fingerprints.__getitem__) if path in modified]
            for name, found in paths.items()
        },
        "versions": library_versions(config),
        "code": hash_code(),
    }
    if inputs.held_out:
        identity["inputs"][HOLD_OUT] = join_fingerprints(inputs.held_out.values())
    if tokenizer is not None:
        identity["vocabulary_hash"] = tokenizer.vocabulary_hash
    return identity
