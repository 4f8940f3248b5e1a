"""Installs the packages of each image into a clean environment and tries them: `make test-images [ARGS=training]`.

This needs no docker, but some minutes and gigabytes of disk.
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
        ("-c", "import apache_beam, pipeline.engines.ray_cluster"),
    ),
    "training": (
        *(("pipeline/run.py", "--help"), ("trainer/run.py", "--help"), ("-m", "cluster.notice", "--help")),
        ("-c", "import boto3, googleapiclient.discovery"),
    ),
}
"""Maps each image to the commands that must succeed with its packages. Each command is a tuple of arguments of
`python`."""


def list_extras(image: str) -> str:
    """Return the names of our extras (groups of optional dependencies) that an image installs, joined by commas."""
    text = (CLUSTER / "images" / f"{image}.Dockerfile").read_text(encoding="utf-8")
    (extras,) = re.findall(r"-e '\.\[([\w,-]+)\]'", text)
    return str(extras)


def try_image(image: str) -> None:
    """Install the packages of an image into a clean environment, and run the commands that TRIALS lists for the image.

    Raises CalledProcessError, which names the command that failed.
    """
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
    print(f"{image}: installed, all commands succeeded")


def run(*command: str) -> None:
    """Run a command in the folder of the repository and hide its output. Raises CalledProcessError if it fails."""
    subprocess.run(command, cwd=REPOSITORY, check=True, stdout=subprocess.DEVNULL)


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the images named in `arguments`, or all images if there are none. Return the exit status 0."""
    for image in (sys.argv[1:] if arguments is None else arguments) or TRIALS:
        try_image(image)
    return 0


if __name__ == "__main__":
    sys.exit(main())
