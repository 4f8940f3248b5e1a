"""Sets of values: the shipped example of each kind of cluster, and the sets that a user keeps in clusters/.

A set is one YAML file. Its key `kind` says for which kind of cluster it is. The files made from clusters/NAME.yaml go
into the folder clusters/NAME, so sets do not disturb each other, and no tracked file changes. Git ignores clusters/.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster import CLUSTER, REPOSITORY
from cluster.render.batch_values import SkyValues, SlurmValues
from cluster.render.files import render
from cluster.render.kubernetes_names import find_bad_names
from cluster.render.launcher_values import AwsValues, GcpValues, HostsValues
from cluster.render.values import ClusterValues, KubernetesValues
from pipeline.settings import ConfigError, load_tree, to_tree, validate

VALUES = CLUSTER / "values"
SETS = REPOSITORY / "clusters"

KINDS: dict[str, type[ClusterValues]] = {
    "aws": AwsValues,
    "gcp": GcpValues,
    "hosts": HostsValues,
    "kubernetes": KubernetesValues,
    "slurm": SlurmValues,
    "skypilot": SkyValues,
}
"""Maps each kind of cluster (the name of its shipped values file without .yaml) to the class of its values."""


@dataclass(frozen=True, slots=True)
class ValuesSet:
    """A file of values."""

    file: Path
    folder: Path
    """Folder of the files made from the values."""
    shipped: bool
    """Whether it is the example of its kind in cluster/values."""

    @property
    def origin(self) -> str:
        """The path of the file, relative to the repository if it lies there."""
        return shorten(self.file)

    @property
    def command(self) -> str:
        """The command that writes the files of this set."""
        return "make cluster" if self.shipped else f"make cluster SET={self.file.stem}"


def shorten(path: Path) -> str:
    """Return `path` as text, relative to the repository if it lies there."""
    return str(path.relative_to(REPOSITORY) if path.is_relative_to(REPOSITORY) else path)


def shipped_set(kind: str, *, folder: Path = CLUSTER) -> ValuesSet:
    """Return the example set of a kind of cluster. `folder` is the folder cluster/."""
    return ValuesSet(folder / "values" / f"{kind}.yaml", folder, shipped=True)


def list_sets(folder: Path = SETS) -> list[ValuesSet]:
    """Return the user's sets, one for each YAML file in `folder`, in the order of their names."""
    files = sorted(path for path in folder.glob("*") if path.suffix in (".yaml", ".yml"))
    return [ValuesSet(file, file.with_suffix(""), shipped=False) for file in files]


def choose_sets(names: Sequence[str], *, folder: Path = SETS) -> list[ValuesSet]:
    """Return the sets that `names` name: kinds of clusters (their examples), sets in `folder`, or paths of YAML files.
    Without names, return the examples of all kinds and all sets in `folder`.

    Raises ConfigError if there is no such set.
    """
    if not names:
        return [*(shipped_set(kind) for kind in KINDS), *list_sets(folder)]
    return [_choose_set(name, folder=folder) for name in names]


def _choose_set(name: str, *, folder: Path) -> ValuesSet:
    if name in KINDS:
        return shipped_set(name)
    file = Path(name) if name.endswith((".yaml", ".yml")) else folder / f"{name}.yaml"
    if not file.is_file():
        if name.endswith((".yaml", ".yml")):
            made = file.with_suffix(".yaml")
            raise ConfigError(f"{name}: no such file of values; make it: cp {shorten(VALUES)}/KIND.yaml {made}")
        known = [*KINDS, *(each.file.stem for each in list_sets(folder))]
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
        raise ConfigError(f"no such kind of cluster and no such set: {name}; {hint}")
    file = file.resolve()
    if file.parent == VALUES.resolve() and file.stem in KINDS:
        return shipped_set(file.stem)
    return ValuesSet(file, file.with_suffix(""), shipped=False)


def read_set(chosen: ValuesSet) -> tuple[str, ClusterValues]:
    """Return the kind and the values of a set. Raises ConfigError that names file, key, value and remedy."""
    file = chosen.file
    if not file.is_file():
        remedy = (
            f"git checkout {chosen.origin}" if chosen.shipped else f"cp {shorten(VALUES)}/KIND.yaml {chosen.origin}"
        )
        raise ConfigError(f"{chosen.origin}: no such file of values; make it: {remedy}")
    if file.suffix != ".yaml":
        raise ConfigError(f"{chosen.origin}: rename it to {file.stem}.yaml, or its name is not found")
    if not chosen.shipped and file.stem in KINDS:
        raise ConfigError(f"{chosen.origin}: {file.stem} is the name of a kind of cluster; give the set another name")
    tree = load_tree(file)
    kind = _find_kind(tree, default=file.stem if chosen.shipped else None, origin=chosen.origin)
    return kind, validate_values(kind, tree, origin=chosen.origin)


def _find_kind(tree: dict[str, Any], *, default: str | None, origin: str) -> str:
    """Return the value of the key `kind` in `tree`, or `default` if it is missing."""
    kind = tree.get("kind", default)
    known = ", ".join(KINDS)
    if kind is None:
        raise ConfigError(f"{origin}: 'kind' is required; set it to one of {known}")
    if not isinstance(kind, str) or kind not in KINDS:
        raise ConfigError(f"{origin}: kind={kind!r}: no such kind of cluster; give one of {known}")
    if default is not None and kind != default:
        raise ConfigError(f"{origin}: kind={kind!r}: this file is the example of {default}; set kind: {default}")
    return kind


def validate_values(kind: str, tree: dict[str, Any], *, origin: str) -> ClusterValues:
    """Return the values in `tree` (nested dicts) of a kind of cluster. Raises ConfigError that names `origin`, key,
    value and remedy."""
    values = validate(KINDS[kind], tree, origin=origin)
    faults = list(find_bad_names(to_tree(values))) if kind == "kubernetes" else []
    if faults:
        raise ConfigError(f"{origin}: {'; '.join(faults)}")
    return values


def read_values(kind: str, *, folder: Path = VALUES) -> ClusterValues:
    """Return the values of the shipped example of a kind of cluster, read from KIND.yaml in `folder`. Raises
    ConfigError that names file, key, value and remedy."""
    return read_set(ValuesSet(folder / f"{kind}.yaml", folder.parent, shipped=True))[1]


def render_set(chosen: ValuesSet, *, kind: str, values: ClusterValues) -> dict[Path, str]:
    """Return the texts of all files made from a set: a dict from path to text."""
    texts = render(kind, values, origin=chosen.origin, command=chosen.command)
    if chosen.shipped:
        return {chosen.folder / name: text for name, text in texts.items()}
    return {chosen.folder / Path(name).name: text for name, text in texts.items()}


def list_outdated(chosen: ValuesSet, *, kind: str, values: ClusterValues) -> Iterator[Path]:
    """Yield the paths of the files of a set that are missing, or that differ from those made from `values`."""
    for path, text in render_set(chosen, kind=kind, values=values).items():
        if not path.is_file() or path.read_bytes() != text.encode():
            yield path
