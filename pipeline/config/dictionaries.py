"""The languages that are written without spaces and whose words can be found with a dictionary, and the check of the
setting `dictionary_words`, which asks for this."""

from __future__ import annotations

from collections.abc import Sequence

DICTIONARY_LANGUAGES = ("ja", "km", "lo", "my", "th", "yue", "zh")
"""The languages for which ICU has a dictionary of words. zh stands for all codes that begin with zh-."""


def check_dictionary_words(languages: Sequence[str], *, spoken: Sequence[str]) -> None:
    """Check `languages`, the value of the setting `dictionary_words`. In these languages, words are found with a
    dictionary of the library ICU. Raise ValueError if ICU has no dictionary for one of the languages, or if no source
    has this language. `spoken` has the languages of the sources."""
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
