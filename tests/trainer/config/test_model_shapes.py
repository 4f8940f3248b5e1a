"""Shapes beside the published sizes: what they resolve to, what they are called, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from model_shapes import SHAPES
from pipeline.settings import ConfigError, load_settings
from small_runs import check_output, make_config
from trainer.config import ModelConfig, TrainerConfig
from trainer.engine import memory
from trainer.engine.memory import count_parameters, judge_heads
from trainer.launch.run_directory import write_config
from trainer.model import BertForPretraining
from trainer.telemetry.flops import count_flops
from trainer.train.worker import warn_of_cpu


@pytest.mark.parametrize(("settings", "shape"), SHAPES.values(), ids=SHAPES.keys())
def test_a_shape_is_its_size_with_what_replaces_it(settings: dict[str, int], shape: tuple[int, ...]) -> None:
    config = ModelConfig(**settings)
    assert config.shape == shape
    with torch.device("meta"):
        model = BertForPretraining(config, vocabulary_size=30_528)
    assert count_parameters(config, vocabulary_size=30_528) == model.num_parameters()
    layers, _, width, inner = shape
    tokens = count_flops(config, vocabulary_size=0, num_tokens=10, num_squared=0, num_masked=0)
    assert tokens == 10 * 6 * layers * (4 * width**2 + 2 * width * inner)  # 6 for each weight of a matrix


def test_a_shape_is_named_by_its_size_or_its_numbers() -> None:
    assert ModelConfig(layers=24, heads=16, hidden_size=1024).title == "BERT large"
    assert ModelConfig(layers=6).title == "BERT of 6 layers, 12 heads, width 768"
    assert ModelConfig(size="tiny", feed_forward_size=512).title == "BERT tiny"
    tiny = SHAPES["TinyBERT-4"][0]
    assert ModelConfig(**tiny).title == "BERT of 4 layers, 12 heads, width 312, feed-forward 1200"
    assert not warn_of_cpu(ModelConfig(size="medium"))
    assert warn_of_cpu(ModelConfig(layers=6))[0].startswith("WARNING: BERT of 6 layers, 12 heads, width 768 on CPUs")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            {"heads": 10},
            r"model: model\.heads=10 does not divide model\.hidden_size=768; set model\.heads=8 or 12, or "
            r"model\.hidden_size to a multiple of 10",
        ),
        ({"size": "tiny", "hidden_size": 127}, r"model\.heads=2 does not divide model\.hidden_size=127; set .*heads=1"),
        ({"layers": 0}, r"model\.layers=0: Input should be greater than or equal to 1"),
        ({"initialize_layers": "every_other"}, r"layers=every_other has no effect.*set model\.initialize_from"),
        ({"initialize_layers": []}, r"model\.initialize_layers=\[\] takes no layer"),
        ({"new_tokens": "pieces"}, r"model\.new_tokens=pieces has no effect.*set model\.initialize_from"),
        (
            {"size": "large", "layers": 2, "heads": 2, "hidden_size": 64},
            r"model\.size=large has no effect: model\.layers, model\.heads and model\.hidden_size replace all of it",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(model: dict[str, Any], message: str, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(f"data: d\noutput: o\nbatch: {{pairs: 8}}\nmax_steps: 9\nmodel: {model}\n")
    with pytest.raises(ConfigError, match=message):
        load_settings(TrainerConfig, file=tmp_path / "c.yaml")


def test_heads_that_come_from_a_folder_are_not_judged_yet() -> None:
    ModelConfig(hidden_size=312, heads=10, initialize_from="models/x")


@pytest.mark.parametrize("key", ["layers", "heads", "hidden_size", "feed_forward_size"])
def test_a_run_keeps_its_shape(key: str, tmp_path: Path) -> None:
    write_config(make_config(tmp_path / "d", tmp_path / "run"))
    other = make_config(
        tmp_path / "d", tmp_path / "run", model={"size": "tiny", key: 4 if key != "hidden_size" else 256}
    )
    with pytest.raises(ConfigError, match=rf"model\.{key}: None -> (4|256)"):
        check_output(other)


def test_heads_that_no_kernel_takes_are_refused_on_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(memory.torch.cuda, "device_count", lambda: 0)

    def judge(**changes: Any) -> list[str]:
        return judge_heads(make_config(Path("d"), Path("o"), **{"device": "cuda", "precision": "bf16", **changes}))

    for fine in (
        {},
        {"model": {"heads": 24}},
        {"model": {"heads": 2}, "device": "cpu"},
        {"model": {"heads": 2}, "precision": "fp32"},
    ):
        assert judge(**fine) == []
    assert judge(model=SHAPES["TinyBERT-4"][0]) == [
        "attention: model.heads=12 and width 312 give heads of width 26, which flash attention takes, not the faster "
        "kernel"
    ]
    assert judge(model={"heads": 3})[0].endswith("; model.heads=6 or 12 or 24 would be faster")  # the paper's Table 6
    with pytest.raises(
        ConfigError,
        match=r"model\.heads=2 and width 768 give heads of width 384; attention on a GPU takes at most 256 in bf16: "
        r"set model\.heads to 6 or 12 or 24, or device=cpu",
    ):
        judge(model={"heads": 2})
