"""Reads and writes tokenizer files: BERT's vocab.txt, tokenizer.json, and the tokenizer_config.json of transformers.

Reading checks what later stages rely on. Writing the same vocabulary gives the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from pipeline import storage
from pipeline.config import PipelineConfig, VocabularyConfig
from pipeline.dataset import parse_tokenizer

BERT_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PIECE_PREFIX = "##"
MAX_WORD_CHARACTERS = 100
"""Longer words become [UNK], as in the `tokenizers` library (the original BERT code had 200)."""
SPACELESS_WORD_CHARACTERS = 500
"""The same limit if a dictionary finds the words of scripts without spaces, because a space ends only a clause there.
The library takes up to 0.1 s for such a word, and eight times that for a word of twice the length."""
DOTTED_I_LANGUAGES = frozenset(("tr", "az", "crh", "gag"))
"""Languages in which the small letter of I has no dot, and the capital letter of i has one."""
_DOTTED_I = {"I": "\u0131", "\u0130": "i"}
DOTTED_I = str.maketrans(_DOTTED_I)
_COMPOSED = ("\uac01", "\u00e9", "\u00c9", "\u304c", "\u1ec7", "\u0623")
"""Composed characters: Hangul, Latin in both cases, kana, Vietnamese (two marks) and Arabic."""


def read_vocabulary(path: str | Path) -> list[str]:
    """Return the tokens of a vocab.txt in the order of their ids.

    Raises ValueError if the file is missing, damaged or empty.
    """
    if storage.find_file(path) is None:
        raise ValueError(f"{path}: no such vocabulary file; give a vocab.txt or tokenizer.json, or train one")
    try:
        text = storage.read_bytes(path).decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: byte {error.start} is not UTF-8; a vocab.txt has a UTF-8 token per line") from error
    lines = [line.removesuffix("\r") for line in text.split("\n" if "\n" in text else "\r")]
    if lines[-1] == "":
        lines.pop()
    seen: dict[str, int] = {}
    for number, token in enumerate(lines, start=1):
        if token in seen:
            raise ValueError(f"{path}, line {number}: token {token!r} is also in line {seen[token]}; remove one")
        if not token:
            raise ValueError(f"{path}, line {number}: empty; one token per line is expected, remove it")
        seen[token] = number
    if not lines:
        raise ValueError(f"{path}: the vocabulary is empty; one token per line is expected")
    return lines


def build_wordpiece(
    tokens: Sequence[str],
    *,
    lowercase: bool,
    strip_accents: bool | None,
    origin: str,
    dotted_i: bool = False,
    max_word_characters: int = MAX_WORD_CHARACTERS,
) -> Tokenizer:
    """Return BERT's WordPiece tokenizer for a list of tokens.

    If `strip_accents` is None, accents are stripped if `lowercase` is true. `dotted_i` lower-cases I as Turkish does.
    Words (between spaces and punctuation) of more than `max_word_characters` become [UNK].

    Stripping accents decomposes all characters (NFD), also Hangul syllables into jamo (letters). The text is composed
    again (NFC) if the vocabulary has composed characters. Vocabularies without composed characters, such as Google's
    uncased ones, were trained on jamo. Raises ValueError if a special token is missing; the message names `origin`, the
    vocabulary's file.
    """
    missing = [token for token in BERT_SPECIAL if token not in set(tokens)]
    if missing:
        raise ValueError(f"{origin}: not a BERT vocabulary, it lacks {', '.join(missing)}; add them or train one")
    vocabulary = {token: index for index, token in enumerate(tokens)}
    backend = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=max_word_characters))
    backend.normalizer = bert_normalizer(
        lowercase=lowercase, strip_accents=strip_accents, recompose=any(map(is_composed, tokens)), dotted_i=dotted_i
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix=PIECE_PREFIX)
    finish(backend, special=dict(zip(("pad", "unk", "cls", "sep", "mask"), BERT_SPECIAL, strict=True)))
    return backend


def longest_word(config: PipelineConfig) -> int:
    """Return how many characters a word may have. The tokenizer of a vocab.txt makes a longer word [UNK].

    The number is 100, like in the `tokenizers` library. It is 500 for vocabularies that this config trains for
    languages without spaces.
    """
    trains = config.vocabulary.train or config.vocabulary.path is None
    return SPACELESS_WORD_CHARACTERS if trains and config.dictionary_words else MAX_WORD_CHARACTERS


def bert_normalizer(*, lowercase: bool, strip_accents: bool | None, recompose: bool, dotted_i: bool = False) -> Any:
    """Return BERT's normalizer, which removes control characters and puts spaces around Chinese characters. If
    `strip_accents` is None, accents are stripped if `lowercase` is true.

    Stripping accents decomposes all characters. NFC (composition of characters) follows, as in the pipeline's cleaning.
    NFC is left out only if accents are stripped and `recompose` is false. With `dotted_i` and `lowercase`, I becomes a
    dotless i first, as in Turkish.
    """
    bert = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=strip_accents, lowercase=lowercase
    )
    strips = lowercase if strip_accents is None else strip_accents
    steps = [bert] if strips and not recompose else [bert, normalizers.NFC()]
    if dotted_i and lowercase:
        replaced = [normalizers.Replace(capital, small) for capital, small in _DOTTED_I.items()]
        steps = [normalizers.NFC(), *replaced, *steps]  # a dot above or an accent stays with its I
    return steps[0] if len(steps) == 1 else normalizers.Sequence(steps)


def add_composition(backend: Tokenizer) -> None:
    """Add NFC (composition of characters) to the normalizer of `backend`, unless the normalizer already makes composed
    and decomposed text equal.

    The pipeline's text is always in NFC, so the token ids of a data set do not change. But the model may later meet
    text that is not in NFC.
    """
    normalizer = backend.normalizer
    if normalizer is not None and all(
        normalizer.normalize_str(text) == normalizer.normalize_str(unicodedata.normalize("NFD", text))
        for text in _COMPOSED
    ):
        return
    nfc = normalizers.NFC()
    if normalizer is None:
        backend.normalizer = nfc
    elif json.loads(backend.to_str())["normalizer"]["type"] == "BertNormalizer":
        backend.normalizer = normalizers.Sequence([normalizer, nfc])  # as bert_normalizer has it
    else:
        backend.normalizer = normalizers.Sequence([nfc, normalizer])


def word_rules(settings: VocabularyConfig, *, dotted_i: bool = False) -> tuple[Any | None, Any]:
    """Return (normalizer, pre-tokenizer). These objects of the `tokenizers` library say how text is divided into words
    when a vocabulary is trained.

    If text is lower-cased and `dotted_i` is true, I becomes a dotless i, as in Turkish. Stripping accents decomposes
    characters, also Hangul syllables into jamo (letters). Afterwards the text is composed again, unless the settings
    ask for jamo.
    """
    if settings.algorithm != "byte_level_bpe":
        normalizer = bert_normalizer(
            lowercase=settings.lowercase,
            strip_accents=settings.strip_accents,
            recompose=settings.hangul == "syllables",
            dotted_i=dotted_i,
        )
        return normalizer, pre_tokenizers.BertPreTokenizer()
    strips = settings.lowercase if settings.strip_accents is None else settings.strip_accents
    composed = [normalizers.NFC()] if settings.hangul == "syllables" else []
    steps: list[Any] = [normalizers.NFD(), normalizers.StripAccents(), *composed] if strips else [normalizers.NFC()]
    if settings.lowercase:
        replaced = [normalizers.Replace(capital, small) for capital, small in _DOTTED_I.items()]
        steps = [*([normalizers.NFC(), *replaced] if dotted_i else []), *steps, normalizers.Lowercase()]
    return normalizers.Sequence(steps), pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=True)


def describe_text(backend: Tokenizer) -> dict[str, str]:
    """Return how the tokenizer treats text, found by trying single characters.

    The keys of the dict are "case" ("kept", "lowered", or "lowered_dotted_i" for Turkish), "accents" ("removed" or
    "kept"), "hangul" ("syllables" or "jamo") and "joiners" (the zero-width joiner and non-joiner: "removed" or "kept").
    """

    def normalize(text: str) -> str:
        return text if backend.normalizer is None else str(backend.normalizer.normalize_str(text))

    accent = unicodedata.normalize("NFC", normalize("\u00e9"))
    lowered = "lowered" if normalize("I") != _DOTTED_I["I"] else "lowered_dotted_i"
    return {
        "case": "kept" if normalize("A") == "A" else lowered,
        "accents": "kept" if accent == "\u00e9" else "removed",
        "hangul": "syllables" if normalize("\uac00") == "\uac00" else "jamo",
        "joiners": "kept" if "\u200c" in normalize("a\u200cb") else "removed",
    }


def is_composed(text: str) -> bool:
    """Whether canonical decomposition (NFD) changes the text, as it does for Hangul syllables and accented letters."""
    return not unicodedata.is_normalized("NFD", text)


def finish(backend: Tokenizer, *, special: Mapping[str, str]) -> None:
    """Add the special tokens to `backend`, and the template [CLS] A [SEP] B [SEP] for pairs of texts. `special` maps
    pad, unk, cls, sep and mask to their tokens."""
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special.values()])
    cls, sep = special["cls"], special["sep"]
    backend.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {sep} $B:1 {sep}:1",
        special_tokens=[(token, backend.token_to_id(token)) for token in (cls, sep)],
    )


def read_tokenizer(path: str | Path) -> Tokenizer:
    """Return the tokenizer of a tokenizer.json, with the file's truncation and padding switched off. Raises ValueError
    if the file is missing or invalid, or if it may take exponential time (see parse_tokenizer)."""
    if storage.find_file(path) is None:
        raise ValueError(f"{path}: no such tokenizer file; give a vocab.txt or tokenizer.json, or train one")
    backend: Tokenizer = parse_tokenizer(storage.read_bytes(path), origin=str(path))
    backend.no_truncation()
    backend.no_padding()
    return backend


def vocabulary_hash(backend: Tokenizer, *, tokens: Sequence[str]) -> str:
    """Return a sha256 (hex) of everything in a tokenizer that decides token ids: `tokens` (in the order of their ids),
    the merges and other settings of the model, the normalizer and the pre-tokenizer."""
    layout = json.loads(backend.to_str())
    model = layout["model"]
    facts = {
        "tokens": list(tokens),
        "model": {name: value for name, value in model.items() if name != "vocab"},
        "normalizer": layout["normalizer"],
        "pre_tokenizer": layout["pre_tokenizer"],
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True, ensure_ascii=True).encode()).hexdigest()


def save_tokenizer(
    backend: Tokenizer, folder: Path, *, tokens: Sequence[str], special: Mapping[str, str], longest: int | None = None
) -> None:
    """Write tokenizer.json, tokenizer_config.json and, for WordPiece, vocab.txt; create `folder` if it is missing.

    `special` maps pad, unk, cls, sep and mask to their tokens. `longest` is written as model_max_length. If it is None,
    transformers accepts text of any length.
    """
    folder.mkdir(parents=True, exist_ok=True)
    layout = json.loads(backend.to_str())
    normalizer = layout["normalizer"] or {}
    is_bert = (
        layout["model"]["type"] == "WordPiece"
        and normalizer.get("type") == "BertNormalizer"
        and layout["model"]["max_input_chars_per_word"] == MAX_WORD_CHARACTERS
    )
    config: dict[str, Any] = {
        "tokenizer_class": "BertTokenizer" if is_bert else "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
    }
    config |= {} if longest is None else {"model_max_length": longest}
    config |= {f"{name}_token": token for name, token in special.items()}
    if is_bert:
        config |= {
            "do_lower_case": normalizer["lowercase"],
            "strip_accents": normalizer["strip_accents"],
            "tokenize_chinese_chars": normalizer["handle_chinese_chars"],
        }
    if layout["model"]["type"] == "WordPiece":
        _write(folder / "vocab.txt", "".join(f"{token}\n" for token in tokens))
    _write(folder / "tokenizer.json", backend.to_str(pretty=True) + "\n")
    _write(folder / "tokenizer_config.json", json.dumps(config, indent=2, sort_keys=True, ensure_ascii=False) + "\n")


def _write(path: Path, text: str) -> None:
    path.write_bytes(text.encode("utf-8"))


END_OF_WORD = "</w>"
"""The suffix of BPE tokens that end a word."""
