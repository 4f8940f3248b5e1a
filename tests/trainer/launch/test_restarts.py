"""When the workers are started again, and when not."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.settings import ConfigError
from pipeline.signals import StopRequest
from small_runs import make_config
from trainer.checkpoint.format import step_name
from trainer.checkpoint.load import find_checkpoints
from trainer.launch.failures import CONTINUE_HINT, ClusterError, WorkerError
from trainer.launch.restarts import run_attempts
from trainer.train.link import Outcome

DONE = Outcome(first_step=0, last_step=9, finished=True)
Attempt = Callable[[], Outcome]


@pytest.fixture
def output(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    (folder / "checkpoints").mkdir(parents=True)
    return folder


def lose(output: Path, *, at_step: int = 0) -> Attempt:
    """An attempt that writes a checkpoint and then loses a worker."""

    def attempt() -> Outcome:
        if at_step:
            (output / "checkpoints" / step_name(at_step)).mkdir()
        raise WorkerError(f"worker 1 was lost: ended by signal 9{CONTINUE_HINT}\nTraceback ...")

    return attempt


def play(output: Path, *attempts: Attempt, max_restarts: int = 2, stop: StopRequest | None = None) -> list[str]:
    """The lines that are said until the attempts are through; all of them must be made."""
    said: list[str] = []
    rest = iter(attempts)

    def attempt() -> Outcome:
        return next(rest)()

    config = make_config(output.parent, output, max_restarts=max_restarts)
    try:
        run_attempts(
            attempt,
            config=config,
            checkpoints=find_checkpoints(config.output),
            say=said.append,
            stop=stop or StopRequest(),
        )
    finally:
        assert next(rest, None) is None, "not all attempts were made"
    return said


def test_a_loss_is_followed_by_another_start_which_is_told(output: Path) -> None:
    said = play(output, lose(output), lose(output, at_step=5), lambda: DONE)
    assert said == [
        "worker 1 was lost: ended by signal 9; starting the workers again from step 0 (1 of max_restarts=2)",
        "worker 1 was lost: ended by signal 9; starting the workers again from the checkpoint of step 5 "
        "(1 of max_restarts=2)",
    ]


def test_losses_without_progress_spend_the_budget(output: Path) -> None:
    with pytest.raises(WorkerError, match=r"worker 1 was lost.*continues from the last checkpoint\nTraceback"):
        play(output, lose(output), lose(output), lose(output))
    with pytest.raises(WorkerError):
        play(output, lose(output, at_step=5), max_restarts=0)


def test_progress_brings_the_budget_back(output: Path) -> None:
    attempts = [lose(output, at_step=5 * number) for number in range(1, 8)]
    assert len(play(output, *attempts, lose(output), lambda: DONE, max_restarts=2)) == 8
    with pytest.raises(WorkerError):
        play(output, lose(output), lose(output, at_step=50), lose(output), max_restarts=1)


def test_bad_input_and_a_lost_cluster_are_not_tried_again(output: Path) -> None:
    for error in (ConfigError("no such column"), ClusterError("Ray is gone")):

        def fail(error: Exception = error) -> Outcome:
            raise error

        with pytest.raises(type(error)):
            play(output, fail)


def test_who_was_asked_to_stop_starts_nothing(output: Path) -> None:
    stop = StopRequest()
    stop.signal_number = signal.SIGTERM
    with pytest.raises(WorkerError):
        play(output, lose(output), stop=stop)
    assert play(output, lambda: Outcome(0, 3, finished=False), stop=stop) == []


def test_a_group_that_ended_for_another_one_is_followed_by_it(output: Path) -> None:
    assert play(output, lambda: Outcome(0, 3, finished=False), lambda: DONE) == [
        "starting the workers again from step 3"
    ]
