"""Verdicts about a pod on 5,000 and 20,000 hosts, with the budgets of a scheduler's filter, and the memory of both."""

from collections.abc import Hashable, Iterator
from dataclasses import replace
from functools import partial
from math import inf
from random import Random

from alignup.align.host import Host
from alignup.align.ledger import Ledger
from alignup.align.machine import Device
from alignup.align.settings import Policy
from alignup.align.workload import Pod
from alignup.documents.codec import decode, encode
from alignup.documents.host_state import HostStateDocument, HostStateObject
from alignup.documents.host_state.writer import ledger_document, machine_document, to_object
from alignup.kubernetes import configuration
from alignup.kubernetes.api.host_states import host_state_reader
from alignup.kubernetes.manifests.documents import to_json
from alignup.machines.synthetic import parse
from alignup.placement.cluster import Cluster
from alignup.placement.host_report import HostReport, PodStage
from bench.bench_admit import GPU, host, pod
from bench.harness import Figure, cpu_time, peak_megabytes, run_in_fresh_process

HOSTS, MORE_HOSTS = 5000, 20_000
STATES = 300
PODS = 30
MEMBERS = 64
ROUNDS = 3
CONFIGURATION = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "topologyManagerPolicy": "single-numa-node",
    "cpuManagerPolicy": "static",
    "memoryManagerPolicy": "Static",
    "systemReserved": {"cpu": "1", "memory": "1Gi"},
    "evictionHard": {"nodefs.available": "10%"},
    "reservedMemory": [{"numaNode": 0, "limits": {"memory": "1Gi"}}],
}


def figures() -> Iterator[Figure]:
    cluster = many_hosts(STATES)
    yield Figure(f"filter, a new shape, {HOSTS} hosts in {STATES} states", new_shapes(cluster), 120e-3)
    yield Figure("filter, a known shape, one host changed", one_changed(cluster), 5e-3)
    yield Figure("the best 16 hosts for a known shape", ranked(cluster), None)
    different = many_hosts(HOSTS)
    yield Figure("filter, a new shape, all hosts different", new_shapes(different), 1.0)
    yield Figure("filter, a known shape, all hosts different", one_changed(different), 5e-3)
    yield from gangs()
    yield Figure("victims among 30 pods of lower priority", victims(), None)
    large = many_hosts(STATES, hosts=MORE_HOSTS)
    new_shapes(large)
    yield Figure(f"filter, a known shape, {MORE_HOSTS} hosts", one_changed(large), 2e-3)
    for hosts, budget in ((HOSTS, 420), (MORE_HOSTS, 1500)):
        megabytes = run_in_fresh_process(memory, hosts)
        yield Figure(f"memory, {hosts} hosts with {PODS} pods each, 20 shapes", megabytes, budget, unit="MB")


def many_hosts(states: int, *, hosts: int = HOSTS) -> Cluster:
    """Hosts of one model, in this many different states."""
    cluster = Cluster()
    node = host(2, Policy.SINGLE_NUMA_NODE)
    idle = node.ledger
    random = Random(1)
    ledgers: list[Ledger] = []
    seen = set()
    while len(ledgers) < states:
        node.ledger = idle
        for number in range(random.randrange(2, 12)):
            cpus, size = random.choice((1, 2, 4, 6)), random.randrange(1, 9)
            node.admit(pod(f"{len(ledgers)}-{number}", cpus=cpus, memory=f"{size}Gi", gpus=random.randrange(2)))
        key = node.ledger.alignment_key()
        if key not in seen:
            seen.add(key)
            ledgers.append(node.ledger)
    for number in range(hosts):
        report(cluster, f"host-{number}", node, ledger_number=number % states, ledgers=ledgers)
    return cluster


def report(cluster: Cluster, name: str, node: Host, *, ledger_number: int, ledgers: list[Ledger]) -> None:
    cluster.confirm(
        HostReport(host=name, machine=node.machine, settings=node.settings, ledger=ledgers[ledger_number], sequence=1)
    )


def new_shapes(cluster: Cluster) -> float:
    """Return the least time of a filter for a pod of a new shape."""
    least = inf
    for number in range(ROUNDS):
        wanted = pod("wanted", cpus=2 + number, memory="3Gi")
        spent, verdicts = cpu_time(partial(cluster.feasible, wanted))
        least = min(least, spent)
        assert len(verdicts) == len(cluster.hosts)
        assert verdicts.admitting()
    return least


def one_changed(cluster: Cluster) -> float:
    """Return the least time of a filter for a pod of a known shape, after a pod was assumed on a host."""
    least = inf
    wanted = pod("wanted", cpus=2, memory="3Gi")
    for number in range(20):
        chosen = cluster.rank(wanted, limit=1)[0].host
        assert cluster.assume(replace(wanted, uid=f"assumed-{number}"), chosen).admits
        spent, verdicts = cpu_time(partial(cluster.feasible, wanted))
        least = min(least, spent)
        assert not verdicts[chosen].admits
    return least


def ranked(cluster: Cluster) -> float:
    wanted = pod("wanted", cpus=2, memory="3Gi")
    assert len(cluster.rank(wanted, limit=16)) == 16
    return min(cpu_time(partial(cluster.rank, wanted, limit=16))[0] for _ in range(20))


def gangs() -> Iterator[Figure]:
    """Yield the times of decisions on gangs, where hosts have kept their verdicts on single members."""
    leader = pod("leader", cpus=4, memory="4Gi", gpus=0)
    workers = [pod(f"worker-{number}", cpus=36, memory="64Gi", gpus=8) for number in range(MEMBERS)]
    for states in (STATES, HOSTS):
        cluster, half = gpu_hosts(states), gpu_hosts(states, idle=MEMBERS // 2)
        shown = f"8 GPUs each, {HOSTS} hosts in {states} states"
        for kind, members in (("", workers), ("a leader and ", [leader, *workers])):
            yield Figure(f"gang: {kind}{MEMBERS} workers, {shown}", gang(cluster, members), 200e-3)
            spent = gang(half, members, rest=MEMBERS // 2)
            yield Figure(f"gang: {kind}{MEMBERS} workers of which half fits, {shown}", spent, 200e-3)


def gpu_hosts(states: int, *, idle: int | None = None) -> Cluster:
    """Return hosts with 8 GPUs in this many different states; *idle* of them have all GPUs free (default: a fifth)."""
    cluster = Cluster()
    machine = parse("pack:2 numa:1 core:16 pu:2", memory=256 << 30)
    devices = tuple(Device(GPU, f"gpu-{number}", nodes=1 << number // 4) for number in range(8))
    settings = replace(host(2, Policy.RESTRICTED).settings, memory_policy="None", reserved_memory=())
    node = Host(replace(machine, devices=devices), settings)
    empty = node.ledger
    random = Random(1)
    ledgers: dict[Hashable, Ledger] = {}
    while len(ledgers) < states:
        node.ledger = empty
        number = len(ledgers)
        for place in range(random.randrange(1, 4)):
            node.admit(pod(f"cpus-{number}-{place}", cpus=random.randrange(1, 6), memory="1Gi", gpus=0))
        for place in range(random.randrange(4)):
            node.admit(pod(f"gap-{number}-{place}", cpus=1, memory="1Gi", gpus=0))
        for place in range(0, random.randrange(4), 2):
            node.release(f"gap-{number}-{place}")
        if number % 5 or (idle is not None and number >= 5 * idle):
            node.admit(pod(f"gpu-{number}", cpus=random.randrange(1, 8), memory="1Gi", gpus=random.randrange(1, 4)))
        node.admit(pod(f"shared-{number}", cpus=random.randrange(1, 2000) / 1000, memory="1Mi", gpus=0))
        ledgers.setdefault((node.ledger.alignment_key(), node.ledger.used.milli_cpu), node.ledger)
    different = list(ledgers.values())
    for number in range(HOSTS):
        taken = number % states if idle is None or number < states else states - 1
        report(cluster, f"host-{number}", node, ledger_number=taken, ledgers=different)
    return cluster


def gang(cluster: Cluster, members: list[Pod], *, rest: int = 0) -> float:
    """Return the least time of a decision on a gang of which *rest* members do not fit."""
    for member in members:
        cluster.feasible(member)
    results = [cpu_time(partial(cluster.feasible_gang, members)) for _ in range(ROUNDS)]
    assert all(len(answer.rest) == rest for _, answer in results)
    return min(seconds for seconds, _ in results)


def victims() -> float:
    """Measure the search for the smallest set of victims on a full host."""
    node = host(2, Policy.SINGLE_NUMA_NODE)
    for number in range(PODS):
        node.admit(replace(pod(f"p{number}", cpus=4, memory="1Gi", gpus=0), priority=number % 3))
    cluster = Cluster()
    report(cluster, "full", node, ledger_number=0, ledgers=[node.ledger])
    wanted = replace(pod("wanted", cpus=12, memory="1Gi", gpus=0), priority=10)
    spent, sets = cpu_time(partial(cluster.victims, wanted, "full"))
    assert len(sets.sets[0].pods) == 2, sets
    return spent


def memory(hosts: int) -> float:
    """Return the most megabytes that this process had with a cluster whose hosts all have pods of their own.

    The hosts come from HostStates, as they do in the cluster service.
    """
    gpus = tuple(Device(GPU, f"gpu-{number}", nodes=1 << number // 2) for number in range(4))
    machine = parse("pack:2 numa:1 core:32 pu:2", memory=64 << 30)
    read = configuration.read(to_json(CONFIGURATION).encode())
    node = Host(replace(machine, devices=gpus), configuration.host_settings(read, machine))
    idle = node.ledger
    state = HostStateDocument(
        generation=1,
        machine_generation=1,
        machine=machine_document(machine),
        configuration=configuration.alignment_fields(read),
    )
    random = Random(1)
    cluster, reader = Cluster(), host_state_reader()
    for number in range(hosts):
        node.ledger = idle
        for place in range(PODS):
            cpus, size = random.choice((1, 2, 4)), random.randrange(1, 4)
            uid = f"{number:08x}-0000-4000-8000-{place:012x}"
            node.admit(pod(uid, cpus=cpus, memory=f"{size}Gi", gpus=int(place < 4)))
        assert len(node.ledger.pods) == PODS
        document = to_object(state.replace(ledger=ledger_document(node.ledger)))
        line = encode({**document, "metadata": {"name": f"host-{number}", "uid": str(number)}})
        cluster.confirm(reader.read(decode(line, HostStateObject)))
        cluster.observe(pod(f"late-{number}", gpus=0), f"host-{number}", PodStage.RUNNING)
    for shape in range(20):
        cluster.feasible(pod("wanted", cpus=1 + shape % 5, memory=f"{1 + shape // 5}Gi", gpus=0))
    return peak_megabytes()
