"""Warns of settings that are valid but probably a mistake, before the build reads its input.

Examples are sentence rules of another language, and a vocabulary that cannot represent the text. If the user notices
such a mistake late, a whole build is wasted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from tokenizers import Tokenizer

from pipeline.config import PipelineConfig, SourceConfig, VocabularyConfig
from pipeline.documents import Document, Split
from pipeline.instances import fewest_documents
from pipeline.sources import read_documents
from pipeline.tokenizer import DOTTED_I_LANGUAGES, RARE_LETTERS, WordTokenizer
from pipeline.units import count_of
from pipeline.vocabulary import has_dotted_i
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
"""Maps country codes that are often given by mistake to the language code that was meant. As a language code, such a
country code names another language (kr is Kanuri) or none."""
_FEW_CAPITALS = 0.01
_FEWEST_PREDICTIONS = 0.8
"""Share of the targets of a full row that max_predictions must leave room for."""


def list_advice(config: PipelineConfig, *, tokenizer: WordTokenizer | None) -> list[str]:
    """Return warnings of probable mistakes, one line each. `tokenizer` is the tokenizer of the given vocabulary, or
    None if a vocabulary will be trained."""
    found = [*_advise_on_languages(config.sources), *_advise_on_predictions(config), *_advise_on_dotted_i(config)]
    path = config.vocabulary.path
    if tokenizer is not None:
        found += _advise_on_training(config.vocabulary, size=tokenizer.vocab_size)
    if path is not None and path.endswith(".json"):
        given = [key for key in ("lowercase", "strip_accents") if key in config.vocabulary.model_fields_set]
        found += [f"vocabulary.{key} has no effect: {path} has this setting itself; remove it" for key in given]
        found += [] if tokenizer is None else _advise_on_unknown(tokenizer.backend, path=path)
    elif tokenizer is not None and path is not None:
        found += _advise_on_case(tokenizer.tokens, path=path, lowercase=config.vocabulary.lowercase)
    return found


def _advise_on_languages(sources: Sequence[SourceConfig]) -> Iterator[str]:
    for index, source in enumerate(sources):
        code = source.language
        meant = _OF_COUNTRIES.get(code)
        if meant is not None:
            yield f"sources.{index}.language={code!r} is a country code; give the language code {meant!r}"
        elif code not in language_codes() and code.partition("-")[0] not in language_codes():
            yield (
                f"sources.{index}.language={code!r} is not the code of any Wikipedia, so sentences may be split by "
                "English rules; give a code such as ko, ja, zh, de"
            )


def _advise_on_dotted_i(config: PipelineConfig) -> Iterator[str]:
    """Yield a warning if a build lower-cases both Turkish text and text of other languages. The saved tokenizer does
    not know the language of a text, so it would lower-case the Turkish I wrongly."""
    if not config.vocabulary.lowercase or has_dotted_i(config):
        return
    for index, source in enumerate(config.sources):
        if source.language in DOTTED_I_LANGUAGES:
            yield (
                f"sources.{index}.language={source.language!r}: this build lower-cases its I to a dotless i, but the "
                "saved tokenizer, which serves other languages too, to i; lower-case such text before you give it to "
                "the tokenizer, or set vocabulary.lowercase=false"
            )


def _advise_on_predictions(config: PipelineConfig) -> Iterator[str]:
    """Yield a warning if max_predictions is so small that a full row has far fewer masked positions than
    masked_probability asks for."""
    wanted = math.ceil(config.masked_probability * config.max_seq_length)
    if config.predictions < _FEWEST_PREDICTIONS * wanted:
        yield (
            f"max_predictions={config.predictions} masks {100 * config.predictions / config.max_seq_length:.1f}% of a "
            f"row of max_seq_length={config.max_seq_length} tokens, not {100 * config.masked_probability:g}% "
            f"(masked_probability), so training sees fewer targets; set max_predictions={wanted}, or remove it"
        )


def _advise_on_training(settings: VocabularyConfig, *, size: int) -> Iterator[str]:
    """Yield a warning for each setting of vocabulary training that has no effect, because the vocabulary already
    exists. `size` says how many entries this vocabulary has."""
    remedy = "remove it" if not settings.train else "name another file to train one"
    for key in ("size",) if settings.train else ("algorithm", "criterion", "size", "min_pair_count", "hangul"):
        value, default = getattr(settings, key), VocabularyConfig.model_fields[key].default
        if value != default and not (key == "size" and value == size):
            yield (
                f"vocabulary.{key}={value} has no effect: {settings.path} exists, with {size:,} entries, and is used "
                f"unchanged; {remedy}"
            )


def refuse_few_books(config: PipelineConfig, *, splits: Sequence[Split]) -> None:
    """Raise ValueError if all sources are books, and there are too few books to hold some out for validation.

    Each book is held out by chance, with all of its chapters. Training and validation each need a smallest number of
    books. There are too few books if there are fewer than both need together, or if chance would leave one of the two
    short in more than 99% of cases. Files are counted as books first. If there are too few files, the books in the
    files are counted, because a file may have several. Reading ends once there are enough. Files
    without any book are accepted: the build says later what is wrong with them.
    """
    kinds = {source.kind for source in config.sources}
    if kinds != {"books"} or not config.validation_fraction or any(split.end != -1 for split in splits):
        return  # another kind of document, or an archive, whose number of books is not known
    whole = all(source.unit == "book" for source in config.sources)
    fewest = fewest_documents(config.next_sentence) if whole else 1
    if not _are_few(len({split.path for split in splits}), fewest=fewest, fraction=config.validation_fraction):
        return
    books = 0
    for split in splits:
        for _ in _read_books(split, source=config.sources[split.source]):
            books += 1
            if not _are_few(books, fewest=fewest, fraction=config.validation_fraction):
                return
    if not books:
        return
    raise ValueError(
        f"{count_of(books, 'book')}, {'one document each' if whole else 'their chapters held out together'}, "
        f"{'are' if books != 1 else 'is'} too few to hold out {fewest} with "
        f"validation_fraction={config.validation_fraction:g}; raise validation_fraction, add books, or set it "
        "to 0 to hold out nothing"
    )


def _are_few(books: int, *, fewest: int, fraction: float) -> bool:
    if books < 2 * fewest:
        return True
    too_few = (*range(fewest), *range(books - fewest + 1, books + 1))  # held out, or left to train on
    failing = sum(math.comb(books, held) * fraction**held * (1 - fraction) ** (books - held) for held in too_few)
    return bool(failing > 0.99)


def _read_books(split: Split, *, source: SourceConfig) -> Iterator[Document]:
    whole = source.model_copy(update={"unit": "book", "clean_documents": None})
    return (item for item in read_documents(split, whole) if isinstance(item, Document))


def _advise_on_unknown(backend: Tokenizer, *, path: str) -> Iterator[str]:
    """Yield a warning if the tokenizer drops characters that its vocabulary lacks. BPE does this if it has neither
    unk_token nor byte_fallback. `path` is the tokenizer's file."""
    gone = [letter for letter in RARE_LETTERS if not backend.encode(letter, add_special_tokens=False).ids]
    if gone:
        yield (
            f"{path}: drops characters that its vocabulary lacks, such as {gone[0]}; set unk_token or byte_fallback in "
            "its model, or make sure that it has every character of the text"
        )


def _advise_on_case(tokens: Sequence[str], *, path: str, lowercase: bool) -> Iterator[str]:
    words = [token for token in tokens if not (token.startswith("[") and token.endswith("]"))]
    capitals = sum(word != word.lower() for word in words)
    if lowercase and capitals > _FEW_CAPITALS * len(words):
        yield (
            f"{path}: {capitals:,} of {len(words):,} entries have capital letters, which lower-cased text never uses; "
            "set vocabulary.lowercase=false if the vocabulary is cased"
        )
    if not lowercase and not capitals and any(word.upper() != word for word in words):
        yield (
            f"{path}: no entry has a capital letter, so words with one become [UNK]; set vocabulary.lowercase=true if "
            "the vocabulary is uncased"
        )
