"""Checks and expands paths and URLs in a user's settings."""

from __future__ import annotations

import json
import os
from pathlib import PurePosixPath

from pipeline.settings import ConfigError
from pipeline.storage.clients import StorageError, StrPath, check_url, is_url, local_path


def expand_path(value: str, *, key: str, local_only: bool = False) -> str:
    """Return a path setting with ~ expanded. A file:// URL becomes a path, and s3:// and gs:// URLs lose only the
    slashes at their end.

    Raises ConfigError naming `key` if the value is empty, contains a NUL or is an invalid URL. With `local_only`, a URL
    of a store raises ConfigError too.
    """
    if not value or "\0" in value:
        raise ConfigError(f"{key}={value!r}: not a path; give the name of a file or folder")
    if is_url(value):
        if local_only:
            raise ConfigError(f"{key}={value}: object stores are not supported here; give a local or mounted path")
        try:
            check_url(value)
        except ValueError as error:
            raise ConfigError(f"{key}: {error}") from error
        return value.rstrip("/")
    if value.lower().startswith("file://"):
        return str(local_path(value))
    return os.path.expanduser(value)


def stays_inside(name: str) -> bool:
    """Return whether `name`, which comes from outside, is the relative path of something below a folder: not empty, not
    absolute, without `..`, backslash and NUL. A key on an object store may be any text."""
    pure = PurePosixPath(name)
    return bool(pure.parts) and not (pure.is_absolute() or ".." in pure.parts or "\\" in name or "\0" in name)


def name_below(folder: StrPath, name: str) -> str:
    """Return `name`, which a store listed below `folder`. Raises StorageError if it leads out of `folder`: callers join
    it to other folders."""
    if name and not stays_inside(name):
        raise StorageError(
            f"{os.fspath(folder)}: holds an object whose name {name!r} leads out of the folder; find out who wrote it, "
            "and remove it"
        )
    return name


def refuse_lost_path(value: str, *, key: str) -> None:
    """Raise ConfigError, which names the setting `key`, if `value` is a relative path in a Ray job that was submitted
    with `--working-dir`. Such a job runs in an uploaded copy of its folder. The copy lacks the files that git ignores,
    and what is written there is lost."""
    job = json.loads(os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR") or "{}")
    uploaded = (job.get("runtime_env") or {}).get("working_dir")
    if uploaded is not None and not os.path.isabs(value):
        raise ConfigError(
            f"{key}={value}: this job runs in an uploaded copy of its folder ({uploaded}): ignored files such as "
            f"data are missing there, and written files are lost; give an absolute path that all nodes see, "
            f"as in {key}=$PWD/{value}"
        )
