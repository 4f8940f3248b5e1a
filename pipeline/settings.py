"""Reads settings from a YAML file and `key.sub=value` overrides, and checks, describes and saves the settings.

Pipeline and trainer build their configs on this module, so that messages, help texts and overrides look the same in
both. It imports no Beam, Ray or torch. No key is ever ignored.
"""

from __future__ import annotations

import difflib
import math
import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from pipeline.units import count_of
from pipeline.yaml_numbers import BOOL_TEXTS, NumberDumper, NumberLoader

SettingsType = TypeVar("SettingsType", bound="Settings")


class ConfigError(ValueError):
    """A setting is unknown, has the wrong type, or contradicts other settings."""


class Settings(BaseModel):
    """The base class of all config classes. Their objects are immutable, refuse unknown keys, and convert no value to
    another type.

    The docstring under a field is its help text.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        use_attribute_docstrings=True,
        validate_default=True,
        allow_inf_nan=False,
    )


def parse_yaml(text: str, *, origin: str) -> Any:
    """Parse the YAML `text` safely and return its value (a dict, list, text, number, bool or None).

    Raises ConfigError, which names `origin` (where the text comes from), the line and the column.
    """
    try:
        return yaml.load(text, Loader=NumberLoader)  # a SafeLoader
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or " ".join(str(error).split())
        raise ConfigError(f"{origin}{place}: not valid YAML: {problem}") from error
    except RecursionError as error:
        raise ConfigError(f"{origin}: not valid YAML: lists or mappings are nested too deeply; nest less") from error
    except ValueError as error:  # an invalid date, a number too long
        raise ConfigError(f"{origin}: not valid YAML: {error}") from error
    except (LookupError, AttributeError, TypeError, ArithmeticError) as error:  # a value that is not of its tag's kind
        raise ConfigError(
            f"{origin}: not valid YAML: a value does not fit its tag, such as !!bool ({error}); remove the tag"
        ) from error


def load_settings(
    cls: type[SettingsType], *, file: str | Path | None = None, overrides: Sequence[str] = ()
) -> SettingsType:
    """Read `file`, apply the overrides (`key.sub=value`, where the value is YAML), and return the settings as an object
    of the class `cls`.

    Raises ConfigError, which names the file or override, the key, the value and the remedy.
    """
    origin = str(file) if file is not None else "defaults"
    return validate(cls, load_tree(file, overrides=overrides), origin=origin, overrides=overrides)


def load_tree(file: str | Path | None, *, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Return the settings in `file` as nested dicts, with the overrides (`key.sub=value`) applied. If `file` is None,
    there are only the overrides.

    Overrides reach into mappings by name and into lists by index (`sources.0.path=x.xml`). Raises ConfigError if the
    file or an override cannot be read.
    """
    tree: dict[str, Any] = {}
    if file is not None:
        path = Path(file)
        if not path.is_file():
            raise ConfigError(f"{path}: no such config file; give an existing YAML file with --config")
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}: cannot be read as UTF-8 text: {error}") from error
        loaded = parse_yaml(text, origin=str(path))
        if not isinstance(loaded, (dict, types.NoneType)):
            raise ConfigError(f"{path}: must hold a mapping of settings, found {type(loaded).__name__}")
        tree = loaded or {}
    for override in overrides:
        _apply_override(tree, override)
    return tree


def validate(
    cls: type[SettingsType],
    tree: Mapping[str, Any],
    *,
    origin: str,
    overrides: Sequence[str] = (),
    context: Mapping[str, Any] | None = None,
) -> SettingsType:
    """Return the settings in `tree` (nested dicts) as an object of the class `cls`. Raises ConfigError, which lists
    every fault, and for each unknown key the nearest known name.

    `tree` already contains the values of `overrides`. `overrides` only lets the message say which faults are on the
    command line; all other faults are in `origin`. `context` is passed to the validators of the class.
    """
    try:
        return cls.model_validate(_widen_numbers(cls, dict(tree)), context=context)
    except ValidationError as error:
        keys = [override.partition("=")[0] for override in overrides]
        faults: dict[str, list[str]] = {}
        for item in error.errors():
            line = _explain(cls, dict(item))
            given = _is_overridden(dict(item), keys=keys, line=line)
            faults.setdefault("command line" if given else origin, []).append(line)
        raise ConfigError("; ".join(f"{place}: {'; '.join(lines)}" for place, lines in faults.items())) from error


def to_tree(settings: Settings) -> dict[str, Any]:
    """Return all fields, including defaults, as nested dicts that can be saved as JSON."""
    return settings.model_dump(mode="json")


def dump_yaml(settings: Settings, *, given: bool = False) -> str:
    """Return YAML text from which load_settings reads the same settings. With `given`, the text has only the fields
    that were set, not those that have their defaults."""
    tree = settings.model_dump(mode="json", exclude_unset=given)
    return yaml.dump(tree, Dumper=NumberDumper, sort_keys=False, allow_unicode=True)


def split_arguments(arguments: Sequence[str], *, program: str, keys: Sequence[str] = ()) -> Arguments:
    """Split a command line into --config FILE, `key=value` overrides, flags, and the words after `--`.

    `keys` are settings that may also be given as --KEY VALUE; such a word becomes an override. Raises ConfigError for a
    word that is none of these; the message names the command, `program`.
    """
    file: str | None = None
    overrides: list[str] = []
    flags: list[str] = []
    position = 0
    while position < len(arguments):
        word = arguments[position]
        position += 1
        if word == "--":
            return Arguments(file, tuple(overrides), tuple(flags), tuple(arguments[position:]))
        if word == "--config":
            if position == len(arguments):
                raise ConfigError(f"{program}: --config needs a file")
            file = arguments[position]
            position += 1
        elif word.startswith("--config="):
            file = word.partition("=")[2]
        elif word.startswith("--") and word.partition("=")[0].removeprefix("--") in keys:
            name, separator, value = word.removeprefix("--").partition("=")
            if not separator and position == len(arguments):
                raise ConfigError(f"{program}: --{name} needs a value")
            overrides.append(f"{name}={value if separator else arguments[position]}")
            position += not separator
        elif word in ("-h", "--help"):
            flags.append("--help")
        elif word.startswith("-"):
            flags.append(word)
        elif "=" in word:
            overrides.append(word)
        else:
            raise ConfigError(f"{program}: '{word}' is neither --config FILE nor key.sub=value; see {program} --help")
    return Arguments(file, tuple(overrides), tuple(flags), ())


class Arguments(NamedTuple):
    """The parts of a command line: config file, overrides, flags (words that begin with '-'), and words after '--'."""

    file: str | None
    overrides: tuple[str, ...]
    flags: tuple[str, ...]
    rest: tuple[str, ...]


def refuse_flags(flags: Sequence[str], *, program: str, known: Sequence[str] = ()) -> None:
    """Check `flags`. Raises ConfigError if a flag is unknown (the message names the nearest known flag), or if it has a
    value but takes none.

    `known` lists the flags of the command `program`. In `known`, a flag that takes a value ends with `=`.
    """
    takes_value = {flag.removesuffix("="): flag.endswith("=") for flag in (*known, "--help")}
    for flag in flags:
        name, separator, _ = flag.partition("=")
        if name not in takes_value:
            near = difflib.get_close_matches(name, [*takes_value, "--config"], n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; see {program} --help"
            raise ConfigError(f"{program}: unknown option {flag}{hint}")
        if separator and not takes_value[name]:
            raise ConfigError(f"{program}: {flag}: {name} takes no value; give {name} alone, or leave it out")


def describe(cls: type[Settings], *, prefix: str = "") -> str:
    """Return the help text of a config class. The text has a line `key.sub (type, default): docstring` for each field.

    `prefix` is put before each key.
    """
    lines: list[str] = []
    for name, field in cls.model_fields.items():
        key = f"{prefix}{name}"
        text = " ".join((field.description or "").split())
        inner = nested_settings(field.annotation)
        is_list = get_origin(_without_none(field.annotation)) in (list, tuple)
        if inner is not None:
            lines.append(f"  {key}: {text}")
            lines.append(describe(inner, prefix=f"{key}.N." if is_list else f"{key}."))
            continue
        default = "required" if field.is_required() else f"default {field.get_default(call_default_factory=True)!r}"
        lines.append(f"  {key} ({_type_name(field.annotation)}, {default}): {text}")
    return "\n".join(lines)


def nested_settings(annotation: Any) -> type[Settings] | None:
    """Return the config class that the type `annotation` is or contains (as in `X | None` or `tuple[X, ...]`), or None
    if it contains none."""
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        return annotation
    for argument in get_args(annotation):
        inner = nested_settings(argument)
        if inner is not None:
            return inner
    return None


def _apply_override(tree: dict[str, Any], override: str) -> None:
    key, separator, raw = override.partition("=")
    if not separator or "" in key.split("."):
        raise ConfigError(f"override '{override}': write key.sub=value")
    value = _parse_value(raw, origin=f"override '{override}'")
    node: Any = tree
    parts = key.split(".")
    for depth, part in enumerate(parts):
        last = depth == len(parts) - 1
        if isinstance(node, list):
            if not part.isdecimal() or int(part) >= len(node):
                entries = count_of(len(node), "entry", plural="entries")
                raise ConfigError(f"override '{override}': '{part}' is not an index into a list of {entries}")
            index: Any = int(part)
        elif isinstance(node, dict):
            index = part
        else:
            raise ConfigError(f"override '{override}': '{'.'.join(parts[:depth])}' is a value and has no '{part}'")
        if last:
            node[index] = value
        else:
            if isinstance(node, dict) and (index not in node or node[index] is None):
                if parts[depth + 1].isdecimal():
                    name, rest = ".".join(parts[: depth + 1]), ".".join(parts[depth + 2 :])
                    example = f"{{{rest}: {raw}}}" if rest else raw
                    raise ConfigError(
                        f"override '{override}': the config has no list '{name}'; write it in the file, or give all "
                        f"of it, as in {name}='[{example}]'"
                    )
                node[index] = {}
            node = node[index]


def _parse_value(raw: str, *, origin: str) -> Any:
    """Return the value of an override, parsed as YAML. A text without quotes is not cut at ` #`, and is not taken for a
    YAML alias if it begins with * or &."""
    plain = raw.strip()
    if plain[:1] in ("*", "&", "@", "%", "`"):
        return plain
    value = parse_yaml(raw, origin=origin)
    return plain if isinstance(value, str) and " #" in plain and plain[0] not in "'\"|>" else value


def _widen_numbers(cls: type[Settings], tree: Any) -> Any:
    """Return a copy of `tree` in which integers become floats, lists become tuples, and yes, no, on and off become
    truth values, if the field of `cls` has that type. YAML does not distinguish these types."""
    if not isinstance(tree, dict):
        return tree
    result = dict(tree)
    for name, field in cls.model_fields.items():
        if name not in result:
            continue
        value, inner = result[name], nested_settings(field.annotation)
        if inner is not None and isinstance(value, dict):
            result[name] = _widen_numbers(inner, value)
        elif inner is not None and isinstance(value, (list, tuple)):
            result[name] = tuple(_widen_numbers(inner, item) for item in value)
        elif isinstance(value, list):
            result[name] = tuple(value)
        elif isinstance(value, str) and value in BOOL_TEXTS and _accepts(field.annotation, bool):
            result[name] = value if _accepts(field.annotation, str) else BOOL_TEXTS[value]
        elif isinstance(value, int) and not isinstance(value, bool) and _accepts(field.annotation, float):
            result[name] = value if _accepts(field.annotation, int) else _to_float(value)
    return result


def _to_float(value: int) -> float:
    try:
        return float(value)
    except OverflowError:  # YAML reads 1e400 as an integer
        return math.inf if value > 0 else -math.inf


def _accepts(annotation: Any, kind: type) -> bool:
    return annotation is kind or any(_accepts(argument, kind) for argument in get_args(annotation))


def _without_none(annotation: Any) -> Any:
    if get_origin(annotation) in (Union, types.UnionType):
        rest = [argument for argument in get_args(annotation) if argument is not type(None)]
        if len(rest) == 1:
            return rest[0]
    return annotation


def _type_name(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return " | ".join(str(value) for value in get_args(annotation))
    if get_origin(annotation) in (Union, types.UnionType):
        return " | ".join(_type_name(argument) for argument in get_args(annotation))
    if annotation is type(None):
        return "null"
    if get_origin(annotation) is typing.Annotated:
        return _type_name(get_args(annotation)[0])
    if get_origin(annotation) in (tuple, list):
        return "list of " + _type_name(get_args(annotation)[0])
    return getattr(annotation, "__name__", str(annotation))


_UNION_LABEL = re.compile(r"str|constrained-int|.*\]")
"""Matches the parts of the place of an error, as pydantic gives it, that only say which member of a union type was
tried."""
_YAML_WORDS = {
    "tuple_type": "Input should be a list",
    "dict_type": "Input should be a mapping",
    "model_type": "Input should be a mapping",
}
"""Our texts in place of pydantic's messages that name Python types, by pydantic's kind of error."""


def _explain(cls: type[Settings], item: Mapping[str, Any]) -> str:
    parts = [str(part) for part in item["loc"] if not (isinstance(part, str) and _UNION_LABEL.fullmatch(part))]
    location = ".".join(parts) or "settings"
    value, kind = item.get("input"), item["type"]
    if kind == "extra_forbidden":
        parent, name = _class_at(cls, item["loc"][:-1]), str(item["loc"][-1])
        near = difflib.get_close_matches(name, list(parent.model_fields), n=1, cutoff=0.5)
        meant = [key for key in _list_keys(cls) if key.rpartition(".")[2] == name] or near
        hint = f"did you mean {' or '.join(map(repr, meant))}?" if meant else "known: " + ", ".join(parent.model_fields)
        return f"unknown key '{location}' (value {value!r}); {hint}"
    if kind == "missing":
        return f"'{location}' is required; set it in the file or as {location}=VALUE"
    message = _YAML_WORDS.get(kind, str(item["msg"]).removeprefix("Value error, "))
    if kind == "value_error" and (not item["loc"] or isinstance(value, (dict, Settings))):
        return message if not item["loc"] else f"{location}: {message}"
    return f"{location}={value!r}: {message}"


def _is_overridden(item: Mapping[str, Any], *, keys: Sequence[str], line: str) -> bool:
    """Whether a fault (`item` from pydantic) concerns an override. This is so if the fault's place is one of the
    overridden `keys`, or below one, or if the fault's message `line` names one of them."""
    if item["type"] == "missing":
        return False
    location = ".".join(map(str, item["loc"]))
    ends = {key: r"(?!\w)" if re.search("[._]", key) else "(?=[=:]| is )" for key in keys}  # `data` is also a word
    names = any(re.search(rf"(?<![\w.]){re.escape(key)}{end}", line) for key, end in ends.items())
    return names or any(f"{location}.".startswith(f"{key}.") for key in keys)


def _list_keys(cls: type[Settings], *, prefix: str = "") -> Iterator[str]:
    """Yield all keys of a config class, as `section.name`, except keys of the entries of lists."""
    for name, field in cls.model_fields.items():
        inner = nested_settings(field.annotation)
        if inner is None:
            yield f"{prefix}{name}"
        elif get_origin(_without_none(field.annotation)) not in (list, tuple):
            yield from _list_keys(inner, prefix=f"{prefix}{name}.")


def _class_at(cls: type[Settings], location: Sequence[Any]) -> type[Settings]:
    for part in location:
        if isinstance(part, str) and part in cls.model_fields:
            inner = nested_settings(cls.model_fields[part].annotation)
            cls = inner if inner is not None else cls
    return cls
