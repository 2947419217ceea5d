"""YAML and JSON texts as Kubernetes reads them: one text, any number of documents.

A text that begins with ``{`` is JSON if it parses as JSON; everything else is YAML. Size limits are checked before
parsing, so no text takes long.

Keys are always strings. The last of duplicate keys wins, and the document records the duplicates. In YAML, ``<<``
merges the keys of other objects at its position: later keys override them, earlier ones do not. Aliases share their
value, so nothing grows; each use counts towards the limits, so walking a document always ends.

YAML scalars are resolved as Kubernetes does it, which is neither quite YAML 1.1 nor 1.2. Kubernetes converts YAML to
JSON before decoding, so a number arrives in its JSON spelling: ``1e3`` and ``0x3e8`` as ``1000``, ``1.500`` as ``1.5``.
Quantities depend on that spelling, so a number is a :class:`NumberLiteral` here, not a float. Scalars that other YAML
parsers resolve differently: ``yes``, ``on`` and ``y`` are true; ``010``, ``0o10`` and ``08`` are eight; ``1:30``, dates
and ``1e400`` are strings.
"""

import base64
import binascii
import json
import math
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from itertools import chain, islice
from typing import Any, NoReturn

import yaml

from alignup.align.bits import quote
from alignup.align.errors import DocumentError

MAX_BYTES = 32 << 20  #: of one text
MAX_MARKS = 3_000_000  #: commas, colons and brackets in a JSON text, which parses faster than YAML
MAX_NODES = 400_000  #: values and keys in one YAML text
MAX_DOCUMENTS = 20_000  #: in one text
MAX_DEPTH = 100  #: of nested lists and objects

YAML_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  #: the C loader if PyYAML has it

_MAX_DIGITS = 1_000  # Python's JSON reader rejects integers of some thousand digits
_MAX_DIRECTIVES = 100  # each slows the parser down for every other directive and every tag
_MAX_CACHED = 4096  # resolved scalars
_NO_START = ("\t", "@", "`", "%")  # characters that no token of YAML begins with
_MERGE = "tag:yaml.org,2002:merge"
_NON_SPACE = re.compile(r"[^ \t\r\n]")
_UNUSUAL_KEY = re.compile(r'"[ \t\r\n]+:|\\\\":')  # white space before a colon, a backslash at the end of a key
_ESCAPE = re.compile(r"\\u[dD][89abAB]..\\u[dD][c-fC-F]..|(\\u[dD][89a-fA-F]..)|\\.", re.DOTALL)

#: A resolved scalar, before it becomes a value or a key.
Scalar = str | bool | int | float | None

_TAG = "tag:yaml.org,2002:"
#: Tag → the type of its scalars.
_KINDS = {"bool": bool, "int": int, "float": float, "null": type(None), "timestamp": datetime}

_INT64 = range(-(1 << 63), 1 << 63)
_UINT64 = range(1 << 64)

#: A scalar with any other first character is a string.
_SPECIAL = frozenset("+-.0123456789yYnNtTfFoO~")
_WORDS: dict[str, Scalar] = {
    **dict.fromkeys(("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"), True),
    **dict.fromkeys(("n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"), False),
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), float("inf")),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), float("-inf")),
}
_UNSUPPORTED = {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}

_INTEGER = re.compile(
    r"(?P<sign>[+-]?)(?:0[xX](?P<hex>[0-9a-fA-F]+)|0[oO]?(?P<octal>[0-7]+)|0[bB](?P<binary>[01]+)|(?P<decimal>[1-9][0-9]*|0))"
)
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_FRACTION = re.compile(r"\.[0-9]+(?:_[0-9]+)*(?:[eE][-+]?[0-9]+(?:_[0-9]+)*)?")
_LATE_SIGN = re.compile(r"0b([+-][01]+)")
_DATE = re.compile(
    r"([0-9]{4})-([0-9]{1,2})-([0-9]{1,2})"
    r"(?:(?:[Tt](?P<time>[0-9]{1,2}:[0-9]{1,2}:[0-9]{1,2})(?:[.,][0-9]+)?(?:Z|[+-][0-9]{2}:[0-9]{2}))"
    r"| +(?P<local>[0-9]{1,2}:[0-9]{1,2}:[0-9]{1,2})(?:[.,][0-9]+)?)?"
)


class NumberLiteral(str):
    """A number in its JSON spelling."""

    __slots__ = ()


class ScalarError(ValueError):
    """A scalar that does not match its tag, or that JSON cannot represent."""


@dataclass(frozen=True, slots=True)
class DuplicateKey:
    line: int
    key: str

    def __str__(self) -> str:
        return f"duplicate key {quote(self.key)}: the last value is used"


@dataclass(frozen=True, slots=True)
class ParsedDocument:
    number: int  #: its position in the text, from 1, counting empty documents
    line: int  #: where it begins, from 1
    #: dicts, lists, strings, booleans, ``None`` and ``NumberLiteral``; aliases share parts of it, so do not change it
    value: Any
    repeated: tuple[DuplicateKey, ...] = ()
    lines: dict[int, int] = field(default_factory=dict, repr=False, compare=False)  #: id of an object → its line
    json: str = field(default="", repr=False, compare=False)  #: the text of all documents, if it is JSON
    start: int = field(default=0, repr=False, compare=False)  #: where this one begins in ``json``


def read(text: str | bytes) -> tuple[ParsedDocument, ...]:
    """Return the documents of *text* that are not empty; :class:`DocumentError` for an unreadable document."""
    text = _decode(text)
    start = text.lstrip()
    if not start.startswith("{"):
        return _Composer(text).documents()
    try:
        return tuple(_parse_json(text))
    except _NotJsonError as error:
        try:
            return _Composer(text).documents()
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


def to_builtins(value: Any) -> Any:  # noqa: ANN401 - any value
    """Return the value of a document with its numbers as ints and floats."""
    match value:
        case NumberLiteral():
            if len(value) > _MAX_DIGITS:
                return math.inf
            return int(value) if value.removeprefix("-").isdecimal() else float(value)
        case Mapping():
            return {key: to_builtins(item) for key, item in value.items()}
        case list():
            return [to_builtins(item) for item in value]
        case _:
            return value


def to_yaml(value: object) -> str:
    """Return *value*, made of JSON types, as one YAML document; keys keep their order."""
    plain = json.loads(json.dumps(value))  # without subclasses of ``str``, such as enum members
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text: str = yaml.dump(plain, Dumper=dumper, sort_keys=False, allow_unicode=True, width=120)
    return text


class _NotJsonError(DocumentError):
    """The text begins like JSON but is not."""


def _decode(text: str | bytes) -> str:
    """Decode *text* from UTF-8, or UTF-16 if there is a byte order mark."""
    if len(text) > MAX_BYTES:
        raise DocumentError(f"larger than {MAX_BYTES >> 20} MiB: split the file", line=1, own_limit=True)
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


def _describe(error: yaml.MarkedYAMLError, text: str) -> str:
    mark, start = error.problem_mark, error.context_mark
    character = text[mark.index : mark.index + 1] if mark else ""
    if mark and character in _NO_START and (start is None or start.index == mark.index):
        tab = "found a tab where YAML allows only spaces"
        return tab if character == "\t" else f"unexpected character {character!r}"
    if not error.context:
        return str(error.problem)
    begin = f" that begins on line {start.line + 1}" if start else ""
    return f"{error.problem} {error.context}{begin}"


@dataclass(slots=True)
class _Anchor:
    value: Any  #: a list, an object, or a scalar that is not yet converted to a value or a key
    nodes: int = 0  #: how many nodes it counts for; 0: not complete
    depth: int = 0  #: of nested lists and objects


class _Composer:
    """A composer of documents from the events of a YAML parser."""

    def __init__(self, text: str) -> None:
        if text.count("%TAG") > _MAX_DIRECTIVES:
            raise DocumentError(f"more than {_MAX_DIRECTIVES} directives", line=1, own_limit=True)
        self._text = text
        self._get_event = YAML_LOADER(text).get_event
        self._event: Any = None  #: the last one
        self._number = 0
        self._inside = False  #: a document
        self._nodes = 0
        self._deepest = 0  #: level reached in the current anchor or document
        resolve = resolve_plain
        self._plain_value = lru_cache(_MAX_CACHED)(lambda text: to_value(resolve(text)))
        self._plain_key = lru_cache(_MAX_CACHED)(lambda text: to_key(resolve(text)))
        self._anchors: dict[str, _Anchor] = {}
        self._repeated: list[DuplicateKey] = []
        self._lines: dict[int, int] = {}

    @property
    def current(self) -> int:
        return self._number if self._inside else self._number + 1

    def error(self, message: str, *, line: int = 0, own_limit: bool = False) -> DocumentError:
        """Return an error at *line*, or else at the last event."""
        line = line or self._event.start_mark.line + 1
        return DocumentError(message, line=line, document=self.current, own_limit=own_limit)

    def documents(self) -> tuple[ParsedDocument, ...]:
        documents = []
        try:
            self._next()  # the start of the stream
            while type(self._next()) is yaml.DocumentStartEvent:
                line = self._event.start_mark.line + 1
                self._number += 1
                if self._number > MAX_DOCUMENTS:
                    raise self.error(f"more than {MAX_DOCUMENTS:,} documents: split the file", own_limit=True)
                self._inside = True
                self._anchors = {}
                self._repeated = []
                self._lines = {}
                value = self._value(self._next(), 0)
                self._next()  # the end of the document
                self._inside = False
                if value is not None:
                    documents.append(ParsedDocument(self._number, line, value, tuple(self._repeated), self._lines))
        except ScalarError as error:
            raise self.error(str(error)) from None
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            raise self.error(_describe(error, self._text), line=mark.line + 1 if mark else 1) from None
        except yaml.reader.ReaderError as error:
            line = self._text.encode()[: error.position].count(b"\n") + 1
            raise self.error(f"character {error.character:#x} is not allowed in YAML", line=line) from None
        except UnicodeDecodeError as error:
            raise self.error(f"not valid UTF-8: {error.reason}", line=1) from None
        return tuple(documents)

    def _next(self) -> Any:  # noqa: ANN401 - any event
        self._event = event = self._get_event()
        return event

    def _value(self, event: Any, level: int) -> Any:  # noqa: ANN401 - any event, any value
        """Return the value that begins at *event*, inside *level* lists and objects."""
        kind = type(event)
        if kind is yaml.ScalarEvent:
            self._count(1, level)
            if event.tag is not None or event.anchor is not None or not event.implicit[0]:
                return to_value(self._resolve(event))
            return self._plain_value(event.value)
        if kind is yaml.AliasEvent:
            value = self._alias(event, level)
            return value if type(value) is dict or type(value) is list else to_value(value)
        return self._collection(event, level + 1)

    def _key(self, event: Any, level: int) -> str | None:  # noqa: ANN401 - any event
        """Return the key that begins at *event*; ``None`` for a merge key."""
        kind = type(event)
        if kind is yaml.ScalarEvent:
            self._count(1, level)
            text, tag, plain = event.value, event.tag, event.implicit[0]
            if tag is None and event.anchor is None and plain:
                return None if text == "<<" else self._plain_key(text)
            scalar = self._resolve(event)
            return None if text == "<<" and (plain or tag == _MERGE) else to_key(scalar)
        if kind is yaml.AliasEvent:
            value = self._alias(event, level)
            if type(value) is not dict and type(value) is not list:
                return to_key(value)
        else:
            self._collection(event, level + 1)
        raise self.error("a list or an object cannot be a key")

    def _collection(self, event: Any, level: int) -> Any:  # noqa: ANN401 - any event, any value
        earlier_nodes, outer = self._nodes, self._deepest
        self._count(1, level)
        value: list[Any] | dict[str, Any] = [] if type(event) is yaml.SequenceStartEvent else {}
        anchor = None
        if event.anchor is not None:
            anchor = self._anchors[event.anchor] = _Anchor(value)
            self._deepest = level
        if isinstance(value, list):
            while type(event := self._next()) is not yaml.SequenceEndEvent:
                value.append(self._value(event, level))
        else:
            self._lines[id(value)] = event.start_mark.line + 1
            self._fill_object(value, level)
        if anchor is not None:
            anchor.nodes = self._nodes - earlier_nodes
            anchor.depth = self._deepest - level + 1
            self._deepest = max(outer, self._deepest)
        return value

    def _fill_object(self, value: dict[str, Any], level: int) -> None:
        merged_keys: set[str] = set()
        while type(event := self._next()) is not yaml.MappingEndEvent:
            key = self._key(event, level)
            if key is None:
                self._merge(value, merged_keys, level)
                continue
            if key in value and key not in merged_keys:
                self._repeated.append(DuplicateKey(event.start_mark.line + 1, key))
            value[key] = self._value(self._next(), level)

    def _merge(self, value: dict[str, Any], merged_keys: set[str], level: int) -> None:
        """Merge the keys of the next value, an object or a list of objects; the first object wins."""
        event = self._next()
        if type(event) is yaml.AliasEvent:
            sources = [self._alias(event, level)]
        else:
            inner = self._value(event, level)
            sources = inner[::-1] if isinstance(inner, list) else [inner]
        for source in sources:
            if not isinstance(source, dict):
                raise self.error("map merge requires map or sequence of maps as the value")
            value.update(source)
            merged_keys.update(source)

    def _alias(self, event: yaml.AliasEvent, level: int) -> Any:  # noqa: ANN401 - any value
        """Return the value of an anchor."""
        anchor = self._anchors.get(event.anchor or "")
        if anchor is None:
            raise self.error(f"unknown anchor {event.anchor!r} referenced")
        if not anchor.nodes:
            raise self.error(f"anchor {event.anchor!r} value contains itself")
        self._count(anchor.nodes, level + anchor.depth)
        return anchor.value

    def _resolve(self, event: yaml.ScalarEvent) -> Scalar:
        """Resolve a scalar with quotes, a tag or an anchor."""
        scalar: Scalar = event.value
        if event.tag is not None:
            scalar = resolve_tagged(event.value, event.tag)
        elif event.implicit[0]:
            scalar = resolve_plain(event.value)
        if event.anchor is not None:
            self._anchors[event.anchor] = _Anchor(scalar, 1)
        return scalar

    def _count(self, nodes: int, level: int) -> None:
        """Count *nodes* that are nested *level* deep towards the limits."""
        self._nodes += nodes
        self._deepest = max(self._deepest, level)
        if level > MAX_DEPTH:
            raise self.error(f"nested more than {MAX_DEPTH} levels deep", own_limit=True)
        if self._nodes > MAX_NODES:
            message = f"more than {MAX_NODES:,} values and keys: split the file, or write it as JSON"
            raise self.error(message, own_limit=True)


def _parse_json(text: str) -> Iterator[ParsedDocument]:
    if sum(map(text.count, ",:[{")) > MAX_MARKS:
        message = f"more than {MAX_MARKS:,} commas, colons and brackets: split the file"
        raise DocumentError(message, line=1, own_limit=True)
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
            message = f"more than {MAX_DOCUMENTS:,} documents: split the file"
            raise DocumentError(message, line=line, document=count, own_limit=True)
        value, end = _decode_json(decoder, text, start, line=line, document=count)
        if value is not None:
            keys = _duplicate_keys(value, text, start, end)
            repeated_keys = tuple(DuplicateKey(line, key) for key in keys)
            yield ParsedDocument(count, line, value, repeated_keys, json=text, start=start)
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
        message = f"nested more than {MAX_DEPTH} levels deep"
        raise DocumentError(message, line=line, document=document, own_limit=True)
    return value, end


def _levels(value: object) -> Iterator[list[Any]]:
    """Yield the lists and objects in *value*, one level of nesting at a time."""
    level = [value] if isinstance(value, dict | list) else []
    while level:
        yield level
        inner = chain.from_iterable(part.values() if isinstance(part, dict) else part for part in level)
        level = [part for part in inner if isinstance(part, dict | list)]


def _duplicate_keys(value: object, text: str, start: int, end: int) -> list[str]:
    repeated_keys: list[str] = []
    # Text written as usual has one colon after a quote for each key; only other text is decoded again.
    keys = sum(len(part) for level in _levels(value) for part in level if isinstance(part, dict))
    colons = text.count('":', start, end) - text.count('\\":', start, end)
    if keys == colons and not _UNUSUAL_KEY.search(text, start, end):
        return repeated_keys

    def note(pairs: list[tuple[str, object]]) -> None:
        keys: set[str] = set()
        for key, _ in pairs:
            if key in keys:
                repeated_keys.append(key)
            keys.add(key)

    json.loads(text[start:end], object_pairs_hook=note, parse_int=str)
    return repeated_keys


def reject_constant(name: str) -> NoReturn:
    raise json.JSONDecodeError(f"{name} is not a JSON number", name, 0)


def resolve_plain(text: str) -> Scalar:
    if text and text[0] not in _SPECIAL:
        return text
    if text in _WORDS:
        return _WORDS[text]
    if len(text) <= 18 and text[0] != "0" and text.isascii() and text.isdecimal():
        return int(text)
    if text[0] == ".":
        return _float(text.replace("_", ""), text) if _FRACTION.fullmatch(text) else text
    if text[0].isalpha() or text[0] == "~":
        return text
    bare = text.replace("_", "")
    if (number := _integer(bare)) is not None:
        return number
    return _float(bare, text) if _FLOAT.fullmatch(bare) else text


def resolve_tagged(text: str, tag: str) -> Scalar:
    """Resolve a scalar with a tag; an unknown tag makes it a string."""
    kind = tag.removeprefix(_TAG) if tag.startswith(_TAG) else ""
    if kind == "binary":  # base64 decodes to a string too
        try:
            return base64.b64decode(re.sub(r"[\r\n]", "", text), validate=True).decode(errors="replace")
        except (binascii.Error, ValueError):
            raise ScalarError("!!binary value contains invalid base64 data") from None
    if kind not in _KINDS:
        return text
    scalar = resolve_plain(text)
    if kind == "float" and type(scalar) is int and scalar in _INT64:
        return float(scalar)
    if kind == "timestamp" and _is_date(text):
        return text
    if type(scalar) is not _KINDS[kind]:
        excerpt = text if len(text) <= 40 else f"{text[:37]}..."
        raise ScalarError(f"`{excerpt}` is not a valid !!{kind}")
    return scalar


def to_value(scalar: Scalar) -> str | bool | None:
    """Return *scalar* as a value, numbers in their JSON spelling: without an exponent from 10⁻⁶ up to 10²¹."""
    if isinstance(scalar, int) and not isinstance(scalar, bool):
        return NumberLiteral(scalar)
    if not isinstance(scalar, float):
        return scalar
    text = repr(scalar)
    if text in _UNSUPPORTED:
        raise ScalarError(f"json: unsupported value: {_UNSUPPORTED[text]}")
    if scalar and not 1e-6 <= abs(scalar) < 1e21:
        return NumberLiteral(text.replace("e-0", "e-"))
    return NumberLiteral(format(Decimal(text), "f").removesuffix(".0"))


def to_key(scalar: Scalar) -> str:
    """Return *scalar* as the key of an object, which is always a string."""
    match scalar:
        case str():
            return scalar
        case bool():
            return str(scalar).lower()
        case int() if scalar in _INT64:
            return str(scalar)
        case float():
            return _short(scalar)
        case _:
            raise ScalarError(f"{'null' if scalar is None else scalar} cannot be a key")


def _integer(bare: str) -> int | None:
    """Parse a 64-bit integer; ``None`` for anything else."""
    match = _INTEGER.fullmatch(bare)
    if match is None:
        late = _LATE_SIGN.fullmatch(bare)  # Go also accepts the sign after the prefix
        number = int(late[1], 2) if late else None
        return number if number is None or number in _INT64 else None
    kind = match.lastgroup
    digits = match[kind or 0]
    if kind == "decimal" and len(digits) > 20:
        return None
    number = int(match["sign"] + digits, {"hex": 16, "octal": 8, "binary": 2}.get(kind or "", 10))
    return number if number in (_INT64 if match["sign"] else _UINT64) else None


def _float(bare: str, text: str) -> float | str:
    """Return a float, or the text itself if it is too large for 64 bits."""
    number = float(bare)
    return text if number in (float("inf"), float("-inf")) else number


def _short(number: float) -> str:
    """Return the spelling as a key: 32-bit precision, with an exponent below 10⁻⁴ and from 10⁶ on."""
    single = to_float32(number)
    if single != single or abs(single) == float("inf"):  # noqa: PLR0124 - only NaN differs from itself
        return {"inf": ".inf", "-inf": "-.inf", "nan": ".nan"}[repr(single)]
    digits = next(text for width in range(17) if to_float32(float(text := f"{single:.{width}e}")) == single)
    mantissa, _, exponent = digits.partition("e")
    if -4 <= int(exponent) < 6:
        return format(Decimal(digits), "f")
    return f"{mantissa}e{exponent}"


def to_float32(number: float) -> float:
    """Return *number* rounded to 32 bits, to infinity if it is too large."""
    try:
        return float(struct.unpack("f", struct.pack("f", number))[0])
    except OverflowError:
        return math.copysign(math.inf, number)


def _is_date(text: str) -> bool:
    match = _DATE.fullmatch(text)
    if match is None:
        return False
    year, month, day = map(int, match.group(1, 2, 3))
    hour, minute, second = map(int, (match["time"] or match["local"] or "0:0:0").split(":"))
    try:
        datetime(year, month, day, hour, minute, second, tzinfo=UTC)
    except ValueError:
        return False
    return True
