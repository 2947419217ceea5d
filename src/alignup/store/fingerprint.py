"""Fingerprints of a machine and of settings, to detect after a restart that they have changed.

A difference alone is not an error: what pods hold may still exist, which ``documents.ledgers`` checks.
"""

import hashlib
import json
from collections.abc import Mapping

from alignup.align import bits
from alignup.align.host import Settings
from alignup.align.machine import Machine
from alignup.align.quantity import Quantity
from alignup.align.settings import TOPOLOGY_OPTIONS
from alignup.documents.codec import Document


class Fingerprint(Document, frozen=True):
    """What a ledger was written on: named facts, and a digest of all of them."""

    fingerprint: str
    facts: dict[str, str]

    def differences(self, now: "Fingerprint") -> tuple[str, ...]:
        return tuple(
            f"{name}: was {self.facts.get(name) or 'nothing'}, is {now.facts.get(name) or 'nothing'}"
            for name in {**self.facts, **now.facts}
            if self.facts.get(name) != now.facts.get(name)
        )


def fingerprint_of(facts: Mapping[str, str]) -> Fingerprint:
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
        pages = (f"{page.count} {page.resource}" for page in node.hugepages)
        facts[f"NUMA node {node.id}"] = ", ".join((cpus, memory, *pages))
    return fingerprint_of(facts)


def settings_fingerprint(settings: Settings) -> Fingerprint:
    """Return every setting that can change a decision."""
    topology, cpus = settings.topology, settings.cpus
    options = {name: getattr(topology.options, option.field) for name, option in TOPOLOGY_OPTIONS.items()}
    facts = {
        "release": settings.release,
        "topology manager policy": topology.policy,
        "topology manager scope": topology.scope,
        **(options if topology.limit_nodes else options | {"max-allowable-numa-nodes": "any"}),
        "CPU manager policy": cpus.policy,
        "CPU manager options": cpus.options,
        "reserved CPUs": bits.show(cpus.explicit),
        "CPU reservation": cpus.reservation,
        "memory manager policy": settings.memory_policy,
        "reserved memory": "; ".join(f"{entry.node}: {_text(entry.limits)}" for entry in settings.reserved_memory),
        "reservation": settings.reservation,
        "feature gates": settings.gates.changed,
        "resources with preferred allocation": ", ".join(sorted(settings.preferred_allocation)),
        "fit check": settings.fit_check,
        "maximum number of pods": settings.max_pods,
        "pod policy annotations": settings.pod_policy_annotations,
        "kubelet defects": settings.kubelet_faults,
    }
    if settings.near_devices:
        facts["near devices"] = True
    if settings.plugin_rules:
        facts["rules of device plugins"] = ", ".join(f"{name}={rule}" for name, rule in settings.plugin_rules.items())
    return fingerprint_of({name: _text(value) for name, value in facts.items()})


def _text(value: object) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "on" if value else "off"
        case Quantity():
            return value.canonical()
        case Mapping():
            return ", ".join(f"{name}={_text(part)}" for name, part in sorted(value.items()))
        case _:
            return str(value)
