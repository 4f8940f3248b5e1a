"""One worker of a run: training loop, prefetch, evaluation, divergence guard, branches from other runs."""

from trainer.train.branch import (
    check_branch,
    find_branch_start,
    is_branch_to_begin,
    read_trained,
    resolve_source,
    source_config,
    steps_done,
)
from trainer.train.evaluate import Evaluator
from trainer.train.link import Job, Link, Outcome, WorkerPlace
from trainer.train.worker import backend_of, make_masks, warn_of_cpu, work
