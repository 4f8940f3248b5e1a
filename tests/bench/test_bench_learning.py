"""The comparison of how the product and transformers learn: same start, honest verdicts, curves that are kept."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from bench import learning
from bench.learning_recipes import RECIPES
from bench.learning_report import Section, compare_recipes, make_report
from bench.learning_tasks import SEEDS, list_tasks, read_curves, write_curve
from synthetic import write_data_set

pytest.importorskip("transformers")
STEPS = 60


def make_curves(folder: Path, **planted: dict[str, Any]) -> Path:
    """Curves of every run that lie as they should, but for what is planted in the run of that name (_ for -)."""
    shared = {"card": "a card", "torch": "2", "transformers": "5", "date": "2026-01-01", "command": "python"}
    data = {"name": "set", "hash": "0" * 16, "tokens": 10, "rows": 2, "held_out": 1}
    for task in list_tasks("set", sizes=["base", "large"]):
        settings = {key: value for key, value in task.settings().items() if key != "data"}
        curve = {"name": task.name, "part": task.part, "who": task.who, "seed": task.seed, "size": task.size, **shared}
        curve |= {"data": data, "settings": settings, "seconds": task.seconds, "pairs": task.pairs, "took_s": 9.0}
        if task.part == "recipe":
            low = list(RECIPES).index(task.recipe) / 10
            curve |= {"start_up_s": 20.0, "first_step_s": 40.0, "mlm": [10.0, 9.0]}
            curve["evaluations"] = [
                {"step": int(s), "time_s": s, "mlm_loss": 9.0 - s / 300 - low, "pairs": 64, "masked": 900}
                for s in (100.0, 300.0, 500.0)
            ]
        elif task.part == "time":
            better = 0.5 if task.who == "ours" else 0.0
            seconds = (10.0, 25.0, 55.0, 62.0) if task.who == "ours" else (30.0, 60.0)
            curve |= {"start_up_s": 20.0, "first_step_s": 40.0, "loss": [10.0, 9.0]}
            curve["evaluations"] = [
                {"step": int(s), "time_s": s, "mlm_loss": 9.0 - s / 30 - better, "pairs": 64, "masked": 900}
                for s in seconds
            ]
        else:
            nudge = 0.01 * task.seed
            curve["mlm"] = [10.0 - step / 50 + nudge for step in range(100)]
            curve["nsp"] = [0.7 - step / 500 + nudge for step in range(100)]
            curve["stops"] = [50] if task.part == "resume" else []
        curve |= planted.get(task.name.replace("-", "_"), {})
        folder.mkdir(parents=True, exist_ok=True)
        write_curve(folder, curve)
    return folder


def render(folder: Path, docs: Path) -> int:
    return learning.main(["--render", str(folder), "--docs", str(docs)])


# ---- verdicts


def test_what_holds_is_rendered_with_pictures(tmp_path: Path) -> None:
    assert render(make_curves(tmp_path / "out"), tmp_path / "docs") == 0
    text = (tmp_path / "docs" / "LEARNING.md").read_text()
    assert text.count("**Holds:**") == 6
    assert "FAILED" not in text
    assert "masked-LM loss: our mean over 3 seeds is within transformers' range or below it: 8.2300" in text
    assert "| 30.0 | 8.0000 | 30 | 7.6667 | 25.0 | 25 | -0.3333 |" in text  # 10 s and 25 s are not later than 30 s
    assert "| 60.0 | 7.0000 | 60 | 6.6667 | 55.0 | 55 | -0.3333 |" in text  # 62 s is
    (row,) = [line for line in text.splitlines() if line.startswith("| steps-ours-3 |")]
    assert row == "| steps-ours-3 | 3 | a card | 2 | 5 | 2026-01-01 | 100 |"
    (settings,) = [part for part in text.split("Settings of ") if part.startswith("a resumed run, BERT small:")]
    assert "\ndeterministic: true\n" in settings
    (steps,) = [part for part in text.split("\n## ") if part.startswith("Equal steps")]
    assert "that loss is noisy at these steps and its verdict weak" in steps
    assert {path.name for path in (tmp_path / "docs").glob("*.png")} == {
        f"learning-{part}.png" for part in ("steps", "resume", "time", "recipe")
    }


def test_a_curve_that_is_too_high_fails_loudly(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    high = {"mlm": [10.0 - step / 60 for step in range(100)]}
    folder = make_curves(tmp_path / "out", **{f"steps_ours_{seed}": high for seed in SEEDS})
    assert render(folder, tmp_path / "docs") == 1
    text = (tmp_path / "docs" / "LEARNING.md").read_text()
    assert "**FAILED:** masked-LM loss: our mean over 3 seeds is above transformers' range: 8.5083" in text
    assert "**Holds:** next-sentence loss" in text
    assert "FAILED: Equal steps, BERT small: masked-LM loss" in capsys.readouterr().out


def test_a_loss_that_is_not_finite_fails(tmp_path: Path) -> None:
    folder = make_curves(tmp_path / "out", steps_ours_3={"nsp": [0.7] * 99 + [None]})
    report = make_report(read_curves(folder))
    assert [line.partition(" loss")[0] for line in report.failed] == ["Equal steps, BERT small: next-sentence"]


@pytest.mark.parametrize("name", ["steps-ours-3", "steps-transformers-2", "time-large-transformers"])
def test_a_missing_run_is_not_judged(tmp_path: Path, name: str) -> None:
    folder = make_curves(tmp_path / "out")
    (folder / f"{name}.json").unlink()
    assert render(folder, tmp_path / "docs") == 1
    text = (tmp_path / "docs" / "LEARNING.md").read_text()
    assert f"{name} did not run." in text
    assert "**NOT JUDGED:**" in text


@pytest.mark.parametrize(
    ("pattern", "title"),
    [
        ("time-large-*", "Equal time, BERT large"),
        ("time-base-*", "Equal time, BERT base"),
        ("steps-*", "Equal steps"),
        ("[rw]*-ours-1", "A resumed run"),
    ],
)
def test_what_was_not_run_at_all_is_named_and_missing(
    tmp_path: Path, pattern: str, title: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_curves(tmp_path / "out")
    for path in folder.glob(f"{pattern}.json"):
        path.unlink()
    assert render(folder, tmp_path / "docs") == 1
    assert f"FAILED: {title}: not run" in capsys.readouterr().out
    top, _, _ = (tmp_path / "docs" / "LEARNING.md").read_text().partition("\n## ")
    assert f"Not run: {title}." in top


def test_runs_with_other_settings_or_cards_are_not_compared(tmp_path: Path) -> None:
    settings = copy.deepcopy(json.loads((make_curves(tmp_path / "a") / "steps-ours-1.json").read_text())["settings"])
    settings["optimizer"]["learning_rate"] = 2e-3
    folder = make_curves(tmp_path / "b", steps_ours_2={"settings": settings}, time_base_ours={"card": "another"})
    report = make_report(read_curves(folder))
    assert any("steps-ours-1 and steps-ours-2 differ in the settings" in line for line in report.incomplete)
    assert any("differ in the card: another and a card" in line for line in report.incomplete)


def test_equal_time_needs_the_same_held_out_rows_and_ours_lower_everywhere(tmp_path: Path) -> None:
    point = {"step": 1, "time_s": 9.0, "mlm_loss": 8.1, "pairs": 64, "masked": 900}
    other = [{**point, "masked": 901}]
    folder = make_curves(
        tmp_path / "out", time_base_ours={"evaluations": [point]}, time_large_ours={"evaluations": other}
    )
    report = make_report(read_curves(folder))
    assert report.failed == ["Equal time, BERT base: our loss is lower at 0 of 2 times."]
    assert report.incomplete == [
        "Equal time, BERT large: the evaluations used different held-out rows: (pairs, masked) [(64, 900), (64, 901)]."
    ]


def test_a_resumed_run_has_the_bits_of_the_whole_one_and_was_stopped(tmp_path: Path) -> None:
    jump = {"mlm": [10.0 - step / 50 + 0.01 + (1e-12 if step >= 98 else 0.0) for step in range(100)]}
    report = make_report(read_curves(make_curves(tmp_path / "a", resume_ours_1=jump)))
    (line,) = report.failed
    assert "masked-LM loss: equal to the last bit in 98 of 100 steps" in line
    broken = {"mlm": [9.0] * 99 + [None]}
    report = make_report(read_curves(make_curves(tmp_path / "c", resume_ours_1=broken, whole_ours_1=broken)))
    (line,) = report.failed
    assert "masked-LM loss: equal to the last bit in 99 of 100 steps" in line, "a loss that is not finite is no bit"
    report = make_report(read_curves(make_curves(tmp_path / "b", resume_ours_1={"stops": [100]})))
    assert report.incomplete == ["A resumed run, BERT small: resume-ours-1 was not stopped midway (stops: [100])."]


def test_a_folder_without_curves_and_a_file_that_is_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="holds no curve"):
        render(tmp_path, tmp_path)
    (tmp_path / "x.json").write_text("[]")
    with pytest.raises(ValueError, match=r"x\.json: is no curve"):
        render(tmp_path, tmp_path)


# ---- runs


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_data_set(folder, rows=64, max_seq_length=64, vocabulary_size=256)
    return folder


def run(data: Path, folder: Path, only: str, *more: str) -> int:
    small = ["--device", "cpu", "--size", "tiny", "--sizes", "tiny", "--tokens", "512", "--precision", "fp32"]
    launch = ["--launcher", "processes", "--dropout", "0", "--steps", str(STEPS), "--jobs", "2"]
    return learning.main([str(data), "--out", str(folder), "--only", only, *small, *launch, *more])


def test_both_sides_start_alike_and_a_resumed_run_has_the_same_curve(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(data, tmp_path, "steps-transformers-1,steps-ours-1,whole-ours-1,resume-ours-1") == 0
    curves = read_curves(tmp_path)
    ours, theirs = curves["steps-ours-1"], curves["steps-transformers-1"]
    assert len(ours["mlm"]) == len(theirs["mlm"]) == STEPS
    for loss in ("mlm", "nsp"):
        assert ours[loss][:5] == pytest.approx(theirs[loss][:5], abs=1e-4)
    assert 0 < curves["resume-ours-1"]["stops"][0] < STEPS
    assert curves["resume-ours-1"]["mlm"] == curves["whole-ours-1"]["mlm"] == ours["mlm"]
    assert list(tmp_path.glob("*.log")) == []
    capsys.readouterr()
    assert run(data, tmp_path, "steps-ours-1") == 0
    assert "steps-ours-1: already in" in capsys.readouterr().out
    with pytest.raises(SystemExit, match=r"steps-ours-1\.json has settings="):
        run(data, tmp_path, "steps-ours-1", "--steps", "7")


def test_equal_time_evaluates_the_same_rows(data: Path, tmp_path: Path) -> None:
    few = ("--minutes", "0.05", "--every-s", "1", "--every-steps", "1", "--pairs", "16")
    status = run(data, tmp_path, "time", *few)
    ours, theirs = (read_curves(tmp_path)[f"time-tiny-{who}"]["evaluations"] for who in ("ours", "transformers"))
    assert {(each["pairs"], each["masked"]) for each in (*ours, *theirs)} == {(theirs[0]["pairs"], theirs[0]["masked"])}
    assert theirs[0]["pairs"] == 128
    report = make_report(read_curves(tmp_path))
    assert not [line for line in report.incomplete if "BERT tiny" in line], "the verdict is given"
    lower = [
        max((own for own in ours if own["time_s"] <= each["time_s"]), key=lambda own: own["time_s"])["mlm_loss"]
        < each["mlm_loss"]
        for each in theirs
        if any(own["time_s"] <= each["time_s"] for own in ours)
    ]
    assert status == (0 if all(lower) and len(lower) == len(theirs) else 1)
    assert [each["time_s"] for each in ours] == sorted(each["time_s"] for each in ours)


def test_recipes_run_for_their_time_and_are_ranked(data: Path, tmp_path: Path) -> None:
    few = ("--recipe-size", "tiny", "--recipe-minutes", "0.05", "--recipe-tokens", "equal")
    assert run(data, tmp_path, "recipe-reference,recipe-mosaic", *few) == 0
    curves = read_curves(tmp_path)
    assert all(curve["settings"]["max_hours"] == 3 / 3600 for curve in curves.values())
    assert [curves[f"recipe-{name}"]["settings"]["masking"]["source"] for name in ("mosaic",)] == ["drawn"]
    losses = {name: curve["evaluations"][-1]["mlm_loss"] for name, curve in curves.items()}
    assert rank(compare_recipes(curves)) == [name.removeprefix("recipe-") for name in sorted(losses, key=losses.get)]


def rank(sections: list[Section]) -> list[str]:
    (section,) = sections
    return [line.split(" | ")[0].removeprefix("| ") for line in section.lines[2:] if line.startswith("| ")]


def test_recipes_of_unequal_minutes_are_not_ranked(tmp_path: Path) -> None:
    """The made curves: each recipe ends lower than the one before it, at 500 s of 600."""
    folder = make_curves(tmp_path / "out")
    assert rank(compare_recipes(read_curves(folder))) == list(reversed(RECIPES))
    make_curves(folder, recipe_muon={"seconds": 60.0})
    (section,) = compare_recipes(read_curves(folder))
    ((holds, text),) = section.verdicts
    assert holds is None
    assert "differ in the minutes: " in text


def test_a_run_that_fails_leaves_its_log_and_the_others(data: Path, tmp_path: Path) -> None:
    assert run(data, tmp_path, "steps-ours-2,steps-ours-3", "--tokens", "8") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["steps-ours-2.log", "steps-ours-3.log"]
