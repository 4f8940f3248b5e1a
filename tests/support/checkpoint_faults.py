"""What the tests of checkpoints do to files and writers, in the processes of a worker group."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline.storage import Location
from toy_training import make_config, make_engine
from trainer.checkpoint import load
from trainer.checkpoint.commit import open_draft


def resume_nothing(rank: int, run: str) -> Any:
    """A new engine, resumed."""
    engine = make_engine(make_config(zero_stage=1))
    try:
        return load.resume(load.find_together(run), engine=engine)
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


def save_again_and_again(root: Location) -> list[bool | None]:
    """Drafts of one step, of which the first and the third are given up: what another rank takes them for."""
    found = []
    for token, given_up in ((1, True), (2, False), (3, True), (4, False)):
        mine, other = (open_draft(root, step=10, token=token, world_size=1) for _ in range(2))
        mine.begin()
        mine.begin_part(0)
        mine.end_part(0, entries={})
        assert other.is_committed() is None
        mine.seal({})
        if given_up:
            mine.give_up()
        else:
            mine.commit()
        found.append(other.is_committed())
    return found
