"""Starting from a model: exports, transformers' own folders, old names; what does not fit is refused whole."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from packed import random_batch
from pipeline.dataset.manifest import TOKENIZER_FOLDER, read_manifest
from pipeline.settings import dump_yaml, load_settings
from small_runs import make_config, run
from trainer.checkpoint.load import find_checkpoints, read_weights
from trainer.config import ModelConfig
from trainer.export.folder import export
from trainer.hf import folder_config
from trainer.hf.pretrained import PretrainedError, initialize_from, load_model
from trainer.hf.vocabulary_check import check_same_vocabulary, read_vocabulary
from trainer.launch.preflight import check_model, resolve_model
from trainer.model import BertForPretraining
from trainer.train.evaluate import unigram_log_probabilities
from untrained_run import VOCABULARY_SIZE, write_data, write_tokenizer
from worker_group import WorkerGroup

transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize(
    ("tokenizer", "positions", "longest"),
    [({"model_max_length": 64}, 512, 64), ({"model_max_length": 10**30}, 128, 128), ({}, 128, 128), (None, 128, 128)],
)
def test_the_longest_row_of_given_weights_counts(
    worker_group: Callable[[int], WorkerGroup],
    folder: Path,
    tmp_path: Path,
    tokenizer: dict[str, int] | None,
    positions: int,
    longest: int,
) -> None:
    """Tuned on shorter rows, a model still takes what it took."""
    write_data(tmp_path / "short", longest=24)
    edit_config(folder, max_position_embeddings=positions)
    (folder / "tokenizer_config.json").unlink()
    if tokenizer is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    model = {"size": "tiny", "initialize_from": str(folder)}
    settings = {"workers": 1, "max_steps": 2, "batch": {"pairs": 4, "lanes": 2}, "evaluation": {}}
    run(worker_group(1), make_config(tmp_path / "short", tmp_path / "run", model=model, **settings))
    export(tmp_path / "run", out=tmp_path / "out")
    assert json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())["model_max_length"] == longest


def edit_config(folder: Path, **changes: Any) -> None:
    tree = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**tree, **changes}))


def edit_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = {name: tensor.clone() for name, tensor in load_file(folder / "model.safetensors").items()}
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def test_initialize_from_an_export_gives_its_logits(exported: tuple[Path, BertForPretraining], tokenized: Path) -> None:
    model = BertForPretraining(ModelConfig(size="tiny"), vocabulary_size=VOCABULARY_SIZE, seed=99)
    initialize_from(model, folder=exported[0], data_tokenizer=tokenized / TOKENIZER_FOLDER)
    batch = random_batch([5, 30, 17], vocabulary_size=VOCABULARY_SIZE)
    for found, wanted in zip(model.eval().logits(batch), exported[1].logits(batch), strict=True):
        assert torch.equal(found, wanted)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, exported[1].get_parameter(name)), name
        assert parameter.requires_grad


@pytest.mark.parametrize(("stage", "precision"), [(1, "bf16"), (2, "bf16"), (3, "bf16"), (0, "fp32")])
def test_a_run_at_rate_0_exports_the_given_weights_bit_for_bit(
    worker_group: Callable[[int], WorkerGroup],
    exported: tuple[Path, BertForPretraining],
    tokenized: Path,
    tmp_path: Path,
    stage: int,
    precision: str,
) -> None:
    """Given weights reach the fp32 ones unrounded, on two workers. (No rate is 0: 1e-30 moves only zeros.)"""
    config = make_config(
        tokenized,
        tmp_path / "run",
        model={"size": "tiny", "initialize_from": str(exported[0])},
        max_steps=1,
        precision=precision,
        zero_stage=stage,
        optimizer={"learning_rate": 1e-30},
    )
    run(worker_group(2), config)
    export(tmp_path / "run", out=tmp_path / "again")
    given, found = (load_file(folder / "model.safetensors") for folder in (exported[0], tmp_path / "again"))
    assert given.keys() == found.keys()
    for name, tensor in given.items():
        assert torch.equal(torch.where(tensor == 0.0, 0.0, found[name]), tensor), name
        assert (found[name] - tensor).abs().max() <= 1.1e-30, name
    assert any(not torch.equal(tensor, tensor.bfloat16().float()) for tensor in given.values())


def test_a_unigram_bias_reaches_the_optimizer_unrounded(
    worker_group: Callable[[int], WorkerGroup], tokenized: Path, tmp_path: Path
) -> None:
    config = make_config(
        tokenized,
        tmp_path / "run",
        model={"size": "tiny", "output_bias": "unigram"},
        max_steps=1,
        precision="bf16",
        optimizer={"learning_rate": 1e-30},
    )
    run(worker_group(1), config)
    (folder,) = find_checkpoints(tmp_path / "run").folders
    expected = torch.from_numpy(unigram_log_probabilities(tokenized, vocabulary_size=VOCABULARY_SIZE)).float()
    assert torch.equal(read_weights(folder)["mlm_head.bias"], expected)
    assert not torch.equal(expected, expected.bfloat16().float())


def test_initialize_from_what_transformers_saved(
    exported: tuple[Path, BertForPretraining], tokenized: Path, tmp_path: Path
) -> None:
    """In several files, with half-precision weights, and with the tokenizer that transformers writes."""
    other = transformers.BertForPreTraining.from_pretrained(exported[0])
    other.half().save_pretrained(tmp_path, max_shard_size="200KB")
    assert (tmp_path / "model.safetensors.index.json").is_file()
    transformers.AutoTokenizer.from_pretrained(exported[0]).save_pretrained(tmp_path)
    model = BertForPretraining(ModelConfig(size="tiny"), vocabulary_size=VOCABULARY_SIZE)
    initialize_from(model, folder=tmp_path, data_tokenizer=tokenized / TOKENIZER_FOLDER)
    weight = exported[1].encoder.layers[1].attention.qkv.weight
    assert torch.equal(model.encoder.layers[1].attention.qkv.weight, weight.half().float())
    assert model.pooler.dense.weight.dtype == torch.float32


def test_old_names_larger_tables_and_written_out_ties(folder: Path, tokenized: Path) -> None:
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
    initialize_from(model, folder=folder, data_tokenizer=tokenized / TOKENIZER_FOLDER)
    batch = random_batch([5, 30, 17], vocabulary_size=VOCABULARY_SIZE)
    for found, wanted in zip(model.eval().logits(batch), reference.logits(batch), strict=True):
        assert torch.equal(found, wanted)


def test_weights_that_do_not_fit_change_nothing(folder: Path, tokenized: Path) -> None:
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
        (drop_layer, r"lacks bert\.encoder\.layer\.1\.output\.dense\.bias; the file is incomplete"),
        (add_layer, r"holds bert\.encoder\.layer\.2\.output\.dense\.bias, which this model does not have"),
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
            initialize_from(model, folder=folder, data_tokenizer=tokenized / TOKENIZER_FOLDER)
        (folder / "model.safetensors").write_bytes(whole)
    (folder / "model.safetensors").write_bytes(whole[:-100])
    with pytest.raises(PretrainedError, match=r"model\.safetensors: is not a whole safetensors file"):
        initialize_from(model, folder=folder, data_tokenizer=tokenized / TOKENIZER_FOLDER)
    (folder / "model.safetensors").unlink()
    with pytest.raises(PretrainedError, match=r"model\.safetensors: is missing \(pytorch_model\.bin is a pickle"):
        initialize_from(model, folder=folder, data_tokenizer=tokenized / TOKENIZER_FOLDER)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name]), name


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "roberta"}, r"model_type is 'roberta'; only bert and megatron-bert can be read"),
        ({"model_type": "megatron-bert"}, r"model_type is 'megatron-bert', but model\.norm=post means 'bert'"),
        ({"num_hidden_layers": 4}, r"num_hidden_layers is 4, but model\.size=tiny has 2"),
        ({"num_attention_heads": 1}, r"num_attention_heads is 1, but model\.size=tiny has 2"),
        ({"hidden_act": "gelu_new"}, r"hidden_act is 'gelu_new', but model\.activation=gelu means 'gelu'"),
        ({"hidden_act": "relu"}, r"hidden_act is 'relu'"),
        ({"layer_norm_eps": 1e-5}, r"layer_norm_eps is 1e-05"),
        ({"position_embedding_type": "relative_key"}, r"position_embedding_type is 'relative_key'"),
        ({"is_decoder": True}, r"is_decoder is True"),
        ({"tie_word_embeddings": False}, r"tie_word_embeddings is False"),
    ],
)
def test_configs_of_other_models_are_refused(
    folder: Path, tokenized: Path, changes: dict[str, Any], message: str
) -> None:
    edit_config(folder, **changes)
    model = BertForPretraining(ModelConfig(size="tiny"), vocabulary_size=VOCABULARY_SIZE)
    with pytest.raises(PretrainedError, match=message):
        initialize_from(model, folder=folder, data_tokenizer=tokenized / TOKENIZER_FOLDER)


def test_folders_that_are_no_model(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(PretrainedError, match=r"has no config\.json; give the folder of an export"):
        load_model(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(PretrainedError, match="is a run directory, not a model; export it first"):
        load_model(tmp_path)
    (tmp_path / "checkpoints").rmdir()
    (tmp_path / "state.json").write_text("{}")
    advice = (
        rf"{tmp_path}: is a checkpoint of a run, not a model; export it first: python -m trainer.export {tmp_path} OUT"
    )
    with pytest.raises(PretrainedError, match=rf"^{advice}, or set resume_from to it"):
        load_model(tmp_path)
    (folder / "config.json").write_text("{")
    with pytest.raises(PretrainedError, match="is not valid JSON"):
        load_model(folder)
    for content, message in (
        (
            '"hidden_size": 100',
            r"config\.json: model\.heads=12 does not divide model\.hidden_size=100; set model\.heads=",
        ),
        ('"num_hidden_layers": 0', r"config\.json: num_hidden_layers is '0', which no BERT has; export or save"),
        ('"intermediate_size": "3072"', r"config\.json: intermediate_size is '3072', which no BERT has"),
        ('"max_position_embeddings": 4', r"config\.json: max_position_embeddings is '4', which no BERT has"),
    ):
        (folder / "config.json").write_text(f'{{"model_type": "bert", {content}}}')
        with pytest.raises(PretrainedError, match=message):
            load_model(folder)


def test_a_model_is_of_the_folders_size_unless_stated(folder: Path, tmp_path: Path) -> None:
    edit_config(folder, max_position_embeddings=128, hidden_act="gelu_new", hidden_dropout_prob=0.0)
    given = {"initialize_from": str(folder)}
    config = make_config(tmp_path / "set", tmp_path / "run", model=given)
    model = resolve_model(config, saved=None).model
    assert (model.size, model.max_positions, model.activation, model.norm) == ("tiny", 128, "gelu_tanh", "post")
    assert model.dropout == 0.1  # shapes nothing: the run's own
    stated = make_config(tmp_path / "set", tmp_path / "run", model={**given, "size": "base"})
    assert resolve_model(stated, saved=None).model.size == "base"
    with pytest.raises(PretrainedError, match=r"num_hidden_layers is 2, but model\.size=base has 12"):
        folder_config.check_config(stated.model, settings=folder_config.read_config(folder), folder=folder)
    saved = resolve_model(config, saved=None)
    shutil.rmtree(folder)
    assert resolve_model(config, saved=saved).model == saved.model  # a run that has begun needs the folder no more


def test_a_submitted_config_leaves_the_size_to_the_folder(tmp_path: Path) -> None:
    config = make_config(tmp_path / "set", tmp_path / "run", model={"initialize_from": "m"})
    (tmp_path / "c.yaml").write_text(dump_yaml(config, given=True))
    again = load_settings(type(config), file=tmp_path / "c.yaml")
    assert again == config
    assert again.model.model_fields_set == {"initialize_from"}


def test_a_run_with_checkpoints_needs_its_first_weights_no_more(tokenized: Path, tmp_path: Path) -> None:
    manifest = read_manifest(tokenized)
    config = make_config(tokenized, tmp_path / "run", model={"size": "tiny", "initialize_from": str(tmp_path / "gone")})
    with pytest.raises(PretrainedError, match=r"gone: has no config\.json"):
        check_model(config, manifest=manifest, begun=False)
    check_model(config, manifest=manifest, begun=True)


def test_another_vocabulary_is_refused_by_its_hash(folder: Path, tokenized: Path, tmp_path: Path) -> None:
    tokenizer = tokenized / TOKENIZER_FOLDER
    check_same_vocabulary(folder, data_tokenizer=tokenizer)
    assert read_vocabulary(folder).hash == read_vocabulary(tokenizer).hash == read_manifest(tokenized).vocabulary_hash

    write_tokenizer(folder, lowercase=False)
    model = BertForPretraining(ModelConfig(size="tiny"), vocabulary_size=VOCABULARY_SIZE)
    with pytest.raises(ValueError, match=r"the same text would get other ids; start from a model with the data set's"):
        initialize_from(model, folder=folder, data_tokenizer=tokenizer)
    with pytest.raises(ValueError, match=r"its tokens are the data set's, but normalizer is .*lowercase.: false"):
        check_same_vocabulary(folder, data_tokenizer=tokenizer)
    published = json.loads((tokenizer / "tokenizer.json").read_text(encoding="utf-8"))
    published["normalizer"] = {"type": "Sequence", "normalizers": [published["normalizer"], {"type": "NFC"}]}
    (folder / "tokenizer.json").write_text(json.dumps(published), encoding="utf-8")
    check_same_vocabulary(folder, data_tokenizer=tokenizer)  # a data set's text is composed already
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
    with pytest.raises(ValueError, match=r"not a tokenizer\.json that the tokenizers library can read"):
        check_same_vocabulary(folder, data_tokenizer=tokenizer)
