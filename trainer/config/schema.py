"""The trainer's config: data, model, batch, schedule, machines.

Each section is declared in the file of what it is about; what their fields cannot say alone is checked below, and
settings that have no effect in trainer/config/effects.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, ValidationInfo, model_validator

from pipeline.settings import Settings
from trainer.config.batch import BatchConfig, IngestConfig
from trainer.config.deepspeed_settings import DeepSpeedSettings, refuse_raw_keys
from trainer.config.effects import refuse_idle_settings
from trainer.config.model import ModelConfig, Precision
from trainer.config.number_types import Count, Positive, PositiveFloat
from trainer.config.optimization import GuardConfig, OptimizerConfig, ScheduleConfig
from trainer.config.phases import PhaseConfig, PhaseScheduleConfig
from trainer.config.records import CheckpointConfig, EvaluationConfig, LoggingConfig


class TrainerConfig(Settings):
    """Settings of `trainer/run.py`."""

    data: str
    """Folder of the data set, or its s3:// or gs:// URL."""
    output: str
    """Run directory, or its s3:// or gs:// URL; the same command continues what is in it."""
    resume_from: str | None = None
    """Start from a checkpoint of another run (RUN/checkpoints/step-N, or RUN: its newest; a path or URL), in a new
    output, with its weights, moments, step and place in the data; rate, schedule, precision and the like may differ.
    Read once: after that the run has checkpoints of its own."""
    working_folder: str | None = None
    """Folder on each node's own disk where a run on a store keeps its logs until they are sent there, with every
    checkpoint and at the end; null: below the folder for temporary files."""
    model: ModelConfig = ModelConfig()
    """The encoder."""
    batch: BatchConfig
    """The global batch."""
    max_steps: Positive
    """Optimizer steps in all."""
    workers: Positive = 1
    """Worker processes: GPUs where there are any, otherwise CPU processes."""
    min_workers: Positive | None = None
    """Fewest workers that a run under Ray goes on with while nodes are missing; null: as many as `workers`."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: cuda where Ray has GPUs for the workers, otherwise cpu."""
    launcher: Literal["ray", "processes"] = "ray"
    """ray: Ray Train. processes: the same loop in spawned processes on this machine, without Ray."""
    zero_stage: Annotated[int, Field(ge=0, le=3)] = 1
    """DeepSpeed ZeRO stage."""
    precision: Precision = "bf16"
    """Numbers the model computes in; optimizer state is always fp32."""
    communication_data_type: Literal["as_computed", "fp32"] = "as_computed"
    """Numbers in which gradients are sent and summed over workers. as_computed: those of `precision`, fp32 where ZeRO-1
    has summed micro-batches before. fp32: nothing is lost in the sum, for twice the bytes."""
    compile: bool | None = None
    """torch.compile of the model: by default on GPUs with ZeRO 0 to 2; costs a minute at the start."""
    self_check: bool = True
    """Before the first step of a compiled run compare losses and gradients with the model not compiled, and stop if
    they disagree; takes seconds."""
    deterministic: bool = False
    """On GPUs, deterministic kernels alone, so that a resumed run has the bits of an uninterrupted one; slower. torch
    warns of an operation that has none. On a CPU it is always so."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 12_345
    """Seed of weights, data order and dropout."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """The update rule."""
    schedule: ScheduleConfig = ScheduleConfig()
    """The learning rate."""
    phases: tuple[PhaseConfig, ...] = ()
    """Parts of the run, one after another; none: the run is one phase."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """Checkpoints."""
    guard: GuardConfig = GuardConfig()
    """The divergence guard, for steps that are not finite or whose loss jumps."""
    evaluation: EvaluationConfig = EvaluationConfig()
    """Held-out evaluation."""
    logging: LoggingConfig = LoggingConfig()
    """Progress and metrics."""
    ingest: IngestConfig = IngestConfig()
    """Reading of the data."""
    threads_per_worker: Annotated[int, Field(ge=1, le=1024)] | None = None
    """CPU threads of a worker; null: this machine's cores shared out. Recorded, since sums depend on it."""
    cpus_per_worker: PositiveFloat = 0.5
    """Ray's logical CPUs that a CPU worker asks for."""
    collective_timeout_s: Annotated[int, Field(ge=1, le=365 * 86_400)] = 600
    """Longest wait of a collective before the workers count as lost."""
    start_timeout_s: Annotated[int, Field(ge=1, le=365 * 86_400)] = 1800
    """Longest wait for Ray to start the workers; longer than a node takes to boot."""
    max_restarts: Count = 3
    """Losses of a worker or node in a row, without a new checkpoint in between, for which the workers are started again
    from the last checkpoint; one more ends the run. Bad input is never tried again."""
    resize_interval_s: Positive = 60
    """Seconds between looks whether there is room for more workers, up to `workers`, where some are missing."""
    lease_timeout_s: Positive = 60
    """Silence after which a job on another host that holds the run directory counts as dead."""
    deepspeed: DeepSpeedSettings = DeepSpeedSettings()
    """Raw DeepSpeed settings merged over the derived ones; with any, ZeRO 1 and 2 take DeepSpeed's own, slower step."""

    @property
    def phase_steps(self) -> tuple[int, ...]:
        """Steps of each phase, max_steps in all. Raises ValueError where the phases' lengths do not come to that.

        Shares are rounded so that the ends of the phases are right to half a step.
        """
        if not self.phases:
            return (self.max_steps,)
        steps, before = [], 0.0
        for phase in self.phases:
            after = before + (phase.share or 0.0)
            rounded = round(after * self.max_steps) - round(before * self.max_steps)
            steps.append(phase.max_steps if phase.max_steps is not None else rounded)
            before = after
        open_ended = [index for index, phase in enumerate(self.phases) if phase.max_steps is None is phase.share]
        rest = self.max_steps - sum(steps)
        if len(open_ended) > 1:
            raise ValueError(
                f"phases {', '.join(map(str, open_ended))} give neither max_steps nor share; only one phase may take "
                f"what the others leave"
            )
        if open_ended:
            steps[open_ended[0]] = rest
        elif rest:
            raise ValueError(
                f"the phases take {sum(steps)} steps in all, max_steps={self.max_steps}; make them equal, or leave "
                f"the length of one phase out"
            )
        for index, count in enumerate(steps):
            if count < 1:
                raise ValueError(
                    f"phases.{index} gets {count} of max_steps={self.max_steps} steps; raise max_steps or shorten the "
                    f"other phases"
                )
        return tuple(steps)

    @model_validator(mode="before")
    @classmethod
    def _refuse_raw_keys(cls, tree: Any) -> Any:
        raw = tree.get("deepspeed") if isinstance(tree, Mapping) else None
        if isinstance(raw, Mapping):
            refuse_raw_keys(raw)
        return tree

    @model_validator(mode="after")
    def _check_together(self, info: ValidationInfo[Mapping[str, bool] | None]) -> TrainerConfig:
        _check_warmup(self.schedule, steps=self.max_steps, place="", whole=f"max_steps={self.max_steps}")
        if self.precision != "fp32" and self.zero_stage == 0:
            raise ValueError(
                f"zero_stage=0 with precision={self.precision} is not supported (DeepSpeed's own path follows another "
                f"curve there); set zero_stage=1"
            )
        if self.checkpoint.keep_best and not self._is_evaluated_on_the_way():
            raise ValueError(
                f"checkpoint.keep_best={self.checkpoint.keep_best} needs held-out losses on the way; set "
                f"evaluation.every_steps"
            )
        if self.resume_from is not None and self.model.initialize_from is not None:
            raise ValueError(
                f"resume_from={self.resume_from} brings weights, model.initialize_from={self.model.initialize_from} "
                f"other ones; set one of them"
            )
        self._check_range()
        _check_lanes(self.batch, workers=self.workers, place="")
        _check_pace(self.ingest, self.batch, place="")
        for index, (phase, steps) in enumerate(zip(self.phases, self.phase_steps, strict=False)):
            place = f"phases.{index}."
            try:
                batch, schedule = phase.batch_in(self.batch), phase.schedule_in(self.schedule)
            except ValidationError as error:
                message = str(error.errors()[0]["msg"]).removeprefix("Value error, ")
                raise ValueError(f"{place[:-1]}: {message}") from error
            _check_lanes(batch, workers=self.workers, place=place)
            _check_pace(self.ingest, batch, place=place)
            if self.schedule.span == "phase":
                _check_warmup(schedule, steps=steps, place=place, whole=f"the {steps} steps of {place[:-1]}")
            elif phase.learning_rate is not None or phase.schedule != PhaseScheduleConfig():
                raise ValueError(
                    f"{place[:-1]} has a learning_rate or schedule of its own, but schedule.span=run means one "
                    f"schedule over all phases; set schedule.span=phase or take them out"
                )
        if not (info.context or {}).get("saved"):
            refuse_idle_settings(self)
        return self

    def _is_evaluated_on_the_way(self) -> bool:
        given = (self.evaluation.every_steps, *(phase.evaluation.every_steps for phase in self.phases))
        return len(self.phases) > 1 or any(every is not None for every in given)

    def _check_range(self) -> None:
        if self.min_workers is None:
            return
        if self.min_workers > self.workers:
            raise ValueError(f"min_workers={self.min_workers} exceeds workers={self.workers}; lower it")
        if self.launcher == "processes":
            raise ValueError(
                f"min_workers={self.min_workers} is for launcher=ray; launcher=processes always starts all "
                f"workers={self.workers}: leave min_workers out"
            )


def _check_warmup(schedule: ScheduleConfig, *, steps: int, place: str, whole: str) -> None:
    warmup = schedule.warmup_steps
    if warmup is not None and warmup >= steps:
        raise ValueError(f"{place}schedule.warmup_steps={warmup} leaves none of {whole} at the full rate; lower it")


def _check_pace(ingest: IngestConfig, batch: BatchConfig, *, place: str) -> None:
    if ingest.skip_corrupt and batch.exact_pairs:
        raise ValueError(
            f"ingest.skip_corrupt does not go with {place}batch.exact_pairs, whose lanes keep pace; set one of them"
        )


def _check_lanes(batch: BatchConfig, *, workers: int, place: str) -> None:
    if batch.lanes is not None and workers > batch.lanes:
        raise ValueError(
            f"workers={workers} exceeds {place}batch.lanes={batch.lanes}: some would never work; raise "
            f"{place}batch.lanes"
        )
