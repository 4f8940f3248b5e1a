"""A worker process of the local engine: Beam's own worker, but without Beam's logs.

It exits if another worker fails, or if the build's main process is killed. Otherwise a build of hours would report a
bad file only after all other workers have finished their share.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

ABORT_VARIABLE = "CLOZE_ABORT_FILE"
"""Environment variable with the path of a file; workers exit once the file exists."""
HELD_VARIABLE = "CLOZE_HELD_FOLDER"
"""Environment variable with the path of a folder. Each worker holds a shared lock on that folder as long as the worker
lives, so that the next build can wait for workers of a killed build."""
BUILD_VARIABLE = "CLOZE_BUILD_PROCESS"
"""Environment variable with the id of the build's main process; workers exit once that process is gone."""
_CHECK_EVERY_S = 1.0


def silence_beam() -> None:
    """Import Beam without its warnings about missing cloud packages, and turn off its logs.

    Beam logs every error of a worker several times with tracebacks. Nothing is lost, because Beam also raises each
    error.
    """
    logging.disable(logging.CRITICAL)
    try:
        import apache_beam  # noqa: F401
    finally:
        logging.disable(logging.NOTSET)
    for name in ("apache_beam", "grpc"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)


def main() -> None:
    """Run the worker that Beam's environment variables describe."""
    folder = os.environ.get(HELD_VARIABLE)
    if folder:
        hold_folder(folder)
    arguments = (int(os.environ.get(BUILD_VARIABLE, os.getppid())), os.environ.get(ABORT_VARIABLE))
    threading.Thread(target=_end_with_build, args=arguments, name="end-with-build", daemon=True).start()
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    handler.addFilter(logging.Filter("pipeline"))
    logging.getLogger().addHandler(handler)
    silence_beam()
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (Beam also prints tracebacks of errors that it reports)

    from apache_beam.runners.worker import sdk_worker_main

    sdk_worker_main.main(sys.argv)


def hold_folder(folder: str) -> None:
    """Hold a shared lock on the folder `folder` until this process ends, so that the next build can wait for the
    process to end. Do nothing if the folder cannot be locked or is gone."""
    with suppress(OSError):
        fcntl.flock(os.open(folder, os.O_RDONLY | os.O_DIRECTORY), fcntl.LOCK_SH | fcntl.LOCK_NB)


def _end_with_build(parent: int, abort: str | None) -> None:
    while os.getppid() == parent and not (abort and os.path.exists(abort)):
        time.sleep(_CHECK_EVERY_S)
    os._exit(1)


if __name__ == "__main__":
    main()


_ROOT = str(Path(__file__).resolve().parents[2])


def python_path() -> str:
    """Return a PYTHONPATH with which workers import the same `pipeline` package as this process, even if the package is
    not installed."""
    before = os.environ.get("PYTHONPATH")
    return f"{_ROOT}{os.pathsep}{before}" if before else _ROOT
