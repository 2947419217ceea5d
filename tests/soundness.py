"""Invariants of every host: nothing is allocated twice, nothing is lost."""

from collections import Counter
from typing import Any

from alignup.align import bits
from alignup.align.host import Host
from tests.conformance.harness import Case


def by_group(memory: Case) -> dict[Any, Any]:
    """Return the memory state with reserved and free bytes summed over each group of nodes."""
    groups: dict[Any, Any] = {}
    for id_, node in memory.items():
        sums = groups.setdefault(tuple(node["cells"]), Counter())
        for type_, (total, system, allocatable, reserved, free) in node["tables"].items():
            sums[type_, "reserved"] += reserved
            sums[type_, "free"] += free
            sums[id_, type_] = (node["assignments"], total, system, allocatable)
    return groups


def check_sound(host: Host, where: str) -> None:
    """Check that nothing is allocated twice and nothing is lost."""
    cpus, memory, devices = host.ledger.cpus, host.ledger.memory, host.ledger.devices
    owned = 0
    for uid in {*cpus.held, *cpus.pod_held}:
        held_cpus = cpus.owned(uid)
        assert not held_cpus & (owned | cpus.shared), f"{where}: CPUs {bits.show(held_cpus)} of {uid} have two owners"
        owned |= held_cpus
    if cpus.shared or owned:
        strict = host.settings.cpus.options.get("strict-cpu-reservation") == "true"
        assert owned | cpus.shared == host.view.all_cpus & ~(cpus.reserved if strict else 0), f"{where}: CPUs are lost"
    for id_, node in memory.nodes.items():
        for type_, table in node.tables.items():
            assert table.reserved + table.free == table.allocatable, f"{where}: {type_} of node {id_} is lost"
    holders: Counter[Any] = Counter()
    for containers in devices.held.values():
        holders.update(
            {(resource, device) for held in containers.values() for resource in held for device in held[resource]}
        )
    assert not [device for device, count in holders.items() if count > 1], f"{where}: a device has two owners"
