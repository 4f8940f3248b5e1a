"""Parses JSON that may be damaged or hostile: every fault is a ValueError."""

from __future__ import annotations

import json
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text. Raises ValueError if the text is not JSON, not UTF-8, or nested too deep for
    Python's parser (which raises RecursionError for the latter)."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deep") from error
