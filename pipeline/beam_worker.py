"""A worker process of the local engine: Beam's own, but quiet, and gone when the build failed elsewhere or was killed.

Without that a build of hours would tell of a bad file only when every other worker is done with its share.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time

ABORT_VARIABLE = "CLOZE_ABORT_FILE"
"""Environment variable with the path of a file; once that exists, workers end."""
PARENT_VARIABLE = "CLOZE_PARENT_PROCESS"
"""Environment variable with the process id of the build: it may have ended before a worker looks for its parent."""
_CHECK_EVERY_S = 1.0


def silence_beam() -> None:
    """Import Beam without its complaints about absent cloud packages, and let it log nothing: it logs every error in a
    worker several times with tracebacks, and raises it all the same."""
    logging.disable(logging.CRITICAL)
    try:
        import apache_beam  # noqa: F401
    finally:
        logging.disable(logging.NOTSET)
    for name in ("apache_beam", "grpc"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)


def main() -> None:
    """Run the worker that the environment variables of Beam describe."""
    arguments = (int(os.environ[PARENT_VARIABLE]), os.environ[ABORT_VARIABLE])
    threading.Thread(target=_end_with_build, args=arguments, name="end-with-build", daemon=True).start()
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    handler.addFilter(logging.Filter("pipeline"))
    logging.getLogger().addHandler(handler)
    silence_beam()
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (Beam prints tracebacks of what it reports as well)

    from apache_beam.runners.worker import sdk_worker_main

    sdk_worker_main.main(sys.argv)


def _end_with_build(parent: int, abort: str) -> None:
    while os.getppid() == parent and not os.path.exists(abort):
        time.sleep(_CHECK_EVERY_S)
    os._exit(1)


if __name__ == "__main__":
    main()
