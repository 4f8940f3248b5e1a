"""Checks the commands of jobs in values files, before a cluster runs them and fails hours later."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from cluster import IMAGE_FOLDER, PREPROCESSING
from cluster.submit import CONFIGS, PATHS, SCRIPTS, is_absolute
from pipeline.config import FLAGS, KEYS
from pipeline.settings import ConfigError, Settings, load_tree, refuse_flags, split_arguments, validate
from pipeline.storage import check_url, is_url

if TYPE_CHECKING:
    from cluster.render.values import Group

KNOWN_FLAGS = {"train": ("--fresh",), "preprocess": tuple(flag for flag in FLAGS if flag == "--traceback")}
"""Maps each kind of job to the flags that make sense in it. A dry run does not: it does no work on the cluster."""
ONLY = {"train": {"launcher": "ray", "device": "cuda"}, "preprocess": {"engine": "ray"}}
"""Maps each kind of job to settings that have only one useful value on a cluster. With others, the job would run on one
node or without GPUs, and leave the rest idle."""
QUOTED = re.compile(r"'[^']*'|\"(?:\\.|[^\"\\])*\"|\\.", re.DOTALL)
"""Matches a quoted part of a command."""
SHELL = re.compile(r"[;&|<>()\n\r]|(^|\s)#")
"""Matches what a shell would act on outside of quotes."""
SUBSTITUTION = re.compile(r"`|\$(?![A-Za-z_]|\{[A-Za-z_]\w*(:?-[^{}$`]*)?\})")
"""Matches a substitution, which a shell makes outside of single quotes. Names of environment variables ($NAME, ${NAME}
or ${NAME:-DEFAULT}) may stay."""
OWN_FOLDERS = re.compile(r"/+(tmp|var/tmp|dev|proc|sys|run)(/|$)")
"""Matches paths in folders that each node has for itself."""
BRACES = re.compile(r"(?<!\$)\{[^{}\s]*(,|\.\.)[^{}\s]*\}")
"""Matches what bash expands to several words outside of quotes."""
_ORIGIN = "values"


def check_command(
    command: str, *, key: str, work: str, group: Group, whole: bool = False, shared: str | None = None
) -> None:
    """Check `command`, the command of a job of the kind `work` (train or preprocess). `key` names this value in errors.

    If `whole`, the job always holds all nodes of `group`, and must use each of them. `shared` is the only folder that
    the nodes share, or None if they may share others. Raises ValueError, which lists
    every fault: another script, shell syntax, an unknown setting or flag, a value of the wrong type, a path that nodes
    cannot see, or more workers than `group` has room for. A command that preprocesses must also set `workers`, which
    decides how many nodes start, and `ray.resource`, because otherwise GPU nodes may start.
    """
    faults = list(_find_faults(command, key=key, work=work, group=group, whole=whole, shared=shared))
    if faults:
        raise ValueError("; ".join(faults))


def _find_faults(command: str, *, key: str, work: str, group: Group, whole: bool, shared: str | None) -> Iterator[str]:
    outside = QUOTED.sub(lambda part: part[0].replace("\\$", "") if part[0][0] == '"' else "_", command)
    found = SUBSTITUTION.search(outside) or SHELL.search(QUOTED.sub("_", command))
    found = found or BRACES.search(QUOTED.sub("_", command)) or re.search(r"[\n\r]", command)
    if found:
        mark = found[0].strip() or "line break"
        yield f"{key}={command!r}: a shell would act on `{mark}`; give one command without it"
        return
    try:
        words = shlex.split(command)
    except ValueError as error:
        yield f"{key}={command}: a shell cannot read it: {error}; close it"
        return
    if words[:2] != ["python", SCRIPTS[work]]:
        yield f"{key}={command}: begin with `python {SCRIPTS[work]}`"
        return
    try:
        arguments = split_arguments(words[2:], program=key, keys=KEYS if work == "preprocess" else ())
        refuse_flags(arguments.flags, program=key, known=KNOWN_FLAGS[work])
    except ConfigError as error:
        yield str(error)
        return
    if "--help" in arguments.flags:
        yield f"{key}={command}: remove --help; with it the job does no work"
    if sum(word.partition("=")[0] == "--config" for word in words) > 1:
        yield f"{key}={command}: --config is given more than once; give it once"
    file = arguments.file
    if not file:
        yield f"{key}={command}: add --config FILE; without it the job uses the sample"
    elif file.startswith("-") or "=" in file:
        yield f"{key}: --config {file}: give the file of the config after --config"
    elif file.startswith("/" if shared is None else ("/", "~")) and not file.startswith(f"{IMAGE_FOLDER}/"):
        for fault in find_path_faults(file, shared=shared):  # configs are read from folders alone
            yield f"{key}: --config{fault.replace(', or an address of an object store', '')}"
    if arguments.rest and work == "train":
        yield f"{key}={command}: remove -- and what follows; the trainer takes nothing there"
    yield from _find_setting_faults(arguments.overrides, key=key, work=work, shared=shared)
    settings = dict(word.split("=", 1) for word in arguments.overrides)
    read = [_normalize(value) for name, value in settings.items() if names_path(name, work=work) and name != "output"]
    if settings.get("output") and _normalize(settings["output"]) in read:
        yield f"{key}: output={settings['output']} is what the job reads; give another folder"
    yield from _find_room_faults(settings, key=key, work=work, group=group, whole=whole)
    for name, value in ONLY[work].items():
        if settings.get(name, value if work == "train" else "") not in (value, "auto"):
            yield f"{key}: {name}={settings.get(name, '')}: set {name}={value}, or what the job holds stays idle"
    if work == "preprocess" and settings.get("ray.resource") != PREPROCESSING:
        yield f"{key}={command}: add ray.resource={PREPROCESSING}, or GPU nodes may start for it"


def _find_room_faults(settings: dict[str, str], *, key: str, work: str, group: Group, whole: bool) -> Iterator[str]:
    """Yield a message for each number of workers in `settings` (name to text) that does not fit `group`."""
    unit, each = ("GPUs", group.gpus) if work == "train" else ("CPUs", group.cpus)
    room, numbers = each * group.max_nodes, {}
    for name in ("workers", "min_workers") if work == "train" else ("workers",):
        text = settings.get(name, "1" if work == "train" else "")
        if not (text.isascii() and text.isdecimal() and len(text) < 10 and 1 <= int(text) <= room):
            yield f"{key}: {name}={text[:20]}: give 1 to {room}, the {unit} of all nodes"
        elif name in settings:
            numbers[name] = int(text)
    workers = numbers.get("workers", room)
    if numbers.get("min_workers", 0) > workers:
        yield f"{key}: min_workers={numbers['min_workers']} exceeds workers={workers}; lower it"
    if whole and work == "train" and workers <= room - each:
        needed = -(-workers // each)
        yield f"{key}: workers={workers}: the job holds {group.max_nodes} nodes and uses {needed}; lower max_nodes"


def _find_setting_faults(overrides: Sequence[str], *, key: str, work: str, shared: str | None) -> Iterator[str]:
    """Yield a message for each word of `overrides` (key=value) that the config class of `work` refuses, whatever the
    config file says; also for repeated settings and for relative paths."""
    names = [word.partition("=")[0] for word in overrides]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"{key}: {name} is set {names.count(name)} times; give it once"
    for word in overrides:
        name, _, value = word.partition("=")
        fault = _find_fault(CONFIGS[work], word)
        if fault:
            yield f"{key}: {fault}"
        elif names_path(name, work=work) and value not in ("", "null") and not re.search(r"^\[|\$", value):
            yield from (f"{key}: {name}{fault}" for fault in find_path_faults(value, shared=shared))


def _normalize(path: str) -> str:
    """Return `path` without what means nothing in a path: a slash at the end, // and .. after a folder."""
    return path.rstrip("/") if is_url(path) else os.path.normpath(path.removeprefix("file://"))


def names_path(name: str, *, work: str) -> bool:
    """Whether the setting `name` names a file or folder that several nodes read or write. A working folder does not:
    each node has its own."""
    pattern = re.sub(r"\.\d+(?=\.|$)", ".*", name)
    return pattern in PATHS[work] and name != "working_folder"


def find_path_faults(path: str, *, shared: str | None = None) -> Iterator[str]:
    """Yield a message, which begins with `=`, if not all nodes of a cluster reach `path`: it is relative, in a folder
    that each node has for itself, outside `shared` (the only folder that they share, if not None), or the address of a
    store that is not known or of no bucket."""
    if is_url(path):
        try:
            check_url(path)
        except ValueError as error:
            yield f"={'...' if '@' in path else path}: {error}"
        return
    local = path.removeprefix("file://")
    if not is_absolute(local):
        yield f"={path}: give an absolute path that all nodes see, or an address of an object store"
    elif OWN_FOLDERS.match(os.path.normpath(local)):
        yield f"={path}: each node has a folder of its own there; give a path that all nodes see"
    elif shared is not None and not os.path.normpath(local).startswith(f"{shared}/"):
        yield f"={path}: the nodes share {shared} alone; give a path in it, or an address of an object store"


def _find_fault(cls: type[Settings], word: str) -> str | None:
    """Return what is wrong with the override `word` alone, or None. A value with $NAME is known only on the cluster,
    and an index into a list (sources.0.path) only with the config file; there only the name is checked."""
    name, _, value = word.partition("=")
    parts = name.split(".")
    known = next((place for place, part in enumerate(parts) if part.isdecimal()), len(parts))
    if known < len(parts) or "$" in value:
        word = f"{'.'.join(parts[:known])}=null"
    try:
        validate(cls, load_tree(None, overrides=[word]), origin=_ORIGIN, overrides=[word])
    except ConfigError as error:
        if str(error).startswith("override"):
            return str(error)
        # a key below a plain value, such as batch.tokens.x=5, is told as batch.tokens={'x': 5}
        above = "|".join(rf"{re.escape('.'.join(parts[:n]))}=\{{" for n in range(1, len(parts)))
        own = f"{re.escape(name)}=" if "$" not in value else "(?!)"
        found = re.search(rf"unknown key '.*|(?<![\w.])({own}|{above or '(?!)'}).*", str(error))
        if found is None:
            return None
        return re.split(rf"; (?:'[\w.]+' is required|{_ORIGIN}: |command line: )", found[0])[0]
    return None
