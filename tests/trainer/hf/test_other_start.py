"""Starting from a model with another vocabulary, more layers or fewer heads: against transformers and ten lines."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pipeline.dataset.manifest import TOKENIZER_FOLDER
from pipeline.tokenizer.tokenizer import WordTokenizer
from small_runs import make_config, run
from trainer.checkpoint.load import find_checkpoints, read_weights
from trainer.config import ModelConfig
from trainer.evaluate import evaluate
from trainer.export.folder import export
from trainer.hf.folder_config import PretrainedError
from trainer.hf.pretrained import GivenWeights, compare_folder, initialize_from, load_model
from trainer.hf.token_rows import spell
from trainer.hf.weight_names import to_transformers
from trainer.launch.preflight import check, check_model, resolve_model
from trainer.model import BertForPretraining
from untrained_run import write_data
from worker_group import WorkerGroup

transformers = pytest.importorskip("transformers")

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
OLD = [*SPECIAL, "play", "##ing", "##er", "un", "##able", "a", "##b", "##c", "paris", "\u4e2d", "##\u6587", "gone"]
NEW = [
    *SPECIAL[::-1],
    "[unused0]",
    "un",
    "playing",
    "##ing",
    "##able",
    "##inger",
    "xyz",
    "Paris",
    "abc",
    "\u4e2d\u6587",
    "a",
]
KEPT = {*SPECIAL, "un", "##ing", "##able", "a"}
MEANS = {
    "playing": ["play", "##ing"],
    "##inger": ["##ing", "##er"],
    "Paris": ["paris"],
    "abc": ["a", "##b", "##c"],
    "\u4e2d\u6587": ["\u4e2d", "##\u6587"],
}
DRAWN = ["[unused0]", "xyz"]


def write_tokenizer(folder: Path, tokens: list[str], *, lowercase: bool = True) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(tokens) + "\n", encoding="utf-8")
    WordTokenizer.from_path(folder / "vocab.txt", lowercase=lowercase).save(folder)
    return folder


def save_bert(folder: Path, name: str, *, layers: int = 2, vocabulary: int = len(OLD), **how: Any) -> Any:
    """A small BERT of the class `name`, with random weights, as transformers saves it."""
    torch.manual_seed(1)
    config = transformers.BertConfig(
        vocab_size=vocabulary, hidden_size=128, num_hidden_layers=layers, num_attention_heads=2, intermediate_size=512
    )
    model = getattr(transformers, name)(config, **how)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.1)
    model.save_pretrained(folder)
    return model


def start(
    folder: Path, *, tokens: list[str], data: Path, **settings: Any
) -> tuple[BertForPretraining, dict[str, Tensor], GivenWeights]:
    """(the model that starts from `folder`, its weights before, what was given)."""
    config = ModelConfig(**{"size": "tiny", "initialize_from": str(folder), **settings})
    model = BertForPretraining(config, vocabulary_size=len(tokens), seed=5)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    return model, before, initialize_from(model, folder=folder, data_tokenizer=data)


# --- another vocabulary


@pytest.mark.parametrize("new_tokens", ["pieces", "drawn"])
def test_rows_are_found_by_the_texts_of_tokens(new_tokens: str, tmp_path: Path) -> None:
    other = save_bert(tmp_path / "m", "BertForPreTraining")
    write_tokenizer(tmp_path / "m", OLD)
    data = write_tokenizer(tmp_path / "d", NEW, lowercase=False)
    with pytest.raises(ValueError, match=r"is not the data set's .*, or set model\.new_tokens=pieces"):
        start(tmp_path / "m", tokens=NEW, data=data)
    model, before, given = start(tmp_path / "m", tokens=NEW, data=data, new_tokens=new_tokens)
    table, bias = other.bert.embeddings.word_embeddings.weight, other.cls.predictions.bias
    for row, token in enumerate(NEW):  # the independent script
        pieces = [token] if token in KEPT else MEANS.get(token, []) if new_tokens == "pieces" else []
        old = [OLD.index(piece) for piece in pieces]
        wanted = table[old].mean(0) if old else before["embeddings.word.weight"][row]
        torch.testing.assert_close(model.embeddings.word.weight[row], wanted, rtol=0, atol=1e-7, msg=token)
        wanted = bias[old].mean() if old else before["mlm_head.bias"][row]
        torch.testing.assert_close(model.mlm_head.bias[row], wanted, rtol=0, atol=1e-7, msg=token)
    assert not model.embeddings.word.weight[len(NEW) :].any()
    means = len(MEANS) if new_tokens == "pieces" else 0
    drawn = len(NEW) - len(KEPT) - means
    assert given.notes == (f"word table: {len(KEPT)} rows by token text, {means} means of pieces, {drawn} drawn",)
    expected = to_transformers(before, norm="post", vocabulary_size=len(NEW))
    found = to_transformers(dict(model.named_parameters()), norm="post", vocabulary_size=len(NEW))
    for name, tensor in other.state_dict().items():  # and all that is no row of a token is a copy
        if name in expected and "word_embeddings" not in name and name != "cls.predictions.bias":
            assert torch.equal(found[name], tensor), name


def test_a_vocabulary_in_another_order_gives_the_same_logits(tmp_path: Path) -> None:
    from packed import random_batch

    save_bert(tmp_path / "m", "BertForPreTraining")
    write_tokenizer(tmp_path / "m", OLD)
    order = torch.randperm(len(OLD), generator=torch.Generator().manual_seed(0))
    tokens = [OLD[old] for old in order]
    data = write_tokenizer(tmp_path / "d", tokens)
    model, _, given = start(tmp_path / "m", tokens=tokens, data=data, new_tokens="drawn")
    assert given.notes == (f"word table: {len(OLD)} rows by token text, 0 means of pieces, 0 drawn",)
    batch = random_batch([9, 20], vocabulary_size=len(OLD))
    there, _ = load_model(tmp_path / "m").logits(batch)
    batch.input_ids.copy_(torch.argsort(order)[batch.input_ids])
    found, _ = model.eval().logits(batch)
    torch.testing.assert_close(found, there[:, order])


def test_equal_vocabularies_are_copied_whatever_new_tokens_says(tmp_path: Path) -> None:
    other = save_bert(tmp_path / "m", "BertForPreTraining")
    write_tokenizer(tmp_path / "m", OLD)
    model, _, given = start(tmp_path / "m", tokens=OLD, data=tmp_path / "m", new_tokens="pieces")
    assert given.notes == ()
    assert torch.equal(model.embeddings.word.weight[: len(OLD)], other.bert.embeddings.word_embeddings.weight)


def test_a_tokenizer_that_is_not_the_weights_own_is_refused(tmp_path: Path) -> None:
    save_bert(tmp_path / "m", "BertForPreTraining", vocabulary=len(OLD) - 6)
    write_tokenizer(tmp_path / "m", OLD)
    data = write_tokenizer(tmp_path / "d", NEW)
    with pytest.raises(
        PretrainedError, match=r"word_embeddings.weight has shape .* its weights and its tokenizer do not"
    ):
        start(tmp_path / "m", tokens=NEW, data=data, new_tokens="pieces")


def test_pieces_are_those_of_the_models_tokenizer() -> None:
    tokenizer = transformers.BertTokenizerFast(vocab={token: index for index, token in enumerate(OLD)})
    ids = {token: index for index, token in enumerate(OLD)}
    for word in ("playing", "unable", "abc", "abccb", "player", "gone", "xyz", "unx"):
        wanted = tokenizer.encode(word, add_special_tokens=False)
        assert list(spell(word, ids=ids, continues=False)) == ([] if 1 in wanted else wanted), word
    assert spell("ing", ids=ids, continues=True) == (ids["##ing"],)
    assert spell("play", ids=ids, continues=True) == ()


# --- chosen layers


@pytest.mark.parametrize(
    ("chosen", "layers"), [("every_other", [0, 2, 4]), ([0, 1, 4], [0, 1, 4]), ([3], [3]), ([0, 0], [0, 0])]
)
def test_chosen_layers_are_the_folders(chosen: Any, layers: list[int], tmp_path: Path) -> None:
    other = save_bert(tmp_path, "BertForPreTraining", layers=5)
    write_tokenizer(tmp_path, OLD)
    settings = {
        "initialize_from": str(tmp_path),
        "initialize_layers": chosen if isinstance(chosen, str) else tuple(chosen),
    }
    config = resolve_model(make_config(tmp_path / "d", tmp_path / "r", model=settings), saved=None).model
    assert config.shape == (len(layers), 2, 128, 512)
    model = BertForPretraining(config, vocabulary_size=len(OLD))
    given = initialize_from(model, folder=tmp_path, data_tokenizer=tmp_path)
    assert given.notes == (f"layers {', '.join(map(str, layers))} of 5",)
    found = to_transformers(dict(model.named_parameters()), norm="post", vocabulary_size=len(OLD))
    other.bert.encoder.layer = torch.nn.ModuleList(other.bert.encoder.layer[layer] for layer in layers)
    for name, tensor in other.state_dict().items():
        if not name.startswith("cls.predictions.decoder"):
            assert torch.equal(found.pop(name), tensor), name
    assert not found


def test_layers_of_a_pre_norm_encoder_without_heads(tmp_path: Path) -> None:
    torch.manual_seed(1)
    settings = {"num_hidden_layers": 4, "num_attention_heads": 2, "hidden_size": 128, "intermediate_size": 300}
    other = transformers.MegatronBertModel(transformers.MegatronBertConfig(vocab_size=len(OLD), **settings))
    other.save_pretrained(tmp_path)
    write_tokenizer(tmp_path, OLD)
    given = {"initialize_from": str(tmp_path), "initialize_layers": "every_other"}
    config = resolve_model(make_config(tmp_path / "d", tmp_path / "r", model=given), saved=None).model
    assert (config.norm, config.shape) == ("pre", (2, 2, 128, 300))
    model = BertForPretraining(config, vocabulary_size=len(OLD))
    notes = initialize_from(model, folder=tmp_path, data_tokenizer=tmp_path).notes
    assert notes == ("layers 0, 2 of 4", "drawn: next-sentence head, masked-LM head")
    found = to_transformers(dict(model.named_parameters()), norm="pre", vocabulary_size=len(OLD))
    other.encoder.layer = torch.nn.ModuleList(other.encoder.layer[layer] for layer in (0, 2))
    for name, tensor in other.state_dict().items():
        assert torch.equal(found[f"bert.{name}"], tensor), name


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"initialize_layers": (0, 5)}, r"initialize_layers=\[0, 5\]: .* has the layers 0 to 3, not 5; list layers"),
        (
            {"initialize_layers": "every_other", "layers": 3},
            r"initialize_layers takes 2 of the 4 layers of .*, but model\.layers is 3; set model\.layers=2",
        ),
        (
            {"layers": 2},
            r"num_hidden_layers is 4, but model\.layers is 2; .*choose layers with model\.initialize_layers",
        ),
        ({"layers": 4, "feed_forward_size": 500}, r"intermediate_size is 512, but .*feed_forward_size is 500"),
        ({"max_positions": 513}, r"max_position_embeddings is 512, but .*is 513; set .*max_positions to at most 512"),
        ({"layers": 4, "heads": 4}, r"num_attention_heads is 2, but model\.heads is 4"),
        ({"layers": 4, "hidden_size": 256}, r"hidden_size is 128, but model\.hidden_size is 256"),
    ],
)  # fmt: skip
def test_layers_and_shapes_that_do_not_fit_are_refused(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    save_bert(tmp_path, "BertForPreTraining", layers=4)
    write_tokenizer(tmp_path, OLD)
    config = make_config(tmp_path / "d", tmp_path / "r", model={"initialize_from": str(tmp_path), **settings})

    def try_to_start() -> None:
        model = BertForPretraining(resolve_model(config, saved=None).model, vocabulary_size=len(OLD))
        initialize_from(model, folder=tmp_path, data_tokenizer=tmp_path)

    with pytest.raises(PretrainedError, match=message):
        try_to_start()


# --- without pooler or heads


@pytest.mark.parametrize(
    ("name", "how", "drawn"),
    [
        ("BertModel", {}, ["next-sentence head", "masked-LM head"]),
        ("BertModel", {"add_pooling_layer": False}, ["pooler", "next-sentence head", "masked-LM head"]),
        ("BertForMaskedLM", {}, ["pooler", "next-sentence head"]),
        ("BertForNextSentencePrediction", {}, ["masked-LM head"]),
        ("BertForPreTraining", {}, []),
    ],
)
def test_heads_that_the_class_lacks_are_drawn(name: str, how: dict[str, Any], drawn: list[str], tmp_path: Path) -> None:
    other = save_bert(tmp_path, name, **how)
    write_tokenizer(tmp_path, OLD)
    model, before, given = start(tmp_path, tokens=OLD, data=tmp_path)
    assert given.notes == ((f"drawn: {', '.join(drawn)}",) if drawn else ())
    assert given.pair_heads == (not {"pooler", "next-sentence head"} & set(drawn))
    own = to_transformers(before, norm="post", vocabulary_size=len(OLD))
    found = to_transformers(dict(model.named_parameters()), norm="post", vocabulary_size=len(OLD))
    weights = {key if "." in key and key.startswith(("bert.", "cls.")) else f"bert.{key}": tensor
               for key, tensor in other.state_dict().items()}  # fmt: skip
    for key, tensor in found.items():
        assert torch.equal(tensor, weights.get(key, own[key])), key
    assert (set(found) - set(weights) == set()) == (not drawn)
    if "masked-LM head" in drawn:
        with pytest.raises(PretrainedError, match=r"lacks .*cls\.predictions.*save it as BertForPreTraining"):
            load_model(tmp_path)  # to be evaluated, a model needs its head


def test_a_part_of_a_head_is_damage(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    save_bert(tmp_path, "BertModel")
    write_tokenizer(tmp_path, OLD)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["pooler.dense.bias"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(PretrainedError, match=r"lacks bert\.pooler\.dense\.bias"):
        start(tmp_path, tokens=OLD, data=tmp_path)


def test_a_shape_larger_than_its_file_takes_no_memory(tmp_path: Path) -> None:
    save_bert(tmp_path, "BertForPreTraining")
    write_tokenizer(tmp_path, OLD)
    settings = json.loads((tmp_path / "config.json").read_text())
    huge = {"num_hidden_layers": 1000, "hidden_size": 60_000, "intermediate_size": 200_000}
    (tmp_path / "config.json").write_text(json.dumps({**settings, **huge}))
    message = r"model\.safetensors: has .* bytes, too few for the 1000 layers of width 60000 in config\.json; copy both"
    with pytest.raises(PretrainedError, match=message):
        load_model(tmp_path)
    given = {"initialize_from": str(tmp_path)}
    config = resolve_model(make_config(tmp_path / "d", tmp_path / "r", model=given), saved=None).model
    with pytest.raises(PretrainedError, match=message):
        compare_folder(config, folder=tmp_path, data_tokenizer=tmp_path)


# --- a whole run


def test_a_run_says_what_it_started_from(
    worker_group: Callable[[int], WorkerGroup], tmp_path: Path, tokenized: Path
) -> None:
    """Half the layers of a BertModel with another vocabulary: check, start line, resume, export, evaluation."""
    write_data(tmp_path / "set", longest=24)
    tokens = (tmp_path / "set" / TOKENIZER_FOLDER / "vocab.txt").read_text().split("\n")[:-1]
    old = [*tokens[:400], "t4", "##09"]
    save_bert(tmp_path / "m", "BertModel", layers=4, vocabulary=len(old))
    write_tokenizer(tmp_path / "m", old)
    settings = {"initialize_from": str(tmp_path / "m"), "initialize_layers": "every_other", "new_tokens": "pieces"}
    changes = {"max_steps": 4, "batch": {"pairs": 4, "lanes": 2}, "optimizer": {"learning_rate": 1e-3}}
    config = make_config(tmp_path / "set", tmp_path / "run", model=settings, **changes)
    checked = check(config)
    notes = "layers 0, 2 of 4; word table: 400 rows by token text, 1 means of pieces, 111 drawn"
    assert checked.lines[0] == f"model.initialize_from={tmp_path / 'm'}: {notes}"
    report = run(worker_group(2), checked.config, stop_at=2)
    (line,) = [line for line in report.said if line.startswith("training from step 0")]
    assert (
        f"(with the weights of {tmp_path / 'm'}; {notes}; drawn: next-sentence head, masked-LM head): BERT tiny" in line
    )
    (tmp_path / "m" / "config.json").unlink()
    again = check(config)
    assert not any("initialize_from" in line for line in again.lines)
    assert run(worker_group(2), again.config).executed == [3, 4]
    export(tmp_path / "run", out=tmp_path / "out")
    found, info = transformers.BertForPreTraining.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(info.values())
    assert found.config.num_hidden_layers == 2
    assert evaluate(str(tmp_path / "out"), data=str(tmp_path / "set")).mlm_loss > 0.0


def test_a_run_of_its_own_shape(worker_group: Callable[[int], WorkerGroup], tokenized: Path, tmp_path: Path) -> None:
    """TinyBERT's proportions, small: resumed with the same weights, exported, evaluated; another shape is no branch."""
    shape = {"layers": 3, "heads": 3, "hidden_size": 78, "feed_forward_size": 100, "max_positions": 64}
    settings: dict[str, Any] = {"model": shape, "max_steps": 4, "batch": {"pairs": 4, "lanes": 2}}
    run(worker_group(1), make_config(tokenized, tmp_path / "whole", **settings))
    run(worker_group(1), make_config(tokenized, tmp_path / "parts", **settings), stop_at=2)
    config = check(make_config(tokenized, tmp_path / "parts", **{**settings, "workers": 1})).config
    assert run(worker_group(1), config).executed == [3, 4]
    one, other = (read_weights(find_checkpoints(tmp_path / name).folders[-1]) for name in ("whole", "parts"))
    assert all(torch.equal(one[name], other[name]) for name in one)
    export(tmp_path / "parts", out=tmp_path / "out")
    assert "# BERT (3 layers, 3 heads, width 78, feed-forward 100)" in (tmp_path / "out" / "README.md").read_text()
    found = transformers.BertForPreTraining.from_pretrained(tmp_path / "out")
    assert (found.config.intermediate_size, found.config.num_attention_heads) == (100, 3)
    assert evaluate(str(tmp_path / "out"), data=str(tokenized)).mlm_loss > 0.0
    branch = {"resume_from": str(tmp_path / "parts"), "max_steps": 8}
    for key, value in (("layers", 4), ("heads", 6), ("hidden_size", 81), ("feed_forward_size", 99)):
        with pytest.raises(
            ValueError, match=rf"was trained with model\.{key}={shape[key]}, but .* model\.{key}={value}"
        ):
            check(make_config(tokenized, tmp_path / "b", **{**settings, **branch, "model": {**shape, key: value}}))
    short = {key: value for key, value in shape.items() if key != "feed_forward_size"}
    with pytest.raises(
        ValueError, match=r"feed_forward_size=100, but this run has .*=312; set .*feed_forward_size=100"
    ):
        check(make_config(tokenized, tmp_path / "b", **{**settings, **branch, "model": short}))


def test_a_plan_for_a_shape(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The dry run without a set: the numbers of the shape, not of a size."""
    from trainer.engine import count_parameters
    from trainer.run import main

    words = ["model.layers=4", "model.heads=12", "model.hidden_size=312", "model.feed_forward_size=1200"]
    settings = ["data=nowhere", f"output={tmp_path / 'run'}", "batch.pairs=256", "max_steps=100", "device=cuda", *words]
    (tmp_path / "c.yaml").write_text("{}")
    flags = ["--dry-run", "--rows=6e6", "--tokens=14e8"]
    assert main(["--config", str(tmp_path / "c.yaml"), *settings, *flags]) == 0
    lines = capsys.readouterr().out.splitlines()
    config = ModelConfig(layers=4, heads=12, hidden_size=312, feed_forward_size=1200)
    size = count_parameters(config, vocabulary_size=30_522) * 12
    assert any(line.startswith(f"checkpoints: {size / 1e6:.0f} MB each") for line in lines), lines
    title = "BERT of 4 layers, 12 heads, width 312, feed-forward 1200"
    assert f"rates of one GPU for {title} in bf16, and hours on 1 GPU at 1 times that:" in lines
    assert any(line.startswith("attention: model.heads=12 and width 312 give heads of width 26") for line in lines)


def test_a_plan_takes_the_shape_of_the_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from trainer.run import main

    save_bert(tmp_path / "m", "BertModel", layers=4)
    model = {"initialize_from": str(tmp_path / "m"), "initialize_layers": "every_other"}
    run = {"data": "nowhere", "output": str(tmp_path / "run"), "batch": {"pairs": 8}, "max_steps": 9, "device": "cuda"}
    (tmp_path / "c.yaml").write_text(json.dumps({**run, "model": model}))
    assert main(["--config", str(tmp_path / "c.yaml"), "--dry-run", "--rows=60000", "--tokens=14000000"]) == 0
    assert "rates of one GPU for BERT tiny in bf16" in capsys.readouterr().out


def test_check_model_returns_no_line_if_all_is_copied(tokenized: Path, tmp_path: Path) -> None:
    from pipeline.dataset.manifest import read_manifest

    config = make_config(tokenized, tmp_path / "run")
    assert check_model(config, manifest=read_manifest(tokenized), begun=False) == []
