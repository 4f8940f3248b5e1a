"""Refuses vocabularies that would make different words one, because their normalizer removes marks that are letters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress

from pipeline.cleaning import scripts_of
from pipeline.config import PipelineConfig, SourceConfig
from pipeline.documents import Document, Split
from pipeline.settings import ConfigError
from pipeline.sources import read_documents
from pipeline.tally import ReadTally
from pipeline.tokenizer import DOTTED_I_LANGUAGES, LostMarks, WordTokenizer, word_rules

MOST_LOST = 0.01
"""The largest share of a script's marks that a normalizer may remove."""
_FEW_MARKS = 0.001
"""A source may lose so many marks per character: words of another script that it mentions."""
_MANY_MARKS, _SAMPLE_CHARACTERS = 0.01, 200_000
"""A source is refused before it is read if so many marks per character are lost in about so many characters of it."""
_NAMED = {"ARABIC": "hamza and madda", "KANA": "the marks of voiced sounds"}
"""What the marks of a script are, if they are not what most are."""
_KANA = ("HIRAGANA", "KATAKANA")


def has_dotted_i(config: PipelineConfig) -> bool:
    """Whether the vocabulary lower-cases I to a dotless i, because every source is in Turkish or a language like it."""
    return config.vocabulary.lowercase and all(source.language in DOTTED_I_LANGUAGES for source in config.sources)


def refuse_lost_letters(config: PipelineConfig, *, tokenizer: WordTokenizer | None, splits: Sequence[Split]) -> None:
    """Raise ConfigError if the normalizer removes over 1% of the marks of a script in which a source is written.

    `tokenizer` is the given vocabulary; None if one will be trained. The source's language tells the script. For
    sources in an unexpected script, the beginning of one of `splits` is read too. A normalizer that removes no marks
    costs nothing.
    """
    if tokenizer is None:
        marks = LostMarks(word_rules(config.vocabulary, dotted_i=has_dotted_i(config))[0])
    else:
        marks = tokenizer.lost_marks
    if not marks.scripts:
        return
    for index, source in enumerate(config.sources):
        for script in _own_scripts(source.language):
            if marks.scripts.get(script, 0.0) > MOST_LOST:
                raise ConfigError(_describe(index, config=config, script=script, share=marks.scripts[script]))
        found, lost, characters = Counter[str](), Counter[str](), 0
        for text in _read_beginning(source, splits=[split for split in splits if split.source == index]):
            characters += len(text)
            counted = marks.count(text)
            if counted is not None:
                found += counted.found
                lost += counted.lost
        for script, number in lost.most_common():
            if _is_too_much(script, number, of=found, characters=characters, most=_MANY_MARKS, source=source):
                raise ConfigError(_describe(index, config=config, script=script, share=number / found[script]))


def refuse_read_losses(config: PipelineConfig, *, read: ReadTally) -> None:
    """Raise ValueError if the text that was read lost over 1% of the marks of a script in which a source is written.

    A source is written in a script if it lost at least one such mark per 1,000 characters.
    """
    for index, source in enumerate(config.sources):
        found, lost = read.marks.get(index, Counter()), read.lost_marks.get(index, Counter())
        for script, number in lost.most_common():
            characters = read.characters[index]
            if _is_too_much(script, number, of=found, characters=characters, most=_FEW_MARKS, source=source):
                raise ValueError(_describe(index, config=config, script=script, share=number / found[script]))


def _is_too_much(
    script: str, lost: int, *, of: Mapping[str, int], characters: int, most: float, source: SourceConfig
) -> bool:
    if script == "HEBREW" and script not in _own_scripts(source.language):
        return False
    return lost > MOST_LOST * of[script] and lost >= most * characters


def _own_scripts(language: str) -> set[str]:
    """Return the scripts of a language, as LostMarks names them; none if it may be in Latin letters too.

    The points of Hebrew are letters in Yiddish only.
    """
    scripts = scripts_of(language)
    if "LATIN" in scripts or ("HEBREW" in scripts and language != "yi"):
        return set()
    return {"KANA" if script in _KANA else script for script in scripts}


def _read_beginning(source: SourceConfig, *, splits: Sequence[Split]) -> list[str]:
    """Return the first sentences of one split, about _SAMPLE_CHARACTERS, or none if it cannot be read."""
    sentences: list[str] = []
    with suppress(ValueError, OSError):
        characters = 0
        for item in read_documents(splits[0], source.model_copy(update={"clean_documents": None})) if splits else ():
            if isinstance(item, Document):
                sentences += item.sentences
                characters += sum(map(len, item.sentences))
            if characters > _SAMPLE_CHARACTERS:
                break
    return sentences


def _describe(index: int, *, config: PipelineConfig, script: str, share: float) -> str:
    settings, source = config.vocabulary, config.sources[index]
    path = settings.path or ""
    if path.endswith(".json") and not settings.train:
        remedy = f"give a vocabulary that keeps them: {path} removes them itself"
    else:
        remedy = "set vocabulary.strip_accents=false, with which vocabulary.lowercase=true keeps them"
        if path and not settings.train:
            remedy += f", if {path} was trained so; else give or train another vocabulary"
    letters = _NAMED.get(script, "vowel signs, tones and others")
    return (
        f"sources.{index} ({source.called}): the vocabulary's normalisation removes {100 * share:.0f}% of the marks of "
        f"the {script.title()} script, where they are letters ({letters}), so that different words become one; {remedy}"
    )
