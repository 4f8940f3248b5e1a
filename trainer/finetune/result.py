"""What a fine-tuning finds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Result:
    """The metrics of a run, and the names of its predictions."""

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
