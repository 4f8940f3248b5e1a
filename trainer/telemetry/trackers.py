"""Experiment trackers: TensorBoard, Weights & Biases, MLflow, or none (`logging.tracker`).

Only rank 0 has a tracker. A resumed run continues in the same place under the same name. An earlier start may have
recorded steps after the checkpoint from which the run resumes. A tracker that can hide these records does so. The
trackers' packages are imported when needed; `pip install '.[trackers]'` installs them.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from pipeline.settings import ConfigError, to_tree
from trainer.config import TrainerConfig
from trainer.telemetry.log_files import MLFLOW_FOLDER, MLFLOW_RUN_NAME, TENSORBOARD_FOLDER

EXPERIMENT = "cloze"


class Tracker(Protocol):
    """Records numbers by name and step."""

    def write(self, numbers: Mapping[str, float], *, step: int) -> None:
        """Record the numbers of a step."""

    def close(self) -> None:
        """Flush and close the tracker. A later start of the run may open it again and continue."""


def open_tracker(config: TrainerConfig, *, run_directory: Path, resume_step: int) -> Tracker | None:
    """Return the tracker that the config names, or None if the config says `none`. Raises ConfigError if its package is
    missing.

    `resume_step` is the step of the checkpoint from which the run continues (0: a new run).
    """
    name = config.logging.tracker
    if name == "none":
        return None
    kinds: dict[str, Callable[..., Tracker]] = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases, "mlflow": Mlflow}
    try:
        return kinds[name](run_directory, config=config, resume_step=resume_step)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"logging.tracker={name}: the package {error.name} is not installed; pip install '.[trackers]', or choose "
            f"another tracker"
        ) from error


class TensorBoard:
    """Writes scalars to RUN/tensorboard. An earlier start may have written scalars of steps after the checkpoint
    from which the run resumes. These scalars are hidden."""

    def __init__(self, run_directory: Path, *, config: TrainerConfig, resume_step: int) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary
        from torch.utils.tensorboard import SummaryWriter  # takes a second to import

        self._summary = Summary
        self._board = SummaryWriter(str(run_directory / TENSORBOARD_FOLDER), purge_step=resume_step + 1)
        self._events: Any = self._board.file_writer

    def write(self, numbers: Mapping[str, float], *, step: int) -> None:
        """Write all scalars in one event. One event for each scalar would delay the step by a millisecond."""
        values = [self._summary.Value(tag=key, simple_value=value) for key, value in numbers.items()]
        self._events.add_summary(self._summary(value=values), step)

    def close(self) -> None:
        """Flush and close."""
        self._board.close()


class WeightsAndBiases:
    """A Weights & Biases run, offline in RUN/wandb unless WANDB_MODE says otherwise; `wandb sync` uploads it later.

    The run's id is a hash of the output path, so all starts of the training belong to one Weights & Biases run.
    """

    def __init__(self, run_directory: Path, *, config: TrainerConfig, resume_step: int) -> None:
        wandb = importlib.import_module("wandb")
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", EXPERIMENT),
            name=Path(config.output).name,
            id=run_id(config.output),
            dir=str(run_directory),
            mode=os.environ.get("WANDB_MODE", "offline"),
            resume="allow",
            config=to_tree(config),
            settings=wandb.Settings(silent=True, disable_git=True, save_code=False),
        )

    def write(self, numbers: Mapping[str, float], *, step: int) -> None:
        """Log the numbers of a step. Numbers once logged cannot be removed from Weights & Biases. So numbers from an
        earlier start of the run stay, even for steps after the checkpoint from which the run resumes."""
        self._run.log(dict(numbers), step=step)

    def close(self) -> None:
        """Close the log of this start. A later start may continue the run."""
        self._run.finish()


class Mlflow:
    """An MLflow run at MLFLOW_TRACKING_URI or, if this is not set, in RUN/mlflow. RUN/mlflow_run.txt holds the run's
    id."""

    def __init__(self, run_directory: Path, *, config: TrainerConfig, resume_step: int) -> None:
        tracking = importlib.import_module("mlflow.tracking")
        self._metric = importlib.import_module("mlflow.entities").Metric
        folder = run_directory / MLFLOW_FOLDER
        given = os.environ.get("MLFLOW_TRACKING_URI")
        if not given:
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # files suffice for one writer
        self._client = tracking.MlflowClient(tracking_uri=given or folder.as_uri())
        note = run_directory / MLFLOW_RUN_NAME
        if note.is_file():
            self._run = note.read_text(encoding="ascii").strip()
            self._client.update_run(self._run, status="RUNNING")
            return
        experiment = self._client.get_experiment_by_name(EXPERIMENT)
        number = self._client.create_experiment(EXPERIMENT) if experiment is None else experiment.experiment_id
        self._run = self._client.create_run(number, run_name=Path(config.output).name).info.run_id
        for key, value in sorted(flatten(to_tree(config)).items()):
            self._client.log_param(self._run, key, str(value)[:500])
        note.write_text(self._run + "\n", encoding="ascii")

    def write(self, numbers: Mapping[str, float], *, step: int) -> None:
        """Log the numbers of a step as one batch."""
        now = int(time.time() * 1000)
        metrics = [self._metric(key, value, now, step) for key, value in numbers.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def close(self) -> None:
        """Mark the run as terminated."""
        self._client.set_terminated(self._run)


def run_id(output: str) -> str:
    """Return an id for the run in `output`. The id is the same for every start in this run directory."""
    return hashlib.blake2b(output.encode(), digest_size=8).hexdigest()


def flatten(tree: Mapping[str, Any], *, prefix: str = "") -> dict[str, Any]:
    """Return a flat mapping from the dotted path of each leaf, such as `a.b`, to the leaf's value.

    `prefix` is put before each path.
    """
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            flat.update(flatten(value, prefix=f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat
