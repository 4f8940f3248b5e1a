"""Values of clusters as a user would fill them in: the shipped files without `fill-in`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from cluster import check
from cluster.render import VALUES, ValuesSet
from pipeline.settings import load_tree

AWS_ID = "0123456789abcdef0"
FILLED = {
    "aws": {
        "head_subnet: subnet-fill-in": f"head_subnet: subnet-{AWS_ID}",
        "subnet-fill-in": "subnet-0123456789abcdef1",
        "sg-fill-in": f"sg-{AWS_ID}",
        "fs-fill-in": f"fs-{AWS_ID}",
        "iam::fill-in": "iam::123456789012",
        "fill-in.dkr": "123456789012.dkr",
        "fill-in": "abcdefgh",
    },
    "gcp": {"fill-in": "my-project"},
}
"""Maps kinds of clusters to texts that take the place of others in the shipped file. In other kinds, `mine` does."""


def filled_text(kind: str) -> str:
    """The text of the shipped values file of a kind, filled in."""
    comments, _, text = (VALUES / f"{kind}.yaml").read_text(encoding="utf-8").partition("kind: ")
    for old, new in FILLED.get(kind, {"fill-in": "mine"}).items():
        text = text.replace(old, new)
    return f"{comments}kind: {text}"


def filled_tree(kind: str) -> dict[str, Any]:
    """The filled-in values of a kind as nested dicts, without the key `kind`."""
    tree: dict[str, Any] = yaml.safe_load(filled_text(kind))
    del tree["kind"]
    return tree


def write_set(folder: Path, text: str, *, name: str = "east") -> ValuesSet:
    """Write a set of values into `folder`."""
    file = folder / f"{name}.yaml"
    file.write_text(text, encoding="utf-8")
    return ValuesSet(file, file.with_suffix(""), shipped=False)


def find_faults(folder: Path, kind: str, *overrides: str) -> list[str]:
    """The faults of filled-in values with `overrides`, a set in `folder`, other than files not written yet."""
    file = folder / "filled.yaml"
    file.write_text(filled_text(kind), encoding="utf-8")
    chosen = write_set(folder, yaml.safe_dump(load_tree(file, overrides=list(overrides))))
    return [fault for fault in check.find_faults([chosen], ready=True) if "does not match" not in fault]
