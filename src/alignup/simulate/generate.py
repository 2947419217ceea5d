"""Generated workloads: pods of a profile that arrive and depart and keep a machine, or the hosts of a cluster, busy.

A profile lists kinds of pods. Its figures are made up but typical: a few large pods that need alignment, many small
ones, some that do not care. ``docs/simulate-data.md`` prints these tables and describes how pods are drawn from them.
The same seed gives the same workload on every version of Python: only ``random.Random.random`` is used, and times are
rounded to milliseconds.

Every group of a cluster gets its share of the pods, made for its machine, so that all groups are equally busy. A fifth
of the trainers start a gang of 2, 4 or 8 equal pods, taken from the following trainers. User-facing kinds have a
priority. In profile ``gangs`` all trainers are in gangs, and the first pod of each is a launcher without accelerators.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import log
from operator import attrgetter
from random import Random
from typing import TypeVar

from alignup.align.errors import SettingsError
from alignup.align.machine import Machine
from alignup.align.quantity import Quantity, QuantityFormat
from alignup.align.workload import Amounts, Container, Pod, Resources, demand
from alignup.align.workload.names import CPU, MEMORY
from alignup.align.workload.validation import accept
from alignup.simulate.arrivals import (
    GANG_LABEL,
    PodArrival,
    PodDeparture,
    PodSubmission,
    WorkloadEvent,
    from_events,
    ordered,
)
from alignup.simulate.cluster_hosts import HostGroup

_T = TypeVar("_T")

GIB = 1 << 30
MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0
PRIORITIES = {"upf": 1000, "du": 1000, "model": 1000}  #: by kind; 0 for all others
GANG_KIND = "trainer"
GANG_SHARE = 0.2
GANG_SIZES = (2, 4, 8)

_SYSTEM_SHARE = 0.1  #: of CPUs and memory, not divided among the accelerators
_ACCELERATOR_WORDS = ("gpu", "accelerator", "tpu", "npu", "gaudi")
_NETWORK_WORDS = ("nic", "sriov", "net", "rdma", "hca", "dpu", "vf")


class Profile(StrEnum):
    TELCO = "telco"
    TRAINING = "training"
    INFERENCE = "inference"
    MIXED = "mixed"
    GANGS = "gangs"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodKind:
    """A kind of pods.

    ``cpus`` and ``accelerators`` are drawn uniformly from the listed values; a value listed twice is twice as likely.
    With accelerators a pod requests their share of the machine's CPUs and memory instead of ``cpus``. A pod that is
    not ``guaranteed`` requests half of its limits.
    """

    name: str
    weight: int  #: relative frequency
    lifetime: float | tuple[float, float]  #: seconds: the mean if exponential, the bounds if log-uniform
    cpus: tuple[float, ...] = ()
    memory: int = 2  #: GiB per CPU
    accelerators: tuple[int, ...] = ()
    networks: int = 0  #: network devices; with accelerators, one for every four of them but at least one
    huge: int = 0  #: GiB of huge pages
    sidecar: bool = False  #: whether it has a small sidecar
    setup: bool = False  #: whether it has an init container of half a CPU
    guaranteed: bool = True


_TELCO = (
    PodKind(name="upf", weight=2, cpus=(4, 4, 8, 16), networks=2, huge=2, setup=True, lifetime=7 * DAY),
    PodKind(name="du", weight=3, cpus=(2, 4, 4, 8), networks=1, huge=1, lifetime=7 * DAY),
    PodKind(name="control", weight=3, cpus=(1, 2, 2, 4), sidecar=True, lifetime=2 * DAY),
    PodKind(name="oam", weight=2, cpus=(0.25, 0.5, 1), guaranteed=False, lifetime=DAY),
)
_TRAINING = (
    PodKind(name="trainer", weight=6, accelerators=(1, 1, 2, 2, 4, 8), networks=1, lifetime=(HOUR / 2, 2 * DAY)),
    PodKind(name="prepare", weight=3, cpus=(4, 8, 8, 16), memory=4, lifetime=(5 * MINUTE, 4 * HOUR)),
    PodKind(name="notebook", weight=1, accelerators=(1,), sidecar=True, lifetime=(HOUR, 10 * HOUR)),
)
_INFERENCE = (
    PodKind(name="model", weight=5, accelerators=(1, 1, 1, 1, 2), sidecar=True, lifetime=6 * HOUR),
    PodKind(name="embed", weight=3, cpus=(2, 4, 4, 8), memory=4, setup=True, lifetime=2 * HOUR),
    PodKind(name="gateway", weight=2, cpus=(0.5, 1, 2), guaranteed=False, lifetime=DAY),
)
_GANGS = (
    PodKind(name="trainer", weight=8, accelerators=(1, 2, 4, 4, 8), lifetime=(HOUR / 2, DAY)),
    PodKind(name="prepare", weight=2, cpus=(4, 8, 8, 16), memory=4, lifetime=(5 * MINUTE, 4 * HOUR)),
)

POD_KINDS: Mapping[Profile, tuple[PodKind, ...]] = {
    Profile.TELCO: _TELCO,
    Profile.TRAINING: _TRAINING,
    Profile.INFERENCE: _INFERENCE,
    Profile.MIXED: _TELCO + _TRAINING + _INFERENCE,
    Profile.GANGS: _GANGS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineCapacity:
    cpus: int
    node_cpus: int  #: of the largest NUMA node
    threads: int  #: CPUs per core
    memory: int  #: bytes, without huge pages
    huge: Mapping[str, int]  #: resource → bytes
    accelerator: str | None = None  #: the resource name
    accelerators: int = 0
    network: str | None = None  #: the resource name
    networks: int = 0

    @classmethod
    def of(cls, machine: Machine, *, accelerator: str | None = None, network: str | None = None) -> "MachineCapacity":
        """Return what *machine* has.

        *accelerator* and *network* name device resources; by default their names contain ``gpu``, ``nic`` and the like.
        """
        view = machine.kubelet_view()
        devices = Counter(device.resource for device in machine.devices if device.healthy)
        huge: Counter[str] = Counter()
        for pages in (pages for node in view.nodes for pages in node.hugepages if pages.bytes):
            huge[pages.resource] += pages.bytes
        accelerator = accelerator or _most_common(devices, _ACCELERATOR_WORDS)
        network = network or _most_common(devices, _NETWORK_WORDS)
        memory = sum(node.memory or 0 for node in view.nodes) - sum(huge.values())
        return cls(
            cpus=view.num_cpus,
            node_cpus=max(cpus.bit_count() for cpus in view.node_cpus.values()),
            threads=max(view.cpus_per_core, 1),
            memory=memory or view.num_cpus * 4 * GIB,
            huge=huge,
            accelerator=accelerator,
            accelerators=devices[accelerator or ""],
            network=network,
            networks=devices[network or ""],
        )


def generate(  # noqa: PLR0913 - all but the first two have defaults
    profile: Profile,
    machine: Machine,
    *,
    seed: int,
    pods: int = 1000,
    load: float = 0.9,
    accelerator: str | None = None,
    network: str | None = None,
) -> tuple[WorkloadEvent, ...]:
    """Return *pods* that request *load* of *machine* on average; ``SettingsError`` if *load* is out of range.

    *accelerator* and *network* name the device resources to request.
    """
    if not 0 < load < 1e6 or pods < 0:
        raise SettingsError(f"invalid load {load} for {pods} pods: must be greater than 0; 1 is the whole machine")
    capacity = MachineCapacity.of(machine, accelerator=accelerator, network=network)
    random = Random(seed)  # noqa: S311 - not cryptography
    lifetimes = list(_pods(random, profile, capacity, pods))
    gap = _busy_seconds(lifetimes, capacity) / load / max(pods, 1)
    events: list[WorkloadEvent] = []
    time = 0.0
    for pod, lifetime in lifetimes:
        time += _exponential(random, gap)
        start = round(time, 3)
        events += [PodArrival(start, pod), PodDeparture(round(start + max(lifetime, 0.001), 3), pod.uid)]
    return ordered(events)


def _pods(random: Random, profile: Profile, capacity: MachineCapacity, count: int) -> Iterator[tuple[Pod, float]]:
    kinds = [kind for kind in POD_KINDS[profile] if not kind.accelerators or capacity.accelerators]
    shapes: dict[tuple[str, str], Pod] = {}
    for number in range(1, count + 1):
        kind = _choose(random, [kind for kind in kinds for _ in range(kind.weight)])
        requests = _requests(random, kind, capacity)
        shape = (kind.name, str(requests))
        if shape not in shapes:
            shapes[shape] = accept(_pod(kind, requests))
        if isinstance(kind.lifetime, tuple):
            low, high = kind.lifetime
            lifetime = float(low * pow(high / low, random.random()))
        else:
            lifetime = _exponential(random, kind.lifetime)
        name = f"{kind.name}-{number}"
        yield replace(shapes[shape], name=name, uid=name), lifetime


def _pod(kind: PodKind, requests: Amounts) -> Pod:
    resources = Resources(requests, requests)
    if not kind.guaranteed:
        half = {CPU: Quantity.parse(f"{requests[CPU].milli() // 2}m"), MEMORY: _bytes(requests[MEMORY].value() // 2)}
        resources = Resources(requests={**requests, **half}, limits=requests)
    init = []
    if kind.setup:
        small = {CPU: Quantity.parse("500m"), MEMORY: Quantity.parse("256Mi")}
        init.append(Container("setup", Resources(small, small)))
    if kind.sidecar:
        small = {CPU: Quantity.parse("250m"), MEMORY: Quantity.parse("128Mi")}
        init.append(Container("proxy", Resources(small, small), restartable=True))
    containers = (Container(kind.name, resources),)
    return Pod(name=kind.name, init=tuple(init), containers=containers, labels={"app": kind.name})


def _requests(random: Random, kind: PodKind, capacity: MachineCapacity) -> dict[str, Quantity]:
    requests = {}
    cpus: float
    if kind.accelerators and capacity.accelerator:
        count = _choose(random, [count for count in kind.accelerators if count <= capacity.accelerators] or [1])
        cores = int(capacity.cpus * (1 - _SYSTEM_SHARE)) // capacity.accelerators // capacity.threads
        cpus = max(1, cores) * capacity.threads * count
        memory = int(capacity.memory * (1 - _SYSTEM_SHARE)) // capacity.accelerators * count
        networks = max(1, count // 4) if kind.networks else 0
        requests[capacity.accelerator] = Quantity.of(count)
    else:
        cpus = min(_choose(random, kind.cpus), capacity.node_cpus)
        memory = min(int(cpus * kind.memory * GIB), int(capacity.memory * (1 - _SYSTEM_SHARE)))
        networks = kind.networks
    whole = Quantity.of(int(cpus)) if cpus == int(cpus) else Quantity.parse(f"{int(cpus * 1000)}m")
    requests |= {CPU: whole, MEMORY: _bytes(memory)}
    if capacity.network and min(networks, capacity.networks):
        requests[capacity.network] = Quantity.of(min(networks, capacity.networks))
    page = max(capacity.huge, key=lambda name: capacity.huge[name], default=None)
    if kind.huge and page and capacity.huge[page] >= kind.huge * GIB:
        requests[page] = _bytes(kind.huge * GIB)
    return requests


def _bytes(size: int) -> Quantity:
    """Return *size* in whole MiB, at least one."""
    return Quantity(max(size >> 20, 1) << 20, format=QuantityFormat.BINARY_SI)


def _exponential(random: Random, mean: float) -> float:
    return -log(1 - random.random()) * mean


def _busy_seconds(lifetimes: Sequence[tuple[Pod, float]], capacity: MachineCapacity) -> float:
    """Return how long the pods together would occupy all of the scarcest resource."""
    seconds: dict[str, float] = {}
    for pod, lifetime in lifetimes:
        request = demand.fit_request(pod)
        for name, amount in {CPU: request.milli_cpu, MEMORY: request.memory, **request.scalars}.items():
            seconds[name] = seconds.get(name, 0.0) + amount * lifetime
    available = {CPU: 1000 * capacity.cpus, MEMORY: capacity.memory, **capacity.huge}
    available |= {capacity.accelerator or "": capacity.accelerators, capacity.network or "": capacity.networks}
    return max((work / available[name] for name, work in seconds.items() if available.get(name)), default=0.0)


def _most_common(resources: Mapping[str, int], words: Sequence[str]) -> str | None:
    """Return the resource with the most devices whose name, without the domain, contains one of *words*."""
    matches = [name for name in resources if any(word in name.rpartition("/")[2].lower() for word in words)]
    return max(matches, key=lambda name: resources[name], default=None)


def _choose(random: Random, items: Sequence[_T]) -> _T:
    return items[int(random.random() * len(items))]


def generate_for_cluster(
    profile: Profile, groups: Sequence[HostGroup], *, seed: int, pods: int, load: float
) -> tuple[PodSubmission, ...]:
    """Return *pods* that request *load* of all hosts on average; ``SettingsError`` if *load* is invalid."""
    submissions: list[PodSubmission] = []
    pods_left, hosts_left = pods, sum(group.count for group in groups)
    for number, group in enumerate(groups):
        share = pods_left * group.count // hosts_left if hosts_left else 0
        pods_left, hosts_left = pods_left - share, hosts_left - group.count
        prefix = f"{group.name}-".lower() if len(groups) > 1 else ""
        events = generate(profile, group.machine, seed=seed + number, pods=share, load=load * max(group.count, 1))
        random = Random(seed + number)  # noqa: S311 - not cryptography
        submissions += _with_gangs(_named(from_events(events), prefix), random, all_gangs=profile is Profile.GANGS)
    return tuple(sorted(submissions, key=attrgetter("time")))


def _named(submissions: Sequence[PodSubmission], prefix: str) -> Iterator[PodSubmission]:
    for submission in submissions:
        pod = submission.pod
        name, priority = f"{prefix}{pod.name}", PRIORITIES.get(pod.labels.get("app", ""))
        yield replace(submission, pod=replace(pod, name=name, uid=name, priority=priority))


def _with_gangs(submissions: Iterator[PodSubmission], random: Random, *, all_gangs: bool) -> Iterator[PodSubmission]:
    """Put trainers into gangs of equal pods; with *all_gangs*, all of them, after a launcher."""
    leader: PodSubmission | None = None
    missing_count = number = 0
    for submission in submissions:
        pod = submission.pod
        is_trainer = pod.labels.get("app") == GANG_KIND
        starts = is_trainer and not missing_count and (all_gangs or random.random() < GANG_SHARE)
        if starts:
            leader, missing_count, number = submission, _choose(random, GANG_SIZES) + all_gangs, number + 1
        if not is_trainer or not missing_count or leader is None:
            yield submission
            continue
        missing_count -= 1
        prefix = leader.pod.name.removesuffix(leader.pod.name.rpartition("-")[2])
        shape = _launcher() if starts and all_gangs else leader.pod
        labels = {**shape.labels, GANG_LABEL: f"{prefix}gang-{number}"}
        yield replace(leader, pod=replace(shape, name=pod.name, uid=pod.uid, labels=labels))


def _launcher() -> Pod:
    kind = PodKind(name="launcher", weight=0, lifetime=0)
    return accept(_pod(kind, {CPU: Quantity.of(2), MEMORY: _bytes(4 * GIB)}))
