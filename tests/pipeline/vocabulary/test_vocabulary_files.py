"""Vocabularies trained from files: the command, what it writes, what it refuses and warns of."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer

from corpora import make_documents
from pipeline.config.schema import PipelineConfig, SourceConfig, VocabularyConfig
from pipeline.sources.splits import list_splits
from pipeline.tokenizer.tokenizer import WordTokenizer
from pipeline.vocabulary.__main__ import main
from pipeline.vocabulary.train import train_vocabulary


@pytest.fixture
def corpus(tmp_path):
    folder = tmp_path / "text"
    folder.mkdir()
    for number, lines in enumerate(make_documents(4, sentences=(400, 400))):
        (folder / f"{number}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def config_for(corpus, path, **settings) -> PipelineConfig:
    return PipelineConfig(
        sources=(SourceConfig(kind="text", path=str(corpus)),),
        output="out",
        vocabulary=VocabularyConfig(path=str(path), size=300, **settings),
        workers=1,
    )


def train(config, path) -> None:
    train_vocabulary(config, splits=list_splits(config.sources), path=path)


def test_json_holds_the_whole_tokenizer(corpus, tmp_path):
    path = tmp_path / "new" / "tokenizer.json"
    config = config_for(corpus, path, algorithm="bpe")
    train(config, path=path)
    assert Tokenizer.from_file(str(path)).get_vocab_size() == 300
    assert WordTokenizer.from_path(path, lowercase=True).vocab_size == 300


def test_command_line(corpus, tmp_path, capsys):
    path = tmp_path / "vocab.txt"
    settings = [f"sources=[{{kind: text, path: {corpus}}}]", "output=x", "workers=1", "vocabulary.size=200"]
    file = tmp_path / "config.yaml"
    file.write_text("{}")
    run = ["--config", str(file), *settings]
    assert main([*run, f"vocabulary.path={path}"]) == 0
    assert path.read_text(encoding="utf-8").count("\n") == 200
    assert main([*run, f"vocabulary.path={path}"]) == 0
    assert "already exists" in capsys.readouterr().out
    for extra, message in (
        ([], "vocabulary.path is not set"),
        (["vocabulary.path=x.bin"], "must end in .txt"),
        (["vocabulary.path=x.txt", "vocabulary.algorithm=bpe"], "cannot hold the merges of bpe"),
        (["vocabulary.path=x.txt", "--", "y"], "only options of Beam may follow"),
        (["--frobnicate"], "unknown option"),
    ):
        assert main([*run, *extra]) == 2
        assert message in capsys.readouterr().err
    assert main(["--help"]) == 0
    assert "vocabulary.min_pair_count" in capsys.readouterr().out


def test_a_vocabulary_that_cannot_be_written_leaves_nothing(corpus, tmp_path):
    (tmp_path / "v.txt").mkdir()
    with pytest.raises(ValueError, match=r"v\.txt: cannot be written \(Is a directory\)"):
        train(config_for(corpus, tmp_path / "v.txt"), path=tmp_path / "v.txt")
    assert not list(tmp_path.glob(".v.txt.*"))


def test_words_too_long_to_count_are_warned_of(tmp_path, caplog):
    """Clauses without spaces, of more than 100 characters, would be [UNK] without a word."""
    text = tmp_path / "text.txt"
    text.write_text("ab ba " * 40 + "a" * 101 + "\n", encoding="utf-8")
    config = PipelineConfig(
        sources=(SourceConfig(kind="text", path=str(text)),),
        vocabulary=VocabularyConfig(path=str(tmp_path / "v.txt"), train=True, size=120),
        output=str(tmp_path / "out"),
        workers=1,
    )
    train_vocabulary(config, splits=list_splits(config.sources), path=tmp_path / "v.txt")
    (warning,) = [record.getMessage() for record in caplog.records if "cannot be counted" in record.getMessage()]
    assert warning.startswith("warning: 101 characters are in words of more than 100 characters")
    assert "dictionary_words" in warning


def test_sources_without_words_are_refused(tmp_path):
    (tmp_path / "x.txt").write_text("\u200b\n\n\u200b\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"no words|not one|no document|empty"):
        train(config_for(tmp_path / "x.txt", tmp_path / "v.txt"), path=tmp_path / "v.txt")
    assert not (tmp_path / "v.txt").exists()
