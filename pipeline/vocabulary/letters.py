"""Refuses vocabularies that would turn different words into one word. They do so if their normalizer removes vowel
signs, tones or other marks that change a letter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress

from pipeline import storage
from pipeline.cleaning import scripts_of
from pipeline.config import PipelineConfig, SourceConfig
from pipeline.documents import Document, Split, TextLoss
from pipeline.settings import ConfigError
from pipeline.sources import read_documents
from pipeline.tally import ReadTally
from pipeline.tokenizer import DOTTED_I_LANGUAGES, LostMarks, WordTokenizer, word_rules

MOST_LOST = 0.01
"""The largest share of a script's marks that a normalizer may remove."""
_MENTIONED = 0.001
"""At most this share of a source's characters may be in a script that loses marks: words that the text mentions. In
English and Italian Wikipedia 0.006% of the characters are Arabic, and fewer are of any other such script."""
_MANY_LETTERS, _SAMPLE_CHARACTERS, _SAMPLE_SPLITS = 0.05, 200_000, 4
"""Before a source is read, a sample of about _SAMPLE_CHARACTERS is taken from the beginnings of at most _SAMPLE_SPLITS
splits. The source is refused if more than the share _MANY_LETTERS of the sample is in a script that loses marks."""
_NAMED = {"ARABIC": "hamza and madda", "KANA": "the marks of voiced sounds"}
"""What an error message calls the marks of a script. The marks of other scripts have a common name."""
_KANA = ("HIRAGANA", "KATAKANA")


def has_dotted_i(config: PipelineConfig) -> bool:
    """Whether the vocabulary lower-cases I to a dotless i. It does if every source is in a language with this letter,
    such as Turkish."""
    return config.vocabulary.lowercase and all(source.language in DOTTED_I_LANGUAGES for source in config.sources)


def refuse_lost_letters(config: PipelineConfig, *, tokenizer: WordTokenizer | None, splits: Sequence[Split]) -> None:
    """Raise ConfigError if the tokenizer's normalizer removes over 1% of the marks (such as vowel signs) of a script in
    which a source is written.

    `tokenizer` has the given vocabulary; it is None if a vocabulary will be trained. The source's language tells the
    script. Because a source may have text in other scripts, the beginnings of some of `splits` are read too. Nothing is
    read for a normalizer that removes no marks, nor of a source with clean_documents, which would be parsed twice;
    refuse_read_losses judges such a source.
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
        sample = TextLoss()
        characters = 0
        own = [split for split in splits if split.source == index and source.clean_documents is None]
        for text in _read_beginnings(source, splits=own):
            characters += len(text)
            counted = marks.count(text)
            if counted is not None:
                sample.add(TextLoss(marks=counted.found, lost_marks=counted.lost, letters=counted.letters))
        lost = _find_lost(sample, characters=characters, most=_MANY_LETTERS, source=source)
        if lost is not None:
            share = sample.lost_marks[lost] / sample.marks[lost]
            raise ConfigError(_describe(index, config=config, script=lost, share=share))


def refuse_read_losses(config: PipelineConfig, *, read: ReadTally) -> None:
    """Raise ValueError if the tokenizer removed over 1% of a source's marks (such as vowel signs) in a script in which
    the source is written. `read` has the counts of what was read.

    A source is written in a script if more than 1 in 1,000 of its characters are letters or marks of that script.
    """
    none = Counter[str]()
    for index, source in enumerate(config.sources):
        marks, lost, letters = (each.get(index, none) for each in (read.marks, read.lost_marks, read.letters))
        loss = TextLoss(marks=marks, lost_marks=lost, letters=letters)
        script = _find_lost(loss, characters=read.characters[index], most=_MENTIONED, source=source)
        if script is not None:
            raise ValueError(_describe(index, config=config, script=script, share=lost[script] / marks[script]))


def _find_lost(loss: TextLoss, *, characters: int, most: float, source: SourceConfig) -> str | None:
    """Return the script whose marks (such as vowel signs) the tokenizer removes most often. Only scripts that lose a
    greater share of their marks than MOST_LOST are considered. Return None if there is no such script. A script is
    ignored if its letters and marks are a share of at most `most` of the text. `characters` is how many characters the
    text has."""
    for script, number in loss.lost_marks.most_common():
        if script == "HEBREW" and script not in _own_scripts(source.language):
            continue
        if number > MOST_LOST * loss.marks[script] and loss.letters[script] > most * characters:
            return script
    return None


def _own_scripts(language: str) -> set[str]:
    """Return the scripts of a language, by the first words of their letters' Unicode names (such as THAI). Return no
    script if the language may be written in Latin letters too.

    Hebrew script counts for Yiddish only, because only in Yiddish are the points letters.
    """
    scripts = scripts_of(language)
    if "LATIN" in scripts or ("HEBREW" in scripts and language != "yi"):
        return set()
    return {"KANA" if script in _KANA else script for script in scripts}


def _read_beginnings(source: SourceConfig, *, splits: Sequence[Split]) -> Iterator[str]:
    """Choose at most _SAMPLE_SPLITS of `splits` at even distances, and yield the first sentences of each chosen split.
    All sentences together have about _SAMPLE_CHARACTERS. Splits that cannot be read are left out."""
    chosen = splits[:: max(1, -(-len(splits) // _SAMPLE_SPLITS))]
    for split in chosen:
        with suppress(ValueError, OSError):
            characters = 0
            for item in read_documents(split, source):
                if isinstance(item, Document):
                    yield from item.sentences
                    characters += sum(map(len, item.sentences))
                if characters * len(chosen) > _SAMPLE_CHARACTERS:
                    break


def _describe(index: int, *, config: PipelineConfig, script: str, share: float) -> str:
    settings, source = config.vocabulary, config.sources[index]
    path = settings.path or ""
    if path.endswith(".json") and not settings.train:
        remedy = f"give a vocabulary that keeps them: {path} removes them itself"
    else:
        remedy = "set vocabulary.strip_accents=false, with which vocabulary.lowercase=true keeps them"
        if path and not settings.train:
            remedy += f", if {path} was trained so; else give or train another vocabulary"
        elif path and storage.exists(path):
            remedy += f", and name another vocabulary.path (or remove {path}), because {path} was trained without them"
    letters = _NAMED.get(script, "vowel signs, tones and others")
    return (
        f"sources.{index} ({source.display_name}): the vocabulary's normalisation removes {100 * share:.0f}% of the "
        f"marks of the {script.title()} script, where they are letters ({letters}), so that different words become "
        f"one; {remedy}"
    )
