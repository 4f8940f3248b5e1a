"""The trainer's bench: a row counts only if it learns, whoever made it; results of several calls make one page."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bench import learning, trainer
from bench.cards import name_card
from bench.trainer_parts import BATCHES, ROUNDS, measure, rate_at
from bench.trainer_tables import FALL, describe, list_faults, read_results
from synthetic import write_data_set
from trainer.engine.memory import Card


def make_result(part: str = "zero-1", **changes: Any) -> dict[str, Any]:
    result = {
        "size": "large", "card": "a card", "torch": "2", "date": "2026-01-01", "data": "rows", "tokens": 32768,
        "part": part, "tokens_per_second": 200_000.0, "places_per_second": 210_000.0, "tflops": 400.0,
        "step_ms": 150.0, "first_step_s": 30.0, "loss_before": 10.4, "loss_after": 8.3,
    }  # fmt: skip
    return {**result, **changes}


def write(path: Path, *results: dict[str, Any]) -> Path:
    path.write_text(json.dumps({"results": results}))
    return path


def test_losses_stand_beside_the_rates() -> None:
    results = [
        make_result("peak", tflops=800.0),
        make_result("transformers", tokens_per_second=50_000.0),
        make_result(),
    ]
    page = describe(results)
    assert "| ours, engine, ZeRO-1 | 10.40 to 8.30 | 200,000 | 4.00 | 210,000 | 400 | 50.0% | 150.0 |" in page
    assert page.startswith("# BERT large on a card, 2026-01-01\n")
    assert list_faults(results) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"loss_after": 10.5},
        {"loss_after": 10.4 - 0.9 * FALL},
        {"loss_after": math.nan},
        {"loss_after": None},
        {"loss_before": None},
    ],
)
@pytest.mark.parametrize("part", ["transformers", "plain", "zero-3", "product-1-zero-1-1"])
def test_a_row_that_does_not_learn_is_an_error_and_shows_no_rate(
    tmp_path: Path, part: str, changes: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "a.json", make_result("zero-2"), make_result(part, **changes))
    assert trainer.main(["--render", str(path), "--page", str(tmp_path / "page.md")]) == 1
    (row,) = [line for line in (tmp_path / "page.md").read_text().splitlines() if "DOES NOT LEARN" in line]
    assert "200,000" not in row
    assert "ERROR: BERT large: " in capsys.readouterr().out


def test_a_part_that_failed_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", {**make_result(), "failed": "exit status 1"})
    assert trainer.main(["--render", str(path), "--page", str(tmp_path / "page.md")]) == 1
    assert "| ours, engine, ZeRO-1 | **failed** |" in (tmp_path / "page.md").read_text()


def test_several_calls_make_one_page_and_the_last_of_a_part_counts(tmp_path: Path) -> None:
    first = write(tmp_path / "a.json", make_result(), make_result("zero-2"))
    base = write(tmp_path / "b.json", make_result(size="base", tokens_per_second=600_000.0))
    again = write(tmp_path / "c.json", make_result(tokens_per_second=222_222.0, date="2026-01-02"))
    assert trainer.main(["--render", *map(str, (first, base, again)), "--page", str(tmp_path / "page.md")]) == 0
    page = (tmp_path / "page.md").read_text()
    assert "# BERT large on a card, 2026-01-01 and 2026-01-02" in page
    assert "# BERT base on a card, 2026-01-01" in page
    assert "222,222" in page
    assert page.count("200,000") == 1


def test_two_cards_that_were_not_measured_are_named() -> None:
    one = [make_result(), make_result("product-1-zero-1-1", workers=1)]
    assert "Not run: two cards." in describe(one)
    assert "Not run" not in describe([*one, make_result("product-2-zero-1-1", workers=2)])


def test_the_card_is_named_without_a_context_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: pytest.fail("makes a context"))
    monkeypatch.setattr("bench.cards.find_local_card", lambda: Card(1e9, "a card"))
    assert (name_card("cuda"), name_card("cpu")) == ("a card", "CPU")
    monkeypatch.setattr("bench.cards.find_local_card", lambda: None)
    with pytest.raises(SystemExit, match="nvidia-smi"):
        name_card("cuda")


def test_neither_bench_makes_a_context_on_the_card_that_it_measures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_data_set(tmp_path / "data", rows=4, max_seq_length=64, vocabulary_size=256)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: pytest.fail("makes a context"))
    monkeypatch.setattr(
        "trainer.launch.cards.subprocess.run", lambda *_, **__: SimpleNamespace(stdout="1000, a card\n")
    )
    monkeypatch.setattr(trainer, "list_runs", lambda *_, **__: [lambda: {"part": "peak"}])
    (result,) = trainer.run_parts(trainer.parse([str(tmp_path / "data"), "--out", str(tmp_path)]))
    assert result["card"] == "a card"
    options = learning.parse([str(tmp_path / "data"), "--device", "cuda"])
    assert learning.run_missing([], folder=tmp_path, options=options, command="") == []


def test_what_a_failed_part_wrote_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "part.py").write_text("print('the last words'); raise SystemExit(3)")
    monkeypatch.setattr(trainer, "ROOT", tmp_path)
    monkeypatch.setattr(trainer, "MODULES", {"zero-1": ("part",)})
    setting = trainer.Setting("data", "tiny", "cpu", 256)
    assert trainer.run_part("zero-1", setting=setting) == {"part": "zero-1", "failed": "exit status 3"}
    assert "the last words" in capsys.readouterr().out


def test_a_file_without_results_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    with pytest.raises(ValueError, match=r"a\.json: holds no results"):
        read_results([tmp_path / "a.json"])


def test_an_unknown_part_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        trainer.parse(["data", "--only", "zero-4"])
    assert "no part is called zero-4" in capsys.readouterr().err


def test_every_pass_goes_over_all_batches() -> None:
    measured = measure(lambda index: index, begun=0.0, device="cpu")
    assert measured.losses == list(range((ROUNDS + 1) * BATCHES))
    assert [rate_at(index) for index in (0, 4, 9, 40)] == pytest.approx([1e-5, 5e-5, 1e-4, 1e-4])


def test_parts_of_both_sides_run_and_report_the_same_start(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    write_data_set(tmp_path / "data", rows=64, max_seq_length=64, vocabulary_size=256)
    small = ["--device", "cpu", "--size", "tiny", "--tokens", "256", "--out", str(tmp_path), "--name", "a"]
    status = trainer.main([str(tmp_path / "data"), *small, "--only", "transformers,plain,zero-1"])
    results = read_results([tmp_path / "a.json"])
    assert [result["part"] for result in results] == ["transformers", "plain", "zero-1"]
    for result in results:
        assert result["loss_before"] == pytest.approx(math.log(256), abs=0.1)
        assert result["loss_after"] < result["loss_before"]
    assert status == 1  # random tokens give BERT tiny less than FALL to learn
