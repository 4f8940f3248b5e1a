"""Installs what each Dockerfile installs into a clean environment and tries it: `make test-images [ARGS=training]`.

Without docker: the same extras by the same constraints. Takes minutes and gigabytes.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path

from cluster import CLUSTER, REPOSITORY

TRIALS = {
    "preprocessing": (
        *(("pipeline/run.py", "--help"), ("-m", "cluster.notice", "--help")),
        ("-c", "import apache_beam, pipeline.ray_workers"),
    ),
    "training": (
        *(("pipeline/run.py", "--help"), ("trainer/run.py", "--help"), ("-m", "cluster.notice", "--help")),
        ("-c", "import boto3, googleapiclient.discovery"),
    ),
}
"""Image -> what must work in it, after `python`, from the repository."""


def list_extras(image: str) -> str:
    """The extras that an image installs."""
    text = (CLUSTER / "images" / f"{image}.Dockerfile").read_text(encoding="utf-8")
    (extras,) = re.findall(r"-e '\.\[([\w,-]+)\]'", text)
    return str(extras)


def try_image(image: str) -> None:
    """Install and try; CalledProcessError with the command that failed."""
    import ray

    with tempfile.TemporaryDirectory(prefix="cloze-image-") as folder:
        venv.create(folder, with_pip=True)
        python = str(Path(folder) / "bin" / "python")
        install = ["install", "--quiet", "--disable-pip-version-check", "-c", "constraints.txt"]
        run(python, "-m", "pip", *install, "-e", f".[{list_extras(image)}]")
        run(python, "-m", "pip", "check")
        run(python, "-c", f"import ray; assert ray.__version__ == {ray.__version__!r}")
        for words in TRIALS[image]:
            run(python, *words)
    print(f"{image}: installs, and works")


def run(*command: str) -> None:
    """Run a command from the repository, quietly."""
    subprocess.run(command, cwd=REPOSITORY, check=True, stdout=subprocess.DEVNULL)


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the images named, or both."""
    for image in (sys.argv[1:] if arguments is None else arguments) or TRIALS:
        try_image(image)
    return 0


if __name__ == "__main__":
    sys.exit(main())
