"""What the checks of cluster/check.py look at, and what they say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from cluster import CLUSTER, REPOSITORY
from cluster.render import FILES, KINDS, ClusterValues, read_values
from pipeline.settings import ConfigError, parse_yaml

FOLDERS = ("values", "aws", "gcp", "hosts", "kubernetes", "slurm", "skypilot", "images")


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong with a file."""

    file: str
    """Under cluster/, or of the repository."""
    problem: str
    """What, where in it, which value, and the remedy."""

    def __str__(self) -> str:
        return f"{self.file}: {self.problem}"


class Files:
    """The texts under cluster/ and what of the repository they must fit."""

    def __init__(self, texts: Mapping[str, str], *, repository: Path = REPOSITORY) -> None:
        self.texts = dict(texts)
        self.repository = repository

    @classmethod
    def read(cls, folder: Path = CLUSTER) -> Files:
        """All that users may change or run."""
        texts = {}
        for name in FOLDERS:
            for path in sorted((folder / name).rglob("*")):
                if path.is_file() and path.suffix in (".yaml", ".sbatch", ".Dockerfile"):
                    texts[str(path.relative_to(folder))] = path.read_text(encoding="utf-8")
        return cls(texts, repository=folder.parent)

    def with_text(self, name: str, text: str) -> Files:
        """The same with another text of one file."""
        return Files({**self.texts, name: text}, repository=self.repository)

    @cached_property
    def trees(self) -> dict[str, list[Any]]:
        """Documents of every YAML file that can be read; what cannot is found by check_yaml."""
        found = {}
        for name, text in self.texts.items():
            if name.endswith(".yaml"):
                try:
                    found[name] = list(yaml.safe_load_all(text))
                except yaml.YAMLError:
                    continue
        return found

    def documents(self, kind: str) -> Iterator[tuple[str, Any]]:
        """(file, document) of one kind of cluster."""
        for name in FILES[kind]:
            for document in self.trees.get(name, []):
                yield name, document

    def values(self, kind: str, folder: Path) -> ClusterValues | ConfigError:
        """The values of a kind, written into `folder` to be read as users' are; or why they are refused."""
        (folder / f"{kind}.yaml").write_text(self.texts[f"values/{kind}.yaml"], encoding="utf-8")
        try:
            return read_values(kind, folder=folder)
        except ConfigError as error:
            return error


def check_yaml(files: Files) -> Iterator[Finding]:
    """Every YAML file is there, loads safely and says nothing twice."""
    expected = [name for made in FILES.values() for name in made] + [f"values/{kind}.yaml" for kind in KINDS]
    for name in expected:
        if name not in files.texts:
            yield Finding(name, "is missing; run `make cluster`")
    for name, text in files.texts.items():
        if name.endswith(".yaml"):
            for part in text.split("\n---\n"):
                try:
                    parse_yaml(part.removeprefix("---\n"), origin=name)
                except ConfigError as error:
                    yield Finding(name, str(error))
