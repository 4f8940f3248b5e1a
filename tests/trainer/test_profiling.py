"""The recorder of steps: a real run on the CPU, and a trace by hand."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from pipeline.settings import ConfigError
from small_runs import make_config
from trainer import profiling
from trainer.profiling import OTHER, PARTS, RECORDED, TRACE, kind_of, profile_run, read_parts


def test_a_run_is_recorded_beside_the_one_of_the_config(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = make_config(data, tmp_path / "run", max_steps=100, workers=1)
    parts = profile_run(config, folder=tmp_path / "profile")
    assert sorted(path.name for path in (tmp_path / "profile").iterdir()) == [PARTS, TRACE]
    assert not (tmp_path / "run").exists()
    names = {event["name"] for event in json.loads((tmp_path / "profile" / TRACE).read_text())["traceEvents"]}
    assert len([name for name in names if name.startswith("ProfilerStep")]) == RECORDED
    assert names >= {"forward", "backward", "update"}
    assert parts.kinds["matrix products"] > 0
    assert parts.kinds["optimizer"] > 0
    assert (tmp_path / "profile" / PARTS).read_text() == parts.table()
    assert "training from step 0" in capsys.readouterr().out


def test_too_few_steps_are_refused(data: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="max_steps=9: recording needs more than 11 steps; raise max_steps"):
        profile_run(make_config(data, tmp_path / "run", max_steps=9), folder=tmp_path / "profile")


def test_the_command_refuses_in_one_line(data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert profiling.main(["--config", str(tmp_path / "absent.yaml")]) == 2
    assert "absent.yaml" in capfd.readouterr().err
    assert profiling.main(["--help"]) == 0
    assert "usage: python -m trainer.profiling" in capfd.readouterr().out


def event(name: str, cat: str, *, ts: float, dur: float, tid: int = 1) -> dict[str, object]:
    return {"name": name, "cat": cat, "ts": ts, "dur": dur, "tid": tid}


def write_trace(path: Path, *events: dict[str, object]) -> Path:
    path.write_text(json.dumps({"traceEvents": [*events, {"name": "no duration"}]}))
    return path


STEPS = [
    event("ProfilerStep#6", "user_annotation", ts=0, dur=1000),
    event("ProfilerStep#7", "user_annotation", ts=1000, dur=1000),
]


def test_a_gpus_kernels_by_hand(tmp_path: Path) -> None:
    trace = write_trace(
        tmp_path / "t.json",
        *STEPS,
        event("nvjet_tst_256x128", "kernel", ts=10, dur=600),
        event("attention_forward_kernel", "kernel", ts=700, dur=200),
        event("Memset (Device)", "gpu_memset", ts=950, dur=10),
        event("gelu_backward_kernel", "kernel", ts=1100, dur=90),
        event("ncclDevKernel_AllReduce", "kernel", ts=1200, dur=100),
        event("something", "kernel", ts=1400, dur=200),
        event("forward", "gpu_user_annotation", ts=10, dur=900),
        event("forward", "user_annotation", ts=0, dur=50),
        event("aten::mm", "cpu_op", ts=0, dur=5),
    )
    parts = read_parts(trace)
    assert parts.step_ms == 1.0
    assert parts.launches == 3.0
    assert parts.kinds == pytest.approx(
        {
            "matrix products": 0.3,
            "attention": 0.1,
            "copies and fills": 0.005,
            "GELU": 0.045,
            "communication": 0.05,
            "other": 0.1,
        }
    )
    assert parts.idle_ms == pytest.approx(0.4)
    assert parts.phases == {"forward": 0.45}
    assert "| matrix products | 0.30 | 30.0% |" in parts.table()
    assert "| forward | 0.45 |" in parts.table()


def test_a_cpus_operators_count_without_those_they_call(tmp_path: Path) -> None:
    trace = write_trace(
        tmp_path / "t.json",
        *STEPS,
        event("aten::linear", "cpu_op", ts=100, dur=400),
        event("aten::addmm", "cpu_op", ts=110, dur=300),
        event("aten::copy_", "cpu_op", ts=120, dur=100),
        event("aten::gelu", "cpu_op", ts=600, dur=200),
        event("aten::gelu", "cpu_op", ts=600, dur=100, tid=2),
    )
    assert read_parts(trace).kinds == pytest.approx({"matrix products": 0.15, "copies and fills": 0.05, "GELU": 0.15})


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("triton_per_fused_add_native_layer_norm_backward_6", "LayerNorm, dropout, residual"),
        (
            "void at::native::multi_tensor_apply_kernel<TensorListMetadata, FusedOptimizerTensorListMetadata>",
            "optimizer",
        ),
        ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_gemm>", "matrix products"),
        ("triton_red_fused_sum_11", "sums"),
    ],
)
def test_kinds_by_name(name: str, kind: str) -> None:
    assert kind_of(name) == kind


def test_every_kernel_of_ours_has_a_kind(repository: Path) -> None:
    """A step's table once had LayerNorm under `other`."""
    names = [
        name
        for path in (repository / "trainer" / "model" / "kernels").glob("*.py")
        for name in re.findall(r"^def (\w+_kernel)\(", path.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert len(names) >= 8
    assert [name for name in names if kind_of(name) == OTHER] == []
