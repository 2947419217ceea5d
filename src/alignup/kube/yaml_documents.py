"""What the YAML parser comes across becomes documents, the way Kubernetes takes it.

Keys are always texts. Where one is set twice the last one wins, and the document tells of it. ``<<`` takes over the
keys of other objects at the place where it stands: what comes after it wins, what came before it does not. Aliases
share what they stand for, so nothing grows; they count as often as they are used, so who walks a document comes to an
end.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from alignup.align.errors import DocumentError
from alignup.kube import yaml_scalars
from alignup.kube.yaml_scalars import ScalarError

if TYPE_CHECKING:
    import yaml

MAX_NODES = 400_000  #: the most values and keys in one text
MAX_DOCUMENTS = 20_000  #: the most documents in one text
MAX_DEPTH = 100  #: how many lists and objects may stand inside one another

_MAX_DIRECTIVES = 100  # each one slows the parser down, for every other one and for every tag
_MAX_KNOWN = 4096  # words whose meaning is remembered while a text is read
_MERGE = "tag:yaml.org,2002:merge"
_NO_MERGE = "map merge requires map or sequence of maps as the value"


@dataclass(frozen=True, slots=True)
class DuplicateKey:
    """A key that was set already in its object; the last one wins."""

    line: int
    key: str


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a text.

    ``value`` is made of dicts, lists, strings, booleans, ``None`` and ``Number``. Parts of it may be shared, where the
    text has aliases: nobody should change it.
    """

    number: int  #: its place in the text, from 1; documents that hold nothing are counted
    line: int  #: where it begins, from 1
    value: Any
    repeated: tuple[DuplicateKey, ...] = ()
    lines: dict[int, int] = field(default_factory=dict, repr=False, compare=False)  #: id of an object → its line

    def line_of(self, part: object) -> int:
        """Where *part*, an object in ``value``, begins; where the document does, if that is not known."""
        return self.lines.get(id(part), self.line)


def parse_yaml(text: str) -> Iterator[Document]:
    """The documents of a YAML text, without those that hold nothing; :class:`DocumentError` ends them."""
    import yaml  # noqa: PLC0415 - who reads JSON needs none of it

    if text.count("%TAG") > _MAX_DIRECTIVES:
        raise DocumentError(f"more than {_MAX_DIRECTIVES} directives are not read", line=1)
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # in C wherever PyYAML was built with libyaml
    composer = _Composer()
    steps = composer.steps()
    try:
        for event in iter(loader(text).get_event, None):
            if document := steps[type(event)](event):
                yield document
    except ScalarError as error:
        raise composer.error(str(error), event) from None
    except yaml.MarkedYAMLError as error:
        raise DocumentError(_described(error, text), line=_line(error), document=composer.current) from None
    except yaml.reader.ReaderError as error:
        line = text.encode()[: error.position].count(b"\n") + 1
        what = f"a character that YAML cannot hold, {error.character:#x}"
        raise DocumentError(what, line=line, document=composer.current) from None
    except UnicodeDecodeError as error:
        raise DocumentError(f"not text in UTF-8: {error.reason}", line=1, document=composer.current) from None


def _described(error: "yaml.MarkedYAMLError", text: str) -> str:
    """What the parser did not like, in one line."""
    mark = error.problem_mark
    if mark and "cannot start any token" in (error.problem or ""):
        found = text[mark.index : mark.index + 1]  # a mark counts lines as YAML does, which knows more ends of them
        return "found a tab where YAML takes blanks only" if found == "\t" else f"found {found!r} where it cannot be"
    if not error.context:
        return str(error.problem)
    begun = f" that begins in line {error.context_mark.line + 1}" if error.context_mark else ""
    return f"{error.problem} {error.context}{begun}"


def _line(error: "yaml.MarkedYAMLError") -> int:
    mark = error.problem_mark or error.context_mark
    return mark.line + 1 if mark else 1


@dataclass(slots=True)
class _Anchor:
    """What an alias stands for; a scalar is not yet made a value or a key."""

    what: Any
    nodes: int = 0  #: how many it counts for; 0: its end has not come yet
    depth: int = 0  #: how many lists and objects stand inside one another


@dataclass(slots=True)
class _Open:
    """A list or object whose end has not come yet."""

    value: Any
    before: int = 0  #: nodes counted before it
    depth: int = 0  #: of what it holds
    anchor: _Anchor | None = None
    key: str | None = None  #: the key whose value comes next
    merging: bool = False  #: what comes next is no value, but objects whose keys are taken over
    merged: set[str] = field(default_factory=set)  #: keys that were


class _Composer:
    """Makes documents, one event after the other."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}  #: plain words met before, as values
        self._keys: dict[str, str] = {}  #: and as keys
        self._nodes = 0
        self._number = 0
        self._line = 0
        self._top = _Open([])
        self._open: list[_Open] = []
        self._anchors: dict[str, _Anchor] = {}
        self._repeated: list[DuplicateKey] = []
        self._lines: dict[int, int] = {}

    def steps(self) -> "dict[type[yaml.Event], Callable[[Any], Document | None]]":
        """What to do for each kind of event; the last one of a document that holds something gives it."""
        import yaml  # noqa: PLC0415 - see documents

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
        """The number of the document at hand, or of the next."""
        return self._number if self._open else self._number + 1

    def error(self, what: str, event: "yaml.Event") -> DocumentError:
        """What is wrong at *event*."""
        return DocumentError(what, line=_begun(event), document=self.current)

    def _begin_document(self, event: "yaml.Event") -> None:
        self._line = _begun(event)
        self._number += 1
        if self._number > MAX_DOCUMENTS:
            raise self.error(f"more than {MAX_DOCUMENTS:,} documents: split the file", event)
        self._top = _Open([])  # the document is its only item
        self._open = [self._top]
        self._anchors, self._repeated, self._lines = {}, [], {}

    def _end_document(self, _: "yaml.Event") -> Document | None:
        self._open = []
        value = self._top.value[0]
        if value is None:
            return None
        return Document(self._number, self._line, value, tuple(self._repeated), self._lines)

    def _scalar(self, event: "yaml.ScalarEvent") -> None:
        self._count(1, event)
        if event.tag is not None or event.anchor is not None or not event.implicit[0]:
            self._marked(event)
            return
        text = event.value
        if not self._expects_key():
            value = self._values.get(text, self)
            self._put(self._value_of(text) if value is self else value, event)
        elif text == "<<":
            self._top.merging = True
        else:
            self._key(self._keys.get(text) or self._key_of(text), event)

    def _value_of(self, text: str) -> Any:  # noqa: ANN401 - whatever a document holds
        value = yaml_scalars.to_value(yaml_scalars.resolve_plain(text))
        if len(self._values) < _MAX_KNOWN:
            self._values[text] = value
        return value

    def _key_of(self, text: str) -> str:
        key = yaml_scalars.to_key(yaml_scalars.resolve_plain(text))
        if len(self._keys) < _MAX_KNOWN:
            self._keys[text] = key
        return key

    def _marked(self, event: "yaml.ScalarEvent") -> None:
        """A word with quotes, a tag or an anchor."""
        text, tag, plain = event.value, event.tag, event.implicit[0]
        word: yaml_scalars.Scalar = text
        if tag is not None:
            word = yaml_scalars.resolve_tagged(text, tag)
        elif plain:
            word = yaml_scalars.resolve_plain(text)
        if event.anchor is not None:
            self._anchors[event.anchor] = _Anchor(word, 1)
        if text == "<<" and (plain or tag == _MERGE) and self._expects_key():
            self._top.merging = True
        else:
            self._word(word, event)

    def _word(self, word: yaml_scalars.Scalar, event: "yaml.Event") -> None:
        if self._expects_key():
            self._key(yaml_scalars.to_key(word), event)
        else:
            self._put(yaml_scalars.to_value(word), event)

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
            self._word(anchor.what, event)

    def _begin_list(self, event: "yaml.SequenceStartEvent") -> None:
        self._begin([], event)

    def _begin_object(self, event: "yaml.MappingStartEvent") -> None:
        value: dict[str, Any] = {}
        self._lines[id(value)] = _begun(event)
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
        """Something of *depth* comes next."""
        if len(self._open) - 1 + depth > MAX_DEPTH:
            raise self.error(f"nested more than {MAX_DEPTH} deep", event)
        self._top.depth = max(self._top.depth, depth)

    def _expects_key(self) -> bool:
        top = self._top
        return top.key is None and not top.merging and type(top.value) is dict

    def _key(self, key: str, event: "yaml.Event") -> None:
        top = self._top
        top.key = key
        if key in top.value and key not in top.merged:
            self._repeated.append(DuplicateKey(_begun(event), key))

    def _put(self, value: Any, event: "yaml.Event") -> None:  # noqa: ANN401 - whatever a document holds
        """*value* where one is expected: the next item of a list, or what belongs to the last key."""
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
        """Take over the keys of *value*, an object or a list of objects, of which the first wins."""
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


def _begun(event: "yaml.Event") -> int:
    return event.start_mark.line + 1 if event.start_mark else 0
