"""TOML to typed structs, with errors that name the file, the dotted key and what would be allowed."""

from __future__ import annotations

import difflib
import re
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from hicache_bench.errors import UsageError
from hicache_bench.units import parse_duration_ns, parse_rate

T = TypeVar("T")
_AT = re.compile(r"^(?P<what>.*?)(?: - at `\$(?P<path>.*)`)?$", re.DOTALL)
_RULE = re.compile(r"^(?P<key>[a-z_]+) = ")


class Duration(int):
    """Nanoseconds, written as `"60s"`."""


class Rate(float):
    """Events per second, written as `"8/s"`, `"480/m"` or a bare number."""


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of one TOML file. Raises UsageError when it is missing or is no TOML."""
    try:
        tables = msgspec.toml.decode(path.read_bytes())
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError, msgspec.DecodeError, RecursionError) as error:
        raise UsageError(f"{path}: not readable as TOML: {error}") from None
    return typing.cast("dict[str, Any]", tables)


def convert(tables: Mapping[str, Any], kind: type[T], where: str) -> T:
    """Checked conversion of decoded TOML. `where` (the file) begins every message."""
    absent: list[str] = []
    _refuse_unknown(tables, kind, "", where, absent)
    if absent:
        raise UsageError(f"{where}: required and missing: {', '.join(absent)}")
    try:
        return msgspec.convert(tables, kind, dec_hook=_decode)
    except msgspec.ValidationError as error:
        raise UsageError(f"{where}: {_sentence(str(error))}") from None


def need(ok: bool, key: str, value: object, rule: str) -> None:
    """For `__post_init__` of the structs: `convert` puts the file and the table before the key."""
    if not ok:
        raise ValueError(f"{key} = {value!r}: {rule}")


def _decode(kind: type, value: object) -> object:
    try:
        if kind is Duration:
            if not isinstance(value, str):
                number = isinstance(value, int | float) and not isinstance(value, bool)
                guess = f'did you mean "{value}s"?' if number else 'write it like "60s", "250ms" or "2m"'
                raise UsageError(f"{value!r} is not a duration; {guess} (with a unit, in quotes)")
            return Duration(parse_duration_ns(value))
        if kind is Rate:
            return Rate(parse_rate(str(value)) if not isinstance(value, bool) else -1)
    except UsageError as error:
        raise ValueError(str(error)) from None
    raise NotImplementedError(kind)


def _sentence(message: str) -> str:
    found = _AT.match(message)
    what, path = (found["what"], found["path"] or "") if found else (message, "")
    path = path.lstrip(".")
    if _RULE.match(what):
        return f"{path}.{what}" if path else what
    return f"{path}: {what}" if path else what


def _refuse_unknown(value: object, kind: Any, path: str, where: str, absent: list[str]) -> None:
    """Raises UsageError for the first key that no struct knows; `absent` receives every required key not given."""
    if isinstance(value, list):
        kind = next((part for part in typing.get_args(kind) if typing.get_origin(part) in (tuple, list)), kind)
    origin = typing.get_origin(kind)
    if origin in (tuple, list) and isinstance(value, list):
        for index, item in enumerate(value):
            _refuse_unknown(item, typing.get_args(kind)[0], f"{path}[{index}]", where, absent)
    if not isinstance(value, Mapping):
        return
    if origin is types.UnionType or origin is typing.Union:
        kind = _member(value, typing.get_args(kind), path, where)
    if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        return
    known = msgspec.structs.fields(kind)
    fields = {field.encode_name: field.type for field in known}
    tag_field = kind.__struct_config__.tag_field
    allowed = [*([tag_field] if tag_field else []), *fields]
    for key, item in value.items():
        dotted = f"{path}.{key}" if path else str(key)
        if key not in allowed:
            raise UsageError(f"{where}: unknown key {dotted}{_guess(str(key), allowed)}; "
                             f"allowed here: {', '.join(allowed)}")
        if key in fields:
            _refuse_unknown(item, fields[key], dotted, where, absent)
    absent += [f"{path}.{field.encode_name}" if path else field.encode_name
               for field in known if field.required and field.encode_name not in value]


def _member(value: Mapping[str, Any], kinds: tuple[Any, ...], path: str, where: str) -> Any:
    """The struct of a tagged union that the table's tag names."""
    structs = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, msgspec.Struct)]
    if len(structs) < 2:
        return structs[0] if structs else None
    field = str(structs[0].__struct_config__.tag_field)
    by_tag = {str(kind.__struct_config__.tag): kind for kind in structs}
    tag = value.get(field)
    if not isinstance(tag, str) or tag not in by_tag:
        said = "is missing" if tag is None else f"= {tag!r} is unknown{_guess(str(tag), list(by_tag))}"
        raise UsageError(f"{where}: {path}.{field} {said}; allowed: {', '.join(by_tag)}")
    return by_tag[tag]


def _guess(key: str, allowed: list[str]) -> str:
    close = difflib.get_close_matches(key, allowed, n=1)
    return f" (did you mean {close[0]}?)" if close else ""
