"""A worker process of the local engine: Beam's own, but quiet, and gone when the process that started it is gone."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time

_CHECK_EVERY_S = 1.0


def silence_beam() -> None:
    """Import Beam without its complaints about absent cloud packages, and let it log nothing: it logs every error in a
    worker several times with tracebacks, and raises it all the same."""
    logging.disable(logging.CRITICAL)
    try:
        import apache_beam  # noqa: F401
    finally:
        logging.disable(logging.NOTSET)
    logging.getLogger("apache_beam").setLevel(logging.CRITICAL + 1)


def main() -> None:
    """Run the worker that the environment variables of Beam describe."""
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), name="end-with-parent", daemon=True).start()
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    handler.addFilter(logging.Filter("pipeline"))
    logging.getLogger().addHandler(handler)
    silence_beam()

    from apache_beam.runners.worker import sdk_worker_main

    sdk_worker_main.main(sys.argv)


def _end_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_CHECK_EVERY_S)
    os._exit(1)


if __name__ == "__main__":
    main()
