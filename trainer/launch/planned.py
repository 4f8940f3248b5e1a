"""Plan dry runs whose data set or GPUs do not exist yet.

`--rows=N --tokens=N` state the training rows and tokens of the data set (`--rows=N,N --tokens=N,N` of several, in the
order of the phases), and `--gpu=NAME` states the GPU of each worker. Invariant: the text beside each training rate says
whether the rate was measured. Two rates were measured (bench/trainer.md). All other rates assume that training reaches
the same share of the GPU's peak rate as in these measurements. N GPUs are assumed to be N times as fast as one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pipeline import storage
from pipeline.dataset import MANIFEST_NAME, Manifest, Shard, Special, open_data_set
from pipeline.settings import ConfigError
from pipeline.units import count_of
from trainer.checkpoint import find_checkpoints
from trainer.config import ModelConfig, TrainerConfig
from trainer.data import OpenPhase, open_phases, resolve_phases
from trainer.engine import judge_heads, judge_memory, may_use_gpus, resolve_recompute
from trainer.launch.cards import resolve_micro_batch, stated_card
from trainer.launch.preflight import CheckResult, describe_phases, refuse_idle_workers, resolve_model
from trainer.launch.run_directory import check_fresh
from trainer.telemetry import PEAK_TFLOPS, count_flops

MEASURED_TFLOPS: Mapping[tuple[str, str], float] = {("H200", "large"): 453.0, ("H200", "base"): 382.0}
"""Maps (GPU, model size) to the measured rate of end-to-end training in bf16: 10^12 model FLOPs per GPU and second
(bench/trainer.md)."""
RECOMPUTED_SHARE = 0.75
"""Share of the training rate that is left if backward computes all layers again: 3 of 4 passes over them count."""
SHOWN_GPUS = ("B200", "H200", "H100", "A100", "L40S", "L4")
VOCABULARY_SIZE = 30_522
"""Vocabulary size assumed for a data set that does not exist yet."""
MASKED_SHARE = 0.15


def find_gpu(name: str, *, program: str) -> str:
    """Return the GPU's name as PEAK_TFLOPS writes it. `name` may be in upper or lower case.

    `program` names the command in errors. Raises ConfigError if the GPU is unknown.
    """
    known = {each.upper(): each for each in PEAK_TFLOPS}
    if name.upper() not in known:
        raise ConfigError(f"{program}: --gpu={name}: unknown GPU; give one of {', '.join(PEAK_TFLOPS)}")
    return known[name.upper()]


def tflops_of(gpu: str, *, config: TrainerConfig) -> tuple[float, bool]:
    """Return the training rate of one GPU in 10^12 model FLOPs per second, and whether this rate was measured.

    `gpu` is a key of PEAK_TFLOPS. With recompute=layers, the forward pass of the layers runs twice and counts once.
    """
    recomputes = config.recompute == "layers"
    measured = MEASURED_TFLOPS.get((gpu, config.model.name))
    if measured is not None and not recomputes:
        return measured, True
    share = MEASURED_TFLOPS["H200", "large" if config.model.width >= 1024 else "base"] / PEAK_TFLOPS["H200"]
    return share * PEAK_TFLOPS[gpu] * (RECOMPUTED_SHARE if recomputes else 1.0), False


def describe_origin(gpu: str, *, config: TrainerConfig) -> str:
    """Return a phrase that tells the user whether the training rate of `gpu`, a key of PEAK_TFLOPS, was measured or is
    assumed."""
    title = config.model.title
    if tflops_of(gpu, config=config)[1]:
        return f"measured for {title} on one {gpu}, bench/trainer.md"
    again = ", less a quarter for recompute=layers" if config.recompute == "layers" else ""
    return f"not measured for {title} on {gpu}: assumes the same share of peak as an H200{again}"


def count_work(model: ModelConfig, *, phases: Sequence[OpenPhase], done: int) -> float:
    """Return the number of model FLOPs in the steps still to do.

    `phases` are all parts of the run, and `done` is the number of steps done.
    """
    total = 0.0
    for each in phases:
        manifest = each.manifest
        rows, lengths = manifest.num_rows("train"), manifest.row_lengths("train")
        masked = sum(shard.masked for shard in manifest.shards_of("train")) / manifest.mask_sets
        masking = each.phase.config.masking
        if masking.source == "drawn":
            masked = manifest.num_tokens("train") * (masking.rate + (masking.final_rate or masking.rate)) / 2
        of_set = count_flops(
            model,
            vocabulary_size=manifest.vocabulary_size,
            num_tokens=manifest.num_tokens("train"),
            num_squared=sum(count * length**2 for length, count in enumerate(lengths)),
            num_masked=round(masked),
        )
        total += each.full_steps(done) * each.shape.pairs_mean * of_set / rows
    return total


def list_rates(config: TrainerConfig, *, work: float, tokens: float) -> Iterator[str]:
    """Yield the lines of a table of training rates, with one row for each GPU in SHOWN_GPUS.

    A row states the tokens per second of one GPU of this kind, and the hours that the run takes if each worker has such
    a GPU. `work` is the number of model FLOPs in the steps still to do, and `tokens` is the number of tokens in
    these steps.
    """
    model, gpus = config.model, count_of(config.workers, "GPU")
    yield f"rates of one GPU for {model.title} in bf16, and hours on {gpus} at {config.workers} times that:"
    for gpu in SHOWN_GPUS:
        tflops, measured = tflops_of(gpu, config=config)
        seconds = work / (tflops * 1e12)
        assumed = describe_origin(gpu, config=config).partition(": ")[2]
        origin = "measured, bench/trainer.md" if measured else f"not measured: {assumed}"
        hours = seconds / config.workers / 3600
        yield f"  {gpu:<5} {tokens / seconds:>11,.0f} tokens/s {hours:>9,.1f} h  ({origin})"


def plan_without_data(
    config: TrainerConfig, *, rows: Sequence[int], tokens: Sequence[int], gpu: str | None, fresh: bool = False
) -> CheckResult:
    """Plan a run if at least one of its data sets is missing. Return the same kind of result as preflight.check, after
    fewer checks.

    `rows` and `tokens` say how many training rows and training tokens the missing data sets are assumed to have: one
    number for each, in the order of the phases, or one number for all. `gpu` names the GPU whose memory a step must fit
    (None: the smallest GPU that is found). If `fresh`, an output that already holds a run is refused. Raises ValueError
    if no data set is missing, or if the config does not fit data sets of this size.
    """
    checkpoints = find_checkpoints(config.output)
    if fresh:
        check_fresh(config, checkpoints=checkpoints)
    if gpu is not None and config.device == "auto":
        config = config.model_copy(update={"device": "cuda"})  # those of another machine
    if "size" not in config.model.model_fields_set:
        config = resolve_model(config, saved=None)
    phases = resolve_phases(config)
    names = dict.fromkeys(phase.config.data for phase in phases)
    missing = [name for name in names if storage.find_file(storage.join(name, MANIFEST_NAME)) is None]
    if not missing:
        raise ConfigError(f"data={config.data}: already exists; leave out --rows and --tokens, or name a new data set")
    if len(rows) not in (1, len(missing)):
        raise ConfigError(
            f"--rows and --tokens give {len(rows)} sizes for {count_of(len(missing), 'missing data set')} "
            f"({', '.join(missing)}); give one for each, or one for all"
        )
    longest = config.model.max_positions
    sizes = list(zip(rows, tokens, strict=True)) * (len(missing) if len(rows) == 1 else 1)
    assumed = {
        name: _planned_manifest(rows=count, tokens=total, longest=longest)
        for name, (count, total) in zip(missing, sizes, strict=True)
    }
    manifests = [assumed.get(phase.config.data) or open_data_set(phase.config.data) for phase in phases]
    config, card, lines = resolve_micro_batch(
        config, plan_config=None, phases=phases, manifests=manifests, card=stated_card(gpu)
    )
    lines = [*judge_heads(config), *lines]
    opened = open_phases(resolve_phases(config), manifests=manifests)
    config, recomputes = resolve_recompute(config, phases=opened, card=card)
    refuse_idle_workers(config, phases=opened)
    stated = (
        f"{count_of(count, 'stated row')} of at most {longest} tokens in {name}"
        for name, (count, _) in zip(missing, sizes, strict=True)
    )
    lines.insert(0, f"planned for {', '.join(stated)}")
    if may_use_gpus(config) and (memory := judge_memory(config, phases=opened, card=card)):
        lines += [*recomputes, memory]
    lines += describe_phases(config, phases=opened)
    return CheckResult(tuple(lines), done=False, config=config, phases=opened, checkpoints=checkpoints)


def _planned_manifest(*, rows: int, tokens: int, longest: int) -> Manifest:
    """Return the manifest of an assumed data set, whose rows have almost equal lengths.

    `rows` and `tokens` say how many rows and tokens the data set has. Raises ConfigError if the mean row would have
    fewer than 5 tokens (the shortest pair of texts), or more tokens than `longest`, the length limit of a row.
    """
    if not 5 * rows <= tokens <= longest * rows:
        raise ConfigError(
            f"--tokens={tokens:,} in --rows={rows:,} are {tokens / rows:,.1f} per row, not 5 to {longest} "
            f"(model.max_positions); correct one of them"
        )
    mean, rest = divmod(tokens, rows)
    lengths = [0] * mean + [rows - rest, rest]
    masked = max(rows, round(MASKED_SHARE * tokens))
    shard = Shard(
        path="data/train-00000-of-00001.parquet",
        split="train",
        rows=rows,
        tokens=tokens,
        bytes=0,
        sha256="",
        footer_sha256="",
        row_group_rows=(rows,),
        row_group_tokens=(tokens,),
        max_masked=max(1, round(MASKED_SHARE * longest)),
        masked=masked,
    )
    return Manifest(
        schema_version=1,
        config={},
        seed=0,
        versions={},
        vocabulary_hash="",
        vocabulary_size=VOCABULARY_SIZE,
        special=Special(pad=0, unk=100, cls=101, sep=102, mask=103),
        max_seq_length=longest,
        max_predictions=max(1, round(MASKED_SHARE * longest)),
        mask_sets=1,
        next_sentence="random_document",
        sources=(),
        shards=(shard,),
        files={},
        drops={},
        statistics={"splits": {"train": {"lengths": lengths}}},
    )
