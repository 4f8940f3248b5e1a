"""Fine-tuning with a BiLSTM, and of causal models."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pipeline.storage import locate
from task_models import make_config, write_model, write_opinions
from trainer.config import ModelConfig
from trainer.finetune.batches import pack
from trainer.finetune.features import Feature, Tokens
from trainer.finetune.heads import TaskModel
from trainer.finetune.start import finetune
from trainer.hf.folder_config import read_config
from trainer.model import BertForPretraining

pytest.importorskip("sklearn", reason="metrics are by scikit-learn")


def make_model(kind: str, *, bilstm: bool, objective: str = "masked") -> TaskModel:
    config = ModelConfig.model_validate({"size": "tiny", "objective": objective})
    bert = BertForPretraining(config, vocabulary_size=90, seed=1)
    return TaskModel(bert, kind=kind, num_outputs=3, seed=1, bilstm=bilstm).eval()  # type: ignore[arg-type]


def rows_of(*texts: list[int]) -> list[Feature]:
    return [Feature(0, (Tokens(ids=tuple(ids), first_length=len(ids)),), 0) for ids in texts]


def test_the_bilstm_is_that_of_torch_over_each_row_alone() -> None:
    texts = [[2, 30, 31, 3], [2, 40, 3], [2, 50, 51, 52, 53, 3]]
    for kind in ("tagging", "classification"):
        model = make_model(kind, bilstm=True)
        assert model.bilstm is not None
        lstm = model.bilstm
        found = model(pack(rows_of(*texts), kind="classification", device=torch.device("cpu")))
        start = 0
        for number, ids in enumerate(texts):
            one = pack(rows_of(ids), kind="classification", device=torch.device("cpu"))
            states, (last, _) = lstm(model.bert.encode(one.tokens)[None])
            wanted = model.head(states[0] if kind == "tagging" else torch.cat([last[0], last[1]], -1))
            own = found[start : start + len(ids)] if kind == "tagging" else found[number : number + 1]
            torch.testing.assert_close(own, wanted, rtol=1e-4, atol=1e-5)
            start += len(ids)


def test_the_bilstm_is_drawn_by_the_seed_and_learns() -> None:
    one, same = make_model("qa", bilstm=True), make_model("qa", bilstm=True)
    for name, parameter in one.named_parameters():
        assert torch.equal(parameter, same.get_parameter(name)), name
    batch = pack(rows_of([2, 30, 31, 3]), kind="classification", device=torch.device("cpu"))
    one(batch).sum().backward()
    assert one.bilstm is not None
    assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in one.bilstm.parameters())


def test_a_causal_model_is_read_at_the_last_token_and_keeps_its_mask() -> None:
    texts = [[2, 30, 31, 3], [2, 30, 77, 3]]
    batch = pack(rows_of(*texts), kind="classification", device=torch.device("cpu"))
    both = make_model("classification", bilstm=False, objective="left_to_right")(batch)
    assert not torch.allclose(both[0], both[1]), "[CLS] alone would give both texts the same"
    tokens = make_model("tagging", bilstm=False, objective="left_to_right")(batch)
    torch.testing.assert_close(tokens[:2], tokens[4:6])
    assert not torch.allclose(tokens[2:4], tokens[6:8])


@pytest.mark.parametrize(("objective", "bilstm"), [("left_to_right", False), ("masked", True)])
def test_fine_tuning_learns_and_writes_no_model_that_transformers_would_misread(
    objective: str, bilstm: bool, tmp_path: Path
) -> None:
    model, data = write_model(tmp_path / "model", pooler=False, objective=objective), tmp_path / "data"
    assert read_config(locate(model)).get("is_decoder", False) == (objective == "left_to_right")
    write_opinions(data)
    said: list[str] = []
    config = make_config("sst2", model=model, data=data, output=tmp_path / "out", bilstm=bilstm, epochs=12.0)
    result = finetune(config, say=said.append)
    assert result is not None
    assert result.value > 0.9
    assert not (tmp_path / "out" / "model").exists()
    assert any("transformers has no class" in line for line in said)
