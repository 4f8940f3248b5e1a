"""Exports load in transformers and here with the trainer's logits; nothing half-written, nothing mistaken."""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from packed import padded_rows, random_batch, unpad
from safetensors.torch import load_file, save_file
from untrained_run import VOCABULARY_SIZE, write_data, write_run, write_tokenizer

from pipeline.manifest import TOKENIZER_FOLDER, file_sha256
from trainer import demonstrate, export
from trainer.config import ModelConfig
from trainer.export import MARKER, ExportError
from trainer.model import BertForPretraining
from trainer.pretrained import PretrainedError, initialize_from, load_model
from trainer.transformers_layout import ARCHITECTURES
from trainer.vocabulary_check import check_same_vocabulary, read_vocabulary

transformers = pytest.importorskip("transformers")

FILES = {
    "README.md",
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
    MARKER,
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("set")
    write_data(root)
    return root


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory, data: Path) -> tuple[Path, BertForPretraining]:
    """An export of a post-LN run, with its model; tests copy before they change it."""
    folder = tmp_path_factory.mktemp("run")
    model = write_run(folder, data=data)
    export.export(folder, out=folder / "export")
    return folder / "export", model


@pytest.fixture
def folder(exported: tuple[Path, BertForPretraining], tmp_path: Path) -> Path:
    return Path(shutil.copytree(exported[0], tmp_path / "model"))


def edit_config(folder: Path, **changes: Any) -> None:
    tree = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**tree, **changes}))


def edit_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = {name: tensor.clone() for name, tensor in load_file(folder / "model.safetensors").items()}
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


# --- what is written


@pytest.mark.parametrize(("norm", "activation"), [("post", "gelu"), ("post", "gelu_tanh"), ("pre", "gelu")])
def test_transformers_loads_every_part(norm: str, activation: str, data: Path, tmp_path: Path) -> None:
    model = write_run(tmp_path / "run", data=data, norm=norm, activation=activation, max_positions=128)
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


def test_the_tokenizer_is_the_data_sets(exported: tuple[Path, BertForPretraining], data: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        assert (exported[0] / name).read_bytes() == (data / TOKENIZER_FOLDER / name).read_bytes()
    tokenizer = transformers.AutoTokenizer.from_pretrained(exported[0])
    assert tokenizer("t104 T200", "t300")["input_ids"] == [101, 104, 200, 102, 300, 102]
    assert tokenizer("t104", "t300")["token_type_ids"] == [0, 0, 0, 1, 1]
    assert tokenizer.mask_token_id == 103
    assert tokenizer.pad_token_id == 0
    fill = transformers.pipeline("fill-mask", model=str(exported[0]), tokenizer=tokenizer)
    assert len(fill("t104 [MASK] t300")) == 5


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
    assert marker["files"] == {name: file_sha256(exported[0] / name) for name in sorted(FILES - {MARKER})}
    assert load_file(exported[0] / "model.safetensors")["bert.embeddings.word_embeddings.weight"].shape == (512, 128)


def test_the_newest_checkpoint_that_verifies_is_exported(data: Path, tmp_path: Path) -> None:
    write_run(tmp_path, data=data, steps=(3, 9))
    assert export.export(tmp_path, out=tmp_path / "newest").step == 9
    assert export.export(tmp_path / "checkpoints" / "step-00000003", out=tmp_path / "third").step == 3
    (tmp_path / "checkpoints" / "step-00000009" / "state.json").write_text("{}")
    assert export.export(tmp_path, out=tmp_path / "third").step == 3


def test_export_needs_neither_deepspeed_nor_transformers(data: Path, tmp_path: Path) -> None:
    write_run(tmp_path / "run", data=data)
    code = (
        "import sys\n"
        "for name in ('deepspeed', 'transformers', 'ray', 'apache_beam'): sys.modules[name] = None\n"
        "from trainer.export import main as export\n"
        "from trainer.demonstrate import main as demonstrate\n"
        f"sys.exit(export([{str(tmp_path / 'run')!r}, {str(tmp_path / 'out')!r}])"
        f" or demonstrate([{str(tmp_path / 'out')!r}, 't104 [MASK]']))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"exported step 7 ({tmp_path / 'run' / 'checkpoints' / 'step-00000007'})" in done.stdout
    assert "t104 [MASK]" in done.stdout


def test_model_card(exported: tuple[Path, BertForPretraining], data: Path, tmp_path: Path) -> None:
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
        "learning_rate: 0.0001",
        "The texts keep the licences of their sources.",
    ):
        assert part in card, part
    assert "started from" not in card
    (Path(shutil.copytree(data, tmp_path / "set")) / "README.md").unlink()
    write_run(tmp_path / "run", data=tmp_path / "set", initialize_from="/models/other")
    for name in ("metrics.jsonl", "evaluations.jsonl"):
        (tmp_path / "run" / name).unlink()
    export.export(tmp_path / "run", out=tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    assert "Training started from the weights of `/models/other`" in card
    assert "None were recorded." in card
    assert "names no licence" in card


# --- where it is written


def test_an_earlier_export_is_replaced_and_nothing_else(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_run(tmp_path / "run", data=data, steps=(3,))
    out.mkdir()
    export.export(tmp_path / "run", out=out)
    write_run(tmp_path / "run", data=data, steps=(3, 9))
    export.export(tmp_path / "run", out=out)
    assert json.loads((out / MARKER).read_text())["step"] == 9
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []

    (out / "notes.txt").write_text("mine")
    with pytest.raises(ExportError, match=r"beside an earlier export it holds notes\.txt"):
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


def test_replaced_without_an_exchange_of_names_too(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "run", data=data, steps=(3, 9))
    export.export(tmp_path / "run" / "checkpoints" / "step-00000003", out=tmp_path / "out")
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: object())
    export.export(tmp_path / "run", out=tmp_path / "out")
    assert json.loads((tmp_path / "out" / MARKER).read_text())["step"] == 9
    assert {path.name for path in tmp_path.iterdir()} == {"run", "out"}


def test_a_failed_export_leaves_what_was_there(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "run", data=data, steps=(3, 9))
    export.export(tmp_path / "run" / "checkpoints" / "step-00000003", out=tmp_path / "out")

    def full_disk(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(export, "save_file", full_disk)
    with pytest.raises(ExportError, match=r"cannot be written: .*No space left"):
        export.export(tmp_path / "run", out=tmp_path / "out")
    assert json.loads((tmp_path / "out" / MARKER).read_text())["step"] == 3
    assert {path.name for path in tmp_path.iterdir()} == {"run", "out"}


# --- what is refused


def test_runs_and_data_sets_that_do_not_fit(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ExportError, match="holds no checkpoint"):
        export.export(tmp_path / "absent", out=tmp_path / "out")
    (tmp_path / "empty").mkdir()
    assert export.main([str(tmp_path / "empty"), str(tmp_path / "out")]) == 2
    assert "holds no checkpoint" in capsys.readouterr().err

    moved = Path(shutil.copytree(data, tmp_path / "set"))
    write_run(tmp_path / "run", data=tmp_path / "gone")
    with pytest.raises(ExportError, match=r"gone: no such data set folder.*moved\? --data DIR"):
        export.export(tmp_path / "run", out=tmp_path / "out")
    assert export.main([str(tmp_path / "run"), str(tmp_path / "out"), "--data", str(moved)]) == 0

    (moved / TOKENIZER_FOLDER / "vocab.txt").write_text("other\n")
    with pytest.raises(ExportError, match=r"vocab\.txt: sha256 .* differs from the manifest's"):
        export.export(tmp_path / "run", out=tmp_path / "out", data=moved)
    (moved / TOKENIZER_FOLDER / "vocab.txt").unlink()
    with pytest.raises(ExportError, match=r"vocab\.txt: listed in the data set's manifest but missing"):
        export.export(tmp_path / "run", out=tmp_path / "out", data=moved)

    write_data(tmp_path / "larger", size=600)
    with pytest.raises(ExportError, match=r"vocabulary has 512 entries, that of .*larger has 600"):
        export.export(tmp_path / "run", out=tmp_path / "out", data=tmp_path / "larger")


def test_a_data_set_without_tokenizer_json_is_refused(tmp_path: Path) -> None:
    from synthetic import write_data_set

    write_data_set(tmp_path / "set")
    write_run(tmp_path / "run", data=tmp_path / "set")
    with pytest.raises(ExportError, match=r"lists no tokenizer/tokenizer\.json"):
        export.export(tmp_path / "run", out=tmp_path / "out")


# --- starting from a model


def test_initialize_from_an_export_gives_its_logits(exported: tuple[Path, BertForPretraining], data: Path) -> None:
    model = BertForPretraining(ModelConfig(size="tiny"), vocabulary_size=VOCABULARY_SIZE, seed=99)
    initialize_from(model, folder=exported[0], data_tokenizer=data / TOKENIZER_FOLDER)
    batch = random_batch([5, 30, 17], vocabulary_size=VOCABULARY_SIZE)
    for found, wanted in zip(model.eval().logits(batch), exported[1].logits(batch), strict=True):
        assert torch.equal(found, wanted)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, exported[1].get_parameter(name)), name
        assert parameter.requires_grad


def test_initialize_from_what_transformers_saved(
    exported: tuple[Path, BertForPretraining], data: Path, tmp_path: Path
) -> None:
    """In several files, with half-precision weights, and with the tokenizer that transformers writes."""
    other = transformers.BertForPreTraining.from_pretrained(exported[0])
    other.half().save_pretrained(tmp_path, max_shard_size="200KB")
    assert (tmp_path / "model.safetensors.index.json").is_file()
    transformers.AutoTokenizer.from_pretrained(exported[0]).save_pretrained(tmp_path)
    model = BertForPretraining(ModelConfig(size="tiny"), vocabulary_size=VOCABULARY_SIZE)
    initialize_from(model, folder=tmp_path, data_tokenizer=data / TOKENIZER_FOLDER)
    weight = exported[1].encoder.layers[1].attention.qkv.weight
    assert torch.equal(model.encoder.layers[1].attention.qkv.weight, weight.half().float())
    assert model.pooler.dense.weight.dtype == torch.float32


def test_old_names_larger_tables_and_written_out_ties(folder: Path, data: Path) -> None:
    """What older BERT files hold: gamma and beta, position_ids, the decoder beside the table, padded words."""
    reference = load_model(folder)

    def age(tensors: dict[str, torch.Tensor]) -> None:
        for name in [name for name in tensors if "LayerNorm" in name]:
            old = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
            tensors[old] = tensors.pop(name)
        word, bias = "bert.embeddings.word_embeddings.weight", "cls.predictions.bias"
        tensors[word] = torch.cat([tensors[word], torch.ones(8, 128)])
        tensors[bias] = torch.cat([tensors[bias], torch.ones(8)])
        tensors["cls.predictions.decoder.weight"] = tensors[word].clone()
        tensors["cls.predictions.decoder.bias"] = tensors[bias].clone()
        tensors["bert.embeddings.position_ids"] = torch.arange(512)[None]
        for name in [name for name in tensors if name.startswith("bert.")]:
            tensors[name.removeprefix("bert.")] = tensors.pop(name)

    edit_weights(folder, age)
    (folder / "tokenizer.json").unlink()  # and nothing but a vocab.txt
    model = BertForPretraining(ModelConfig(size="tiny", max_positions=100), vocabulary_size=VOCABULARY_SIZE)
    initialize_from(model, folder=folder, data_tokenizer=data / TOKENIZER_FOLDER)
    batch = random_batch([5, 30, 17], vocabulary_size=VOCABULARY_SIZE)
    for found, wanted in zip(model.eval().logits(batch), reference.logits(batch), strict=True):
        assert torch.equal(found, wanted)


def test_weights_that_do_not_fit_change_nothing(folder: Path, data: Path) -> None:
    def drop_head(tensors: dict[str, torch.Tensor]) -> None:
        for name in [name for name in tensors if name.startswith(("cls.seq", "bert.pooler"))]:
            del tensors[name]

    def drop_layer(tensors: dict[str, torch.Tensor]) -> None:
        del tensors["bert.encoder.layer.1.output.dense.bias"]

    def add_layer(tensors: dict[str, torch.Tensor]) -> None:
        tensors["bert.encoder.layer.2.output.dense.bias"] = torch.zeros(128)

    def shrink(tensors: dict[str, torch.Tensor]) -> None:
        tensors["bert.encoder.layer.1.output.dense.bias"] = torch.zeros(127)

    def bend_query(tensors: dict[str, torch.Tensor]) -> None:
        tensors["bert.encoder.layer.0.attention.self.query.weight"] = torch.zeros(128, 64)

    def cut_words(tensors: dict[str, torch.Tensor]) -> None:
        tensors["bert.embeddings.word_embeddings.weight"] = torch.zeros(500, 128)

    def cut_positions(tensors: dict[str, torch.Tensor]) -> None:
        tensors["bert.embeddings.position_embeddings.weight"] = torch.zeros(64, 128)

    def untie(tensors: dict[str, torch.Tensor]) -> None:
        tensors["cls.predictions.decoder.weight"] = torch.zeros(512, 128)

    whole = (folder / "model.safetensors").read_bytes()
    model = BertForPretraining(ModelConfig(size="tiny"), vocabulary_size=VOCABULARY_SIZE, seed=1)
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    for change, message in [
        (drop_head, r"lacks bert\.pooler\.dense\.bias.*save it as BertForPreTraining"),
        (drop_layer, r"lacks bert\.encoder\.layer\.1\.output\.dense\.bias; the file is not whole"),
        (add_layer, r"holds bert\.encoder\.layer\.2\.output\.dense\.bias, which have no place"),
        (shrink, r"layer\.1\.output\.dense\.bias has shape \[127\], this model needs \[128\]; set model\.size"),
        (bend_query, r"layer\.0\.attention\.self\.query\.weight \+ .*Sizes of tensors must match"),
        (
            cut_words,
            r"word_embeddings\.weight has shape \[500, 128\].*needs \[512, 128\]; its weights and its tokenizer",
        ),
        (cut_positions, r"position_embeddings\.weight has shape \[64, 128\].*set model\.max_positions to at most 64"),
        (untie, r"cls\.predictions\.decoder\.weight differs from bert\.embeddings\.word_embeddings\.weight"),
    ]:
        edit_weights(folder, change)
        with pytest.raises(PretrainedError, match=message):
            initialize_from(model, folder=folder, data_tokenizer=data / TOKENIZER_FOLDER)
        (folder / "model.safetensors").write_bytes(whole)
    (folder / "model.safetensors").write_bytes(whole[:-100])
    with pytest.raises(PretrainedError, match=r"model\.safetensors: is not a whole safetensors file"):
        initialize_from(model, folder=folder, data_tokenizer=data / TOKENIZER_FOLDER)
    (folder / "model.safetensors").unlink()
    with pytest.raises(PretrainedError, match=r"model\.safetensors: is missing \(pytorch_model\.bin is a pickle"):
        initialize_from(model, folder=folder, data_tokenizer=data / TOKENIZER_FOLDER)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name]), name


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "roberta"}, r"model_type is 'roberta'; only bert and megatron-bert can be read"),
        ({"model_type": "megatron-bert"}, r"model_type is 'megatron-bert', but model\.norm=post means 'bert'"),
        ({"num_hidden_layers": 4}, r"num_hidden_layers is 4, but model\.size=tiny has 2"),
        ({"num_attention_heads": 1}, r"num_attention_heads is 1, but model\.size=tiny has 2"),
        ({"hidden_act": "gelu_new"}, r"hidden_act is 'gelu_new', but model\.activation=gelu \(gelu\) means 'gelu'"),
        ({"hidden_act": "relu"}, r"hidden_act is 'relu'"),
        ({"layer_norm_eps": 1e-5}, r"layer_norm_eps is 1e-05"),
        ({"position_embedding_type": "relative_key"}, r"position_embedding_type is 'relative_key'"),
        ({"is_decoder": True}, r"is_decoder is True"),
        ({"tie_word_embeddings": False}, r"tie_word_embeddings is False"),
    ],
)
def test_configs_of_other_models_are_refused(folder: Path, data: Path, changes: dict[str, Any], message: str) -> None:
    edit_config(folder, **changes)
    model = BertForPretraining(ModelConfig(size="tiny"), vocabulary_size=VOCABULARY_SIZE)
    with pytest.raises(PretrainedError, match=message):
        initialize_from(model, folder=folder, data_tokenizer=data / TOKENIZER_FOLDER)


def test_folders_that_are_no_model(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(PretrainedError, match=r"has no config\.json; give the folder of an export"):
        load_model(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(PretrainedError, match="is a run directory, not a model; export it first"):
        load_model(tmp_path)
    (folder / "config.json").write_text("{")
    with pytest.raises(PretrainedError, match="is not valid JSON"):
        load_model(folder)
    (folder / "config.json").write_text('{"model_type": "bert", "hidden_size": 96}')
    with pytest.raises(PretrainedError, match="12 layers, 12 heads, width 96 is none of the sizes tiny, mini"):
        load_model(folder)


def test_another_vocabulary_is_refused_by_its_hash(folder: Path, data: Path, tmp_path: Path) -> None:
    tokenizer = data / TOKENIZER_FOLDER
    check_same_vocabulary(folder, data_tokenizer=tokenizer)
    assert read_vocabulary(folder).hash == read_vocabulary(tokenizer).hash

    write_tokenizer(folder, lowercase=False)
    model = BertForPretraining(ModelConfig(size="tiny"), vocabulary_size=VOCABULARY_SIZE)
    with pytest.raises(ValueError, match=r"the same text gets other ids; start from a model with the data set's"):
        initialize_from(model, folder=folder, data_tokenizer=tokenizer)
    with pytest.raises(ValueError, match=r"its tokens are the data set's, but normalizer is .*lowercase.: false"):
        check_same_vocabulary(folder, data_tokenizer=tokenizer)
    write_tokenizer(folder, size=500)
    with pytest.raises(ValueError, match=r"vocabulary \(\w{12}\) is not the data set's \(\w{12}\): it has 500 tokens"):
        check_same_vocabulary(folder, data_tokenizer=tokenizer)
    (folder / "tokenizer.json").unlink()
    words = (tokenizer / "vocab.txt").read_text()
    (folder / "vocab.txt").write_text(words)
    check_same_vocabulary(folder, data_tokenizer=tokenizer)
    (folder / "vocab.txt").write_text(words.replace("t104\nt105\n", "t105\nt104\n"))
    with pytest.raises(ValueError, match="id 104 is 't105' there and 't104' in"):
        check_same_vocabulary(folder, data_tokenizer=tokenizer)
    (folder / "vocab.txt").write_bytes(b"\xff\n")
    with pytest.raises(ValueError, match=r"vocab\.txt: byte 0 is not UTF-8"):
        check_same_vocabulary(folder, data_tokenizer=tokenizer)
    (folder / "vocab.txt").unlink()
    with pytest.raises(ValueError, match=r"holds neither tokenizer\.json nor vocab\.txt"):
        check_same_vocabulary(folder, data_tokenizer=tokenizer)
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"not a tokenizer\.json that the tokenizers library reads"):
        check_same_vocabulary(folder, data_tokenizer=tokenizer)


# --- the demonstration


def test_fill_mask_agrees_with_transformers(exported: tuple[Path, BertForPretraining]) -> None:
    text = "t104 [MASK] t300 [MASK]"
    guesses = demonstrate.FillMask(exported[0]).guess(text, count=3)
    other = transformers.pipeline("fill-mask", model=str(exported[0]), top_k=3)(text)
    assert len(guesses) == 2
    for ours, theirs in zip(guesses, other, strict=True):
        assert [guess.token for guess in ours] == [row["token_str"] for row in theirs]
        for guess, row in zip(ours, theirs, strict=True):
            assert guess.probability == pytest.approx(row["score"], rel=1e-4)


def test_demonstration_prints_examples_and_refuses_bad_texts(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert demonstrate.main([str(folder)]) == 0
    shown = capsys.readouterr().out
    for example in demonstrate.EXAMPLES:
        assert f"  {example}\n" in shown
    assert shown.count("%") == 5 * len(demonstrate.EXAMPLES)
    assert demonstrate.main([str(folder), "no mask here"]) == 2
    assert "holds no [MASK]" in capsys.readouterr().err
    assert demonstrate.main([str(folder), "\udcff [MASK]"]) == 2
    assert "is not UTF-8 text" in capsys.readouterr().err
    assert demonstrate.main([str(folder), "[MASK] " + "t104 " * 600]) == 2
    assert "603 tokens exceed the model's 512" in capsys.readouterr().err
    (folder / "tokenizer.json").unlink()
    assert demonstrate.main([str(folder)]) == 2
    assert "tokenizer.json: is missing" in capsys.readouterr().err
