"""Writes the page bench/trainer.md from the result files of bench/trainer.py.

A part is one measurement. If a part trains and its masked-LM loss falls by less than FALL, it counts as an error, and
its rate is not shown.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from bench import attention

Result: TypeAlias = dict[str, Any]

FALL = 1.0
"""Nats by which the masked-LM loss of a part must fall. The loss begins at ln(vocabulary size), 10.3 for 30,522 tokens.
In the 48 steps of a part, BERT small falls from 10.26 to 7.40 with 2,048 tokens per step on a CPU."""
NAMES = {
    "transformers": "transformers, sdpa, padded, eager",
    "transformers-compiled": "transformers, sdpa, padded, compiled",
    "plain": "ours, plain torch, weights and moments in bf16",
    "zero-1": "ours, engine, ZeRO-1",
    "zero-2": "ours, engine, ZeRO-2",
    "zero-3": "ours, engine, ZeRO-3",
}
ONE_CARD = "Not run: two cards. No rate is known for two cards that are seen to learn."
NOT_ROWS = ("peak", "parts", "attention")
"""Parts that train nothing, and so have no row in the tables."""
COLUMNS = (
    "what",
    "masked-LM loss",
    "real tokens/s",
    "relative to transformers, eager",
    "places/s",
    "TFLOP/s",
    "of the peak",
    "ms per step",
    "memory, GB",
    "first step, s",
    "resumed, s",
    "waiting for data",
)


def read_results(paths: Iterable[Path]) -> list[Result]:
    """Return the results in the files. Of several results for the same part and table, only the last one is returned.

    Raises ValueError, which names the file, if a file holds no results.
    """
    found: dict[tuple[Any, ...], Result] = {}
    for path in paths:
        try:
            results = json.loads(path.read_text())["results"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}: holds no results of bench.trainer ({error!r}); leave it out") from error
        for result in results:
            found[(*section_of(result), result["part"])] = result
    return list(found.values())


def section_of(result: Result) -> tuple[str, str, str, str, int]:
    """Return what a table has in common, for the table to which `result` belongs.

    The values are the model's size, the GPU, torch's version, the data set, and the tokens of a micro-batch.
    """
    return result["size"], result["card"], result["torch"], result["data"], result["tokens"]


def describe(results: Sequence[Result]) -> str:
    """Return the page, with one table for each value of section_of. If no run had two GPUs, the page begins by saying
    so."""
    sections = dict.fromkeys(section_of(result) for result in results)
    page = "\n".join(_describe_section([each for each in results if section_of(each) == key]) for key in sections)
    several = any(result.get("workers", 1) > 1 for result in results)
    return page if several else page.replace("\n\n", f"\n\n{ONE_CARD}\n\n", 1)


def list_faults(results: Sequence[Result]) -> list[str]:
    """Return a line for each result that failed or whose loss did not fall by FALL."""
    faults = []
    for result in results:
        where = f"BERT {result['size']}: {name_of(result)}"
        if "failed" in result:
            faults.append(f"{where}: failed, {result['failed']}")
        elif result["part"] not in NOT_ROWS and not learns(result):
            faults.append(f"{where}: DOES NOT LEARN, masked-LM loss {loss_of(result)}, less than {FALL} nats down")
    return faults


def learns(result: Result) -> bool:
    """Return whether the loss of a result fell by at least FALL. If it is unknown or not finite, return False."""
    before, after = (_number(result.get(f"loss_{when}")) for when in ("before", "after"))
    return before - after >= FALL


def name_of(result: Result) -> str:
    """Return the name of a result's row in the table."""
    name = result.get("name") or NAMES.get(result["part"], result["part"])
    return f"{name}" + ", not compiled" * (result.get("compiled") is False)


def loss_of(result: Result) -> str:
    """Return the loss before and after, such as `10.41 to 8.32`."""
    return " to ".join(f"{_number(result.get(f'loss_{when}')):.2f}" for when in ("before", "after"))


def _describe_section(results: Sequence[Result]) -> str:
    first = results[0]
    found = {result["part"]: result for result in results}
    peak = _number(found.get("peak", {}).get("tflops"))
    base = _number(found.get("transformers", {}).get("tokens_per_second"))
    dates = sorted({result["date"] for result in results})
    measured = "" if math.isnan(peak) else f"measured bf16 peak of the card {peak:.0f} TFLOP/s. "
    lines = [
        f"# BERT {first['size']} on {first['card']}, {' and '.join(dates)}",
        "",
        f"torch {first['torch']}; {first['data']}; {first['tokens']:,} token places per micro-batch; dropout 0.1; "
        f"bf16; {measured}Rates are per GPU. Masked-LM loss in nats: the mean over the same batches, in the first pass "
        "and in the last. The whole product sees each row once: its losses are those of the first step and of the last "
        "tenth of the steps. First step: seconds from the start of the process until that step is logged; resumed: the "
        "same for the command repeated after a stop.",
        "",
        f"| {' | '.join(COLUMNS)} |",
        "|---" * len(COLUMNS) + "|",
        *(_describe_row(result, peak=peak, base=base) for result in results if result["part"] not in NOT_ROWS),
        "",
    ]
    if "parts" in found:
        text = found["parts"].get("table", "failed\n")
        lines += [f"## A step of the product while it is recorded\n\n{text}"]
    if "attention" in found:
        lines += [attention.describe(found["attention"]).lstrip("\n")]
    return "\n".join(lines)


def _describe_row(result: Result, *, peak: float, base: float) -> str:
    if "failed" in result:
        cells = [name_of(result), "**failed**"]
    elif not learns(result):
        cells = [f"{name_of(result)}: **DOES NOT LEARN**", loss_of(result)]
    else:
        cells = [
            name_of(result),
            loss_of(result),
            f"{result['tokens_per_second']:,.0f}",
            _share(result["tokens_per_second"], base, ".2f"),
            f"{result['places_per_second']:,.0f}",
            f"{result['tflops']:.0f}",
            _share(result["tflops"], peak, ".1%"),
            f"{result['step_ms']:.1f}",
            _shown(result, "memory_gb", ".0f"),
            _shown(result, "first_step_s", ".0f"),
            _shown(result, "resumed_step_s", ".0f"),
            _shown(result, "waiting", ".2%"),
        ]
    return f"| {' | '.join(cells + [''] * (len(COLUMNS) - len(cells)))} |"


def _share(value: float, whole: float, form: str) -> str:
    return "" if math.isnan(whole) else format(value / whole, form)


def _shown(result: Mapping[str, Any], key: str, form: str) -> str:
    return "" if result.get(key) is None else format(result[key], form)


def _number(value: float | None) -> float:
    return math.nan if value is None else value
