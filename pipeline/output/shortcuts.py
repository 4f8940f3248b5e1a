"""Measures the shortcuts of a build, describes them for the report, and warns or fails if one is too accurate.

A shortcut is a simple rule that guesses the next-sentence label without looking at the text. The shortcuts are listed
in pipeline/instances/shortcuts.py.
"""

from __future__ import annotations

from typing import Any

from pipeline.config import PipelineConfig
from pipeline.instances import (
    ALONE,
    FAIL_ABOVE,
    OF_THE_TEXT,
    RULES,
    UNPAIRED,
    WARN_ABOVE,
    Shortcut,
    describe_shortcuts,
    find_telling,
    judge_shortcuts,
)
from pipeline.tally import BuildResult, RowTally

MOST_UNLABELLED = 0.05
"""A build warns if more than this share of its rows has no label because there was no wrong next sentence."""


def measure_shortcuts(result: BuildResult, *, config: PipelineConfig) -> list[Shortcut]:
    """Return each shortcut (a rule that guesses the next-sentence label) with its accuracy over all training and
    validation rows. The list is empty if the rows have no labels."""
    total = RowTally(*(getattr(next(iter(result.tallies.values())), name) for name in ("lengths", "token_counts")))
    for tally in result.tallies.values():
        total.add_shortcuts(tally.shortcuts)
    return judge_shortcuts(total.shortcuts, languages=list_languages(config))


def list_languages(config: PipelineConfig) -> list[str]:
    """Return the language of each name in config.source_names (the distinct names of the sources), in this order."""
    return [
        next(source.language for source in config.sources if source.display_name == name)
        for name in config.source_names
    ]


def check_shortcuts(result: BuildResult, *, config: PipelineConfig) -> None:
    """Raise ValueError if a shortcut (a rule that does not look at the text) guesses more than the share FAIL_ABOVE of
    the next-sentence labels correctly.

    A model would then learn the shortcut instead of reading.
    """
    if not _is_judged(config):
        return
    _, failing = find_telling(measure_shortcuts(result, config=config))
    if failing:
        raise ValueError(
            f"next sentences can be told without reading, by {describe_shortcuts(failing)} (at most "
            f"{100 * FAIL_ABOVE:.0f}% may be): a model would learn that and nothing else; check what the documents of "
            "each source have in common, or set next_sentence=none"
        )


def list_shortcut_warnings(result: BuildResult, *, config: PipelineConfig) -> list[str]:
    """Return the warnings about next-sentence labels. There are at most two.

    One warning names the shortcuts (rules that do not look at the text) that guess more than the share WARN_ABOVE of
    the labels correctly. The other warns if more than the share MOST_UNLABELLED of the rows has no label, because there
    was no wrong next sentence for these rows.
    """
    if not _is_judged(config):
        return []
    found = []
    telling, failing = find_telling(measure_shortcuts(result, config=config))
    if telling or failing:
        found.append(
            f"next sentences can be told without reading, by {describe_shortcuts([*failing, *telling])} "
            f"({100 * WARN_ABOVE:.0f}% or less is usual): check what the documents of each source have in common, or "
            "set next_sentence=none"
        )
    notes, rows = result.left_out.notes, sum(tally.rows for tally in result.tallies.values())
    unlabelled = notes[ALONE] + notes[UNPAIRED]
    if unlabelled > MOST_UNLABELLED * rows:
        names = sorted({name for reason in (ALONE, UNPAIRED) for name, _ in result.left_out.examples.get(reason, ())})
        found.append(
            f"{unlabelled:,} of {rows:,} rows have one segment and no next-sentence label: {notes[ALONE]:,} are of a "
            f"document that is alone of its source in its shard, and for {notes[UNPAIRED]:,} no wrong next was left "
            "in other documents of the source, since each place is used once and none repeats what truly follows "
            f"(such as {', '.join(names)}); give fewer shards or more documents, set unit: chapter for books, remove "
            "lines that repeat, or set next_sentence=none"
        )
    return found


def summarize_shortcuts(result: BuildResult, *, config: PipelineConfig) -> dict[str, Any]:
    """Return the section of report.json on shortcuts, as a dict.

    `rules` is a list with a dict for each shortcut: its name (`rule`), what it looks at (`of`), its accuracy, the
    number of rows that it was measured on, and whether the build warns or fails because of it (`judged`).
    `warned_above` and `failed_above` are the two limits of accuracy. `without_label` has the number of rows without a
    label, by reason.
    """
    return {
        "rules": [
            {
                "rule": each.rule,
                "of": RULES[each.rule],
                "accuracy": each.accuracy,
                "rows": each.rows,
                "judged": _is_judged(config) and each.rule not in OF_THE_TEXT,
            }
            for each in measure_shortcuts(result, config=config)
        ],
        "warned_above": WARN_ABOVE,
        "failed_above": FAIL_ABOVE,
        "without_label": {reason: result.left_out.notes[reason] for reason in (ALONE, UNPAIRED)},
    }


def _is_judged(config: PipelineConfig) -> bool:
    """Return whether a build warns or fails because of shortcuts (rules that guess the next-sentence label).

    It does so only if the setting `mode` is strict and `next_sentence` is random_document. If `mode` is reference, the
    build follows the published algorithm, which itself leaves shortcuts. If `next_sentence` is sentence_order, the
    label says which of two segments comes first, and the place of a segment in its document naturally helps to tell
    this.
    """
    return config.mode == "strict" and config.next_sentence == "random_document"
