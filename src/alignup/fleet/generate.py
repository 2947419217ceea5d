"""Workloads made up: pods of one of the profiles, coming and going, as many as keep a machine busy.

    events = generate(Profile.TELCO, machine, seed=1)

Kinds of pods and their figures stand in ``profiles``. From them:

* Each pod is of a kind drawn by weight, and asks for amounts drawn from the kind's lists, as far as the machine has
  them at all: no more CPUs than its largest NUMA node has, huge pages and devices only where there are any.
* Lifetimes are exponential or log-uniform. Arrivals are a Poisson process: gaps are exponential.
* The mean gap is such that all pods together ask for *load* of the machine's scarcest resource, averaged over the time
  in which they arrive. With a load of 0.9 some are refused for want of room, since they do not come evenly; above 1
  there is more work than machine.

The same seed gives the same workload on every version of Python: only ``Random.random`` is used, and times are rounded
to milliseconds.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log
from random import Random
from typing import TypeVar

from alignup.align.errors import SettingsError
from alignup.align.machine import Machine
from alignup.align.quantity import Quantity, QuantityFormat
from alignup.align.workload import Amounts, Container, Pod, Resources, demand
from alignup.align.workload.names import CPU, MEMORY
from alignup.align.workload.validation import accept
from alignup.fleet.events import PodArrival, PodDeparture, WorkloadEvent, ordered
from alignup.fleet.profiles import POD_KINDS, Lifetime, LifetimeDistribution, PodKind, Profile

Thing = TypeVar("Thing")

GIB = 1 << 30
_KEPT = 0.1  #: part of CPUs and memory that accelerators' shares leave to the system and to others
_ACCELERATOR_WORDS = ("gpu", "accelerator", "tpu", "npu", "gaudi")
_NETWORK_WORDS = ("nic", "sriov", "net", "rdma", "hca", "dpu", "vf")


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineCapacity:
    """What a machine has, as far as workloads are made for it."""

    cpus: int
    node_cpus: int  #: of its largest NUMA node
    threads: int  #: CPUs of a core
    memory: int  #: bytes in all that are not huge pages
    huge: Mapping[str, int]  #: resource → bytes
    accelerator: str | None = None  #: the resource; ``None``: there is none
    accelerators: int = 0
    network: str | None = None
    networks: int = 0

    @classmethod
    def of(cls, machine: Machine, *, accelerator: str | None = None, network: str | None = None) -> "MachineCapacity":
        """What *machine* has; device resources are told by their names unless *accelerator* and *network* name them."""
        view = machine.kubelet_view()
        devices: dict[str, int] = {}
        for device in machine.devices:
            devices[device.resource] = devices.get(device.resource, 0) + device.healthy
        huge: dict[str, int] = {}
        for pages in (pages for node in view.nodes for pages in node.hugepages if pages.bytes):
            huge[pages.resource] = huge.get(pages.resource, 0) + pages.bytes
        accelerator = accelerator or _named(devices, _ACCELERATOR_WORDS)
        network = network or _named(devices, _NETWORK_WORDS)
        memory = sum(node.memory or 0 for node in view.nodes) - sum(huge.values())
        return cls(
            cpus=view.num_cpus,
            node_cpus=max(cpus.bit_count() for cpus in view.node_cpus.values()),
            threads=max(view.cpus_per_core, 1),
            memory=memory or view.num_cpus * 4 * GIB,
            huge=huge,
            accelerator=accelerator,
            accelerators=devices.get(accelerator or "", 0),
            network=network,
            networks=devices.get(network or "", 0),
        )


def generate(  # noqa: PLR0913 - all but the first two have good defaults
    profile: Profile,
    machine: Machine,
    *,
    seed: int,
    pods: int = 1000,
    load: float = 0.9,
    accelerator: str | None = None,
    network: str | None = None,
) -> tuple[WorkloadEvent, ...]:
    """So many *pods* of *profile*, coming and going, that ask for *load* of *machine*; the same for the same *seed*.

    *accelerator* and *network* name the device resources to ask for; otherwise the machine's resources are told by
    their names (``gpu``, ``nic``, and the like). ``SettingsError`` for a load that is none.
    """
    if not 0 < load < 1e6 or pods < 0:
        raise SettingsError(
            f"a load of {load} on {pods} pods cannot be: more than 0 is wanted, 1 is all of the machine"
        )
    stock = MachineCapacity.of(machine, accelerator=accelerator, network=network)
    random = Random(seed)  # noqa: S311 - not cryptography
    made = [(pod, _lifetime(random, kind.lifetime)) for kind, pod in _pods(random, profile, stock, pods)]
    gap = _busy_seconds(made, stock) / load / max(pods, 1)
    events: list[WorkloadEvent] = []
    time = 0.0
    for pod, lifetime in made:
        time += -log(1 - random.random()) * gap
        start = round(time, 3)
        events += [PodArrival(start, pod), PodDeparture(round(start + max(lifetime, 0.001), 3), pod.uid)]
    return ordered(events)


def _pods(random: Random, profile: Profile, stock: MachineCapacity, count: int) -> Iterator[tuple[PodKind, Pod]]:
    kinds = [kind for kind in POD_KINDS[profile] if not kind.accelerators or stock.accelerators]
    shapes: dict[tuple[str, str], Pod] = {}
    for number in range(1, count + 1):
        kind = _one_of(random, [kind for kind in kinds for _ in range(kind.weight)])
        amounts = _amounts(random, kind, stock)
        shape = (kind.name, str(amounts))
        if shape not in shapes:
            shapes[shape] = accept(_pod(kind, amounts))
        name = f"{kind.name}-{number}"
        yield kind, replace(shapes[shape], name=name, uid=name)


def _pod(kind: PodKind, amounts: Amounts) -> Pod:
    main = Container(kind.name, _guaranteed(amounts) if kind.guaranteed else _burstable(amounts))
    init = []
    if kind.setup:
        init.append(Container("setup", _guaranteed({CPU: Quantity.parse("500m"), MEMORY: Quantity.parse("256Mi")})))
    if kind.sidecar:
        small = {CPU: Quantity.parse("250m"), MEMORY: Quantity.parse("128Mi")}
        init.append(Container("proxy", _guaranteed(small), restartable=True))
    return Pod(name=kind.name, init=tuple(init), containers=(main,), labels={"app": kind.name})


def _amounts(random: Random, kind: PodKind, stock: MachineCapacity) -> dict[str, Quantity]:
    """What the main container of one pod asks for."""
    amounts = {}
    cpus: float
    if kind.accelerators and stock.accelerator:
        count = _one_of(random, [count for count in kind.accelerators if count <= stock.accelerators] or [1])
        cores = int(stock.cpus * (1 - _KEPT)) // stock.accelerators // stock.threads
        cpus = max(1, cores) * stock.threads * count
        memory = int(stock.memory * (1 - _KEPT)) // stock.accelerators * count
        networks = max(1, count // 4) if kind.networks else 0
        amounts[stock.accelerator] = Quantity.of(count)
    else:
        cpus = min(_one_of(random, kind.cpus), stock.node_cpus)
        memory = min(int(cpus * kind.memory * GIB), int(stock.memory * (1 - _KEPT)))
        networks = kind.networks
    amounts |= {CPU: _cpus(cpus), MEMORY: _bytes(memory)}
    if stock.network and min(networks, stock.networks):
        amounts[stock.network] = Quantity.of(min(networks, stock.networks))
    page = max(stock.huge, key=lambda name: stock.huge[name], default=None)
    if kind.huge and page and stock.huge[page] >= kind.huge * GIB:
        amounts[page] = _bytes(kind.huge * GIB)
    return amounts


def _bytes(size: int) -> Quantity:
    """Whole MiB, and one at least."""
    return Quantity(max(size >> 20, 1) << 20, format=QuantityFormat.BINARY_SI)


def _cpus(count: float) -> Quantity:
    return Quantity.of(int(count)) if count == int(count) else Quantity.parse(f"{int(count * 1000)}m")


def _guaranteed(amounts: Amounts) -> Resources:
    return Resources(requests=amounts, limits=amounts)


def _burstable(amounts: Amounts) -> Resources:
    """Half of it asked for."""
    half = {
        CPU: Quantity.parse(f"{amounts[CPU].milli() // 2}m"),
        MEMORY: _bytes(amounts[MEMORY].value() // 2),
    }
    return Resources(requests={**amounts, **half}, limits=amounts)


def _lifetime(random: Random, lifetime: Lifetime) -> float:
    if lifetime.stay is LifetimeDistribution.EXPONENTIAL:
        return -log(1 - random.random()) * lifetime.low
    return float(lifetime.low * pow(lifetime.high / lifetime.low, random.random()))


def _busy_seconds(made: Sequence[tuple[Pod, float]], stock: MachineCapacity) -> float:
    """How long the machine would be busy with all pods if they came one after the other and used it up."""
    asked: dict[str, float] = {}
    for pod, lifetime in made:
        request = demand.fit_request(pod)
        for name, amount in {CPU: request.milli_cpu, MEMORY: request.memory, **request.scalars}.items():
            asked[name] = asked.get(name, 0.0) + amount * lifetime
    there: dict[str, int] = {CPU: 1000 * stock.cpus, MEMORY: stock.memory, **stock.huge}
    there |= {
        name: count
        for name, count in ((stock.accelerator, stock.accelerators), (stock.network, stock.networks))
        if name
    }
    return max((work / there[name] for name, work in asked.items() if there.get(name)), default=0.0)


def _named(resources: Mapping[str, int], words: Sequence[str]) -> str | None:
    """The resource with the most devices whose name says what it is."""
    found = [name for name in resources if resources[name] and any(word in _last(name) for word in words)]
    return max(found, key=lambda name: resources[name], default=None)


def _last(resource: str) -> str:
    """What stands after the domain; ``kubernetes.io`` has a ``net`` in it."""
    return resource.rpartition("/")[2].lower()


def _one_of(random: Random, things: Sequence[Thing]) -> Thing:
    return things[int(random.random() * len(things))]
