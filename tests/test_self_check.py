"""A compiled model that gives other gradients than the model itself ends the run before its first step."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from packed import random_batch
from test_initial_weights import VOCABULARY, make_bert_engine
from torch import Tensor
from toy_training import gather_state
from worker_group import WorkerGroup

from pipeline.settings import ConfigError
from trainer.model import heads
from trainer.self_check import _Pass as Pass
from trainer.self_check import check_compiled_model, compare

Groups = Callable[[int], WorkerGroup]


def check(rank: int, stage: int, precision: str, planted: bool, only_rank: int | None = None) -> tuple[str, bool]:
    """(what the check says, whether the engine's state is as it was)."""
    torch._dynamo.reset()
    engine = make_bert_engine(stage=stage, precision=precision)
    engine.module.compile(backend="aot_eager", dynamic=False)
    before = gather_state(engine)
    whole = heads.linear_cross_entropy_sum

    def without_gradient(*tensors: Tensor, **others: Any) -> Any:
        lost = torch.compiler.is_compiling() and only_rank in (None, rank)
        return whole(*(tensor.detach() if lost else tensor for tensor in tensors), **others)

    if planted:
        heads.linear_cross_entropy_sum = without_gradient
    try:
        batch = random_batch([9, 30, 12, 40], vocabulary_size=VOCABULARY, seed=rank)
        check_compiled_model(engine, batch, precision=precision, seed=5)  # type: ignore[arg-type]
        said = ""
    except ConfigError as error:
        said = str(error)
    finally:
        heads.linear_cross_entropy_sum = whole
    assert all(parameter.grad is None for parameter in engine.module.parameters())
    after = gather_state(engine)
    same = all(torch.equal(before[kind][name], after[kind][name]) for kind in before for name in before[kind])
    engine.close()
    return said, same


@pytest.mark.parametrize(("stage", "precision"), [(0, "fp32"), (1, "fp32"), (1, "bf16"), (2, "bf16")])
def test_a_compiled_model_that_agrees_passes(worker_group: Groups, stage: int, precision: str) -> None:
    assert worker_group(1).run(check, stage, precision, False) == [("", True)]


def test_a_lost_gradient_is_named_with_the_remedy(worker_group: Groups) -> None:
    ((said, same),) = worker_group(1).run(check, 1, "bf16", True)
    assert same
    assert "gradient norm of mlm_head" in said
    assert " 0 compiled" in said
    assert f"torch {torch.__version__}" in said
    assert "compile=false" in said
    assert "loss" not in said.split("first micro-batch: ")[1].split(". It")[0]  # the losses agree


def test_what_one_worker_finds_all_say(worker_group: Groups) -> None:
    answers = worker_group(2).run(check, 1, "fp32", True, 1)
    assert answers[0] == answers[1]
    assert "mlm_head" in answers[0][0]


def test_differences_are_relative_to_the_greater_and_small_norms_to_the_whole() -> None:
    eager = Pass({"masked-LM": 10.0}, {"large": 100.0, "small": 1e-4, "middle": 1.0})
    assert compare(eager, eager, tolerance=0.01) == []
    rounded = Pass({"masked-LM": 10.05}, {"large": 100.5, "small": 5e-4, "middle": 1.005})
    assert compare(rounded, eager, tolerance=0.01) == []
    wrong = Pass({"masked-LM": 11.0}, {"large": 100.0, "small": 1e-4, "middle": 0.0})
    assert compare(wrong, eager, tolerance=0.01) == [
        "gradient norm of middle 0 compiled, 1 eager",
        "masked-LM loss 11 compiled, 10 eager",
    ]


def test_what_is_finite_in_one_alone_is_a_difference() -> None:
    eager, broken = Pass({"masked-LM": 1.0}, {"a": 1.0}), Pass({"masked-LM": math.nan}, {"a": math.inf})
    assert len(compare(broken, eager, tolerance=0.01)) == 2
    assert compare(broken, broken, tolerance=0.01) == []  # diverged: that is for the guard
