"""Opens the tokenizer files of a data set or model that somebody else may have made, and refuses what could harm.

A tokenizer.json may contain patterns (regular expressions) on which the `tokenizers` library needs exponential time, or
on which its Rust code panics. A panic is no Exception in Python, so it would end a command with a traceback. Patterns
whose form allows this are therefore refused before the library sees them. The check is stricter than necessary, but
passes the patterns of published tokenizers (GPT-2, GPT-4, GPT-4o, DeepSeek).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pipeline.json_text import parse_json

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt")
"""Names of all files that a data set's folder `tokenizer` may contain. vocab.txt exists only for WordPiece."""
CONFIG_KEYS: dict[str, type | tuple[type, ...]] = {
    "bos_token": str,
    "clean_up_tokenization_spaces": bool,
    "cls_token": str,
    "do_lower_case": bool,
    "eos_token": str,
    "mask_token": str,
    "model_input_names": list,
    "model_max_length": int,
    "pad_token": str,
    "sep_token": str,
    "strip_accents": (bool, type(None)),
    "tokenize_chinese_chars": bool,
    "tokenizer_class": str,
    "unk_token": str,
}
"""The settings that tokenizer_config.json may have, with their types. The setting auto_map, with which transformers
would run Python code from a folder or from the network, is not among them."""
TOKENIZER_CLASSES = ("BertTokenizer", "BertTokenizerFast", "PreTrainedTokenizerFast")
MAX_GROWTH = 1000
"""The greatest number of characters that the replacements of a tokenizer.json may make of one character."""
MAX_AFFIX = 100
"""The greatest number of characters of a prefix or suffix of pieces. Each piece of a word is looked up with it."""
MAX_WORD = 1000
"""The greatest number of characters of a word that is cut into pieces. Time grows as its square."""
MAX_REPEATS = 4
"""The greatest number of repetitions (*, +, ?, {n,m}) in a row of one pattern. Time grows as a power of this number."""

_GROUP = re.compile(r"\(\?(?:[:=!>]|<[=!]|[-imsadu]+[:)])|\((?![?*])")
_ESCAPE = re.compile(r"\\(?:[pPx]\{[^{}]*\}|u[0-9a-fA-F]{4}|[^1-9gkQ])", re.DOTALL)
_CLASS = re.compile(r"\[\^?(?:\\(?:[pPx]\{[^{}]*\}|.)|\[:\^?\w+:\]|[^\[\]\\])+\]", re.DOTALL)
_QUANTIFIER = re.compile(r"([*+?])([?+]?)|\{(\d*)(?:(,)(\d*))?\}(\??)")


def parse_tokenizer(data: bytes, *, origin: str) -> Any:
    """Return the Tokenizer (of the `tokenizers` library) that the bytes of a tokenizer.json describe.

    Raises ValueError naming `origin`, the file, if the library cannot read it, or if one of its patterns or
    replacements could take exponential time or memory.
    """
    from tokenizers import Tokenizer  # imported here, because most readers of data sets need no tokenizer

    try:
        text = data.decode("utf-8")
        tree = parse_json(text)
        patterns, growth = _find_dangers(tree)
    except ValueError as error:
        raise ValueError(f"{origin}: not a tokenizer.json ({error}); restore the file") from error
    for pattern in patterns:
        fault = find_fault(pattern)
        if fault:
            raise ValueError(
                f"{origin}: the pattern {_shorten(pattern)} {fault}, so some texts would take forever; replace it, or "
                "use another tokenizer"
            )
    if growth > MAX_GROWTH:
        raise ValueError(
            f"{origin}: its replacements may turn one character into {growth:,}, more than {MAX_GROWTH:,}; shorten "
            "them, or use another tokenizer"
        )
    excess = _find_excess(tree)
    if excess:
        raise ValueError(f"{origin}: {excess}; use another tokenizer")
    try:
        return Tokenizer.from_str(text)
    except BaseException as error:
        if not _is_of_library(error):
            raise
        raise ValueError(f"{origin}: not a tokenizer.json that the tokenizers library can read: {error}") from error


@contextmanager
def name_panics(origin: str) -> Iterator[None]:
    """Turn an error or a panic of the tokenizers library's Rust code in the block into a ValueError that names
    `origin`, the tokenizer's file."""
    try:
        yield
    except BaseException as error:
        if not _is_of_library(error):
            raise
        raise ValueError(
            f"{origin}: the tokenizers library failed on a text with it ({error}); use another tokenizer"
        ) from None


def _is_of_library(error: BaseException) -> bool:
    """Whether the tokenizers library raised an error: a plain Exception, or a panic, whose class cannot be imported."""
    return type(error) is Exception or type(error).__name__ == "PanicException"


def parse_tokenizer_config(data: bytes, *, origin: str) -> dict[str, Any]:
    """Return the settings in the bytes of a tokenizer_config.json.

    Raises ValueError naming `origin`, the file, if it is damaged or has a setting or a value that the pipeline does not
    write, such as auto_map.
    """
    try:
        tree = parse_json(data)
    except ValueError as error:
        raise ValueError(f"{origin}: not JSON ({error}); restore the file") from error
    if not isinstance(tree, dict):
        raise ValueError(f"{origin}: holds no mapping of settings; restore the file")
    for key, value in tree.items():
        known = key in CONFIG_KEYS and isinstance(value, CONFIG_KEYS[key])
        if not known or (key == "tokenizer_class" and value not in TOKENIZER_CLASSES):
            raise ValueError(
                f"{origin}: the pipeline does not write {_shorten(key)}: {_shorten(value)}, which could make "
                "transformers run code; remove it, or build the data set again"
            )
    return tree


def find_fault(pattern: str) -> str:
    """Return "" if a pattern (regular expression in Oniguruma's syntax) takes bounded time, or else what forbids it, as
    the end of a sentence that begins with the pattern.

    Refused are repetitions of something that repeats or has alternatives itself, references, and rare syntax.
    """
    groups: list[bool] = []  # for each open group: whether it has alternatives or repetitions (*, +, ?, {n,m})
    place = row = 0
    while place < len(pattern):
        composed = False
        if opened := _GROUP.match(pattern, place):
            place = opened.end()
            if not opened[0].endswith(")"):
                groups.append(False)
            continue
        if pattern[place] == "|":
            row = row if groups else 0
            groups = [True] * len(groups)
            place += 1
            continue
        if pattern[place] == ")":
            if not groups:
                return "has an unmatched ')'"
            composed, place = groups.pop(), place + 1
        else:
            atom = {"\\": _ESCAPE, "[": _CLASS}.get(pattern[place])
            found = atom.match(pattern, place) if atom else None
            if (atom or pattern[place] == "(") and found is None:
                return f"has syntax that is not supported, at character {place + 1}"
            place = found.end() if found else place + 1
        repeat = _QUANTIFIER.match(pattern, place)
        if repeat is None or repeat[0] in ("{}", "{,}"):
            continue
        place, groups, row = repeat.end(), [True] * len(groups), row + 1
        if composed and _repeats(repeat):
            return "repeats a group that has alternatives or repetitions itself"
        if row > MAX_REPEATS:
            return f"has more than {MAX_REPEATS} repetitions in a row"
        if _QUANTIFIER.match(pattern, place):
            return f"repeats a repetition, at character {place + 1}"
    return "" if not groups else "has an unmatched '('"


def _repeats(quantifier: re.Match[str]) -> bool:
    """Whether a quantifier allows more than one repetition."""
    sign, _, least, comma, most, _ = quantifier.groups()
    if sign:
        return bool(sign != "?")
    return not (most or "" if comma else least) or int(most if comma else least) > 1


def _find_dangers(tree: Any) -> tuple[list[str], int]:
    """Return all patterns in a tokenizer.json (as JSON data), and how many characters its replacements can make of
    one."""
    patterns: list[str] = []
    growth, todo = 1, [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, Mapping):
            patterns += [str(node["Regex"])] if "Regex" in node else []
            given = [node.get(key) for key in ("content", "prepend") if node.get("type") in ("Replace", "Prepend")]
            for text in given:
                growth *= max(1, len(text)) if isinstance(text, str) else 1
            todo.extend(value for key, value in node.items() if key != "vocab")
        elif isinstance(node, list):
            todo.extend(node)
    return patterns, growth


def _find_excess(tree: Any) -> str:
    """Return what in a tokenizer.json (as JSON data) would take too much time or memory, or end the process, or "" if
    nothing would. What has another form than the library reads is left to the library."""
    model = tree.get("model") if isinstance(tree, Mapping) else None
    if not isinstance(model, Mapping):
        return ""
    for key in ("continuing_subword_prefix", "end_of_word_suffix"):
        affix = model.get(key)
        if isinstance(affix, str) and len(affix) > MAX_AFFIX:
            return f"{key} has {len(affix):,} characters, more than {MAX_AFFIX}"
    longest = model.get("max_input_chars_per_word")
    if isinstance(longest, int) and longest > MAX_WORD:
        return f"max_input_chars_per_word is {longest:,}, more than {MAX_WORD:,}"
    prefix, merges = model.get("continuing_subword_prefix"), model.get("merges")
    if isinstance(prefix, str) and isinstance(merges, list):
        for merge in merges:  # the library cuts off as many bytes as the prefix has, and may panic twice, which aborts
            pair = merge.split(" ") if isinstance(merge, str) else merge
            if isinstance(pair, list) and not str(pair[-1]).startswith(prefix):
                return f"the merge {_shorten(merge)} does not continue with {_shorten(prefix)}"
    added = _count_added(tree.get("post_processor"))
    return f"a template adds {added:,} tokens to a text, more than {MAX_GROWTH:,}" if added > MAX_GROWTH else ""


def _count_added(processor: Any) -> int:
    """Return an upper limit for how many times post-processors (as JSON data) repeat a text or add a token to it."""
    added, todo = 0, [processor]
    while todo:
        node = todo.pop()
        if isinstance(node, list):
            todo.extend(node)
        elif isinstance(node, Mapping):
            pieces = sum(len(node[key]) for key in ("single", "pair") if isinstance(node.get(key), list))
            special = node.get("special_tokens")
            tokens = list(special.values()) if isinstance(special, Mapping) else []
            ids = [token["ids"] for token in tokens if isinstance(token, Mapping) and "ids" in token]
            added += pieces * max((len(each) for each in ids if isinstance(each, list)), default=1)
            todo.append(node.get("processors"))
    return added


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
