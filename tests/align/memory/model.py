"""Machines and pods for the memory tests in a few letters, and the kubelet's hints written out the slow way."""

from collections.abc import Collection, Mapping, Sequence

from alignup.align import bits
from alignup.align.bits import NodeSet
from alignup.align.hint import Hint, HintList, HintsByResource, subsets
from alignup.align.machine import HugePages, NumaNode
from alignup.align.memory.hints import MemoryHintFamily
from alignup.align.memory.ledger import MemoryLedger, Sizes
from alignup.align.memory.provider import MemoryPolicy, MemoryProvider, MemorySettings
from alignup.align.workload import Container, Pod
from tests.strategies_pods import guaranteed

GIB = 1 << 30
PAGE = 2 << 20
PAGES = "hugepages-2Mi"
MEMORY = "memory"

STATIC = MemorySettings(MemoryPolicy.STATIC)
AS_ONE = MemorySettings(MemoryPolicy.STATIC, pod_level_managers=True)
FAULTY = MemorySettings(MemoryPolicy.STATIC, kubelet_faults=True)

ANYWHERE = Hint(None, preferred=False)


def idle(*gib: int, pages: Mapping[int, int] | None = None) -> MemoryLedger:
    """Nodes 0, 1, … with that many GiB of memory each, and besides that many 2 MiB pages on some."""
    counts = pages or {}
    nodes = [
        NumaNode(
            node, size * GIB + counts.get(node, 0) * PAGE, (HugePages(PAGE, counts[node]),) if node in counts else ()
        )
        for node, size in enumerate(gib)
    ]
    return MemoryLedger.of_machine(nodes, {})


def app(name: str, memory: str, pages: str | None = None, *, sidecar: bool = False) -> Container:
    """A container that asks for memory, and perhaps for huge pages."""
    texts = {"cpu": "1", MEMORY: memory} | ({PAGES: pages} if pages else {})
    return guaranteed(name, texts, sidecar=sidecar)


def pod(uid: str, *containers: Container, init: Sequence[Container] = ()) -> Pod:
    return Pod(name=uid, uid=uid, init=tuple(init), containers=containers)


def on(*nodes: int, preferred: bool = False) -> Hint:
    return Hint(bits.of(nodes), preferred)


def placed(
    ledger: MemoryLedger, made: Pod, affinity: Hint = ANYWHERE, settings: MemorySettings = STATIC
) -> MemoryLedger:
    """The ledger with all containers of a pod placed."""
    for container in made.all_containers:
        ledger = MemoryProvider(settings).allocate(ledger, made, container, affinity=affinity)
    return ledger


def retain(ledger: MemoryLedger, active: Collection[str]) -> MemoryLedger:
    """The ledger without pods that are not *active*."""
    for uid in (ledger.held.keys() | ledger.pod_held.keys()) - set(active):
        for name in ledger.held.get(uid, {"": ()}):
            ledger = ledger.release(uid, name)
    return ledger


def nodes_of(ledger: MemoryLedger, uid: str, container: str) -> NodeSet:
    """The nodes of a container's memory."""
    return bits.union(block.nodes for block in ledger.blocks(uid, container) or ())


def spelled(answer: HintsByResource) -> tuple[Hint, ...]:
    """The hints for memory in an answer, one by one."""
    options = answer.get(MEMORY) if answer else None
    return tuple(HintList.of_family(options)) if isinstance(options, MemoryHintFamily) else ()


def hints(ledger: MemoryLedger, need: Sizes, uid: str) -> dict[NodeSet, bool]:
    """The kubelet's hints, by going through all sets of nodes: whether each set that fits is preferred."""
    smallest = len(ledger.nodes)
    fitting = []
    for mask in subsets(bits.of(ledger.nodes)):
        if any(ledger.allocatable_on(mask, type_) < size for type_, size in need.items()):
            continue
        smallest = min(smallest, mask.bit_count())
        if _open_to(ledger, mask) and _has(ledger, mask, need, uid):
            fitting.append(mask)
    return {mask: mask.bit_count() == smallest for mask in fitting}


def _open_to(ledger: MemoryLedger, mask: NodeSet) -> bool:
    nodes = [ledger.nodes[node] for node in bits.members(mask)]
    if len(nodes) == 1:
        return nodes[0].cells.bit_count() == 1
    return all(node.cells == mask for node in nodes if node.assignments)


def _has(ledger: MemoryLedger, mask: NodeSet, need: Sizes, uid: str) -> bool:
    again = ledger.reusable_by(uid).get(mask, {})
    return all(ledger.free(mask, type_) + again.get(type_, 0) >= size for type_, size in need.items())
