"""Fine-tuning of an exported model on a task, from the task's files to a metric and predictions.

The parts, in the order in which data pass them:

    tasks     what a task is: its files and columns as published, its labels, its kind and its metrics
    tables    rows of csv, tsv, json, jsonl and Parquet files, compressed or not
    values    single values, checked
    examples  what stands in the files, as texts and labels (frozen data)
    splits    the examples of train, dev and test; a set with one file alone is split by hash, which is said
    features  token ids with targets: one row of tokens an example, one a choice, one a window of a context
    batches   features packed one behind another into trainer.model's Batch, with their targets
    heads     our encoder and a head: logits and the mean loss of a batch
    rates     AdamW's groups: layer_decay, head_learning_rate, frozen layers
    loop      the steps, and the logits of a split; step_log: what is recorded of each; ranks: several processes
    worker    one process, from the files to the result
    start     the lease, and the launcher: this process, others of this machine, or Ray Train
    scores    metrics by scikit-learn, scipy and seqeval
    outputs   predictions in the layout that the task's authors ask for; save: the model for transformers
    study     grids, seeds and several tasks; report: their table and picture beside published numbers

Decisions. The kind of a task decides features, head, loss and output, nothing else asks for a task's name:

    classification, pair  pooler, dropout, dense; cross-entropy        one or two segments
    regression            pooler, dropout, dense of one; squared error
    choice                as regression for each choice; cross-entropy over the choices of an example
    tagging               dropout, dense on each token; cross-entropy at the first piece of each word
    qa                    dense of two on each token; mean of the cross-entropies of start and end

These are transformers' BertFor* classes, from whose weights losses and gradients are the same. One difference: an
answer's softmax runs over the tokens of its row, where transformers' runs over [PAD] too.

The model takes tokens without padding, so batches have none. Every draw is keyed by (seed, purpose, epoch or step), so
that steps are a function of the seed and of what is there. Metrics never see torch; predictions never see a metric.
Several processes train as one: each takes every W-th example of a batch, and gradients are sums over global counts.
"""

from trainer.finetune.batches import TaskBatch, draw_order, pack, slice_evenly
from trainer.finetune.command import main, study
from trainer.finetune.config import Columns, FinetuneConfig, StudyConfig
from trainer.finetune.features import Feature, TextEncoder, make_features
from trainer.finetune.predictions import to_tags
from trainer.finetune.report import JSON_NAME
from trainer.finetune.result import Result
from trainer.finetune.scores import check_libraries, guess_majority, score
from trainer.finetune.splits import read_splits
from trainer.finetune.start import finetune, pick_device
from trainer.finetune.study import check_study
from trainer.finetune.tables import COMPRESSED, read_table, read_text, take
from trainer.finetune.tasks import find_task
from trainer.finetune.values import to_text
from trainer.finetune.worker import find_labels
