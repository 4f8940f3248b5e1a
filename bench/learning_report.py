"""Judges the curves (losses) from bench/learning.py, and writes the page docs/LEARNING.md.

A comparison is judged only if all its runs exist and have the same data set and settings.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from bench.learning_pictures import PICTURES
from bench.learning_tasks import SEEDS, Curve

LOSSES = {"mlm": "masked-LM", "nsp": "next-sentence"}
LAST = 0.2
"""The losses of this last share of the steps are averaged and compared."""
TENTHS = 10
SAME = {
    "card": "the card",
    "torch": "torch's version",
    "data": "the data set",
    "settings": "the settings",
    "seconds": "the minutes",
}
"""For each key of a curve that must be equal in the runs of a comparison, its name on the page."""
NOISE = (
    "Next-sentence loss falls late and steeply. Two of our runs with the same seed differed by up to 0.13 nats in the "
    "last fifth, because kernels add in another order. So that loss is noisy at these steps and its verdict weak."
)


@dataclass(slots=True)
class Report:
    """The text of the page, and the verdicts that are against us."""

    text: str = ""
    failed: list[str] = field(default_factory=list)
    incomplete: list[str] = field(default_factory=list)
    """The comparisons that could not be judged, because runs are missing or differ in their settings."""


class Verdict(NamedTuple):
    """One verdict of a comparison. `holds` is None if it could not be judged."""

    holds: bool | None
    text: str


class Section(NamedTuple):
    """One comparison: its section of the page, the names of its runs, and the verdicts."""

    title: str
    names: tuple[str, ...]
    lines: list[str]
    verdicts: list[Verdict]


def make_report(curves: Mapping[str, Curve]) -> Report:
    """Judge all comparisons and return the report."""
    report = Report()
    sections = [judge_steps(curves), judge_resume(curves), *judge_times(curves), *compare_recipes(curves)]
    body: list[str] = []
    absent = [section.title for section in sections if not any(name in curves for name in section.names)]
    report.incomplete += [f"{title}: not run" for title in absent]
    for section in sections:
        if section.title in absent:
            continue
        body += [f"## {section.title}", "", *(f"**{mark(each.holds)}** {each.text}\n" for each in section.verdicts)]
        body += [*section.lines, ""]
        for verdict in section.verdicts:
            where = f"{section.title}: {verdict.text}"
            if verdict.holds is None:
                report.incomplete.append(where)
            elif not verdict.holds:
                report.failed.append(where)
    not_run = f"Not run: {'; '.join(absent)}.\n\n" if absent else ""
    report.text = "\n".join([*INTRODUCTION, not_run + "\n".join(body), *describe_runs(curves)]).rstrip() + "\n"
    return report


def write_report(report: Report, *, curves: Mapping[str, Curve], docs: Path) -> None:
    """Write LEARNING.md to the folder `docs`, and a picture of each part of the comparison that has curves."""
    docs.mkdir(parents=True, exist_ok=True)
    for part, draw in PICTURES.items():
        if any(curve["part"] == part for curve in curves.values()):
            draw(curves, docs / f"learning-{part}.png")
    (docs / "LEARNING.md").write_text(report.text)


def mark(holds: bool | None) -> str:
    """Return the word that stands before a verdict on the page."""
    return {True: "Holds:", False: "FAILED:", None: "NOT JUDGED:"}[holds]


def find_obstacle(curves: Mapping[str, Curve], names: Sequence[str], *, besides: Sequence[str] = ()) -> str | None:
    """Return the reason why the runs `names` cannot be compared, or None if they can be compared. They may differ in
    the keys `besides`."""
    missing = [name for name in names if name not in curves]
    if missing:
        return f"{', '.join(missing)} did not run"
    first = curves[names[0]]
    for name in names[1:]:
        for key, words in SAME.items():
            if key not in besides and _comparable(curves[name].get(key)) != _comparable(first.get(key)):
                return f"{names[0]} and {name} differ in {words}: {first.get(key)} and {curves[name].get(key)}"
    return None


def _comparable(value: Any) -> Any:
    return {key: part for key, part in value.items() if key != "seed"} if isinstance(value, Mapping) else value


# ---- equal steps


def judge_steps(curves: Mapping[str, Curve]) -> Section:
    """Judge equal steps. Each loss of our runs, averaged over the seeds, must not exceed the highest of transformers'
    runs."""
    names = {who: [f"steps-{who}-{seed}" for seed in SEEDS] for who in ("ours", "transformers")}
    everyone = (*names["ours"], *names["transformers"])
    there = [name for name in everyone if name in curves]
    lines = ["| run | masked-LM loss | next-sentence loss | seconds |", "|---|---|---|---|"]
    for name in there:
        means = " | ".join(f"{last_mean(curves[name][loss]):.4f}" for loss in LOSSES)
        lines.append(f"| {curves[name]['who']}, seed {curves[name]['seed']} | {means} | {curves[name]['took_s']:.0f} |")
    for who, own in names.items():
        if all(name in curves for name in own):
            spreads = [spread([last_mean(curves[name][loss]) for name in own]) for loss in LOSSES]
            lines.append(f"| {who}, mean (lowest to highest) | {' | '.join(spreads)} | |")
    lines += [
        "",
        "Means over the last fifth of the steps, in nats. Runs shared a card, so their seconds do not compare speed.",
    ]
    lines[-1] += f"\n\n{NOISE}\n\n![Both losses by step](learning-steps.png)"
    verdicts = []
    obstacle = find_obstacle(curves, everyone)
    for loss, words in LOSSES.items():
        if obstacle is not None:
            verdicts.append(Verdict(None, f"{words} loss: {obstacle}."))
            continue
        ours, theirs = ([last_mean(curves[name][loss]) for name in names[who]] for who in names)
        mean = sum(ours) / len(ours)
        holds = mean <= max(theirs)
        place = f"{mean:.4f}; transformers: {min(theirs):.4f} to {max(theirs):.4f}"
        relation = "is within transformers' range or below it" if holds else "is above transformers' range"
        verdicts.append(Verdict(holds, f"{words} loss: our mean over {len(SEEDS)} seeds {relation}: {place}."))
    return Section(f"Equal steps{_size(curves, there)}", everyone, lines, verdicts)


def last_mean(losses: Sequence[float | None]) -> float:
    """Return the mean of the last fifth of the losses, or NaN if one of these is not finite."""
    few = losses[-max(1, round(LAST * len(losses))) :]
    return sum(math.nan if loss is None else loss for loss in few) / len(few)


def spread(values: Sequence[float]) -> str:
    """Return mean, lowest and highest value as text, such as `5.5512 (5.5401 to 5.5623)`."""
    return f"{sum(values) / len(values):.4f} ({min(values):.4f} to {max(values):.4f})"


# ---- a resumed run


def judge_resume(curves: Mapping[str, Curve]) -> Section:
    """Judge the resumed run. With deterministic kernels, its losses must equal those of the uninterrupted run to the
    last bit."""
    resumed, whole = names = (f"resume-ours-{SEEDS[0]}", f"whole-ours-{SEEDS[0]}")
    title = f"A resumed run{_size(curves, [resumed])}"
    obstacle = find_obstacle(curves, names)
    if obstacle is not None:
        return Section(title, names, [], [Verdict(None, f"{obstacle}.")])
    stops = curves[resumed].get("stops", [])
    if len(stops) != 1 or not 0 < stops[0] < len(curves[resumed]["mlm"]):
        return Section(title, names, [], [Verdict(None, f"{resumed} was not stopped midway (stops: {stops}).")])
    windows = list(cut_windows(len(curves[whole]["mlm"])))
    lines = ["| steps | loss | resumed | uninterrupted |", "|---|---|---|---|"]
    verdicts = []
    for loss, words in LOSSES.items():
        for first, stop in windows:
            a, b = (_mean(curves[name][loss][first:stop]) for name in names)
            lines.append(f"| {first + 1} to {stop} | {words} | {a:.4f} | {b:.4f} |")
        pairs = list(zip(*(curves[name][loss] for name in names), strict=True))
        same = sum(a is not None and a == b for a, b in pairs)
        text = f"{words} loss: equal to the last bit in {same:,} of {len(pairs):,} steps."
        verdicts.append(Verdict(same == len(pairs), text))
    lines += ["", f"Stopped by SIGTERM with a checkpoint at step {stops[0]:,}, then started again by the same command."]
    lines += ["Both runs with `deterministic: true`. Means over windows of steps, in nats."]
    lines += ["", "![The resumed run](learning-resume.png)"]
    return Section(title, names, lines, verdicts)


def cut_windows(steps: int) -> Iterator[tuple[int, int]]:
    """Yield the range [first, stop) of each tenth of the steps."""
    return ((a, b) for a, b in pairwise(round(steps * tenth / TENTHS) for tenth in range(TENTHS + 1)) if a < b)


def _mean(losses: Sequence[float | None]) -> float:
    return sum(math.nan if loss is None else loss for loss in losses) / len(losses)


# ---- equal time


def judge_times(curves: Mapping[str, Curve]) -> list[Section]:
    """Judge equal time for each model size. Return the sections in the order base, large, other sizes."""
    sizes = {name.split("-")[1] for name in curves if name.startswith("time-")} | {"base", "large"}
    return [
        judge_time(curves, size=size) for size in sorted(sizes, key=lambda size: (size not in ("base", "large"), size))
    ]


def judge_time(curves: Mapping[str, Curve], *, size: str) -> Section:
    """Judge equal time for one model size.

    For each evaluation of transformers, our last evaluation up to the same time must have a lower loss.
    """
    ours_name, their_name = names = (f"time-{size}-ours", f"time-{size}-transformers")
    title = f"Equal time, BERT {size}"
    obstacle = find_obstacle(curves, names)
    if obstacle is not None:
        return Section(title, names, [], [Verdict(None, f"{obstacle}.")])
    ours, theirs = curves[ours_name], curves[their_name]
    counts = {(each["pairs"], each["masked"]) for curve in (ours, theirs) for each in curve["evaluations"]}
    if len(counts) != 1:
        text = f"the evaluations used different held-out rows: (pairs, masked) {sorted(counts)}."
        return Section(title, names, [], [Verdict(None, text)])
    lines = [
        "| time, s | transformers | step | ours | at, s | step | difference |",
        "|---|---|---|---|---|---|---|",
    ]
    differences = []
    for each in theirs["evaluations"]:
        own = find_before(ours["evaluations"], time_s=each["time_s"])
        left = f"| {each['time_s']:.1f} | {_shown(each['mlm_loss'])} | {each['step']:,} |"
        if own is None:
            differences.append(math.nan)
            lines.append(f"{left} not evaluated yet | | | |")
            continue
        differences.append(_number(own["mlm_loss"]) - _number(each["mlm_loss"]))
        right = f"{_shown(own['mlm_loss'])} | {own['time_s']:.1f} | {own['step']:,} | {differences[-1]:+.4f} |"
        lines.append(f"{left} {right}")
    lower = sum(difference < 0 for difference in differences)
    pairs, masked = counts.pop()
    text = f"our loss is lower at {lower} of {len(differences)} times."
    lines += [
        "",
        f"Masked-LM loss in nats over the same {masked:,} masked tokens of {pairs:,} held-out pairs; ours is our last "
        "evaluation up to that time. The clock starts at the end of the first step and leaves out evaluations. "
        "Start-up and first step, compilation included, took "
        f"{ours['start_up_s']:.0f} + {ours['first_step_s']:.0f} s for us and "
        f"{theirs['start_up_s']:.0f} + {theirs['first_step_s']:.0f} s for transformers. A step is "
        f"{ours['settings']['batch']['tokens']:,} tokens for us, {theirs['pairs']} pairs for transformers.\n\n"
        "![Held-out loss by time](learning-time.png)",
    ]
    return Section(title, names, lines, [Verdict(bool(differences) and lower == len(differences), text)])


def find_before(evaluations: Sequence[Mapping[str, Any]], *, time_s: float) -> Mapping[str, Any] | None:
    """Return the last evaluation up to the time `time_s`, or None if there is none."""
    earlier = [each for each in evaluations if each["time_s"] <= time_s]
    return earlier[-1] if earlier else None


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _shown(value: float | None) -> str:
    return f"{_number(value):.4f}"


def _size(curves: Mapping[str, Curve], names: Sequence[str]) -> str:
    sizes = {curves[name]["size"] for name in names if name in curves}
    return f", BERT {sizes.pop()}" if len(sizes) == 1 else ""


# ---- recipes

QUARTERS = (0.25, 0.5, 0.75)


def compare_recipes(curves: Mapping[str, Curve]) -> list[Section]:
    """Return the section that ranks the recipes by their last held-out loss; none if no recipe ran.

    Its verdict holds if they can be compared: all on the same card, data set and held-out rows, for the same time.
    """
    names = tuple(name for name, curve in curves.items() if curve["part"] == "recipe")
    if not names:
        return []
    chosen = [curves[name] for name in names]
    first = chosen[0]
    title = f"Recipes, {first['seconds'] / 60:g} minutes on one GPU{_size(curves, names)}"
    obstacle = find_obstacle(curves, names, besides=("settings",))
    counts = {(each["pairs"], each["masked"]) for curve in chosen for each in curve["evaluations"]}
    if obstacle is None and len(counts) != 1:
        obstacle = f"the evaluations used different held-out rows: (pairs, masked) {sorted(counts)}"
    if obstacle is not None:
        return [Section(title, names, [], [Verdict(None, f"{obstacle}.")])]
    chosen.sort(key=lambda curve: _number_or_infinity(curve["evaluations"][-1]["mlm_loss"]))
    parts = " | ".join(f"at {share:.0%}" for share in QUARTERS)
    lines = [f"| recipe | tokens a step | steps | {parts} | at the end |", f"{'|---' * (len(QUARTERS) + 4)}|"]
    for curve in chosen:
        found = [find_before(curve["evaluations"], time_s=share * curve["seconds"]) for share in QUARTERS]
        losses = " | ".join("" if each is None else _shown(each["mlm_loss"]) for each in found)
        left = f"| {curve['name'].removeprefix('recipe-')} | {curve['settings']['batch']['tokens']:,}"
        lines.append(f"{left} | {len(curve['mlm']):,} | {losses} | {_shown(curve['evaluations'][-1]['mlm_loss'])} |")
    pairs, masked = counts.pop()
    lines += [
        "",
        f"Masked-LM loss in nats over the same {masked:,} masked tokens (15%) of {pairs:,} held-out pairs, by the "
        "share of the time. The times leave out start-up, compilation and evaluations. `max_hours`, which ends the "
        "runs, counts evaluations. One seed each.",
        "",
        "![Held-out loss of the recipes by time](learning-recipe.png)",
    ]
    return [Section(title, names, lines, [])]


def _number_or_infinity(loss: float | None) -> float:
    return math.inf if loss is None else loss


# ---- what ran

INTRODUCTION = [
    "# Does it learn as transformers does?",
    "",
    "This page compares the whole product (`trainer/run.py`: pair stream, kernels, hashed dropout, ZeRO engine, bf16 "
    "with fp32 masters, compiled) with transformers' `BertForPreTraining` (bf16 autocast, sdpa). Both start from the "
    "same initial weights and use the same AdamW.",
    "Equal steps: both read the same rows in the same order; transformers runs eagerly, each step in four parts by "
    "length. Equal time: transformers is compiled and reads the same rows padded to 512.",
    "",
]


def describe_runs(curves: Mapping[str, Curve]) -> list[str]:
    """Return the lines of the page's section that lists commands, seeds, GPUs, days, data sets and settings."""
    lines = ["## What ran", "", "| run | seed | card | torch | transformers | day | steps |", f"{'|---' * 7}|"]
    for name, curve in curves.items():
        steps = len(curve.get("mlm") or curve["loss"])
        versions = f"{curve['torch']} | {curve['transformers'] or ''}"
        lines.append(f"| {name} | {curve['seed']} | {curve['card']} | {versions} | {curve['date']} | {steps:,} |")
    data = {
        f"{each['name']}: {each['rows']:,} training rows, {each['tokens']:,} tokens, {each['held_out']:,} rows held "
        f"out (hash {each['hash'][:12]})": None
        for each in (curve["data"] for curve in curves.values())
    }
    commands = dict.fromkeys(curve["command"] for curve in curves.values())
    lines += ["", "Data sets:", "", *(f"- {each}" for each in data), "", "Commands:", "", "```sh", *commands, "```", ""]
    for part, words in (("steps", "equal steps"), ("resume", "a resumed run"), ("time", "equal time")):
        for size in dict.fromkeys(curve["size"] for curve in curves.values() if curve["part"] == part):
            first = next(curve for curve in curves.values() if curve["part"] == part and curve["size"] == size)
            text = yaml.safe_dump({**first["settings"], "seed": "SEED"}, sort_keys=False).strip()
            lines += [f"Settings of {words}, BERT {size}:", "", "```yaml", text, "```", ""]
    for name, curve in curves.items():
        if curve["part"] == "recipe":
            lines += [f"Settings of {name}:", "", "```yaml", yaml.safe_dump(curve["settings"], sort_keys=False).strip()]
            lines += ["```", ""]
    return lines
