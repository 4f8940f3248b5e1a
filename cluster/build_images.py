"""Builds the images that a cluster's values name: `make images ARGS=kubernetes`, `python -m cluster.build_images KIND`.

Arguments after KIND go to `docker build`, such as --build-arg BASE=mirror.example/ubuntu:noble-20260905.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence

from cluster import REPOSITORY
from cluster.render import KINDS, ClusterValues, list_unfilled, read_values
from pipeline.console import command, exit_with
from pipeline.settings import ConfigError, to_tree

PROGRAM = "cluster.build_images"


def list_images(values: ClusterValues) -> Iterator[tuple[str, str, str]]:
    """Yield (image, key, name) for each image that `values` name: which image it is (the name of its Dockerfile), the
    key of the value, and the name under which to build it."""
    tree = to_tree(values)
    for image, name in tree.get("images", {}).items():
        yield image, f"images.{image}", name
    if "image" in tree:
        yield "training", "image", tree["image"]


def plan(kind: str) -> list[tuple[str, str]]:
    """Return (image, name) for each image to build for a kind of cluster. Raises ConfigError if the kind is unknown or
    has no images, or if a name cannot be built."""
    if kind not in KINDS:
        raise ConfigError(f"{PROGRAM}: no such kind of cluster: {kind}; known: {', '.join(KINDS)}")
    values = read_values(kind)
    unfilled = set(list_unfilled(values))
    images = list(list_images(values))
    if not images:
        raise ConfigError(f"{PROGRAM}: {kind} needs no images")
    for _, key, name in images:
        place = f"cluster/values/{kind}.yaml: {key}={name}"
        if key in unfilled:
            raise ConfigError(f"{place}: give the name under which your nodes fetch the image")
        if "@" in name:
            raise ConfigError(f"{place}: a digest is known only once the image is built; give a name with a version")
    return [(image, name) for image, _, name in images]


@command()
def main(arguments: Sequence[str] | None = None) -> int:
    """Build the images of a kind of cluster, and print how to push them. Return the exit status: docker's if it fails,
    else 0."""
    kind, *options = list(sys.argv[1:] if arguments is None else arguments) or [""]
    images = plan(kind)
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
