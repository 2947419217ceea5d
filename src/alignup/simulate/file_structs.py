"""Structs that describe the YAML files of simulations, and a reader of them.

The type of a struct is the only description of a file: what is read, what is allowed, and its JSON Schema. Errors name
the place, as those of other files that people write.
"""

import json
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Any, Self, TypeVar, cast

import msgspec
from msgspec import Meta
from msgspec.inspect import (
    BoolType,
    DictType,
    Field,
    FloatType,
    IntType,
    Metadata,
    StrType,
    StructType,
    Type,
    VarTupleType,
)

from alignup.kubernetes.manifests.documents import NumberLiteral
from alignup.kubernetes.manifests.object_reader import ObjectReader

_T = TypeVar("_T", bound="FileStruct")
_MAX_SHOWN = 60  #: characters of a wrong value
_MAX_FACTOR = 1e6


class FileStruct(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the structs."""

    def replace(self, **changes: Any) -> Self:  # noqa: ANN401 - values of any field
        return msgspec.structs.replace(self, **changes)


def describe(text: str, **limits: Any) -> Meta:  # noqa: ANN401 - as Meta takes them
    return Meta(description=text, **limits)


def equal_to(text: str) -> Meta:
    """Return the annotation of a field that names the format."""
    return Meta(extra_json_schema={"const": text})


def one_of(texts: Iterable[str], **more: Any) -> Meta:  # noqa: ANN401 - as Meta takes them
    return Meta(extra_json_schema={"enum": list(texts)}, **more)


def field_names(type_: type[FileStruct]) -> tuple[str, ...]:
    return type_.__struct_encode_fields__


def check_header(header: ObjectReader, type_: type[FileStruct]) -> None:
    """Check the type of a document and the names of its fields."""
    for field in _fields(type_):
        expected_value, value = _extra(field.type).get("const"), header.fields.get(field.encode_name)
        if expected_value is not None and value != expected_value:
            header.error(field.encode_name, f"must be {expected_value}, not {show_value(value)}")
    reject_unknown(header, field_names(type_))


def reject_unknown(owner: ObjectReader, names: Collection[str]) -> None:
    for name in owner.fields:
        if name not in names:
            owner.error(name, f"unknown field; expected one of {', '.join(names)}")


def show_value(value: object) -> str:
    text = str(value) if isinstance(value, NumberLiteral) else json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 3]}..."


def read_struct(owner: ObjectReader, type_: type[_T]) -> _T:
    """Return an object of a file as a struct; the diagnostics of *owner* raise the first problem."""
    reject_unknown(owner, field_names(type_))
    fields = _fields(type_)
    for field in fields:
        if field.required and not owner.fields.get(field.encode_name):
            owner.error(field.encode_name, "Required value")
    present = [field for field in fields if owner.has(field.encode_name)]
    return type_(**{field.name: _read_value(owner, field.encode_name, field.type) for field in present})


def _fields(type_: type[FileStruct]) -> tuple[Field, ...]:
    return cast("StructType", msgspec.inspect.type_info(type_)).fields


def _read_value(owner: ObjectReader, name: str, type_: Type) -> Any:  # noqa: ANN401 - of type_
    extra = _extra(type_)
    plain = type_.type if isinstance(type_, Metadata) else type_
    match plain:
        case StructType(cls=inner):
            return read_struct(owner.child(name), cast("type[FileStruct]", inner))
        case VarTupleType(item_type=item):
            return owner.list_of(name, partial(_read_value, type_=item))
        case IntType(ge=int(low), le=int(high)):
            return owner.number(name, low=low, high=high)
    return owner.choice(name, extra["enum"]) if "enum" in extra else _READERS[type(plain)](owner, name)


def _extra(type_: Type) -> dict[str, Any]:
    return (type_.extra_json_schema if isinstance(type_, Metadata) else None) or {}


def _read_factor(owner: ObjectReader, name: str) -> float:
    try:
        value = float(str(owner.fields[name]))
    except ValueError:
        value = 0.0
    if not 0 < value < _MAX_FACTOR:
        owner.error(name, f"Invalid value: {owner.fields[name]}: must be a number greater than 0")
    return value


_READERS: dict[type[Type], Callable[[ObjectReader, str], Any]] = {
    StrType: ObjectReader.text,
    BoolType: ObjectReader.flag,
    FloatType: _read_factor,
    DictType: partial(ObjectReader.map_of, read=ObjectReader.text),
}
