"""Numbers that Devlin et al. 2019 (BERT) published, in shares of 1, to stand beside a model's own.

GLUE: table 1, on the test sets, each task fine-tuned alone; its average is over these nine numbers, without WNLI.
SQuAD: tables 2 and 3, F1 on dev, one model, no other data. SWAG: table 4, dev. CoNLL-2003: table 7, F1 on dev.
"""

from __future__ import annotations

PUBLISHED: dict[str, tuple[float | None, float | None]] = {
    "mnli": (0.846, 0.867),
    "mnli-mm": (0.834, 0.859),
    "qqp": (0.712, 0.721),
    "qnli": (0.905, 0.927),
    "sst2": (0.935, 0.949),
    "cola": (0.521, 0.605),
    "stsb": (0.858, 0.865),
    "mrpc": (0.889, 0.893),
    "rte": (0.664, 0.701),
    "squad": (0.885, 0.909),
    "squad2": (None, 0.819),
    "swag": (0.816, 0.866),
    "conll2003": (0.964, 0.966),
}
"""BERT-Base and BERT-Large by task, in the task's own metric; None if not published."""

GLUE = ("mnli", "mnli-mm", "qqp", "qnli", "sst2", "cola", "stsb", "mrpc", "rte")
"""The numbers of GLUE's average."""
GLUE_TASKS = ("mnli", "qqp", "qnli", "sst2", "cola", "stsb", "mrpc", "rte", "wnli")
"""All tasks of GLUE: only a study of all of them is called GLUE."""


def average_glue(column: int) -> float:
    """Return the published average of BERT-Base (0) or BERT-Large (1)."""
    values = [PUBLISHED[name][column] for name in GLUE]
    return sum(value for value in values if value is not None) / len(values)
