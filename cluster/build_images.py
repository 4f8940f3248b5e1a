"""Builds the images that a cluster's values name: `make images SET=east`, `python -m cluster.build_images SET`.

SET is a set in clusters/, the path of a file of values, or a kind of cluster (its example). Arguments after it go to
`docker build`, such as --build-arg BASE=mirror.example/ubuntu:noble-20260905.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence

from cluster import REPOSITORY
from cluster.render import SETS, ClusterValues, choose_sets, list_unfilled, read_set
from pipeline.console import command, exit_with
from pipeline.settings import ConfigError, to_tree

PROGRAM = "cluster.build_images"
SMALLER = ("preprocessing", "head", "training")
"""The images, each after those whose packages it has too."""


def list_images(values: ClusterValues) -> Iterator[tuple[str, str, str]]:
    """Yield (image, key, name) for each image that `values` name: which image it is (the name of its Dockerfile), the
    key of the value, and the name under which to build it."""
    tree = to_tree(values)
    for image, name in tree.get("images", {}).items():
        yield image, f"images.{image}", name
    if "image" in tree:
        yield "training", "image", tree["image"]


def plan(name: str) -> list[tuple[str, str]]:
    """Return (image, name) for each image to build for the set of values `name`: a kind of cluster, a set in clusters/,
    or the path of a YAML file. If several images have one name, it is built once, from the image with most packages.
    Raises ConfigError if there is no such set, if it names no images, or if a name cannot be built."""
    if not name or name.startswith("-"):
        raise ConfigError(
            f"{PROGRAM}: name the set whose images to build before all options, as `make images SET=NAME`"
        )
    (chosen,) = choose_sets([name], folder=SETS)
    kind, values = read_set(chosen)
    unfilled = set(list_unfilled(values))
    images = list(list_images(values))
    if not images:
        raise ConfigError(f"{chosen.origin}: {kind} needs no images")
    for _, key, named in images:
        place = f"{chosen.origin}: {key}={named}"
        if key in unfilled:
            raise ConfigError(f"{place}: give the name under which your nodes fetch the image")
        if "@" in named:
            raise ConfigError(f"{place}: a digest is known only once the image is built; give a name with a version")
    largest = {named: image for image, _, named in sorted(images, key=lambda each: SMALLER.index(each[0]))}
    return [(image, named) for named, image in largest.items()]


@command()
def main(arguments: Sequence[str] | None = None) -> int:
    """Build the images that a set of values names, and print how to push them. Return the exit status: docker's if it
    fails, 2 if there is nothing to build, else 0."""
    chosen, *options = list(sys.argv[1:] if arguments is None else arguments) or [""]
    images = plan(chosen)
    for image, name in images:
        build = ["docker", "build", "-f", f"cluster/images/{image}.Dockerfile", "-t", name, *options, "."]
        print(" ".join(build), flush=True)
        status = subprocess.run(build, cwd=REPOSITORY, check=False).returncode
        if status:
            return status
    print("to push: " + "; ".join(f"docker push {name}" for _, name in images))
    return 0


if __name__ == "__main__":
    exit_with(main())
