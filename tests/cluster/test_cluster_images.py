"""Images install what is pinned by hash, run as a user, hold the repository as their working directory, and are built
under the names that the values use."""

from __future__ import annotations

import itertools
import os
import re
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import ray
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from cluster import CLUSTER, build_images, lock, try_images
from cluster.render import VALUES
from pipeline.settings import ConfigError

every_image = pytest.mark.parametrize("image", try_images.TRIALS)


def lines_of(image: str) -> list[str]:
    """The instructions of a Dockerfile, each on one line, without comments, and with its own arguments filled in."""
    text = (CLUSTER / "images" / f"{image}.Dockerfile").read_text(encoding="utf-8")
    kept = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    lines = [" ".join(line.split()) for line in kept.replace("\\\n", " ").splitlines() if line]
    defaults = dict(re.findall(r"^ARG (\w+)=(.*)$", text, re.MULTILINE))
    return [re.sub(r"\$\{(\w+)\}", lambda found: defaults[found[1]], line) for line in lines]


@every_image
def test_an_image_is_pinned_runs_as_a_user_and_holds_the_repository(image: str) -> None:
    lines = lines_of(image)
    (base,) = [line for line in lines if line.startswith("FROM ")]
    assert re.search(r":[\w.-]*\d[\w.-]*$|@sha256:", base), "name a version of the base"
    users = [line.split()[1] for line in lines if line.startswith("USER ")]
    assert users[-1] not in ("root", "0")
    assert any(line.startswith("WORKDIR /opt/cloze") for line in lines), "`python trainer/run.py` is found there"
    assert any(line.startswith("COPY ") and line.endswith(" . .") for line in lines)
    assert any(line.startswith("COPY ") and line.endswith(f" cluster/images/{image}.txt lock.txt") for line in lines)
    assert {"ARG APT_MIRROR=", "ARG PIP_INDEX_URL=https://pypi.org/simple"} <= set(lines), "mirrors can be named"
    installs = [words for line in lines for words in re.findall(r"pip install [^&]*", line)]
    assert len(installs) == 3
    for words in installs:
        assert "--require-hashes -r " in words.replace("--no-build-isolation ", "") or "--no-deps" in words
        assert "--no-build-isolation" in words or "build.txt" in words, "what builds a package has a hash too"


def test_the_training_image_finds_drivers_and_the_plugin_of_a_checked_installer() -> None:
    """GKE mounts the driver at /usr/local/nvidia (GoogleCloudPlatform/container-engine-accelerators, cmd/nvidia_gpu).
    The hash is that of AWS's documentation, "Verify the EFA installer using a checksum"."""
    lines = lines_of("training")
    (environment,) = [line for line in lines if line.startswith("ENV ")]
    (path,) = re.findall(r"LD_LIBRARY_PATH=(\S+)", environment)
    assert path.split(":")[0] == "/usr/local/nvidia/lib64"
    assert "/opt/nccl-plugins" in path.split(":")
    assert "/usr/local/nvidia/bin" in environment
    assert 'NVIDIA_REQUIRE_CUDA="cuda>=13.0"' in environment
    (runtime,) = [line for line in lock_of("training") if line.startswith("nvidia-cuda-runtime==")]
    assert runtime.startswith("nvidia-cuda-runtime==13."), "CUDA 13 needs driver 580 (release notes of CUDA 13.0)"
    readme = (CLUSTER / "README.md").read_text(encoding="utf-8")
    assert "driver 580 or later" in readme
    assert "ARG EFA_INSTALLER=1.44.0" in lines
    assert "ARG EFA_SHA256=f129a5b44a49d593d247e55a59eb9bcb57121566e1c2e42b832a4e794fa83d8a" in lines
    (efa,) = [line for line in lines if "efa_installer.sh" in line]
    fetch, check, unpack = (efa.index(word) for word in ("wget", "sha256sum --check", "tar -xzf"))
    assert fetch < check < unpack, "nothing is unpacked before its hash is checked"


def lock_of(image: str) -> list[str]:
    return (CLUSTER / "images" / f"{image}.txt").read_text(encoding="ascii").splitlines()


@every_image
def test_every_package_of_a_lock_has_a_hash_and_the_version_of_the_constraints(image: str, repository: Path) -> None:
    constraints = (repository / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = {canonicalize_name(line.partition("==")[0]): line.partition("==")[2] for line in constraints if "==" in line}
    for line in lock_of(image):
        found = re.fullmatch(r"([a-z0-9-]+)==(\S+) --hash=sha256:[0-9a-f]{64}", line)
        assert found is not None, line
        if not found[1].startswith(lock.CUDA):
            assert found[2].removesuffix("+cpu") == pins[found[1]], "run `python -m cluster.lock`"
    assert "setuptools" in {line.partition("==")[0] for line in lock_of(image)}, "it builds this project"


def test_the_heads_image_has_no_cuda() -> None:
    names = {line.partition("==")[0] for line in lock_of("head")}
    assert not {name for name in names if name.startswith(lock.CUDA)}
    assert lock.TORCH_FOR_CPUS in lock_of("head")
    assert "ARG PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu" in lines_of("head")
    rest = {line for line in lock_of("head") if not line.startswith("torch==")}
    assert rest <= set(lock_of("training")), "a driver has the packages of its workers"


def test_constraints_pin_the_ray_that_the_tests_run_with(repository: Path) -> None:
    assert f"\nray=={ray.__version__}\n" in (repository / "constraints.txt").read_text(encoding="utf-8")


@every_image
def test_all_that_an_image_installs_is_pinned_to_what_the_tests_run_with(image: str, repository: Path) -> None:
    """Walks the requirements of the installed packages from the image's extras: each is in constraints.txt."""
    project = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = (repository / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = {canonicalize_name(line.partition("==")[0]): line.partition("==")[2] for line in lines if "==" in line}
    extras = lock.EXTRAS[image]
    locked = {line.partition("==")[0] for line in lock_of(image)}
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
        assert name in locked, f"{image}: {requirement} is not in its lock; run `python -m cluster.lock`"
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


def test_a_lock_is_what_pip_reports() -> None:
    def entry(name: str, version: str, digest: str) -> dict[str, Any]:
        archive = {"hashes": {"sha256": digest * 64}}
        return {"metadata": {"name": name, "version": version}, "download_info": {"archive_info": archive}}

    report = {"install": [entry("torch", "2.13.0", "a"), entry("Nvidia_NCCL", "2", "b"), entry("A.b", "1", "c")]}
    ab = f"a-b==1 --hash=sha256:{'c' * 64}"
    torch = f"torch==2.13.0 --hash=sha256:{'a' * 64}"
    assert lock.lines_of("training", report) == [ab, f"nvidia-nccl==2 --hash=sha256:{'b' * 64}", torch]
    assert lock.lines_of("head", report) == [ab, lock.TORCH_FOR_CPUS]


def test_a_lock_is_made_for_a_known_image_with_the_images_python(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lock.main(["trainer"]) == 2
    assert "no such image: trainer; known: preprocessing, head, training" in capsys.readouterr().err
    monkeypatch.setattr(lock, "PYTHON", (9, 9))
    assert lock.main(["head"]) == 2
    assert "run it with Python 9.9, as in the images" in capsys.readouterr().err
    monkeypatch.setattr(try_images, "PYTHON", (9, 9))
    with pytest.raises(FileNotFoundError, match=r"no python9\.9 on the path"):
        try_images.find_python()
    assert set(try_images.TRIALS) == set(lock.EXTRAS)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "name the set whose images to build before all options, as `make images SET=NAME`"),
        ("--build-arg", "name the set whose images to build before all options"),
        ("est", "no such kind of cluster and no such set: est; did you mean east?"),
        ("slurm", "cluster/values/slurm.yaml: slurm needs no images"),
        ("kubernetes", r"cluster/values/kubernetes.yaml: images.preprocessing=registry.fill-in/.*: give the name"),
        ("hosts", "cluster/values/hosts.yaml: image=registry.fill-in/.*: give the name under which your nodes"),
        ("broken", r"broken.yaml: .*unknown key 'image' .*did you mean 'images'"),
        ("digest", "digest.yaml: image=.*: a digest is known only once the image is built; give a name with a version"),
    ],
)
def test_images_without_a_name_are_not_built(name: str, message: str, sets: Path) -> None:
    write_set(sets, "east", "kubernetes")
    write_set(sets, "broken", "kubernetes", images="image")
    write_set(sets, "digest", "hosts", **{"training:0.1.0": f"training@sha256:{'0' * 64}"})
    with pytest.raises(ConfigError, match=message):
        build_images.plan(name)


@pytest.fixture
def sets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of the user's sets."""
    folder = tmp_path / "clusters"
    folder.mkdir()
    monkeypatch.setattr(build_images, "SETS", folder)
    return folder


def write_set(folder: Path, name: str, kind: str, **changes: str) -> None:
    """Write the example of `kind` as a set of the user, with each text of `changes` replaced."""
    text = (VALUES / f"{kind}.yaml").read_text(encoding="utf-8").replace("fill-in", "mine")
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    (folder / f"{name}.yaml").write_text(text, encoding="utf-8")


def test_images_of_one_name_are_built_once_from_the_one_with_all_packages(sets: Path) -> None:
    """Built one after the other, the last would take the name: the head's image, without CUDA, on GPU nodes."""
    write_set(sets, "one", "kubernetes", **{"cloze-head": "cloze", "cloze-training": "cloze"})
    assert build_images.plan("one") == [
        ("preprocessing", "registry.mine/cloze-preprocessing:0.1.0"),
        ("training", "registry.mine/cloze:0.1.0"),
    ]
    locks = [{line.partition("==")[0] for line in lock_of(image)} for image in build_images.SMALLER]
    for smaller, larger in itertools.pairwise(locks):
        assert smaller <= larger


def test_the_images_that_a_set_names_are_built(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sets: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_set(sets, "east", "kubernetes")
    write_set(sets, "cellar", "hosts")
    docker = tmp_path / "docker"
    docker.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n', encoding="ascii")
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert build_images.main(["east", "--build-arg", "BASE=a:1"]) == 0
    assert build_images.main([str(sets / "cellar.yaml")]) == 0
    calls = (tmp_path / "calls").read_text(encoding="ascii").splitlines()
    built = [re.findall(r"images/(\w+)\.Dockerfile -t (\S+)( --build-arg BASE=a:1)? \.$", call)[0] for call in calls]
    option = " --build-arg BASE=a:1"
    assert sorted(built[:3]) == [
        ("head", "registry.mine/cloze-head:0.1.0", option),
        ("preprocessing", "registry.mine/cloze-preprocessing:0.1.0", option),
        ("training", "registry.mine/cloze-training:0.1.0", option),
    ]
    assert built[3:] == [("training", "registry.mine/cloze-training:0.1.0", "")]
    assert "docker push registry.mine/cloze-head:0.1.0" in capfd.readouterr().out
    docker.write_text("#!/bin/sh\nexit 3\n", encoding="ascii")
    assert build_images.main(["cellar"]) == 3
