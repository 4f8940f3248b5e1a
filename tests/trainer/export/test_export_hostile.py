"""Exports of a run on a data set that somebody hostile made: nothing of it replaces the model, runs code or hides."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.dataset.manifest import read_manifest, write_manifest
from trainer.export import __main__
from trainer.export.folder import export
from untrained_run import write_run


@pytest.fixture
def hostile(tokenized: Path, tmp_path: Path) -> Path:
    """A copy of a data set, to be changed before a run on it is written."""
    return Path(shutil.copytree(tokenized, tmp_path / "set"))


def put(root: Path, name: str, content: bytes) -> None:
    """Write a file into the data set and list it in the manifest, which stays consistent with itself."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    manifest = read_manifest(root)
    files = {**manifest.files, name: hashlib.sha256(content).hexdigest()}
    write_manifest(root, manifest.model_copy(update={"files": files}), run={})


def set_config(root: Path, **settings: Any) -> None:
    name = "tokenizer/tokenizer_config.json"
    put(root, name, json.dumps({**json.loads((root / name).read_text()), **settings}).encode())


def set_tokenizer(root: Path, change: Callable[[dict[str, Any]], object]) -> None:
    name = "tokenizer/tokenizer.json"
    tree = json.loads((root / name).read_text())
    change(tree)
    put(root, name, json.dumps(tree).encode())


def refused(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What the command says of an export: one line, status 2, and nothing written."""
    write_run(tmp_path / "run", data=root)
    assert __main__.main([str(tmp_path / "run"), str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    return said


@pytest.mark.parametrize(
    "name",
    [
        *("model.safetensors", "config.json", "README.md", "cloze_export.json", "pytorch_model.bin", "modeling.py"),
        *("generation_config.json", "Tokenizer.json", "vocab.txt.bak", "sub/tokenizer.json", "added_tokens.json"),
    ],
)
def test_other_files_in_the_tokenizers_folder_are_refused(
    name: str, hostile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(hostile, f"tokenizer/{name}", b"{}")
    said = refused(hostile, tmp_path, capsys)
    assert f"lists 'tokenizer/{name}'" in said
    assert "manifest.json" in said


@pytest.mark.parametrize("name", ["Tokenizer/tokenizer.json", "tokenizer//tokenizer.json", "tokenizer/./vocab.txt"])
def test_other_spellings_of_the_tokenizers_folder_are_refused(
    name: str, hostile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(hostile, name, (hostile / "tokenizer" / Path(name).name).read_bytes())
    assert f"lists '{name}'" in refused(hostile, tmp_path, capsys)


@pytest.mark.parametrize(
    "settings",
    [
        {"auto_map": {"AutoTokenizer": ["evil.Tokenizer", None]}},
        {"tokenizer_class": "EvilTokenizer"},
        {"tokenizer_class": ["BertTokenizer"]},
        {"chat_template": "{{ 1 }}"},
        {"tokenizer_file": "/etc/passwd"},
        {"model_max_length": "x"},
        {"cls_token": {"__type": "AddedToken"}},
    ],
    ids=str,
)
def test_settings_that_the_pipeline_does_not_write_are_refused(
    settings: dict[str, Any], hostile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    set_config(hostile, **settings)
    said = refused(hostile, tmp_path, capsys)
    assert "tokenizer/tokenizer_config.json: " in said
    assert next(iter(settings)) in said


@pytest.mark.parametrize("content", [b"[]", b"{", b"[" * 100_000, b"\xff"])
def test_a_damaged_tokenizer_config_is_refused(
    content: bytes, hostile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(hostile, "tokenizer/tokenizer_config.json", content)
    assert "tokenizer_config.json: " in refused(hostile, tmp_path, capsys)


def test_a_tokenizer_whose_pattern_takes_forever_is_refused(
    hostile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    split = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
    set_tokenizer(hostile, lambda tree: tree.update(pre_tokenizer=split))
    assert "tokenizer/tokenizer.json: the pattern '(a+)+$' repeats" in refused(hostile, tmp_path, capsys)


FRONTS = {
    "not YAML": "license: [",
    "an alias bomb": "a: &a [x,x,x,x,x,x,x,x,x]\n"
    + "".join(f"{b}: &{b} [{','.join(['*' + a] * 9)}]\n" for a, b in zip("abcdefghi", "bcdefghij", strict=True)),
    "an alias of itself": "license: &a [*a]",
    "nested too deep": "license: " + "[" * 20_000,
    "a mapping as licence": "license: {a: 1}",
    "a number as licence": "license: 4",
    "a list in a list": "license: [[x]]",
}


@pytest.mark.parametrize("front", FRONTS)
def test_a_broken_front_matter_of_the_data_card_is_named(
    front: str, hostile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (hostile / "README.md").write_text(f"---\n{FRONTS[front]}\n---\n\n# Pairs\n")
    assert "set/README.md, front matter" in refused(hostile, tmp_path, capsys)


def test_a_data_card_that_is_no_text_is_named(
    hostile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (hostile / "README.md").write_bytes(b"\xff\xfe")
    assert "set/README.md: byte 0 is not UTF-8" in refused(hostile, tmp_path, capsys)


@pytest.mark.parametrize("sources", [5, "x", [1], [{}], [{"kind": "books", "language": ["en"]}]], ids=str)
def test_sources_that_are_none_are_refused(
    sources: Any, hostile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_manifest(hostile, read_manifest(hostile).model_copy(update={"config": {"sources": sources}}), run={})
    assert "config.sources" in refused(hostile, tmp_path, capsys)


def test_the_data_sets_texts_are_shown_in_the_card_as_they_are(hostile: Path, tmp_path: Path) -> None:
    source = {"kind": "books", "language": "en", "name": "<img src=x>\n\n# Mine | `x` [y](http://z)"}
    write_manifest(hostile, read_manifest(hostile).model_copy(update={"config": {"sources": [source]}}), run={})
    licence = "Licence: <script>alert(1)</script> [free](javascript:x) ![p](http://z)\n- licence *bold*\n"
    (hostile / "README.md").write_text(f'---\nlicense: "a\\n# b <b>"\n---\n{licence}')
    write_run(tmp_path / "run", data=hostile)
    export(tmp_path / "run", out=tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    assert r"- \<img src=x\> \# Mine \| \`x\` \[y\](http://z): books (en)" in card
    assert r"Licence: \<script\>alert(1)\</script\> \[free\](javascript:x) \!\[p\](http://z)" in card
    assert r"\- licence \*bold\*" in card
    assert r"names the licence a \# b \<b\>." in card
    assert [line for line in card.splitlines() if line.startswith("# ")] == ["# BERT (tiny), pretrained with Cloze"]


def test_several_licences_are_all_named(hostile: Path, tmp_path: Path) -> None:
    (hostile / "README.md").write_text("---\nlicense: [cc-by-4.0, mit]\n---\n")
    write_run(tmp_path / "run", data=hostile)
    export(tmp_path / "run", out=tmp_path / "out")
    assert "names the licence cc-by-4.0, mit." in (tmp_path / "out" / "README.md").read_text()


def test_a_path_ends_no_code_in_the_card(tokenized: Path, tmp_path: Path) -> None:
    write_run(tmp_path / "run", data=tokenized, initialize_from="/m`<b>\n# x")
    export(tmp_path / "run", out=tmp_path / "out")
    assert "the weights of `` /m`<b> # x ``, not" in (tmp_path / "out" / "README.md").read_text()


def test_the_marker_of_an_earlier_export_may_be_anything(
    tokenized: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "run", data=tokenized)
    (tmp_path / "out").mkdir()
    for text in ('{"files": 5}', '{"files": [[1]]}', "[" * 100_000):
        (tmp_path / "out" / "cloze_export.json").write_text(text)
        assert __main__.main([str(tmp_path / "run"), str(tmp_path / "out")]) == 2
        assert "is damaged" in capsys.readouterr().err


@pytest.mark.parametrize("value", ['"x"', "[1]", "{}", "9" * 400, "true"])
def test_damaged_records_of_the_run_are_passed_over(value: str, tokenized: Path, tmp_path: Path) -> None:
    write_run(tmp_path / "run", data=tokenized)
    for name in ("metrics.jsonl", "evaluations.jsonl"):
        (tmp_path / "run" / name).write_text(f'{{"step": 1, "mlm_loss": 5.5}}\n{{"step": 2, "mlm_loss": {value}}}\n')
    assert __main__.main([str(tmp_path / "run"), str(tmp_path / "out")]) == 0
    card = (tmp_path / "out" / "README.md").read_text()
    assert "| training, last step | 1 | 5.5000 |  |  |  |" in card
    assert "| held-out | 1 | 5.5000 |  |  |  |" in card


def test_texts_of_the_manifest_start_no_markup_in_the_card(hostile: Path, tmp_path: Path) -> None:
    manifest = read_manifest(hostile)
    odd = {"next_sentence": "<img src=x>[y](z)", "vocabulary_hash": "a`<b>"}
    write_manifest(hostile, manifest.model_copy(update=odd), run={})
    write_run(tmp_path / "run", data=hostile)
    export(tmp_path / "run", out=tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    assert r"next sentences (\<img src=x\>\[y\](z))" in card
    assert "vocabulary `` a`<b> ``." in card
