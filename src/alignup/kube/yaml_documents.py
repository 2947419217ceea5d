"""Builds documents from YAML parser events, as Kubernetes does.

Keys are always strings. The last of duplicate keys wins, and the document records the duplicates. ``<<`` merges the
keys of other objects at its position: later keys override them, earlier ones do not. Aliases share their value, so
nothing grows; each use counts towards the limits, so walking a document always ends.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from alignup.align.errors import DocumentError
from alignup.kube import yaml_scalars
from alignup.kube.yaml_scalars import ScalarError

if TYPE_CHECKING:
    import yaml

MAX_NODES = 400_000  #: values and keys in one text
MAX_DOCUMENTS = 20_000  #: in one text
MAX_DEPTH = 100  #: of nested lists and objects

_MAX_DIRECTIVES = 100  # each slows the parser down for every other directive and every tag
_MAX_CACHED = 4096  # resolved scalars
_MERGE = "tag:yaml.org,2002:merge"
_NO_MERGE = "map merge requires map or sequence of maps as the value"


@dataclass(frozen=True, slots=True)
class DuplicateKey:
    line: int
    key: str


@dataclass(frozen=True, slots=True)
class ParsedDocument:
    """One document of a text.

    ``value`` consists of dicts, lists, strings, booleans, ``None`` and ``NumberLiteral``. Aliases share parts of it: do
    not change it.
    """

    number: int  #: its position in the text, from 1, counting empty documents
    line: int  #: where it begins, from 1
    value: Any
    repeated: tuple[DuplicateKey, ...] = ()
    lines: dict[int, int] = field(default_factory=dict, repr=False, compare=False)  #: id of an object → its line

    def line_of(self, part: object) -> int:
        """Where *part*, an object in ``value``, begins; if unknown, where the document does."""
        return self.lines.get(id(part), self.line)


def parse_yaml(text: str) -> Iterator[ParsedDocument]:
    """The documents of a YAML text that are not empty; :class:`DocumentError` for the first invalid one."""
    import yaml  # noqa: PLC0415 - not needed for JSON

    if text.count("%TAG") > _MAX_DIRECTIVES:
        raise DocumentError(f"more than {_MAX_DIRECTIVES} directives", line=1)
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C loader if PyYAML has it
    composer = _Composer()
    handlers = composer.handlers()
    try:
        for event in iter(loader(text).get_event, None):
            if document := handlers[type(event)](event):
                yield document
    except ScalarError as error:
        raise composer.error(str(error), event) from None
    except yaml.MarkedYAMLError as error:
        raise DocumentError(_message(error, text), line=_line(error), document=composer.current) from None
    except yaml.reader.ReaderError as error:
        line = text.encode()[: error.position].count(b"\n") + 1
        what = f"character {error.character:#x} is not allowed in YAML"
        raise DocumentError(what, line=line, document=composer.current) from None
    except UnicodeDecodeError as error:
        raise DocumentError(f"not valid UTF-8: {error.reason}", line=1, document=composer.current) from None


def _message(error: "yaml.MarkedYAMLError", text: str) -> str:
    """The parser's error in one line."""
    mark = error.problem_mark
    if mark and "cannot start any token" in (error.problem or ""):
        found = text[mark.index : mark.index + 1]
        return "found a tab where YAML allows only spaces" if found == "\t" else f"unexpected character {found!r}"
    if not error.context:
        return str(error.problem)
    start = f" that begins on line {error.context_mark.line + 1}" if error.context_mark else ""
    return f"{error.problem} {error.context}{start}"


def _line(error: "yaml.MarkedYAMLError") -> int:
    mark = error.problem_mark or error.context_mark
    return mark.line + 1 if mark else 1


@dataclass(slots=True)
class _Anchor:
    """The value of an alias; a scalar is not yet converted to a value or a key."""

    what: Any
    nodes: int = 0  #: how many nodes it counts for; 0: not complete
    depth: int = 0  #: of nested lists and objects


@dataclass(slots=True)
class _Open:
    """An incomplete list or object."""

    value: Any
    before: int = 0  #: nodes counted before it
    depth: int = 0  #: of its contents
    anchor: _Anchor | None = None
    key: str | None = None  #: the key whose value comes next
    merging: bool = False  #: the next value is merged (``<<``)
    merged: set[str] = field(default_factory=set)  #: keys that come from a merge


class _Composer:
    """Builds documents event by event."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}  #: plain scalars resolved before, as values
        self._keys: dict[str, str] = {}  #: the same as keys
        self._nodes = 0
        self._number = 0
        self._line = 0
        self._top = _Open([])
        self._open: list[_Open] = []
        self._anchors: dict[str, _Anchor] = {}
        self._repeated: list[DuplicateKey] = []
        self._lines: dict[int, int] = {}

    def handlers(self) -> "dict[type[yaml.Event], Callable[[Any], ParsedDocument | None]]":
        """Event type → handler; the handler of a document's last event returns the document."""
        import yaml  # noqa: PLC0415 - see parse_yaml

        return {
            yaml.StreamStartEvent: lambda _: None,
            yaml.StreamEndEvent: lambda _: None,
            yaml.DocumentStartEvent: self._begin_document,
            yaml.DocumentEndEvent: self._end_document,
            yaml.ScalarEvent: self._scalar,
            yaml.AliasEvent: self._alias,
            yaml.SequenceStartEvent: self._begin_list,
            yaml.SequenceEndEvent: self._end,
            yaml.MappingStartEvent: self._begin_object,
            yaml.MappingEndEvent: self._end,
        }

    @property
    def current(self) -> int:
        """The number of the current document, or of the next one."""
        return self._number if self._open else self._number + 1

    def error(self, what: str, event: "yaml.Event") -> DocumentError:
        return DocumentError(what, line=_line_of(event), document=self.current)

    def _begin_document(self, event: "yaml.Event") -> None:
        self._line = _line_of(event)
        self._number += 1
        if self._number > MAX_DOCUMENTS:
            raise self.error(f"more than {MAX_DOCUMENTS:,} documents: split the file", event)
        self._top = _Open([])  # a list whose only item is the document
        self._open = [self._top]
        self._anchors, self._repeated, self._lines = {}, [], {}

    def _end_document(self, _: "yaml.Event") -> ParsedDocument | None:
        self._open = []
        value = self._top.value[0]
        if value is None:
            return None
        return ParsedDocument(self._number, self._line, value, tuple(self._repeated), self._lines)

    def _scalar(self, event: "yaml.ScalarEvent") -> None:
        self._count(1, event)
        if event.tag is not None or event.anchor is not None or not event.implicit[0]:
            self._decorated_scalar(event)
            return
        text = event.value
        if not self._expects_key():
            value = self._values.get(text, self)
            self._put(self._value_of(text) if value is self else value, event)
        elif text == "<<":
            self._top.merging = True
        else:
            self._key(self._keys.get(text) or self._key_of(text), event)

    def _value_of(self, text: str) -> Any:  # noqa: ANN401 - any value of a document
        value = yaml_scalars.to_value(yaml_scalars.resolve_plain(text))
        if len(self._values) < _MAX_CACHED:
            self._values[text] = value
        return value

    def _key_of(self, text: str) -> str:
        key = yaml_scalars.to_key(yaml_scalars.resolve_plain(text))
        if len(self._keys) < _MAX_CACHED:
            self._keys[text] = key
        return key

    def _decorated_scalar(self, event: "yaml.ScalarEvent") -> None:
        """A scalar with quotes, a tag or an anchor."""
        text, tag, plain = event.value, event.tag, event.implicit[0]
        scalar: yaml_scalars.Scalar = text
        if tag is not None:
            scalar = yaml_scalars.resolve_tagged(text, tag)
        elif plain:
            scalar = yaml_scalars.resolve_plain(text)
        if event.anchor is not None:
            self._anchors[event.anchor] = _Anchor(scalar, 1)
        if text == "<<" and (plain or tag == _MERGE) and self._expects_key():
            self._top.merging = True
        else:
            self._add_scalar(scalar, event)

    def _add_scalar(self, scalar: yaml_scalars.Scalar, event: "yaml.Event") -> None:
        if self._expects_key():
            self._key(yaml_scalars.to_key(scalar), event)
        else:
            self._put(yaml_scalars.to_value(scalar), event)

    def _alias(self, event: "yaml.AliasEvent") -> None:
        anchor = self._anchors.get(event.anchor or "")
        if anchor is None:
            raise self.error(f"unknown anchor {event.anchor!r} referenced", event)
        if not anchor.nodes:
            raise self.error(f"anchor {event.anchor!r} value contains itself", event)
        self._count(anchor.nodes, event)
        self._deepen(anchor.depth, event)
        if self._top.merging and type(anchor.what) is not dict:
            raise self.error(_NO_MERGE, event)
        if type(anchor.what) is dict or type(anchor.what) is list:
            self._put(anchor.what, event)
        else:
            self._add_scalar(anchor.what, event)

    def _begin_list(self, event: "yaml.SequenceStartEvent") -> None:
        self._begin([], event)

    def _begin_object(self, event: "yaml.MappingStartEvent") -> None:
        value: dict[str, Any] = {}
        self._lines[id(value)] = _line_of(event)
        self._begin(value, event)

    def _begin(self, value: "list[Any] | dict[str, Any]", event: "yaml.CollectionStartEvent") -> None:
        opened = _Open(value, self._nodes)
        self._count(1, event)
        if event.anchor is not None:
            opened.anchor = self._anchors[event.anchor] = _Anchor(value)
        self._deepen(1, event)
        self._open.append(opened)
        self._top = opened

    def _end(self, event: "yaml.CollectionEndEvent") -> None:
        ended = self._open.pop()
        self._top = self._open[-1]
        if ended.anchor is not None:
            ended.anchor.nodes = self._nodes - ended.before
            ended.anchor.depth = ended.depth + 1
        self._top.depth = max(self._top.depth, ended.depth + 1)
        self._put(ended.value, event)

    def _deepen(self, depth: int, event: "yaml.Event") -> None:
        """Account for a nested value of *depth*."""
        if len(self._open) - 1 + depth > MAX_DEPTH:
            raise self.error(f"nested more than {MAX_DEPTH} levels deep", event)
        self._top.depth = max(self._top.depth, depth)

    def _expects_key(self) -> bool:
        top = self._top
        return top.key is None and not top.merging and type(top.value) is dict

    def _key(self, key: str, event: "yaml.Event") -> None:
        top = self._top
        top.key = key
        if key in top.value and key not in top.merged:
            self._repeated.append(DuplicateKey(_line_of(event), key))

    def _put(self, value: Any, event: "yaml.Event") -> None:  # noqa: ANN401 - any value of a document
        """Add *value* to the current list, or to the current object under the last key."""
        top = self._top
        if type(top.value) is list:
            top.value.append(value)
        elif top.key is not None:
            top.value[top.key] = value
            top.key = None
        elif top.merging:
            self._merge(value, event)
        else:
            raise self.error("a list or an object cannot be a key", event)

    def _merge(self, value: object, event: "yaml.Event") -> None:
        """Merge the keys of *value*, an object or a list of objects; the first object wins."""
        top = self._top
        top.merging = False
        sources = value[::-1] if isinstance(value, list) else [value]
        for source in sources:
            if not isinstance(source, dict):
                raise self.error(_NO_MERGE, event)
            top.value.update(source)
            top.merged.update(source)

    def _count(self, nodes: int, event: "yaml.Event") -> None:
        self._nodes += nodes
        if self._nodes > MAX_NODES:
            raise self.error(f"more than {MAX_NODES:,} values and keys: split the file, or write it as JSON", event)


def _line_of(event: "yaml.Event") -> int:
    return event.start_mark.line + 1 if event.start_mark else 0
