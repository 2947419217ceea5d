"""The nodes of a cluster in brief, for its page: what each has on its NUMA nodes, and how they are found and sorted."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from alignup.align.workload.names import CPU, MEMORY, is_hugepages
from alignup.picture.numa_bars import NumaBars, ResourceBar, add_bars, sum_bars
from alignup.placement.verdict import DEFECT

POLICIES = ("none", "best-effort", "restricted", "single-numa-node")
MAX_COLUMNS = 5  #: resources that have a column in the table of nodes
HOSTNAME = "kubernetes.io/hostname"  #: a label that repeats the name


@dataclass(slots=True, kw_only=True)
class NodeCard:
    """A node in brief."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    policy: str = ""  #: empty: unknown
    scope: str = ""
    pods: int = 0
    numa: tuple[NumaBars, ...] = ()
    largest: Mapping[str, int] = field(default_factory=dict)  #: the largest request that one container gets aligned
    unknown: str = ""  #: why the state is unknown
    restrictions: tuple[str, ...] = ()
    serial: int = 0  #: rises with every change of any node

    totals: Mapping[str, ResourceBar] = field(init=False, compare=False)  #: of all NUMA nodes, by resource
    free: int = field(init=False, compare=False)  #: free CPUs, stranded ones included
    #: CPUs and devices that are free, and that no aligned container can get
    stranded: int = field(init=False, compare=False)
    stranded_devices: Mapping[str, int] = field(init=False, compare=False)
    encoded: bytes = field(init=False, compare=False, default=b"")  #: for the script of the page; empty: not yet

    def __post_init__(self) -> None:
        """Count once what queries compare again and again."""
        self.totals = sum_bars(self.numa)
        cpus = self.totals.get(CPU, ResourceBar(CPU))
        self.free = cpus.free + cpus.stranded
        self.stranded = sum(bar.stranded for bar in self.totals.values())
        stranded_totals = {name: bar.stranded for name, bar in self.totals.items() if bar.stranded}
        self.stranded_devices = {name: count for name, count in stranded_totals.items() if name not in {CPU, MEMORY}}

    def row(self, resources: dict[str, int], labels: dict[str, int]) -> list[Any]:
        """Return the card for the script; *resources* and *labels* number what is new, too.

        Name, policy, pods, why the state is unknown, restrictions, labels, NUMA nodes (for each resource what is
        reserved, held, stranded and free), and the largest aligned requests by resource.
        """
        numa = []
        for node in self.numa:
            cells: dict[int, list[int]] = {}
            for bar in node.bars:
                number = resources.setdefault(bar.resource, len(resources))
                cells[number] = [bar.reserved, bar.held, bar.stranded, bar.free]
            numa.append([cells.get(number, 0) for number in range(max(cells, default=-1) + 1)])
        pairs = [f"{key}={value}" for key, value in self.labels.items() if key != HOSTNAME]
        numbers = [labels.setdefault(pair, len(labels)) for pair in pairs]
        largest = {resources.setdefault(name, len(resources)): size for name, size in self.largest.items()}
        return [self.name, self.policy, self.pods, self.unknown, self.restrictions, numbers, numa, largest]


def failed_row(node: str) -> list[Any]:
    """Return the row of a node whose card raises an error."""
    return [node, "", 0, DEFECT, [], [], [], {}]


@dataclass(frozen=True, slots=True, kw_only=True)
class CardQuery:
    """A selection of nodes, and their order."""

    sort: str = "name"
    policy: str = ""
    free: int = 0  #: at least so many free CPUs
    stranded: bool = False  #: only with something stranded
    text: str = ""  #: words that the name contains, or labels: key=value
    offset: int = 0

    def parameters(self, offset: int | None) -> dict[str, str | int | None]:
        return {
            "sort": self.sort if self.sort != "name" else None,
            "policy": self.policy or None,
            "free": self.free or None,
            "stranded": "yes" if self.stranded else None,
            "q": self.text or None,
            "offset": offset or None,
        }


SORTS = {
    "name": ("Name", lambda card: card.name),
    "free": ("Most free CPUs", lambda card: (-card.free, card.name)),
    "largest": ("Largest aligned CPU request", lambda card: (-card.largest.get(CPU, 0), card.name)),
    "stranded": ("Most stranded", lambda card: (-card.stranded, card.name)),
    "pods": ("Most pods", lambda card: (-card.pods, card.name)),
}


def read_query(parameters: Mapping[str, str]) -> CardQuery:
    """Return the query; what cannot be read is left out."""

    def number(name: str) -> int:
        text = parameters.get(name, "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 8 else 0

    sort, policy = parameters.get("sort", "name"), parameters.get("policy", "")
    return CardQuery(
        sort=sort if sort in SORTS else "name",
        policy=policy if policy in {*POLICIES, "unknown"} else "",
        free=number("free"),
        stranded=parameters.get("stranded") == "yes",
        text=parameters.get("q", "")[:500],
        offset=number("offset"),
    )


def select_cards(cards: Iterable[NodeCard], query: CardQuery) -> list[NodeCard]:
    words = query.text.split()

    def matches(card: NodeCard, word: str) -> bool:
        key, equals, value = word.partition("=")
        return card.labels.get(key) == value if equals else word in card.name

    def is_selected(card: NodeCard) -> bool:
        return (
            query.policy in {"", card.policy or "unknown"}
            and card.free >= query.free
            and (card.stranded > 0 or not query.stranded)
            and all(matches(card, word) for word in words)
        )

    return sorted(filter(is_selected, cards), key=SORTS[query.sort][1])


class Capacity(NamedTuple):
    """A resource of the whole cluster."""

    bar: ResourceBar
    largest: int | None  #: the largest aligned request that a node still admits; ``None``: no manager aligns it
    node: str  #: that admits it


def measure_capacity(cards: Iterable[NodeCard]) -> dict[str, Capacity]:
    """Return what all nodes have together, by resource: CPUs, memory and devices first."""
    totals: dict[str, ResourceBar] = {}
    largest: dict[str, tuple[int, str]] = {}
    for card in cards:
        for resource, bar in card.totals.items():
            totals[resource] = add_bars(totals.get(resource, ResourceBar(resource)), bar)
        for resource, size in card.largest.items():
            if size > largest.get(resource, (-1, ""))[0]:
                largest[resource] = size, card.name
    order = sorted(totals, key=lambda name: (name != CPU, name != MEMORY, is_hugepages(name), name))
    return {name: Capacity(totals[name], *largest.get(name, (None, ""))) for name in order}


def count_stranded_devices(cards: Iterable[NodeCard], *, gpus: bool) -> int:
    """Count the stranded devices; *gpus*: of resources whose names contain "gpu" only."""
    devices = [item for card in cards if card.stranded_devices for item in card.stranded_devices.items()]
    return sum(count for name, count in devices if not gpus or "gpu" in name)


class UnknownGroup(NamedTuple):
    """Nodes whose state is unknown for one reason."""

    reason: str
    nodes: Sequence[str]
    remedy: str


def group_unknown(cards: Iterable[NodeCard], *, no_report: str) -> list[UnknownGroup]:
    """Return the nodes without a known state by reason, the most frequent first, and what to do."""
    groups: dict[str, list[str]] = {}
    for card in cards:
        if card.unknown:
            groups.setdefault(card.unknown, []).append(card.name)
    advice = "No observer reports this node. Run alignup observe there: see that its DaemonSet has a ready pod on it."
    other = "See the log of alignup observe on this node; alignup doctor finds most causes."
    remedies = {
        no_report: advice,
        DEFECT: "See the log of alignup schedule, and report what it says.",
    }
    return [
        UnknownGroup(reason, sorted(names), remedies.get(reason, other))
        for reason, names in sorted(groups.items(), key=lambda pair: (-len(pair[1]), pair[0]))
    ]
