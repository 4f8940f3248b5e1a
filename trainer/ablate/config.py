"""The settings of a ladder of ablations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field, model_validator

from pipeline.settings import Settings

Positive = Annotated[int, Field(ge=1)]
PositiveFloat = Annotated[float, Field(gt=0.0)]
_PRETRAIN_KEYS = ("output", "max_steps", "max_hours", "phases")
_FINETUNE_KEYS = ("task", "model", "data", "output")


class Budget(Settings):
    """How long each model is pretrained: one of these."""

    steps: Positive | None = None
    """Updates."""
    tokens: PositiveFloat | None = None
    """Tokens of input, without padding. Rounded up to whole steps."""
    minutes: PositiveFloat | None = None
    """Time of training. Equal times are equal work only on a machine that does nothing else."""

    @model_validator(mode="after")
    def _check_one(self) -> Budget:
        given = [key for key in type(self).model_fields if getattr(self, key) is not None]
        if len(given) != 1:
            raise ValueError(f"budget: takes one of steps, tokens and minutes, found {' and '.join(given) or 'none'}")
        return self


class Rung(Settings):
    """One model of the ladder."""

    pretrain: dict[str, Any] = Field(default={})
    """Settings of trainer/run.py that replace those of `base`."""
    finetune: dict[str, Any] = Field(default={})
    """Settings of trainer.finetune that replace those of `finetune`."""
    weights_of: str | None = None
    """Fine-tune the model of this rung; nothing is pretrained."""


class AblationConfig(Settings):
    """A ladder of models, each a few settings over a base."""

    output: str
    """Folder with a folder for each rung (pretrain, model, tasks), report.md and report.json."""
    data: str
    """Folder with the tasks' files, or with folders that hold them, as for trainer.finetune. The files of a single task
    are in the folder itself."""
    tasks: tuple[str, ...] = ("rte", "sst2", "xquad-en")
    """An inference, a sentiment and an answers task."""
    budget: Budget
    """Of each model."""
    base: dict[str, Any]
    """Settings of trainer/run.py: at least `data`. `output`, `max_steps` and `max_hours` follow from the ladder."""
    finetune: dict[str, Any] = Field(default={})
    """Settings of trainer.finetune for all rungs, such as seeds. `task`, `model`, `data` and `output` follow from the
    ladder."""
    ladder: dict[str, Rung]
    """The rungs by name, in the order of the table."""
    only: tuple[str, ...] = ()
    """Names of rungs to run and show. If empty: all."""

    @model_validator(mode="after")
    def _check_ladder(self) -> AblationConfig:
        if not self.ladder:
            raise ValueError("ladder: has no rung; give at least one")
        if not self.tasks:
            raise ValueError("tasks: is empty; name at least one")
        refuse_keys(_PRETRAIN_KEYS, tree=self.base, place="base", by="output, budget")
        refuse_keys(_FINETUNE_KEYS, tree=self.finetune, place="finetune", by="tasks, data, output")
        for name, rung in self.ladder.items():
            refuse_keys(_PRETRAIN_KEYS, tree=rung.pretrain, place=f"ladder.{name}.pretrain", by="output, budget")
            refuse_keys(_FINETUNE_KEYS, tree=rung.finetune, place=f"ladder.{name}.finetune", by="tasks, data, output")
        for name, rung in self.ladder.items():
            if not name.replace("-", "").replace("_", "").isalnum():
                raise ValueError(f"ladder.{name}: names a folder; use letters, digits, - and _")
            source = rung.weights_of
            if source is not None and (source not in self.ladder or self.ladder[source].weights_of or rung.pretrain):
                raise ValueError(
                    f"ladder.{name}.weights_of={source}: must be a rung that is pretrained, and leaves no settings of "
                    f"pretrain; known: {', '.join(self.ladder)}"
                )
        unknown = [name for name in self.only if name not in self.ladder]
        if unknown:
            raise ValueError(f"only={', '.join(unknown)}: is no rung; known: {', '.join(self.ladder)}")
        return self

    @property
    def chosen(self) -> list[tuple[str, Rung]]:
        """The rungs of `only`, or all, in the order of the ladder."""
        return [(name, rung) for name, rung in self.ladder.items() if not self.only or name in self.only]


def refuse_keys(keys: Sequence[str], *, tree: Mapping[str, Any], place: str, by: str) -> None:
    """Raise ValueError if the settings `tree` at `place` have one of `keys`, which the ladder's settings `by` set."""
    found = next((key for key in keys if key in tree), None)
    if found is not None:
        raise ValueError(f"{place}.{found}: is set by the ladder ({by}); leave it out")


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested settings in which values of `over` replace those of `base`."""
    merged = dict(base)
    for key, value in over.items():
        own = merged.get(key)
        both = isinstance(own, Mapping) and isinstance(value, Mapping)
        merged[key] = merge(own, value) if both else value  # type: ignore[arg-type]
    return merged
