"""Restart the workers from the last checkpoint, after a loss or to continue with more or fewer workers.

max_restarts limits the losses without a new checkpoint: a run that fails at once ends soon, and a long run survives any
number of losses. Bad input is not retried. A restart costs the start of the workers, and the steps since the
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
    """Call `attempt`, which starts the workers, until the run is finished or asked to stop; return the last outcome.

    `checkpoints` lists the run's checkpoints before the first attempt. If an attempt ends early without a request to
    stop, the next one may have another number of workers. Raises WorkerError once max_restarts is used up, ClusterError
    and errors of the input at once.
    """
    losses, newest = 0, checkpoints.newest_step
    while True:
        try:
            outcome = attempt()
        except ClusterError:
            raise
        except WorkerError as error:
            step = find_checkpoints(config.output).newest_step
            losses, newest = (losses + 1 if step == newest else 1), step
            if stop or losses > config.max_restarts:
                raise
            reason = str(error).splitlines()[0].removesuffix(CONTINUE_HINT)
            start = f"the checkpoint of step {step}" if step else "step 0"
            say(f"{reason}; starting the workers again from {start} ({losses} of max_restarts={config.max_restarts})")
        else:
            if outcome.finished or stop:
                return outcome
            say(f"starting the workers again from step {outcome.last_step}")
