"""One process of a fine-tuning: it reads the task and the model, trains, evaluates and writes the result."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from typing import Any

import torch

from pipeline import draws
from pipeline.console import Say
from pipeline.settings import ConfigError
from pipeline.storage import locate
from pipeline.units import count_of
from trainer.config import TrainerConfig
from trainer.finetune import answers, outputs, predictions, scores
from trainer.finetune.config import FinetuneConfig
from trainer.finetune.endings import learn_endings
from trainer.finetune.examples import Example, Question, TaggedExample, TaskDataError, TextExample
from trainer.finetune.features import TextEncoder, make_features
from trainer.finetune.heads import TaskModel
from trainer.finetune.loop import compute_logits, train
from trainer.finetune.predictions import Prediction
from trainer.finetune.ranks import Ranks
from trainer.finetune.result import Result
from trainer.finetune.save import MODEL_NAME, save_model
from trainer.finetune.splits import Splits, read_splits
from trainer.finetune.state import remove_state, write_result
from trainer.finetune.tasks import Task, find_task
from trainer.hf import read_longest, read_model
from trainer.train import Link, Outcome, WorkerPlace

DEFAULT_LENGTHS = {"qa": 384}
DEFAULT_LENGTH = 128


def work(
    config: FinetuneConfig, launched: TrainerConfig, *, place: WorkerPlace, link: Link, device: torch.device,
    **others: Any,
) -> Outcome:  # fmt: skip
    """Run one worker. It is the trainer.train.Job of a launcher once `config` is given. Rank 0 writes the result.

    Raises ValueError that names what is wrong.
    """
    ranks = Ranks(place.rank, place.world_size)

    def say(line: str) -> None:
        if ranks.rank == 0:
            link.say(line)

    if device.type == "cpu" and place.local_world_size > 1:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // place.local_world_size))
    task = find_task(config.task, columns=config.columns)
    splits = read_splits(task, config=config, say=say)
    splits = draw_examples(splits, count=config.max_train_examples, seed=config.seed)
    labels = find_labels(task, examples=splits.train)
    longest = min(
        config.max_length or DEFAULT_LENGTHS.get(task.kind, DEFAULT_LENGTH), read_longest(locate(config.model))
    )
    if config.max_length is not None and longest < config.max_length:
        raise ConfigError(f"max_length={config.max_length}: {config.model} is for rows of {longest} tokens; lower it")
    encoder = TextEncoder(config.model, max_length=longest)
    features = make_features(splits.train, encoder=encoder, labels=labels, stride=config.stride)
    bert, pooler_trained = read_model(config.model)
    num_outputs = {"regression": 1, "choice": 1, "qa": 2}.get(task.kind, len(labels))
    model = TaskModel(
        bert,
        kind=task.kind,
        num_outputs=num_outputs,
        seed=config.seed,
        pooler_trained=pooler_trained,
        bilstm=config.bilstm,
    )
    model.to(device)
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")  # TF32: products round fp32 to 10 bits of fraction
    say(
        f"{config.task}: {count_of(len(splits.train), 'training example')}, "
        + ", ".join(f"{len(examples)} of {split}" for split, examples in splits.evaluated.items())
        + (f"; {len(labels)} classes" if labels else "")
        + (f"; {encoder.num_cut} cut at {longest} tokens" if encoder.num_cut else "")
    )
    for line in describe_unseen(splits, labels=labels):
        say(line)
    steps, finished = train(model, features=features, config=config, ranks=ranks, say=say, stop=link.stop_requested)
    if not finished:
        return Outcome(0, steps, False)
    result = evaluate(model, task=task, splits=splits, encoder=encoder, labels=labels, config=config, say=say,
                      ranks=ranks)  # fmt: skip
    if result is not None:
        if config.keep_model and not model.is_known_to_transformers:
            say("the trained model is not written: transformers has no class with its head")
        elif config.keep_model:
            save_model(model, source=locate(config.model), target=locate(config.output, MODEL_NAME), pad=encoder.pad,
                       labels=labels)  # fmt: skip
        write_result(locate(config.output), config=config, result=asdict(result))
        remove_state(locate(config.output))
    return Outcome(0, steps, True)


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
        raise TaskDataError(
            f"task={task.name}: all training examples have the label {''.join(found)!r}; give two classes or more"
        )
    return tuple(sorted(found))


def describe_unseen(splits: Splits, *, labels: Sequence[str]) -> Iterator[str]:
    """Yield a line for each split with labels that are not among `labels`, the classes of training (none: of kinds
    without classes)."""
    for split, examples in splits.evaluated.items() if labels else ():
        golds = [gold for gold in map(scores.gold_of, examples) if gold is not None]
        found = Counter(chain.from_iterable([gold] if isinstance(gold, str) else gold for gold in golds))
        unseen = {label: count for label, count in found.items() if label not in labels}
        if unseen:
            shown = ", ".join(sorted(unseen)[:5]) + (", ..." if len(unseen) > 5 else "")
            yield (
                f"{split}: {count_of(sum(unseen.values()), 'label')} of classes that no training example has "
                f"({shown}); predictions there count as wrong"
            )


def predict(
    model: TaskModel, *, task: Task, examples: Sequence[Example], encoder: TextEncoder, labels: Sequence[str],
    config: FinetuneConfig, ranks: Ranks, endings: Mapping[str, bool] | None = None,
) -> list[Prediction]:  # fmt: skip
    """Return what the model says of each example of a split, on every rank. qa: `endings` are cut off answers."""
    features = make_features(examples, encoder=encoder, labels=labels, stride=config.stride)
    logits = compute_logits(model, features=features, batch_size=config.evaluation_batch_size, ranks=ranks)
    if task.kind == "regression":
        return predictions.to_numbers(logits, bounds=task.bounds)
    if task.kind == "choice":
        return predictions.to_choices(logits)
    if task.kind == "tagging":
        return predictions.to_tags(logits, features=features, examples=examples, labels=labels)
    if task.kind == "qa":
        return predictions.to_answers(logits, features=features, examples=examples,
                                      longest=config.max_answer_length, num_best=config.num_best,
                                      endings=endings)  # fmt: skip
    return predictions.to_classes(logits, labels=labels)


def evaluate(
    model: TaskModel, *, task: Task, splits: Splits, encoder: TextEncoder, labels: Sequence[str],
    config: FinetuneConfig, say: Say, ranks: Ranks,
) -> Result | None:  # fmt: skip
    """Predict and score every split, and write the predictions; return the result on rank 0."""
    found: dict[str, dict[str, float]] = {}
    files: list[str] = []
    threshold: float | None = None
    endings = learn_endings(splits.train, encoder=encoder) if task.answer_rules == "korquad" else None
    for split, examples in splits.evaluated.items():
        predicted = predict(model, task=task, examples=examples, encoder=encoder, labels=labels, config=config,
                            ranks=ranks, endings=endings)  # fmt: skip
        if ranks.rank:
            continue
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
    if ranks.rank:
        return None
    return Result(config.task, task.metrics[0], found["dev"][task.metrics[0]], found, tuple(files),
                  {"train": len(splits.train)} | {split: len(each) for split, each in splits.evaluated.items()},
                  splits.by_hash)  # fmt: skip
