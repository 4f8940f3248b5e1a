"""Held-out documents of one phase's set that an earlier phase trained on are refused, with the numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline.dataset.manifest import read_manifest, write_manifest
from pipeline.run import main as build
from pipeline.settings import ConfigError
from planting import copy_set
from small_runs import make_config
from trainer.config.schema import TrainerConfig
from trainer.launch import preflight
from trainer.run import main as train

Build = Callable[..., Path]


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Builds data sets of numbered documents with one vocabulary, each once."""
    root = tmp_path_factory.mktemp("sets")
    words = [f"w{chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(120)]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    (root / "vocab.txt").write_text("\n".join([*special, *words]) + "\n")

    def make(fraction: float, *, text: str = "a", length: int = 32, **settings: Any) -> Path:
        out = root / "-".join(map(str, (fraction, text, length, *settings.values())))
        if out.exists():
            return out
        source = root / f"{text}.txt"
        first = 0 if text == "a" else 500
        lines = [
            "\n".join(" ".join(words[(number * 7 + line * k + k * k) % 120] for k in range(9)) for line in range(1, 6))
            + f"\n{' '.join(words[(number // 120**p) % 120] for p in range(3))}\n"
            for number in range(first, first + 400)
        ]
        source.write_text("\n".join(lines))
        if "rows_per_document" in settings:  # a file is held out as a whole
            source = root / f"{text}-files"
            source.mkdir(exist_ok=True)
            for number in range(40):
                (source / f"{number}.txt").write_text("\n".join(lines[10 * number : 10 * number + 10]))
        config = {"kind": "text", "path": str(source), **settings}
        arguments = [f"sources=[{{{', '.join(f'{key}: {value}' for key, value in config.items())}}}]"]
        arguments += [f"vocabulary.path={root / 'vocab.txt'}", f"output={out}", f"max_seq_length={length}"]
        assert build([*arguments, f"validation_fraction={fraction}", "workers=1", "shards=2"]) == 0
        return out

    return make


def phases_of(*data: Path, output: Path, **changes: Any) -> TrainerConfig:
    phases = tuple({"data": str(each), "share": 1 / len(data)} for each in data)
    return make_config(data[0], output, max_steps=2 * len(data), phases=phases, **changes)


def ids_of(data: Path, *, split: str) -> list[tuple[bytes, bytes]]:
    shards = [shard.path for shard in read_manifest(data).shards if shard.split == split]
    rows = [row for path in shards for row in pq.read_table(data / path).to_pylist()]
    return [(row["document_id"], row["second_document_id"]) for row in rows]


def test_a_larger_fraction_in_a_later_phase_is_refused_with_the_numbers(sets: Build, tmp_path: Path) -> None:
    small, large = sets(0.05), sets(0.2, length=48)
    held_out = ids_of(large, split="validation")
    trained = {first for first, _ in ids_of(small, split="train")}
    documents = {name for pair in held_out for name in pair}
    affected = sum(bool(trained & {*pair}) for pair in held_out)
    assert 0 < len(documents & trained) < len(documents)
    with pytest.raises(ConfigError) as refused:
        preflight.check(phases_of(small, large, output=tmp_path / "run"))
    assert str(refused.value) == (
        f"phases.1.data={large}: an earlier phase trains on {len(documents & trained)} of its {len(documents)} "
        f"held-out documents, in {affected} of its {len(held_out)} held-out pairs: phase 0, {small}, has "
        f"validation_fraction=0.05, this one 0.2; build both with the same validation_fraction"
    )
    assert not (tmp_path / "run").exists()


def test_a_dry_run_refuses_too(sets: Build, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small, large = sets(0.05), sets(0.2, length=48)
    words = ["batch.pairs=8", "max_steps=4", "launcher=processes", "device=cpu", f"output={tmp_path / 'run'}"]
    phases = f"phases=[{{share: 0.5}}, {{data: {large}}}]"
    (tmp_path / "empty.yaml").write_text(f"data: {small}\n")
    assert train(["--config", str(tmp_path / "empty.yaml"), "--dry-run", *words, phases]) == 2
    assert "an earlier phase trains on" in capsys.readouterr().err


def test_any_earlier_phase_counts(sets: Build, tmp_path: Path) -> None:
    """Also where a set comes back after another: its evaluation is then that of a model that saw its held-out text."""
    small, large, other = sets(0.05), sets(0.2, length=48), sets(0.2, text="b")
    with pytest.raises(ConfigError, match=r"phases\.2\.data=.*an earlier phase trains on .*: phase 0, "):
        preflight.check(phases_of(small, other, large, output=tmp_path / "run"))
    with pytest.raises(ConfigError, match=r"phases\.2\.data=.*an earlier phase trains on .*: phase 1, "):
        preflight.check(phases_of(large, small, large, output=tmp_path / "run"))
    with pytest.raises(ConfigError, match=r"phases\.1\.data=.*validation_fraction=0\.0, this one 0\.05"):
        preflight.check(phases_of(sets(0.0), small, output=tmp_path / "run"))


def test_what_was_evaluated_before_may_be_trained_on(sets: Build, tmp_path: Path) -> None:
    """The larger fraction first; the same set twice; equal fractions; a last set that holds nothing out."""
    small, large = sets(0.05), sets(0.2, length=48)
    for pair in ((large, small), (small, small), (small, sets(0.05, length=48)), (large, sets(0.0))):
        lines = preflight.check(phases_of(*pair, output=tmp_path / "run")).lines
        assert not [line for line in lines if "WARNING" in line]


def test_sets_over_other_texts_are_not_refused(sets: Build, tmp_path: Path) -> None:
    small, other = sets(0.05), sets(0.2, text="b", name="news")
    lines = preflight.check(phases_of(small, other, output=tmp_path / "run")).lines
    assert not [line for line in lines if "WARNING" in line]
    same_name = sets(0.05, text="b")
    (line,) = [
        line for line in preflight.check(phases_of(small, same_name, output=tmp_path / "run")).lines if "WARN" in line
    ]
    assert "shares no held-out document with phase 0" in line
    assert "both have a source text-en: unless the texts differ, they were split" in line


def test_the_same_text_divided_otherwise_is_warned_of(sets: Build, tmp_path: Path) -> None:
    small, halves = sets(0.2, length=48), sets(0.1, rows_per_document=3)
    lines = preflight.check(phases_of(small, halves, output=tmp_path / "run")).lines
    assert len([line for line in lines if "the earlier phase may train on held-out text" in line]) == 1


@pytest.mark.parametrize("fractions", [(0.2, 0.2), (0.25, 0.2)])
def test_documents_that_one_set_holds_out_with_their_book_are_compared(
    sets: Build, tmp_path: Path, fractions: tuple[float, float]
) -> None:
    """The same documents, alone and as stretches of files: other hashes decide, whatever the fractions."""
    alone, grouped = (sets(fraction, length=48) for fraction in fractions), sets(fractions[1], rows_per_document=6)
    first, second = alone
    held_out, trained = ids_of(grouped, split="validation"), ids_of(first, split="train")
    assert {name for pair in held_out for name in pair} & {name for pair in trained for name in pair}
    message = (
        r"phases\.1\.data=.*an earlier phase trains on .*; parts of a book are held out together, and the two have"
    )
    with pytest.raises(ConfigError, match=message):
        preflight.check(phases_of(first, grouped, output=tmp_path / "run"))
    with pytest.raises(ConfigError, match=message):
        preflight.check(phases_of(grouped, second, output=tmp_path / "run"))
    lines = preflight.check(phases_of(grouped, grouped, output=tmp_path / "run")).lines
    assert not [line for line in lines if "WARNING" in line]


def test_fractions_that_are_not_known_are_no_excuse(sets: Build, tmp_path: Path) -> None:
    """By the documents themselves, where the manifest does not say how they were chosen."""
    unknown = []
    for made in (sets(0.05), sets(0.2, length=48)):
        manifest = read_manifest(copy_set(made, tmp_path / made.name))
        config = {key: value for key, value in manifest.config.items() if key != "validation_fraction"}
        write_manifest(tmp_path / made.name, manifest.model_copy(update={"config": config}), run={"made_by": "tests"})
        unknown.append(tmp_path / made.name)
    with pytest.raises(ConfigError, match=r"an earlier phase trains on .*validation_fraction=None, this one None"):
        preflight.check(phases_of(*unknown, output=tmp_path / "run"))
    lines = preflight.check(phases_of(*reversed(unknown), output=tmp_path / "run")).lines
    assert not [line for line in lines if "WARNING" in line], "what was evaluated before may be trained on"
