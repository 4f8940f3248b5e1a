"""The settings of a fine-tuning."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from pipeline.settings import Settings, validate
from trainer.config import ModelConfig as _ModelConfig
from trainer.config import OptimizerConfig, ScheduleConfig, TrainerConfig

Share = Annotated[float, Field(gt=0.0, le=1.0)]
PositiveFloat = Annotated[float, Field(gt=0.0)]
Positive = Annotated[int, Field(ge=1, lt=2**31)]
Count = Annotated[int, Field(ge=0, lt=2**31)]


class FinetuneOptimizer(OptimizerConfig):
    """AdamW; biases and LayerNorm are not decayed."""

    learning_rate: PositiveFloat = 5e-5
    """Peak learning rate."""
    head_learning_rate: PositiveFloat | None = None
    """Peak learning rate of the task's head; null: learning_rate."""
    layer_decay: Share = 1.0
    """Each layer's rate is the rate of the layer above it times this number. Pooler and head have learning_rate, the
    last layer learning_rate x layer_decay, and the embeddings the lowest rate."""
    frozen_layers: Annotated[int, Field(ge=0)] | None = None
    """0: the embeddings are not trained; N: neither are the lowest N layers; null: all weights are trained."""

    @model_validator(mode="after")
    def _check_name(self) -> FinetuneOptimizer:
        if self.name != "adamw":
            raise ValueError(f"optimizer.name={self.name}: fine-tuning has adamw alone; leave the name out")
        return self


class FinetuneSchedule(ScheduleConfig):
    """Learning rate as a function of the step."""

    warmup_fraction: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1
    """Used if warmup_steps is null."""


class Columns(Settings):
    """The columns of a task of your own. A name that the file does not have is refused."""

    id: str | None = None
    """The name of a row in the predictions; null: its number in the file, from 0."""
    first: str = "text"
    """The text, or the first of two. tagging: a list of words, or words with spaces between them. qa: the context."""
    second: str = "text2"
    """The second text of a pair. qa: the question."""
    choices: tuple[str, ...] = ()
    """choice: the columns of the choices, in order. If empty: all columns named choice0, choice1, ..."""
    label: str = "label"
    """The class, the number, the labels of the words, or the number of the right choice. qa: a list of answers."""
    start: str = "answer_start"
    """qa: where each answer begins in the context, in characters."""


class FinetuneConfig(Settings):
    """One model on one task."""

    task: str
    """A published task (cola, sst2, nsmc, rte, ...), or classification, pair, regression, tagging, qa or choice."""
    model: str
    """Folder of an export, or of a BERT saved by transformers; a path or URL."""
    data: str
    """Folder of the task's files, with the names that they were published under; a path or URL."""
    output: str
    """Folder for metrics and predictions."""
    columns: Columns = Columns()
    """The columns of a task of your own."""
    epochs: PositiveFloat = 3.0
    """Passes over the training examples."""
    batch_size: Positive = 32
    """Examples per step, over all workers."""
    evaluation_batch_size: Positive = 64
    """Examples at once in evaluation."""
    max_length: Annotated[int, Field(ge=8)] | None = None
    """Longest row in tokens. Null: 128 (qa: 384), or the model's own limit if that is less."""
    stride: Positive = 128
    """qa: tokens from the start of one window of a context to the next."""
    max_answer_length: Positive = 30
    """qa: tokens of the longest answer."""
    num_best: Positive = 20
    """qa: answers of each question in nbest_predictions.json."""
    max_train_examples: Positive | None = None
    """Train on this many examples, drawn by seed. Null: on all."""
    dev_share: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.2
    """Share of the examples that is held out by a hash of their texts if the data have only one file."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 12_345
    """Seed of the head, the order and dropout."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the model runs, in fp32 (products on a GPU in TF32). auto: on a GPU if there is one."""
    workers: Positive = 1
    """Processes that train together, each with a GPU if device is cuda, and each on its share of every batch."""
    launcher: Literal["none", "ray", "processes"] = "none"
    """none: this process trains alone. ray: Ray Train, here or on the cluster of RAY_ADDRESS, whose nodes must see the
    model, data and output. processes: processes of this machine, without Ray."""
    cpus_per_worker: PositiveFloat | None = None
    """Logical CPUs that a worker asks Ray for, if device is cpu. Null: as in pretraining."""
    max_restarts: Count = 3
    """Restarts from the last state after workers of a launcher are lost. A new state resets the count."""
    tracker: Literal["tensorboard", "wandb", "mlflow", "none"] = "none"
    """Gets loss and rate of each step, beside OUTPUT/metrics.jsonl. Needs a local output."""
    state_steps: Positive | None = None
    """Steps between states, besides those at the ends of epochs. Null: no others."""
    bilstm: bool = False
    """Put a bidirectional LSTM between the encoder and the task's head: "+ BiLSTM" in Devlin et al. 2019, table 5. Such
    a model is not written to OUTPUT/model, because transformers has no class for it."""
    keep_model: bool = True
    """Write the trained model to OUTPUT/model, as a folder that transformers loads."""
    optimizer: FinetuneOptimizer = FinetuneOptimizer()
    """The update rule."""
    schedule: FinetuneSchedule = FinetuneSchedule()
    """The learning rate."""
    lease_timeout_s: Positive = 60
    """Silence after which a command on another host that holds the output counts as dead."""

    def pretraining(self, *, num_steps: int, model: _ModelConfig) -> TrainerConfig:
        """Return what the schedule, launchers and trackers of pretraining take. ConfigError if settings clash."""
        schedule, optimizer = self.schedule.model_dump(), self.optimizer.model_dump()
        if self.schedule.warmup_steps is not None and schedule["warmup_fraction"] == FinetuneSchedule().warmup_fraction:
            del schedule["warmup_fraction"]  # nobody has set it
        tree: dict[str, Any] = {
            "data": self.data,
            "output": self.output,
            "model": model.model_dump(),
            "batch": {"pairs": self.batch_size},
            "max_steps": num_steps,
            "optimizer": {key: optimizer[key] for key in OptimizerConfig.model_fields},
            "schedule": schedule,
            "workers": self.workers,
            "max_restarts": self.max_restarts,
            "launcher": "processes" if self.launcher == "none" else self.launcher,
            "device": self.device,
            "precision": "fp32",
            "logging": {"tracker": self.tracker},
        }
        if self.cpus_per_worker is not None:
            tree["cpus_per_worker"] = self.cpus_per_worker
        return validate(TrainerConfig, tree, origin="fine-tuning")

    @model_validator(mode="after")
    def _check_workers(self) -> FinetuneConfig:
        if self.workers > 1 and self.launcher == "none":
            raise ValueError(f"workers={self.workers} need a launcher; set launcher=ray or launcher=processes")
        if self.cpus_per_worker is not None and self.launcher != "ray":
            raise ValueError(f"cpus_per_worker={self.cpus_per_worker} has no effect: it is for launcher=ray")
        return self


class GridConfig(Settings):
    """The settings that --grid tries, each with each. The defaults are those of Devlin et al. 2019, appendix A.3."""

    batch_sizes: tuple[Positive, ...] = (16, 32)
    """Values of batch_size."""
    learning_rates: tuple[PositiveFloat, ...] = (5e-5, 3e-5, 2e-5)
    """Values of optimizer.learning_rate."""
    epochs: tuple[PositiveFloat, ...] = (2.0, 3.0, 4.0)
    """Values of epochs."""


class StudyConfig(FinetuneConfig):
    """One model on one task or on several, once or often."""

    task: str
    """A published task (cola, sst2, nsmc, rte, ...); classification, pair, regression, tagging, qa or choice; several
    with commas between (sst2,rte), or `all`: every published task with files in data or in folders below it."""
    seeds: Positive = 1
    """Runs of each setting, with seed, seed + 1, and so on. The value of a task is their median."""
    grid: GridConfig = GridConfig()
    """Used with --grid."""
    side_by_side: Positive | None = None
    """Runs at the same time, each in its own process and on its own GPU. Null: one for each GPU; on the CPU, one."""
