"""Reads YAML and JSON as Kubernetes does: one text, any number of documents.

A text that begins with ``{`` is JSON if it parses as JSON; everything else is YAML. Size limits are checked before
parsing, so no text takes long.
"""

import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import chain, islice
from typing import Any, NoReturn

from alignup.align.errors import OWN_LIMIT, DocumentError
from alignup.kubernetes.manifests.yaml_documents import (
    MAX_DEPTH,
    MAX_DOCUMENTS,
    DuplicateKey,
    ParsedDocument,
    parse_yaml,
)
from alignup.kubernetes.manifests.yaml_scalars import NumberLiteral

MAX_BYTES = 32 << 20  #: of one text
MAX_MARKS = 3_000_000  #: commas, colons and brackets in a JSON text, which parses faster than YAML

_MAX_DIGITS = 1_000  # Python's JSON reader rejects integers of some thousand digits
_NON_SPACE = re.compile(r"[^ \t\r\n]")
_UNUSUAL_KEY = re.compile(r'"[ \t\r\n]+:|\\\\":')  # white space before a colon, a backslash at the end of a key
_ESCAPE = re.compile(r"\\u[dD][89abAB]..\\u[dD][c-fC-F]..|(\\u[dD][89a-fA-F]..)|\\.", re.DOTALL)


def read(text: str | bytes) -> tuple[ParsedDocument, ...]:
    """The documents of *text* that are not empty; :class:`DocumentError` if one cannot be parsed."""
    text = _decode(text)
    start = text.lstrip()
    if not start.startswith("{"):
        return tuple(parse_yaml(text))
    try:
        return tuple(_parse_json(text))
    except _NotJsonError as error:
        try:
            return tuple(parse_yaml(text))
        except DocumentError as other:
            raise (error if start[1:].lstrip().startswith('"') else other) from None


def to_json(value: object) -> str:
    """Encode the value of a document as JSON; numbers keep their spelling."""
    match value:
        case NumberLiteral() if len(value) <= _MAX_DIGITS:
            return str(value)
        case Mapping():
            return "{" + ",".join(f"{json.dumps(str(key))}:{to_json(item)}" for key, item in value.items()) + "}"
        case list() | tuple():
            return "[" + ",".join(map(to_json, value)) + "]"
        case _:
            # A number with too many digits becomes a string: as a quantity it means the same.
            return json.dumps(value)


def to_yaml(value: object) -> str:
    """*value*, made of JSON types, as one YAML document; keys keep their order."""
    import yaml  # noqa: PLC0415 - not needed for JSON

    plain = json.loads(json.dumps(value))  # without subclasses of ``str``, such as enum members
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text: str = yaml.dump(plain, Dumper=dumper, sort_keys=False, allow_unicode=True, width=120)
    return text


class _NotJsonError(DocumentError):
    """The text begins like JSON but is not."""


def _decode(text: str | bytes) -> str:
    """*text* from UTF-8, or UTF-16 if there is a byte order mark."""
    if len(text) > MAX_BYTES:
        raise DocumentError(f"larger than {MAX_BYTES >> 20} MiB: split the file {OWN_LIMIT}", line=1)
    try:
        if isinstance(text, str):
            text.encode()
        elif text.startswith((b"\xff\xfe", b"\xfe\xff")):
            text = text.decode("utf-16")
        else:
            text = text.decode()
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise DocumentError(f"not valid UTF-8 (byte {error.object[error.start]:#04x})", line=line) from None
    except UnicodeEncodeError as error:
        line = error.object.count("\n", 0, error.start) + 1
        raise DocumentError("unpaired surrogate, which UTF-8 cannot encode", line=line) from None
    return text.removeprefix("\ufeff")


def _parse_json(text: str) -> Iterator[ParsedDocument]:
    if sum(map(text.count, ",:[{")) > MAX_MARKS:
        raise DocumentError(f"more than {MAX_MARKS:,} commas, colons and brackets: split the file {OWN_LIMIT}", line=1)
    if "\\u" in text:
        # Kubernetes replaces unpaired surrogates as well; they could not even be printed.
        text = _ESCAPE.sub(lambda match: r"\ufffd" if match[1] else match[0], text)
    # Long texts repeat their numbers; for one line of a trace, a cache costs more than it saves.
    number = lru_cache(4096)(NumberLiteral) if len(text) > 4096 else NumberLiteral
    decoder = json.JSONDecoder(parse_int=number, parse_float=number, parse_constant=reject_constant)
    end, line, count = 0, 1, 0
    while match := _NON_SPACE.search(text, end):
        start, count = match.start(), count + 1
        line += text.count("\n", end, start)
        if count > MAX_DOCUMENTS:
            what = f"more than {MAX_DOCUMENTS:,} documents: split the file {OWN_LIMIT}"
            raise DocumentError(what, line=line, document=count)
        value, end = _decode_json(decoder, text, start, line=line, document=count)
        if value is not None:
            keys = _duplicate_keys(value, text, start, end)
            repeated = tuple(DuplicateKey(line, key) for key in keys)
            yield ParsedDocument(count, line, value, repeated, json=text, start=start)
        line += text.count("\n", start, end)


def _decode_json(decoder: json.JSONDecoder, text: str, start: int, *, line: int, document: int) -> tuple[Any, int]:
    try:
        value, end = decoder.raw_decode(text, start)
    except json.JSONDecodeError as error:
        raise _NotJsonError(f"not JSON: {error.msg}", line=error.lineno, document=document) from None
    except RecursionError:
        too_deep = True
    else:
        too_deep = sum(1 for _ in islice(_levels(value), MAX_DEPTH + 1)) > MAX_DEPTH
    if too_deep:
        raise DocumentError(f"nested more than {MAX_DEPTH} levels deep {OWN_LIMIT}", line=line, document=document)
    return value, end


def _levels(value: object) -> Iterator[list[Any]]:
    """The lists and objects in *value*, one level of nesting at a time."""
    level = [value] if isinstance(value, dict | list) else []
    while level:
        yield level
        inner = chain.from_iterable(part.values() if isinstance(part, dict) else part for part in level)
        level = [part for part in inner if isinstance(part, dict | list)]


def _duplicate_keys(value: object, text: str, start: int, end: int) -> list[str]:
    found: list[str] = []
    # Text written as usual has one colon after a quote for each key; only other text is decoded again.
    keys = sum(len(part) for level in _levels(value) for part in level if isinstance(part, dict))
    colons = text.count('":', start, end) - text.count('\\":', start, end)
    if keys == colons and not _UNUSUAL_KEY.search(text, start, end):
        return found

    def note(pairs: list[tuple[str, object]]) -> None:
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                found.append(key)
            seen.add(key)

    json.loads(text[start:end], object_pairs_hook=note, parse_int=str)
    return found


def reject_constant(name: str) -> NoReturn:
    raise json.JSONDecodeError(f"{name} is not a JSON number", name, 0)
