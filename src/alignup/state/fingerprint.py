"""What a checkpoint was written on: the machine and the settings, to tell whether they are still the same.

A :class:`Fingerprint` has facts for people, each under a name, and a fingerprint of them all. That they differ later is no
reason to refuse anything: what pods hold may be there all the same, and ``schema.ledgers`` looks. It is what to tell
people first when it is not.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from alignup.align import bits
from alignup.align.host import Settings
from alignup.align.machine import KubeletView, Machine, NumaNode
from alignup.align.workload import Amounts


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What something was like."""

    fingerprint: str  #: of the facts, in hexadecimal digits
    facts: Mapping[str, str]  #: by name, in words

    @classmethod
    def of(cls, facts: Mapping[str, str]) -> Self:
        """The mark of *facts*, whatever order they come in."""
        text = json.dumps(dict(facts), sort_keys=True)
        return cls(hashlib.sha256(text.encode()).hexdigest()[:32], dict(facts))

    def changes(self, now: "Fingerprint") -> tuple[str, ...]:
        """What is different *now*, a sentence each; nothing when all is the same."""
        names = {**self.facts, **now.facts}
        return tuple(
            f"{name}: was {self.facts.get(name) or 'nothing'}, is {now.facts.get(name) or 'nothing'}"
            for name in names
            if self.facts.get(name) != now.facts.get(name)
        )

    def to_document(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {"fingerprint": self.fingerprint, "facts": dict(self.facts)}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """The mark a document describes; ``KeyError``, ``TypeError`` or ``AttributeError`` when it describes none."""
        return cls(str(document["fingerprint"]), {str(name): str(fact) for name, fact in document["facts"].items()})


def machine_fingerprint(machine: Machine) -> Fingerprint:
    """The machine, as far as it matters to who may hold what; devices come and go, and do not count."""
    view = machine.kubelet_view()
    sockets = (f"{socket}: {bits.show(cpus)}" for socket, cpus in view.socket_cpus.items())
    nodes = {f"NUMA node {node.id}": _node(node, view) for node in view.nodes}
    return Fingerprint.of({"CPUs": bits.show(view.all_cpus), "CPUs of sockets": "; ".join(sockets), **nodes})


def settings_fingerprint(settings: Settings) -> Fingerprint:
    """Every setting that has a say in a decision."""
    topology, cpus = settings.topology, settings.cpus
    reserved = (f"{entry.node}: {_amounts(entry.limits)}" for entry in settings.reserved_memory)
    return Fingerprint.of(
        {
            "topology manager policy": topology.policy,
            "topology manager scope": topology.scope,
            "prefer-closest-numa-nodes": _flag(topology.options.prefer_closest),
            "max-allowable-numa-nodes": str(topology.options.max_nodes) if topology.limit_nodes else "any",
            "CPU manager policy": cpus.policy,
            "CPU manager options": _pairs(cpus.options),
            "reserved CPUs": bits.show(cpus.explicit),
            "CPU reservation": "" if cpus.reservation is None else cpus.reservation.canonical(),
            "memory manager policy": settings.memory_policy,
            "reserved memory": "; ".join(reserved),
            "reservation": _amounts(settings.reservation),
            "feature gates": _pairs({name: _flag(on) for name, on in settings.gates.changed.items()}),
            "resources whose plugins are asked": ", ".join(sorted(settings.preferred_allocation)),
            "fit check": _flag(settings.fit_check),
            "most pods": str(settings.max_pods),
            "pods choose their policy": _flag(settings.own_policy),
            "faults of the kubelet": _flag(settings.kubelet_faults),
        }
    )


def _node(node: NumaNode, view: KubeletView) -> str:
    pages = (f"{one.count} {one.resource}" for one in node.hugepages)
    cpus = f"CPUs {bits.show(view.node_cpus.get(node.id, 0)) or 'none'}"
    return ", ".join((cpus, "memory unknown" if node.memory is None else f"{node.memory} bytes", *pages))


def _amounts(amounts: Amounts) -> str:
    return _pairs({name: amount.canonical() for name, amount in amounts.items()})


def _pairs(pairs: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(pairs.items()))


def _flag(on: bool) -> str:  # noqa: FBT001 - the one thing there is to say
    return "on" if on else "off"
