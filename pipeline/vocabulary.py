"""A vocabulary from the config's sources: count words, train subwords, write the file.

`python -m pipeline.vocabulary --config FILE` trains into vocabulary.path where nothing is there yet. Splits are counted
in parallel; the file depends on the text and the settings alone.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from pipeline.config import CleaningConfig, PipelineConfig, SourceConfig, VocabularyConfig
from pipeline.documents import Document, Split
from pipeline.filters import DocumentFilter
from pipeline.settings import ConfigError, describe, fail, refuse_flags, split_arguments
from pipeline.sources import list_splits, read_documents
from pipeline.subwords import END_OF_WORD, train_bpe, train_wordpiece
from pipeline.tokenizer_files import BERT_SPECIAL, bert_normalizer, build_wordpiece, finish
from pipeline.word_counts import WordCounter, most_common

MAX_WORDS = 500_000
"""So many different words, the most frequent, are trained on."""

_logger = logging.getLogger(__name__)


def count_words(sentences: Iterable[str], *, settings: VocabularyConfig) -> dict[str, int]:
    """Words of these sentences as the vocabulary's tokenizer will see them, most frequent first."""
    with tempfile.TemporaryDirectory() as folder:
        counter = _counter(settings, folder=Path(folder), name="words")
        counter.add(sentences)
        return most_common(counter.finish(), folder=Path(folder), limit=MAX_WORDS)


def train_tokenizer(word_counts: Mapping[str, int], *, settings: VocabularyConfig) -> Tokenizer:
    """Train subword units of the configured kind and wrap them in a tokenizer.

    Raises ValueError where the size has no room for the alphabet, and logs a warning where it cannot be reached.
    """
    if settings.algorithm == "wordpiece":
        tokens = train_wordpiece(
            word_counts, size=settings.size, criterion=settings.criterion, min_pair_count=settings.min_pair_count
        )
        return build_wordpiece(
            tokens, lowercase=settings.lowercase, strip_accents=settings.strip_accents, origin="trained vocabulary"
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
    normalizer, splitter = _word_rules(settings)
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.pre_tokenizer = splitter
    finish(backend, special=dict(zip(("pad", "unk", "cls", "sep", "mask"), BERT_SPECIAL, strict=True)))
    return backend


def train_vocabulary(config: PipelineConfig, *, path: Path) -> None:
    """Train the config's vocabulary from its sources into `path` (.txt or .json), in one rename.

    Raises ValueError for a file name that does not go with the algorithm, and for sources without a word.
    """
    settings = config.vocabulary
    _check_name(path, settings=settings)
    path.parent.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".words-") as folder:
        counts = count_sources(config, folder=Path(folder))
    words = sum(counts.values())
    if not words:
        raise ValueError("the sources have no words to train a vocabulary on; check sources.*.path and kind")
    counted = time.monotonic()
    backend = train_tokenizer(counts, settings=settings)
    vocabulary = backend.get_vocab()
    if path.suffix == ".json":
        text = backend.to_str(pretty=True) + "\n"
    else:
        text = "".join(f"{token}\n" for token in sorted(vocabulary, key=vocabulary.__getitem__))
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_bytes(text.encode("utf-8"))
        os.replace(partial, path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise ValueError(f"{path}: cannot be written ({error.strerror}); free space or give another path") from error
    pieces, unknown = measure(backend, counts)
    _logger.info(
        "%s: %d entries from %d words (%d different), %.3f tokens a word, %.4f%% [UNK]; counted in %.1f s, "
        "trained in %.1f s",
        path,
        len(vocabulary),
        words,
        len(counts),
        pieces,
        100 * unknown,
        counted - started,
        time.monotonic() - counted,
    )


def count_sources(config: PipelineConfig, *, folder: Path) -> dict[str, int]:
    """The most frequent words of all sources, counted split by split over config.workers processes."""
    splits = list_splits(config.sources)
    tasks = [
        (split, config.sources[split.source], config.vocabulary, config.cleaning, folder, f"split{number}")
        for number, split in enumerate(splits)
    ]
    workers = min(len(tasks), config.workers or len(os.sched_getaffinity(0)))
    if workers <= 1:
        runs = [run for task in tasks for run in _count_split(task)]
    else:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(workers, mp_context=context) as pool:
            runs = [run for part in pool.map(_count_split, tasks) for run in part]
    return most_common(runs, folder=folder, limit=MAX_WORDS)


def measure(backend: Tokenizer, word_counts: Mapping[str, int]) -> tuple[float, float]:
    """Tokens per word, and the share of words with an [UNK], over counted (already normalised) words."""
    total = pieces = unknown = 0
    unk = backend.token_to_id("[UNK]")
    for word, count in word_counts.items():
        ids = [token.id for token in backend.model.tokenize(word)]
        total += count
        pieces += count * len(ids)
        unknown += count * (unk in ids)
    return pieces / max(1, total), unknown / max(1, total)


def _count_split(task: tuple[Split, SourceConfig, VocabularyConfig, CleaningConfig, Path, str]) -> list[Path]:
    split, source, settings, cleaning, folder, name = task
    documents = DocumentFilter(cleaning, source=source)
    counter = _counter(settings, folder=folder, name=name)
    for document in read_documents(split, source):
        if isinstance(document, Document) and documents.reject(document) is None:
            counter.add(document.sentences)
    return counter.finish()


def _counter(settings: VocabularyConfig, *, folder: Path, name: str) -> WordCounter:
    normalizer, splitter = _word_rules(settings)
    return WordCounter(normalizer=normalizer, splitter=splitter, folder=folder, name=name)


def _word_rules(settings: VocabularyConfig) -> tuple[Any | None, Any]:
    """Normalizer and pre-tokenizer of a vocabulary in training.

    Stripping accents takes composed characters apart (Hangul syllables into jamo, too); what is left is composed again,
    unless jamo were asked for.
    """
    if settings.algorithm != "byte_level_bpe":
        normalizer = bert_normalizer(
            lowercase=settings.lowercase, strip_accents=settings.strip_accents, recompose=settings.hangul == "syllables"
        )
        return normalizer, pre_tokenizers.BertPreTokenizer()
    strips = settings.lowercase if settings.strip_accents is None else settings.strip_accents
    composed = [normalizers.NFC()] if settings.hangul == "syllables" else []
    steps: list[Any] = [normalizers.NFD(), normalizers.StripAccents(), *composed] if strips else [normalizers.NFC()]
    if settings.lowercase:
        steps.append(normalizers.Lowercase())
    return normalizers.Sequence(steps), pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=True)


def _check_name(path: Path, *, settings: VocabularyConfig) -> None:
    if path.suffix not in (".txt", ".json"):
        raise ConfigError(f"vocabulary.path={path}: must end in .txt (WordPiece) or .json (tokenizer.json)")
    if settings.algorithm != "wordpiece" and path.suffix != ".json":
        raise ConfigError(
            f"vocabulary.path={path}: a vocab.txt cannot hold the merges of {settings.algorithm}; "
            f"name a file that ends in .json"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Train the config's vocabulary where it is not there yet; exit status 2 for bad input."""
    from pipeline.run import read_config  # which imports this module

    program = "python -m pipeline.vocabulary"
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        words = split_arguments(sys.argv[1:] if arguments is None else arguments, program=program)
        refuse_flags(words.flags, program=program)
        if "--help" in words.flags:
            print(f"{program} [--config FILE] [key.sub=value ...]\n\n{main.__doc__}\n\n{describe(PipelineConfig)}")
            return 0
        if words.rest:
            raise ConfigError(f"{program}: nothing may follow '--', found {' '.join(words.rest)}")
        config = read_config(words)
        if config.vocabulary.path is None:
            raise ConfigError("vocabulary.path is not set; name the file to train into, such as data/vocab.txt")
        path = Path(config.vocabulary.path)
        if path.exists():
            print(f"{path} is there already; remove it to train it anew")
        else:
            train_vocabulary(config, path=path)
    except (ValueError, OSError) as error:
        return fail(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
