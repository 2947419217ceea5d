"""A custom hint provider: exclusive ways of the last-level cache.

Processors with cache allocation can restrict a group of processes to some ways of a cache. The ways of a group must be
adjacent and belong to one cache; here every NUMA node has one. ``docs/own-provider.md`` explains the provider.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from alignup import (
    Container,
    CpuSettings,
    Hint,
    Host,
    Need,
    Pod,
    Policy,
    Provider,
    ProviderError,
    Quantity,
    Resources,
    Settings,
    TopologySettings,
    bits,
    load,
)

WAYS = "example.com/cache-ways"

#: Allocated ways: (pod, container) → (node, first way, number of ways)
WayLedger = Mapping[tuple[str, str], tuple[int, int, int]]


@dataclass(frozen=True)
class CacheWays(Provider[WayLedger]):
    """The ways of one cache per NUMA node; the ledger is a mapping that is replaced, never changed."""

    nodes: tuple[int, ...]
    ways: int = 11

    name = "cache"

    def initial_ledger(self) -> WayLedger:
        return {}

    def hints(self, ledger: WayLedger, pod: Pod, container: Container | None) -> Mapping[str, list[Hint]] | None:
        """Return each node with enough adjacent free ways."""
        count = requested(pod, container)
        return {WAYS: [Hint(1 << node, preferred=True) for node in self.candidates(ledger, count)]} if count else None

    def allocate(self, ledger: WayLedger, pod: Pod, container: Container | None, *, affinity: Hint) -> WayLedger:
        """Allocate on the chosen nodes if possible, else on any; nothing to a pod as a whole."""
        count = requested(pod, container)
        if container is None or not count:
            return ledger
        candidates = self.candidates(ledger, count)
        near = [node for node in candidates if affinity.nodes is not None and affinity.nodes >> node & 1]
        if not candidates:
            raise ProviderError(f"no cache has {count} adjacent free ways")
        node = next(iter(near or candidates))
        return {**ledger, (pod.uid, container.name): (node, candidates[node], count)}

    def release(self, ledger: WayLedger, uid: str) -> WayLedger:
        return {holder: ways for holder, ways in ledger.items() if holder[0] != uid}

    def describe(self, ledger: WayLedger, uid: str, container: str) -> Mapping[str, str]:
        if (uid, container) not in ledger:
            return {}
        node, first, count = ledger[uid, container]
        return {WAYS: f"{first}-{first + count - 1} of node {node}"}

    def needs(self, ledger: WayLedger, pod: Pod, container: Container | None) -> Mapping[str, Need]:
        """Return the requested ways, and the longest run of free ways on each node."""
        free = {node: max(self.runs(ledger, node)) for node in self.nodes}
        return {WAYS: Need(requested(pod, container), free)}

    def capacity(self, ledger: WayLedger, uid: str) -> Mapping[str, int]:
        """Return all ways, for the fit check."""
        del ledger, uid
        return {WAYS: self.ways * len(self.nodes)}

    def candidates(self, ledger: WayLedger, count: int) -> dict[int, int]:
        """Return, by node, the first of *count* adjacent free ways, for the nodes that have them."""
        first_ways = {}
        for node in self.nodes:
            starts = [way for way, run in enumerate(self.runs(ledger, node)) if run >= count]
            first_ways.update({node: starts[0]} if starts else {})
        return first_ways

    def runs(self, ledger: WayLedger, node: int) -> list[int]:
        """For each way of a node, the number of free ways from there on; a 0 at the end."""
        taken = {way for home, first, count in ledger.values() if home == node for way in range(first, first + count)}
        runs = [0]
        for way in reversed(range(self.ways)):
            runs.insert(0, 0 if way in taken else runs[0] + 1)
        return runs


def requested(pod: Pod, container: Container | None) -> int:
    """Return the number of ways in the limits of a container, or of a pod as a whole."""
    containers = pod.all_containers if container is None else (container,)
    return sum(each.resources.limits[WAYS].value() for each in containers if WAYS in each.resources.limits)


def main() -> None:
    """Admit three pods with 2 CPUs and some cache on a machine of two nodes with 4 CPUs and 11 ways each."""
    host = Host(
        load("pack:2 numa:1 core:4 pu:1"),
        Settings(
            topology=TopologySettings(policy=Policy.SINGLE_NUMA_NODE),
            cpus=CpuSettings(policy="static", reservation=Quantity.parse("1")),
        ),
        others=[CacheWays(nodes=(0, 1))],
    )
    for name, ways in (("a", "8"), ("b", "8"), ("c", "4")):
        amounts = {"cpu": Quantity.parse("2"), "memory": Quantity.parse("1Mi"), WAYS: Quantity.parse(ways)}
        decision = host.admit(Pod(name=name, uid=name, containers=(Container("app", Resources(amounts, amounts)),)))
        for placement in decision.placements:
            print(f"{name}: {decision.outcome} on {placement.hint}, with {placement.as_text()}")
        if decision.rejection:
            print(f"{name}: {decision.outcome}, {decision.rejection.reason}")
            for short in decision.rejection.shortfalls:
                print(f"   {short.resource}: {short.missing} missing on node {bits.show(short.nodes or 0)}")


if __name__ == "__main__":
    main()
