"""The memory provider: hints as a family and the allocation, on an idle and on a busy machine."""

from collections.abc import Iterator
from functools import partial

from alignup.align.hint import Hint
from alignup.align.machine import HugePages, NumaNode
from alignup.align.memory.hints import MemoryHintFamily
from alignup.align.memory.ledger import MemoryLedger
from alignup.align.memory.provider import MemoryPolicy, MemoryProvider, MemorySettings
from alignup.align.quantity import Quantity
from alignup.align.workload import Container, Pod, Resources
from bench.harness import Figure, best_cpu

GIB = 1 << 30
PROVIDER = MemoryProvider(MemorySettings(MemoryPolicy.STATIC))

#: nodes with CPUs, further nodes (memory of GPUs), budget
MACHINES = ((2, 0, 0.03e-3), (8, 0, 0.15e-3), (2, 34, 1e-3))


def figures() -> Iterator[Figure]:
    """One figure per machine, state and kind of request, and for allocations that search for nodes."""
    small = guaranteed("small", memory="10Gi")
    hints = partial(PROVIDER.hints, machine(2, 0), small, small.containers[0])
    yield Figure("hints alone, 2 nodes idle, 1 type", best_cpu(hints), 3.3e-6, "kubelet 3.3 µs")
    for near, far, budget in MACHINES:
        idle = machine(near, far)
        for kind, pod in requests(near + far).items():
            for state, ledger in (("idle", idle), ("busy", busy(idle))):
                name = f"hints and allocation, {near + far} nodes {state}, {kind}"
                yield Figure(name, best_cpu(partial(place, ledger, pod, chosen(ledger, pod))), budget)
        last = Hint(1 << near + far - 1, preferred=False)
        for how, affinity in (("nodes of its own choice", Hint(None, preferred=False)), ("extended from one", last)):
            wide = guaranteed("wide", memory=f"{245 + far * 10}Gi", **{"hugepages-2Mi": "512Mi"})
            name = f"hints and allocation, {near + far} nodes idle, {how}"
            yield Figure(name, best_cpu(partial(place, idle, wide, affinity)), budget if near + far > 2 else None)


def machine(near: int, far: int) -> MemoryLedger:
    """Return a machine with *near* nodes that have memory and huge pages, and *far* ones that have memory alone."""
    pages = (HugePages(2 << 20, 1024), HugePages(GIB, 8))
    nodes = [NumaNode(node, 240 * GIB + node * GIB, pages) for node in range(near)]
    nodes += [NumaNode(node, 96 * GIB, (HugePages(2 << 20, 0), HugePages(GIB, 0))) for node in range(near, near + far)]
    return MemoryLedger.of_machine(nodes, {0: {"memory": GIB}})


def busy(ledger: MemoryLedger) -> MemoryLedger:
    """Return a ledger in which every other node is used by a different pod."""
    for node in list(ledger.nodes)[1::2]:
        pod = guaranteed(f"pod-{node}", memory="1Gi")
        affinity = Hint(1 << node, preferred=True)
        ledger = PROVIDER.allocate(ledger, pod, pod.containers[0], affinity=affinity)
    return ledger


def requests(nodes: int) -> dict[str, Pod]:
    """Return a small request, one of several types, and one for several nodes if there are more than two."""
    pods = {
        "1 type": guaranteed("small", memory="10Gi"),
        "3 types": guaranteed("mixed", memory="10Gi", **{"hugepages-2Mi": "512Mi", "hugepages-1Gi": "4Gi"}),
    }
    if nodes > 2:
        wide = {"hugepages-2Mi": "512Mi", "hugepages-1Gi": "4Gi"}
        pods["3 types on several nodes"] = guaranteed("wide", memory="500Gi", **wide)
    return pods


def guaranteed(uid: str, **amounts: str) -> Pod:
    """Return a pod with one container and these requests and limits."""
    parsed = {name: Quantity.parse(text) for name, text in {"cpu": "1", **amounts}.items()}
    return Pod(name=uid, uid=uid, containers=(Container("app", Resources(requests=parsed, limits=parsed)),))


def chosen(ledger: MemoryLedger, pod: Pod) -> Hint:
    """Return the best hint, if memory were the only resource."""
    answer = PROVIDER.hints(ledger, pod, pod.containers[0])
    assert answer, "the request fits"
    sets = answer["memory"]
    assert isinstance(sets, MemoryHintFamily)
    nodes = sets.best()
    assert nodes is not None
    return Hint(nodes, sets.prefers(nodes))


def place(ledger: MemoryLedger, pod: Pod, affinity: Hint) -> MemoryLedger:
    """Get the hints, then allocate on the chosen nodes."""
    app = pod.containers[0]
    PROVIDER.hints(ledger, pod, app)
    return PROVIDER.allocate(ledger, pod, app, affinity=affinity)
