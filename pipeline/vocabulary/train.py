"""Trains a vocabulary from the config's sources: counts words, trains subwords, and writes the vocabulary file.

`python -m pipeline.vocabulary --config FILE` writes vocabulary.path if it does not exist. Beam counts the words in
parallel and in bounded memory. The file depends only on the text and the settings.
"""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from tokenizers import Tokenizer, decoders, models

from pipeline import storage
from pipeline.config import PipelineConfig, VocabularyConfig
from pipeline.console import Say
from pipeline.documents import Split
from pipeline.engines import DaskCluster
from pipeline.runtime import ProgressPrinter, local_notes, names_runner, scratch_folder, temporary_below
from pipeline.settings import ConfigError
from pipeline.tokenizer import (
    BERT_SPECIAL,
    END_OF_WORD,
    MAX_WORD_CHARACTERS,
    WordTokenizer,
    add_composition,
    build_wordpiece,
    finish,
    has_library,
    longest_word,
    word_rules,
)
from pipeline.vocabulary.letters import has_dotted_i, refuse_lost_letters
from pipeline.vocabulary.subwords import train_bpe, train_wordpiece
from pipeline.vocabulary.word_counts import JOINT, TOO_LONG, WordCounter, most_common, read_words

MAX_WORDS = 500_000
"""A vocabulary is trained on at most this many different words. These are the most frequent words of the text."""
_MANY_TOO_LONG = 0.01
"""Training warns if a larger share of the characters is in words that are too long to be counted."""
_BYTES_WORTH_A_WORKER = 4 << 20
"""Each worker process gets at least this many bytes of text. With less text, another process would not pay, because it
takes seconds to start."""

_logger = logging.getLogger(__name__)


def count_words(sentences: Iterable[str], *, settings: VocabularyConfig) -> dict[str, int]:
    """Return {word: count} for the MAX_WORDS most frequent words of `sentences`, most frequent first. The text is
    divided into words in the same way as by a tokenizer with these settings."""
    normalizer, splitter = word_rules(settings)
    with tempfile.TemporaryDirectory() as folder:
        counter = WordCounter(normalizer=normalizer, splitter=splitter, folder=Path(folder), name="words")
        counter.add(sentences)
        counts = most_common(counter.finish(), folder=Path(folder), limit=MAX_WORDS)
    counts.pop(TOO_LONG, None)
    return counts


def train_tokenizer(
    word_counts: Mapping[str, int],
    *,
    settings: VocabularyConfig,
    dotted_i: bool = False,
    max_word_characters: int = MAX_WORD_CHARACTERS,
) -> Tokenizer:
    """Train a subword vocabulary with the configured algorithm, and return a tokenizer that uses it.

    If text is lower-cased and `dotted_i` is true, I becomes a dotless i, as in Turkish. In WordPiece, words of more
    than `max_word_characters` become [UNK]. Raises ValueError if settings.size is too small for the alphabet. Logs a
    warning if the text yields fewer tokens than settings.size.
    """
    if settings.algorithm == "wordpiece":
        tokens = train_wordpiece(
            word_counts, size=settings.size, criterion=settings.criterion, min_pair_count=settings.min_pair_count
        )
        return build_wordpiece(
            tokens,
            lowercase=settings.lowercase,
            strip_accents=settings.strip_accents,
            origin="trained vocabulary",
            dotted_i=dotted_i,
            max_word_characters=max_word_characters,
        )
    byte_level = settings.algorithm == "byte_level_bpe"
    subwords = train_bpe(word_counts, size=settings.size, byte_level=byte_level, min_pair_count=settings.min_pair_count)
    vocabulary = {token: index for index, token in enumerate(subwords.tokens)}
    if byte_level:
        backend = Tokenizer(models.BPE(vocabulary, subwords.merges))
        backend.decoder = decoders.ByteLevel()
    else:
        backend = Tokenizer(models.BPE(vocabulary, subwords.merges, unk_token="[UNK]", end_of_word_suffix=END_OF_WORD))
        backend.decoder = decoders.BPEDecoder(suffix=END_OF_WORD)
    normalizer, splitter = word_rules(settings, dotted_i=dotted_i)
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.pre_tokenizer = splitter
    finish(backend, special=dict(zip(("pad", "unk", "cls", "sep", "mask"), BERT_SPECIAL, strict=True)))
    return backend


def train_vocabulary(
    config: PipelineConfig,
    *,
    splits: Sequence[Split],
    path: str | Path,
    beam_options: Sequence[str] = (),
    cluster: DaskCluster | None = None,
) -> None:
    """Train the config's vocabulary on the text of `splits`, and write it to `path` (.txt or .json). The file appears
    complete or not at all.

    If a Dask cluster is given, the words are counted on it. All workers must be able to reach the folder that contains
    `path`. The folder may be on an object store. Raises ConfigError if the file name does not fit the algorithm, and
    ValueError if the sources contain no words.
    """
    settings = config.vocabulary
    check_name(Path(path), settings=settings)
    check_dictionary(config)
    dotted_i = has_dotted_i(config)
    refuse_lost_letters(config, tokenizer=None, splits=splits)
    parent = storage.parent_of(path)
    storage.make_folder(parent)
    started = time.monotonic()
    with scratch_folder(parent, prefix=".words-") as folder:
        counts = count_sources(config, splits=splits, folder=folder, beam_options=beam_options, cluster=cluster)
    too_long = counts.pop(TOO_LONG, 0)
    words = sum(counts.values())
    if too_long > _MANY_TOO_LONG * (too_long + sum(len(word) * count for word, count in counts.items())):
        _logger.warning(
            "warning: %d characters are in words of more than %d characters, which cannot be counted (clauses without "
            "spaces?); if the language is written without spaces, name it in dictionary_words",
            *(too_long, MAX_WORD_CHARACTERS),
        )
    if not words:
        raise ValueError("the sources contain no words to train a vocabulary on; check sources.*.path and kind")
    counted = time.monotonic()
    backend = train_tokenizer(counts, settings=settings, dotted_i=dotted_i, max_word_characters=longest_word(config))
    vocabulary = backend.get_vocab()
    if Path(path).suffix == ".json":
        text = backend.to_str(pretty=True) + "\n"
    else:
        text = "".join(f"{token}\n" for token in sorted(vocabulary, key=vocabulary.__getitem__))
    try:
        storage.write_bytes(path, text.encode("utf-8"))
    except storage.StorageError:
        raise
    except OSError as error:
        raise ValueError(f"{path}: cannot be written ({error.strerror}); free space or give another path") from error
    pieces, unknown = measure(backend, counts)
    _logger.info(
        "%s: %d entries from %d words (%d different), %.3f tokens a word, %.4f%% [UNK]; counted in %.1f s, "
        "trained in %.1f s",
        *(path, len(vocabulary), words, len(counts), pieces, 100 * unknown),
        *(counted - started, time.monotonic() - counted),
    )


def count_sources(
    config: PipelineConfig,
    *,
    splits: Sequence[Split],
    folder: str,
    beam_options: Sequence[str] = (),
    cluster: DaskCluster | None = None,
) -> dict[str, int]:
    """Count the words of `splits` with Beam, and return {word: count} for the MAX_WORDS most frequent words.

    The files that the Beam steps write in `folder` are not removed. Raises the errors of engines.run_on_engine.
    """
    from pipeline.engines import local  # Beam takes 2 s to import
    from pipeline.vocabulary.graph import WORDS_NAME, WordContext, build_word_graph, group_splits

    groups = group_splits(splits)
    worth = sum(split.text_bytes for split in splits) // _BYTES_WORTH_A_WORKER
    workers = min(len(groups), config.workers or len(os.sched_getaffinity(0)), max(1, worth))
    with local_notes(folder, shared=cluster is not None or names_runner(beam_options)) as notes:
        context = WordContext(config=config, folder=folder, limit=MAX_WORDS, notes=notes)
        num_bytes = sum(split.num_bytes for split in splits)
        with ProgressPrinter(context.results_folder, num_splits=len(groups), num_bytes=num_bytes):
            local.run_on_engine(
                partial(build_word_graph, groups=groups, context=context),
                results_folder=context.results_folder,
                temporary=temporary_below(notes),
                workers=workers,
                beam_options=beam_options,
                cluster=cluster,
            )
    return read_words(storage.join(folder, WORDS_NAME))


def measure(backend: Tokenizer, word_counts: Mapping[str, int]) -> tuple[float, float]:
    """Return (mean number of tokens per word, share of words that contain [UNK]). `word_counts` maps each word, as the
    normalizer returns it, to the number of its occurrences."""
    total = pieces = unknown = 0
    unk = backend.token_to_id("[UNK]")
    for word, count in word_counts.items():
        ids = [token.id for token in backend.model.tokenize(word.strip(JOINT))]
        total += count
        pieces += count * len(ids)
        unknown += count * (unk in ids and JOINT not in word)  # within a clause a word may have other pieces
    return pieces / max(1, total), unknown / max(1, total)


def check_name(path: Path, *, settings: VocabularyConfig) -> None:
    """Raise ConfigError if the suffix of `path`, the vocabulary's file, does not fit the algorithm in `settings`: BPE
    needs .json, and WordPiece needs .txt or .json."""
    if path.suffix not in (".txt", ".json"):
        raise ConfigError(f"vocabulary.path={path}: must end in .txt (WordPiece) or .json (tokenizer.json)")
    if settings.algorithm != "wordpiece" and path.suffix != ".json":
        raise ConfigError(
            f"vocabulary.path={path}: a vocab.txt cannot hold the merges of {settings.algorithm}; "
            f"name a file that ends in .json"
        )


def given_vocabulary(config: PipelineConfig) -> WordTokenizer | None:
    """Return the tokenizer of the vocabulary file vocabulary.path. Return None if a vocabulary must be trained instead:
    the setting is empty, or vocabulary.train is true and there is no such file."""
    settings = config.vocabulary
    if settings.path is None or (settings.train and not storage.exists(settings.path)):
        return None
    tokenizer = open_vocabulary(config, settings.path)
    add_composition(tokenizer.backend)
    return WordTokenizer(tokenizer.backend, origin=settings.path)


def open_vocabulary(config: PipelineConfig, path: str | Path) -> WordTokenizer:
    """Return the tokenizer of a vocab.txt or tokenizer.json. A vocab.txt does not say how text is treated (such as
    lower case), so the config says it."""
    settings = config.vocabulary
    return WordTokenizer.from_path(
        path,
        lowercase=settings.lowercase,
        strip_accents=settings.strip_accents,
        dotted_i=has_dotted_i(config),
        max_word_characters=longest_word(config),
    )


def check_dictionary(config: PipelineConfig) -> None:
    """Raise ConfigError if dictionary_words names a language, but icu4py is not installed. The dictionaries of icu4py
    find words in scripts without spaces."""
    if config.dictionary_words and not has_library():
        raise ConfigError(
            f"dictionary_words={list(config.dictionary_words)} needs the package icu4py, which is not installed: "
            "pip install 'cloze[words]', or remove dictionary_words"
        )


def trained_vocabulary(
    config: PipelineConfig,
    *,
    splits: Sequence[Split],
    scratch: str,
    say: Say,
    beam_options: Sequence[str] = (),
    cluster: DaskCluster | None = None,
) -> WordTokenizer:
    """Train a vocabulary and return its tokenizer. `say` shows a message to the user.

    If vocabulary.path is set, the vocabulary is written there, and later builds use it too. Otherwise it is written in
    the folder `scratch`, for this build only.
    """
    settings = config.vocabulary
    path = settings.path if settings.path is not None else storage.join(scratch, vocabulary_name(config))
    say(f"training a vocabulary of {settings.size:,} entries into {path}")
    train_vocabulary(config, splits=splits, path=path, beam_options=beam_options, cluster=cluster)
    return open_vocabulary(config, path)


def vocabulary_name(config: PipelineConfig) -> str:
    """Return the file name of a vocabulary that is trained for one build only."""
    return "vocab.txt" if config.vocabulary.algorithm == "wordpiece" else "tokenizer.json"
