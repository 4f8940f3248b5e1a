"""Exports load in transformers and here with the trainer's logits; nothing half-written, nothing mistaken."""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from packed import padded_rows, random_batch, unpad
from pipeline.dataset.manifest import TOKENIZER_FOLDER, file_sha256, read_manifest
from small_runs import make_config
from trainer.config import PhaseConfig
from trainer.export import __main__, model_card
from trainer.export import folder as export
from trainer.export.folder import MARKER, ExportError
from trainer.hf.pretrained import load_model
from trainer.hf.weight_names import ARCHITECTURES
from trainer.model import BertForPretraining
from untrained_run import VOCABULARY_SIZE, write_data, write_run

transformers = pytest.importorskip("transformers")

FILES = {
    "README.md",
    "config.json",
    "curve.png",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
    MARKER,
}


# --- what is written


@pytest.mark.parametrize(("norm", "activation"), [("post", "gelu"), ("post", "gelu_tanh"), ("pre", "gelu")])
def test_transformers_loads_every_part(norm: str, activation: str, tokenized: Path, tmp_path: Path) -> None:
    model = write_run(tmp_path / "run", data=tokenized, norm=norm, activation=activation, max_positions=128)
    done = export.export(tmp_path / "run", out=tmp_path / "out")
    assert (done.step, done.num_parameters) == (7, model.num_parameters())
    assert done.model_type == {"post": "bert", "pre": "megatron-bert"}[norm]
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES

    whole = getattr(transformers, ARCHITECTURES[norm])
    heads = {"cls.predictions", "cls.seq_relationship", "bert.pooler"}
    for loader, left_out in [
        (whole, set()),
        (transformers.AutoModelForPreTraining, set()),
        (transformers.AutoModel, {"cls.predictions", "cls.seq_relationship"}),
        (transformers.AutoModelForMaskedLM, {"cls.seq_relationship", "bert.pooler"}),
    ]:
        other, info = loader.from_pretrained(tmp_path / "out", output_loading_info=True)
        unexpected = info.pop("unexpected_keys")
        assert not any(info.values()), info
        assert {head for key in unexpected for head in heads if key.startswith(head)} == left_out
        assert all(key.startswith(tuple(left_out)) for key in unexpected)
        assert other.config.vocab_size == VOCABULARY_SIZE
        assert other.config.hidden_act == {"gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh"}[activation]

    other = whole.from_pretrained(tmp_path / "out").eval()
    batch = random_batch([5, 30, 17], vocabulary_size=VOCABULARY_SIZE)
    with torch.no_grad():
        mlm_logits, nsp_logits = model.logits(batch)
        output = other(**padded_rows(batch))
    expected = unpad(output.prediction_logits, batch=batch)[batch.masked_positions]
    assert (mlm_logits - expected).abs().max() < 1e-5
    assert (nsp_logits - output.seq_relationship_logits).abs().max() < 1e-5
    again, _ = load_model(tmp_path / "out").logits(batch)
    assert torch.equal(again, mlm_logits)


def test_the_tokenizer_is_the_data_sets(exported: tuple[Path, BertForPretraining], tokenized: Path) -> None:
    for name in ("tokenizer.json", "vocab.txt"):
        assert (exported[0] / name).read_bytes() == (tokenized / TOKENIZER_FOLDER / name).read_bytes()
    name = "tokenizer_config.json"
    before, after = (json.loads((folder / name).read_text()) for folder in (tokenized / TOKENIZER_FOLDER, exported[0]))
    assert after == {**before, "model_max_length": 64}
    tokenizer = transformers.AutoTokenizer.from_pretrained(exported[0])
    assert len(tokenizer("t104 " * 600, truncation=True)["input_ids"]) == 64
    assert tokenizer("t104 T200", "t300")["input_ids"] == [101, 104, 200, 102, 300, 102]
    assert tokenizer("t104", "t300")["token_type_ids"] == [0, 0, 0, 1, 1]
    assert tokenizer.mask_token_id == 103
    assert tokenizer.pad_token_id == 0
    fill = transformers.pipeline("fill-mask", model=str(exported[0]), tokenizer=tokenizer)
    assert len(fill("t104 [MASK] t300")) == 5
    longest = tokenizer("t104 " * 2000, truncation=True, return_tensors="pt")
    assert fill.model(**longest).logits.shape[1] == 64


def test_config_json(exported: tuple[Path, BertForPretraining]) -> None:
    assert json.loads((exported[0] / "config.json").read_text()) == {
        "architectures": ["BertForPreTraining"],
        "attention_probs_dropout_prob": 0.1,
        "dtype": "float32",
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "hidden_size": 128,
        "initializer_range": 0.02,
        "intermediate_size": 512,
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": 512,
        "model_type": "bert",
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "pad_token_id": 0,
        "tie_word_embeddings": True,
        "type_vocab_size": 2,
        "vocab_size": VOCABULARY_SIZE,
    }


def test_files_are_listed_with_their_hashes(exported: tuple[Path, BertForPretraining]) -> None:
    marker = json.loads((exported[0] / MARKER).read_text())
    assert marker["step"] == 7
    assert len({file.stat().st_mode for file in exported[0].iterdir()}) == 1
    assert marker["files"] == {name: file_sha256(exported[0] / name) for name in sorted(FILES - {MARKER})}
    assert load_file(exported[0] / "model.safetensors")["bert.embeddings.word_embeddings.weight"].shape == (512, 128)


def test_the_newest_checkpoint_that_verifies_is_exported(tokenized: Path, tmp_path: Path) -> None:
    write_run(tmp_path, data=tokenized, steps=(3, 9))
    assert export.export(tmp_path, out=tmp_path / "newest").step == 9
    assert export.export(tmp_path / "checkpoints" / "step-00000003", out=tmp_path / "third").step == 3
    (tmp_path / "checkpoints" / "step-00000009" / "state.json").write_text("{}")
    assert export.export(tmp_path, out=tmp_path / "third").step == 3


def test_export_needs_neither_deepspeed_nor_transformers(tokenized: Path, tmp_path: Path) -> None:
    write_run(tmp_path / "run", data=tokenized)
    code = (
        "import sys\n"
        "for name in ('deepspeed', 'transformers', 'ray', 'apache_beam'): sys.modules[name] = None\n"
        "from trainer.export.__main__ import main as export\n"
        "from trainer.demonstrate import main as demonstrate\n"
        f"sys.exit(export([{str(tmp_path / 'run')!r}, {str(tmp_path / 'out')!r}])"
        f" or demonstrate([{str(tmp_path / 'out')!r}, 't104 [MASK]']))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"exported step 7 ({tmp_path / 'run' / 'checkpoints' / 'step-00000007'})" in done.stdout
    assert "t104 [MASK]" in done.stdout


def test_model_card(exported: tuple[Path, BertForPretraining], tokenized: Path, tmp_path: Path) -> None:
    card = (exported[0] / "README.md").read_text()
    front = card.split("---\n")[1]
    assert "license: cc-by-sa-4.0" in front
    assert "- en" in front
    for part in (
        f"{exported[1].num_parameters():,} parameters: 2 layers, 2 heads, width 128",
        "7 steps",
        "| training, last step | 7 | 8.0700 | 0.1000 | 0.6931 |  |",
        "| held-out | 5 | 7.5000 | 0.2000 |  |  |",
        "9.2500 nats",
        "- wikipedia (en)",
        "- novels: books (en)",
        "learning_rate: 0.0001",
        "The texts keep the licences of their sources.",
    ):
        assert part in card, part
    assert "started from" not in card
    (Path(shutil.copytree(tokenized, tmp_path / "set")) / "README.md").unlink()
    write_run(tmp_path / "run", data=tmp_path / "set", initialize_from="/models/other")
    for name in ("metrics.jsonl", "evaluations.jsonl"):
        (tmp_path / "run" / name).unlink()
    export.export(tmp_path / "run", out=tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    assert "Training started from the weights of `/models/other`" in card
    assert "The run recorded no results." in card
    assert "names no licence" in card


def test_the_card_names_masks_only_if_the_run_drew_them(tokenized: Path) -> None:
    plain = make_config(tokenized, tokenized / "run")
    drawn = make_config(tokenized, tokenized / "run", masking={"source": "drawn", "rate": 0.3})
    assert "masking" not in model_card._settings(plain)
    assert model_card._settings(drawn)["masking"]["rate"] == 0.3


# --- where it is written


def test_an_earlier_export_is_replaced_and_nothing_else(tokenized: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_run(tmp_path / "run", data=tokenized, steps=(3,))
    out.mkdir()
    export.export(tmp_path / "run", out=out)
    write_run(tmp_path / "run", data=tokenized, steps=(3, 9))
    export.export(tmp_path / "run", out=out)
    assert json.loads((out / MARKER).read_text())["step"] == 9
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []

    (out / "notes.txt").write_text("mine")
    with pytest.raises(ExportError, match=r"besides an earlier export it holds notes\.txt"):
        export.export(tmp_path / "run", out=out)
    (out / "notes.txt").unlink()
    (out / MARKER).write_text("{}")
    with pytest.raises(ExportError, match="is damaged; remove"):
        export.export(tmp_path / "run", out=out)
    (out / MARKER).unlink()
    with pytest.raises(ExportError, match="is not empty and not an earlier export"):
        export.export(tmp_path / "run", out=out)
    with pytest.raises(ExportError, match="is not a folder"):
        export.export(tmp_path / "run", out=out / "config.json")
    assert {path.name for path in out.iterdir()} == FILES - {MARKER}


def test_replaced_without_an_exchange_of_names_too(
    tokenized: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path / "run", data=tokenized, steps=(3, 9))
    export.export(tmp_path / "run" / "checkpoints" / "step-00000003", out=tmp_path / "out")
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: object())
    export.export(tmp_path / "run", out=tmp_path / "out")
    assert json.loads((tmp_path / "out" / MARKER).read_text())["step"] == 9
    assert {path.name for path in tmp_path.iterdir()} == {"run", "out"}


def test_a_failed_export_leaves_what_was_there(
    tokenized: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path / "run", data=tokenized, steps=(3, 9))
    export.export(tmp_path / "run" / "checkpoints" / "step-00000003", out=tmp_path / "out")

    def full_disk(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(export, "save_file", full_disk)
    with pytest.raises(ExportError, match=r"cannot be written: .*No space left"):
        export.export(tmp_path / "run", out=tmp_path / "out")
    assert json.loads((tmp_path / "out" / MARKER).read_text())["step"] == 3
    assert {path.name for path in tmp_path.iterdir()} == {"run", "out"}


# --- what is refused


def test_runs_and_data_sets_that_do_not_fit(
    tokenized: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ExportError, match="holds no checkpoint"):
        export.export(tmp_path / "absent", out=tmp_path / "out")
    (tmp_path / "empty").mkdir()
    assert __main__.main([str(tmp_path / "empty"), str(tmp_path / "out")]) == 2
    assert "holds no checkpoint" in capsys.readouterr().err

    moved = Path(shutil.copytree(tokenized, tmp_path / "set"))
    write_run(tmp_path / "run", data=tmp_path / "gone")
    with pytest.raises(ExportError, match=r"gone: no such data set folder.*moved\? --data DIR"):
        export.export(tmp_path / "run", out=tmp_path / "out")
    assert __main__.main([str(tmp_path / "run"), str(tmp_path / "out"), "--data", str(moved)]) == 0

    (moved / TOKENIZER_FOLDER / "vocab.txt").write_text("other\n")
    with pytest.raises(ExportError, match=r"vocab\.txt: sha256 .* differs from the manifest's"):
        export.export(tmp_path / "run", out=tmp_path / "out", data=moved)
    (moved / TOKENIZER_FOLDER / "vocab.txt").unlink()
    with pytest.raises(ExportError, match=r"vocab\.txt: listed in the data set's manifest but missing"):
        export.export(tmp_path / "run", out=tmp_path / "out", data=moved)

    write_data(tmp_path / "larger", size=600)
    with pytest.raises(ExportError, match=r"vocabulary has 512 entries, but that of .*larger has 600"):
        export.export(tmp_path / "run", out=tmp_path / "out", data=tmp_path / "larger")


def test_another_data_set_than_the_runs_is_refused_by_its_hash(tokenized: Path, tmp_path: Path) -> None:
    """Also one whose vocabulary has as many entries."""
    write_run(tmp_path / "run", data=tokenized, data_hash=read_manifest(tokenized).hash)
    assert export.export(tmp_path / "run", out=tmp_path / "out").step == 7
    write_run(tmp_path / "other", data=tokenized, data_hash="0123456789abcdef")
    with pytest.raises(
        ExportError, match=r"was trained on data set 0123456789ab, .* is [0-9a-f]{12}, whose ids may mean"
    ):
        export.export(tmp_path / "other", out=tmp_path / "out2")
    assert not (tmp_path / "out2").exists()


def test_the_data_set_is_that_of_the_checkpoints_phase(tokenized: Path, tmp_path: Path) -> None:
    phases = (PhaseConfig(max_steps=10), PhaseConfig(data=str(tmp_path / "nowhere")))
    for step in (7, 10):
        write_run(
            tmp_path / "run", data=tokenized, data_hash=read_manifest(tokenized).hash, steps=(step,), phases=phases
        )
        assert export.export(tmp_path / "run", out=tmp_path / "out").step == step
        assert "the data set of phase 1 of 2 (see Training)" in (tmp_path / "out" / "README.md").read_text()
    write_run(tmp_path / "run", data=tokenized, data_hash=read_manifest(tokenized).hash, steps=(11,), phases=phases)
    with pytest.raises(ValueError, match="nowhere"):
        export.export(tmp_path / "run", out=tmp_path / "other")


def test_a_data_set_without_tokenizer_json_is_refused(tmp_path: Path) -> None:
    from synthetic import write_data_set

    write_data_set(tmp_path / "set")
    write_run(tmp_path / "run", data=tmp_path / "set")
    with pytest.raises(ExportError, match=r"lists no tokenizer/tokenizer\.json"):
        export.export(tmp_path / "run", out=tmp_path / "out")
