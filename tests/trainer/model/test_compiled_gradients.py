"""Compiled code gives the gradients of eager code and of float64: each operator, the whole model, an engine's step.

A compiler that loses a gradient shows nowhere else: shapes, speed, memory and finite losses stay as they were.
"""

from __future__ import annotations

import faulthandler
import importlib
import multiprocessing
import pkgutil
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo.backends.registry import lookup_backend
from torch.fx import GraphModule

import trainer.model
from packed import random_batch
from trainer.config import ModelConfig
from trainer.model import BertForPretraining
from trainer.model.batch import Batch
from trainer.model.cross_entropy import linear_cross_entropy_sum
from trainer.model.dropout import Dropout, draw_seeds

VOCABULARY = 103
LENGTHS = [5, 17, 2, 9]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 0.03}
"""Of a parameter's gradient, as a share of its norm; bf16 rounds between operators where compiled code does not."""


@pytest.fixture(scope="module")
def fresh_process() -> Iterator[Executor]:
    """A process that compiles and nothing else: a crash of the compiler there names its place, and ends no other test.
    (What ran here before leaves threads of Beam, gRPC and Dask behind.)"""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, initializer=faulthandler.enable) as process:
        yield process


def relative(found: Tensor, wanted: Tensor) -> float:
    return ((found.double() - wanted.double()).norm() / wanted.double().norm()).item()


def test_no_gradient_is_left_to_a_traced_function() -> None:
    """The compiler traces an autograd.Function, and lost gradients so; an operator's registered gradient it takes."""
    modules = [module.name for module in pkgutil.walk_packages(trainer.model.__path__, "trainer.model.")]
    modules = [name for name in modules if "kernels" not in name]  # they need triton, and hold no gradients
    assert len(modules) >= 12
    for name in modules:
        importlib.import_module(name)
    ours = [found for found in subclasses(torch.autograd.Function) if found.__module__.startswith("trainer")]
    assert ours == []


def subclasses(parent: type) -> list[type]:
    children = parent.__subclasses__()
    return children + [found for child in children for found in subclasses(child)]


# --- operators


def cross_entropy_gradients(compiled: bool) -> list[Tensor]:
    torch.manual_seed(0)
    leaves = [torch.randn(*shape, requires_grad=True) for shape in ((70, 16), (VOCABULARY, 16), (VOCABULARY,))]
    labels, weights = torch.randint(-1, VOCABULARY, (70,)), torch.rand(70)

    def loss(*tensors: Tensor) -> Tensor:
        return 3 * linear_cross_entropy_sum(*tensors, labels=labels, weights=weights)[0]

    run = torch.compile(loss, backend="aot_eager", fullgraph=True) if compiled else loss
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    losses = F.cross_entropy(F.linear(*exact), labels, reduction="none", ignore_index=-1)
    return [*torch.autograd.grad(run(*leaves), leaves), *torch.autograd.grad((3 * losses * weights).sum(), exact)]


@pytest.mark.parametrize("compiled", [False, True])
def test_the_losss_gradients_are_float64s(compiled: bool, fresh_process: Executor) -> None:
    gradients = fresh_process.submit(cross_entropy_gradients, compiled).result()
    for found, wanted in zip(gradients[:3], gradients[3:], strict=True):
        assert wanted.norm() > 0.1
        assert relative(found, wanted) < 1e-5


def dropout_gradients() -> list[Tensor]:
    torch.manual_seed(0)
    x, upstream = torch.randn(40, 24, requires_grad=True), torch.randn(40, 24)
    layer, seeds = Dropout(0.3), draw_seeds(1, device=x.device)[0]

    def run(x: Tensor) -> Tensor:
        return layer(x, seeds=seeds)

    outputs = run(x), torch.compile(run, backend="aot_eager", fullgraph=True)(x)
    gradients = [torch.autograd.grad(output, x, upstream)[0] for output in outputs]
    return [*(output.detach() for output in outputs), *gradients]


def test_dropout_compiled_drops_the_same_elements(fresh_process: Executor) -> None:
    eager, compiled, eager_gradient, compiled_gradient = fresh_process.submit(dropout_gradients).result()
    assert 0.6 < (eager != 0).double().mean() < 0.8
    assert torch.equal(eager, compiled)
    assert torch.equal(eager_gradient, compiled_gradient)


# --- the whole model


def gradients_of(
    model: BertForPretraining, run: Callable[[Batch], Any], batch: Batch
) -> tuple[list[Tensor], dict[str, Tensor]]:
    """(loss sums and counts, gradients) with dropout of one seed."""
    torch.manual_seed(7)
    output = run(batch)
    loss = output.mlm_loss_sum / batch.num_masked + output.nsp_loss_sum / batch.num_pairs
    names, parameters = zip(*model.named_parameters(), strict=True)
    gradients = torch.autograd.grad(loss, parameters)
    return list(output), dict(zip(names, gradients, strict=True))


def compile_and_compare(norm: str, dtype: torch.dtype, dropout: float, recompute: bool = False) -> None:
    """Nothing in the step needs a value on the host: no branch on one (fullgraph), none read into the graph.

    (Eager runs other attention code on a CPU.)
    """
    torch._dynamo.reset()  # what was compiled for another model is not this one's
    graphs: list[GraphModule] = []

    def backend(graph: GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        graphs.append(graph)
        return lookup_backend("aot_eager")(graph, inputs)

    config = ModelConfig(size="tiny", norm=norm, dropout=dropout, attention_dropout=dropout)
    model = BertForPretraining(config, vocabulary_size=VOCABULARY, seed=1)
    exact = BertForPretraining(config, vocabulary_size=VOCABULARY, seed=1).double()
    with torch.no_grad():
        for own, other in zip(model.parameters(), exact.parameters(), strict=True):
            other.copy_(own.to(dtype))
    model = model.to(dtype)
    model.encoder.recompute = recompute
    batch = random_batch(LENGTHS, vocabulary_size=VOCABULARY)
    eager, eager_gradients = gradients_of(model, model, batch)
    _, exact_gradients = gradients_of(exact, exact, batch)
    compiled, gradients = gradients_of(model, torch.compile(model, backend=backend, fullgraph=True), batch)
    (graph,) = graphs
    assert not [node for node in graph.graph.nodes if node.meta.get("unbacked_bindings")]  # of item, nonzero and such
    for found, wanted in zip(compiled, eager, strict=True):
        torch.testing.assert_close(found, wanted, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    whole = torch.stack([gradient.norm() for gradient in exact_gradients.values()]).norm()
    for name, wanted in exact_gradients.items():
        if wanted.norm() > 1e-3 * whole:  # a smaller one is rounding: of keys' biases it is zero
            assert relative(gradients[name], wanted) < TOLERANCE[dtype], name
            assert relative(eager_gradients[name], wanted) < TOLERANCE[dtype], name


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_compiles_to_one_graph_with_the_gradients_of_eager_code_and_of_float64(
    norm: str, dtype: torch.dtype, dropout: float, fresh_process: Executor
) -> None:
    fresh_process.submit(compile_and_compare, norm, dtype, dropout).result()


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_compiles_with_layers_that_backward_computes_again(norm: str, fresh_process: Executor) -> None:
    fresh_process.submit(compile_and_compare, norm, torch.float32, 0.1, True).result()


def stored_bytes(recompute: bool) -> int:
    """What compiled code stores for backward, divided between forward and backward as on a GPU."""
    torch._dynamo.reset()
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    model = BertForPretraining(ModelConfig(layers=4, heads=2, hidden_size=64), vocabulary_size=VOCABULARY)
    model.encoder.recompute = recompute
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    run = torch.compile(model.train(), backend="aot_eager_decomp_partition", fullgraph=True)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        run(random_batch([40, 64], vocabulary_size=VOCABULARY))
    return sum(size for place, size in kept.items() if place not in own)


def test_compiled_code_stores_as_little(fresh_process: Executor) -> None:
    stored, again = (fresh_process.submit(stored_bytes, recompute).result() for recompute in (False, True))
    assert 4 * 104 * 64 * 4 < again < stored / 3
