"""Restart the workers from the last checkpoint, after a worker was lost or to continue with more or fewer workers.

The setting max_restarts limits how often workers may be lost without a new checkpoint in between. So a run that fails
again and again without a new checkpoint ends soon, but a long run that writes checkpoints survives any number of
losses. Bad input is not retried. A restart costs the time to start the workers and to repeat the steps since the
checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable

from pipeline.console import Say
from pipeline.signals import StopRequest
from trainer.checkpoint import Checkpoints, find_checkpoints
from trainer.config import TrainerConfig
from trainer.launch.failures import CONTINUE_HINT, ClusterError, WorkerError
from trainer.train import Outcome


def run_attempts(
    attempt: Callable[[], Outcome], *, config: TrainerConfig, checkpoints: Checkpoints, say: Say, stop: StopRequest
) -> Outcome:
    """Do what restart_workers does, for a pretraining run. `checkpoints` lists its checkpoints before the first call of
    `attempt`."""
    return restart_workers(
        attempt,
        newest_step=checkpoints.newest_step,
        find_step=lambda: find_checkpoints(config.output).newest_step,
        max_restarts=config.max_restarts,
        say=say,
        stop=stop,
    )


def restart_workers(
    attempt: Callable[[], Outcome],
    *,
    newest_step: int,
    find_step: Callable[[], int],
    max_restarts: int,
    say: Say,
    stop: StopRequest,
) -> Outcome:
    """Call `attempt`, which starts the workers, again and again until the run is finished or asked to stop.

    Returns the outcome of the last call. `newest_step` is the step of the newest checkpoint before the first call (0:
    there is none), and `find_step` finds it later. If a call returns early although nobody asked the run to stop, the
    next call may start more or fewer workers. Raises WorkerError if workers are lost without a new checkpoint more
    often in a row than `max_restarts` allows. ClusterError and errors of the input are raised at once.
    """
    losses, newest = 0, newest_step
    while True:
        try:
            outcome = attempt()
        except ClusterError:
            raise
        except WorkerError as error:
            step = find_step()
            losses, newest = (losses + 1 if step == newest else 1), step
            if stop or losses > max_restarts:
                raise
            reason = str(error).splitlines()[0].removesuffix(CONTINUE_HINT)
            start = f"the checkpoint of step {step}" if step else "step 0"
            say(f"{reason}; starting the workers again from {start} ({losses} of max_restarts={max_restarts})")
        else:
            if outcome.finished or stop:
                return outcome
            say(f"starting the workers again from step {outcome.last_step}")
