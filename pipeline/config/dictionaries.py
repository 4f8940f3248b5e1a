"""The languages whose words can be found with a dictionary, and the check of the setting `dictionary_words`."""

from __future__ import annotations

from collections.abc import Sequence

DICTIONARY_LANGUAGES = ("ja", "km", "lo", "my", "th", "yue", "zh")
"""The languages for which ICU has a dictionary of words. zh stands for all codes that begin with zh-."""


def check_dictionary_words(languages: Sequence[str], *, spoken: Sequence[str]) -> None:
    """Raise ValueError if one of `languages` has no dictionary, or is not in `spoken` (the languages of the
    sources)."""
    for language in languages:
        if language.partition("-")[0] not in DICTIONARY_LANGUAGES:
            raise ValueError(
                f"dictionary_words: ICU has no dictionary for {language!r}, only for "
                f"{', '.join(DICTIONARY_LANGUAGES)}; remove it"
            )
        if not any(language in (code, code.partition("-")[0]) for code in spoken):
            raise ValueError(
                f"dictionary_words: no source has language {language!r}; set it in the source, or remove it here"
            )
