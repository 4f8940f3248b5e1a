"""Checks of what all kinds of clusters share: nothing out of date, no secrets, scripts that parse, images as pinned,
commands and configs that fit the groups."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray

from cluster.check_launcher import check_ray_command
from cluster.findings import Files, Finding
from cluster.render import KINDS, ClusterValues, Group, render
from pipeline.settings import ConfigError, load_settings
from trainer.config import TrainerConfig

SECRETS = {
    "an AWS key": r"\b(AKIA|ASIA)[0-9A-Z]{16}\b",
    "a private key": r"-----BEGIN [A-Z ]*PRIVATE KEY-----",
    "a token of a code host or registry": r"\b(ghp|gho|ghs|github_pat|glpat|hf|dckr_pat|npm|pypi)[-_][\w-]{20,}\b",
    "a key of Google": r"\bAIza[0-9A-Za-z_-]{35}\b",
    "a long secret": r"(?i)\b\w*(secret|token|passwo?r?d|api_?key)\w*\s*[:=]\s*['\"]?[A-Za-z0-9+/_-]{24,}",
}
"""What must never be committed, by regular expression."""
TRAINING_CONFIGS = Path("trainer") / "configs"


def check_drift(files: Files) -> Iterator[Finding]:
    """Every file is what its values give; values are as their class says."""
    with tempfile.TemporaryDirectory(prefix="cloze-values-") as folder:
        for kind in KINDS:
            values = files.values(kind, Path(folder))
            if isinstance(values, ConfigError):
                yield Finding(f"values/{kind}.yaml", str(values).replace(f"{folder}/", ""))
                continue
            for name, text in render(kind, values).items():
                if files.texts.get(name) != text:
                    yield Finding(name, f"is not what values/{kind}.yaml gives; run `make cluster`")


def check_secrets(files: Files) -> Iterator[Finding]:
    """No file holds one."""
    for name, text in files.texts.items():
        for number, line in enumerate(text.splitlines(), start=1):
            for what, pattern in SECRETS.items():
                if re.search(pattern, line):
                    yield Finding(name, f"line {number} looks like {what}; take it out, and make it void")


def check_scripts(files: Files) -> Iterator[Finding]:
    """Scripts parse, and the installed Ray understands what they ask of it."""
    scripts = {name: text for name, text in files.texts.items() if name.endswith(".sbatch")}
    for name, document in files.documents("skypilot"):
        if document.get("envs", {}).get("RAY_AUTH_MODE") != "token":
            yield Finding(name, "envs: Ray runs code for whoever reaches it; set RAY_AUTH_MODE: token")
        scripts[name] = str(document["run"])
    for name, text in scripts.items():
        bash = shutil.which("bash")
        if bash is not None:
            done = subprocess.run([bash, "-n"], input=text, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                yield Finding(name, f"bash cannot read it: {' '.join(done.stderr.split())}")
                continue
        if name.endswith(".sbatch") and "RAY_AUTH_MODE=token" not in text:
            yield Finding(name, "Ray runs code for whoever reaches it; export RAY_AUTH_MODE=token")
        if "RAY_ADDRESS=" not in text:
            yield Finding(name, "the command would start a Ray of its own; export RAY_ADDRESS for it")
        for line in text.replace("\\\n", " ").splitlines():
            if not line.startswith("#") and re.search(r"(^|\s)ray [a-z]", line):
                for problem in check_ray_command(line.strip()):
                    yield Finding(name, f"{problem} in: {line.strip()}")


def check_images(files: Files) -> Iterator[Finding]:
    """Containers run as a user, from a base with a version, with what pyproject.toml and constraints.txt say."""
    project = tomllib.loads((files.repository / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for name, text in files.texts.items():
        if not name.endswith(".Dockerfile"):
            continue
        lines = text.replace("\\\n", " ").splitlines()
        for line in lines:
            if line.startswith("FROM ") and not re.search(r":[\w.-]*\d[\w.-]*$|@sha256:", line.strip()):
                yield Finding(name, f"{line}: name a version of the base")
        users = [line.split()[1] for line in lines if line.startswith("USER ")]
        if not users or users[-1] in ("root", "0"):
            yield Finding(name, "runs as root; end with another USER")
        folders = [line.split()[1] for line in lines if line.startswith("WORKDIR ")]
        copied = any(line.startswith("COPY ") and line.split()[-2:] == [".", "."] for line in lines)
        if not folders or not copied:
            yield Finding(name, "the repository must be its WORKDIR, so that `python trainer/run.py` is found there")
        asked = [word for line in lines for word in re.findall(r"-e '\.\[([\w,-]+)\]'", line)]
        if len(asked) != 1:
            yield Finding(name, "must install the package once, with its extras, by -e '.[...]'")
        for extra in ",".join(asked).split(","):
            if extra and extra not in project["optional-dependencies"]:
                yield Finding(name, f"installs the extra {extra}, which pyproject.toml does not have")
        for line in lines:
            if "pip install" in line and "-c constraints.txt" not in line and "--no-deps" not in line:
                yield Finding(name, f"installs what constraints.txt does not pin: {' '.join(line.split())}")
    constraints = (files.repository / "constraints.txt").read_text(encoding="utf-8")
    if f"\nray=={ray.__version__}\n" not in constraints:
        yield Finding("constraints.txt", f"does not pin ray=={ray.__version__}, which is installed here")


def check_sizes(files: Files) -> Iterator[Finding]:
    """The shipped configs fit the groups, and wait longer for nodes than those take to boot."""
    configs: dict[str, TrainerConfig] = {}
    for path in sorted((files.repository / TRAINING_CONFIGS).glob("*.yaml")):
        try:
            configs[str(TRAINING_CONFIGS / path.name)] = load_settings(TrainerConfig, file=path)
        except ConfigError as error:
            yield Finding(str(TRAINING_CONFIGS / path.name), str(error))
    with tempfile.TemporaryDirectory(prefix="cloze-values-") as folder:
        for kind in KINDS:
            values = files.values(kind, Path(folder))
            if isinstance(values, ConfigError):
                continue  # check_drift says it
            gpu = getattr(values, "gpu", None)
            assert isinstance(gpu, Group)
            for name, config in configs.items():
                yield from check_config(kind, values, gpu=gpu, name=name, config=config)
            yield from check_commands(kind, values, gpu=gpu)


def check_config(
    kind: str, values: ClusterValues, *, gpu: Group, name: str, config: TrainerConfig
) -> Iterator[Finding]:
    """One config on one kind of cluster."""
    most = gpu.gpus * gpu.max_nodes
    if config.workers > most:
        yield Finding(f"values/{kind}.yaml", f"gpu: {most} GPUs at most, {name} asks for workers={config.workers}")
    if config.start_timeout_s <= values.boot_timeout_s:
        yield Finding(
            f"values/{kind}.yaml",
            f"boot_timeout_s={values.boot_timeout_s}: {name} waits start_timeout_s={config.start_timeout_s} for its "
            f"workers, and would give up first; make that longer",
        )


def check_commands(kind: str, values: ClusterValues, *, gpu: Group) -> Iterator[Finding]:
    """What jobs run: scripts that are there, no more workers than GPUs, preprocessing bound to its nodes."""
    named: Any = getattr(values, "commands", None) or {}
    commands = named.model_dump() if named else {"train": getattr(values, "command", None)}
    for key, command in commands.items():
        if command is None:
            continue
        place, words = f"values/{kind}.yaml", shlex.split(command)
        settings = dict(word.split("=", 1) for word in words if "=" in word and not word.startswith("-"))
        script = {"train": "trainer/run.py", "preprocess": "pipeline/run.py"}[key]
        if words[:2] != ["python", script]:
            yield Finding(place, f"{key}: {command}: begin with `python {script}`")
        if "'" in command:
            yield Finding(place, f"{key}: {command}: scripts put it into single quotes; write it without")
        most = gpu.gpus * gpu.max_nodes
        for name in ("workers", "min_workers"):
            if key == "train" and int(settings.get(name, 1)) > most:
                yield Finding(place, f"{key}: {name}={settings[name]}, but gpu has {most} GPUs at most")
        if key == "preprocess" and not 1 <= int(settings.get("workers", 0)) <= count_cpus(values):
            yield Finding(
                place,
                f"{key}: workers={settings.get('workers', '')}: nodes come for as many as are asked for; give 1 to "
                f"{count_cpus(values)}, the CPUs of cpu",
            )
        if key == "preprocess" and settings.get("ray.resource") != "preprocessing":
            yield Finding(place, f"{key}: give ray.resource=preprocessing, or it may wake GPU nodes")


def count_cpus(values: ClusterValues) -> int:
    """CPUs of all nodes that preprocess."""
    cpu = getattr(values, "cpu", None)
    return cpu.cpus * cpu.max_nodes if isinstance(cpu, Group) else 0


CHECKS_OF_FILES = (check_drift, check_secrets, check_scripts, check_images, check_sizes)
