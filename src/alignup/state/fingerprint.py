"""Fingerprints of a machine and of settings, to detect after a restart that they have changed.

A difference alone is not an error: what pods hold may still exist, which ``schema.ledgers`` checks.
"""

import hashlib
import json
from collections.abc import Mapping

from alignup.align import bits
from alignup.align.host import Settings
from alignup.align.machine import Machine
from alignup.align.settings import TOPOLOGY_OPTIONS, TopologySettings
from alignup.align.workload import Amounts
from alignup.schema.checkpoints import Fingerprint


def fingerprint_of(facts: Mapping[str, str]) -> Fingerprint:
    """Return the fingerprint of *facts*, in any order."""
    text = json.dumps(dict(facts), sort_keys=True)
    return Fingerprint(hashlib.sha256(text.encode()).hexdigest()[:32], dict(facts))


def machine_fingerprint(machine: Machine) -> Fingerprint:
    """Return the facts that decide what pods can hold; devices are not among them, because plugins come and go."""
    view = machine.kubelet_view()
    sockets = (f"{socket}: {bits.show(cpus)}" for socket, cpus in view.socket_cpus.items())
    facts = {"CPUs": bits.show(view.all_cpus), "CPUs of sockets": "; ".join(sockets)}
    for node in view.nodes:
        cpus = f"CPUs {bits.show(view.node_cpus.get(node.id, 0)) or 'none'}"
        memory = "memory unknown" if node.memory is None else f"{node.memory} bytes"
        pages = (f"{one.count} {one.resource}" for one in node.hugepages)
        facts[f"NUMA node {node.id}"] = ", ".join((cpus, memory, *pages))
    return fingerprint_of(facts)


def settings_fingerprint(settings: Settings) -> Fingerprint:
    """Return every setting that can change a decision."""
    topology, cpus = settings.topology, settings.cpus
    reserved = (f"{entry.node}: {_amounts(entry.limits)}" for entry in settings.reserved_memory)
    return fingerprint_of(
        {
            "topology manager policy": topology.policy,
            "topology manager scope": topology.scope,
            **{name: _option_value(topology, option.field) for name, option in TOPOLOGY_OPTIONS.items()},
            "CPU manager policy": cpus.policy,
            "CPU manager options": _pairs(cpus.options),
            "reserved CPUs": bits.show(cpus.explicit),
            "CPU reservation": "" if cpus.reservation is None else cpus.reservation.canonical(),
            "memory manager policy": settings.memory_policy,
            "reserved memory": "; ".join(reserved),
            "reservation": _amounts(settings.reservation),
            "feature gates": _pairs({name: _on_off(on) for name, on in settings.gates.changed.items()}),
            "resources with preferred allocation": ", ".join(sorted(settings.preferred_allocation)),
            "fit check": _on_off(settings.fit_check),
            "maximum number of pods": str(settings.max_pods),
            "pod policy annotations": _on_off(settings.pod_policy_annotations),
            "kubelet defects": _on_off(settings.kubelet_faults),
        }
    )


def _option_value(topology: TopologySettings, field: str) -> str:
    value = getattr(topology.options, field)
    if field == "max_nodes" and not topology.limit_nodes:
        return "any"
    return _on_off(value) if isinstance(value, bool) else str(value)


def _amounts(amounts: Amounts) -> str:
    return _pairs({name: amount.canonical() for name, amount in amounts.items()})


def _pairs(pairs: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(pairs.items()))


def _on_off(enabled: bool) -> str:  # noqa: FBT001 - a plain conversion
    return "on" if enabled else "off"
