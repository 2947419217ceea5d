"""YAML and JSON as Kubernetes reads them: one text, any number of documents.

A text that begins with ``{`` is JSON if it can be, as it is for the kubelet; everything else is YAML. No text takes
long: what one may hold is limited before anything is made of it.
"""

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import chain, islice
from typing import Any, NoReturn

from alignup.align.errors import DocumentError
from alignup.kube import yaml_documents
from alignup.kube.yaml_documents import MAX_DEPTH, MAX_DOCUMENTS, MAX_NODES, Document, DuplicateKey
from alignup.kube.yaml_scalars import NumberLiteral

__all__ = [
    "MAX_BYTES",
    "MAX_DEPTH",
    "MAX_DOCUMENTS",
    "MAX_MARKS",
    "MAX_NODES",
    "Document",
    "DocumentError",
    "DuplicateKey",
    "NumberLiteral",
    "read",
]

MAX_BYTES = 32 << 20  #: the longest text that is read
MAX_MARKS = 3_000_000  #: the most commas, colons and brackets in a JSON text, which is read faster than YAML

_NO_BLANK = re.compile(r"[^ \t\r\n]")
_UNUSUAL = re.compile(r'"[ \t\r\n]+:|\\\\":')  # blanks before a colon, a backslash at the end of a key
_ESCAPE = re.compile(r"\\u[dD][89abAB]..\\u[dD][c-fC-F]..|(\\u[dD][89a-fA-F]..)|\\.", re.DOTALL)


def read(text: str | bytes) -> tuple[Document, ...]:
    """The documents of *text*, without those that hold nothing; :class:`DocumentError` for what cannot be read."""
    text = _text(text)
    start = text.lstrip()
    if not start.startswith("{"):
        return tuple(yaml_documents.parse_yaml(text))
    try:
        return tuple(_json_documents(text))
    except _NotJsonError as error:
        try:
            return tuple(yaml_documents.parse_yaml(text))
        except DocumentError as other:
            raise (error if start[1:].lstrip().startswith('"') else other) from None


class _NotJsonError(DocumentError):
    """A text that begins like JSON and does not go on like it."""


def _text(text: str | bytes) -> str:
    """*text* decoded, if it is not too long: UTF-8 unless it begins with the mark of UTF-16."""
    if len(text) > MAX_BYTES:
        raise DocumentError(f"more than {MAX_BYTES >> 20} MiB are not read: split the file", line=1)
    try:
        if isinstance(text, str):
            text.encode()
        elif text.startswith((b"\xff\xfe", b"\xfe\xff")):
            text = text.decode("utf-16")
        else:
            text = text.decode()
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise DocumentError(f"not text in UTF-8 (byte {error.object[error.start]:#04x})", line=line) from None
    except UnicodeEncodeError as error:
        line = error.object.count("\n", 0, error.start) + 1
        raise DocumentError("half a character, which UTF-8 cannot hold", line=line) from None
    return text.removeprefix("\ufeff")


def _json_documents(text: str) -> Iterator[Document]:
    if sum(map(text.count, ",:[{")) > MAX_MARKS:
        raise DocumentError(f"more than {MAX_MARKS:,} commas, colons and brackets: split the file", line=1)
    if "\\u" in text:
        # Half a character is replaced, as Kubernetes does it; it could not even be printed.
        text = _ESCAPE.sub(lambda match: r"\ufffd" if match[1] else match[0], text)
    number = lru_cache(4096)(NumberLiteral)
    decoder = json.JSONDecoder(parse_int=number, parse_float=number, parse_constant=_no_constant)
    end, line, count = 0, 1, 0
    while match := _NO_BLANK.search(text, end):
        start, count = match.start(), count + 1
        line += text.count("\n", end, start)
        if count > MAX_DOCUMENTS:
            raise DocumentError(f"more than {MAX_DOCUMENTS:,} documents: split the file", line=line, document=count)
        value, end = _decoded(decoder, text, start, line=line, document=count)
        if value is not None:
            keys = _repeated(text, start, end) if _may_repeat(value, text, start, end) else ()
            yield Document(count, line, value, tuple(DuplicateKey(line, key) for key in keys))
        line += text.count("\n", start, end)


def _decoded(decoder: json.JSONDecoder, text: str, start: int, *, line: int, document: int) -> tuple[Any, int]:
    """The value that begins at *start*, and where it ends."""
    try:
        value, end = decoder.raw_decode(text, start)
    except json.JSONDecodeError as error:
        raise _NotJsonError(f"not JSON: {error.msg}", line=error.lineno, document=document) from None
    except RecursionError:
        deep = True
    else:
        deep = sum(1 for _ in islice(_levels(value), MAX_DEPTH + 1)) > MAX_DEPTH
    if deep:
        raise DocumentError(f"nested more than {MAX_DEPTH} deep", line=line, document=document)
    return value, end


def _levels(value: object) -> Iterator[list[Any]]:
    """The lists and objects in *value*, those together that stand equally deep."""
    level = [value] if isinstance(value, dict | list) else []
    while level:
        yield level
        inner = chain.from_iterable(part.values() if isinstance(part, dict) else part for part in level)
        level = [part for part in inner if isinstance(part, dict | list)]


def _may_repeat(value: object, text: str, start: int, end: int) -> bool:
    """Whether *text* may set a key twice: where it is written as usual, it has as many colons after quotes as keys."""
    keys = sum(len(part) for level in _levels(value) for part in level if isinstance(part, dict))
    colons = text.count('":', start, end) - text.count('\\":', start, end)
    return keys != colons or _UNUSUAL.search(text, start, end) is not None


def _repeated(text: str, start: int, end: int) -> list[str]:
    """The keys that are set again in a JSON text."""
    found: list[str] = []

    def note(pairs: list[tuple[str, object]]) -> None:
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                found.append(key)
            seen.add(key)

    json.loads(text[start:end], object_pairs_hook=note, parse_int=str)
    return found


def _no_constant(name: str) -> NoReturn:
    raise json.JSONDecodeError(f"{name} is no number", name, 0)
