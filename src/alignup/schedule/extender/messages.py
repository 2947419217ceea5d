"""The messages of the scheduler extender protocol, version v1.

Their keys are Go's field names, with capital letters; the Kubernetes objects in them have their usual keys.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from alignup.align.errors import ParseError
from alignup.kubernetes.api.objects import ApiPod, PartialObject

MAX_SEARCHES = 32  #: each of which takes a twentieth of the time for decoding 5,000 names
MAX_NODES = 50_000  #: of one request; the largest clusters have a third of that
MAX_POD_VALUES = 200_000  #: in the JSON of a pod, by its commas; the API server's limit of 3 MB allows no such pod
MAX_VALUES = 6_000_000  #: in the JSON of all Node objects, or of all victims, by commas: some hundred MB of memory

_T = TypeVar("_T")
_NULL = b"null"


class TooLargeError(ParseError):
    """A message with more nodes or values than are read."""


class _Message(msgspec.Struct, frozen=True, gc=False, rename="pascal"):
    pass


class NodeList(msgspec.Struct, frozen=True, gc=False):
    """Node objects, with their metadata only."""

    items: tuple[PartialObject, ...] = ()


@dataclass(slots=True, eq=False)
class NodeNames(Collection[str]):
    """The names in a JSON array of thousands, decoded only if more than a few of them matter.

    Decoding and hashing all of them would take longer than most answers. What is no array of names is a ``ParseError``.
    """

    array: bytes
    searches: int  #: left before all names are decoded; 0 unless the array is plain
    _decoded: frozenset[str] | None = None

    def __contains__(self, name: object) -> bool:
        if self._decoded is None:
            if self.searches and isinstance(name, str):
                self.searches -= 1
                return b'"%s"' % name.encode() in self.array
            self._decoded = frozenset(self._decode())
        return name in self._decoded

    def __iter__(self) -> Iterator[str]:
        return iter(self._decode())

    def __len__(self) -> int:
        return self.array.count(b'"') // 2 if self.searches else len(self._decode())

    def _decode(self) -> tuple[str, ...]:
        return read_message(self.array, tuple[str, ...])


class FilterResult(_Message, frozen=True):
    """The nodes that remain, in the form of the request, and why others do not."""

    nodes: dict[str, list[dict[str, dict[str, str]]]] | None = None
    node_names: list[str] | None = None
    failed_nodes: dict[str, str] = {}  #: evicting pods may help there
    failed_and_unresolvable_nodes: dict[str, str] = {}
    error: str = ""


class ExtenderArgs(_Message, frozen=True):
    """A pod, and the nodes that are left; by name if the scheduler knows that the extender has its own cache."""

    pod: ApiPod
    nodes: NodeList | None = None
    node_names: msgspec.Raw = msgspec.Raw(_NULL)

    @classmethod
    def read(cls, data: bytes) -> "ExtenderArgs":
        """Decode a message; ``TooLargeError`` before much memory is needed, ``ParseError`` if it is not a message."""
        raw = read_message(data, _RawExtenderArgs)
        _check_values(raw.node_names, "node names", MAX_NODES)
        _check_values(raw.nodes, "values in its nodes", MAX_VALUES)
        nodes = _read_optional(raw.nodes, NodeList)
        if nodes is not None and len(nodes.items) > MAX_NODES:
            raise TooLargeError(f"the request has more than {MAX_NODES:,} nodes")
        return cls(_read_pod(raw.pod), nodes, raw.node_names)

    @property
    def names(self) -> Collection[str]:
        if memoryview(self.node_names) != _NULL:
            array = bytes(self.node_names)
            # Plain: an array of strings without escapes and commas.
            flat = array.startswith(b"[") and array.count(b"[") == 1 and b"{" not in array
            plain = flat and b"\\" not in array and array.count(b'"') == 2 * (array.count(b",") + 1)
            return NodeNames(array, MAX_SEARCHES if plain else 0)
        return tuple([node.metadata.name for node in self.nodes.items]) if self.nodes else ()

    def result(
        self, names: list[str], failed: dict[str, str] | None = None, unresolvable: dict[str, str] | None = None
    ) -> FilterResult:
        """Return the answer with these nodes, in the form of the request."""
        by_name = memoryview(self.node_names) != _NULL
        nodes = None if by_name else {"items": [{"metadata": {"name": name}} for name in names]}
        return FilterResult(nodes, names if by_name else None, failed or {}, unresolvable or {})


class _RawExtenderArgs(_Message, frozen=True):
    pod: msgspec.Raw
    nodes: msgspec.Raw = msgspec.Raw(_NULL)
    node_names: msgspec.Raw = msgspec.Raw(_NULL)


class HostPriority(_Message, frozen=True):
    host: str
    score: int  #: from 0 to 10


class BindingArgs(_Message, frozen=True):
    pod_name: str
    pod_namespace: str
    node: str
    pod_uid: str = msgspec.field(name="PodUID", default="")


class BindingResult(_Message, frozen=True):
    error: str = ""


class MetaPod(_Message, frozen=True):
    uid: str = msgspec.field(name="UID")


class MetaVictims(_Message, frozen=True):
    """Pods to evict from one node."""

    pods: tuple[MetaPod, ...] | None = ()
    violations: int = msgspec.field(name="NumPDBViolations", default=0)


class Victims(_Message, frozen=True):
    pods: tuple[PartialObject, ...] | None = ()
    violations: int = msgspec.field(name="NumPDBViolations", default=0)


class PreemptionArgs(_Message, frozen=True):
    pod: ApiPod
    node_name_to_victims: dict[str, Victims] | None = None
    node_name_to_meta_victims: dict[str, MetaVictims] | None = None

    @classmethod
    def read(cls, data: bytes) -> "PreemptionArgs":
        """Decode a message; ``TooLargeError`` before much memory is needed, ``ParseError`` if it is not a message."""
        raw = read_message(data, _RawPreemptionArgs)
        for part in (raw.node_name_to_victims, raw.node_name_to_meta_victims):
            _check_values(part, "values in its victims", MAX_VALUES)
        victims = _read_optional(raw.node_name_to_victims, dict[str, Victims])
        meta_victims = _read_optional(raw.node_name_to_meta_victims, dict[str, MetaVictims])
        if max(len(victims or ()), len(meta_victims or ())) > MAX_NODES:
            raise TooLargeError(f"the request has more than {MAX_NODES:,} nodes")
        return cls(_read_pod(raw.pod), victims, meta_victims)

    @property
    def victims(self) -> dict[str, MetaVictims]:
        """The pods that the scheduler would evict, by node; none: the scheduler need not evict any pod."""
        if self.node_name_to_meta_victims is not None:
            return self.node_name_to_meta_victims
        return {
            node: MetaVictims(tuple([MetaPod(pod.metadata.uid) for pod in victims.pods or ()]), victims.violations)
            for node, victims in (self.node_name_to_victims or {}).items()
        }


class _RawPreemptionArgs(_Message, frozen=True):
    pod: msgspec.Raw
    node_name_to_victims: msgspec.Raw = msgspec.Raw(_NULL)
    node_name_to_meta_victims: msgspec.Raw = msgspec.Raw(_NULL)


class PreemptionResult(_Message, frozen=True):
    node_name_to_meta_victims: dict[str, MetaVictims]


def _read_pod(raw: msgspec.Raw) -> ApiPod:
    _check_values(raw, "values in its pod", MAX_POD_VALUES)
    return read_message(raw, ApiPod)


def _read_optional(raw: msgspec.Raw, type_: type[_T]) -> _T | None:
    return None if memoryview(raw) == _NULL else read_message(raw, type_)


def _check_values(raw: msgspec.Raw, values: str, limit: int) -> None:
    if bytes(raw).count(b",") >= limit:
        raise TooLargeError(f"the request has more than {limit:,} {values}")


def read_message(data: bytes | msgspec.Raw, type_: type[_T]) -> _T:
    """Decode a message; ``ParseError`` if it is not one."""
    try:
        return msgspec.json.decode(data, type=type_)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ParseError(f"not a message of the scheduler extender protocol: {error}") from error
