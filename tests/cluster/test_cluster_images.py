"""Images install what is pinned, run as a user, and hold the repository as their working directory."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import ray
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from cluster import CLUSTER, try_images

every_image = pytest.mark.parametrize("image", try_images.TRIALS)


@every_image
def test_an_image_is_pinned_runs_as_a_user_and_holds_the_repository(image: str) -> None:
    text = (CLUSTER / "images" / f"{image}.Dockerfile").read_text(encoding="utf-8")
    lines = [" ".join(line.split()) for line in text.replace("\\\n", " ").splitlines()]
    (base,) = [line for line in lines if line.startswith("FROM ")]
    assert re.search(r":[\w.-]*\d[\w.-]*$|@sha256:", base), "name a version of the base"
    users = [line.split()[1] for line in lines if line.startswith("USER ")]
    assert users[-1] not in ("root", "0")
    assert any(line.startswith("WORKDIR ") for line in lines), "`python trainer/run.py` is found there"
    assert any(line.startswith("COPY ") and line.endswith(" . .") for line in lines)
    for line in lines:
        assert "pip install" not in line or "-c constraints.txt" in line or "--no-deps" in line


def test_constraints_pin_the_ray_that_the_tests_run_with(repository: Path) -> None:
    assert f"\nray=={ray.__version__}\n" in (repository / "constraints.txt").read_text(encoding="utf-8")


@every_image
def test_all_that_an_image_installs_is_pinned_to_what_the_tests_run_with(image: str, repository: Path) -> None:
    """Walks the requirements of the installed packages from the image's extras: each is in constraints.txt."""
    project = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = (repository / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = {canonicalize_name(line.partition("==")[0]): line.partition("==")[2] for line in lines if "==" in line}
    extras = try_images.list_extras(image).split(",")
    wanted = [*project["dependencies"], *(each for extra in extras for each in project["optional-dependencies"][extra])]
    open_ends = [Requirement(each) for each in wanted]
    seen: set[tuple[str, str]] = set()
    for_linux = {"platform_system": "Linux", "sys_platform": "linux", "python_version": "3.12", "extra": ""}
    while open_ends:
        requirement = open_ends.pop()
        name = canonicalize_name(requirement.name)
        try:
            installed = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            installed = []  # only in the images (GPU libraries that torch pins itself, boto3): its pin is enough
        if name.startswith(("nvidia-", "cuda-", "triton")):
            continue
        assert name in pins, f"{image}: {requirement} is not in constraints.txt"
        assert requirement.specifier.contains(pins[name], prereleases=True), f"{image}: {requirement}, {pins[name]}"
        for extra in ("", *requirement.extras):
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            for text in installed:
                inner = Requirement(text)
                if inner.marker is None or inner.marker.evaluate({**for_linux, "extra": extra}):
                    open_ends.append(inner)
    assert len(seen) > 50
