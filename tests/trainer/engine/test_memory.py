"""The estimate of a GPU's memory, held against what was measured, and what is derived from it once for a run."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from pipeline.settings import ConfigError
from small_runs import make_config
from synthetic import full_lengths, write_data_set
from trainer.config.saved import read_run_config
from trainer.config.schema import TrainerConfig
from trainer.data.micro_batch import MicroBatchShape
from trainer.data.phases import OpenPhase, open_phases, resolve_phases
from trainer.engine import memory
from trainer.engine.memory import Card, estimate_memory, judge_memory, largest_micro_batch
from trainer.launch import cards, ray_dashboard, ray_train
from trainer.launch.cards import find_cluster_card, find_local_card
from trainer.launch.dry_run import Options, check_or_plan, describe_run
from trainer.launch.preflight import check
from trainer.launch.run_directory import write_config

GB = 1e9


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_data_set(folder, rows=400, max_seq_length=128, lengths=full_lengths, vocabulary_size=256)
    return folder


def large(**changes: Any) -> TrainerConfig:
    settings = {"data": "d", "output": "o", "batch": {"tokens": 32_768}, "max_steps": 10, "workers": 1}
    return TrainerConfig.model_validate({**settings, "model": {"size": "large"}, **changes})


def estimate(config: TrainerConfig, *, tokens: int = 32_768, lanes: int = 1, workers: int = 1) -> memory.Memory:
    shape = MicroBatchShape(tokens=tokens, pairs=tokens // 160, masked=tokens // 6, max_seq_length=512)
    return estimate_memory(
        config, vocabulary_size=30_522, shape=shape, micro_batches=-(-lanes // workers), workers=workers
    )


def phases_of(config: TrainerConfig) -> tuple[OpenPhase, ...]:
    from pipeline.dataset.manifest import read_manifest

    phases = resolve_phases(config)
    return open_phases(phases, manifests=[read_manifest(phase.config.data) for phase in phases])


# ---- the estimate


@pytest.mark.parametrize("zero_stage", [1, 2])
def test_the_estimate_is_what_was_measured(zero_stage: int) -> None:
    """bench/trainer.md: BERT-Large, bf16, compiled, one micro-batch of 32,768 tokens on one H200: 32 GB."""
    assert estimate(large(zero_stage=zero_stage)).total == pytest.approx(32 * GB, rel=0.15)


def test_states_are_shared_out_as_the_stages_say() -> None:
    def parts(stage: int, *, lanes: int, workers: int) -> dict[str, float]:
        return estimate(large(zero_stage=stage), lanes=lanes, workers=workers).parts

    numel = parts(1, lanes=1, workers=1)["masters"] / 4
    assert numel == pytest.approx(336e6, rel=0.01)
    for stage, lanes, workers, weights, masters, moments, gradients in (
        (1, 1, 1, 2, 4, 8, 2),
        (1, 4, 4, 2, 1, 2, 0.5),
        (1, 4, 1, 2, 4, 8, 4),
        (1, 8, 4, 2, 1, 2, 5),
        (2, 8, 4, 2, 1, 2, 1),
        (3, 4, 4, 2.5, 1, 2, 0.5),
    ):
        found = parts(stage, lanes=lanes, workers=workers)
        wanted = {"weights": weights, "masters": masters, "moments": moments, "gradients": gradients}
        assert {name: found[name] / numel for name in wanted} == pytest.approx(wanted), (stage, lanes, workers)


@pytest.mark.parametrize(("name", "bytes_each"), [("lamb", 8.0), ("radam", 8.0), ("sgd", 4.0), ("muon", 4.38)])
def test_moments_are_those_of_the_optimizer(name: str, bytes_each: float) -> None:
    """BERT-Large has 302 M weights in the matrices of its layers and 2 M in those of pooler and masked-LM head."""
    plain, other = estimate(large()).parts["moments"], estimate(large(optimizer={"name": name})).parts["moments"]
    assert other / plain == pytest.approx(bytes_each / 8, rel=2e-3)


def test_precision_and_micro_batches_count() -> None:
    half, whole = estimate(large(), tokens=16_384), estimate(large())
    assert half.total < 0.65 * whole.total
    assert estimate(large(precision="fp32")).total > 1.9 * whole.total
    assert estimate(large(), tokens=512).parts["activations and loss"] > 2 * 336e6  # all gradients are there once


def test_the_largest_micro_batch_of_a_card() -> None:
    def fit(gigabytes: float, **changes: Any) -> int | None:
        return largest_micro_batch(
            large(**changes), vocabulary_size=30_522, longest=512, card_bytes=gigabytes * GB, most=32_768
        )

    assert fit(141) == fit(80) == fit(48) == 32_768
    found = fit(24)
    assert found is not None
    assert 8_192 < found < 24_576
    assert found % 1024 == 0
    assert (
        estimate(large(), tokens=found, lanes=2).total <= 0.9 * 24 * GB < estimate(large(), tokens=found + 2048).total
    )
    assert fit(24, workers=1, zero_stage=1) == fit(24, workers=8, zero_stage=1, batch={"tokens": 32_768, "lanes": 8})
    assert fit(6) is None


def test_recomputation_leaves_the_inputs_of_layers_and_one_layer() -> None:
    """BERT-Large, 32,768 tokens: 26 GB of activations become 24 inputs of 67 MB, a layer of 1.1 GB, ends and heads."""
    none, layers = estimate(large()), estimate(large(recompute="layers"))
    part = "activations and loss"
    assert {**none.parts, part: 0} == {**layers.parts, part: 0}
    assert none.parts[part] > 26 * GB
    inputs, layer = 24 * 32_768 * 1024 * 2, 32_768 * (32 * 1024 + 4 * 16 + 16)
    ends = none.parts[part] - 24 * layer  # embeddings, heads and the loss are the same
    assert layers.parts[part] == pytest.approx(inputs + layer + ends)
    assert estimate(large(recompute="auto")) == none


def test_the_largest_micro_batch_with_recomputation() -> None:
    def fit(gigabytes: float, recompute: str) -> int | None:
        config = large(recompute=recompute)
        return largest_micro_batch(config, vocabulary_size=30_522, longest=512, card_bytes=gigabytes * GB, most=32_768)

    assert fit(24, "layers") == 32_768
    assert fit(24, "auto") == fit(24, "none") != 32_768  # it fits without
    assert fit(8, "none") == 1_024
    assert fit(8, "auto") == fit(8, "layers") == 5_120
    assert fit(6, "auto") is None


# ---- the card


def test_the_smallest_of_the_drivers_cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho \"$@\" > \"$0.asked\"\necho '143771, NVIDIA H200'\necho '23034, NVIDIA L4'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    card = find_local_card()
    assert card is not None
    assert card.describe() == "NVIDIA L4 of 24.2 GB"
    assert "--id" not in (tmp_path / "nvidia-smi.asked").read_text()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    assert find_local_card() == card
    assert "--id=1,0" in (tmp_path / "nvidia-smi.asked").read_text()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert find_local_card() is None
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    for script in ("echo '[N/A], NVIDIA'", "exit 9"):
        tool.write_text(f"#!/bin/sh\n{script}\n")
        assert find_local_card() is None
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert find_local_card() is None


def test_the_smallest_of_a_clusters_cards() -> None:
    mixed = {"GPU": 8.0, "accelerator_type:H100": 1.0, "accelerator_type:L4": 1.0}
    assert find_cluster_card(mixed) == Card(24 * GB, "L4")
    assert find_cluster_card({"GPU": 8.0, "accelerator_type:H100": 1.0, "accelerator_type:Q9": 1.0}) is None
    assert find_cluster_card({"CPU": 8.0, "grows_to_GPU": 16.0}) is None


def test_a_cluster_is_asked_in_the_form_of_its_address(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configure(data, tmp_path, launcher="ray")
    monkeypatch.setattr(cards, "find_local_card", lambda: Card(1 * GB, "the driver's"))
    found = {"GPU": 2.0, "accelerator_type:A100": 2.0}
    monkeypatch.setenv("RAY_ADDRESS", "http://head:8265")
    monkeypatch.setattr(ray_dashboard, "list_resources", lambda address: found)
    assert cards.find_card(config) == Card(40 * GB, "A100")
    assert cards.find_card(config.model_copy(update={"launcher": "processes"})) == Card(1 * GB, "the driver's")
    assert cards.find_card(config.model_copy(update={"device": "cpu"})) is None

    def refuse(address: str) -> dict[str, float]:
        raise ConnectionError(address)

    monkeypatch.setattr(ray_dashboard, "list_resources", refuse)
    assert cards.find_card(config) is None
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    monkeypatch.setattr(ray_train, "join_cluster", lambda config: None)
    monkeypatch.setattr(ray_train, "cluster_resources", lambda: found)
    assert cards.find_card(config) == Card(40 * GB, "A100")
    checked = check(config)
    assert checked.config.batch.greatest_slot is None
    write_config(checked.config)
    small = {"GPU": 1.0, "accelerator_type:T4": 1.0}
    monkeypatch.setattr(ray_train, "cluster_resources", lambda: small)  # a run that has begun keeps its plan
    assert check(config).config == checked.config
    assert "T4" in "\n".join(check(config).lines)


# ---- what is settled when a run begins


def with_card(monkeypatch: pytest.MonkeyPatch, gigabytes: float | None) -> None:
    card = None if gigabytes is None else Card(gigabytes * GB, "a card")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(cards, "find_local_card", lambda: card)


def configure(data: Path, output: Path, **changes: Any) -> TrainerConfig:
    settings = {"model": {"size": "large"}, "batch": {"tokens": 65_536}, "device": "cuda", "precision": "bf16"}
    return make_config(data, output, **{**settings, "workers": 1, **changes})


def test_micro_batches_are_settled_by_the_card_once(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resume on another card keeps the plan; it warns if that is tight, and is refused if the card has less."""
    config = configure(data, tmp_path / "run")
    with_card(monkeypatch, 16)
    checked = check(config)
    greatest = checked.config.batch.greatest_slot
    assert greatest is not None
    assert 4_096 < greatest < 16_384
    assert checked.lines[0] == (
        f"memory: micro-batches of at most {greatest:,} tokens fit a card of 16.0 GB; saved as batch.greatest_slot"
    )
    (opened,) = phases_of(checked.config)
    assert opened.shape.micro_batch.tokens <= greatest
    write_config(checked.config)
    for gigabytes in (80, None, 13):
        with_card(monkeypatch, gigabytes)
        again = check(config)
        assert again.config.batch.greatest_slot == greatest
        assert phases_of(again.config)[0].plan.hash == opened.plan.hash
        assert any("WARNING: more than 90% of it" in line for line in again.lines) == (gigabytes == 13)
        assert not any("changed since" in line for line in again.lines)
    with_card(monkeypatch, 8)
    with pytest.raises(
        ConfigError, match=r"^memory: about .* smallest is a card of 8\.0 GB; a micro-batch has .*: lower batch"
    ):
        check(config)


def test_a_run_from_before_keeps_its_plan(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = configure(data, tmp_path / "run")
    write_config(config)
    with_card(monkeypatch, 16)
    assert check(config).config == config
    saved = read_run_config(tmp_path / "run")
    assert saved is not None
    assert saved.batch.greatest_slot is None


def test_what_is_not_derived_is_left_alone(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_card(monkeypatch, 16)
    for changes in (
        {"batch": {"tokens": 65_536, "tokens_per_slot": 8_192}},
        {"batch": {"tokens": 65_536, "lanes": 8}},
        {"batch": {"tokens": 65_536, "greatest_slot": 4_096}},
        {"device": "cpu"},
        {"model": {"size": "tiny"}},
    ):
        config = configure(data, tmp_path / "run", **changes)
        assert check(config).config == config, changes
    with_card(monkeypatch, None)
    checked = check(configure(data, tmp_path / "run"))
    assert checked.config.batch.greatest_slot is None
    assert checked.lines[0] == "memory: the GPUs' memory is unknown; micro-batches have at most 32,768 tokens"


def test_the_plan_does_not_depend_on_the_number_of_workers(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_card(monkeypatch, 16)
    hashes = {
        phases_of(check(configure(data, tmp_path / "run", workers=workers)).config)[0].plan.hash
        for workers in (1, 2, 4)
    }
    assert len(hashes) == 1


def test_a_card_that_holds_no_micro_batch_alone(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is said to fit; several workers, who share states out, may fit all the same."""
    with_card(monkeypatch, 5)
    checked = check(configure(data, tmp_path / "run", workers=8, zero_stage=3))
    assert checked.config.batch.greatest_slot == 1024
    assert checked.lines[0] == "memory: no micro-batch fits a card of 5.0 GB alone; saved batch.greatest_slot=1024"
    with pytest.raises(
        ConfigError, match=r"smallest is a card of 5\.0 GB; a micro-batch has .*: lower batch\.greatest_slot"
    ):
        check(configure(data, tmp_path / "run"))


# ---- the verdict on a card


def test_a_start_tells_the_memory_and_refuses_too_small_a_card(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real start and a dry run, which print the lines of the same check."""
    config = configure(data, tmp_path, batch={"tokens": 65_536, "tokens_per_slot": 33_000, "lanes": 2})

    def memory_line() -> str:
        (line,) = [line for line in check(config).lines if line.startswith("memory:")]
        return line

    with_card(monkeypatch, 80)
    assert re.fullmatch(
        r"memory: about 3\d\.\d GB \(weights 0\.6, masters 1\.2, moments 2\.4, gradients 1\.2, buckets 0\.1, "
        r"activations and loss 2\d\.\d\) of each GPU; the smallest is a card of 80\.0 GB",
        memory_line(),
    )
    with_card(monkeypatch, 34)
    assert "WARNING: more than 90% of it: a micro-batch has 33,000 tokens: double batch.lanes to 4" in memory_line()
    with_card(monkeypatch, None)
    assert memory_line().endswith("of each GPU; the memory of the GPUs is not known")
    with_card(monkeypatch, 24)
    wanted = (
        r"a card of 24\.0 GB; a micro-batch has 33,000 tokens: double batch\.lanes to 4 and lower "
        r"batch\.tokens_per_slot to 16"
    )
    with pytest.raises(ConfigError, match=wanted):
        check(config)


def test_a_run_without_gpus_is_not_told_of_their_memory(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory.torch.cuda, "device_count", lambda: 0)
    for gigabytes in (None, 4):  # nvidia-smi may see a card that torch cannot use
        with_card(monkeypatch, gigabytes)
        config = configure(data, tmp_path / "run", device="auto")
        checked = check(config)
        assert checked.config == config
        assert not any(line.startswith("memory:") for line in checked.lines)
        lines = (*checked.lines, *describe_run(checked, Options(None, None)))
        assert not any(line.startswith("memory:") for line in lines)
    assert judge_memory(config, phases=phases_of(config), card=None) == ""


# ---- recomputation


def test_auto_recomputes_only_what_would_not_fit(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lanes fix the micro-batch; a resume on a larger card stores activations again, on the same plan."""
    batch = {"tokens": 65_536, "lanes": 4, "tokens_per_slot": 17_000}
    config = configure(data, tmp_path / "run", batch=batch, recompute="auto")
    with_card(monkeypatch, 16)
    with pytest.raises(ConfigError, match=r"smallest is a card of 16\.0 GB; .*, or set recompute=layers"):
        check(config.model_copy(update={"recompute": "none"}))
    checked = check(config)
    assert checked.config.recompute == "layers"
    lines = [line for line in checked.lines if line.startswith("memory:")]
    assert re.fullmatch(
        r"memory: recompute=layers, so backward computes layers again: without it, a step takes about 19\.\d GB, and "
        r"the smallest is a card of 16\.0 GB",
        lines[0],
    )
    assert re.fullmatch(r"memory: about \d\.\d GB \(.*\) of each GPU; the smallest is a card of 16\.0 GB", lines[1])
    write_config(checked.config)
    with_card(monkeypatch, 80)
    again = check(config)
    assert again.config.recompute == "none"
    assert "changed since this run began: recompute: layers -> none" in again.lines
    assert phases_of(again.config)[0].plan.hash == phases_of(checked.config)[0].plan.hash
    for changes, gigabytes in (({"device": "cpu"}, 16), ({}, None)):
        with_card(monkeypatch, gigabytes)
        config = configure(data, tmp_path / "other", batch=batch, recompute="auto", **changes)
        assert check(config).config.recompute == "none"


def test_a_plan_for_a_named_gpu_has_micro_batches_of_its_memory(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a laptop, with a set and without one."""
    with_card(monkeypatch, None)
    monkeypatch.setattr(memory.torch.cuda, "device_count", lambda: 0)
    for folder, size in ((data, {}), (tmp_path / "none", {"rows": (400_000,), "tokens": (400_000 * 128,)})):
        options = Options(None, None, gpu="L4", **size)
        config = configure(folder, tmp_path / "run")
        greatest = check_or_plan(config, options).config.batch.greatest_slot
        assert greatest is not None
        assert 8_192 < greatest < 24_576
        lines = check_or_plan(config.model_copy(update={"recompute": "layers"}), options).lines
        assert any(re.match(r"memory: about \d+\.\d GB .* the smallest is L4 of 24\.0 GB$", line) for line in lines)
        assert not any("micro-batches of at most" in line for line in lines)
