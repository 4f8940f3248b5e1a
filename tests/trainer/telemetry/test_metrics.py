"""What a run tells: JSON lines cut at the checkpoint, progress, evaluation in words, the curve."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from synthetic import write_data_set
from trainer.checkpoint.retention import rank_evaluations
from trainer.config.schema import TrainerConfig
from trainer.launch import start
from trainer.telemetry import metrics
from trainer.telemetry.curve import MAX_POINTS, average_down, draw_curve, smooth
from trainer.telemetry.evaluation import Evaluation
from trainer.telemetry.metrics import (
    JsonLines,
    Progress,
    RunLog,
    StepMetrics,
    read_json_lines,
    read_last_lines,
    read_thinned,
)
from trainer.train.evaluate import unigram_log_probabilities

CONFIG = TrainerConfig.model_validate({"data": "d", "output": "o", "batch": {"pairs": 8}, "max_steps": 100})


def make_metrics(step: int, **changes: object) -> StepMetrics:
    values: dict[str, object] = {
        "step": step,
        "epoch": 0,
        "loss": 7.0,
        "mlm_loss": 6.3,
        "nsp_loss": 0.7,
        "mlm_accuracy": 0.1,
        "nsp_accuracy": 0.5,
        "learning_rate": 1e-3,
        "grad_norm": 1.25,
        "tokens": 1000,
        "pairs": 10,
        "masked": 150,
        "tokens_per_second": 500.0,
        "tflops": 1.5,
        "mfu": None,
        "data_wait_s": 0.02,
        "step_s": 2.0,
        "skipped": False,
    }
    return StepMetrics(**{**values, **changes})  # type: ignore[arg-type]


def make_step(*rows: tuple[int, int, int, int]) -> SimpleNamespace:
    columns = np.array(rows, dtype=np.int32).reshape(-1, 4).T
    names = ("epochs", "shards", "row_groups", "rows")
    return SimpleNamespace(micro_batches=(SimpleNamespace(**dict(zip(names, columns, strict=True))), None))


def open_log(folder: Path, *, said: list[str], resume_step: int = 0, rank: int = 0, **logging: object) -> RunLog:
    config = CONFIG.model_copy(update={"logging": CONFIG.logging.model_copy(update={"tracker": "none", **logging})})
    return RunLog(folder, config=config, rank=rank, world_size=2, resume_step=resume_step, say=said.append)


@given(losses=st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=20))
def test_floats_come_back_bit_for_bit(tmp_path_factory: pytest.TempPathFactory, losses: list[float]) -> None:
    path = tmp_path_factory.mktemp("metrics") / "metrics.jsonl"
    lines = JsonLines(path, keep_through=0)
    for step, loss in enumerate(losses, start=1):
        lines.write({"step": step, "loss": loss})
    lines.close()
    assert [record["loss"].hex() for record in read_json_lines(path)] == [loss.hex() for loss in losses]


def test_every_line_is_on_disk_before_the_next_step(tmp_path: Path) -> None:
    lines = JsonLines(tmp_path / "m.jsonl", keep_through=0)
    lines.write({"step": 1, "loss": 1.5})
    assert read_json_lines(tmp_path / "m.jsonl") == [{"step": 1, "loss": 1.5}]
    lines.close()


def test_lines_past_the_checkpoint_are_cut(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    kept = '{"step": 1}\n{"step": 2}\n'
    path.write_text(kept + '{"step": 3}\n{"step": 4}\n')
    lines = JsonLines(path, keep_through=2)
    assert path.read_text() == kept
    lines.write({"step": 3, "again": True})
    lines.close()
    assert path.read_text() == kept + '{"step": 3, "again": true}\n'


@pytest.mark.parametrize("tail", ["", '{"step": 9', "\0" * 200 + "\n", '{"step": 400}\n'])
def test_a_long_file_is_cut_and_read_from_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tail: str) -> None:
    """A run of 1,000,000 steps is resumed and rolled back as fast as a short one, in as little memory."""
    monkeypatch.setattr(metrics, "BLOCK_BYTES", 100, raising=False)
    parsed, loads = 0, json.loads

    def counted(text: bytes) -> Any:
        nonlocal parsed
        parsed += 1
        return loads(text)

    monkeypatch.setattr(metrics.json, "loads", counted)
    path = tmp_path / "m.jsonl"
    lines = [f'{{"step": {step}}}\n' for step in range(1, 301)]
    for keep in (0, 1, 2, 150, 298, 299, 300, 350):
        path.write_text("".join(lines) + tail)
        parsed = 0
        JsonLines(path, keep_through=keep).close()
        assert path.read_text() == "".join(lines[:keep])
        assert parsed <= 60, keep
    path.write_text("".join(lines) + tail)
    parsed = 0
    assert [read_last_lines(path, through=step)[-1:] for step in (0, 1, 150, 300)] == [
        *([], [{"step": 1}], [{"step": 150}], [{"step": 300}])
    ]
    assert 5 < len(read_last_lines(path, through=300)) < 20
    assert parsed <= 150
    assert read_last_lines(tmp_path / "absent.jsonl") == []


def test_a_long_file_is_thinned_out(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text("".join(f'{{"step": {step}}}\n' for step in range(1, 301)) + '{"step": 301')
    assert [record["step"] for record in read_thinned(path, most=4)] == [1, 76, 151, 226, 300]
    assert read_thinned(path, most=300) == read_json_lines(path)
    assert read_thinned(tmp_path / "absent.jsonl", most=4) == []


@pytest.mark.parametrize(
    "tail",
    ['{"step": 3, "lo', "\0\0\0\0\0\n", '{"loss": 1}\n', "3\n", '{"step": true}\n', "[" * 100_000 + "\n", "\0\0\0"],
)
def test_a_torn_or_unwritten_end_is_cut(tmp_path: Path, tail: str) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n' + tail)
    assert read_json_lines(path) == [{"step": 1}, {"step": 2}]  # so do those who read before the run goes on
    JsonLines(path, keep_through=9).close()
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n'


DAMAGE = ['{"step": 3, "lo\n', "\0\0\0\n", "{}\n", "[" * 9999 + "\n", '{"step": "4"}\n', "\xff\n", "\n"]
ODD = ('"x"', "[1]", '{"a": 1}', "true", "9" * 400, "1e400")
DAMAGE += [f'{{"step": 40, "{key}": {odd}}}\n' for key in ("mlm_loss", "nsp_accuracy", "mlm_loss/books") for odd in ODD]
DAMAGE += ['{"step": 40, "data_hash": [1]}\n', '{"step": 40, "rate": {}}\n', f'{{"step": {"9" * 400}}}\n']


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_inside_costs_no_later_record(damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block of the disk that was lost, or an editor: what follows is read, and a run goes on behind it."""
    path = tmp_path / "m.jsonl"
    before, after = ([{"step": step, "loss": 0.5} for step in steps] for steps in (range(1, 41), range(41, 81)))
    text = "".join(json.dumps(each) + "\n" for each in before) + damage
    whole = text + "".join(json.dumps(each) + "\n" for each in after)
    path.write_text(whole, encoding="latin-1")
    for size in (2**20, 64):
        monkeypatch.setattr(metrics, "BLOCK_BYTES", size)
        assert read_json_lines(path) == before + after
        assert read_last_lines(path)[-1:] == after[-1:]
        assert read_last_lines(path, through=40)[-1:] == before[-1:]
        assert read_thinned(path, most=1000) == before + after
        JsonLines(path, keep_through=80).close()
        assert path.read_text(encoding="latin-1") == whole
    JsonLines(path, keep_through=60).close()
    assert read_json_lines(path) == before + after[:20]


def test_what_json_cannot_say_is_null(tmp_path: Path) -> None:
    lines = JsonLines(tmp_path / "m.jsonl", keep_through=0)
    lines.write({"step": 1, "grad_norm": math.inf, "loss": math.nan})
    lines.close()
    assert (tmp_path / "m.jsonl").read_text() == '{"step": 1, "grad_norm": null, "loss": null}\n'


def test_a_full_disk_names_the_file(tmp_path: Path) -> None:
    lines = JsonLines(tmp_path / "m.jsonl", keep_through=0)
    lines.close()
    lines._stream = open("/dev/full", "a", encoding="ascii")  # noqa: SIM115
    for act in (lambda: lines.write({"step": 1}), lines.close):
        with pytest.raises(OSError, match=r"No space left on device: '.*/m\.jsonl'"):
            act()


def test_no_file_holds_no_lines(tmp_path: Path) -> None:
    assert read_json_lines(tmp_path / "absent.jsonl") == []


def test_a_reader_leaves_a_line_that_is_being_written(tmp_path: Path) -> None:
    (tmp_path / "m.jsonl").write_text('{"step": 1}\n{"step": 2, "l')
    assert read_json_lines(tmp_path / "m.jsonl") == [{"step": 1}]


def test_a_run_log_records_steps_evaluations_and_rows(tmp_path: Path) -> None:
    said: list[str] = []
    log = open_log(tmp_path, said=said, row_ids=True)
    log.write_step(make_metrics(1, phase=1, epoch=3), data=make_step((2, 0, 1, 2), (3, 3, 4, 5)), show=False)  # type: ignore[arg-type]
    log.write_step(make_metrics(2, phase=1, epoch=3), data=make_step((3, 6, 7, 8)), show=True)  # type: ignore[arg-type]
    log.write_evaluation(Evaluation(2, 10, 150, 5.0, 0.2, 0.6, 0.7, 6.5))
    log.close()
    assert [record["step"] for record in read_json_lines(tmp_path / "metrics.jsonl")] == [1, 2]
    assert read_json_lines(tmp_path / "evaluations.jsonl")[0]["unigram_loss"] == 6.5
    rows = read_json_lines(tmp_path / "rows-0.jsonl")
    place = {"phase": 1, "epoch": 3}
    assert rows == [
        {"step": 1, **place, "rows": [[2, 0, 1, 2], [3, 3, 4, 5]]},
        {"step": 2, **place, "rows": [[3, 6, 7, 8]]},
    ]
    assert said[0].startswith("step   2/100  loss 7.000 (mlm 6.300, nsp 0.700)")
    assert "the model is 1.5000 nats below it" in "\n".join(said)


def test_other_ranks_record_rows_alone(tmp_path: Path) -> None:
    said: list[str] = []
    log = open_log(tmp_path, said=said, rank=1, row_ids=True)
    log.say("hello")
    log.write_step(make_metrics(1), data=make_step((0, 0, 0, 0)), show=True)  # type: ignore[arg-type]
    log.write_evaluation(Evaluation(1, 1, 1, 1.0, 1.0, None, None, 1.0))
    log.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows-1.jsonl"]
    assert said == []


def test_rows_of_ranks_that_are_no_more_are_cut_too(tmp_path: Path) -> None:
    for rank in range(4):
        (tmp_path / f"rows-{rank}.jsonl").write_text('{"step": 1, "rows": []}\n{"step": 2, "rows": []}\n')
    open_log(tmp_path, said=[], resume_step=1, row_ids=True).close()
    left = [len(read_json_lines(tmp_path / f"rows-{rank}.jsonl")) for rank in range(4)]
    assert left == [1, 2, 1, 1]  # rank 1 cuts its own


def test_tensorboard_has_the_scalars_and_forgets_what_is_done_again(tmp_path: Path) -> None:
    """A step is one event: an event a scalar took a millisecond of each step."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    for resume_step, steps in ((0, (1, 2, 3)), (1, (2,))):
        log = open_log(tmp_path, said=[], resume_step=resume_step, tracker="tensorboard")
        for step in steps:
            metrics = make_metrics(step, loss=float(10 * resume_step + step))
            log.write_step(metrics, data=make_step(), show=False)  # type: ignore[arg-type]
        log.close()
    board = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in board.Scalars("train/loss")] == [(1, 1.0), (2, 12.0)]
    files = (tmp_path / "tensorboard").iterdir()
    events = [event for path in files for event in EventFileLoader(str(path)).Load() if event.HasField("summary")]
    assert sorted(event.step for event in events) == [1, 2, 2, 3]


def test_progress_shows_rate_waiting_and_remaining_time() -> None:
    progress = Progress(max_steps=100)
    progress.add(60.0)  # the first step compiles and warms up
    progress.add(2.0)
    line = progress.line(make_metrics(40))
    assert line == (
        "step  40/100  loss 7.000 (mlm 6.300, nsp 0.700)  lr 1.0e-03  norm 1.25  500 tokens/s  waiting 1%  2 min left"
    )


def test_progress_shows_the_share_of_the_peak_where_it_is_known() -> None:
    progress = Progress(max_steps=100)
    assert "  500 tokens/s  mfu 45.7%  waiting 1%" in progress.line(make_metrics(40, mfu=0.4571))
    assert "mfu" not in progress.line(make_metrics(40))


def test_progress_ends_with_the_hours() -> None:
    progress = Progress(max_steps=100, max_hours=1.0)
    progress.add(60.0)
    assert progress.line(make_metrics(40, hours=0.9)).endswith("  6 min left")
    assert progress.line(make_metrics(99, hours=0.5)).endswith("  60 s left")


def test_progress_without_next_sentence_and_with_a_skipped_update() -> None:
    progress = Progress(max_steps=100)
    progress.add(1.0)
    line = progress.line(make_metrics(1, nsp_loss=None, skipped=True))
    assert "(mlm 6.300)" in line
    assert line.endswith("2 min left  (update skipped: not finite)")


def test_evaluation_says_where_the_model_stands() -> None:
    lines = Evaluation(9, 100, 1500, 5.0, 0.25, 0.5, 0.75, 6.25).lines()
    assert lines[0] == (
        "held-out masked-LM loss 5.0000 nats (perplexity 148.4), accuracy 25.00%, over 1,500 masked tokens of 100 pairs"
    )
    assert "6.2500 nats" in lines[1]
    assert "1.2500 nats below it" in lines[1]
    assert lines[2] == "held-out next-sentence accuracy 75.00%, loss 0.5000 nats"
    known = replace(Evaluation(9, 100, 1500, 5.0, 0.25, 0.5, 0.75, 6.25), shortcut_accuracy=0.512)
    assert known.lines()[2].endswith(" nats (the best rule that does not read the text is right in 51.20%)")
    assert Evaluation.of(known.record()) == known


def test_evaluation_hides_neither_a_bad_model_nor_a_missing_head() -> None:
    lines = Evaluation(9, 100, 1500, 25.0, 0.0, None, None, 6.25).lines()
    assert len(lines) == 2
    assert "perplexity over 1e8" in lines[0]
    assert "18.7500 nats ABOVE it" in lines[1]


def test_unigram_is_the_smoothed_share_of_training_tokens(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    write_data_set(tmp_path, vocabulary_size=300)
    counts = pq.read_table(tmp_path / "token_counts.parquet")["count"].to_numpy()
    log_probabilities = unigram_log_probabilities(tmp_path, vocabulary_size=300)
    assert math.isclose(np.exp(log_probabilities).sum(), 1.0)
    assert math.isclose(log_probabilities[0], math.log(1 / (counts.sum() + 300)))
    token = int(counts.argmax())
    assert math.isclose(log_probabilities[token], math.log((counts[token] + 1) / (counts.sum() + 300)))


def test_smoothing_is_a_centred_mean_that_leaves_gaps_out() -> None:
    assert smooth(np.array([1.0, 2.0, 6.0])).tolist() == [1.5, 3.0, 4.0]
    assert smooth(np.array([1.0, math.nan, 3.0])).tolist() == [1.0, 2.0, 3.0]


def test_long_runs_are_averaged_down() -> None:
    steps, values = average_down(np.arange(5000.0), np.arange(5000.0))
    assert steps.size == values.size == MAX_POINTS
    assert values[0] == 2.0
    assert math.isclose(values.mean(), 2499.5)


def write_run(folder: Path, *, nsp: bool) -> None:
    with open(folder / "metrics.jsonl", "w") as stream:
        for step in range(1, 31):
            record = {"step": step, "mlm_loss": 7.0 - step / 10, "nsp_loss": 0.7 if nsp else None}
            stream.write(json.dumps(record) + "\n")
    with open(folder / "evaluations.jsonl", "w") as stream:
        record = {"step": 30, "mlm_loss": 4.2, "nsp_loss": 0.7 if nsp else None, "unigram_loss": 5.0}
        stream.write(json.dumps(record) + "\n")


def test_the_curve_has_a_panel_for_each_loss(tmp_path: Path) -> None:
    from matplotlib import image

    widths = {}
    for nsp in (True, False):
        write_run(tmp_path, nsp=nsp)
        picture = image.imread(draw_curve(tmp_path))
        assert picture.std() > 0.05  # something is drawn
        widths[nsp] = picture.shape[1]
    assert widths[True] == 2 * widths[False]
    assert not list(tmp_path.glob("*.partial*"))


def test_no_step_no_curve(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"metrics\.jsonl: no step is recorded"):
        draw_curve(tmp_path)


def test_a_record_without_losses_leaves_a_gap(tmp_path: Path) -> None:
    write_run(tmp_path, nsp=True)
    for name in ("metrics.jsonl", "evaluations.jsonl"):
        with open(tmp_path / name, "a") as stream:
            stream.write('{"step": 31}\n{"step": 32, "mlm_loss": "x"}\n')
    assert draw_curve(tmp_path).is_file()
    assert rank_evaluations(tmp_path) == [{30: 4.9}]
    (line,) = start._describe_last(read_last_lines(tmp_path / "evaluations.jsonl"))
    assert line == "evaluations.jsonl: a number is missing in the last record, so it is not shown"
    assert start._describe_last([]) == []
