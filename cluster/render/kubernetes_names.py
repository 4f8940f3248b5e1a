"""Names in the values of Kubernetes, held against the rules of Kubernetes (apimachinery, pkg/util/validation, 1.34)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from cluster.render.texts import is_unfilled

LABEL = (
    r"[a-z0-9]([-a-z0-9]*[a-z0-9])?",
    63,
    "lowercase letters, digits and hyphens, with a letter or digit at both ends",
)
"""Pattern, greatest length and description of a DNS label: names of namespaces."""
SUBDOMAIN = (
    r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*",
    253,
    "lowercase letters, digits, hyphens and dots, with a letter or digit at both ends",
)
"""A DNS subdomain: names of most other objects."""
VALUE = (
    r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?",
    63,
    "letters, digits, hyphens, underscores and dots, with a letter or digit at both ends",
)
"""The value of a label."""
RULES = {
    "namespace": LABEL,
    "service_account": SUBDOMAIN,
    "storage_claim": SUBDOMAIN,
    "kueue_queue": SUBDOMAIN,  # it is the value of a label too
    "volcano_queue": SUBDOMAIN,
    "priority_class": SUBDOMAIN,
    "image_pull_secrets": SUBDOMAIN,
}
"""Maps keys of the values to the rule for their names."""
IN_LABELS = ("kueue_queue", "volcano_queue")
"""Keys whose names also become the values of labels."""
LABELS = ("gpu_node_selector", "cpu_node_selector", "monitor_labels")
"""Keys of maps from label keys to label values."""
TOLERATIONS = ("gpu_tolerations", "cpu_tolerations")
"""Keys of tolerations. Keys and values of taints are written like those of labels."""


def find_bad_names(tree: Mapping[str, Any]) -> Iterator[str]:
    """Yield a message, with key, value and remedy, for each name in `tree` (values as nested dicts) that Kubernetes
    refuses. Names that the user must still fill in pass."""
    for key, rule in RULES.items():
        given = tree.get(key)
        for name in given if isinstance(given, (list, tuple)) else [given]:
            if isinstance(name, str):
                yield from _check(name, key=key, rule=rule)
                if key in IN_LABELS and len(name) > VALUE[1]:
                    yield f"{key}={name!r}: it is the value of a label; give at most {VALUE[1]} characters"
    for key in LABELS:
        for name, value in (tree.get(key) or {}).items():
            yield from _check_label_key(str(name), key=key)
            yield from _check(str(value), key=f"{key}.{name}", rule=VALUE)
    for key in TOLERATIONS:
        for index, toleration in enumerate(tree.get(key) or ()):
            if toleration["key"] is not None:
                yield from _check_label_key(toleration["key"], key=f"{key}.{index}.key")
            if toleration["value"] is not None:
                yield from _check(toleration["value"], key=f"{key}.{index}.value", rule=VALUE)


def _check_label_key(text: str, *, key: str) -> Iterator[str]:
    """By IsQualifiedName: an optional DNS subdomain and a slash, then a name of at most 63 characters."""
    prefix, slash, name = text.rpartition("/")
    if slash:
        yield from _check(prefix, key=key, rule=SUBDOMAIN, whole=text)
    if not name:
        yield f"{key}={text!r}: a key is missing; give PREFIX/NAME or NAME"
    else:
        yield from _check(name, key=key, rule=VALUE, whole=text)


def _check(name: str, *, key: str, rule: tuple[str, int, str], whole: str = "") -> Iterator[str]:
    pattern, longest, described = rule
    if not is_unfilled(name) and (len(name) > longest or not re.fullmatch(pattern, name)):
        yield f"{key}={whole or name!r}: Kubernetes refuses this name; give at most {longest} {described}"
