"""Checks that two tokenizer folders give the same ids for the same text, and names their first difference."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline import storage
from pipeline.dataset import parse_tokenizer


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Everything that decides which ids a text gets: the tokens in the order of their ids, and how text is split.

    `splitting` holds the parts "model", "normalizer" and "pre_tokenizer" of tokenizer.json by name. It is None if the
    folder has only a vocab.txt, which lists only the tokens.
    """

    tokens: tuple[str, ...]
    splitting: dict[str, Any] | None
    ids: dict[str, int] = field(repr=False)
    """The id of each token, which is the number of its row in the word table."""
    normalizer: Any = field(default=None, repr=False, compare=False)
    """The tokenizer's normalizer (an object of the tokenizers library), or None."""

    def normalize(self, text: str) -> str:
        """Return `text` as the tokenizer changes it before it splits words, without the spaces that it adds."""
        return text if self.normalizer is None else "".join(self.normalizer.normalize_str(text).split())

    @property
    def hash(self) -> str:
        """The sha256 over all fields. A data set's manifest stores the hash of the data set's tokenizer as
        `vocabulary_hash`."""
        facts = {"tokens": self.tokens, **(self.splitting or {})}
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def read_vocabulary(folder: str | Path) -> Vocabulary:
    """Return the vocabulary in a folder's tokenizer.json, or else in its vocab.txt.

    Raises ValueError if the folder has neither file, or if the file cannot be read.
    """
    path = storage.join(folder, "tokenizer.json")
    if storage.find_file(path) is not None:
        backend = parse_tokenizer(storage.read_bytes(path), origin=path)
        ids: dict[str, int] = backend.get_vocab(with_added_tokens=True)
        layout = json.loads(backend.to_str())
        model = {key: value for key, value in layout["model"].items() if key != "vocab"}
        parts = {"model": model, "normalizer": layout["normalizer"], "pre_tokenizer": layout["pre_tokenizer"]}
        return Vocabulary(tuple(sorted(ids, key=ids.__getitem__)), parts, ids, backend.normalizer)
    path = storage.join(folder, "vocab.txt")
    try:
        text = storage.read_bytes(path).decode("utf-8")
    except FileNotFoundError as error:
        raise ValueError(
            f"{folder}: holds neither tokenizer.json nor vocab.txt, so its vocabulary cannot be checked against the "
            f"data set's; put the model's tokenizer there"
        ) from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: byte {error.start} is not UTF-8; a vocab.txt is UTF-8, one token a line") from error
    tokens = tuple(line.removesuffix("\r") for line in text.removesuffix("\n").split("\n"))
    return Vocabulary(tokens, None, {token: index for index, token in enumerate(tokens)})


def check_same_vocabulary(folder: str | Path, *, data_tokenizer: str | Path, remedy: str = "") -> None:
    """Raise ValueError if the model's tokenizer in `folder` differs from the data set's tokenizer in `data_tokenizer`.

    The message names the first difference, and ends with `remedy`, a further way out. If one of the two folders has
    only vocab.txt, only the tokens are compared, because vocab.txt does not define how text is split.
    """
    model, data = read_vocabulary(folder), read_vocabulary(data_tokenizer)
    if model.hash == data.hash:
        return
    remedy = f"start from a model with the data set's vocabulary, or build the data set with {folder}'s{remedy}"
    if model.tokens != data.tokens:
        pairs = enumerate(zip(model.tokens, data.tokens, strict=False))
        index, here, there = next(
            ((index, repr(a), repr(b)) for index, (a, b) in pairs if a != b),
            (min(len(model.tokens), len(data.tokens)), "", ""),
        )
        what = (
            f"id {index} is {here} there and {there} in {data_tokenizer}"
            if here
            else f"it has {len(model.tokens)} tokens, {data_tokenizer} has {len(data.tokens)}"
        )
        hashes = ["" if each.splitting is None else f" ({each.hash[:12]})" for each in (model, data)]
        raise ValueError(f"{folder}: its vocabulary{hashes[0]} is not the data set's{hashes[1]}: {what}; {remedy}")
    if model.splitting is None or data.splitting is None:
        return
    its, ours = _without_composition(model.splitting), _without_composition(data.splitting)
    if its == ours:
        return
    part = next(key for key in its if its[key] != ours[key])
    raise ValueError(
        f"{folder}: its tokens are the data set's, but {part} is {json.dumps(its[part])} there and "
        f"{json.dumps(ours[part])} in {data_tokenizer}: the same text would get other ids; {remedy}"
    )


def _without_composition(splitting: dict[str, Any]) -> dict[str, Any]:
    """Return `splitting` without NFC (composition of characters) in its normalizer.

    A data set's text is composed already, so its ids do not depend on this step. Published tokenizers lack it.
    """
    parts = dict(splitting)
    normalizer = parts.get("normalizer")
    if normalizer is not None:
        steps = normalizer["normalizers"] if normalizer["type"] == "Sequence" else [normalizer]
        parts["normalizer"] = [step for step in steps if step["type"] != "NFC"] or None
    return parts
