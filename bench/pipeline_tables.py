"""Formats the sections of bench.pipeline as Markdown: one table for each section, with the goals and whether they are
met."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bench.builds import LDDL_TIMES
from bench.memory import MOST_BYTES, MOST_GROWTH
from bench.scale import Scale, format_scale
from bench.shortcuts import tabulate_sets
from bench.storage import GOAL

TOKENIZERS_MTOK_S = 0.88
PARSER_MB_S = 2.53
"""Rates of `tokenizers` (called once per sentence) and of mwparserfromhell on an idle core. The goals are for this
core."""
_GOALS = {
    "wikitext to text": (8.0, "MB/s"),
    "text to token ids": (3.0, "Mtok/s"),
    "pairs, masks, shard: 1 mask set": (3.0, "Mtok/s"),
}

_WHOLE_GOALS = ((1.36, 3), (0.82, 5))
"""Goals as (most CPU seconds of a build relative to `tokenizers`, how many times fewer than LDDL's CPU seconds this
is)."""


def render(tree: Mapping[str, Any]) -> str:
    """Return the page with all sections that `tree`, the content of pipeline.json, has."""
    parts = ["# What preparing data costs", "`make bench-pipeline` (bench/pipeline.py) writes this; CPU seconds count."]
    for name, (title, table) in _TABLES.items():
        if name in tree:
            section = tree[name]
            about = f"; {section['corpus']}" if "corpus" in section else ""
            stamp = f"{section['date']}, {section['machine']}, load {section['load']:.1f}{about}"
            parts += [f"## {title}", stamp, "\n".join(table(section))]
    return "\n\n".join(parts) + "\n"


def _stages(section: Mapping[str, Any]) -> list[str]:
    rows = section["rows"]
    slow = {"tokenizers": 1.0, "mwparserfromhell": 1.0}
    for row in rows:
        if row["beside"].startswith("tokenizers"):
            slow["tokenizers"] = TOKENIZERS_MTOK_S / (row["tokens"] / row["beside_cpu_s"] / 1e6)
        elif row["beside"]:
            slow["mwparserfromhell"] = PARSER_MB_S / (row["megabytes"] / row["beside_cpu_s"])
    lines = [
        "| stage | CPU s | MB/s of | Mtok/s | CPU s a MB | peak RSS, MB | times as fast as | scaled | goal |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        rate, tokens = row["megabytes"] / row["cpu_s"], row["tokens"] / row["cpu_s"] / 1e6
        beside = f"{row['beside_cpu_s'] / row['cpu_s']:.2f} x {row['beside']}" if row["beside"] else ""
        scaled = goal = ""
        if row["name"] in _GOALS:
            least, unit = _GOALS[row["name"]]
            value = rate * slow["mwparserfromhell"] if unit == "MB/s" else tokens * slow["tokenizers"]
            scaled, goal = f"{value:.2f} {unit}", f"{least:g} {unit}: {'met' if value >= least else 'MISSED'}"
        shown = f"{tokens:.2f}" if row["tokens"] else ""
        lines.append(
            f"| {row['name']} | {row['cpu_s']:.2f} | {rate:.1f} {row['unit']} | {shown} | "
            f"{row['cpu_s'] / row['megabytes']:.4f} | {row['peak_bytes'] / 1e6:,.0f} | {beside} | {scaled} | {goal} |"
        )
    shards = [row for row in rows if row["name"].startswith("pairs, masks, shard")]
    if len(shards) == 2:
        sets = int(shards[1]["name"].split(":")[1].split()[0])
        more = (shards[1]["cpu_s"] - shards[0]["cpu_s"]) / (sets - 1)
        lines += [
            "",
            f"A further mask set costs {more:.2f} CPU s, {100 * more / shards[0]['cpu_s']:.0f}% of the first shard "
            f"({shards[0]['tokens'] / more / 1e6:.1f} Mtok/s).",
        ]
    return [
        *lines,
        "",
        f"Scaled: to a core on which `tokenizers` makes {TOKENIZERS_MTOK_S} Mtok/s and mwparserfromhell {PARSER_MB_S} "
        "MB/s, as measured in the same run. The peak is that of the measuring process, which holds the whole corpus.",
    ]


def _whole(section: Mapping[str, Any]) -> list[str]:
    text_mb = section["text_mb"]
    lddl = section["lddl"]
    lines = [
        f"{section['documents']:,} documents, {text_mb:,.1f} MB of text, {section['document_tokens'] / 1e6:,.2f} M "
        f"tokens ({section['builds'][0]['tokens'] / 1e6:,.2f} M in rows).",
        "",
        "| build | CPU s | wall s | MB/s a core | Mtok/s a core | CPU s a MB | of `tokenizers` | peak RSS, MB: main | "
        "worker | all |" + (" of LDDL |" if lddl else ""),
        "|---|---|---|---|---|---|---|---|---|---|" + ("---|" if lddl else ""),
    ]
    for build in section["builds"]:
        cost = build["cost"]
        tiny = "nothing" in build["name"]
        cells = ["", "", "", ""]
        if not tiny:
            cells = [
                f"{text_mb / cost['cpu_s']:.2f}",
                f"{build['tokens'] / cost['cpu_s'] / 1e6:.2f}",
                f"{cost['cpu_s'] / text_mb:.3f}",
                f"{build['of_tokenizers']:.2f}",
            ]
        sizes = [cost["main_bytes"], cost["worker_bytes"], cost["tree_bytes"]]
        memory = " | ".join(f"{size / 1e6:,.0f}" if size else "" for size in sizes)
        more = f" {build['of_lddl']:.2f} |" if lddl and not tiny else " |" if lddl else ""
        lines.append(
            f"| {build['name']} | {cost['cpu_s']:.1f} | {cost['wall_s']:.1f} | {' | '.join(cells)} | {memory} |{more}"
        )
    seconds = section["tokenizers_cpu_s"]
    lines.append(
        f"| `tokenizers` alone, a call a sentence | {seconds:.1f} | | {text_mb / seconds:.2f} | "
        f"{section['document_tokens'] / seconds / 1e6:.2f} | {seconds / text_mb:.3f} | 1.00 | | | |"
        + (f" {seconds / lddl['cpu_s']:.2f} |" if lddl else "")
    )
    if lddl:
        lines.append(
            f"| LDDL ({section['lddl_rows']:,} rows, masks of single tokens) | {lddl['cpu_s']:.1f} | "
            f"{lddl['wall_s']:.1f} | {text_mb / lddl['cpu_s']:.2f} | | {lddl['cpu_s'] / text_mb:.3f} | "
            f"{lddl['cpu_s'] / seconds:.2f} | {lddl['main_bytes'] / 1e6:,.0f} | | | 1.00 |"
        )
    first = section["builds"][0]
    reached = first["of_tokenizers"]
    verdicts = [
        f"{times} times LDDL is {limit:.2f}: {'met' if reached <= limit else 'not met'}"
        for limit, times in _WHOLE_GOALS
    ]
    lines += [
        "",
        f"Ratio of CPU seconds to `tokenizers` alone, {first['name']}: {reached:.2f}. LDDL was measured at "
        f"{LDDL_TIMES} ({LDDL_TIMES / reached:.1f} times ours); {'; '.join(verdicts)}.",
    ]
    if lddl:
        lines.append(f"LDDL in this run: {lddl['cpu_s'] / first['cost']['cpu_s']:.2f} times our CPU seconds.")
    return lines


def _memory(section: Mapping[str, Any]) -> list[str]:
    lines = [
        f"{section['workers']} workers; the corpus repeated, each copy another document, one book of 50 MB among them.",
        "",
        "| input | rows | CPU s | wall s | peak RSS, MB: main | worker | all | highest | growth | goals |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for number, point in enumerate(section["points"]):
        build, cost = point["build"], point["build"]["cost"]
        fits, flat = point["highest_bytes"] <= MOST_BYTES, point["growth"] <= MOST_GROWTH
        goals = f"{MOST_BYTES >> 20:,} MiB: {'met' if fits else 'MISSED'}"
        goals += f"; {MOST_GROWTH}: {'met' if flat else 'MISSED'}" if number else ""
        sizes = " | ".join(f"{cost[name] / 1e6:,.0f}" for name in ("main_bytes", "worker_bytes", "tree_bytes"))
        lines.append(
            f"| {point['input_bytes'] / 1e6:,.0f} MB | {build['rows']:,} | {cost['cpu_s']:.0f} | "
            f"{cost['wall_s']:.0f} | {sizes} | {point['highest_bytes'] / 2**20:,.0f} MiB | {point['growth']:.2f} | "
            f"{goals} |"
        )
    return lines


def _storage(section: Mapping[str, Any]) -> list[str]:
    lines = [
        "| mask sets | rows | bytes | a row | of it the pair | a mask set | TFRecords, padded int64 lists, no gzip | "
        "ratio | goal |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for found in section["sets"]:
        sets = found["mask_sets"]
        applies = sets == 10 and found["max_seq_length"] == 512
        goal = f"{GOAL:g}: {'met' if found['ratio'] >= GOAL else 'MISSED'}" if applies else ""
        lines.append(
            f"| {sets} | {found['rows']:,} | {found['total'] / 1e6:.1f} MB | {found['row']:,.0f} | "
            f"{found['row'] - sets * found['mask_set']:,.0f} | {found['mask_set']:.1f} | "
            f"{found['published'] / 1e6:,.1f} MB | {found['ratio']:.1f} | {goal} |"
        )
    return lines


def _scale(section: Mapping[str, Any]) -> list[str]:
    return format_scale(Scale(**{name: section[name] for name in Scale.__slots__}))


_TABLES: dict[str, tuple[str, Callable[[Mapping[str, Any]], list[str]]]] = {
    "stages": ("Stages, one core", _stages),
    "whole": ("Whole builds", _whole),
    "memory": ("Memory as the input grows", _memory),
    "storage": ("Storage", _storage),
    "scale": ("The plan at scale", _scale),
    "shortcuts": ("Next sentences told without reading", tabulate_sets),
}
