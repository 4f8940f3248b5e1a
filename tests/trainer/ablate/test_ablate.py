"""A ladder from its file to its table; what it refuses; losses beside like losses only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.settings import ConfigError, load_settings
from task_models import write_opinions
from trainer.ablate import main
from trainer.ablate.command import plan_pretraining, plan_study
from trainer.ablate.config import AblationConfig
from trainer.ablate.report import Row, TaskScore, render

pytest.importorskip("sklearn", reason="metrics are by scikit-learn")

SAMPLE = Path(__file__).resolve().parents[3] / "trainer" / "configs" / "ablations" / "sample.yaml"


def write_ladder(path: Path, *, data: Path) -> Path:
    path.write_text(
        f"""
budget: {{steps: 2}}
tasks: [sst2]
base:
  data: {data}
  model: {{size: tiny}}
  batch: {{pairs: 8, lanes: 1}}
  precision: fp32
  device: cpu
  launcher: processes
  threads_per_worker: 1
  logging: {{tracker: none}}
finetune: {{batch_size: 16, epochs: 1, device: cpu, seeds: 1}}
ladder:
  reference: {{}}
  causal: {{pretrain: {{model: {{objective: left_to_right}}}}}}
  causal-bilstm: {{weights_of: causal, finetune: {{bilstm: true}}}}
"""
    )
    return path


def test_a_ladder_trains_every_rung_once_and_ends_with_a_table(
    tokenized: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_opinions(tmp_path / "tasks" / "SST-2", count=16)
    ladder = write_ladder(tmp_path / "ladder.yaml", data=tokenized)
    words = ["--config", str(ladder), "--tasks", str(tmp_path / "tasks" / "SST-2"), "--output", str(tmp_path / "out")]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])["ladder"]
    assert [(row["name"], row["objective"], row["steps"]) for row in found] == [
        ("reference", "masked_next_sentence", 2),
        ("causal", "left_to_right", 2),
        ("causal-bilstm", "left_to_right", 2),
    ]
    assert all(len(row["scores"][0]["values"]) == 1 for row in found)
    assert not (tmp_path / "out" / "causal-bilstm" / "pretrain").exists()
    report = (tmp_path / "out" / "report.md").read_text()
    assert report.index("masked-LM loss") < report.index("| reference") < report.index("next-token loss")
    weights = tmp_path / "out" / "causal" / "model" / "model.safetensors"
    before = weights.stat().st_mtime_ns
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["ladder"] == found
    assert weights.stat().st_mtime_ns == before


def test_rows_longer_than_those_of_the_data_set_are_refused_before_anything_is_trained(
    tokenized: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ladder = write_ladder(tmp_path / "ladder.yaml", data=tokenized)
    words = ["--config", str(ladder), "--tasks", str(tmp_path), "--output", str(tmp_path / "out")]
    assert main([*words, "finetune.max_length=4096"]) == 2
    said = f"finetune.max_length=4096: the rows of {tokenized} have at most 64 tokens"
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def make(**changes: Any) -> AblationConfig:
    tree = {"output": "out", "data": "tasks", "budget": {"steps": 3}, "base": {"data": "set"}, "ladder": {"a": {}}}
    return AblationConfig.model_validate({**tree, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"budget": {}}, "one of steps, tokens and minutes, found none"),
        ({"budget": {"steps": 3, "minutes": 2}}, "found steps and minutes"),
        ({"ladder": {}}, "has no rung"),
        ({"ladder": {"a/b": {}}}, "names a folder"),
        ({"ladder": {"a": {"weights_of": "b"}}}, "ladder.a.weights_of=b"),
        ({"ladder": {"a": {"pretrain": {"max_steps": 3}}}}, "ladder.a.pretrain.max_steps: is set by the ladder"),
        ({"only": ("c",)}, "only=c: is no rung; known: a"),
    ],
)
def test_ladders_that_make_no_sense_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**changes)


def test_a_faulty_rung_is_named_before_anything_is_trained(tmp_path: Path) -> None:
    config = make(ladder={"a": {"pretrain": {"model": {"sizes": "tiny"}}}})
    with pytest.raises(ConfigError, match=r"ladder\.a\.pretrain"):
        plan_pretraining(config, name="a")
    with pytest.raises(ConfigError, match=r"base\.data is missing"):
        plan_pretraining(make(base={}), name="a")


def test_budgets_become_steps_or_hours(tokenized: Path) -> None:
    base = {"data": str(tokenized), "batch": {"pairs": 8, "lanes": 1}}
    by_time = plan_pretraining(make(base=base, budget={"minutes": 3}), name="a")
    assert by_time.max_hours == pytest.approx(0.05)
    few, many = (plan_pretraining(make(base=base, budget={"tokens": n}), name="a").max_steps for n in (3_000, 30_000))
    assert many == pytest.approx(10 * few, abs=10)


def test_every_rung_of_the_sample_is_valid() -> None:
    config = load_settings(AblationConfig, file=SAMPLE, overrides=("data=tasks", "output=out"))
    for name, rung in config.ladder.items():
        if rung.weights_of is None:
            assert plan_pretraining(config, name=name).max_steps == 3000
        assert plan_study(config, name=name).seeds == 3
    assert plan_study(config, name="left-to-right-bilstm").bilstm


def test_losses_stand_beside_those_of_one_objective_and_data_set_only() -> None:
    score = TaskScore("rte", "accuracy", (0.5, 0.6), 0.52)
    facts: Any = {"weights_of": None, "steps": 9, "unigram": 7.0, "nsp_accuracy": None, "scores": (score,)}
    rows = [
        Row(name="one", objective="masked", data_hash="a" * 20, loss=6.1, **facts),
        Row(name="two", objective="left_to_right", data_hash="a" * 20, loss=5.1, **facts),
        Row(name="three", objective="masked", data_hash="b" * 20, loss=4.1, **facts),
    ]
    text = "\n".join(render(rows))
    tables = text.split("\n## ")[1:]
    assert [sum(name in table for name in ("| one |", "| two |", "| three |")) for table in tables] == [1, 1, 1]
    assert "55.0% (50.0% to 60.0%)" in text
