"""How much of each resource is given out, on each NUMA node and in all: at the end, at the most, and over time.

Counted are things that are one container's own: CPUs, bytes of managed memory, devices. A block of memory on several
nodes is charged to them from the lowest up, as the ledger does it; a device on several nodes counts on each of them,
and once in all.
"""

from dataclasses import dataclass

from alignup.align import bits
from alignup.align.fit import PODS
from alignup.align.host import Host
from alignup.align.ledger import Ledger
from alignup.align.workload.names import CPU


@dataclass(frozen=True, slots=True)
class UsageStats:
    """How much of a resource was given out."""

    total: int  #: what could be given out: CPUs that are not reserved, bytes, healthy devices
    end: int
    peak: int
    mean: float  #: over time, from the first event to the last


class UsageMeter:
    """Follows the ledger of one host, from *time* on."""

    def __init__(self, host: Host, time: float) -> None:
        cpus, memory, devices = host.ledger.cpus, host.ledger.memory, host.ledger.devices
        given_out = bits.union(map(cpus.owned, {*cpus.held, *cpus.pod_held}))
        ownable = cpus.available | given_out
        self._cpus = [(node, (own & ownable).bit_count()) for node, own in cpus.node_cpus.items() if ownable]
        self._memory = [(node, type_) for node, own in memory.nodes.items() for type_ in own.tables]
        self._pools = [(resource, inventory.healthy) for resource, inventory in devices.inventories.items()]
        on_nodes = [
            (node, resource, own & inventory.healthy)
            for resource, inventory in devices.inventories.items()
            for node, own in inventory.on.items()
        ]
        self._devices = [(resource, own) for _, resource, own in on_nodes]
        #: node (``None``: in all), resource and how much there is of it, in the order that values are read in
        self._gauges: list[tuple[int | None, str, int]] = [
            *((node, CPU, total) for node, total in self._cpus),
            *((node, type_, memory.nodes[node].tables[type_].allocatable) for node, type_ in self._memory),
            *((node, resource, own.bit_count()) for node, resource, own in on_nodes),
            *((None, resource, healthy.bit_count()) for resource, healthy in self._pools),
            (None, PODS, host.settings.max_pods),
        ]
        divided: dict[str, list[int]] = {}  # what is of one node alone, so that nodes add up
        for place, (_, resource, _) in enumerate(self._gauges[: len(self._cpus) + len(self._memory)]):
            divided.setdefault(resource, []).append(place)
        self._sums = list(divided.values())
        for resource, own in divided.items():
            self._gauges.append((None, resource, sum(self._gauges[place][2] for place in own)))
        self._ledger = host.ledger
        self._start = self._since = self._now = time
        self._values = self._peaks = self._read(host.ledger)
        self._areas = [0.0] * len(self._values)

    def note(self, time: float, ledger: Ledger) -> None:
        """From *time* on the ledger is this one."""
        self._now = time
        if ledger is self._ledger:
            return
        self._weigh()
        self._ledger = ledger
        self._values = self._read(ledger)
        self._peaks = list(map(max, self._peaks, self._values))

    @property
    def duration(self) -> float:
        """Seconds since the beginning."""
        return self._now - self._start

    def uses(self) -> dict[int | None, dict[str, UsageStats]]:
        """What was seen until now, by NUMA node; under ``None`` what it was in all."""
        self._weigh()
        passed = self.duration
        found: dict[int | None, dict[str, UsageStats]] = {None: {}}
        for (node, resource, total), end, peak, area in zip(
            self._gauges, self._values, self._peaks, self._areas, strict=True
        ):
            mean = area / passed if passed else float(end)
            found.setdefault(node, {})[resource] = UsageStats(total, end, peak, mean)
        return found

    def _read(self, ledger: Ledger) -> list[int]:
        own = ledger
        cpus, memory, devices = own.cpus.free, own.memory.nodes, own.devices.free
        values = [
            *[total - cpus[node] for node, total in self._cpus],
            *[memory[node].tables[type_].reserved for node, type_ in self._memory],
            *[(here & ~devices[resource]).bit_count() for resource, here in self._devices],
            *[(healthy & ~devices[resource]).bit_count() for resource, healthy in self._pools],
            len(ledger.pods),
        ]
        values += [sum([values[place] for place in own]) for own in self._sums]
        return values

    def _weigh(self) -> None:
        """Add up what was given out since the last change."""
        passed = self._now - self._since
        if passed:
            self._areas = [area + value * passed for area, value in zip(self._areas, self._values, strict=True)]
        self._since = self._now
