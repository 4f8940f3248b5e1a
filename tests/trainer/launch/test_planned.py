"""Dry runs before there is a data set or a GPU: stated rows and tokens, GPUs by name, and rates with their origin."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.settings import ConfigError, dump_yaml
from small_runs import make_config, write_small_set
from trainer.config import ModelConfig
from trainer.data.phases import open_phases, resolve_phases
from trainer.launch import dry_run, planned
from trainer.launch.run_directory import write_config
from trainer.run import main
from trainer.telemetry.flops import count_flops

PROGRAM = "trainer/run.py"
LARGE = {
    "model": {"size": "large"},
    "batch": {"pairs": 256},
    "workers": 8,
    "precision": "bf16",
    "launcher": "ray",
    "max_steps": 1000,
    "device": "cuda",
}


@pytest.fixture(autouse=True)
def laptop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)


def plan(folder: Path, capsys: pytest.CaptureFixture[str], *flags: str, **changes: object) -> list[str]:
    config = make_config(folder / "set", folder / "run", **{**LARGE, **changes})
    (folder / "c.yaml").write_text(dump_yaml(config, given=True))
    assert main(["--config", str(folder / "c.yaml"), "--dry-run", *flags]) == 0
    assert not (folder / "run").exists()
    return capsys.readouterr().out.splitlines()


def test_a_run_is_planned_from_a_laptop_before_there_is_a_set(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = plan(tmp_path, capsys, "--rows=60e6", "--tokens=14e9")
    assert lines[0] == f"planned for 60,000,000 stated rows of at most 512 tokens in {tmp_path / 'set'}"
    tokens = 1000 * 256 * 14e9 / 60e6
    assert f"steps: 1,000 of 1,000 to do, {tokens / 1e6:,.1f} M tokens" in lines
    assert lines[-1].startswith("machines: planned for 8 workers on cuda elsewhere; this machine has ")
    rates = {line.split()[0]: line for line in lines if " tokens/s " in line and line.startswith("  ")}
    assert list(rates) == ["B200", "H200", "H100", "A100", "L40S", "L4"]
    assert [gpu for gpu, line in rates.items() if "(measured, bench/trainer.md)" in line] == ["H200"]
    assert all("(not measured: " in line for gpu, line in rates.items() if gpu != "H200")
    three_rows = {"num_tokens": 700, "num_squared": 233**2 * 2 + 234**2, "num_masked": 105}
    each = count_flops(ModelConfig(size="large"), vocabulary_size=30_522, **three_rows)
    rate = float(rates["H200"].split()[1].replace(",", ""))
    assert rate == pytest.approx(453e12 / (each / 700), rel=1e-3)
    checkpoints = next(line for line in lines if line.startswith("checkpoints: "))
    assert checkpoints.startswith("checkpoints: 4.03 GB each, up to ")
    assert "are free" not in checkpoints  # that is another machine's disk


@pytest.mark.parametrize(
    ("gpu", "size", "origin"),
    [
        ("h200", "base", "(measured for BERT base on one H200, bench/trainer.md)"),
        ("L4", "large", "(not measured for BERT large on L4: assumes the same share of peak as an H200)"),
        ("H200", "mini", "(not measured for BERT mini on H200: assumes the same share of peak as an H200)"),
    ],
)
def test_a_gpu_by_name_gives_time_and_price(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], gpu: str, size: str, origin: str
) -> None:
    """Also with device: auto, which would find CPUs here."""
    flags = ["--rows=60e6", "--tokens=14e9", f"--gpu={gpu}", "--price=2"]
    lines = plan(tmp_path, capsys, *flags, model={"size": size}, device="auto")
    (time,) = [line for line in lines if line.startswith("time: ")]
    assert time.endswith(f"of 8 workers {origin}")
    assert any(line.startswith("price: ") for line in lines)
    assert lines[-1].startswith("machines: planned for 8 workers on cuda elsewhere")


def test_recomputation_takes_a_third_longer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--rows=60e6", "--tokens=14e9", "--gpu=H200"]
    rates = []
    for recompute in ("none", "layers"):
        lines = plan(tmp_path, capsys, *flags, recompute=recompute)
        (time,) = [line for line in lines if line.startswith("time: ")]
        rates.append(float(time.split(" at ")[1].split()[0].replace(",", "")))
    assert rates[1] == pytest.approx(0.75 * rates[0], rel=1e-4)
    assert time.endswith(
        "(not measured for BERT large on H200: assumes the same share of peak as an H200, less a quarter for "
        "recompute=layers)"
    )


def test_a_set_that_is_there_is_planned_for_other_gpus_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_small_set(tmp_path / "set")
    small = {"model": {"size": "tiny"}, "batch": {"pairs": 8, "lanes": 4}, "workers": 2}
    lines = plan(tmp_path, capsys, "--gpu=A100", **small)
    assert any("not measured for BERT tiny on A100" in line for line in lines)
    assert main(["--config", str(tmp_path / "c.yaml"), "--dry-run", "--rows=9", "--tokens=90"]) == 2
    assert "already exists; leave out --rows and --tokens" in capsys.readouterr().err


def test_missing_sets_have_sizes_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the order of the phases; a set that two phases share has one."""
    long, short = str(tmp_path / "long"), str(tmp_path / "set")
    phases = ({"max_steps": 600}, {"max_steps": 100, "data": long}, {"max_steps": 300, "data": short})
    lines = plan(tmp_path, capsys, "--rows=60e6,5e6", "--tokens=6e9,2e9", phases=phases)
    assert lines[0] == (
        f"planned for 60,000,000 stated rows of at most 512 tokens in {tmp_path / 'set'}, 5,000,000 stated rows of at "
        f"most 512 tokens in {tmp_path / 'long'}"
    )
    assert f"steps: 1,000 of 1,000 to do, {(900 * 100 + 100 * 400) * 256 / 1e6:,.1f} M tokens" in lines
    config = make_config(tmp_path / "set", tmp_path / "run", **{**LARGE, "phases": phases})
    with pytest.raises(ConfigError, match=r"give 3 sizes for 2 missing data sets \(.*set, .*long\); give one for each"):
        planned.plan_without_data(config, rows=(9, 9, 9), tokens=(90, 90, 90), gpu=None)


def test_max_hours_says_how_far_it_goes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run of twice the steps goes no further in the same hours."""
    size = ["--rows=60e6", "--tokens=6e9", "--tokens-per-second=1e5", "--price=3"]
    for steps in (10_000, 20_000):
        lines = plan(tmp_path, capsys, *size, max_steps=steps, max_hours=0.08)
        assert "max_hours: enough for about 9,000 steps, 230.4 M tokens" in lines
        assert "price: 1.92 for 0.6 worker hours at 3" in lines
    assert not any(line.startswith("max_hours: ") for line in plan(tmp_path, capsys, *size, max_hours=0.08))


def test_a_gpu_by_name_has_memory_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With device: auto, where this machine has CPUs alone."""
    lines = plan(tmp_path, capsys, "--rows=60e6", "--tokens=14e9", "--gpu=L4", device="auto")
    assert any(line.startswith("memory: about ") and line.endswith("the smallest is L4 of 24.0 GB") for line in lines)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--gpu=H900"], "--gpu=H900: unknown GPU; give one of B200, GH200, H200"),
        (["--rows=5"], "--rows and --tokens together state the size of a data set; give both or neither"),
        (["--rows=5.5", "--tokens=60"], "--rows=5.5: give a whole number above 0, as in --rows=100"),
        (["--rows=5,", "--tokens=60"], "--rows=5,: give a whole number above 0, as in --rows=100"),
        (["--rows=5,6", "--tokens=60"], "--rows gives 2 sizes and --tokens 1; give as many of each"),
        (["--gpu=L4", "--tokens-per-second=9"], "--gpu and --tokens-per-second both set the rate; give only one"),
    ],
)
def test_options_that_cannot_be_are_refused(flags: list[str], told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        dry_run.read_options(["--dry-run", *flags], program=PROGRAM)
    assert str(caught.value).startswith(f"{PROGRAM}: {told}")
    if "give a whole number" not in told and "unknown GPU" not in told:
        with pytest.raises(ConfigError, match="works only with --dry-run; add it"):
            dry_run.read_options(flags[:1], program=PROGRAM)


@pytest.mark.parametrize(("rows", "tokens"), [(10, 49), (10, 5121)])
def test_rows_that_cannot_have_so_many_tokens_are_refused(tmp_path: Path, rows: int, tokens: int) -> None:
    config = make_config(tmp_path / "set", tmp_path / "run")
    with pytest.raises(ConfigError, match=r"per row, not 5 to 512 \(model.max_positions\); correct one of them"):
        planned.plan_without_data(config, rows=(rows,), tokens=(tokens,), gpu=None)


def test_large_models_on_cpus_and_thousands_of_epochs_are_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = plan(tmp_path, capsys, "--rows=600", "--tokens=140e3", device="cpu", max_steps=90_000)
    assert any(line.startswith("WARNING: 38,400 epochs: 90,000 steps read 600 pairs this often") for line in lines)
    assert lines[-1].startswith("WARNING: BERT large on CPUs: a step takes hundreds of times as long as on a GPU;")
    small = make_config(tmp_path / "set", tmp_path / "run")
    manifest = planned._planned_manifest(rows=600, tokens=60_000, longest=512)
    (opened,) = open_phases(resolve_phases(small), manifests=[manifest])
    assert not any("epochs:" in line for line in opened.describe())


def test_fresh_refuses_an_output_that_holds_a_run_here_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = make_config(tmp_path / "set", tmp_path / "run", **LARGE)
    write_config(config)
    (tmp_path / "c.yaml").write_text(dump_yaml(config, given=True))
    words = ["--config", str(tmp_path / "c.yaml"), "--dry-run", "--fresh", "--rows=60e6", "--tokens=14e9"]
    assert main(words) == 2
    assert "already holds a run (no checkpoint yet), and --fresh begins a new one" in capsys.readouterr().err


def test_a_plan_counts_drawn_masks_growing_batches_and_hours(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At 40% masks a step takes longer; a batch that grows over all steps from a half takes three quarters."""
    size = ("--rows=60e6", "--tokens=14e9", "--gpu=H200")

    def hours(**changes: object) -> float:
        opened = make_config(tmp_path / "set", tmp_path / "run", **{**LARGE, **changes})
        checked = planned.plan_without_data(opened, rows=(60_000_000,), tokens=(14_000_000_000,), gpu="H200")
        return planned.count_work(checked.config.model, phases=checked.phases, done=0)

    plain, drawn = hours(), hours(masking={"source": "drawn", "rate": 0.5, "final_rate": 0.3})
    rows = {"num_tokens": 700, "num_squared": 233**2 * 2 + 234**2}
    flops = [count_flops(ModelConfig(size="large"), vocabulary_size=30_522, num_masked=m, **rows) for m in (105, 280)]
    assert drawn / plain == pytest.approx(flops[1] / flops[0], rel=1e-3)
    assert hours(batch={"pairs": 256, "warmup_steps": 1000, "warmup_from": 0.5}) / plain == pytest.approx(
        0.75, abs=1e-3
    )
    lines = plan(tmp_path, capsys, *size, max_hours=0.005, schedule={"name": "wsd", "warmup_fraction": 0.1})
    assert "learning rate (wsd): 0 at 0 h, 0.003 at 0.0005 h, 0.003 at 0.0045 h, 0 at 0.005 h" in lines
    assert any(line.startswith("time: 18 s at ") and line.endswith(", ended by max_hours)") for line in lines)
