"""Complete admissions in CPU time: hints, merge, allocation, fit check and the decision in memory, without files.

"With the record" includes encoding the decision as JSON, as the agent stores and returns it. The kubelet's figures are
those of its own Go code on such a machine; "files written" means that they include its state files, without fsync.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from time import process_time

from alignup.align.cpus.options import CpuSettings
from alignup.align.host import Host, Settings
from alignup.align.machine import Device, Distances, Machine
from alignup.align.memory.reserved_memory import ReservedMemory
from alignup.align.quantity import Quantity
from alignup.align.settings import Policy, TopologyOptions, TopologySettings
from alignup.align.workload import Container, Pod, Resources
from alignup.documents import codec
from alignup.documents.decisions import decision_document
from alignup.machines.synthetic import parse
from bench.harness import Figure, best_over

GIB = 1 << 30
GPU = "example.com/gpu"


def figures() -> Iterator[Figure]:
    single, lenient = Policy.SINGLE_NUMA_NODE, Policy.BEST_EFFORT
    yield one_admission("1 node, 8 CPUs, single-numa-node", 1, single, cpus=8, budget=75e-6, kubelet="75 µs")
    yield one_admission("2 nodes, single-numa-node", 2, single, budget=85e-6, kubelet="1.3 ms, files written")
    yield one_admission("2 nodes, single-numa-node, with the record", 2, single, budget=120e-6, record=True)
    yield one_admission("4 nodes, single-numa-node", 4, single, budget=0.1e-3, kubelet="2.0 ms, files written")
    yield one_admission("8 nodes, single-numa-node", 8, single, budget=0.12e-3, kubelet="6.8 ms, files written")
    yield one_admission("8 nodes, best-effort", 8, lenient, budget=0.12e-3, kubelet="5.1 s, files written")
    yield one_admission("8 nodes, best-effort, none preferred", 8, lenient, budget=None, crowded=True)
    yield one_admission("36 nodes, best-effort", 36, lenient, budget=0.2e-3)
    yield one_admission("64 nodes, best-effort", 64, lenient, budget=250e-6)
    yield one_admission("64 nodes, restricted, closest", 64, Policy.RESTRICTED, budget=2e-3, closest=True)
    yield from coming_and_going()
    yield from many_init_containers()


def host(nodes: int, policy: Policy, *, cpus: int = 128, closest: bool = False) -> Host:
    """Return a machine with this many nodes, each with memory and two GPUs."""
    shape = parse(f"pack:{nodes} numa:1 core:{max(1, cpus // 2 // nodes)} pu:2", memory=64 * GIB)
    distances = Distances({a: {b: 10 if a == b else 21 for b in range(nodes)} for a in range(nodes)})
    devices = tuple(Device(GPU, f"gpu-{number}", nodes=1 << number // 2) for number in range(2 * nodes))
    machine: Machine = replace(shape, devices=devices, distances=distances)
    reservation = {"cpu": Quantity.parse("1"), "memory": Quantity.parse("1Gi")}
    options = TopologyOptions(prefer_closest=closest)
    return Host(
        machine,
        Settings(
            topology=TopologySettings(policy=policy, options=options, limit_nodes=False),
            cpus=CpuSettings(policy="static", reservation=reservation["cpu"]),
            memory_policy="Static",
            reserved_memory=(ReservedMemory(0, {"memory": reservation["memory"]}),),
            reservation=reservation,
            max_pods=10_000,
        ),
    )


def pod(uid: str, *, cpus: float = 4, memory: str = "4Gi", gpus: int = 1) -> Pod:
    """Return a Guaranteed pod with one container."""
    amounts = {"cpu": Quantity.parse(str(cpus)), "memory": Quantity.parse(memory)}
    if gpus:
        amounts[GPU] = Quantity.parse(str(gpus))
    return Pod(name=uid, uid=uid, containers=(Container("app", Resources(amounts, amounts)),))


def one_admission(  # noqa: PLR0913 - one figure
    name: str,
    nodes: int,
    policy: Policy,
    *,
    budget: float | None,
    cpus: int = 128,
    kubelet: str = "",
    crowded: bool = False,
    closest: bool = False,
    record: bool = False,
) -> Figure:
    """Admit a pod with 4 CPUs, 4 GiB and a device on a host with some pods; *crowded*: one that fits no single node."""
    node = host(nodes, policy, cpus=max(cpus, 8 * nodes), closest=closest)
    for number in range(nodes if crowded else 2 if cpus > 8 else 0):
        node.admit(pod(f"before-{number}", cpus=12, memory="1Gi", gpus=0) if crowded else pod(f"before-{number}"))
    start = node.ledger

    def new_pods() -> list[Pod]:
        return [pod("new", cpus=8, memory="1Gi") if crowded else pod("new") for _ in range(10)]

    def admit(new: Pod) -> object:
        node.ledger = start
        decision = node.admit(new)
        return codec.encode(decision_document(decision)) if record else decision

    decision = node.decide(new_pods()[0])
    assert decision.admitted, decision.rejection
    note = f"kubelet {kubelet}" if kubelet else f"{decision.steps[0].rule.name}"
    return Figure(f"admission, {name}", best_over(new_pods, admit), budget, note)


def coming_and_going() -> Iterator[Figure]:
    """Admit ten thousand pods on 8 nodes and 256 CPUs; each stays for a while."""
    random = Random(1)
    shapes = [(cpus, memory, gpus) for cpus in (1, 2, 4, 8) for memory in ("1Gi", "4Gi", "12Gi") for gpus in (0, 1)]
    chosen = random.choices(shapes, k=10_000)
    spent, admitted = min(one_trace(chosen) for _ in range(3))
    yield Figure("a trace of 10,000 pods, per admission", spent / len(chosen), 1 / 3000, f"{admitted} admitted")


def one_trace(chosen: list[tuple[int, str, int]]) -> tuple[float, int]:
    """Return the duration of one run, and the number of admitted pods."""
    node = host(8, Policy.BEST_EFFORT, cpus=256)
    pods = [pod(f"pod-{number}", cpus=c, memory=m, gpus=g) for number, (c, m, g) in enumerate(chosen)]
    running: deque[str] = deque()
    admitted = 0
    start = process_time()
    for each in pods:
        if node.admit(each).admitted:
            admitted += 1
            running.append(each.uid)
        if len(running) > 40:
            node.release(running.popleft())
    return process_time() - start, admitted


def many_init_containers() -> Iterator[Figure]:
    """Admit a pod with 6,000 init containers, as many as an API object has room for."""
    amounts = {"cpu": Quantity.parse("2"), "memory": Quantity.parse("1Mi"), GPU: Quantity.parse("1")}
    init = tuple(Container(f"init-{number}", Resources(amounts, amounts)) for number in range(6000))

    def new_pods() -> list[Pod]:
        return [replace(pod("many"), init=init)]

    node = host(2, Policy.SINGLE_NUMA_NODE)
    assert node.decide(new_pods()[0]).admitted
    spent = best_over(new_pods, node.decide, rounds=3)
    yield Figure("a pod with 6,000 init containers", spent, 2.5, f"{spent / len(init) * 1e6:.0f} µs per container")
