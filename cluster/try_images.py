"""Installs the packages of each image into a clean environment and tries them: `make test-images [ARGS=training]`.

As in the images, every file must have the hash of the image's lock. This needs no docker, but Python 3.12, and some
minutes and gigabytes of disk.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from cluster import CLUSTER, REPOSITORY
from cluster.lock import EXTRAS, PYTHON

PREPROCESSING = (("pipeline/run.py", "--help"), ("-m", "cluster.notice", "--help"))
TRAINING = (*PREPROCESSING, ("trainer/run.py", "--help"), ("-m", "cluster.head", "--help"))
TRIALS = {
    "preprocessing": (*PREPROCESSING, ("-c", "import apache_beam, pipeline.engines.ray_cluster")),
    "head": (*TRAINING, ("-m", "cluster.job", "--help"), ("-c", "import torch; assert torch.version.cuda is None")),
    "training": (*TRAINING, ("-c", "import boto3, googleapiclient.discovery")),
}
"""Maps each image to the commands that must succeed with its packages. Each command is a tuple of arguments of
`python`."""
BUILD = re.compile(r"^(setuptools|wheel|packaging|ninja)==")
"""The packages of a lock that build others. They are installed first, as in the images."""
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
"""Index of the head's torch."""


def find_python() -> str:
    """Return the Python of the images' version: this one, or the one on the path. Raises OSError if there is none."""
    if sys.version_info[:2] == PYTHON:
        return sys.executable
    name = f"python{PYTHON[0]}.{PYTHON[1]}"
    path = shutil.which(name)
    if path is None:
        raise FileNotFoundError(f"no {name} on the path; the images' locks are for this version")
    return path


def try_image(image: str) -> None:
    """Install the packages of an image into a clean environment, and run the commands that TRIALS lists for the image.

    Raises CalledProcessError, which names the command that failed.
    """
    import ray

    lock = (CLUSTER / "images" / f"{image}.txt").read_text(encoding="ascii").splitlines(keepends=True)
    with tempfile.TemporaryDirectory(prefix="cloze-image-") as folder:
        run(find_python(), "-m", "venv", folder)
        python = str(Path(folder) / "bin" / "python")
        build = Path(folder) / "build.txt"
        build.write_text("".join(line for line in lock if BUILD.match(line)), encoding="ascii")
        install = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        extra = ["--extra-index-url", TORCH_INDEX] if image == "head" else []
        run(*install, "--require-hashes", "-r", str(build))
        lock_file = str(CLUSTER / "images" / f"{image}.txt")
        run(*install, "--require-hashes", "--no-build-isolation", *extra, "-r", lock_file)
        run(*install, "--no-deps", "--no-build-isolation", "-e", ".")
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
    for image in (sys.argv[1:] if arguments is None else arguments) or EXTRAS:
        try_image(image)
    return 0


if __name__ == "__main__":
    sys.exit(main())
