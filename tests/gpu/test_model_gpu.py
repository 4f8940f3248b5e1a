"""The GPU paths against float64 and against the CPU: `make test-gpu`, on a host with CUDA."""

from __future__ import annotations

import dataclasses
import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from packed import keep_mask, random_batch
from trainer.config import ModelConfig
from trainer.model import BertForPretraining, cross_entropy
from trainer.model.attention import SequenceLayout, attend_flash, attend_padded, attend_short
from trainer.model.attention_cpu import attend_each
from trainer.model.attention_gpu import count_dropped_draws, short_attention
from trainer.model.batch import Batch
from trainer.model.cross_entropy import linear_cross_entropy_sum
from trainer.model.dropout import draw_seeds, keep_hash
from trainer.model.gelu_gpu import gelu_of_biased
from trainer.model.residual_norm import ResidualNorm

adamw = pytest.importorskip("trainer.model.kernels.adamw", reason="no triton")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

VOCABULARY = 1_000
LENGTHS = [1, 512, 3, 64, 65, 127, 128, 200, 511, 2, 300]


def to_gpu(batch: Batch) -> Batch:
    changes = {
        field.name: getattr(batch, field.name).cuda()
        for field in dataclasses.fields(batch)
        if isinstance(getattr(batch, field.name), Tensor)
    }
    return dataclasses.replace(batch, **changes)


def layout_of(lengths: list[int]) -> SequenceLayout:
    return SequenceLayout(torch.tensor([0, *lengths]).cumsum(0).to(torch.int32).cuda(), max(lengths))


def relative(found: Tensor, wanted: Tensor) -> float:
    return ((found.double() - wanted.double()).norm() / wanted.double().norm()).item()


@pytest.mark.parametrize(
    ("backend", "width"), [("short", 64), ("flash", 64), ("padded", 64), ("flash", 26), ("flash", 256), ("padded", 26)]
)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_attention_against_float64(backend: str, width: int, seed: int) -> None:
    torch.manual_seed(seed)
    lengths = [*LENGTHS, *torch.randint(1, 513, (8,)).tolist(), 0, 0]
    values = torch.randn(sum(lengths), 3, 4, width, device="cuda", dtype=torch.bfloat16)
    upstream = torch.randn(sum(lengths), 4, width, device="cuda", dtype=torch.bfloat16)
    half, exact = values.clone().requires_grad_(), values.double().cpu().requires_grad_()
    wanted = attend_each(exact, lengths=lengths, dropout=0.0)
    attend = {
        "short": partial(attend_short, seed=torch.zeros(1, device="cuda", dtype=torch.int32)),
        "flash": attend_flash,
        "padded": attend_padded,
    }[backend]
    found = attend(half, layout=layout_of(lengths), dropout=0.0)
    assert relative(found.cpu(), wanted) < 5e-3
    (gradient,) = torch.autograd.grad(found, half, upstream)
    (exact_gradient,) = torch.autograd.grad(wanted, exact, upstream.double().cpu())
    assert relative(gradient.cpu(), exact_gradient) < 5e-3


@pytest.mark.parametrize("head_width", [32, 64, 128])
def test_dropout_inside_attention_against_float64(head_width: int) -> None:
    """The kept weights are those that keep_mask names, forward and backward, and twice gives the same bits."""
    torch.manual_seed(0)
    heads, dropout, seed = 3, 0.1, torch.tensor([12_345], device="cuda", dtype=torch.int32)
    threshold, layout = count_dropped_draws(dropout), layout_of(LENGTHS)
    values = torch.randn(sum(LENGTHS), 3, heads, head_width, device="cuda", dtype=torch.bfloat16)
    upstream = torch.randn(sum(LENGTHS), heads, head_width, device="cuda", dtype=torch.bfloat16)
    exact = values.double().requires_grad_()
    parts, start = [], 0
    for length in LENGTHS:
        query, key, value = exact[start : start + length].permute(1, 2, 0, 3).unbind(0)
        weights = torch.softmax(query @ key.transpose(1, 2) / head_width**0.5, -1)
        tokens, columns = (torch.arange(*span, dtype=torch.int32) for span in ((start, start + length), (length,)))
        kept = [keep_mask(12_345, head=h, tokens=tokens, columns=columns, threshold=threshold) for h in range(heads)]
        parts.append((weights * torch.stack(kept).cuda() / (1 - dropout) @ value).transpose(0, 1))
        start += length
    wanted = torch.cat(parts)
    (exact_gradient,) = torch.autograd.grad(wanted, exact, upstream.double())
    runs = []
    for _ in range(2):
        half = values.clone().requires_grad_()
        found, _ = short_attention(half, layout.offsets, seed, layout.max_length, threshold)
        (gradient,) = torch.autograd.grad(found, half, upstream)
        runs.append((found.detach(), gradient))
    assert relative(runs[0][0], wanted) < 5e-3
    assert relative(runs[0][1], exact_gradient) < 5e-3
    assert all(torch.equal(first, second) for first, second in zip(*runs, strict=True))


def test_attention_dropout_keeps_the_mean_and_its_mask_in_backward() -> None:
    torch.manual_seed(0)
    layout = layout_of(LENGTHS)
    qkv = torch.randn(sum(LENGTHS), 3, 2, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    upstream = torch.randn(sum(LENGTHS), 2, 64, device="cuda", dtype=torch.bfloat16)

    def attend(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return attend_flash(qkv, layout=layout, dropout=0.1)

    plain = attend_flash(qkv, layout=layout, dropout=0.0)
    assert torch.equal(attend(1), attend(1))
    assert not torch.equal(attend(1), attend(2))
    assert relative(attend(1), plain) > 0.1
    assert relative(torch.stack([attend(seed).float() for seed in range(400)]).mean(0), plain) < 0.04
    output = attend(1)  # linear in the values: <d/dv, v> is <output, upstream> only with forward's mask
    (gradient,) = torch.autograd.grad(output, qkv, upstream)
    scale = output.double().norm() * upstream.double().norm()
    there = (gradient[:, 2].double() * qkv[:, 2].double()).sum()
    here = (output.double() * upstream.double()).sum()
    assert abs(there - here) < 1e-3 * scale


@pytest.mark.parametrize("tanh", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(1, 1), (777, 500), (300, 4096)])
def test_gelu_and_its_bias_against_float64(tanh: bool, dtype: torch.dtype, shape: tuple[int, int]) -> None:
    """Values within rounding of the type; the bias's gradient is the sum of the rows'; twice gives the same bits."""
    torch.manual_seed(0)
    values, upstream = (torch.randn(shape, device="cuda").mul(3).to(dtype) for _ in range(2))
    bias = torch.randn(shape[1], device="cuda", dtype=dtype)
    exact = values.double().requires_grad_()
    wanted = F.gelu(exact, approximate="tanh" if tanh else "none")
    (exact_gradient,) = torch.autograd.grad(wanted, exact, upstream.double())
    runs = []
    for _ in range(2):
        half, leaf = values.clone().requires_grad_(), bias.clone().requires_grad_()
        found = gelu_of_biased(half, leaf, tanh)
        runs.append((found.detach(), *torch.autograd.grad(found, (half, leaf), upstream)))
    out, gradient, bias_gradient = runs[0]
    tolerance = 2 * torch.finfo(dtype).eps
    torch.testing.assert_close(out.double(), wanted, rtol=tolerance, atol=1e-6)
    assert relative(gradient, exact_gradient) < tolerance
    assert relative(bias_gradient, exact_gradient.sum(0)) < tolerance
    assert all(torch.equal(first, second) for first, second in zip(*runs, strict=True))


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(1, 128), (777, 768), (300, 1024)])
def test_residual_norm_against_float64(dropout: float, dtype: torch.dtype, shape: tuple[int, int]) -> None:
    """Norm and gradient sink both bring a gradient; what is dropped is keep_hash's; twice gives the same bits."""
    torch.manual_seed(0)
    branch, residual, upstream, sink_gradient = (torch.randn(shape, device="cuda").to(dtype) for _ in range(4))
    norm = ResidualNorm(shape[1], dropout=dropout).cuda().to(dtype)
    branch_bias = torch.zeros(shape[1], device="cuda", dtype=dtype, requires_grad=True)
    with torch.no_grad():
        norm.weight.normal_()
        norm.bias.normal_()
    seeds = draw_seeds(1, device=branch.device)[0]
    kept = keep_hash(*shape, seeds=seeds, probability=dropout) if dropout else torch.ones(shape, device="cuda").bool()
    exact = [value.detach().double().requires_grad_() for value in (branch, residual, norm.weight, norm.bias)]
    total = exact[1] + torch.where(kept, exact[0] / (1 - dropout), 0.0)
    wanted = F.layer_norm(total, shape[1:], exact[2], exact[3], norm.eps)
    wanted_gradients = list(torch.autograd.grad(wanted, exact, upstream.double() + sink_gradient.double()))
    wanted_gradients.append(wanted_gradients[0].sum(0))
    runs = []
    for _ in range(2):
        leaves = [branch.clone().requires_grad_(), torch.zeros_like(residual).requires_grad_()]
        found = norm(leaves[0], residual, leaves[1], seeds=seeds, branch_bias=branch_bias)
        of = (*leaves, norm.weight, norm.bias, branch_bias)
        runs.append((found[0].detach(), *torch.autograd.grad(found, of, (upstream, sink_gradient))))
        assert found[1].untyped_storage().nbytes() <= 512  # the gradient sink holds nothing
    tolerance = 2 * torch.finfo(dtype).eps
    for here, there in zip(runs[0], (wanted, *wanted_gradients), strict=True):
        assert relative(here, there) < tolerance
    assert all(torch.equal(first, second) for first, second in zip(*runs, strict=True))


@pytest.mark.parametrize("chunk_rows", [100, 10_000])
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_loss_and_its_gradients_against_float64(
    dtype: torch.dtype, compiled: bool, chunk_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sure rows, unsure ones and some without weight; padded words get no probability; twice gives the same bits."""
    torch.manual_seed(0)
    words, padded, width, rows = 5_003, 5_056, 128, 333
    monkeypatch.setattr(cross_entropy, "GPU_CHUNK_BYTES", chunk_rows * padded * dtype.itemsize)
    hidden = torch.randn(rows, width, device="cuda").mul(torch.linspace(0.1, 3, rows, device="cuda")[:, None]).to(dtype)
    weight = torch.randn(padded, width, device="cuda").mul(0.2).to(dtype)
    bias = torch.randn(padded, device="cuda").to(dtype)
    weight[words:], bias[words:] = 0.0, -30_000.0
    labels = torch.randint(0, words, (rows,), device="cuda")
    exact = [tensor.detach().double().requires_grad_() for tensor in (hidden, weight, bias)]
    logits = F.linear(*exact)
    labels[::3] = logits[::3].argmax(1)
    labels[::50] = -1
    weights = torch.rand(rows, device="cuda")
    each = F.cross_entropy(logits, labels, reduction="none", ignore_index=-1)
    scale = 65_536.0 / rows if dtype == torch.float16 else 1.0 / rows
    wanted = torch.autograd.grad((each * weights).sum() * scale, exact)

    def loss(*tensors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return linear_cross_entropy_sum(*tensors, labels=labels, weights=weights)

    torch._dynamo.reset()
    run = torch.compile(loss, fullgraph=True) if compiled else loss
    runs = []
    for _ in range(2):
        leaves = [tensor.clone().requires_grad_() for tensor in (hidden, weight, bias)]
        total, correct, losses = run(*leaves)
        runs.append((total.detach(), correct, losses, *torch.autograd.grad(total * scale, leaves)))
    total, correct, losses, *gradients = runs[0]
    tolerance = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}[dtype]
    assert relative(losses, each.detach() * weights) < tolerance
    assert relative(total, (each * weights).sum()) < tolerance
    hits = (logits.argmax(1) == labels) * weights
    assert abs(correct.item() - hits.sum().item()) < (1e-3 if dtype == torch.float32 else 8.0)
    assert correct.item() > 50.0
    for name, found, right in zip(("hidden", "weight", "bias"), gradients, wanted, strict=True):
        assert found.dtype == dtype
        assert relative(found, right) < tolerance, name
    assert torch.equal(gradients[1][words:], torch.zeros_like(gradients[1][words:]))
    assert all(torch.equal(first, second) for first, second in zip(*runs, strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_update_is_torchs(dtype: torch.dtype) -> None:
    """Ten steps beside torch's fused AdamW on the same gradients; the copy is the rounded weight; a skip is a skip."""
    torch.manual_seed(0)
    size, settings = 100_001, {"betas": (0.9, 0.98), "eps": 1e-6, "weight_decay": 0.1}
    theirs = torch.randn(size, device="cuda", requires_grad=True)
    weight, model_weights = theirs.detach().clone(), torch.zeros(size, device="cuda", dtype=dtype)
    exp_avg, exp_avg_sq = torch.zeros_like(weight), torch.zeros_like(weight)
    optimizer = torch.optim.AdamW([theirs], lr=1e-2, fused=True, **settings)
    divisor, go, stop = (torch.tensor(value, device="cuda") for value in (3.0, 0.0, 1.0))

    def update(step: int, gradient: Tensor, skip: Tensor) -> None:
        adamw.update(
            weight,
            exp_avg=exp_avg,
            exp_avg_sq=exp_avg_sq,
            gradient=gradient,
            model_weights=model_weights,
            divisor=divisor,
            skip=skip,
            step=step,
            learning_rate=1e-2,
            weight_decay=0.1,
            betas=(0.9, 0.98),
            epsilon=1e-6,
        )

    for step in range(1, 11):
        gradient = torch.randn(size, device="cuda").to(dtype)
        theirs.grad = gradient.float() / 3
        optimizer.step()
        update(step, gradient, go)
    torch.testing.assert_close(weight, theirs.detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(exp_avg_sq, optimizer.state[theirs]["exp_avg_sq"], rtol=1e-5, atol=1e-9)
    assert torch.equal(model_weights, weight.to(dtype))
    before = weight.clone(), exp_avg.clone(), exp_avg_sq.clone(), model_weights.clone()
    update(11, torch.full((size,), torch.nan, device="cuda", dtype=dtype), stop)
    assert all(map(torch.equal, before, (weight, exp_avg, exp_avg_sq, model_weights)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_update_without_bias_correction_is_googles(dtype: torch.dtype) -> None:
    """An infinite step: ten steps beside google-research/bert's update in fp64, and torch's fused one."""
    torch.manual_seed(0)
    size, (beta1, beta2), rate, decay, epsilon = 100_001, (0.9, 0.98), 1e-2, 0.1, 1e-6
    weight = torch.randn(size, device="cuda")
    theirs, exact = weight.clone().requires_grad_(), weight.double()
    exp_avg, exp_avg_sq, mean, square = (torch.zeros_like(value) for value in (weight, weight, exact, exact))
    optimizer = torch.optim.AdamW([theirs], lr=rate, betas=(beta1, beta2), eps=epsilon, weight_decay=decay, fused=True)
    optimizer.state[theirs].update(
        step=torch.tensor(math.inf, device="cuda"),
        exp_avg=torch.zeros_like(weight),
        exp_avg_sq=torch.zeros_like(weight),
    )
    model_weights = torch.zeros(size, device="cuda", dtype=dtype)
    for _ in range(10):
        gradient = torch.randn(size, device="cuda").to(dtype)
        adamw.update(
            weight,
            exp_avg=exp_avg,
            exp_avg_sq=exp_avg_sq,
            gradient=gradient,
            model_weights=model_weights,
            divisor=torch.tensor(1.0, device="cuda"),
            skip=torch.tensor(0.0, device="cuda"),
            step=math.inf,
            learning_rate=rate,
            weight_decay=decay,
            betas=(beta1, beta2),
            epsilon=epsilon,
        )
        theirs.grad = gradient.float()
        optimizer.step()
        mean = beta1 * mean + (1 - beta1) * gradient.double()
        square = beta2 * square + (1 - beta2) * gradient.double().square()
        exact = exact - rate * (mean / (square.sqrt() + epsilon) + decay * exact)
    torch.testing.assert_close(weight.double(), exact, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(theirs.detach().double(), exact, rtol=1e-5, atol=1e-6)
    assert torch.equal(model_weights, weight.to(dtype))


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_float32_losses_are_the_cpus(norm: str) -> None:
    config = ModelConfig(size="tiny", norm=norm, dropout=0.0, attention_dropout=0.0)
    batch = random_batch(LENGTHS, vocabulary_size=VOCABULARY)
    here = BertForPretraining(config, vocabulary_size=VOCABULARY)
    there = BertForPretraining(config, vocabulary_size=VOCABULARY).cuda()
    for found, wanted in zip(there(to_gpu(batch)), here(batch), strict=True):
        torch.testing.assert_close(found.cpu(), wanted, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_step_in_bfloat16_waits_for_nothing(compiled: bool) -> None:
    """Forward and backward with dropout under the sync detector; without dropout the losses are the CPU's."""
    batch = random_batch(LENGTHS, vocabulary_size=VOCABULARY)
    on_gpu = to_gpu(batch)
    config = ModelConfig(size="mini")
    model = BertForPretraining(config, vocabulary_size=VOCABULARY).cuda().bfloat16()
    step = torch.compile(model, fullgraph=True) if compiled else model
    torch.manual_seed(0)
    (step(on_gpu).mlm_loss_sum / batch.num_masked).backward()  # compiled outside the detector
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        output = step(on_gpu)
        (output.mlm_loss_sum / batch.num_masked + output.nsp_loss_sum / batch.num_pairs).backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())
    wanted = BertForPretraining(config, vocabulary_size=VOCABULARY).eval()(batch)
    found = step.eval()(on_gpu)
    torch.testing.assert_close(found.mlm_loss_sum.cpu(), wanted.mlm_loss_sum, rtol=2e-3, atol=0)
    torch.testing.assert_close(found.nsp_loss_sum.cpu(), wanted.nsp_loss_sum, rtol=2e-2, atol=0)
