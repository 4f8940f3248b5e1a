"""A YAML loader and a YAML dumper that read and write numbers and truth values as YAML 1.2 does. The loader refuses a
mapping that repeats a key."""

from __future__ import annotations

import re
from typing import Any

import yaml

MAX_ALIASED = 1_000_000
"""The greatest number of characters that the aliases in a YAML text may stand for. A text of 1 kB could otherwise stand
for gigabytes."""
MAX_BITS = 14_000
"""The greatest number of bits of a whole number. Python shows at most 4,300 digits."""


class NumberLoader(yaml.SafeLoader):
    """A SafeLoader that reads numbers as YAML 1.2 does (such as `1e-4`, which PyYAML reads as a text) and refuses
    repeated keys, and aliases that would make more than MAX_ALIASED characters of the text."""

    def get_single_node(self) -> yaml.Node | None:
        """Return the root node of the YAML text. Raises ComposerError if a node contains itself, or if the aliases in
        the text stand for more than MAX_ALIASED characters."""
        root: yaml.Node | None = super().get_single_node()
        if root is not None:
            sizes: dict[int, int | None] = {}
            aliased = _expanded_size(root, sizes) - sum(map(_own_size, _all_nodes(root)))
            if aliased > MAX_ALIASED:
                problem = f"aliases ('*') stand for {aliased:,} characters, more than {MAX_ALIASED:,}; write less"
                raise yaml.composer.ComposerError(None, None, problem, root.start_mark)
        return root

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        """Return the int for a number in YAML. Raises ConstructorError if it takes more than MAX_BITS bits, because
        Python could not show it."""
        number: int = super().construct_yaml_int(node)
        if number.bit_length() > MAX_BITS:
            raise yaml.constructor.ConstructorError(
                None, None, f"a number of more than {MAX_BITS:,} bits; give a smaller one", node.start_mark
            )
        return number

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


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [each for pair in node.value for each in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _own_size(node: yaml.Node) -> int:
    return 1 + (len(node.value) if isinstance(node, yaml.ScalarNode) else 0)


def _all_nodes(root: yaml.Node) -> list[yaml.Node]:
    found, todo = {id(root): root}, [root]
    while todo:
        for child in _children(todo.pop()):
            if id(child) not in found:
                found[id(child)] = child
                todo.append(child)
    return list(found.values())


def _expanded_size(node: yaml.Node, sizes: dict[int, int | None]) -> int:
    """Return the number of characters of `node` with all aliases written out. `sizes` has the sizes that are known,
    and None for the nodes around `node`."""
    if id(node) not in sizes:
        sizes[id(node)] = None
        sizes[id(node)] = _own_size(node) + sum(_expanded_size(child, sizes) for child in _children(node))
    size = sizes[id(node)]
    if size is None:
        raise yaml.composer.ComposerError(None, None, "an alias stands inside what it stands for", node.start_mark)
    return size


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
NumberLoader.add_constructor("tag:yaml.org,2002:int", NumberLoader.construct_yaml_int)
NumberLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in found if not tag.endswith((":int", ":float", ":bool"))]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
NumberLoader.add_implicit_resolver("tag:yaml.org,2002:bool", _BOOLS, list("tTfF"))
for _tag, _pattern in _NUMBERS.items():
    for _side in (NumberLoader, NumberDumper):
        _side.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_pattern), list("-+.0123456789"))
