"""The YAML at the start of a model card or data card, which the Hugging Face Hub and `datasets` read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from pipeline.settings import parse_yaml

_FENCE = "---\n"
_OF_WIKIPEDIA = {"simple": "en"}
_CODE = re.compile(r"[a-z]{2,3}")


def render_front_matter(tree: Mapping[str, Any]) -> str:
    """Return `tree` as front matter, with the lines that fence it."""
    return f"{_FENCE}{yaml.safe_dump(dict(tree), sort_keys=False, allow_unicode=True)}{_FENCE}"


def split_front_matter(card: str, *, origin: str) -> tuple[dict[str, Any], str]:
    """Return the front matter of a card as a dict, {} if it has none, and the rest of the card. Raises ValueError
    naming `origin`, the card's file, if the front matter is not valid YAML."""
    parts = card.split(_FENCE, 2)
    if not card.startswith(_FENCE) or len(parts) < 3:
        return {}, card
    tree = parse_yaml(parts[1], origin=f"{origin}, front matter")
    return (tree if isinstance(tree, dict) else {}), parts[2]


def card_languages(codes: Iterable[str]) -> list[str]:
    """Return the languages of sources as the codes of ISO 639 that the hub knows, sorted: `zh` for zh-yue, `en` for
    simple. A name that is no such code is left out, because the hub refuses a card that has it."""
    bases = {code.lower().replace("_", "-").partition("-")[0] for code in codes}
    return sorted(code for code in {_OF_WIKIPEDIA.get(base, base) for base in bases} if _CODE.fullmatch(code))
