"""The fields of the trainer's config, in the order of `--help`. schema.py adds the checks that compare fields."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from pipeline.settings import Settings
from trainer.config.batch import BatchConfig, IngestConfig, MaskingConfig
from trainer.config.deepspeed_settings import DeepSpeedSettings
from trainer.config.model import ModelConfig, Precision
from trainer.config.number_types import Count, Positive, PositiveFloat
from trainer.config.optimization import GuardConfig, OptimizerConfig, ScheduleConfig
from trainer.config.outputs import CheckpointConfig, EvaluationConfig, LoggingConfig
from trainer.config.phases import PhaseConfig


class TrainerFields(Settings):
    """The fields of TrainerConfig. TrainerConfig adds the checks that compare fields."""

    data: str
    """Folder of the data set, or its s3:// or gs:// URL."""
    output: str
    """Run directory, or its s3:// or gs:// URL. If it holds a run, the same command continues that run."""
    resume_from: str | None = None
    """Checkpoint of another run from which to start in a new output: the path or URL of RUN/checkpoints/step-N, or of
    RUN for its newest checkpoint. Weights, moments, step and place in the data come from there. Learning rate,
    schedule, precision and similar settings may differ. The checkpoint is read once: later starts use the new run's own
    checkpoints."""
    working_folder: str | None = None
    """Folder on each node's disk for the logs of a run on a store. They are uploaded with every checkpoint and at the
    end. Null: in the folder for temporary files."""
    model: ModelConfig = ModelConfig()
    """The encoder."""
    batch: BatchConfig
    """The global batch."""
    masking: MaskingConfig = MaskingConfig()
    """The tokens to predict."""
    max_steps: Positive
    """Total optimizer steps. With max_hours: an upper limit."""
    max_hours: PositiveFloat | None = None
    """Hours of training after which the run ends, if max_steps did not end it before. The learning rate then follows
    this time: warmup_fraction and decay_fraction are shares of it. A resumed run keeps the time used up to its
    checkpoint. Null: no limit."""
    workers: Positive = 1
    """Number of worker processes: one per GPU if there are GPUs, otherwise CPU processes."""
    min_workers: Positive | None = None
    """Smallest number of workers with which a run under Ray continues while nodes are missing. Null: `workers`."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: cuda if Ray (for launcher=processes: this machine) has GPUs for the workers, otherwise cpu."""
    launcher: Literal["ray", "processes"] = "ray"
    """ray: Ray Train. processes: the same training in spawned processes on this machine, without Ray."""
    zero_stage: Annotated[int, Field(ge=0, le=3)] = 1
    """DeepSpeed ZeRO stage."""
    precision: Precision = "bf16"
    """Number format in which the model computes. Optimizer state is always fp32."""
    communication_data_type: Literal["as_computed", "fp32"] = "as_computed"
    """Number format in which workers send and sum gradients. as_computed: the format of `precision`, or fp32 if ZeRO 1
    has already summed several micro-batches. fp32: a more exact sum, for twice the bytes."""
    recompute: Literal["none", "layers", "auto"] = "none"
    """Activation checkpointing. layers: store only the inputs of the layers in training, and compute the layers again
    in backward. This takes a fraction of the memory and a third more computation, and gives the same results. auto:
    layers if a step, or a derived micro-batch of 2,048 tokens, would otherwise not fit the smallest GPU."""
    compile: bool | None = None
    """Compile the model with torch.compile, which takes a minute at the start. Null: on GPUs with ZeRO 0 to 2."""
    cuda_graphs: bool = False
    """Record the kernels of a compiled pass once and replay them (CUDA graphs), so that the host does not start each
    one. Faster if micro-batches are small for the GPU: 2.4 times with 8,192 tokens for BERT-Base on an H200, 1.2 times
    for BERT-Large. ZeRO 1 and 2 only."""
    self_check: bool = True
    """Before the first step of a compiled run, compare losses and gradients with those of the eager model, and stop if
    they differ. Takes seconds."""
    deterministic: bool = False
    """Use only deterministic kernels on GPUs, so that a resumed run equals an uninterrupted one bit by bit. This is
    slower. torch warns of an operation that has no such kernel. CPU runs are always deterministic."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 12_345
    """Seed of weights, data order and dropout."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """The update rule."""
    schedule: ScheduleConfig = ScheduleConfig()
    """The learning rate."""
    phases: tuple[PhaseConfig, ...] = ()
    """Parts of the run, one after another. If empty, the run is one phase."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """Checkpoints."""
    guard: GuardConfig = GuardConfig()
    """The divergence guard, for steps that are not finite or whose loss spikes."""
    evaluation: EvaluationConfig = EvaluationConfig()
    """Held-out evaluation."""
    logging: LoggingConfig = LoggingConfig()
    """Progress and metrics."""
    ingest: IngestConfig = IngestConfig()
    """How the data is read."""
    threads_per_worker: Annotated[int, Field(ge=1, le=1024)] | None = None
    """CPU threads of a worker. Null: an equal share of this machine's cores. Checkpoints record the number, because the
    rounding of sums depends on it."""
    cpus_per_worker: PositiveFloat = 0.5
    """Logical CPUs that a CPU worker requests from Ray."""
    collective_timeout_s: Annotated[int, Field(ge=1, le=365 * 86_400)] = 600
    """Seconds that a collective operation may wait before the workers count as lost."""
    start_timeout_s: Annotated[int, Field(ge=1, le=365 * 86_400)] = 1800
    """Seconds to wait for Ray to start the workers; set it longer than a node takes to boot."""
    max_restarts: Count = 3
    """Maximum number of restarts from the last checkpoint after workers or nodes are lost. A new checkpoint resets the
    count. At the maximum, the next loss ends the run. Errors in the input are never retried."""
    resize_interval_s: Positive = 60
    """Seconds between checks whether more workers can start, if fewer than `workers` are running."""
    lease_timeout_s: Positive = 60
    """Seconds of silence after which a job on another host that holds the run directory counts as dead."""
    deepspeed: DeepSpeedSettings = DeepSpeedSettings()
    """DeepSpeed settings that replace those that the trainer derives. If any is given, ZeRO 1 and 2 use DeepSpeed's
    own, slower step."""

    def is_done(self, *, step: int, seconds: float) -> bool:
        """Return whether a run that has done `step` steps in `seconds` seconds of training is at its end."""
        return step >= self.max_steps or (self.max_hours is not None and seconds >= 3600 * self.max_hours)

    @property
    def phase_steps(self) -> tuple[int, ...]:
        """The number of steps of each phase, in order. Raises ValueError if these numbers do not add up to `max_steps`.

        Lengths given as shares are rounded so that each phase ends within half a step of its exact end.
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
                f"phases {', '.join(map(str, open_ended))} set neither max_steps nor share; only one phase may take "
                f"the remaining steps"
            )
        if open_ended:
            steps[open_ended[0]] = rest
        elif rest:
            raise ValueError(
                f"the phases take {sum(steps)} steps in total, but max_steps={self.max_steps}; make them equal, or "
                f"leave out the length of one phase"
            )
        for index, count in enumerate(steps):
            if count < 1:
                raise ValueError(
                    f"phases.{index} gets {count} of max_steps={self.max_steps} steps; raise max_steps or shorten the "
                    f"other phases"
                )
        return tuple(steps)
