"""What an export is of: which checkpoint, which heads, how long its rows, in which numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from packed import padded_rows, random_batch, unpad
from pipeline.dataset.manifest import TOKENIZER_FOLDER
from trainer.config import ModelConfig, PhaseConfig
from trainer.export.__main__ import main
from trainer.export.folder import ExportError, export
from trainer.hf.pretrained import PretrainedError, initialize_from, load_model
from trainer.model import BertForPretraining
from trainer.telemetry.metrics import EVALUATIONS_NAME, JsonLines
from untrained_run import VOCABULARY_SIZE, write_data, write_run

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set without next sentences, of longer rows."""
    root = tmp_path_factory.mktemp("plain")
    write_data(root, longest=96, next_sentence="none")
    return root


def length_of(folder: Path) -> int:
    length: int = transformers.AutoTokenizer.from_pretrained(folder).model_max_length
    return length


# ---- heads


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_a_set_without_next_sentences_gives_a_masked_language_model(norm: str, plain: Path, tmp_path: Path) -> None:
    model = write_run(tmp_path / "run", data=plain, norm=norm)
    done = export(tmp_path / "run", out=tmp_path / "out")
    name = {"post": "BertForMaskedLM", "pre": "MegatronBertForMaskedLM"}[norm]
    assert json.loads((tmp_path / "out" / "config.json").read_text())["architectures"] == [name]
    assert not [key for key in load_file(tmp_path / "out" / "model.safetensors") if "pooler" in key or "seq_" in key]
    assert f"import AutoTokenizer, {name}" in (tmp_path / "out" / "README.md").read_text()
    for loader in (getattr(transformers, name), transformers.AutoModelForMaskedLM):
        other, info = loader.from_pretrained(tmp_path / "out", output_loading_info=True)
        assert not any(info.values()), info
    assert done.num_parameters == other.num_parameters()
    bare, info = transformers.AutoModel.from_pretrained(
        tmp_path / "out", add_pooling_layer=False, output_loading_info=True
    )
    assert not info["missing_keys"]
    assert bare.pooler is None

    batch = random_batch([5, 30, 17], vocabulary_size=VOCABULARY_SIZE)
    with torch.no_grad():
        expected = unpad(other.eval()(**padded_rows(batch)).logits, batch=batch)[batch.masked_positions]
        mlm_logits, _ = model.logits(batch)
    assert (mlm_logits - expected).abs().max() < 1e-5
    again, _ = load_model(tmp_path / "out").logits(batch)
    assert torch.equal(again, mlm_logits)


def test_training_may_start_from_such_a_model(plain: Path, tokenized: Path, tmp_path: Path) -> None:
    """Its missing heads are drawn as in any new model; a ForPreTraining without them is refused as before."""
    model = write_run(tmp_path / "run", data=plain)
    export(tmp_path / "run", out=tmp_path / "out")
    fresh = BertForPretraining(ModelConfig(size="tiny"), vocabulary_size=VOCABULARY_SIZE, seed=3)
    drawn = {name: parameter.clone() for name, parameter in fresh.named_parameters()}
    given = initialize_from(fresh, folder=tmp_path / "out", data_tokenizer=tokenized / TOKENIZER_FOLDER)
    assert not given.pair_heads
    assert given.notes == ("drawn: pooler, next-sentence head",)
    given = dict(model.named_parameters())
    for name, parameter in fresh.named_parameters():
        source = drawn if name.startswith(("pooler.", "nsp_head.")) else given
        assert torch.equal(parameter, source[name]), name

    write_run(tmp_path / "whole", data=tokenized)
    export(tmp_path / "whole", out=tmp_path / "whole-out")
    given = initialize_from(fresh, folder=tmp_path / "whole-out", data_tokenizer=tokenized / TOKENIZER_FOLDER)
    assert given.pair_heads
    assert given.notes == ()
    config = tmp_path / "out" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "architectures": ["BertForPreTraining"]}))
    with pytest.raises(PretrainedError, match=r"lacks bert\.pooler\.dense\.bias.*save it as BertForPreTraining"):
        load_model(tmp_path / "out")


def test_heads_that_an_earlier_phase_or_given_weights_trained_stay(
    tokenized: Path, plain: Path, tmp_path: Path
) -> None:
    def architecture(**changes: Any) -> str:
        write_run(tmp_path / "run", data=tokenized, **changes)
        export(tmp_path / "run", out=tmp_path / "out", data=changes.get("data_of"))
        name: str = json.loads((tmp_path / "out" / "config.json").read_text())["architectures"][0]
        return name

    phases = (PhaseConfig(max_steps=5), PhaseConfig(data=str(plain)))
    assert architecture(phases=phases) == "BertForPreTraining"
    phases = (PhaseConfig(max_steps=5, data=str(plain)), PhaseConfig(data=str(plain)))
    assert architecture(phases=phases) == "BertForMaskedLM"
    assert architecture(phases=phases, initialize_from="/models/other") == "BertForPreTraining"
    phases = (PhaseConfig(max_steps=5, data=str(tmp_path / "gone")), PhaseConfig(data=str(plain)))
    assert architecture(phases=phases) == "BertForPreTraining"
    rows = {"longest": 96, "next_sentence": False, "vocabulary_hash": ""}
    assert architecture(phases=phases, rows=rows) == "BertForMaskedLM"


# ---- the longest row


def test_the_length_is_that_of_the_longest_row_so_far(tokenized: Path, plain: Path, tmp_path: Path) -> None:
    for first, second, step, longest in (
        (tokenized, plain, 5, 64),
        (tokenized, plain, 6, 96),
        (plain, tokenized, 5, 96),
        (plain, tokenized, 6, 96),
    ):
        phases = (PhaseConfig(max_steps=5, data=str(first)), PhaseConfig(data=str(second)))
        run = tmp_path / f"{first.name}-{step}"
        write_run(run, data=tokenized, steps=(step,), phases=phases)
        export(run, out=tmp_path / "out")
        assert length_of(tmp_path / "out") == longest, (first, step)
    write_run(tmp_path / "run", data=tokenized, rows={"longest": 80, "next_sentence": True, "vocabulary_hash": ""})
    export(tmp_path / "run", out=tmp_path / "out")
    assert length_of(tmp_path / "out") == 80


# ---- which checkpoint


def test_a_step_or_the_best_is_chosen(tokenized: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "run", data=tokenized, steps=(8, 12, 16))
    evaluations = JsonLines(tmp_path / "run" / EVALUATIONS_NAME, keep_through=0)
    for step, loss, data_hash in ((2, 1.0, "b"), (8, 2.0, "a"), (12, 6.1, "b"), (16, 6.3, "b")):
        record = {"step": step, "mlm_loss": loss, "mlm_accuracy": 0.2, "unigram_loss": 9.0, "data_hash": data_hash}
        evaluations.write(record)
    evaluations.close()
    assert export(tmp_path / "run", out=tmp_path / "out").step == 16
    assert export(tmp_path / "run", out=tmp_path / "out", step=8).step == 8
    assert export(tmp_path / "run", out=tmp_path / "out", best=True).step == 12
    words = [str(tmp_path / "run"), str(tmp_path / "out")]
    assert main([*words, "--best"]) == 0
    assert "exported step 12 " in capsys.readouterr().out
    assert main([*words, "--step", "9"]) == 2
    assert "has no checkpoint of step 9; it has: 8, 12, 16" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*words, "--best", "--step", "8"])
    one = tmp_path / "run" / "checkpoints" / "step-00000008"
    with pytest.raises(ExportError, match="is one checkpoint; give the run directory with --step or --best"):
        export(one, out=tmp_path / "out", best=True)
    (tmp_path / "run" / EVALUATIONS_NAME).unlink()
    with pytest.raises(ExportError, match=r"has no checkpoint that was evaluated.*keep_best keeps the best ones"):
        export(tmp_path / "run", out=tmp_path / "out", best=True)
    with pytest.raises(ExportError, match="has no checkpoint of step 3; it has: none"):
        export(tmp_path, out=tmp_path / "out", step=3)


# ---- numbers


@pytest.mark.parametrize(("dtype", "name"), [("bf16", "bfloat16"), ("fp16", "float16"), ("fp32", "float32")])
def test_weights_in_other_numbers(dtype: str, name: str, tokenized: Path, tmp_path: Path) -> None:
    model = write_run(tmp_path / "run", data=tokenized)
    assert main([str(tmp_path / "run"), str(tmp_path / "out"), "--dtype", dtype]) == 0
    kind = getattr(torch, name)
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {kind}
    other, info = transformers.BertForPreTraining.from_pretrained(
        tmp_path / "out", dtype="auto", output_loading_info=True
    )
    assert not any(info.values())
    assert other.dtype == kind
    table = "bert.embeddings.word_embeddings.weight"
    assert torch.equal(tensors[table], model.embeddings.word.weight.to(kind))
    ours = load_model(tmp_path / "out").embeddings.word.weight
    assert torch.equal(ours, tensors[table].float())


def test_a_weight_that_fp16_cannot_hold_is_refused(
    tokenized: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path / "run", data=tokenized)
    from trainer.export import folder as module

    read = module.read_weights

    def large(checkpoint: str | Path) -> dict[str, torch.Tensor]:
        weights = read(checkpoint)
        weights["pooler.dense.bias"][0] = 1e5
        return weights

    monkeypatch.setattr(module, "read_weights", large)
    with pytest.raises(
        ExportError, match=r"bert\.pooler\.dense\.bias: holds 100000, which fp16 cannot represent; give --dtype"
    ):
        export(tmp_path / "run", out=tmp_path / "out", dtype="fp16")
    assert export(tmp_path / "run", out=tmp_path / "out", dtype="bf16").step == 7


def test_a_url_to_write_to_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"out=s3://bucket/model: object stores are not supported here"):
        export(tmp_path / "run", out="s3://bucket/model")
    assert list(tmp_path.iterdir()) == []
