"""The record of one admission: everything considered, chosen and rejected.

Logs, metrics, HTTP responses, explanations and history are all made from a :class:`Decision`; ``documents.decisions``
converts it to a document and back. A decision changes nothing; ``Host.apply`` applies it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple, Self, overload

from alignup.align import bits
from alignup.align.bits import CpuSet, NodeSet
from alignup.align.cpus.provider import CpuProvider
from alignup.align.devices.choices import DeviceChoices
from alignup.align.devices.provider import DeviceProvider, PreferenceRequest
from alignup.align.display import Explained, Row
from alignup.align.hint import DONT_CARE, IMPOSSIBLE, Hint, HintList, Hints, iter_subsets
from alignup.align.ledger import Ledger
from alignup.align.memory.ledger import Block
from alignup.align.memory.provider import MemoryProvider
from alignup.align.merging.merge import MergeRule
from alignup.align.settings import Policy, Scope
from alignup.align.workload import QoS
from alignup.align.workload.names import CPU


class Outcome(StrEnum):
    ADMITTED = "admitted"
    REJECTED = "rejected"
    ASKING = "asking"  #: a device plugin has to be asked first; see ``Decision.preference_requests``


class ResourceHints(NamedTuple):
    """The hints for one resource in a merge, or a provider without a preference."""

    provider: str
    resource: str | None  #: ``None``: the container requests nothing from the provider
    request: int | None  #: CPUs, bytes or devices; ``None``: unknown
    free: Mapping[int, int] | None  #: free amount by NUMA node; ``None``: unknown
    hints: Hints  #: all hints; of a decision read from a document, the hints in it
    truncated: bool = False  #: whether the document this was read from omitted hints

    @property
    def has_no_preference(self) -> bool:
        """Whether the provider accepts any NUMA nodes."""
        return self.hints == DONT_CARE


#: The number of hints per resource that documents and sentences show.
MAX_SHOWN_HINTS = 8
#: The number of sets tested to find them: on many nodes, the few that fit can be far apart.
_MAX_TESTED_SETS = 128


class ShownHints(NamedTuple):
    hints: tuple[Hint, ...]  #: in the kubelet's order; empty: it cannot be placed anywhere
    more: bool  #: whether there are more


def shown_hints(resource: ResourceHints) -> ShownHints:
    hints = resource.hints
    if isinstance(hints, HintList):
        possible_hints = () if hints == IMPOSSIBLE else tuple(hints)
        return ShownHints(possible_hints[:MAX_SHOWN_HINTS], resource.truncated or len(possible_hints) > MAX_SHOWN_HINTS)
    nodes = hints.nodes | bits.union(hints.fixed_sets)
    if 1 << nodes.bit_count() <= _MAX_TESTED_SETS:
        masks = hints.fitting_sets()
        first_hints = tuple([Hint(mask, hints.prefers(mask)) for mask in masks[:MAX_SHOWN_HINTS]])
        return ShownHints(first_hints, resource.truncated or len(masks) > MAX_SHOWN_HINTS)
    hints_that_fit: list[Hint] = []
    for tests, mask in enumerate(iter_subsets(nodes, at_least=hints.min_width)):
        if tests == _MAX_TESTED_SETS:
            return ShownHints(tuple(hints_that_fit), more=True)
        if hints.fits(mask):
            if len(hints_that_fit) == MAX_SHOWN_HINTS:
                return ShownHints(tuple(hints_that_fit), more=True)
            hints_that_fit.append(Hint(mask, hints.prefers(mask)))
    return ShownHints(tuple(hints_that_fit), more=resource.truncated)


class CollectedResources(Sequence[ResourceHints]):
    """The resources that a merge considered, collected when they are first read."""

    __slots__ = ("_collect", "_resources")

    def __init__(self, collect: Callable[[], tuple[ResourceHints, ...]]) -> None:
        self._collect: Callable[[], tuple[ResourceHints, ...]] | None = collect
        self._resources: tuple[ResourceHints, ...] = ()

    def collect(self) -> tuple[ResourceHints, ...]:
        collect = self._collect
        if collect is not None:
            self._resources = collect()
            self._collect = None  # it refers to ledgers
        return self._resources

    @overload
    def __getitem__(self, index: int) -> ResourceHints: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[ResourceHints, ...]: ...
    def __getitem__(self, index: int | slice) -> ResourceHints | tuple[ResourceHints, ...]:
        return self.collect()[index]

    def __len__(self) -> int:
        return len(self.collect())

    def __iter__(self) -> Iterator[ResourceHints]:
        return iter(self.collect())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self.collect() == tuple(other)

    __hash__ = None  # type: ignore[assignment] # amounts by node cannot be hashed either

    def __repr__(self) -> str:
        return repr(self.collect())


class MergeStep(NamedTuple):
    container: str | None  #: ``None``: the pod as a whole
    resources: Sequence[ResourceHints]  #: in the order of the providers
    width: int  #: the target width
    rule: MergeRule
    hint: Hint  #: the affinity for the providers
    runners_up: tuple[NodeSet, ...]
    accepted: bool


@dataclass(frozen=True, slots=True)
class Placement:
    container: str
    hint: Hint
    cpus: CpuSet | None = None  #: ``None``: the shared pool
    memory: tuple[Block, ...] = ()
    devices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  #: device ids by resource
    others: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  #: provider from outside → resource → text
    #: of a prediction: resource → all devices that the container may get; ``devices`` is one of these choices
    choices: Mapping[str, DeviceChoices] = field(default_factory=dict, compare=False)

    @classmethod
    def of_text(cls, container: str, hint: Hint, texts: Mapping[str, Mapping[str, str]]) -> "Placement":
        """Return the placement that ``as_text`` describes; ``ParseError`` if a text is malformed."""
        others = dict(texts)
        cpus = others.pop(CpuProvider.name, {}).get(CPU)
        blocks = []
        for type_, text in others.pop(MemoryProvider.name, {}).items():
            nodes, _, size = text.partition("=")
            blocks.append(Block(bits.parse(nodes), type_, bits.parse_integer(size)))
        devices = others.pop(DeviceProvider.name, {})
        return cls(
            container,
            hint,
            None if cpus is None else bits.parse(cpus),
            tuple(blocks),
            {resource: tuple(ids.split(",")) for resource, ids in devices.items()},
            others,
        )

    @property
    def is_certain(self) -> bool:
        """Whether the container gets exactly these devices, whatever the kubelet and its plugins choose at random."""
        return all(choices.is_certain for choices in self.choices.values())

    def as_text(self) -> dict[str, dict[str, str]]:
        """Return provider → resource → text: CPUs and devices as lists, memory as ``nodes=bytes``."""
        texts: dict[str, dict[str, str]] = {}
        if self.devices:
            texts[DeviceProvider.name] = {resource: ",".join(ids) for resource, ids in self.devices.items()}
        if self.cpus is not None:
            texts[CpuProvider.name] = {CPU: bits.show(self.cpus)}
        if self.memory:
            texts[MemoryProvider.name] = {block.type: f"{bits.show(block.nodes)}={block.size}" for block in self.memory}
        return texts | {provider: dict(resources) for provider, resources in self.others.items()}

    def to_row(self) -> Row:
        """Return what the container gets: CPUs as a list, bytes by type of memory, devices by resource."""
        sizes: dict[str, int] = {}
        for block in self.memory:
            sizes[block.type] = sizes.get(block.type, 0) + block.size
        return {
            "container": self.container,
            "nodes": "" if self.hint.nodes is None else bits.show(self.hint.nodes),
            "cpus": "shared" if self.cpus is None else bits.show(self.cpus),
            **sizes,
            **{resource: ", ".join(ids) for resource, ids in self.devices.items()},
            **{resource: text for texts in self.others.values() for resource, text in texts.items()},
        }

    def sites(self, ledger: Ledger) -> tuple[NodeSet, ...]:
        """Return the nodes of every resource that has any, without duplicates; *ledger* knows CPUs and devices.

        A device on two nodes is on either. Shared CPUs and devices without topology are nowhere.
        """
        cpus, devices = self.cpus or 0, ledger.devices
        sites = {1 << node for node, all_cpus in ledger.cpus.node_cpus.items() if cpus & all_cpus} if cpus else set()
        for block in self.memory:
            sites.update(bits.split(block.nodes) if block.size else ())
        for resource, ids in self.devices.items():
            inventory = devices.inventories[resource]
            for id_ in ids:
                if nodes := (inventory.devices[inventory.indexes[id_]].nodes or 0) & devices.nodes:
                    sites.add(nodes)
        return tuple(sorted(sites))


@dataclass(frozen=True, slots=True)
class Shortfall:
    provider: str
    resource: str
    needed: int
    free: int  #: on ``nodes``
    nodes: NodeSet | None = None  #: ``None``: the host as a whole

    @property
    def missing(self) -> int:
        """The amount that is needed and not free."""
        return self.needed - self.free

    def to_row(self) -> Row:
        """Return the amounts, and the nodes as a list; empty for the host as a whole."""
        amounts = {"resource": self.resource, "needed": self.needed, "free": self.free, "missing": self.missing}
        return amounts | {"nodes": "" if self.nodes is None else bits.show(self.nodes)}


@dataclass(frozen=True, slots=True)
class Rejection:
    """The reason for a rejection: the kubelet's reason and message, and our details."""

    reason: str  #: the kubelet's, for the pod's status
    message: str  #: the kubelet's, word for word
    container: str | None = None  #: ``None``: the pod as a whole
    provider: str | None = None  #: the provider that failed; ``None``: no set of nodes suits all of them
    shortfalls: tuple[Shortfall, ...] = ()

    def to_rows(self) -> list[Row]:
        """Return one row per shortfall, or a single one without any."""
        about: Row = {"reason": self.reason, "container": self.container or ""}
        return [about | shortfall.to_row() for shortfall in self.shortfalls] or [about]


@dataclass(frozen=True, slots=True)
class PossibleDevices:
    """What the kubelet and its device plugins may choose, where a decision names one choice of devices."""

    rejection: Rejection | None = None  #: of the pod, after some of the choices
    variants: tuple[tuple[Placement, ...], ...] = ()  #: what the containers get after other choices
    complete: bool = True  #: whether all choices that matter to later containers were tried


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision(Explained):
    uid: str
    name: str
    namespace: str
    qos: QoS
    policy: Policy
    scope: Scope
    outcome: Outcome
    steps: tuple[MergeStep, ...] = ()
    placements: tuple[Placement, ...] = ()
    rejection: Rejection | None = None
    preference_requests: tuple[PreferenceRequest, ...] = ()
    kept: bool = False  #: the pod was admitted before and keeps its allocation
    possible: PossibleDevices | None = None  #: of a prediction, if the pod gets devices
    #: the ledgers before and after, for ``Host.apply``; ``None`` in a decision read from a document
    before: Ledger | None = field(default=None, compare=False, repr=False)
    after: Ledger | None = field(default=None, compare=False, repr=False)
    #: of a rejected pod: the ledger with what its containers had got by then, if any, which a kubelet takes back later
    residue: Ledger | None = field(default=None, compare=False, repr=False)

    def __repr__(self) -> str:
        reason = f": {self.rejection.reason}" if self.rejection else ""
        return f"<Decision: {self.namespace}/{self.name} {self.outcome}{reason}>"

    def to_rows(self) -> list[Row]:
        """Return a row for each container; for a rejection, a row for each resource and NUMA node that is short."""
        pod: Row = {"pod": f"{self.namespace}/{self.name}", "outcome": str(self.outcome)}
        if self.rejection is not None:
            return [pod | row for row in self.rejection.to_rows()]
        return [pod | placement.to_row() for placement in self.placements]

    @property
    def admitted(self) -> bool:
        """Whether the pod is admitted."""
        return self.outcome is Outcome.ADMITTED

    @property
    def may_be_rejected(self) -> bool:
        """Whether it depends on a random choice of devices that the pod is admitted."""
        possible = self.possible
        return possible is not None and self.admitted and (possible.rejection is not None or not possible.complete)

    def without_ledgers(self) -> Self:
        """Return the decision without its ledgers, which would stay in memory as long as the decision."""
        steps = tuple([step._replace(resources=step.resources[:]) for step in self.steps])
        return replace(self, steps=steps, before=None, after=None, residue=None)
