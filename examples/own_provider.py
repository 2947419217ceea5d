"""A hint provider of one's own: ways of the last-level cache that a container has for itself.

Processors with cache allocation let a group of processes fill only some of a cache's ways. The ways of a group must be
neighbours, and belong to one cache; here every NUMA node has one. ``docs/library.md`` explains the provider.
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

#: Who has which ways: (pod, container) → (node, first way, number of ways)
Book = Mapping[tuple[str, str], tuple[int, int, int]]


@dataclass(frozen=True)
class CacheWays(Provider[Book]):
    """The ways of one cache a NUMA node; the ledger is a mapping that is never changed, only replaced."""

    nodes: tuple[int, ...]
    ways: int = 11

    name = "cache"

    def idle(self) -> Book:
        """Nothing is given out."""
        return {}

    def hints(self, book: Book, pod: Pod, container: Container | None) -> Mapping[str, list[Hint]] | None:
        """Each node with enough free ways side by side; nothing when none are asked for."""
        count = wanted(pod, container)
        return {WAYS: [Hint(1 << node, preferred=True) for node in self.places(book, count)]} if count else None

    def allocate(self, book: Book, pod: Pod, container: Container | None, *, affinity: Hint) -> Book:
        """On the chosen nodes if it can be, else on any; a pod as a whole is given nothing."""
        count = wanted(pod, container)
        if container is None or not count:
            return book
        places = self.places(book, count)
        near = [node for node in places if affinity.nodes is not None and affinity.nodes >> node & 1]
        if not places:
            raise ProviderError(f"no cache has {count} free ways side by side")
        node = next(iter(near or places))
        return {**book, (pod.uid, container.name): (node, places[node], count)}

    def release(self, book: Book, uid: str) -> Book:
        """All ways of the pod are free again."""
        return {who: what for who, what in book.items() if who[0] != uid}

    def given(self, book: Book, uid: str, container: str) -> Mapping[str, str]:
        """Which ways of which node, for the record."""
        if (uid, container) not in book:
            return {}
        node, first, count = book[uid, container]
        return {WAYS: f"{first}-{first + count - 1} of node {node}"}

    def needs(self, book: Book, pod: Pod, container: Container | None) -> Mapping[str, Need]:
        """How many are asked for, and how many each node has side by side, for the record."""
        return {WAYS: Need(wanted(pod, container), {node: max(self.runs(book, node)) for node in self.nodes})}

    def offered(self, book: Book, uid: str) -> Mapping[str, int]:
        """All ways there are, so that the fit check knows the resource."""
        del book, uid
        return {WAYS: self.ways * len(self.nodes)}

    def places(self, book: Book, count: int) -> dict[int, int]:
        """Node → the first of *count* free ways side by side, for the nodes that have as many."""
        found = {}
        for node in self.nodes:
            enough = [way for way, run in enumerate(self.runs(book, node)) if run >= count]
            found.update({node: enough[0]} if enough else {})
        return found

    def runs(self, book: Book, node: int) -> list[int]:
        """For each way of a node how many are free from there on, and a 0 at the end."""
        taken = {way for home, first, count in book.values() if home == node for way in range(first, first + count)}
        runs = [0]
        for way in reversed(range(self.ways)):
            runs.insert(0, 0 if way in taken else runs[0] + 1)
        return runs


def wanted(pod: Pod, container: Container | None) -> int:
    """How many ways a container, or a pod as a whole, is limited to."""
    asking = pod.everyone if container is None else (container,)
    return sum(one.resources.limits[WAYS].value() for one in asking if WAYS in one.resources.limits)


def main() -> None:
    """Three pods of 2 CPUs and some cache come to a machine of two nodes with 4 CPUs and 11 ways each."""
    host = Host(
        load("pack:2 numa:1 core:4 pu:1"),
        Settings(
            topology=TopologySettings(policy=Policy.SINGLE_NUMA_NODE),
            cpus=CpuSettings(policy="static", reservation=Quantity.parse("1")),
        ),
        others=[CacheWays(nodes=(0, 1))],
    )
    for name, ways in (("a", "8"), ("b", "8"), ("c", "4")):
        asked = {"cpu": Quantity.parse("2"), "memory": Quantity.parse("1Mi"), WAYS: Quantity.parse(ways)}
        decision = host.admit(Pod(name=name, uid=name, containers=(Container("app", Resources(asked, asked)),)))
        for placement in decision.placements:
            print(f"{name}: {decision.outcome} on {placement.hint}, with {dict(placement.given)}")
        if decision.refusal:
            print(f"{name}: {decision.outcome}, {decision.refusal.reason}")
            for short in decision.refusal.shortfalls:
                print(f"   {short.resource}: {short.missing} missing on node {bits.show(short.nodes or 0)}")


if __name__ == "__main__":
    main()
