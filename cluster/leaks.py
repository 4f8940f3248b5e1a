"""Finds secrets in files of clusters, which are shown, sent and committed.

A value of 24 characters or more beside a name such as `token` counts as a secret unless it reads like a name or a path:
words of letters, or short numbers, between separators. So `secret: cloze-registry-credentials-production` passes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

PATTERNS = {
    "an AWS key": r"\b(AKIA|ASIA)[0-9A-Z]{16}\b",
    "a private key": r"-----BEGIN [A-Z ]*PRIVATE KEY-----",
    "a token of a code host or registry": r"\b(ghp|gho|ghs|github_pat|glpat|hf|dckr_pat|npm|pypi)[-_][\w-]{20,}\b",
    "a key of Google": r"\bAIza[0-9A-Za-z_-]{35}\b",
    "a password in an address": r"://[^/\s:@\"']+:[^/\s:@\"'${]{4,}@",
}
"""Maps the name of each kind of secret to the regular expression that finds it."""
NAMED = re.compile(
    r"(?i)\b\w*(secret|token|passwo?r?d|passphrase|api_?key|access_?key|credential)\w*\s*[:=]\s*['\"]?([A-Za-z0-9+/_.=-]{24,})"
)
"""Matches a long value beside a name of a secret. Its second group is the value."""
LONGEST_WORD = 20
"""Letters of the longest word in a name. Random letters without a separator are longer."""


def find_secrets(text: str) -> Iterator[str]:
    """Yield a message, with the number of the line, for each line of `text` that looks like a secret."""
    for number, line in enumerate(text.splitlines(), start=1):
        kinds = [kind for kind, pattern in PATTERNS.items() if re.search(pattern, line)]
        if any(not reads_like_a_name(match[2]) for match in NAMED.finditer(line)):
            kinds.append("a long secret")
        for kind in kinds:
            yield f"line {number} looks like {kind}; remove it, and revoke it"


def reads_like_a_name(text: str) -> bool:
    """Whether `text` consists of words, such as the name of an object or a path, and not of random characters.

    Each part between separators must be a short number, or letters (with at most three digits after them) in lowercase,
    in capitals or with one capital at the front of each word, at least three letters a word on average.
    """
    words: list[str] = []
    for part in re.split(r"[-_./=]+", text.strip("=")):
        if re.fullmatch(r"\d{0,8}|v\d+", part):
            continue
        if not re.fullmatch(r"[A-Za-z]+\d{0,3}", part):
            return False
        found = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", part)
        words += found
    if not words or max(map(len, words)) > LONGEST_WORD:
        return False
    vowels = sum(bool(re.search(r"(?i)[aeiouy]", word)) for word in words if len(word) > 3)
    return sum(map(len, words)) >= 3 * len(words) and vowels == sum(len(word) > 3 for word in words)
