"""What a build is, as OUT/_build.json says: whether a finished set, or the rest of a stopped build, is the same one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from pipeline import storage
from pipeline.dataset import MANIFEST_NAME, open_data_set

MARK_NAME = "_build.json"
_VOCABULARY_HASH, _AWAITS_INPUT, _MODIFIED = "vocabulary_hash", "awaits_input", "modified"
_INPUT = ("inputs", _MODIFIED)


class BuildMark:
    """`identity` is what makes two builds the same; `root` the output folder, a path or URL."""

    def __init__(self, root: str, *, identity: Mapping[str, Any]) -> None:
        self._root = root
        self._identity = dict(identity)

    @property
    def text(self) -> str:
        """Content of the file."""
        return json.dumps(self._identity, indent=1)

    @property
    def vocabulary_hash(self) -> str | None:
        """That of the build, as far as it is known."""
        found = self._identity.get(_VOCABULARY_HASH)
        return None if found is None else str(found)

    def note_vocabulary(self, vocabulary_hash: str) -> None:
        """Note which vocabulary was trained for this build."""
        self._identity[_VOCABULARY_HASH] = vocabulary_hash

    def await_input(self) -> None:
        """Note that a file of the input is to be mended before the build goes on."""
        self._identity[_AWAITS_INPUT] = True

    def check_finished(self) -> None:
        """ValueError where the finished set in the folder is another one, or damaged."""
        manifest = open_data_set(self._root)
        run = json.loads(storage.read_bytes(storage.join(self._root, MANIFEST_NAME)))["run"]
        found = {**self._identity, "config": manifest.config, "inputs": run.get("inputs")}
        if _MODIFIED in run:  # not in sets of earlier releases
            found[_MODIFIED] = run[_MODIFIED]
        if _VOCABULARY_HASH in found:
            found[_VOCABULARY_HASH] = manifest.vocabulary_hash
        differences = list(describe_differences(found, self._identity))
        if differences:
            raise ValueError(
                f"output={self._root}: holds a finished data set made otherwise: {'; '.join(differences)}; "
                f"{_hint_at_time(differences)}choose another output, or delete the folder to build it again"
            )

    def check_unfinished(self) -> bool:
        """Whether the mark in the folder says what is to be built; ValueError where it says something else, False where
        it is no mark of this release, OSError where it cannot be read: what is finished is not to be thrown away."""
        try:
            old = json.loads(storage.read_bytes(storage.join(self._root, MARK_NAME)).decode("utf-8"))
        except (FileNotFoundError, ValueError):
            return False
        if not isinstance(old, dict) or not {"config", "inputs"} <= set(old):
            return False
        trained = old.get(_VOCABULARY_HASH)
        known = {*old, *self._identity} - {_VOCABULARY_HASH, _AWAITS_INPUT}
        if old.get(_AWAITS_INPUT):
            known -= set(_INPUT)
            if any(old.get(name) != self._identity.get(name) for name in _INPUT):
                trained = None  # what the vocabulary of this build was trained on has changed
        if trained is not None and _VOCABULARY_HASH in self._identity:
            known.add(_VOCABULARY_HASH)
        differences = list(
            describe_differences(
                {name: old.get(name) for name in known}, {name: self._identity.get(name) for name in known}
            )
        )
        if differences:
            raise ValueError(
                f"output={self._root}: holds an unfinished build made otherwise: {'; '.join(differences)}; "
                f"{_hint_at_time(differences)}repeat what it was begun with to go on, choose another output, or delete "
                "the folder to begin anew"
            )
        if trained is not None:
            self._identity[_VOCABULARY_HASH] = trained
        return True


def _hint_at_time(differences: Iterable[str]) -> str:
    if not any(difference.startswith(f"{_MODIFIED}.") for difference in differences):
        return ""
    return "where a large file is unchanged but for its time, set that back (touch -d 'TIME' FILE), else "


def describe_differences(old: Any, new: Any, *, key: str = "") -> Iterable[str]:
    """`key: old -> new` for every leaf that differs between two trees."""
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
