"""What a build will cost: samples that are the input, estimates beside real builds."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import re
import tarfile
import zipfile
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from corpora import make_config, make_documents, write_text
from dumps import dump, page
from pipeline.build.recipe import build
from pipeline.config.schema import PipelineConfig, SourceConfig
from pipeline.documents import Document
from pipeline.estimate import cost, describe_build, sampling
from pipeline.estimate.__main__ import main
from pipeline.estimate.cost import Estimate, makespan
from pipeline.estimate.dry_run import advise_on_validation
from pipeline.estimate.sample_build import Measured
from pipeline.estimate.sampling import Frame, Unit, choose_units, list_frame, read_units
from pipeline.settings import validate
from pipeline.sources.splits import list_splits, read_documents
from small_builds import write_build

# The arithmetic


def test_a_total_is_the_ratio_times_the_size() -> None:
    """Units of sizes 1 and 3 gave 2 and 4: 1.5 a size, 12 for all of 8."""
    frame = make_frame(8, text_bytes=8)
    units = [{"size": size, "count": 1.0, "rows": rows} for size, rows in ((1.0, 2.0), (3.0, 4.0))]
    assert Measured(frame, whole=False, units=units).expand("rows") == 12.0
    assert Measured(frame, whole=False).expand("rows") == 0.0


def test_the_longest_go_first() -> None:
    assert makespan([3.0, 3.0, 2.0, 2.0, 2.0], workers=2) == 7.0
    assert makespan([5.0, 1.0], workers=4) == 5.0
    assert makespan([], workers=2) == 0.0


# The sample


def write_all_kinds(folder: Path) -> dict[str, dict[str, Any]]:
    """A source of every format, in several parts each."""
    documents = make_documents(60)
    texts = ["\n".join(f"{sentence.capitalize()}." for sentence in document) for document in documents]
    write_text(folder / "plain.txt", documents)
    (folder / "plain.txt.gz").write_bytes(gzip.compress((folder / "plain.txt").read_bytes()))
    (folder / "rows.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    pq.write_table(pa.table({"text": texts}), folder / "rows.parquet", row_group_size=7)
    (folder / "books").mkdir()
    with zipfile.ZipFile(folder / "books.zip", "w") as archive:
        for number, text in enumerate(texts):
            archive.writestr(f"{number}.txt", text)
    for mode, name in (("w", "books.tar"), ("w:xz", "books.tar.xz")):
        with tarfile.open(folder / name, mode) as tar:
            for number, text in enumerate(texts):
                (folder / "books" / f"{number}.txt").write_text(text)
                for entry in (f"{number}.txt", f".hidden{number}.txt", f"{number}.png"):
                    member = tarfile.TarInfo(entry)
                    member.size = len(text)
                    tar.addfile(member, io.BytesIO(text.encode()))
    xml = dump(*(page(f"P{number}", text.replace("\n", " ")) for number, text in enumerate(texts)))
    (folder / "dump.xml.bz2").write_bytes(bz2.compress(xml.encode()))
    (folder / "dump.xml").write_text(xml)
    return {
        "plain.txt": {"kind": "text"},
        "plain.txt.gz": {"kind": "text"},
        "rows.jsonl": {"kind": "jsonl"},
        "rows.parquet": {"kind": "parquet"},
        "books": {"kind": "books"},
        "books.zip": {"kind": "books"},
        "books.tar": {"kind": "books"},
        "books.tar.xz": {"kind": "books"},
        "dump.xml.bz2": {"kind": "wikipedia"},
        "dump.xml": {"kind": "wikipedia"},
    }


def test_the_units_of_a_source_are_all_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Together they hold what the build reads, whatever the format; and a unit read alone is the same."""
    monkeypatch.setattr(sampling, "_UNIT_BYTES", 500)
    for name, settings in write_all_kinds(tmp_path).items():
        source = validate(SourceConfig, {"path": str(tmp_path / name), **settings}, origin="test")
        whole = [
            item.id
            for split in list_splits([source])
            for item in read_documents(split, source)
            if isinstance(item, Document)
        ]
        frame = list_frame(source, index=0)
        found = {
            (unit.split.start, unit.split.path, unit.member): [item.id for item in items if isinstance(item, Document)]
            for unit, items in read_units(frame.units, source=source)
        }
        assert sorted(chain.from_iterable(found.values())) == sorted(whole), name
        assert len(whole) == 60, name
        assert len(frame.units) > 3 or name in ("plain.txt.gz", "dump.xml.bz2"), name
        assert frame.size == sum(unit.size for unit in frame.units), name
        some = frame.units[len(frame.units) // 2]
        ((unit, items),) = read_units([some], source=source)
        alone = [item.id for item in items if isinstance(item, Document)]
        assert found[unit.split.start, unit.split.path, unit.member] == alone, name


def make_frame(count: int, *, text_bytes: int) -> Frame:
    units = tuple(Unit(split, 1) for split in [list_splits_of_nothing(number) for number in range(count)])
    return Frame(0, units, count, text_bytes, by_file=False, skip_s={})


def list_splits_of_nothing(number: int) -> Any:
    return replace(_SPLIT, start=number)


_SPLIT = sampling.Split(0, "x", 0, -1, 1, 1)


def test_units_are_spread_evenly() -> None:
    (chosen,) = choose_units([make_frame(10_000, text_bytes=10_000_000_000)])
    assert len(chosen) == 100
    assert [unit.split.start for unit in chosen[:3]] == [50, 150, 250]
    (chosen,) = choose_units([make_frame(100, text_bytes=60_000_000)])
    assert len(chosen) == sampling.LEAST_UNITS
    (chosen,) = choose_units([make_frame(100, text_bytes=7_000_000)])
    assert len(chosen) == 100, "half of it is wanted: all is read"
    (chosen,) = choose_units([make_frame(10_000, text_bytes=10**13)])
    assert len(chosen) == sampling.LEAST_UNITS, "1% of 10 TB would take a day"


def test_of_a_long_compressed_stream_the_beginning_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = make_documents(4000)
    path = tmp_path / "rows.jsonl.gz"
    lines = [json.dumps({"text": "\n".join(document)}) for document in documents]
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    monkeypatch.setattr(sampling, "_PREFIX_BYTES", path.stat().st_size // 5)
    config = make_config(tmp_path, sources=[{"kind": "jsonl", "path": str(path)}])
    found = estimate(config, workers=1)
    assert not found.whole
    assert found.beginnings == 1
    assert "only the beginning of 1 compressed stream was read; the rest may differ" in cost.format_estimate(found)
    assert found.documents == pytest.approx(4000, rel=0.1)
    path.write_bytes(b"\x1f\x8b" + bytes(2 * path.stat().st_size))
    with pytest.raises(ValueError, match=r"rows\.jsonl\.gz"):
        estimate(config, workers=1)


# Estimates


def estimate(config: PipelineConfig, *, workers: int) -> Estimate:
    return cost.estimate(config, splits=list_splits(config.sources), workers=workers)


def truth_of(config: Any) -> dict[str, float]:
    manifest = build(config, say=lambda line: None)
    found = {
        name: float(sum(getattr(shard, name) for shard in manifest.shards)) for name in ("rows", "tokens", "bytes")
    }
    return {**found, "documents": float(sum(s["documents"] for s in manifest.statistics["splits"].values()))}


def test_a_small_input_is_read_whole(tmp_path: Path) -> None:
    """Documents are exact. So are tokens and rows but for the wrong next sentences, which differ by bucket."""
    path = write_text(tmp_path / "a.txt", make_documents(300))
    config = make_config(tmp_path, sources=[{"kind": "text", "path": str(path)}], next_sentence="none")
    found = estimate(config, workers=1)
    truth = truth_of(config)
    assert found.whole
    for name in ("documents", "rows", "tokens"):
        assert getattr(found, name) == pytest.approx(truth[name]), name
    assert found.bytes == pytest.approx(truth["bytes"], rel=0.02)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "out", "vocab.txt"]


def test_a_sample_comes_near_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sources of unlike documents, one with a weight, a tenth of them read."""
    monkeypatch.setattr(sampling, "_UNIT_BYTES", 6_000)
    monkeypatch.setattr(sampling, "LEAST_TEXT_BYTES", 100_000)
    short = write_text(tmp_path / "a.txt", make_documents(3000, sentences=(2, 5)))
    long = write_text(tmp_path / "b.txt", make_documents(500, seed=1, sentences=(10, 40)))
    sources = [
        {"kind": "text", "path": str(short), "name": "short"},
        {"kind": "text", "path": str(long), "name": "long", "weight": 2.0},
    ]
    config = make_config(tmp_path, sources=sources, validation_fraction=0.1, masks_per_pair=3)
    found = estimate(config, workers=2)
    assert not found.whole
    assert found.sample_units < found.sample_of_units / 4
    for name, real in truth_of(config).items():
        assert getattr(found, name) == pytest.approx(real, rel=0.1), name
    assert any(line.endswith("came within 15% on every corpus measured") for line in cost.format_estimate(found))
    assert found.wall_s > 0
    assert found.cpu_s > 0


def test_a_source_of_one_document_counts_by_its_tokens(tmp_path: Path) -> None:
    """It makes no rows by itself, as it has no other document to take a wrong next sentence from."""
    many = write_text(tmp_path / "a.txt", make_documents(300))
    one = write_text(tmp_path / "b.txt", make_documents(1, seed=1, sentences=(900, 1000)))
    sources = [{"kind": "text", "path": str(path), "name": path.stem} for path in (many, one)]
    config = make_config(tmp_path, sources=sources)
    found, truth = estimate(config, workers=1), truth_of(config)
    assert found.documents == truth["documents"] == 301
    assert found.tokens == pytest.approx(truth["tokens"], rel=0.05)


def test_mask_sets_are_reckoned_apart(tmp_path: Path) -> None:
    """10 mask sets are not 10 copies (mlcommons/training#497: 390 GB, 2% of it used)."""
    path = write_text(tmp_path / "a.txt", make_documents(300))
    config = make_config(tmp_path, sources=[{"kind": "text", "path": str(path)}], masks_per_pair=4)
    four = estimate(config, workers=1)
    ten = estimate(config.model_copy(update={"masks_per_pair": 10}), workers=1)
    reckoned = four.pair_bytes + 10 * four.mask_set_bytes
    assert four.pair_bytes + 4 * four.mask_set_bytes == pytest.approx(four.bytes)
    assert ten.bytes == pytest.approx(reckoned, rel=0.1)
    assert ten.bytes < 0.7 * 10 * (four.pair_bytes + four.mask_set_bytes)


def test_without_a_vocabulary_one_is_trained_on_the_sample(tmp_path: Path) -> None:
    path = write_text(tmp_path / "a.txt", make_documents(300))
    sources = [{"kind": "text", "path": str(path)}]
    missing = {"path": str(tmp_path / "none.txt"), "train": True, "size": 150}
    config = make_config(tmp_path, sources=sources, vocabulary=missing, next_sentence="none")
    found = estimate(config, workers=1)
    assert found.vocabulary == "none yet; 150 entries were trained on the sample"
    assert not (tmp_path / "none.txt").exists()
    assert found.tokens == pytest.approx(truth_of(config)["tokens"])
    assert (tmp_path / "none.txt").exists()
    assert estimate(config, workers=1).vocabulary == f"{tmp_path / 'none.txt'} (150 entries)"
    large = make_config(tmp_path, sources=sources, vocabulary={"size": 30_000})
    assert "(too small for size=30,000, so there will be fewer tokens)" in estimate(large, workers=1).vocabulary


def test_too_little_text_is_refused(tmp_path: Path) -> None:
    path = write_text(tmp_path / "a.txt", make_documents(1))
    config = make_config(tmp_path, sources=[{"kind": "text", "path": str(path)}])
    with pytest.raises(ValueError, match="the sample holds fewer than 2 documents"):
        estimate(config, workers=1)
    config = make_config(
        tmp_path,
        sources=[{"kind": "text", "path": str(path)}],
        vocabulary={"size": 150},
        cleaning={"min_words": 10_000},
    )
    with pytest.raises(ValueError, match="the sample has no words to train a vocabulary on"):
        estimate(config, workers=1)


# The command


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(write_build(tmp_path))
    assert main(["--config", "c.yaml", "masks_per_pair=2", "workers=3"]) == 0
    text = capsys.readouterr().out
    assert "all of the input, which is small" in text
    assert "\ndocuments                              40\n" in text
    assert re.search(r"^rows +\d+$", text, re.MULTILINE)
    assert "documents: exact, as all of the input was read;" in text
    assert "wall time, 3 workers" in text
    assert "with masks_per_pair=2" in text
    assert "10 masked copies of every row would take" in text
    assert main(["--config", "c.yaml", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["documents"] == 40.0
    assert main(["--help"]) == 0
    assert "masks_per_pair" in capsys.readouterr().out
    for words, error in (
        (["sources.0.path=nothing.txt"], "nothing.txt"),
        (["--jsn"], "did you mean --json"),
        (["--", "--runner=x"], "nothing may follow '--'"),
    ):
        assert main(["--config", "c.yaml", *words]) == 2
        assert error in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("documents", "fraction", "next_sentence", "expected"),
    [(40, 0.01, "random_document", "0.4 of 40"), (900, 0.01, "random_document", "9.0 of 900"),
     (490, 0.01, "none", "4.9 of 490"),
     (1_000, 0.01, "random_document", ""), (510, 0.01, "none", ""), (40, 0.0, "random_document", "")],
)  # fmt: skip
def test_a_dry_run_warns_if_too_few_documents_may_be_held_out(
    tmp_path: Path, documents: float, fraction: float, next_sentence: str, expected: str
) -> None:
    sources = [{"kind": "text", "path": "x"}]
    config = make_config(tmp_path, sources=sources, validation_fraction=fraction, next_sentence=next_sentence)
    found = list(advise_on_validation(config, documents=documents))
    assert len(found) == bool(expected)
    assert all(f"holds out about {expected}" in line and "or set it to 0" in line for line in found)


def test_the_dry_run_of_a_build_that_holds_out_nothing_says_so(tmp_path: Path) -> None:
    path = write_text(tmp_path / "a.txt", make_documents(40))
    sources = [{"kind": "text", "path": str(path)}]
    config = make_config(tmp_path, sources=sources, validation_fraction=0.001, vocabulary={"size": 150})
    assert [line for line in describe_build(config) if "validation_fraction=0.001 holds out about 0.0 of 40" in line]
    with pytest.raises(ValueError, match=r"validation_fraction=0\.001 holds out 0 of 40 documents"):
        build(config, say=lambda line: None)
