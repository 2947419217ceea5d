"""What pods hold, carried over to a host of other settings.

A kubelet that starts with other settings finds the pods where they are. What they hold stays; what is free is counted
anew. It does not start where that cannot be: a pod owns a CPU that is to be reserved, or memory that is not left.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby

from alignup.align.bits import union
from alignup.align.cpus.ledger import CpuLedger
from alignup.align.cpus.options import CpuPolicy
from alignup.align.cpus.provider import CpuProvider
from alignup.align.errors import StateError
from alignup.align.host import Host, Settings
from alignup.align.memory.ledger import Block, MemoryLedger
from alignup.align.providers import CpuHintProvider, MemoryProvider


def migrate_host(host: Host, settings: Settings) -> Host:
    """A host like *host* under *settings*, with the same pods holding the same.

    ``SettingsError`` where a kubelet would not start with them, ``StateError`` where not with these pods.
    """
    _, _, _, *others = host.providers
    other = Host(host.machine, settings, others=others)
    books = dict(host.ledger.books)
    for one in other.providers:
        if isinstance(one, CpuHintProvider):
            books[one.name] = _cpus(one.rules, books[one.name])
        elif isinstance(one, MemoryProvider):
            books[one.name] = _memory(one, books[one.name])
    other.ledger = replace(host.ledger, books=books)
    return other


def _cpus(rules: CpuProvider, book: CpuLedger) -> CpuLedger:
    """*book*, with other CPUs reserved."""
    if rules.policy is CpuPolicy.NONE:
        return book
    strictly = rules.reserved if rules.options.strict_cpu_reservation else 0
    owned = union(map(book.owned, {*book.held, *book.pod_held}))
    shared = rules.view.all_cpus & ~(owned | strictly)
    if (shared, rules.reserved) == (book.shared, book.reserved):
        return book
    return replace(rules.start(shared, book.held, pod_held=book.pod_held), reusable=book.reusable)


def _memory(rules: MemoryProvider, book: MemoryLedger) -> MemoryLedger:
    """*book*, with other memory kept back: every block is given once more."""
    idle = rules.idle()
    if idle.allocatable() == book.allocatable():
        return book
    again = idle
    for uid, container, blocks in sorted(_given(book), key=lambda given: -given[2][0].nodes.bit_count()):
        again = again.give(uid, container, blocks=blocks)
    if _reserved(again) != _reserved(book):
        raise StateError("the memory that pods hold would not be left to them")
    return MemoryLedger(again.nodes, book.held, book.pod_held, book.last_pod, book.reusable)


def _given(book: MemoryLedger) -> Iterator[tuple[str, str, tuple[Block, ...]]]:
    """All blocks that nodes are charged with, those on the same nodes together."""
    pods = [(uid, "", blocks) for uid, blocks in book.pod_held.items()]
    alone = [
        (uid, container, blocks)
        for uid, containers in book.held.items()
        if uid not in book.pod_held
        for container, blocks in containers.items()
    ]
    for uid, container, blocks in (*pods, *alone):
        for _, together in groupby(sorted(blocks), key=lambda block: block.nodes):
            yield uid, container, tuple(together)


def _reserved(book: MemoryLedger) -> Counter[str]:
    """Type → the bytes that are held on all nodes together."""
    sizes: Counter[str] = Counter()
    for node in book.nodes.values():
        sizes.update({type_: table.reserved for type_, table in node.tables.items()})
    return +sizes
