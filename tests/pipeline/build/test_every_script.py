"""Builds in scripts other than Latin: refused where they would lose letters, and counted and warned of elsewhere."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pipeline.audit.run import audit
from pipeline.build.recipe import build
from pipeline.config.schema import PipelineConfig
from pipeline.dataset.manifest import Manifest
from pipeline.estimate import describe_build
from pipeline.settings import ConfigError, validate
from pipeline.vocabulary.__main__ import main as train_vocabulary

HINDI = (
    "\u0939\u093f\u0928\u094d\u0926\u0940 \u092e\u0947\u0902 \u0938\u094d\u0935\u0930 \u0915\u0941\u0932 \u0915\u0932"
)
SAMPLES = {
    "hi": HINDI,
    "th": "\u0e20\u0e32\u0e29\u0e32\u0e44\u0e17\u0e22 \u0e01\u0e48\u0e32 \u0e17\u0e35\u0e48\u0e19\u0e35\u0e48",
    "ja": "\u3053\u308c\u304c \u3067\u3059 \u30b8\u30e3\u30d1\u30f3",
    "km": "\u1782\u17b6\u178f\u17cb\u1791\u17c5 \u1795\u17d2\u179f\u17b6\u179a",
    "my": "\u1000\u103b\u103d\u1014\u103a\u1010\u1031\u102c\u103a \u101e\u103d\u102c\u1038",
    "bo": "\u0f44\u0f0b\u0f56\u0f7c\u0f51\u0f0b\u0f54\u0f0b\u0f61\u0f72\u0f53",
    "lo": "\u0e82\u0ec9\u0ead\u0e8d \u0e81\u0eb4\u0e99 \u0ec0\u0e82\u0ebb\u0ec9\u0eb2",
    "ta": "\u0ba4\u0bae\u0bbf\u0bb4\u0bcd \u0bae\u0bca\u0bb4\u0bbf",
    "fa": "\u0622\u0628 \u0622\u0645\u062f \u0645\u0633\u0626\u0644\u0647",
    "yi": "\u05d9\u05d9\u05b7\u05d3\u05d9\u05e9 \u05d0\u05b8\u05d3\u05e2\u05e8",
}
PLAIN = {
    "ko": "\ud55c\uad6d\uc5b4 \ubb38\uc7a5 \uc785\ub2c8\ub2e4",
    "zh": "\u6211 \u7231 \u5317\u4eac",
    "he": "\u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd \u05e9\u05b8\u05c1\u05dc\u05d5\u05b9\u05dd",
    "ru": "\u041c\u043e\u0439 \u0451\u0436 \u0437\u0434\u0435\u0441\u044c",
    "el": "\u0395\u03af\u03bd\u03b1\u03b9 \u03ad\u03bd\u03b1 \u03ac\u03bb\u03bb\u03bf",
    "vi": "ti\u1ebfng Vi\u1ec7t \u0111\u1eb9p",
    "am": "\u12a0\u121b\u122d\u129b \u1290\u12cd",
}


def write_documents(path: Path, words: Sequence[str], *, count: int = 30, others: int = 0) -> Path:
    """Documents of four sentences of random words and a number; `others` English ones follow."""
    rng = random.Random(3)

    def document(words: Sequence[str]) -> str:
        return "\n".join(" ".join(rng.choices(words, k=8)) + f" {rng.randint(0, 999)}." for _ in range(4))

    texts = [document(words) for _ in range(count)] + [
        document(["the", "cat", "sat", "on", "a", "mat"]) for _ in range(others)
    ]
    path.write_text("\n\n".join(texts) + "\n", encoding="utf-8")
    return path


def make_config(folder: Path, text: Path, *, language: str = "en", **settings: Any) -> PipelineConfig:
    vocabulary = {"size": 420, **settings.pop("vocabulary", {})}
    tree = {
        "sources": [{"kind": "text", "path": str(text), "language": language}],
        "vocabulary": vocabulary,
        "output": str(folder / "out"),
        "max_seq_length": 64,
        "validation_fraction": 0.0,
        "shards": 1,
        "workers": 1,
        **settings,
    }
    return validate(PipelineConfig, tree, origin="test")


def run(config: PipelineConfig) -> tuple[Manifest, dict[str, Any], list[str]]:
    """Build, and return the manifest, report.json and what was said."""
    said: list[str] = []
    manifest = build(config, say=said.append)
    return manifest, json.loads((Path(config.output) / "report.json").read_text(encoding="utf-8")), said


@pytest.mark.parametrize("language", SAMPLES)
@pytest.mark.parametrize("is_named", [True, False])
def test_lost_letters_are_refused(tmp_path: Path, language: str, is_named: bool) -> None:
    """By the language of the source, or by its text if the language is wrong; with the remedy, which works."""
    text = write_documents(tmp_path / "text.txt", SAMPLES[language].split())
    named = language if is_named or language == "yi" else "en"
    with pytest.raises(ConfigError, match=r"sources\.0 .* removes .*% of the marks .* vocabulary\.strip_accents=false"):
        build(make_config(tmp_path, text, language=named))
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())
    run(make_config(tmp_path, text, language=named, vocabulary={"strip_accents": False}))


@pytest.mark.parametrize("language", PLAIN)
def test_accents_and_points_go_as_published(tmp_path: Path, language: str) -> None:
    run(make_config(tmp_path, write_documents(tmp_path / "text.txt", PLAIN[language].split()), language=language))


def test_a_few_foreign_words_refuse_nothing(tmp_path: Path) -> None:
    """An English encyclopedia names things in Hindi; but Hindi behind the first 200,000 characters is found."""
    text = write_documents(tmp_path / "text.txt", HINDI.split(), count=1, others=2_000)
    manifest, report, _ = run(make_config(tmp_path, text))
    assert manifest.num_rows("train")
    (entry,) = report["vocabulary"]["lost_marks"]
    assert entry["script"] == "Devanagari"
    assert 0 < entry["lost"] <= entry["found"]
    words = ["the", "cat", "sat", "on", "a", "mat"]
    late = tmp_path / "late.txt"
    write_documents(late, words, count=1_500)
    with late.open("a", encoding="utf-8") as file:
        file.write("\n" + write_documents(tmp_path / "hindi.txt", HINDI.split()).read_text(encoding="utf-8"))
    with pytest.raises(ValueError, match=r"removes \d+% of the marks of the Devanagari script"):
        run(make_config(tmp_path / "late", late))


def test_the_vocabulary_command_refuses_too(tmp_path: Path) -> None:
    text = write_documents(tmp_path / "text.txt", HINDI.split())
    arguments = [f'sources=[{{"kind": "text", "path": "{text}"}}]', f"output={tmp_path / 'out'}"]
    with pytest.raises(ConfigError, match="Devanagari"):
        train_vocabulary.__wrapped__([*arguments, f"vocabulary.path={tmp_path / 'v.txt'}"])
    assert not (tmp_path / "v.txt").exists()


def test_a_given_tokenizer_that_loses_letters_is_named(tmp_path: Path) -> None:
    text = write_documents(tmp_path / "text.txt", HINDI.split())
    run(make_config(tmp_path, text, language="hi", vocabulary={"strip_accents": False}))
    path = tmp_path / "tokenizer.json"
    layout = json.loads((tmp_path / "out" / "tokenizer" / "tokenizer.json").read_text(encoding="utf-8"))
    layout["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "NFD"}, {"type": "StripAccents"}]}
    path.write_text(json.dumps(layout), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"give a vocabulary that keeps them: .*tokenizer\.json removes them itself"):
        build(make_config(tmp_path / "again", text, vocabulary={"path": str(path), "size": 30_522}))
    trained = {"path": str(tmp_path / "new.json"), "train": True, "algorithm": "bpe"}
    with pytest.raises(ConfigError, match=r"set vocabulary\.strip_accents=false"):
        build(make_config(tmp_path / "again", text, vocabulary=trained))


def test_the_dry_run_refuses_too(tmp_path: Path) -> None:
    text = write_documents(tmp_path / "text.txt", HINDI.split())
    with pytest.raises(ConfigError, match="Devanagari"):
        list(describe_build(make_config(tmp_path, text)))


ENGLISH = ["the", "cat", "sat", "on", "a", "mat"]


@pytest.mark.parametrize("language", ["ar", "th"])
@pytest.mark.parametrize(("others", "is_refused"), [(100, True), (1_500, False)])
def test_a_small_share_of_a_script_is_judged_the_same_by_dry_run_and_build(
    tmp_path: Path, language: str, others: int, is_refused: bool
) -> None:
    """One document of the script among English ones, whatever share of its letters have marks."""
    words = {**SAMPLES, "ar": "\u0623\u0628 \u0643\u062a\u0627\u0628 \u0642\u0644\u0645"}
    text = write_documents(tmp_path / "text.txt", words[language].split(), count=1, others=others)
    config = make_config(tmp_path, text)
    found = []
    for attempt in (lambda: list(describe_build(config)), lambda: run(config)):
        try:
            attempt()
            found.append("")
        except ValueError as error:
            found.append(str(error))
    assert [("vocabulary.strip_accents=false" in each) for each in found] == [is_refused, is_refused]
    assert found[0] == found[1]


@pytest.mark.parametrize("name", ["v.txt", "v.json"])
def test_the_remedy_works_if_the_refused_build_has_trained_a_vocabulary(tmp_path: Path, name: str) -> None:
    """Its file is named, because strip_accents=false alone would use it unchanged."""
    text = write_documents(tmp_path / "text.txt", HINDI.split(), count=1, others=150)
    given = {"path": str(tmp_path / name), "train": True}
    with pytest.raises(ValueError, match=rf"strip_accents=false, .* name another vocabulary\.path .*{name}"):
        run(make_config(tmp_path, text, vocabulary=given))
    assert (tmp_path / name).exists()
    (tmp_path / name).unlink()
    _, report, said = run(make_config(tmp_path, text, vocabulary={**given, "strip_accents": False}))
    assert report["vocabulary"]["lost_marks"] == []
    assert report["vocabulary"]["unknown_rate"] == 0
    assert not [line for line in said if "[UNK]" in line]


def test_the_case_of_hindi_is_refused(shared_data: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"marks of the Devanagari script.*strip_accents"):
        build(make_config(tmp_path, shared_data / "cases" / "hindi.txt"))
    _, report, said = run(
        make_config(tmp_path, shared_data / "cases" / "hindi.txt", language="hi", vocabulary={"strip_accents": False})
    )
    assert report["vocabulary"]["lost_marks"] == []
    assert not [line for line in said if "[UNK]" in line]


THAI_WORDS = [
    "\u0e1b\u0e23\u0e30\u0e40\u0e17\u0e28",
    "\u0e44\u0e17\u0e22",
    "\u0e21\u0e35",
    "\u0e1b\u0e23\u0e30\u0e0a\u0e32\u0e01\u0e23",
    "\u0e21\u0e32\u0e01\u0e01\u0e27\u0e48\u0e32",
    "\u0e04\u0e19",
    "\u0e01\u0e34\u0e19",
    "\u0e02\u0e49\u0e32\u0e27",
]
_draw = random.Random(8)
THAI_CLAUSES = ["".join(_draw.choices(THAI_WORDS, k=_draw.randint(9, 40))) for _ in range(400)]
"""Clauses of about 40 to 180 characters without spaces."""


def test_clauses_and_unknown_characters_are_warned_of(tmp_path: Path) -> None:
    text = write_documents(tmp_path / "text.txt", THAI_CLAUSES)
    config = make_config(tmp_path, text, language="th", vocabulary={"lowercase": False})
    manifest, report, said = run(config)
    facts = report["vocabulary"]
    assert facts["long_words"] > 0
    assert facts["unknown_character_rate"] > 0.2
    assert facts["unknown_rate"] < facts["unknown_character_rate"]
    assert facts["clause_character_rate"] > 0.5
    warnings = [line for line in said if line.startswith("warning: sources.0 (text-th)")]
    assert any("characters are in [UNK]" in line and "longer than 100 characters" in line for line in warnings)
    assert any("words come out as clauses" in line and "dictionary_words=[th]" in line for line in warnings)
    assert set(report["warnings"]) >= {line.removeprefix("warning: ") for line in warnings}
    assert manifest.statistics["text"]["joiners"] == "removed"


def test_words_of_a_dictionary_are_masked_and_audited(tmp_path: Path) -> None:
    pytest.importorskip("icu4py", reason="the extra `words` (icu4py) is not installed")
    from transformers import AutoTokenizer

    text = write_documents(tmp_path / "text.txt", THAI_CLAUSES)
    settings = {"lowercase": False, "path": str(tmp_path / "v.txt"), "train": True}
    config = make_config(tmp_path, text, language="th", vocabulary=settings, dictionary_words=["th"])
    manifest, report, said = run(config)
    assert report["vocabulary"]["long_words"] == report["vocabulary"]["unknown_characters"] == 0
    assert report["vocabulary"]["clause_character_rate"] == 0
    assert not [line for line in said if line.startswith("warning: sources.0")]
    assert manifest.versions["icu4py"]
    found = audit(config.output, workers=1)
    assert not {name: each.first_fault for name, each in found.findings.by_check.items() if each.faults}
    assert found.findings.by_check["whole words"].looked_at == 0  # pieces do not show these words
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "Words of th, which mask sets cover as a whole, were found by the dictionaries of ICU" in card
    loaded = AutoTokenizer.from_pretrained(tmp_path / "out" / "tokenizer")
    assert (
        loaded.unk_token_id not in loaded(max(THAI_CLAUSES, key=len))["input_ids"]
    )  # without ICU, and over 100 characters


@pytest.mark.parametrize(
    ("languages", "message"),
    [
        (["hi"], "ICU has no dictionary for 'hi', only for ja, km, lo, my, th, yue, zh"),
        (["km"], "no source has language 'km'"),
    ],
)
def test_dictionaries_of_other_languages_are_refused(tmp_path: Path, languages: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_config(tmp_path, tmp_path / "x.txt", language="th", dictionary_words=languages)
    with pytest.raises(ConfigError, match="mode: reference takes words from the tokenizer"):
        make_config(tmp_path, tmp_path / "x.txt", language="th", dictionary_words=["th"], mode="reference")


def test_an_absent_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.vocabulary.train.has_library", lambda: False)
    text = write_documents(tmp_path / "text.txt", THAI_CLAUSES, count=3)
    with pytest.raises(ConfigError, match=r"needs the package icu4py, .*pip install 'cloze\[words\]'"):
        build(make_config(tmp_path, text, language="th", dictionary_words=["th"], vocabulary={"lowercase": False}))


def test_turkish_is_lower_cased_by_its_rules(tmp_path: Path) -> None:
    """Alone the tokenizer does it, and the saved one too; among others the pipeline does it, and says so."""
    words = ["ILIK", "\u0130L\u0130K", "KIZ"]
    text = write_documents(tmp_path / "text.txt", words)
    manifest, _, _ = run(make_config(tmp_path, text, language="tr"))
    tokens = (tmp_path / "out" / "tokenizer" / "vocab.txt").read_text(encoding="utf-8").split()
    assert {"\u0131l\u0131k", "ilik", "k\u0131z"} <= set(tokens)
    assert manifest.statistics["text"]["case"] == "lowered_dotted_i"
    sources = [
        {"kind": "text", "path": str(text), "language": "tr"},
        {"kind": "text", "path": str(write_documents(tmp_path / "en.txt", ["ILIK", "cat"])), "language": "en"},
    ]
    mixed = make_config(tmp_path / "mixed", text, sources=sources, validation_fraction=0.0)
    _, _, said = run(mixed)
    tokens = (tmp_path / "mixed" / "out" / "tokenizer" / "vocab.txt").read_text(encoding="utf-8").split()
    assert {"\u0131l\u0131k", "ilik", "k\u0131z"} <= set(tokens)
    assert any("sources.0.language='tr'" in line and "dotless" in line for line in said)
