"""What the page shows is what the model computes, and nothing in a text can break the page."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from pipeline.settings import ConfigError
from task_models import WORDS, write_model
from trainer.demonstrate import FillMask
from trainer.show import main
from trainer.show.page import render
from trainer.show.passes import Viewer
from trainer.show.words import cosines, find_word, project

TEXT = "the film was great and the plot was unknown"


@pytest.fixture(scope="module", params=["post", "pre"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    norm: str = request.param
    return write_model(tmp_path_factory.mktemp("model"), norm=norm)


def test_attention_and_states_are_those_of_transformers(folder: Path) -> None:
    transformers = pytest.importorskip("transformers")
    seen = Viewer(folder).look(TEXT, "so it was", count=1)
    model = transformers.AutoModelForPreTraining.from_pretrained(folder, attn_implementation="eager").eval()
    ids = torch.tensor([[WORDS.index(token) for token in seen.tokens]])
    second = len(seen.tokens) - 4
    with torch.no_grad():
        output = model(
            input_ids=ids,
            token_type_ids=(torch.arange(ids.shape[1]) >= second).long()[None],
            output_attentions=True,
            output_hidden_states=True,
        )
    assert torch.allclose(seen.attention, torch.cat(output.attentions), atol=1e-5)
    for own, theirs in zip(seen.states, output.hidden_states, strict=True):
        assert torch.allclose(own, theirs[0], atol=1e-4)
    assert torch.allclose(seen.attention.sum(-1), torch.ones(()), atol=1e-5)
    assert seen.is_next == pytest.approx(float(output.seq_relationship_logits.softmax(-1)[0, 0]), abs=1e-5)


def test_guesses_are_those_of_the_demonstration(folder: Path) -> None:
    text = "the [MASK] was great and the [MASK] ."
    seen = Viewer(folder).look(text, count=3)
    assert [place for place, _ in seen.guesses] == [2, 7]
    wanted = FillMask(folder).guess(text, count=3)
    for (_, own), row in zip(seen.guesses, wanted, strict=True):
        assert [guess.token for guess in own] == [guess.token for guess in row]
        assert [guess.probability for guess in own] == pytest.approx([guess.probability for guess in row], abs=1e-5)


def test_a_pair_has_a_probability_if_the_model_has_the_head(tmp_path: Path, folder: Path) -> None:
    viewer = Viewer(folder)
    is_next = viewer.look("the film", "was great", count=1).is_next
    assert is_next is not None
    swapped = viewer.look("was great", "the film", count=1).is_next
    assert swapped is not None
    assert 0.0 < is_next < 1.0
    assert is_next != swapped
    without = Viewer(write_model(tmp_path / "without", pooler=False))
    assert without.look("the film", "was great", count=1).is_next is None
    with_layers = render(model="m", facts="", seen=[without.look("a", "b", count=1)], layers=[1])
    assert "The model has no head for next sentences." in with_layers


def test_a_word_is_found_wherever_it_stands(folder: Path) -> None:
    viewer = Viewer(folder)
    seen = [viewer.look(text, count=1) for text in ("the film was great", "The plot then", "unknown and un")]
    found = find_word("the", seen=seen, layer=2)
    assert [(each.text, each.start, each.end, each.is_exact) for each in found] == [
        ("the film was great", 0, 3, True),
        ("The plot then", 9, 12, False),  # in `then`, one piece
    ]
    assert torch.equal(found[0].vector, seen[0].states[2][1])
    inside = find_word("known", seen=seen, layer=1)
    assert [(each.pieces, each.is_exact) for each in inside] == [(("##known",), True)]
    both = find_word("unknown", seen=seen, layer=1)[0]
    assert both.pieces == ("un", "##known")
    assert torch.allclose(both.vector, seen[2].states[1][1:3].mean(0))
    assert [each.start for each in find_word("THE", seen=seen[1:2], layer=0)] == [0, 9]
    pair = viewer.look("so it was", "the film and the plot", count=1)
    places = [(each.text, each.start, each.is_exact) for each in find_word("the", seen=[pair], layer=2)]
    assert places == [("the film and the plot", 0, True), ("the film and the plot", 13, True)]
    assert torch.equal(find_word("the", seen=[pair], layer=2)[0].vector, pair.states[2][5])
    assert pair.tokens[5] == "the"
    with pytest.raises(ConfigError, match="'cat': stands in none of the texts"):
        find_word("cat", seen=seen, layer=0)


def test_vectors_are_compared_and_projected() -> None:
    vectors = torch.tensor([[3.0, 0.0, 0.0], [-3.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, -1.0, 0.0]])
    assert cosines(vectors)[0] == pytest.approx([1.0, -1.0, 0.0, 0.0])
    plane = project(vectors)
    assert plane.shares == pytest.approx((0.9, 0.1))
    distances = torch.cdist(torch.tensor(plane.places), torch.tensor(plane.places))
    assert torch.allclose(distances.float(), torch.cdist(vectors, vectors), atol=1e-5)
    assert project(vectors[:2]).shares == pytest.approx((1.0, 0.0))
    assert project(vectors[:1].repeat(2, 1)).shares == (0.0, 0.0)


class Page(HTMLParser):
    """Collects the tags of a page, and what they refer to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.references: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.references += [value or "" for name, value in attrs if name in ("src", "href", "data", "action")]


def test_the_page_holds_all_and_loads_nothing(folder: Path, tmp_path: Path) -> None:
    hostile = 'the </script><script>alert(1)</script> <img src=x> & "film" {{data}}'
    path = tmp_path / "out" / "page.html"
    words = [TEXT, hostile, "the [MASK] was", "--pair", "so it", hostile, "--word", "the"]
    assert main([str(folder), str(path), *words]) == 0
    text = path.read_text(encoding="utf-8")
    page = Page(text)
    assert page.tags.count("script") == 2
    assert "img" not in page.tags
    assert page.references == []
    assert not re.search(r"https?://|@import|url\(", text)
    assert "default-src 'none'" in text
    data = json.loads(text.split('id="data">')[1].split("</script>")[0])
    assert len(data) == 4
    seen = Viewer(folder).look(TEXT, count=1)
    roots = np.frombuffer(base64.b64decode(data[0]["roots"]), np.uint8).reshape(seen.attention.shape)
    assert data[0]["tokens"] == list(seen.tokens)
    assert np.abs((roots / 255.0) ** 2 - seen.attention.numpy()).max() < 0.004
    assert text.count("<div class=attention></div>") == 4
    assert "&lt;img src=x&gt; &amp; &quot;film&quot; {{data}}" in text
    assert main([str(folder), str(path), TEXT, "--layers", "2"]) == 0
    data = json.loads(path.read_text().split('id="data">')[1].split("</script>")[0])
    assert data[0]["numbers"] == [2]
    again = np.frombuffer(base64.b64decode(data[0]["roots"]), np.uint8).reshape(1, *roots.shape[1:])
    assert np.array_equal(again[0], roots[1])


def test_no_token_ends_the_data(folder: Path) -> None:
    seen = Viewer(folder).look("the film", count=1)
    tokens = ("</script><script>alert(1)</script>", *seen.tokens[1:])
    text = render(model="m", facts="", seen=[replace(seen, tokens=tokens)], layers=[1])
    assert Page(text).tags.count("script") == 2
    assert json.loads(text.split('id="data">')[1].split("</script>")[0])[0]["tokens"] == list(tokens)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["page.html"], "has nothing to show; give texts, or --pair"),
        (["page.pdf", "a"], "page.pdf: is no name of a page; give a file that ends with .html"),
        (["page.html", "  "], "'  ': has no token; give a text"),
        (["page.html", "a " * 70], "72 tokens, but the model is for 64; shorten it"),
        (["page.html", "a", "--layers", "0,1"], "--layers 0,1: the model has layers 1 to 2"),
        (["page.html", "a", "--layers", "one"], "--layers one: give numbers with commas between"),
        (["page.html", "a", "--word-layer", "3"], "--word-layer 3: the model has layers 0 to 2"),
        (["page.html", "a", "--guesses", "0"], "--guesses 0: must be at least 1"),
        (["page.html", "film", "--word", "the"], "--word 'the': stands in none of the texts"),
        (["page.html", "film", "--word", ""], "--word '': stands in none of the texts"),
        (["page.html", "a\udcff"], "is not UTF-8 text"),
    ],
)
def test_what_cannot_be_shown_is_refused(
    words: list[str], message: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(folder), str(tmp_path / words[0]), *words[1:]]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_diverged_is_refused(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    tensors = load_file(folder / "model.safetensors")
    tensors["bert.encoder.layer.1.attention.self.query.weight"][3, 4] = torch.nan
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"layer.1.attention.self.query.weight .*has numbers that are not finite"):
        Viewer(folder)


def test_a_page_that_no_browser_could_open_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = [Viewer(folder).look(TEXT, count=1)]
    monkeypatch.setattr("trainer.show.page.MOST_BYTES", 100)
    with pytest.raises(ConfigError, match="name fewer layers with --layers"):
        render(model="m", facts="", seen=seen, layers=[1, 2])
