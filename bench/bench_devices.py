"""The device provider: hints as a family, the allocation, and the search for the fewest nodes."""

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import combinations
from random import Random

from alignup.align import bits
from alignup.align.devices import hints, nvidia_rule
from alignup.align.devices.choices import Pool
from alignup.align.devices.hints import CoverageFamily
from alignup.align.devices.ledger import DeviceLedger
from alignup.align.devices.near_choice import NearRequest, choose_near
from alignup.align.devices.provider import DeviceProvider, PreferencesNeededError
from alignup.align.hint import AmountFamily, Hint
from alignup.align.host import Host, Settings
from alignup.align.locality import DeviceLink, LinkKind, PciPath
from alignup.align.machine import Cpu, Device, Machine, NumaNode, PciDevice
from alignup.align.quantity import Quantity
from alignup.align.workload import Container, Pod, Resources
from bench.harness import Figure, best_cpu

GPU = "example.com/gpu"

#: devices, nodes, requested devices, budget
MACHINES = ((16, 8, 1, 0.1e-3), (16, 8, 4, 0.1e-3), (256, 64, 4, 0.3e-3), (1000, 2, 1, 0.1e-3))


def figures() -> Iterator[Figure]:
    """One figure per machine and state, then the searches for devices on several nodes."""
    for count, nodes, wanted, budget in MACHINES:
        idle = machine(bits.of([place % nodes]) for place in range(count))
        for state, ledger in (("idle", idle), ("half used", half_used(idle))):
            name = f"hints and allocation, {wanted} of {count} devices, {nodes} nodes {state}"
            yield Figure(name, best_cpu(partial(place, ledger, pod_of("new", wanted))), budget)
    shared = machine(bits.of([place % 8, place % 8 ^ 1]) for place in range(16))
    yield Figure("… of devices on two nodes each", best_cpu(partial(place, shared, pod_of("new", 1))), 0.1e-3)
    yield Figure(
        "… that the plugin was asked about", best_cpu(partial(place_as_asked, idle_asking(), pod_of("new", 2))), 0.2e-3
    )
    for name, weights in groups().items():
        need = sum(weights.values()) * 3 // 4
        yield Figure(
            f"fewest of 64 nodes, {name}", best_cpu(partial(hints.fewest_nodes, weights, need, source=GPU)), 20e-3
        )
    yield from preference_figures()


def machine(places: Iterable[bits.NodeSet], *, asking: bool = False) -> DeviceLedger:
    """Return a machine with a device for each of *places*."""
    known = [Device(GPU, f"gpu-{number}", nodes) for number, nodes in enumerate(places)]
    nodes = bits.of(node for device in known for node in bits.members(device.nodes or 0))
    return DeviceLedger.of_devices(known, nodes=nodes, preferred_allocation=[GPU] if asking else ())


def idle_asking() -> DeviceLedger:
    """Sixteen devices on eight nodes, with a plugin that supports preferred allocation."""
    return machine((bits.of([place % 8]) for place in range(16)), asking=True)


def half_used(ledger: DeviceLedger) -> DeviceLedger:
    """Return a ledger in which every other device is held by a different pod."""
    for number in range(0, len(ledger.inventories[GPU].devices), 2):
        ledger = ledger.give(f"pod-{number}", "app", devices={GPU: (f"gpu-{number}",)})
    return ledger


def groups() -> dict[str, dict[bits.NodeSet, int]]:
    """Nodes that share devices: by socket, in a ring, in rows and columns."""
    single = {1 << node: 1 for node in range(64)}
    return {
        "devices of nodes, sockets and the board": single
        | {bits.of(range(first, first + 8)): 3 for first in range(0, 64, 8)}
        | {bits.of(range(64)): 2},
        "a ring": single | {bits.of([node, (node + 1) % 64]): 2 for node in range(64)},
        "rows and columns": single
        | {bits.of(range(row * 8, row * 8 + 8)): 2 for row in range(8)}
        | {bits.of(range(column, 64, 8)): 2 for column in range(8)},
    }


def pod_of(uid: str, count: int, resource: str = GPU) -> Pod:
    """Return a pod with one container that requests *count* devices."""
    return Pod(name=uid, uid=uid, containers=(Container("app", Resources(limits={resource: Quantity(count)})),))


def place(ledger: DeviceLedger, pod: Pod) -> DeviceLedger:
    """Get the hints, then allocate on all their nodes."""
    app = pod.containers[0]
    provider = DeviceProvider(ledger.nodes)
    family = provider.hints(ledger, pod, app)[GPU]
    nodes = family.nodes if isinstance(family, AmountFamily | CoverageFamily) else None
    return provider.allocate(ledger, pod, app, affinity=Hint(nodes, preferred=True))


def place_as_asked(ledger: DeviceLedger, pod: Pod) -> DeviceLedger:
    """Like ``place``, with the plugin's answer."""
    app = pod.containers[0]
    provider = DeviceProvider(ledger.nodes)
    affinity = Hint(1 | 2, preferred=True)
    provider.hints(ledger, pod, app)
    try:
        return provider.allocate(ledger, pod, app, affinity=affinity)
    except PreferencesNeededError as needed:
        (ask,) = needed.requests
    provider = DeviceProvider(ledger.nodes, answers={ask: ask.available[-ask.size :]})
    return provider.allocate(ledger, pod, app, affinity=affinity)


def preference_figures() -> Iterator[Figure]:
    """The set of all choices of NVIDIA's plugin, and a prediction with it."""
    levels = {1: 50, 2: 40, 4: 20, 8: 10}  # DGX-2: groups of 2, 4, 8 and 16 GPUs below switches, sockets and all
    dgx2 = [
        [next(levels[n] for n in (1, 2, 4, 8) if a // (2 * n) == b // (2 * n)) for b in range(16)] for a in range(16)
    ]
    source = Random(1)
    mixed = [[0] * 16 for _ in range(16)]
    for a, b in combinations(range(16), 2):
        mixed[a][b] = mixed[b][a] = source.randrange(10, 2000)
    for name, table, count, size, budget in (
        ("8 GPUs by 3 of a DGX-2", dgx2, 8, 3, 0.5e-3),
        ("8 GPUs by 3, all links different", mixed, 8, 3, 0.5e-3),
        ("16 GPUs by 4 of a DGX-2", dgx2, 16, 4, 20e-3),
        ("16 GPUs by 4, all links different", mixed, 16, 4, 300e-3),
    ):
        action = partial(nvidia_rule.possible_answers, table, range(count), size=size)
        yield Figure(f"possible choices of NVIDIA's plugin, {name}", best_cpu(action), budget)
    host, pod = linked_host(), pod_of("new", 2, "nvidia.com/gpu")

    def predict() -> None:
        host.devices.plugin_rules._answers.clear()  # noqa: SLF001 - a new question each time
        host.predict(pod)

    decided = best_cpu(partial(host.decide, pod))
    yield Figure("… 8 GPUs by 2, more than without them in a decision", best_cpu(predict) - decided, 0.5e-3)
    yield from near_figures()


def near_figures() -> Iterator[Figure]:
    """Our own choice of GPUs and NICs, each below a switch of its own, with links that all differ."""
    source = Random(1)
    for count, gpus, nics, budget in ((8, 4, 4, 5e-3), (8, 3, 5, 5e-3), (16, 8, 0, 50e-3), (16, 8, 8, 50e-3)):
        pci = tuple(
            PciDevice(
                f"{kind:04x}:{n:02}:00.0",
                kind=(0x030200, 0x020000)[kind],
                node=2 * n // count,
                path=PciPath(
                    f"pci0000:{n // 2:02}", (f"0000:{n:02}:01.0", f"0000:{n:02}:02.0", f"{kind:04}:{n:02}:03.0")
                ),
            )
            for kind in range(2)
            for n in range(count)
        )
        pairs = combinations([device.address for device in pci[:count]], 2)
        links = tuple(DeviceLink(LinkKind.NVLINK, pair, source.randrange(1, 19)) for pair in pairs)
        machine = Machine((), (NumaNode(0), NumaNode(1)), pci=pci, links=links)
        requests = []
        for resource, take, devices in (("gpu", gpus, pci[:count]), ("nic", nics, pci[count:])):
            ids = tuple(device.address for device in devices)
            requests += [NearRequest(resource, (Pool(take, ids),), ids, ids)] if take else []
        action = partial(choose_near, machine.locality, requests)
        yield Figure(f"near devices, {gpus} of {count} GPUs and {nics} of {count} NICs", best_cpu(action), budget)


def linked_host() -> Host:
    """Eight GPUs on two NUMA nodes, of which pairs are linked."""
    pci = tuple(
        PciDevice(
            f"0000:{n:02x}:00.0",
            kind=0x030200,
            node=n // 4,
            path=PciPath(f"pci0000:{n // 4}0", (f"0000:00:{n:02x}.0",)),
            uuid=f"gpu-{n}",
        )
        for n in range(8)
    )
    pairs = [(pci[n].address, pci[n + 1].address) for n in range(0, 8, 2)]
    machine = Machine(
        cpus=tuple(Cpu(n, n, n // 4, n // 4) for n in range(8)),
        nodes=(NumaNode(0), NumaNode(1)),
        devices=tuple(Device("nvidia.com/gpu", f"gpu-{n}", node=n // 4) for n in range(8)),
        pci=pci,
        links=tuple(DeviceLink(LinkKind.NVLINK, pair) for pair in pairs),
    )
    return Host(machine, Settings())
