"""What learns how fast: layers below more slowly, the head at a rate of its own, frozen layers not at all."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from task_models import make_config, write_model, write_opinions
from trainer.finetune import finetune
from trainer.finetune.config import FinetuneOptimizer
from trainer.finetune.heads import TaskModel
from trainer.finetune.rates import build_optimizer, freeze, set_rates
from trainer.hf import read_model

pytest.importorskip("sklearn", reason="metrics are by scikit-learn")
pytest.importorskip("seqeval", reason="metrics are by seqeval")


def make_model(folder: Path) -> TaskModel:
    return TaskModel(read_model(folder)[0], kind="classification", num_outputs=2, seed=1)


def peaks_of(model: TaskModel, optimizer: torch.optim.AdamW) -> dict[str, tuple[float, float]]:
    """Peak rate and decay of every parameter."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {
        names[id(parameter)]: (group["peak"], group["weight_decay"])
        for group in optimizer.param_groups
        for parameter in group["params"]
    }


def test_rates_fall_from_the_head_to_the_embeddings(model: Path) -> None:
    made = make_model(model)
    config = FinetuneOptimizer(learning_rate=1e-4, layer_decay=0.5, head_learning_rate=1e-2)
    optimizer = build_optimizer(made, config=config)
    found = peaks_of(made, optimizer)
    assert found.keys() == {name for name, _ in made.named_parameters()}
    assert found["head.weight"] == (1e-2, 0.01)
    assert found["head.bias"] == (1e-2, 0.0)
    assert found["bert.pooler.dense.weight"] == (1e-4, 0.01)
    assert found["bert.encoder.layers.1.attention.qkv.weight"] == (5e-5, 0.01)
    assert found["bert.encoder.layers.0.attention_norm.weight"] == (2.5e-5, 0.0)
    assert found["bert.embeddings.word.weight"] == (1.25e-5, 0.01)

    schedule = make_config("sst2", model=model, data=model, output=model).pretraining(
        num_steps=100, model=made.bert.config
    )
    shares = [set_rates(optimizer, step=step, config=schedule) for step in (1, 10, 55, 100)]
    assert shares == pytest.approx([0.1, 1.0, 1 - 44 / 90, 1 / 90])
    for group in optimizer.param_groups:
        assert group["lr"] == pytest.approx(group["peak"] / 90)


def test_a_warmup_longer_than_the_run_is_told_in_one_line(model: Path) -> None:
    config = make_config("sst2", model=model, data=model, output=model, schedule={"warmup_steps": 200})
    with pytest.raises(ValueError, match=r"warmup_steps=200 .* max_steps=100") as caught:
        config.pretraining(num_steps=100, model=make_model(model).bert.config)
    assert "\n" not in str(caught.value)
    assert "pydantic" not in str(caught.value)


def test_a_warmup_in_steps_replaces_the_fraction_that_nobody_has_set(model: Path) -> None:
    made = make_model(model)
    config = make_config("sst2", model=model, data=model, output=model, schedule={"warmup_steps": 5})
    optimizer = build_optimizer(made, config=config.optimizer)
    schedule = config.pretraining(num_steps=100, model=made.bert.config)
    assert [set_rates(optimizer, step=step, config=schedule) for step in (1, 5, 6)] == pytest.approx([0.2, 1.0, 1.0])
    both = {"warmup_steps": 5, "warmup_fraction": 0.2}
    with pytest.raises(ValueError, match=r"warmup_fraction=0.2 has no effect: schedule.warmup_steps=5 replaces it"):
        make_config("sst2", model=model, data=model, output=model, schedule=both).pretraining(
            num_steps=100, model=made.bert.config
        )


def test_a_setting_of_another_update_rule_is_refused(model: Path) -> None:
    config = make_config("sst2", model=model, data=model, output=model, optimizer={"momentum": 0.5})
    with pytest.raises(ValueError, match=r"optimizer.momentum=0.5 has no effect: optimizer.name=adamw does not use it"):
        config.pretraining(num_steps=100, model=make_model(model).bert.config)


def test_frozen_layers_keep_their_weights(model: Path, tmp_path: Path) -> None:
    write_opinions(tmp_path / "data")
    config = make_config(
        "sst2", model=model, data=tmp_path / "data", output=tmp_path / "out", epochs=1.0,
        optimizer={"learning_rate": 5e-4, "frozen_layers": 1},
    )  # fmt: skip
    finetune(config, say=lambda line: None)
    trained = load_file(tmp_path / "out" / "model" / "model.safetensors")
    for name, value in load_file(model / "model.safetensors").items():
        if not name.startswith("cls."):
            frozen = name.startswith(("bert.embeddings.", "bert.encoder.layer.0."))
            assert torch.equal(value, trained[name]) == frozen, name


def test_more_frozen_layers_than_there_are_is_refused(model: Path) -> None:
    made = make_model(model)
    freeze(made, config=FinetuneOptimizer(frozen_layers=2))
    assert sorted(name.partition(".")[0] for name, p in made.named_parameters() if p.requires_grad) == [
        "bert", "bert", "head", "head",
    ]  # fmt: skip
    with pytest.raises(ValueError, match=r"optimizer.frozen_layers=3: the model has 2 layers; lower it"):
        freeze(made, config=FinetuneOptimizer(frozen_layers=3))


def test_a_pooler_that_nothing_trained_is_drawn_by_seed(tmp_path: Path) -> None:
    folder = write_model(tmp_path, pooler=False)
    weights = []
    for seed in (1, 1, 2):
        bert, trained = read_model(folder)
        assert not trained
        made = TaskModel(bert, kind="pair", num_outputs=2, seed=seed, pooler_trained=trained)
        weights.append(made.bert.pooler.dense.weight)
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_updates_without_bias_correction_are_larger_at_first(model: Path) -> None:
    """google-research/bert fine-tunes without: by (1 - 0.9) / sqrt(1 - 0.999) = 3.16 times in the first update."""
    moved = []
    for correction in (True, False):
        made = make_model(model)
        before = made.head.bias.detach().clone()
        optimizer = build_optimizer(made, config=FinetuneOptimizer(bias_correction=correction, epsilon=1e-12))
        for group in optimizer.param_groups:
            group["lr"] = 1e-3
        for parameter in made.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        moved.append(float((made.head.bias.detach() - before).abs().max()))
    assert moved[1] / moved[0] == pytest.approx(0.1 / 0.001**0.5, rel=1e-3)


def test_a_missing_library_is_told_before_the_training(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "seqeval", None)
    config = make_config("sst2", model=model, data=tmp_path, output=tmp_path / "out")
    with pytest.raises(ValueError, match=r"seqeval is not installed, .*; install it: pip install 'cloze\[finetune\]'"):
        finetune(config, say=lambda line: None)
    assert not (tmp_path / "out").exists()


def test_other_update_rules_are_refused() -> None:
    with pytest.raises(ValueError, match=r"optimizer.name=lamb: fine-tuning has adamw alone; leave the name out"):
        FinetuneOptimizer(name="lamb")
