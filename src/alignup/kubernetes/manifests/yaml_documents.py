"""Builds documents from YAML parser events, as Kubernetes does.

Keys are always strings. The last of duplicate keys wins, and the document records the duplicates. ``<<`` merges the
keys of other objects at its position: later keys override them, earlier ones do not. Aliases share their value, so
nothing grows; each use counts towards the limits, so walking a document always ends.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from alignup.align.bits import quote
from alignup.align.errors import OWN_LIMIT, DocumentError
from alignup.kubernetes.manifests import yaml_scalars
from alignup.kubernetes.manifests.yaml_scalars import ScalarError

if TYPE_CHECKING:
    import yaml

MAX_NODES = 400_000  #: values and keys in one text
MAX_DOCUMENTS = 20_000  #: in one text
MAX_DEPTH = 100  #: of nested lists and objects

_MAX_DIRECTIVES = 100  # each slows the parser down for every other directive and every tag
_MAX_CACHED = 4096  # resolved scalars
_MERGE = "tag:yaml.org,2002:merge"


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


def parse_yaml(text: str) -> Iterator[ParsedDocument]:
    """The documents of a YAML text that are not empty; :class:`DocumentError` for the first invalid one."""
    import yaml  # noqa: PLC0415 - not needed for JSON

    if text.count("%TAG") > _MAX_DIRECTIVES:
        raise DocumentError(f"more than {_MAX_DIRECTIVES} directives {OWN_LIMIT}", line=1)
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C loader if PyYAML has it
    composer = _Composer()
    try:
        yield from composer.documents(loader(text).get_event)
    except ScalarError as error:
        raise composer.error(str(error)) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise DocumentError(_message(error, text), line=line, document=composer.current) from None
    except yaml.reader.ReaderError as error:
        line = text.encode()[: error.position].count(b"\n") + 1
        what = f"character {error.character:#x} is not allowed in YAML"
        raise DocumentError(what, line=line, document=composer.current) from None
    except UnicodeDecodeError as error:
        raise DocumentError(f"not valid UTF-8: {error.reason}", line=1, document=composer.current) from None


def _message(error: "yaml.MarkedYAMLError", text: str) -> str:
    mark = error.problem_mark
    if mark and "cannot start any token" in (error.problem or ""):
        found = text[mark.index : mark.index + 1]
        return "found a tab where YAML allows only spaces" if found == "\t" else f"unexpected character {found!r}"
    if not error.context:
        return str(error.problem)
    start = f" that begins on line {error.context_mark.line + 1}" if error.context_mark else ""
    return f"{error.problem} {error.context}{start}"


@dataclass(slots=True)
class _Anchor:
    value: Any  #: a list, an object, or a scalar that is not yet converted to a value or a key
    nodes: int = 0  #: how many nodes it counts for; 0: not complete
    depth: int = 0  #: of nested lists and objects


class _Composer:
    def __init__(self) -> None:
        import yaml  # noqa: PLC0415 - not needed for JSON

        self._yaml = yaml
        self._number = 0
        self._inside = False  #: a document
        self._nodes = 0
        self._deepest = 0  #: level reached in the current anchor or document
        resolve = yaml_scalars.resolve_plain
        self._plain_value = lru_cache(_MAX_CACHED)(lambda text: yaml_scalars.to_value(resolve(text)))
        self._plain_key = lru_cache(_MAX_CACHED)(lambda text: yaml_scalars.to_key(resolve(text)))
        self._anchors: dict[str, _Anchor] = {}
        self._repeated: list[DuplicateKey] = []
        self._lines: dict[int, int] = {}

    @property
    def current(self) -> int:
        return self._number if self._inside else self._number + 1

    def error(self, what: str) -> DocumentError:
        return DocumentError(what, line=_line_of(self._event), document=self.current)

    def documents(self, get_event: "Callable[[], yaml.Event]") -> Iterator[ParsedDocument]:
        self._get_event = get_event
        self._next()  # the start of the stream
        while type(event := self._next()) is self._yaml.DocumentStartEvent:
            line = _line_of(event)
            self._number += 1
            if self._number > MAX_DOCUMENTS:
                raise self.error(f"more than {MAX_DOCUMENTS:,} documents: split the file {OWN_LIMIT}")
            self._inside = True
            self._anchors, self._repeated, self._lines = {}, [], {}
            value = self._value(self._next(), 0)
            self._next()  # the end of the document
            self._inside = False
            if value is not None:
                yield ParsedDocument(self._number, line, value, tuple(self._repeated), self._lines)

    def _next(self) -> Any:  # noqa: ANN401 - any event
        self._event = event = self._get_event()
        return event

    def _value(self, event: Any, level: int) -> Any:  # noqa: ANN401 - any event, any value
        """The value that begins at *event*, inside *level* lists and objects."""
        kind = type(event)
        if kind is self._yaml.ScalarEvent:
            self._count(1)
            if event.tag is not None or event.anchor is not None or not event.implicit[0]:
                return yaml_scalars.to_value(self._resolve(event))
            return self._plain_value(event.value)
        if kind is self._yaml.AliasEvent:
            value = self._alias(event, level).value
            return value if type(value) is dict or type(value) is list else yaml_scalars.to_value(value)
        return self._collection(event, level + 1)

    def _key(self, event: Any, level: int) -> str | None:  # noqa: ANN401 - any event
        """The key that begins at *event*; ``None`` for a merge key."""
        kind = type(event)
        if kind is self._yaml.ScalarEvent:
            self._count(1)
            text, tag, plain = event.value, event.tag, event.implicit[0]
            if tag is None and event.anchor is None and plain:
                return None if text == "<<" else self._plain_key(text)
            scalar = self._resolve(event)
            return None if text == "<<" and (plain or tag == _MERGE) else yaml_scalars.to_key(scalar)
        if kind is self._yaml.AliasEvent:
            value = self._alias(event, level).value
            if type(value) is not dict and type(value) is not list:
                return yaml_scalars.to_key(value)
        else:
            self._collection(event, level + 1)
        raise self.error("a list or an object cannot be a key")

    def _collection(self, event: Any, level: int) -> Any:  # noqa: ANN401 - any event, any value
        before, outer = self._nodes, self._deepest
        self._count(1)
        self._descend(level)
        value: list[Any] | dict[str, Any] = [] if type(event) is self._yaml.SequenceStartEvent else {}
        anchor = None
        if event.anchor is not None:
            anchor = self._anchors[event.anchor] = _Anchor(value)
            self._deepest = level
        if isinstance(value, list):
            end = self._yaml.SequenceEndEvent
            while type(event := self._next()) is not end:
                value.append(self._value(event, level))
        else:
            self._lines[id(value)] = _line_of(event)
            self._fill_object(value, level)
        if anchor is not None:
            anchor.nodes, anchor.depth = self._nodes - before, self._deepest - level + 1
            self._deepest = max(outer, self._deepest)
        return value

    def _fill_object(self, value: dict[str, Any], level: int) -> None:
        end = self._yaml.MappingEndEvent
        merged: set[str] = set()
        while type(event := self._next()) is not end:
            key = self._key(event, level)
            if key is None:
                self._merge(value, merged, level)
                continue
            if key in value and key not in merged:
                self._repeated.append(DuplicateKey(_line_of(event), key))
            value[key] = self._value(self._next(), level)

    def _merge(self, value: dict[str, Any], merged: set[str], level: int) -> None:
        """Merge the keys of the next value, an object or a list of objects; the first object wins."""
        event = self._next()
        if type(event) is self._yaml.AliasEvent:
            sources = [self._alias(event, level).value]
        else:
            found = self._value(event, level)
            sources = found[::-1] if isinstance(found, list) else [found]
        for source in sources:
            if not isinstance(source, dict):
                raise self.error("map merge requires map or sequence of maps as the value")
            value.update(source)
            merged.update(source)

    def _alias(self, event: "yaml.AliasEvent", level: int) -> _Anchor:
        anchor = self._anchors.get(event.anchor or "")
        if anchor is None:
            raise self.error(f"unknown anchor {event.anchor!r} referenced")
        if not anchor.nodes:
            raise self.error(f"anchor {event.anchor!r} value contains itself")
        self._count(anchor.nodes)
        self._descend(level + anchor.depth)
        return anchor

    def _resolve(self, event: "yaml.ScalarEvent") -> yaml_scalars.Scalar:
        """Resolve a scalar with quotes, a tag or an anchor."""
        scalar: yaml_scalars.Scalar = event.value
        if event.tag is not None:
            scalar = yaml_scalars.resolve_tagged(event.value, event.tag)
        elif event.implicit[0]:
            scalar = yaml_scalars.resolve_plain(event.value)
        if event.anchor is not None:
            self._anchors[event.anchor] = _Anchor(scalar, 1)
        return scalar

    def _descend(self, level: int) -> None:
        if level > MAX_DEPTH:
            raise self.error(f"nested more than {MAX_DEPTH} levels deep {OWN_LIMIT}")
        self._deepest = max(self._deepest, level)

    def _count(self, nodes: int) -> None:
        self._nodes += nodes
        if self._nodes > MAX_NODES:
            what = f"more than {MAX_NODES:,} values and keys: split the file, or write it as JSON {OWN_LIMIT}"
            raise self.error(what)


def _line_of(event: "yaml.Event") -> int:
    return event.start_mark.line + 1 if event.start_mark else 0
