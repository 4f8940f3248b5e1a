"""Vectors of every layer are transformers' hidden states, combined and pooled as asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from task_models import write_model
from trainer.features import FeaturesConfig, main
from trainer.features.command import write_vectors

transformers = pytest.importorskip("transformers")

TEXTS = ["the film was great", "kim was so bad , and then", "it"]


@pytest.fixture(scope="module", params=["post", "pre"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"), norm=request.param)


@pytest.fixture(scope="module")
def states(model: Path) -> list[np.ndarray]:  # type: ignore[type-arg]
    """transformers' hidden states of each text, [layers + 1, tokens, width]."""
    other = transformers.AutoModel.from_pretrained(model).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    with torch.no_grad():
        found = [other(**tokenizer(text, return_tensors="pt"), output_hidden_states=True) for text in TEXTS]
    return [torch.cat(each.hidden_states).numpy() for each in found]


def read_vectors(model: Path, source: Path, output: Path, **settings: Any) -> Any:
    tree = {"model": str(model), "input": str(source), "output": str(output), "device": "cpu", **settings}
    write_vectors(FeaturesConfig.model_validate(tree))
    if output.suffix == ".npy":
        return np.load(output)
    return np.array(pq.read_table(output).column("vector").to_pylist(), np.float32)


def vectors_of(model: Path, folder: Path, **settings: Any) -> Any:
    (folder / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    tree = {"model": str(model), "input": str(folder / "texts.txt"), "batch_size": 2, "device": "cpu", **settings}
    write_vectors(FeaturesConfig.model_validate({"output": str(folder / "out.npy"), **tree}))
    return np.load(folder / "out.npy")


def test_every_layer_and_every_combination_is_that_of_transformers(
    model: Path, states: list[Any], tmp_path: Path
) -> None:
    close = {"rtol": 1e-4, "atol": 1e-5}
    for layer in (0, 1, 2, -1, -2):
        found = vectors_of(model, tmp_path, layers={"numbers": (layer,)}, pool="cls")
        np.testing.assert_allclose(found, [each[layer, 0] for each in states], **close)
    last = {"numbers": (-2, -1)}
    found = vectors_of(model, tmp_path, layers=last)
    assert found.shape == (3, 256)
    np.testing.assert_allclose(found, [np.concatenate([each[-2], each[-1]], -1).mean(0) for each in states], **close)
    found = vectors_of(model, tmp_path, layers={**last, "combine": "sum"})
    np.testing.assert_allclose(found, [(each[-2] + each[-1]).mean(0) for each in states], **close)
    found = vectors_of(model, tmp_path, layers={**last, "combine": "weighted", "weights": (0.25, 2.0)})
    np.testing.assert_allclose(found, [(each[-2] / 4 + 2 * each[-1]).mean(0) for each in states], **close)


def test_tokens_and_pairs_go_to_parquet(model: Path, states: list[Any], tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"a": "the film", "b": "it was great"}\n{"a": "kim", "b": "so"}\n')
    words = [f"--model={model}", f"--input={tmp_path / 'in.jsonl'}", f"--output={tmp_path / 'sub' / 'out.parquet'}"]
    assert main([*words, "column=a", "second_column=b", "pool=tokens", "device=cpu"]) == 0
    table = pq.read_table(tmp_path / "sub" / "out.parquet")
    assert table.column("tokens").to_pylist()[1] == ["[CLS]", "kim", "[SEP]", "so", "[SEP]"]
    assert table.schema.metadata[b"cloze.pool"] == b"tokens"
    other = transformers.AutoModel.from_pretrained(model).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    with torch.no_grad():
        wanted = other(**tokenizer("the film", "it was great", return_tensors="pt")).last_hidden_state[0]
    np.testing.assert_allclose(np.array(table.column("vectors")[0].as_py()), wanted, rtol=1e-4, atol=1e-5)


def test_wrong_settings_are_told(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match=r"layers.numbers has 3, the model has layers 0 to 2; give one of them"):
        vectors_of(model, tmp_path, layers={"numbers": (3,)})
    with pytest.raises(ValueError, match=r"pool=tokens: .* give a .parquet"):
        vectors_of(model, tmp_path, pool="tokens")
    with pytest.raises(ValueError, match=r"give a file that ends with .parquet or .npy"):
        vectors_of(model, tmp_path, output=str(tmp_path / "x.txt"))
    with pytest.raises(ValueError, match=r"layers.weights and layers.combine=weighted belong together"):
        vectors_of(model, tmp_path, layers={"numbers": (-1,), "weights": (1.0,)})
    causal = write_model(tmp_path / "causal", objective="left_to_right", pooler=False)
    with pytest.raises(ValueError, match=r"pool=cls: .*causal reads from left to right, .*; use pool=mean"):
        vectors_of(causal, tmp_path, pool="cls")
    words = [f"--model={model}", f"--input={tmp_path / 'texts.txt'}", f"--output={tmp_path / 'x.npy'}"]
    assert main([*words, "max_length=100"]) == 2
    assert "is for rows of 64 tokens; lower it" in capsys.readouterr().err


def test_lines_of_a_text_file_are_its_line_feeds_alone(model: Path, tmp_path: Path) -> None:
    """U+2028, form feed and the like stand inside of texts; the last line may lack its end."""
    texts = ["the film\u2028was", "great\x0cso", "", "  \t", "kim\x85\U0001f600"]
    for end, last in (("\n", "\n"), ("\r\n", "")):
        (tmp_path / "in.txt").write_bytes((end.join(texts) + last).encode("utf-8"))
        found = read_vectors(model, tmp_path / "in.txt", tmp_path / "out.npy")
        assert found.shape == (5, 128)
        assert np.isfinite(found).all()
    for number, text in enumerate(texts):
        pq.write_table(pa.table({"text": [text]}), tmp_path / "one.parquet")
        alone = read_vectors(model, tmp_path / "one.parquet", tmp_path / "one.npy")
        np.testing.assert_allclose(alone[0], found[number], rtol=1e-4, atol=1e-5)


def test_ten_thousand_texts_of_parquet_have_the_vectors_that_they_have_alone(model: Path, tmp_path: Path) -> None:
    """Some are empty, some are cut at the model's 64 tokens."""
    words = ["the", "film", "was", "kim", "so", "goodly"]
    texts = ["", "kim", *(" ".join(words[(number + place) % 6] for place in range(number % 4)) for number in range(98))]
    long = " ".join(words * 15)
    pq.write_table(pa.table({"text": [*texts * 99, *texts[:-1], long]}), tmp_path / "in.parquet", row_group_size=999)
    found = read_vectors(model, tmp_path / "in.parquet", tmp_path / "out.parquet")
    assert found.shape == (10_000, 128)
    assert pq.read_table(tmp_path / "out.parquet").column("id").to_pylist() == list(range(10_000))
    pq.write_table(pa.table({"text": [*texts, long]}), tmp_path / "few.parquet")
    few = read_vectors(model, tmp_path / "few.parquet", tmp_path / "few.npy", batch_size=1)
    np.testing.assert_allclose(found[:100], few[:100], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found[[9_800, -2, -1]], few[[0, 98, 100]], rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("ending", ["npy", "parquet"])
def test_what_is_no_text_is_told(ending: str, model: Path, tmp_path: Path) -> None:
    output = tmp_path / f"out.{ending}"
    (tmp_path / "none.txt").write_text("")
    with pytest.raises(ValueError, match=r"none.txt: holds no text; give a file with texts"):
        read_vectors(model, tmp_path / "none.txt", output)
    for text, message in (
        ("null", "text is None, no text; mend the row"),
        ('"\\ud83d"', "text has half a character at 0"),
    ):
        (tmp_path / "bad.jsonl").write_text(f'{{"text": "a"}}\n{{"text": {text}}}\n')
        with pytest.raises(ValueError, match=f"bad.jsonl entry 1: {message}"):
            read_vectors(model, tmp_path / "bad.jsonl", output, batch_size=1)
    assert not output.exists()


def test_sentence_transformers_loads_the_folder_and_has_the_same_vectors(model: Path, tmp_path: Path) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    other = sentence_transformers.SentenceTransformer(str(model), device="cpu")
    np.testing.assert_allclose(vectors_of(model, tmp_path), other.encode(TEXTS), rtol=1e-4, atol=1e-5)
