"""Writes the locks of the images, cluster/images/IMAGE.txt: `python -m cluster.lock [IMAGE ...]`.

A lock lists every package that an image installs, in the version of constraints.txt, with the SHA-256 of the one file
that pip takes on the images' system: CPython 3.12, Linux, x86_64. pip refuses a file with another hash. Run this after
a change of constraints.txt or pyproject.toml; it needs Python 3.12 and the package index, and installs nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import tomllib
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from cluster import CLUSTER, REPOSITORY
from pipeline.console import command, exit_with
from pipeline.settings import ConfigError

EXTRAS = {
    "preprocessing": ("pipeline", "ray"),
    "head": ("pipeline", "ray", "trainer"),
    "training": ("pipeline", "ray", "trainer", "launcher"),
}
"""Maps each image to our extras (groups of optional dependencies) that it installs."""
PYTHON = (3, 12)
TORCH_FOR_CPUS = "torch==2.13.0+cpu --hash=sha256:4ca4a9394b0c771238a4f73590fdbbc4debad85ed0fa63d026ae1b085da7d6e2"
"""The line of torch in the head's lock: the wheel at download.pytorch.org/whl/cpu, which is not on PyPI."""
CUDA = ("nvidia-", "cuda-", "triton")
"""How the names of packages begin that torch needs only on GPUs."""
PIP = "pip==26.3"
"""The pip that resolves: one that does not download a wheel whose metadata the index serves."""


def requirements_of(image: str) -> list[str]:
    """Return the requirements of an image: those of the project, of the image's extras and of the project's build."""
    tree = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    project = tree["project"]
    extras = [each for extra in EXTRAS[image] for each in project["optional-dependencies"][extra]]
    return [*project["dependencies"], *extras, *tree["build-system"]["requires"]]


def resolve(requirements: Sequence[str], *, python: str) -> dict[str, Any]:
    """Return pip's installation report for `requirements` in the versions of constraints.txt. `python` is the Python of
    a virtual environment with pip."""
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        words = ["install", "--quiet", "--dry-run", "--ignore-installed", "--report", report.name]
        subprocess.run(
            [python, "-m", "pip", *words, "-c", "constraints.txt", *requirements], cwd=REPOSITORY, check=True
        )
        tree: dict[str, Any] = json.load(report)
    return tree


def lines_of(image: str, report: dict[str, Any]) -> list[str]:
    """Return the sorted lines of an image's lock, NAME==VERSION --hash=sha256:HASH, from pip's report."""
    lines: dict[str, str] = {}
    for entry in report["install"]:
        name = canonicalize_name(entry["metadata"]["name"])
        digest = entry["download_info"]["archive_info"]["hashes"]["sha256"]
        lines[name] = f"{name}=={entry['metadata']['version']} --hash=sha256:{digest}"
    if image == "head":
        lines = {name: line for name, line in lines.items() if not name.startswith(CUDA)} | {"torch": TORCH_FOR_CPUS}
    return [lines[name] for name in sorted(lines)]


@command()
def main(arguments: Sequence[str] | None = None) -> int:
    """Write the locks of the images named in `arguments` (of all images if there are none). Return the exit status."""
    images = list(sys.argv[1:] if arguments is None else arguments)
    for image in images:
        if image not in EXTRAS:
            raise ConfigError(f"cluster.lock: no such image: {image}; known: {', '.join(EXTRAS)}")
    if sys.version_info[:2] != PYTHON:
        raise ConfigError(f"cluster.lock: run it with Python {PYTHON[0]}.{PYTHON[1]}, as in the images")
    with tempfile.TemporaryDirectory(prefix="cloze-lock-") as folder:
        venv.create(folder, with_pip=True)
        python = str(Path(folder) / "bin" / "python")
        subprocess.run([python, "-m", "pip", "install", "--quiet", PIP], check=True)
        for image in images or EXTRAS:
            lines = lines_of(image, resolve(requirements_of(image), python=python))
            (CLUSTER / "images" / f"{image}.txt").write_text("".join(f"{line}\n" for line in lines), encoding="ascii")
            print(f"wrote cluster/images/{image}.txt: {len(lines)} packages")
    return 0


if __name__ == "__main__":
    exit_with(main())
