"""Finds what a build reads, once at the build's start: the splits (parts of the input), and fingerprints (hashes) of
the input files. Also describes the identity of a build: everything that decides which data set it makes."""

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
    """The input at the start of a build. Three fields map each file's path to a text: `fingerprints` to a hash of the
    file, `modified` to the time of the last change (only for large files), and `versions` to a text that changes if the
    file is written during the build."""

    splits: Sequence[Split]
    fingerprints: Mapping[str, str]
    modified: Mapping[str, str]
    versions: Mapping[str, str]
    held_out: Mapping[str, str]
    """The fingerprint of each file of config.hold_out, by path."""

    @property
    def num_bytes(self) -> int:
        """The size of the input on disk, in bytes."""
        return sum(split.num_bytes for split in self.splits)

    @property
    def text_bytes(self) -> int:
        """The estimated size of the plain text in the input, in bytes."""
        return sum(split.text_bytes for split in self.splits)

    @property
    def contents(self) -> dict[str, str]:
        """A map from each file's path to a text that identifies the file's content: the fingerprint (a hash) and, for a
        large file, also the time of the last change."""
        return {path: f"{found} {self.modified.get(path, '')}" for path, found in self.fingerprints.items()}


def find_inputs(config: PipelineConfig) -> BuildInputs:
    """Return the splits (parts of the input) of the config's sources. Also return, for each file, its fingerprint (a
    hash), a version (a text that changes if the file is written) and, if it is large, the time of its last change.
    Raises the same errors as list_splits."""
    splits = list_splits(config.sources)
    versions = list_versions(split.path for split in splits)  # first, because a file may change while it is hashed
    fingerprints = fingerprint_files(split.path for split in splits)
    held_out = fingerprint_files(list_any_files(config.hold_out, label="hold_out")) if config.hold_out else {}
    return BuildInputs(splits, fingerprints, list_modified([*fingerprints, *held_out]), versions, held_out)


def describe_identity(
    config: PipelineConfig, *, inputs: BuildInputs, tokenizer: WordTokenizer | None
) -> dict[str, Any]:
    """Return the identity of a build. Two builds with equal identities make the same data set. The keys are "config",
    "inputs", "modified", "versions", "code" and, if `tokenizer` is given, "vocabulary_hash". `tokenizer` is the
    tokenizer of the given vocabulary, or None if a vocabulary will be trained."""
    paths = {
        name: {split.path for split in inputs.splits if config.sources[split.source].display_name == name}
        for name in config.source_names
    }
    fingerprints, modified, held = inputs.fingerprints, inputs.modified, inputs.held_out
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
    if held:
        identity["inputs"][HOLD_OUT] = join_fingerprints(held.values())
        large = [modified[path] for path in sorted(held, key=held.__getitem__) if path in modified]
        identity["modified"] |= {HOLD_OUT: large} if large else {}
    if tokenizer is not None:
        identity["vocabulary_hash"] = tokenizer.vocabulary_hash
    return identity
