"""Vectors of every layer are transformers' hidden states, combined and pooled as asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
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
    words = [f"--model={model}", f"--input={tmp_path / 'texts.txt'}", f"--output={tmp_path / 'x.npy'}"]
    assert main([*words, "max_length=100"]) == 2
    assert "is for rows of 64 tokens; lower it" in capsys.readouterr().err
