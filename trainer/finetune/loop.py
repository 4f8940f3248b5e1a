"""A fine-tuning from its settings to metrics and predictions."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from pipeline import draws
from pipeline.console import Say
from pipeline.settings import ConfigError
from pipeline.signals import StopRequest
from pipeline.storage import Location, hold, locate
from pipeline.units import count_of
from trainer.config import TrainerConfig
from trainer.finetune import answers, outputs, predictions, rates, scores
from trainer.finetune.batches import draw_order, pack, slice_evenly
from trainer.finetune.config import FinetuneConfig
from trainer.finetune.examples import Example, Question, TaggedExample, TaskDataError, TextExample
from trainer.finetune.features import Feature, TextEncoder, make_features
from trainer.finetune.heads import TaskModel, by_row, mean_loss
from trainer.finetune.predictions import Logits, Prediction
from trainer.finetune.save import MODEL_NAME, save_model
from trainer.finetune.splits import Splits, read_splits
from trainer.finetune.state import load_state, read_result, remove_state, save_state, write_result
from trainer.finetune.tasks import Task, find_task
from trainer.hf import read_longest, read_model

DEFAULT_LENGTHS = {"qa": 384}
DEFAULT_LENGTH = 128


@dataclass(frozen=True, slots=True)
class Result:
    """What came out."""

    task: str
    metric: str
    value: float
    """Of dev."""
    metrics: Mapping[str, Mapping[str, float]]
    """Every metric by split, of those with labels; `dev majority`: of guessing the commonest label."""
    files: tuple[str, ...]
    """Predictions, below the output."""
    num_examples: Mapping[str, int]
    """Examples of train and of each evaluated split."""
    by_hash: bool
    """Whether train and dev are parts of one file."""

    @classmethod
    def of(cls, tree: Mapping[str, Any]) -> Result:
        """Return the result of which `tree` is the JSON."""
        return cls(**{**tree, "files": tuple(tree["files"])})

    def line(self) -> str:
        """One line of JSON."""
        return json.dumps(
            {"task": self.task, "metric": self.metric, "value": self.value, "metrics": self.metrics}, allow_nan=False
        )


def finetune(config: FinetuneConfig, *, say: Say, stop: StopRequest | None = None) -> Result | None:
    """Train on a task and evaluate; None where `stop` came first, and the same settings go on from there.

    Raises ValueError (ConfigError, TaskDataError, PretrainedError, LeaseError) that names what is wrong.
    """
    scores.check_libraries()
    task = find_task(config.task, columns=config.columns)
    config = resolve_device(config)
    output = locate(config.output)
    with hold(output, timeout_s=config.lease_timeout_s, say=say, stop=stop):
        done = read_result(output, config=config)
        if done is not None:
            say(f"{output}: is done; give another output to train again")
            return Result.of(done["result"])
        return _finetune(config, task=task, output=output, say=say, stop=stop)


def _finetune(
    config: FinetuneConfig, *, task: Task, output: Location, say: Say, stop: StopRequest | None
) -> Result | None:
    splits = read_splits(task, config=config, say=say)
    splits = draw_examples(splits, count=config.max_train_examples, seed=config.seed)
    labels = find_labels(task, examples=splits.train)
    longest = min(
        config.max_length or DEFAULT_LENGTHS.get(task.kind, DEFAULT_LENGTH), read_longest(locate(config.model))
    )
    if config.max_length is not None and longest < config.max_length:
        raise ConfigError(f"max_length={config.max_length}: {config.model} is for rows of {longest} tokens; lower it")
    encoder = TextEncoder(config.model, max_length=longest)
    train = make_features(splits.train, encoder=encoder, labels=labels, stride=config.stride)
    bert, pooler_trained = read_model(config.model)
    num_outputs = {"regression": 1, "choice": 1, "qa": 2}.get(task.kind, len(labels))
    model = TaskModel(
        bert, kind=task.kind, num_outputs=num_outputs, seed=config.seed, pooler_trained=pooler_trained
    ).to(config.device)
    say(
        f"{config.task}: {count_of(len(splits.train), 'training example')}, "
        + ", ".join(f"{len(examples)} of {split}" for split, examples in splits.evaluated.items())
        + (f"; {len(labels)} classes" if labels else "")
        + (f"; {encoder.num_cut} cut at {longest} tokens" if encoder.num_cut else "")
    )
    if not _train(model, features=train, config=config, output=output, say=say, stop=stop):
        return None
    result = _evaluate(model, task=task, splits=splits, encoder=encoder, labels=labels, config=config, say=say)
    if config.keep_model:
        save_model(model, source=locate(config.model), target=locate(config.output, MODEL_NAME), pad=encoder.pad,
                   labels=labels)  # fmt: skip
    write_result(output, config=config, result=asdict(result))
    remove_state(output)
    return result


def resolve_device(config: FinetuneConfig) -> FinetuneConfig:
    """Return the config with device=auto replaced; ConfigError if there is no GPU for device=cuda."""
    gpus = torch.cuda.is_available()
    if config.device == "cuda" and not gpus:
        raise ConfigError("device=cuda: torch sees no GPU here; leave it out")
    if config.device == "auto":
        config = config.model_copy(update={"device": "cuda" if gpus else "cpu"})
    if config.device == "cuda":
        torch.set_float32_matmul_precision("high")  # TF32: fp32 with 10 bits of fraction in products
    return config


def draw_examples(splits: Splits, *, count: int | None, seed: int) -> Splits:
    """The same with `count` of the training examples, in their order."""
    if count is None or count >= len(splits.train):
        return splits
    chosen = draws.generator(seed, "finetune", "examples").permutation(len(splits.train))[:count]
    return Splits(tuple(splits.train[number] for number in sorted(chosen)), splits.evaluated, by_hash=splits.by_hash)


def find_labels(task: Task, *, examples: Sequence[Example]) -> tuple[str, ...]:
    """The classes in the order of their numbers; none for kinds without classes. TaskDataError if there is but one."""
    if task.kind not in ("classification", "pair", "tagging") or task.labels:
        return task.labels
    found: set[str] = set()
    for example in examples:
        if isinstance(example, TaggedExample):
            found.update(example.labels or ())
        elif isinstance(example, TextExample):
            found.add(str(example.label))
    if len(found) < 2:
        raise TaskDataError(f"task={task.name}: all training examples have the label {found}; give two classes or more")
    return tuple(sorted(found))


def _train(
    model: TaskModel, *, features: Sequence[Feature], config: FinetuneConfig, output: Location, say: Say,
    stop: StopRequest | None,
) -> bool:  # fmt: skip
    """All steps; False where `stop` came before the last."""
    size = config.batch_size
    steps_an_epoch = math.ceil(len(features) / size)
    num_steps = max(1, math.ceil(config.epochs * steps_an_epoch))
    schedule = config.pretraining(num_steps=num_steps, model=model.bert.config)
    rates.freeze(model, config=config.optimizer)
    optimizer = rates.build_optimizer(model, config=config.optimizer)
    done = load_state(output, model=model, optimizer=optimizer, config=config)
    if done:
        say(f"going on from step {done} of {num_steps}")
    model.train()
    order: list[int] = []
    losses: list[float] = []
    for step in range(done + 1, num_steps + 1):
        epoch, place = divmod(step - 1, steps_an_epoch)
        if not order or place == 0:
            order = draw_order(len(features), seed=config.seed, epoch=epoch)
        chosen = [features[number] for number in order[place * size : (place + 1) * size]]
        losses.append(
            take_step(model, features=chosen, optimizer=optimizer, step=step, config=config, schedule=schedule)
        )
        stopped = bool(stop) and step < num_steps
        if place + 1 == steps_an_epoch or step == num_steps or stopped:
            say(f"step {step} of {num_steps}: loss {math.fsum(losses) / len(losses):.4f}")
            losses = []
            save_state(output, step=step, model=model, optimizer=optimizer, config=config)
        if stopped:
            return False
    return True


def take_step(
    model: TaskModel, *, features: Sequence[Feature], optimizer: torch.optim.AdamW, step: int, config: FinetuneConfig,
    schedule: TrainerConfig,
) -> float:  # fmt: skip
    """One update; returns the loss before it. ValueError where the loss is not finite."""
    torch.manual_seed(draws.key(config.seed, "finetune", "dropout", step) >> 1)
    rates.set_rates(optimizer, step=step, config=schedule)
    batch = pack(features, kind=model.kind, device=model.head.weight.device)
    loss = mean_loss(model(batch), kind=model.kind, batch=batch)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    if config.optimizer.clip_norm > 0.0:
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.optimizer.clip_norm)
    optimizer.step()
    value = float(loss.detach())
    if not math.isfinite(value):
        raise ValueError(f"step {step}: the loss is {value}; lower optimizer.learning_rate")
    return value


@torch.no_grad()
def compute_logits(model: TaskModel, *, features: Sequence[Feature], batch_size: int) -> list[Logits]:
    """The logits of every feature, of its tokens where the head is on tokens: [classes] or [tokens, classes]."""
    model.eval()
    device = model.head.weight.device
    found: list[Logits] = []
    for part in slice_evenly(features, size=batch_size):
        batch = pack(part, kind=model.kind, device=device)
        logits = model(batch)
        if model.kind in ("tagging", "qa"):
            rows = by_row(logits.float(), batch=batch).cpu().numpy()
            found.extend(row[: len(feature.rows[0].ids)] for row, feature in zip(rows, part, strict=True))
        else:
            found.extend(logits.float().cpu().numpy())
    return found


def predict(
    model: TaskModel, *, task: Task, examples: Sequence[Example], encoder: TextEncoder, labels: Sequence[str],
    config: FinetuneConfig,
) -> list[Prediction]:  # fmt: skip
    """What the model says of each example of a split."""
    features = make_features(examples, encoder=encoder, labels=labels, stride=config.stride)
    logits = compute_logits(model, features=features, batch_size=config.evaluation_batch_size)
    if task.kind == "regression":
        return predictions.to_numbers(logits, bounds=task.bounds)
    if task.kind == "choice":
        return predictions.to_choices(logits)
    if task.kind == "tagging":
        return predictions.to_tags(logits, features=features, examples=examples, labels=labels)
    if task.kind == "qa":
        return predictions.to_answers(logits, features=features, examples=examples,
                                      longest=config.max_answer_length, num_best=config.num_best)  # fmt: skip
    return predictions.to_classes(logits, labels=labels)


def _evaluate(
    model: TaskModel, *, task: Task, splits: Splits, encoder: TextEncoder, labels: Sequence[str],
    config: FinetuneConfig, say: Say,
) -> Result:  # fmt: skip
    found: dict[str, dict[str, float]] = {}
    files: list[str] = []
    threshold: float | None = None
    for split, examples in splits.evaluated.items():
        predicted = predict(model, task=task, examples=examples, encoder=encoder, labels=labels, config=config)
        unanswerable = any(isinstance(example, Question) and example.answers == () for example in examples)
        if split == "dev" and unanswerable and task.answer_rules == "squad2":
            threshold = answers.tune_threshold(predicted, examples=examples)
            say(f"no answer where its odds exceed {threshold:.3f}, the best on dev")
        values = scores.score(task, examples=examples, predictions=predicted, threshold=threshold)
        files += outputs.write_predictions(
            locate(config.output), task=task, split=split, examples=examples, predictions=predicted,
            threshold=threshold,
        )  # fmt: skip
        if not values:
            continue
        found[split] = values
        guessed = scores.guess_majority(task, train=splits.train, examples=examples)
        if guessed is not None:
            found[f"{split} majority"] = scores.score(task, examples=examples, predictions=guessed)
        for name in [name for name in (split, f"{split} majority") if name in found]:
            say(f"{name}: " + ", ".join(f"{metric} {value:.4f}" for metric, value in found[name].items()))
    return Result(config.task, task.metrics[0], found["dev"][task.metrics[0]], found, tuple(files),
                  {"train": len(splits.train)} | {split: len(each) for split, each in splits.evaluated.items()},
                  splits.by_hash)  # fmt: skip
