"""One fine-tuning by transformers' Trainer: `python -m bench.finetuning_transformers CONFIG`, a config of
trainer.finetune. The last line is JSON with `value`, the task's first metric on dev."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray
from scipy.stats import pearsonr, spearmanr
from seqeval.metrics import f1_score as entity_f1
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef
from transformers import (
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
)

from pipeline.settings import load_settings
from pipeline.storage import locate
from trainer.finetune import FinetuneConfig, find_labels, find_task, read_splits
from trainer.finetune.examples import Example, TaggedExample, TextExample
from trainer.finetune.worker import draw_examples
from trainer.hf import read_longest

NO_LABEL = -100
"""The label of special tokens and of a word's pieces behind the first: left out of loss and scores."""


def main() -> int:
    """Train, evaluate, print the result, and return the exit status."""
    config = load_settings(FinetuneConfig, file=sys.argv[1], overrides=())
    task = find_task(config.task, columns=config.columns)
    splits = draw_examples(
        read_splits(task, config=config, say=print), count=config.max_train_examples, seed=config.seed
    )
    labels = find_labels(task, examples=splits.train)
    tokenizer = AutoTokenizer.from_pretrained(config.model)
    longest = min(config.max_length or 128, read_longest(locate(config.model)))
    encode = encode_words if task.kind == "tagging" else encode_text
    rows = {
        name: [encode(each, tokenizer=tokenizer, labels=labels, longest=longest) for each in examples]
        for name, examples in (("train", splits.train), ("dev", splits.evaluated["dev"]))
    }
    auto = AutoModelForTokenClassification if task.kind == "tagging" else AutoModelForSequenceClassification
    collator = DataCollatorForTokenClassification if task.kind == "tagging" else DataCollatorWithPadding
    optimizer = config.optimizer
    trainer = Trainer(
        auto.from_pretrained(config.model, num_labels=len(labels) or 1),
        TrainingArguments(
            output_dir=config.output,
            per_device_train_batch_size=config.batch_size,
            per_device_eval_batch_size=config.evaluation_batch_size,
            num_train_epochs=config.epochs,
            learning_rate=optimizer.learning_rate,
            weight_decay=optimizer.weight_decay,
            adam_epsilon=optimizer.epsilon,
            max_grad_norm=optimizer.clip_norm,
            warmup_steps=config.schedule.warmup_fraction,
            seed=config.seed,
            use_cpu=config.device == "cpu",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            dataloader_pin_memory=config.device != "cpu",
        ),
        train_dataset=rows["train"],
        data_collator=collator(tokenizer),
    )
    trainer.train()
    predicted = trainer.predict(rows["dev"])
    value = score(predicted.predictions, truth=predicted.label_ids, metric=task.metrics[0], labels=labels)
    print(json.dumps({"value": value}))
    return 0


def encode_text(example: Example, *, tokenizer: Any, labels: Sequence[str], longest: int) -> dict[str, Any]:
    """Return the row of one text or two, with `label`, the number of its class or its number itself."""
    assert isinstance(example, TextExample)
    assert example.label is not None
    texts = [example.first] if example.second is None else [example.first, example.second]
    row = tokenizer(*texts, truncation=True, max_length=longest)
    number = labels.index(str(example.label)) if labels else float(example.label)
    return {**row, "label": number}


def encode_words(example: Example, *, tokenizer: Any, labels: Sequence[str], longest: int) -> dict[str, Any]:
    """Return the row of a text of words, with `labels` of its tokens: the word's at its first piece, else NO_LABEL."""
    assert isinstance(example, TaggedExample)
    assert example.labels is not None
    row = tokenizer(list(example.units), is_split_into_words=True, truncation=True, max_length=longest)
    words = row.word_ids()
    before = [None, *words[:-1]]
    numbers = [
        NO_LABEL if word is None or word == last else labels.index(example.labels[word])
        for word, last in zip(words, before, strict=True)
    ]
    return {**row, "labels": numbers}


def score(logits: NDArray[Any], *, truth: NDArray[Any], metric: str, labels: Sequence[str]) -> float:
    """Return the metric of logits [examples, classes], or [examples, tokens, classes] of words."""
    if metric in ("pearson", "spearman"):
        return float((pearsonr if metric == "pearson" else spearmanr)(logits[:, 0], truth).statistic)
    best = logits.argmax(-1)
    if logits.ndim == 3:
        kept = [row != NO_LABEL for row in truth]
        named = [
            [[labels[number] for number in row[keep]] for row, keep in zip(side, kept, strict=True)]
            for side in (truth, best)
        ]
        return float(entity_f1(*named))
    by_name = {"accuracy": accuracy_score, "f1": f1_score, "matthews": matthews_corrcoef}
    return float(by_name[metric](truth, best))


if __name__ == "__main__":
    sys.exit(main())
