"""A compiled model that gives other gradients than the model itself ends the run before its first step."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from test_initial_weights import VOCABULARY, make_bert_engine
from torch import nn

from lost_gradient import lose_gradient
from packed import random_batch
from pipeline.settings import ConfigError
from small_runs import make_config, run, run_rank, write_small_set
from toy_training import gather_state
from trainer.checkpoint.load import find_checkpoints
from trainer.config.schema import TrainerConfig
from trainer.engine import self_check
from trainer.engine.self_check import PassResult, check_compiled_model, compare
from trainer.launch.run_directory import write_config
from trainer.model import heads
from trainer.telemetry.evaluation import Evaluation
from trainer.telemetry.metrics import EVALUATIONS_NAME, METRICS_NAME, read_json_lines
from trainer.train import loop
from worker_group import WorkerGroup

Groups = Callable[[int], WorkerGroup]
ONE_LAYER = {"size": "tiny", "layers": 1}
"""To trace a layer for the compiler takes seconds."""
FEW_SHAPES: dict[str, Any] = {"batch": {"pairs": 8, "lanes": 1}, "evaluation": {"max_pairs": 1}}
"""Each shape of a micro-batch is compiled; beyond eight, torch runs the eager model."""


def check(rank: int, stage: int, precision: str, planted: bool, only_rank: int | None = None) -> tuple[str, bool]:
    """(what the check says, whether the engine's state is as it was)."""
    torch._dynamo.reset()
    engine = make_bert_engine(stage=stage, precision=precision, layers=1)
    engine.module.compile(backend="aot_eager", dynamic=False)
    before = gather_state(engine)
    whole = heads.linear_cross_entropy_sum
    if planted and only_rank in (None, rank):
        heads.linear_cross_entropy_sum = lose_gradient(whole)
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


@pytest.mark.parametrize(("stage", "precision"), [(0, "fp32"), (2, "bf16")])
def test_a_compiled_model_that_agrees_passes(worker_group: Groups, stage: int, precision: str) -> None:
    """Stage 1 passes before the steps of the runs below."""
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
    assert answers[0][1]
    assert "mlm_head" in answers[0][0]


def test_differences_are_relative_with_a_slack_for_sums_that_cancel() -> None:
    eager = PassResult({"masked-LM": 10.0}, {"large": 100.0, "rounding": 1e-4, "small": 1.0, "middle": 8.0})
    assert compare(eager, eager, precision="bf16") == []
    rounded = PassResult({"masked-LM": 10.4}, {"large": 104.0, "rounding": 5e-4, "small": 1.08, "middle": 8.3})
    assert compare(rounded, eager, precision="bf16") == []
    wrong = PassResult({"masked-LM": 11.0}, {"large": 100.0, "rounding": 1e-4, "small": 0.75, "middle": 0.0})
    assert compare(wrong, eager, precision="bf16") == [
        "gradient norm of middle 0 compiled, 8 eager",
        "gradient norm of small 0.75 compiled, 1 eager",
        "masked-LM loss 11 compiled, 10 eager",
    ]


def test_a_quarter_of_the_attentions_gradients_is_missed(worker_group: Groups) -> None:
    """Of a real model: all but those of the layers' own rounding (2 in 1,000 of the whole) are named."""
    ((eager, scaled),) = worker_group(1).run(scale_attention)
    found = compare(scaled, eager, precision="bf16")
    whole = sum(norm**2 for norm in eager.norms.values()) ** 0.5
    great = [name for name, norm in eager.norms.items() if "attention" in name and norm > 0.004 * whole]
    assert len(great) >= 8
    assert all(any(f"norm of {name} " in line for line in found) for name in great)


def scale_attention(rank: int) -> tuple[PassResult, PassResult]:
    """Losses and norms of an eager pass, and the same with three quarters of the attention's gradients."""
    engine = make_bert_engine(stage=1)
    batch = random_batch([30, 40, 50], vocabulary_size=VOCABULARY)
    output = engine(batch)
    loss = output.mlm_loss_sum / batch.num_masked + output.nsp_loss_sum / batch.num_pairs
    names, parameters = zip(*engine.module.named_parameters(), strict=True)
    norms = {n: float(g.float().norm()) for n, g in zip(names, torch.autograd.grad(loss, parameters), strict=True)}
    engine.close()
    less = {name: norm * (0.75 if "attention" in name else 1.0) for name, norm in norms.items()}
    return PassResult({"both": float(loss.detach())}, norms), PassResult({"both": float(loss.detach())}, less)


def test_what_is_finite_in_one_alone_is_a_difference_and_hides_no_other() -> None:
    eager, broken = PassResult({"masked-LM": 1.0}, {"a": 1.0}), PassResult({"masked-LM": math.nan}, {"a": math.inf})
    assert len(compare(broken, eager, precision="fp32")) == 2
    both = PassResult({"masked-LM": 1.0}, {"a": math.inf, "b": 1.0, "c": 2.0})
    lost = PassResult({"masked-LM": 1.0}, {"a": math.inf, "b": 0.0, "c": 2.0})
    assert compare(lost, both, precision="bf16") == ["gradient norm of b 0 compiled, 1 eager"]


def run_short_of_memory(rank: int, finite: bool) -> list[str]:
    """What is warned of if the eager pass runs out of memory, or is not finite."""
    engine, said = make_bert_engine(stage=1), []
    batch = random_batch([9, 12], vocabulary_size=VOCABULARY)
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("trainer.engine.self_check").addHandler(handler)

    def fail(_: Any) -> Any:
        if finite:
            raise torch.OutOfMemoryError
        lost = torch.tensor(math.nan) * next(engine.module.parameters()).sum()
        return SimpleNamespace(mlm_loss_sum=lost, nsp_loss_sum=lost)

    engine.module.forward = fail
    check_compiled_model(engine, batch, precision="bf16", seed=3)
    logging.getLogger("trainer.engine.self_check").removeHandler(handler)
    engine.close()
    return said


@pytest.mark.parametrize(("finite", "words"), [(True, "more memory"), (False, "not finite")])
def test_an_eager_pass_that_tells_nothing_is_warned_of(worker_group: Groups, finite: bool, words: str) -> None:
    ((said,),) = worker_group(1).run(run_short_of_memory, finite)
    assert said.startswith("no self-check: ")
    assert words in said


# --- a run


def run_compiled(rank: int, config: TrainerConfig, planted: bool) -> tuple[str, int]:
    """(why the run was refused, steps that were computed), with a compiler that takes no time."""
    torch._dynamo.reset()
    compile_module, whole = nn.Module.compile, heads.linear_cross_entropy_sum

    def compile_quickly(module: nn.Module, **_: Any) -> None:
        compile_module(module, backend="aot_eager", dynamic=False)

    nn.Module.compile = compile_quickly  # type: ignore[method-assign, assignment]
    heads.linear_cross_entropy_sum = lose_gradient(whole) if planted else whole
    try:
        return "", len(run_rank(rank, config, None).executed)
    except ConfigError as error:
        return str(error), len(read_json_lines(Path(config.output) / METRICS_NAME))
    finally:
        nn.Module.compile, heads.linear_cross_entropy_sum = compile_module, whole  # type: ignore[method-assign]


def test_a_run_stops_before_its_first_step(worker_group: Groups, tmp_path: Path) -> None:
    data = write_small_set(tmp_path / "data")
    outcomes = {}
    for name, planted, checked in (("sound", False, True), ("faulty", True, True), ("unchecked", True, False)):
        changes: dict[str, Any] = {"model": ONE_LAYER, "compile": True, "self_check": checked, **FEW_SHAPES}
        config = make_config(data, tmp_path / name, max_steps=2, workers=1, **changes)
        write_config(config)
        ((refused, steps),) = worker_group(1).run(run_compiled, config, planted)
        outcomes[name] = ("compile=false" in refused, steps)
    assert outcomes == {"sound": (False, 2), "faulty": (True, 0), "unchecked": (False, 2)}
    assert find_checkpoints(tmp_path / "faulty").folders == ()
    sound, unchecked = (rows_of_losses(tmp_path / name) for name in ("sound", "unchecked"))
    assert sound[0] == unchecked[0]
    assert sound[1] != unchecked[1]  # it trained, and not as it should


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_steps_of_the_compiled_model_are_those_of_the_eager_one(
    worker_group: Groups, precision: str, tmp_path: Path
) -> None:
    """Gradients, clipping, AdamW and dropout: three steps on one curve (in bf16 within its rounding)."""
    data = write_small_set(tmp_path / "data")
    for compiled in (False, True):
        changes: dict[str, Any] = {"compile": compiled, "precision": precision, **FEW_SHAPES}
        config = make_config(data, tmp_path / str(compiled), max_steps=3, workers=1, **changes)
        write_config(config)
        worker_group(1).run(run_compiled, config, False)
    eager, found = (read_json_lines(tmp_path / str(compiled) / METRICS_NAME) for compiled in (False, True))
    for here, there in zip(found, eager, strict=True):
        assert here["mlm_loss"] == pytest.approx(there["mlm_loss"], rel=1e-5 if precision == "fp32" else 2e-3)
        assert here["grad_norm"] == pytest.approx(there["grad_norm"], rel=1e-4 if precision == "fp32" else 0.02)


def test_every_phase_is_checked_once(worker_group: Groups, tmp_path: Path) -> None:
    data = write_small_set(tmp_path / "data")
    phases = ({"max_steps": 2}, {"max_steps": 2, "batch": {"pairs": 12}})
    config = make_config(data, tmp_path / "run", max_steps=4, workers=1, compile=True, phases=phases)
    write_config(config)
    assert worker_group(1).run(count_checks, config) == [[1, 3]]


def count_checks(rank: int, config: TrainerConfig) -> list[int]:
    """Steps before which the compiled model would be checked; nothing is compiled."""
    check_compiled, compile_module, steps = loop.check_compiled, nn.Module.compile, []
    loop.check_compiled = lambda context, step: steps.append(step)
    nn.Module.compile = lambda module, **_: None  # type: ignore[method-assign, assignment, misc]
    try:
        run_rank(rank, config, None)
    finally:
        loop.check_compiled, nn.Module.compile = check_compiled, compile_module  # type: ignore[method-assign]
    return steps


def rows_of_losses(output: Path) -> list[float]:
    return [record["mlm_loss"] for record in read_json_lines(output / METRICS_NAME)]


def evaluate_once(*, step: int, mlm_loss: float) -> list[str]:
    """What is said of an evaluation of a run of 200 steps whose words' frequencies give 6 nats."""
    evaluation = Evaluation(step, 10, 100, mlm_loss, 0.1, None, None, unigram_loss=6.0)
    said: list[str] = []
    log = SimpleNamespace(say=said.append, write_evaluation=lambda found: said.append(str(found.step)))
    context = SimpleNamespace(config=SimpleNamespace(max_steps=200), engine=None, log=log)
    loop.evaluate(context, SimpleNamespace(evaluate=lambda *_, **__: evaluation), step=step)  # type: ignore[arg-type]
    assert said[0] == str(step)
    return said[1:]


def test_a_run_that_has_not_learnt_after_a_tenth_says_so() -> None:
    assert evaluate_once(step=19, mlm_loss=9.0) == []
    assert evaluate_once(step=20, mlm_loss=5.9) == []
    for step in (20, 200):
        (line,) = evaluate_once(step=step, mlm_loss=6.1)
        assert line.startswith("WARNING: ")
        assert "(6.10 nats) is not below" in line
    assert len(evaluate_once(step=20, mlm_loss=math.nan)) == 1


def test_a_run_is_evaluated_after_a_tenth(worker_group: Groups, tmp_path: Path) -> None:
    data = write_small_set(tmp_path / "data")
    for max_steps, steps in ((99, [99]), (101, [11, 101])):
        config = make_config(data, tmp_path / str(max_steps), max_steps=max_steps, workers=1, **FEW_SHAPES)
        run(worker_group(1), config)
        records = read_json_lines(tmp_path / str(max_steps) / EVALUATIONS_NAME)
        assert [record["step"] for record in records] == steps


def list_passes(rank: int) -> list[tuple[str, int]]:
    """(stance, seed) of each pass of the check with CUDA graphs."""
    engine = make_bert_engine(stage=1, precision="bf16")
    engine.cuda_graphs = True
    run, passes = self_check._run, []

    def record(*args: Any, seed: int, stance: str, **options: Any) -> PassResult:
        passes.append((stance, seed))
        return run(*args, seed=seed, stance=stance, **options)

    self_check._run = record
    try:
        batch = random_batch([9, 30], vocabulary_size=VOCABULARY)
        check_compiled_model(engine, batch, precision="bf16", seed=5)
    finally:
        self_check._run = run
        engine.close()
    return passes


def test_with_cuda_graphs_the_check_compares_a_replay(worker_group: Groups) -> None:
    """torch records the second pass. The third has another seed, and is the first that torch replays."""
    (passes,) = worker_group(1).run(list_passes)
    assert passes == [("force_eager", 5), ("default", 6), ("default", 6), ("default", 5)]
