"""A YAML loader and a YAML dumper that read and write numbers and truth values as YAML 1.2 does. The loader refuses a
mapping that repeats a key."""

from __future__ import annotations

import re
from typing import Any

import yaml


class NumberLoader(yaml.SafeLoader):
    """A SafeLoader that reads numbers as YAML 1.2 does (such as `1e-4`, which PyYAML reads as a text) and refuses
    repeated keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return the dict for a mapping in YAML. Raises ConstructorError if a key is repeated, is a list or a mapping,
        or is the merge key <<."""
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":  # PyYAML 6.0.4 gives merges of merges the older value
                problem = "merge keys ('<<') are not supported; write the keys out"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, (list, dict)):
                raise yaml.constructor.ConstructorError(None, None, "a key is a list or mapping", key_node.start_mark)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key '{key}' appears twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


class NumberDumper(yaml.SafeDumper):
    """A SafeDumper that quotes a text if NumberLoader would read it as a number."""


_NUMBERS = {
    "int": r"[-+]?(?:0|[1-9][0-9_]*|0x[0-9a-fA-F_]+)$",
    "float": r"[-+]?(?:(?:[0-9][0-9_]*)?\.[0-9_]+|[0-9][0-9_]*\.|\.inf|\.Inf|\.INF)(?:[eE][-+]?[0-9]+)?$"
    r"|[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+$|\.nan$|\.NaN$|\.NAN$",
}
"""Patterns of the numbers that YAML 1.2 has. In YAML 1.2, 010 and 1:30 are texts, but in YAML 1.1 they are the numbers
8 and 90."""
_BOOLS = re.compile(r"(?:true|True|TRUE|false|False|FALSE)$")
"""The truth values of YAML 1.2. In YAML 1.1, yes, no, on and off are truth values too, so the language code no
(Norwegian) would become false."""
BOOL_TEXTS = {
    written: value
    for text, value in (("yes", True), ("no", False), ("on", True), ("off", False))
    for written in (text, text.capitalize(), text.upper())
}
"""Texts that stand for true and false in a setting that is a bool."""
NumberLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in found if not tag.endswith((":int", ":float", ":bool"))]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
NumberLoader.add_implicit_resolver("tag:yaml.org,2002:bool", _BOOLS, list("tTfF"))
for _tag, _pattern in _NUMBERS.items():
    for _side in (NumberLoader, NumberDumper):
        _side.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_pattern), list("-+.0123456789"))
