"""What is recorded of each step: metrics.jsonl in the output, and a tracker."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pipeline import storage
from pipeline.settings import ConfigError
from trainer.config import TrainerConfig
from trainer.telemetry import METRICS_NAME, JsonLines, open_tracker


@contextmanager
def open_log(config: TrainerConfig, *, resume_step: int, here: bool) -> Iterator[Callable[[Mapping[str, float]], None]]:
    """Yield a function that records the numbers of a step, by name; one of them is `step`.

    Records nothing if not `here` (another rank does) or if the output is a URL, where a tracker is refused. Records of
    steps after `resume_step`, the last step of the state, are removed first.
    """
    if storage.is_url(config.output) and config.logging.tracker != "none":
        raise ConfigError(f"tracker={config.logging.tracker}: needs a local output, not {config.output}; leave it out")
    if not here or storage.is_url(config.output):
        yield lambda numbers: None
        return
    folder = Path(config.output).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    lines = JsonLines(folder / METRICS_NAME, keep_through=resume_step)
    tracker = open_tracker(config, run_directory=folder, resume_step=resume_step)

    def write(numbers: Mapping[str, float]) -> None:
        lines.write(numbers)
        if tracker is not None:
            values = {name: value for name, value in numbers.items() if name != "step"}
            tracker.write(values, step=int(numbers["step"]))

    try:
        yield write
    finally:
        lines.close()
        if tracker is not None:
            tracker.close()
