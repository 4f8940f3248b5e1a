"""Measures how well simple rules guess the next-sentence labels of finished data sets without reading the text.

The data set's auditor measures this. 50% is chance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.audit.run import audit

RULES = ("source", "language", "total", "second", "both", "words")


def measure_sets(given: Sequence[str]) -> dict[str, Any]:
    """Return how often each rule is right, for each data set. A data set is given as NAME=FOLDER.

    Raises ValueError if an entry has another form.
    """
    sets = []
    for entry in given:
        name, equals, folder = entry.partition("=")
        if not equals or not name or not folder:
            raise ValueError(f"--shortcuts {entry!r}: give NAME=FOLDER, such as sample=data/sample-set")
        found = {each.rule: each for each in audit(folder).shortcuts}
        rows = max((each.rows for each in found.values()), default=0)
        sets.append({"name": name, "rows": rows, "accuracy": {rule: found[rule].accuracy for rule in RULES}})
    return {"sets": sets}


def tabulate_sets(section: Mapping[str, Any]) -> list[str]:
    """Return the lines of a Markdown table with one row for each data set."""
    names = ("source", "language", "tokens in the row", "tokens in B", "in A and in B", "shared rare words")
    lines = [f"| labels told by | {' | '.join(names)} | of rows |", "|---" * (len(names) + 2) + "|"]
    for each in section["sets"]:
        shares = " | ".join(f"{100 * each['accuracy'][rule]:.1f}%" for rule in RULES)
        lines.append(f"| {each['name']} | {shares} | {each['rows']:,} |")
    return [
        *lines,
        "",
        "The best rule of each kind, fitted on one half of the rows and measured on the other; 50% is chance.",
        "Shared rare words are what the task is to teach.",
    ]
