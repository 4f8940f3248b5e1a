"""What the tests of checkpoints do to files and writers, in the processes of a worker group."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from toy_training import make_config, make_engine

from trainer import checkpoint


def resume_nothing(rank: int, run: str) -> Any:
    """A new engine, resumed."""
    engine = make_engine(make_config(zero_stage=1))
    try:
        return checkpoint.resume(run, engine=engine)
    finally:
        engine.close()


def flip_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def fail_to_write(*_args: Any, **_kwargs: Any) -> Any:
    raise OSError(28, "No space left on device")


def listen(function: Callable[..., Any], *args: Any) -> list[str]:
    """What the trainer logs while function(*args) runs in a worker."""
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("trainer").addHandler(handler)
    function(*args)
    logging.getLogger("trainer").removeHandler(handler)
    return messages
