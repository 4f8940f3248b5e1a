"""The trainer's config: the fields of fields.py, with the checks that compare fields.

effects.py refuses settings that have no effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError, ValidationInfo, model_validator

from trainer.config.batch import BatchConfig, IngestConfig
from trainer.config.deepspeed_settings import refuse_raw_keys
from trainer.config.effects import refuse_idle_settings
from trainer.config.fields import TrainerFields
from trainer.config.optimization import ScheduleConfig
from trainer.config.phases import PhaseScheduleConfig


class TrainerConfig(TrainerFields):
    """The settings of a training run (`trainer/run.py`)."""

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
        if self.max_hours is not None and self.schedule.span == "phase":
            raise ValueError(
                f"max_hours={self.max_hours} makes one schedule over the time of the whole run, but "
                f"schedule.span=phase; leave one of them out"
            )
        if self.precision != "fp32" and self.zero_stage == 0:
            raise ValueError(
                f"zero_stage=0 with precision={self.precision} is not supported (DeepSpeed's own path gives another "
                f"loss curve there); set zero_stage=1"
            )
        if self.checkpoint.keep_best and not self._is_evaluated_on_the_way():
            raise ValueError(
                f"checkpoint.keep_best={self.checkpoint.keep_best} needs held-out losses during training; set "
                f"evaluation.every_steps"
            )
        if self.resume_from is not None and self.model.initialize_from is not None:
            raise ValueError(
                f"resume_from={self.resume_from} and model.initialize_from={self.model.initialize_from} both give the "
                f"initial weights; set one of them"
            )
        if self.max_hours is not None and self.masking.final_rate is not None:
            raise ValueError(
                f"masking.final_rate={self.masking.final_rate} is reached at max_steps, which "
                f"max_hours={self.max_hours} may forestall; leave one of them out"
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
                    f"{place[:-1]} has its own learning_rate or schedule, but schedule.span=run means one schedule "
                    f"over all phases; set schedule.span=phase or leave them out"
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
    warmup, decay = schedule.warmup_steps, schedule.decay_steps
    if warmup is not None and warmup >= steps:
        raise ValueError(f"{place}schedule.warmup_steps={warmup} leaves none of {whole} for the full rate; lower it")
    if schedule.name == "noam" and not (schedule.warmup_fraction if warmup is None else warmup):
        raise ValueError(
            f"{place}schedule.name=noam has its peak at the end of the warm-up, and there is none; give one"
        )
    if schedule.name == "wsd" and decay is not None and decay + (warmup or 0) > steps:
        raise ValueError(
            f"{place}schedule.decay_steps={decay} and warmup_steps={warmup or 0} do not fit {whole}; lower one of them"
        )
    if schedule.name == "wsd" and decay is warmup is None and schedule.warmup_fraction + schedule.decay_fraction > 1:
        raise ValueError(
            f"{place}schedule.warmup_fraction={schedule.warmup_fraction} and decay_fraction={schedule.decay_fraction} "
            f"are more than the whole; lower one of them"
        )


def _check_pace(ingest: IngestConfig, batch: BatchConfig, *, place: str) -> None:
    if ingest.skip_corrupt and batch.exact_pairs:
        raise ValueError(
            f"ingest.skip_corrupt and {place}batch.exact_pairs exclude each other: a lane that lost rows would hold "
            f"fewer pairs; set one of them"
        )


def _check_lanes(batch: BatchConfig, *, workers: int, place: str) -> None:
    if batch.lanes is not None and workers > batch.lanes:
        raise ValueError(
            f"workers={workers} exceeds {place}batch.lanes={batch.lanes}: some workers would get no lane; raise "
            f"{place}batch.lanes"
        )
