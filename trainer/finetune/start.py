"""Starts a fine-tuning: takes the lease of its output, and runs its workers in this process, in others, or on Ray."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from pipeline.console import Say
from pipeline.settings import ConfigError
from pipeline.signals import StopRequest
from pipeline.storage import hold, locate
from trainer.config import ModelConfig, TrainerConfig
from trainer.finetune import scores
from trainer.finetune.config import FinetuneConfig
from trainer.finetune.result import Result
from trainer.finetune.state import read_result, read_step
from trainer.finetune.tasks import find_task
from trainer.finetune.worker import work
from trainer.launch import processes, restart_workers
from trainer.train import Outcome, WorkerPlace

_NO_STEPS = 2**31 - 1
"""For settings of a launcher, before the number of steps is known."""


def finetune(config: FinetuneConfig, *, say: Say, stop: StopRequest | None = None) -> Result | None:
    """Train on a task and evaluate; return None if `stop` came first: the same settings continue from there.

    Lost workers of a launcher are started again from the last state. Raises ValueError (ConfigError, TaskDataError,
    PretrainedError, LeaseError) that names what is wrong, and WorkerError if workers are lost too often (max_restarts).
    """
    scores.check_libraries()
    find_task(config.task, columns=config.columns)
    stop = StopRequest() if stop is None else stop  # a request is false until a signal arrives
    output = locate(config.output)
    if config.launcher == "none":
        config = resolve_device(config)
    with hold(output, timeout_s=config.lease_timeout_s, say=say, stop=stop):
        done = read_result(output, config=config)
        if done is not None:
            say(f"{output}: is done; give another output to train again")
            return Result.of(done["result"])
        if not _launch(config, say=say, stop=stop).finished:
            return None
        done = read_result(output, config=config)
        assert done is not None
        return Result.of(done["result"])


def resolve_device(config: FinetuneConfig) -> FinetuneConfig:
    """Return the config with device=auto replaced; ConfigError if there is no GPU for device=cuda."""
    return config.model_copy(update={"device": pick_device(config.device).type})


def pick_device(name: str) -> torch.device:
    """Return the device for cpu, cuda or auto (a GPU if there is one); ConfigError if there is no GPU for cuda."""
    gpus = torch.cuda.is_available()
    if name == "cuda" and not gpus:
        raise ConfigError("device=cuda: torch sees no GPU here; leave it out")
    return torch.device("cuda" if gpus and name != "cpu" else "cpu")


def _launch(config: FinetuneConfig, *, say: Say, stop: StopRequest) -> Outcome:
    launched: TrainerConfig = config.pretraining(num_steps=_NO_STEPS, model=ModelConfig(size="tiny"))
    job = partial(work, config)
    if config.launcher == "none":
        return job(launched, place=WorkerPlace(0, 1, 0, 1), link=_Here(say, stop), device=torch.device(config.device))
    if config.launcher == "processes":
        resolved = processes.resolve_device(launched)
        run = partial(processes.run_in_processes, resolved, say=say, stop=stop, job=job)
        return _restart(run, config=config, say=say, stop=stop)
    from trainer.launch import elastic, ray_train  # Ray is not installed everywhere

    with ray_train.ray_session(launched) as resolved:
        stop.listen()
        watch = elastic.GroupWatch(resolved, per_worker=ray_train.resources_of(resolved))
        run = partial(ray_train.run_on_ray, resolved, say=say, stop=stop, job=job, watch=watch)
        return _restart(run, config=config, say=say, stop=stop)


def _restart(run: Callable[[], Outcome], *, config: FinetuneConfig, say: Say, stop: StopRequest) -> Outcome:
    output = locate(config.output)

    def attempt() -> Outcome:
        # A worker may be lost after rank 0 has written the result and removed the state.
        return Outcome(0, 0, True) if read_result(output, config=config) is not None else run()

    find_step = partial(read_step, output)
    return restart_workers(
        attempt, newest_step=find_step(), find_step=find_step, max_restarts=config.max_restarts, say=say, stop=stop
    )


class _Here:
    """The link of a worker that runs in the command's own process."""

    def __init__(self, say: Say, stop: StopRequest) -> None:
        self.say, self._stop = say, stop

    def stop_requested(self) -> bool:
        return bool(self._stop)
