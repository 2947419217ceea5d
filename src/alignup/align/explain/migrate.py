"""Move the pods of a host to a host with other settings.

A kubelet restarted with other settings finds its pods in place: they keep what they hold, and free resources are
counted again. It does not start if that is impossible, such as when a pod holds a CPU that is now reserved.
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
from alignup.align.memory.provider import MemoryProvider


def migrate_host(host: Host, settings: Settings) -> Host:
    """A host with *settings* and the pods of *host*, which hold the same as before.

    Raises ``SettingsError`` if a kubelet would not start with the settings, ``StateError`` if not with these pods.
    """
    other = Host(host.machine, settings, others=host.others)
    other.ledger = replace(
        host.ledger,
        cpus=_migrate_cpus(other.cpus, host.ledger.cpus),
        memory=_migrate_memory(other.memory, host.ledger.memory),
    )
    return other


def _migrate_cpus(rules: CpuProvider, ledger: CpuLedger) -> CpuLedger:
    if rules.policy is CpuPolicy.NONE:
        return ledger
    excluded = rules.reserved if rules.options.strict_cpu_reservation else 0
    owned = union(map(ledger.owned, {*ledger.held, *ledger.pod_held}))
    shared = rules.view.all_cpus & ~(owned | excluded)
    if (shared, rules.reserved) == (ledger.shared, ledger.reserved):
        return ledger
    return replace(rules.restore_ledger(shared, ledger.held, pod_held=ledger.pod_held), reusable=ledger.reusable)


def _migrate_memory(rules: MemoryProvider, ledger: MemoryLedger) -> MemoryLedger:
    """The blocks of *ledger*, allocated again under another reservation."""
    idle = rules.initial_ledger()
    if idle.allocatable() == ledger.allocatable():
        return ledger
    migrated = idle
    for uid, container, blocks in sorted(_held_blocks(ledger), key=lambda held: -held[2][0].nodes.bit_count()):
        migrated = migrated.give(uid, container, blocks=blocks)
    if _total_reserved(migrated) != _total_reserved(ledger):
        raise StateError("the reservation takes memory that running pods hold")
    return MemoryLedger(migrated.nodes, ledger.held, ledger.pod_held, ledger.last_pod, ledger.reusable)


def _held_blocks(ledger: MemoryLedger) -> Iterator[tuple[str, str, tuple[Block, ...]]]:
    """All allocated blocks; those of one container on the same nodes together."""
    pod_level = {uid: {"": blocks} for uid, blocks in ledger.pod_held.items()}
    for uid, containers in {**ledger.held, **pod_level}.items():
        for container, blocks in containers.items():
            for _, together in groupby(sorted(blocks), key=lambda block: block.nodes):
                yield uid, container, tuple(together)


def _total_reserved(ledger: MemoryLedger) -> Counter[str]:
    """Type → bytes held on all nodes together."""
    sizes: Counter[str] = Counter()
    for node in ledger.nodes.values():
        sizes.update({type_: table.reserved for type_, table in node.tables.items()})
    return +sizes
