"""Starting the workers again from the last checkpoint: after a loss, or to go on with more or fewer of them.

A budget bounds losses without progress, so that what fails at once ends soon and a long run survives any number of
losses. Bad input is never tried again. Cost of a restart: the workers' start and the steps since the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable

from pipeline.console import Say
from pipeline.signals import StopRequest
from trainer.checkpoint import Checkpoints, find_checkpoints
from trainer.config import TrainerConfig
from trainer.launch.failures import GO_ON, ClusterError, WorkerError
from trainer.train import Outcome


def run_attempts(
    attempt: Callable[[], Outcome], *, config: TrainerConfig, checkpoints: Checkpoints, say: Say, stop: StopRequest
) -> Outcome:
    """Call `attempt` until the run is finished or asked to stop; what it came to.

    `checkpoints`: the run's before the first attempt.
    An attempt that ends unfinished without having been asked to has made room for another group of workers. Raises
    what an attempt raises: WorkerError once the budget is spent, ClusterError and errors of the input at once.
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
            reason = str(error).splitlines()[0].removesuffix(GO_ON)
            start = f"the checkpoint of step {step}" if step else "step 0"
            say(f"{reason}; starting the workers again from {start} ({losses} of max_restarts={config.max_restarts})")
        else:
            if outcome.finished or stop:
                return outcome
            say(f"starting the workers again from step {outcome.last_step}")
