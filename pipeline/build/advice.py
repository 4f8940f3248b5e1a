"""What of a config is legal but hardly meant, told before anything is read. Pure.

Both mistakes cost a whole run: text by another language's rules, and words that the vocabulary cannot hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import comb

from tokenizers import Tokenizer

from pipeline.config import PipelineConfig, SourceConfig, VocabularyConfig
from pipeline.documents import Split
from pipeline.instances import fewest_documents
from pipeline.tokenizer import RARE_LETTERS, WordTokenizer
from pipeline.wikitext import language_codes

_OF_COUNTRIES = {
    "cn": "zh",
    "cz": "cs",
    "dk": "da",
    "gr": "el",
    "il": "he",
    "ir": "fa",
    "jp": "ja",
    "kr": "ko",
    "tw": "zh",
    "ua": "uk",
    "vn": "vi",
}
"""Codes of countries that are taken for their languages' (kr is Kanuri, or nothing)."""
_FEW_CAPITALS = 0.01


def list_advice(config: PipelineConfig, *, tokenizer: WordTokenizer | None) -> list[str]:
    """A line each; `tokenizer`: the given vocabulary, None where one is to be trained."""
    found = list(_advise_on_languages(config.sources))
    path = config.vocabulary.path
    if tokenizer is not None:
        found += _advise_on_training(config.vocabulary, size=tokenizer.vocab_size)
    if path is not None and path.endswith(".json"):
        given = [key for key in ("lowercase", "strip_accents") if key in config.vocabulary.model_fields_set]
        found += [f"vocabulary.{key}: not looked at, since {path} says so itself; leave it out" for key in given]
        found += [] if tokenizer is None else _advise_on_unknown(tokenizer.backend, path=path)
    elif tokenizer is not None and path is not None:
        found += _advise_on_case(tokenizer.tokens, path=path, lowercase=config.vocabulary.lowercase)
    return found


def _advise_on_languages(sources: Sequence[SourceConfig]) -> Iterator[str]:
    for index, source in enumerate(sources):
        code = source.language
        meant = _OF_COUNTRIES.get(code)
        if meant is not None:
            yield f"sources.{index}.language={code!r}: a country's code; its language is {meant!r}"
        elif code not in language_codes() and code.partition("-")[0] not in language_codes():
            yield (
                f"sources.{index}.language={code!r}: no Wikipedia has this code, so sentences may end by English "
                "rules; give one such as ko, ja, zh, de"
            )


def _advise_on_training(settings: VocabularyConfig, *, size: int) -> Iterator[str]:
    """Settings of a training beside a vocabulary that is there, so that none is trained."""
    remedy = "leave it out" if not settings.train else "name another file to train one"
    for key in ("size",) if settings.train else ("algorithm", "criterion", "size", "min_pair_count", "hangul"):
        value, default = getattr(settings, key), VocabularyConfig.model_fields[key].default
        if value != default and not (key == "size" and value == size):
            yield (
                f"vocabulary.{key}={value} has no effect: {settings.path} is there, with {size:,} entries, and is used "
                f"as it is; {remedy}"
            )


def refuse_few_books(config: PipelineConfig, *, splits: Sequence[Split]) -> None:
    """ValueError where the sources are books, a document each, and too few of them to hold any out, but for a chance of
    one in a hundred: told before anything is read."""
    whole = all(source.kind == "books" and source.unit == "book" for source in config.sources)
    fraction, fewest = config.validation_fraction, fewest_documents(config.next_sentence)
    if not whole or not fraction or any(split.end != -1 for split in splits):  # an archive: who knows how many
        return
    books = len({split.path for split in splits})
    too_few = (*range(fewest), *range(books - fewest + 1, books + 1))  # held out, or left to train on
    failing = sum(comb(books, held) * fraction**held * (1 - fraction) ** (books - held) for held in too_few)
    if books < 2 * fewest or failing > 0.99:
        raise ValueError(
            f"{books} book{'s' * (books != 1)}, a document each, {'are' if books != 1 else 'is'} too few to "
            f"hold out {fewest} by validation_fraction={fraction:g}; set unit: chapter in the source, which makes each "
            f"chapter a document, raise validation_fraction, or set it to 0 for no held-out rows"
        )


def _advise_on_unknown(backend: Tokenizer, *, path: str) -> Iterator[str]:
    """BPE without unk_token and without bytes leaves out what it does not know."""
    gone = [letter for letter in RARE_LETTERS if not backend.encode(letter, add_special_tokens=False).ids]
    if gone:
        yield (
            f"{path}: leaves out characters that its vocabulary lacks, such as {gone[0]}; set the model's unk_token or "
            "byte_fallback, or make sure that it has all characters of the text"
        )


def _advise_on_case(tokens: Sequence[str], *, path: str, lowercase: bool) -> Iterator[str]:
    words = [token for token in tokens if not (token.startswith("[") and token.endswith("]"))]
    capitals = sum(word != word.lower() for word in words)
    if lowercase and capitals > _FEW_CAPITALS * len(words):
        yield (
            f"{path}: {capitals:,} of {len(words):,} entries have capital letters, which lower-cased text never uses; "
            "set vocabulary.lowercase=false for a cased vocabulary"
        )
    if not lowercase and not capitals and any(word.upper() != word for word in words):
        yield (
            f"{path}: no entry has a capital letter, so words with one become [UNK]; set vocabulary.lowercase=true for "
            "an uncased vocabulary"
        )
