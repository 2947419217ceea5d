"""The encoding and decoding of our JSON documents.

A document is a msgspec struct. Its type is the only description of its shape: encoding, validation and JSON Schema
derive from it. Every decoding error is a :class:`ParseError` that starts with the path of the bad value, such as
``pods[2].pod.name: expected `str`, got `int```.
"""

import dataclasses
import json
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import cache, lru_cache
from typing import Annotated, Any, Self, TypeVar, cast

import msgspec
from msgspec import Meta

from alignup.align import bits
from alignup.align.bits import Bits
from alignup.align.errors import FieldError, ParseError

T = TypeVar("T")

#: A set of CPUs or NUMA nodes, as ``align.bits`` prints it.
LinuxList = Annotated[
    str, Meta(pattern=r"^([0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*)?$", description="A Linux list, such as 0-3,8.")
]
Count = Annotated[int, Meta(ge=0)]
Int64 = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
Timestamp = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]

_FIRST_SECOND, _LAST_SECOND = -62_135_596_800, 253_402_300_799


class Document(msgspec.Struct, frozen=True, rename="camel"):
    """Base of our documents: JSON has camelCase names, and unknown fields are ignored."""

    def replace(self, **changes: Any) -> Self:  # noqa: ANN401 - values of any field
        return msgspec.structs.replace(self, **changes)


def timestamp(seconds: float, *, timespec: str = "milliseconds") -> Timestamp:
    """Format seconds since 1970 as RFC 3339 in UTC: ``2026-11-15T07:30:00.000Z``; the years are 1 to 9999.

    *timespec* is that of ``isoformat``; objects of Kubernetes have whole seconds.
    """
    valid_seconds = min(max(seconds, _FIRST_SECOND), _LAST_SECOND)
    return datetime.fromtimestamp(valid_seconds, UTC).isoformat(timespec=timespec).replace("+00:00", "Z")


def seconds_of(timestamp: str | None) -> float:
    """Return the seconds since 1970; 0 if it is not a time."""
    try:
        return datetime.fromisoformat(timestamp or "").timestamp()
    except ValueError:
        return 0.0


def encode(document: object) -> bytes:
    """Return *document* as one line of JSON; ``TypeError`` or ``ValueError`` if JSON cannot represent it."""
    try:
        return msgspec.json.encode(document)
    except UnicodeEncodeError:  # a lone surrogate, which JSON can only escape
        return json.dumps(to_builtins(document), separators=(",", ":")).encode("ascii")


def decode(data: bytes | str, type_: type[T]) -> T:
    """Decode JSON as *type_*; ``ParseError`` if it is not JSON or has another shape."""
    try:
        return msgspec.json.decode(data, type=type_)
    except msgspec.ValidationError as error:
        raise _parse_error(error) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return convert(load(data), type_)


@cache
def decoder(type_: Any) -> msgspec.json.Decoder[Any]:  # noqa: ANN401 - any type that msgspec decodes
    """Return the decoder of *type_*, which takes longer to make than a small document takes to decode."""
    return msgspec.json.Decoder(type_)


def load(data: bytes | str) -> Any:  # noqa: ANN401 - JSON of any shape
    """Decode JSON of any shape, lone surrogates included; ``ParseError`` if it is not JSON."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass  # msgspec rejects lone surrogates
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ParseError(f"not JSON: {error}") from error


def convert(value: object, type_: type[T]) -> T:
    """Convert decoded JSON to *type_*; ``ParseError`` if it has another shape."""
    try:
        return msgspec.convert(value, type_, str_keys=True)
    except msgspec.ValidationError as error:
        raise _parse_error(error) from error
    except RecursionError as error:
        raise ParseError("nested too deeply") from error
    except UnicodeEncodeError as error:
        raise ParseError(f"a text contains half a character: {error}") from error


def to_builtins(document: object) -> dict[str, Any]:
    """Return *document* as the dicts, lists and scalars that JSON consists of."""
    plain: dict[str, Any] = msgspec.to_builtins(document, str_keys=True)
    return plain


def json_schemas(types: Iterable[Any]) -> dict[str, Any]:
    """Return the JSON Schemas of *types* and of all types they refer to, as ``components/schemas`` of OpenAPI.

    A type ``PodDocument`` is the schema ``Pod``.
    """
    schemas = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")[1]
    text = json.dumps(schemas)
    for name in schemas:
        short = name.removesuffix("Document")
        text = text.replace(f'"{name}"', f'"{short}"').replace(f'schemas/{name}"', f'schemas/{short}"')
    definitions: dict[str, Any] = json.loads(text)
    return definitions


def build(type_: Callable[..., T], source: object, **changes: object) -> T:
    """Return a *type_* with the fields of *source*, except for *changes*; both must name their fields alike."""
    return type_(**{name: changes[name] if name in changes else getattr(source, name) for name in _fields(type_)})


@cache
def _fields(type_: Callable[..., object]) -> tuple[str, ...]:
    names: tuple[str, ...] | None = getattr(type_, "__struct_fields__", None) or getattr(type_, "_fields", None)
    return names or tuple(field.name for field in dataclasses.fields(cast("Any", type_)) if field.init)


@lru_cache(maxsize=1024)  # decisions name the same few sets of NUMA nodes again and again
def show_or_none(members: Bits | None) -> str | None:
    return None if members is None else bits.show(members)


def parse_or_none(text: str | None) -> Bits | None:
    return None if text is None else bits.parse(text)


def _parse_error(error: msgspec.ValidationError) -> ParseError:
    message, _, path = str(error).partition(" - at `$")
    message, path = message[:1].lower() + message[1:], path.removesuffix("`").removeprefix(".")
    return FieldError(message, field=path) if path else ParseError(message)
