"""The recipe for the real corpus: it loads, says what is missing before it fetches anything, and then builds."""

from __future__ import annotations

import bz2
import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from corpora import make_documents, write_vocabulary
from dump_mirror import Mirror, serve_mirror
from dumps import dump, page
from pipeline import run
from pipeline.config.engines import KEYS
from pipeline.config.schema import PipelineConfig
from pipeline.dataset.manifest import read_manifest
from pipeline.download import __main__
from pipeline.engines.base import check_engine
from pipeline.runtime import command
from pipeline.settings import ConfigError, load_settings, split_arguments, validate

RECIPE = "pipeline/configs/wikipedia_books.yaml"
MISSING = (
    r"sources\.1 \(bookcorpus\): the glob \S+ matches no file; .*BookCorpus is not fetched: bring its Parquet files"
)


@pytest.fixture
def recipe(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The recipe's file; the current directory is empty."""
    monkeypatch.chdir(tmp_path)
    return repository / RECIPE


@pytest.fixture
def mirror() -> Iterator[Mirror]:
    with serve_mirror() as mirror:
        yield mirror


def put_books(folder: Path) -> None:
    folder.mkdir(parents=True)
    lines = [line for document in make_documents(400, seed=3) for line in document]
    pq.write_table(pa.table({"text": lines}), folder / "bookcorpus-0.parquet")


def put_dump(server: Mirror) -> bytes:
    texts = [" ".join(document).replace("\n", " ") + "." for document in make_documents(30, seed=5)]
    data = bz2.compress(dump(*(page(f"P{number}", text) for number, text in enumerate(texts))).encode())
    server.add("enwiki-20261101-pages-articles-multistream.xml.bz2", data)
    return data


def test_the_recipe_is_valid_and_names_both_corpora(recipe: Path) -> None:
    config = load_settings(PipelineConfig, file=recipe)
    assert config.source_names == ("bookcorpus", "wikipedia")
    assert [source.kind for source in config.sources] == ["wikipedia", "parquet"]
    (wanted,) = config.download.wikipedia
    assert config.sources[0].path == wanted.folder
    assert set(config.download.bring) == {"wikipedia", "bookcorpus"}
    assert (config.max_seq_length, config.masks_per_pair, config.masking) == (512, 10, "whole_word")
    assert (config.vocabulary.train, config.vocabulary.size) == (True, 30_522)
    assert "download" not in config.data_tree()


def test_the_recipe_names_engines_as_the_command_takes_them(recipe: Path) -> None:
    text = recipe.read_text().replace(" \\\n#", "")
    commands = re.findall(r"^# .*python pipeline/run\.py (.*)$", text, re.MULTILINE)
    engines = []
    for line in commands:
        given = split_arguments(line.split(), program="test", keys=KEYS)
        config = load_settings(PipelineConfig, file=recipe, overrides=given.overrides)
        check_engine(config, beam_options=given.rest)
        engines.append(config.engine)
        assert given.flags == given.rest == ()
        assert Path(config.output).is_absolute()
    assert engines == ["dask", "ray"]


def test_books_that_are_missing_are_named_before_anything_is_fetched(
    recipe: Path, mirror: Mirror, capsys: pytest.CaptureFixture[str]
) -> None:
    put_dump(mirror)
    words = ["config", "--config", str(recipe), f"download.mirror={mirror.url}"]
    assert __main__.main(words) == 2
    assert re.search(MISSING, capsys.readouterr().err)
    assert mirror.requests == []
    Path("data/wikipedia/en").mkdir(parents=True)
    Path("data/wikipedia/en/enwiki.xml").write_text(dump(page("A", "a")))
    with pytest.raises(ValueError, match=MISSING):
        command.read_config(split_arguments(["--config", str(recipe)], program="test"))
    put_books(Path("data/bookcorpus"))
    Path("data/wikipedia/en/enwiki.xml").unlink()
    with pytest.raises(ValueError, match=r"sources\.0 \(wikipedia\): no file .*Fetch it with `make download CONFIG="):
        command.read_config(split_arguments(["--config", str(recipe)], program="test"))


def test_the_recipe_fetches_once_and_builds(recipe: Path, mirror: Mirror, capsys: pytest.CaptureFixture[str]) -> None:
    data = put_dump(mirror)
    put_books(Path("data/bookcorpus"))
    words = ["--config", str(recipe), f"download.mirror={mirror.url}", "workers=1", "validation_fraction=0.2"]
    words += [f"vocabulary.path={write_vocabulary(Path('vocab.txt'))}"]
    assert __main__.main(["config", *words, "--", "--runner=x"]) == 0
    assert "data/wikipedia/en: ready. The texts of Wikipedia are licensed" in capsys.readouterr().out
    (fetched,) = Path("data/wikipedia/en").glob("*.bz2")
    assert fetched.read_bytes() == data
    requests = len(mirror.requests)
    assert __main__.main(["config", *words]) == 0
    assert "complete, nothing to do" in capsys.readouterr().out
    assert len(mirror.requests) == requests, "what is complete needs no mirror"
    assert run.main(words) == 0
    statistics = read_manifest("data/english-512").statistics
    found = {source["name"]: source["documents"] for source in statistics["sources"]}
    assert found == {"wikipedia": 30, "bookcorpus": -(-num_rows("data/bookcorpus") // 1000)}
    fetched.unlink()
    assert __main__.main(["config", *words]) == 0
    assert fetched.read_bytes() == data


def test_a_cut_or_damaged_dump_is_fetched_again_as_the_messages_say(
    recipe: Path, mirror: Mirror, capsys: pytest.CaptureFixture[str]
) -> None:
    """Cut: the next fetch says so. Other bytes of the same length: the build does."""
    data = put_dump(mirror)
    put_books(Path("data/bookcorpus"))
    words = ["--config", str(recipe), f"download.mirror={mirror.url}", "workers=1"]
    assert __main__.main(["config", *words]) == 0
    (fetched,) = Path("data/wikipedia/en").glob("*.bz2")
    fetched.write_bytes(data[:2])
    assert __main__.main(["config", *words]) == 2
    assert "remove it, then run this again" in capsys.readouterr().err
    fetched.write_bytes(data[:-100] + bytes(100))
    assert run.main([*words, f"vocabulary.path={write_vocabulary(Path('vocab.txt'))}"]) == 2
    assert "remove the file and fetch it again" in capsys.readouterr().err
    fetched.unlink()
    assert __main__.main(["config", *words]) == 0
    assert fetched.read_bytes() == data


def test_what_is_fetched_is_on_the_disk_before_it_has_its_name(
    recipe: Path, mirror: Mirror, disk_events: list[str]
) -> None:
    put_dump(mirror)
    put_books(Path("data/bookcorpus"))
    assert __main__.main(["config", "--config", str(recipe), f"download.mirror={mirror.url}"]) == 0
    folder = Path("data/wikipedia/en").absolute()
    name = f"{folder}/enwiki-20261101-pages-articles-multistream.xml.bz2"
    listing = f"{folder}/.enwiki-20261101.sha1"
    assert disk_events[:3] == [f"sync {name}.part", f"name {name}", f"sync {folder}"]
    assert disk_events[-2:] == [f"name {listing}", f"sync {folder}"]


def num_rows(folder: str) -> int:
    return sum(pq.read_metadata(path).num_rows for path in Path(folder).iterdir())


def test_a_config_without_downloads_fetches_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "my.yaml"
    path.write_text("sources: [{kind: text, path: absent.txt}]\noutput: out\n")
    assert __main__.main(["config", "--config", str(path)]) == 0
    assert capsys.readouterr().out == ""
    assert __main__.main(["config"]) == 2
    assert "--config FILE is missing" in capsys.readouterr().err


@pytest.mark.parametrize(
    "more", [["--engine", "ray"], ["--engine=ray"], ["--traceback"], ["--", "--runner=x"], ["--help"]]
)
def test_what_is_meant_for_the_build_does_not_stop_the_fetching(tmp_path: Path, more: list[str]) -> None:
    path = tmp_path / "my.yaml"
    path.write_text("sources: [{kind: text, path: absent.txt}]\noutput: out\n")
    assert __main__.main(["config", "--config", str(path), *more]) == 0
    assert __main__.main(["config", "--config", str(path), "--engin=ray"]) == 2


def test_a_dry_run_fetches_nothing(recipe: Path, mirror: Mirror, capsys: pytest.CaptureFixture[str]) -> None:
    put_dump(mirror)
    put_books(Path("data/bookcorpus"))
    words = ["config", "--config", str(recipe), f"download.mirror={mirror.url}"]
    for flags in (["--dry-run", "--price=0.05"], ["--help"]):
        assert __main__.main([*words, *flags]) == 0
    assert "data/wikipedia/en: not complete; a dry run fetches nothing" in capsys.readouterr().out
    assert mirror.requests == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"bring": {"boks": "x"}},
            r"download\.bring\.boks: no source is called boks \(there are text-en\); correct it",
        ),
        ({"wikipedia": [{"language": "en", "date": "1", "folder": "f"}]}, r"download\.wikipedia\.0\.date='1': "),
    ],
)
def test_what_cannot_be_meant_is_refused(settings: dict[str, object], message: str) -> None:
    tree = {"sources": [{"kind": "text", "path": "a.txt"}], "output": "o", "download": settings}
    with pytest.raises(ConfigError, match=message):
        validate(PipelineConfig, tree, origin="test")


@pytest.mark.parametrize(
    ("files", "found"),
    [(["vocab.txt"], "vocab.txt"), (["vocab.txt", "tokenizer.json", "model.safetensors"], "tokenizer.json")],
)
def test_a_folder_with_a_vocabulary_stands_for_the_file(tmp_path: Path, files: list[str], found: str) -> None:
    (tmp_path / "model").mkdir()
    for name in files:
        write_vocabulary(tmp_path / "model" / name)
    words = ["output=o", "sources=[{kind: text, path: t}]", f"vocabulary.path={tmp_path / 'model'}"]
    config = read_sample_of(tmp_path, words)
    assert config.vocabulary.path == str(tmp_path / "model" / found)


@pytest.mark.parametrize("train", [False, True])
def test_a_folder_without_a_vocabulary_asks_for_a_file(tmp_path: Path, train: bool) -> None:
    (tmp_path / "model").mkdir()
    words = [
        "output=o",
        "sources=[{kind: text, path: t}]",
        f"vocabulary={{path: {tmp_path / 'model'}, train: {train}}}",
    ]
    with pytest.raises(ConfigError) as caught:
        read_sample_of(tmp_path, words)
    told = f"vocabulary.path={tmp_path / 'model'}: is a folder without tokenizer.json and vocab.txt; name a file"
    assert str(caught.value) == told + f", such as {tmp_path / 'model'}/vocab.txt to train into" * train


def test_a_command_keeps_what_was_not_given_apart_from_what_was(tmp_path: Path) -> None:
    """The warning that a tokenizer.json overrules vocabulary.lowercase is for those who gave it."""
    config = read_sample_of(tmp_path, ["output=o", "sources=[{kind: text, path: t}]", "vocabulary.path=t.json"])
    assert config.vocabulary.model_fields_set == {"path"}


def read_sample_of(folder: Path, words: list[str]) -> PipelineConfig:
    (folder / "c.yaml").write_text("{}\n")
    return command.read_config(split_arguments(["--config", str(folder / "c.yaml"), *words], program="test"))
