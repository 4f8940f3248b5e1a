"""The identity of a build: tells whether an output folder already holds the data set of this build, finished or
begun."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from pipeline import storage
from pipeline.dataset import MANIFEST_NAME, open_data_set
from pipeline.json_text import parse_json

MARK_NAME = "_build.json"
_VOCABULARY_HASH, _AWAITS_INPUT, _MODIFIED = "vocabulary_hash", "awaits_input", "modified"
_INPUT = ("inputs", _MODIFIED)


class BuildMark:
    """The content of the file OUT/_build.json, which says which build the folder OUT belongs to.

    `identity` is JSON data with the keys `config`, `inputs`, `modified`, `versions`, `code` and, once it is known,
    `vocabulary_hash`. Builds with an equal identity make the same data set.
    """

    def __init__(self, root: str, *, identity: Mapping[str, Any]) -> None:
        self._root = root
        self._identity = dict(identity)

    @property
    def text(self) -> str:
        """The content of OUT/_build.json."""
        return json.dumps(self._identity, indent=1)

    @property
    def vocabulary_hash(self) -> str | None:
        """The hash of the build's vocabulary, or None if the vocabulary is not known yet."""
        found = self._identity.get(_VOCABULARY_HASH)
        return None if found is None else str(found)

    def note_vocabulary(self, vocabulary_hash: str) -> None:
        """Add to `text` (the content of OUT/_build.json) the hash of the vocabulary that was trained for this build. No
        file is written here; the caller then writes `text` to the file."""
        self._identity[_VOCABULARY_HASH] = vocabulary_hash

    def await_input(self) -> None:
        """Note in `text`, the content of OUT/_build.json, that the user must fix an input file before the build can
        continue. No file is written here; the caller then writes `text` to the file."""
        self._identity[_AWAITS_INPUT] = True

    def check_finished(self) -> None:
        """Raise ValueError if the folder's finished data set is damaged or comes from a different build."""
        manifest = open_data_set(self._root)
        run = json.loads(storage.read_bytes(storage.join(self._root, MANIFEST_NAME)))["run"]
        found = {**self._identity, "config": manifest.config, "inputs": run.get("inputs")}
        if _MODIFIED in run:  # data sets of earlier releases lack it
            found[_MODIFIED] = run[_MODIFIED]
        if _VOCABULARY_HASH in found:
            found[_VOCABULARY_HASH] = manifest.vocabulary_hash
        differences = list(describe_differences(found, self._identity))
        if differences:
            raise ValueError(
                f"output={self._root}: already contains a data set built with different settings or input: "
                f"{'; '.join(differences)}; {_hint_at_time(differences)}choose another output, or delete the folder to "
                "build it again"
            )

    def check_unfinished(self) -> bool:
        """Whether OUT holds an unfinished build that is the same as this build. If it does, also take over the hash of
        that build's vocabulary.

        Return False if OUT/_build.json is absent, damaged or written by another release. The caller then removes the
        finished splits and shards. Raises ValueError if OUT/_build.json names a different build, and OSError if the
        file cannot be read, so in these cases nothing is removed.
        """
        try:
            old = parse_json(storage.read_bytes(storage.join(self._root, MARK_NAME)).decode("utf-8"))
        except (FileNotFoundError, ValueError):
            return False
        if not isinstance(old, dict) or not {"config", "inputs"} <= set(old):
            return False
        trained = old.get(_VOCABULARY_HASH)
        known = {*old, *self._identity} - {_VOCABULARY_HASH, _AWAITS_INPUT}
        if old.get(_AWAITS_INPUT):
            known -= set(_INPUT)
            if any(old.get(name) != self._identity.get(name) for name in _INPUT):
                trained = None  # the text that the vocabulary was trained on has changed
        if trained is not None and _VOCABULARY_HASH in self._identity:
            known.add(_VOCABULARY_HASH)
        begun, wanted = ({name: tree.get(name) for name in known} for tree in (old, self._identity))
        differences = list(describe_differences(begun, wanted))
        if differences:
            raise ValueError(
                f"output={self._root}: contains an unfinished build with different settings or input: "
                f"{'; '.join(differences)}; {_hint_at_time(differences)}use the original ones to resume it, choose "
                "another output, or delete the folder to start over"
            )
        if trained is not None:
            self._identity[_VOCABULARY_HASH] = trained
        return True


def _hint_at_time(differences: Iterable[str]) -> str:
    if not any(difference.startswith(f"{_MODIFIED}.") for difference in differences):
        return ""
    return "if only the time of a large file has changed, set that back (touch -d 'TIME' FILE), else "


def describe_differences(old: Any, new: Any, *, key: str = "") -> Iterable[str]:
    """Yield a text "key: old -> new" for each value that differs between `old` and `new`, two trees of mappings and
    lists.

    If `old` and `new` are parts of larger trees, `key` says where they are. It is put before the key in each text.
    """
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for name in sorted({*old, *new}):
            yield from describe_differences(old.get(name), new.get(name), key=f"{key}.{name}" if key else name)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (left, right) in enumerate(zip(old, new, strict=True)):
            yield from describe_differences(left, right, key=f"{key}.{index}")
    elif old != new:
        yield f"{key}: {_short(old)} -> {_short(new)}"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
