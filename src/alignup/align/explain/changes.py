"""The changes that may admit a rejected pod, each a value that can be applied and described.

Applying a change returns another host and another pod and leaves the originals alone. It raises ``SettingsError`` where
a kubelet would not start with the changed settings, and ``StateError`` where it would not start with the running pods.
"""

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice
from typing import Any, NamedTuple

from alignup.align import bits
from alignup.align.bits import CpuSet
from alignup.align.cpus.options import CpuPolicy
from alignup.align.decision import Decision
from alignup.align.devices.provider import PreferenceAnswers
from alignup.align.errors import SettingsError, StateError, WorkLimitError
from alignup.align.eviction_search import HostShortage, SearchTimeoutError
from alignup.align.explain import sentences
from alignup.align.host import Host, Settings
from alignup.align.ledger import Ledger
from alignup.align.memory import reserved_memory
from alignup.align.memory.reserved_memory import ReservedMemory
from alignup.align.quantity import Quantity, QuantityFormat
from alignup.align.settings import Policy, Scope, TopologyOptions
from alignup.align.workload import Pod, Resources
from alignup.align.workload.names import CPU, POLICY_ANNOTATION, SCOPE_ANNOTATION

POLICY = "topologyManagerPolicy"
SCOPE = "topologyManagerScope"
TOPOLOGY_OPTION = "topologyManagerPolicyOptions."
CPU_OPTION = "cpuManagerPolicyOptions."
#: The annotations of a pod that chooses its policy and scope.
OWN_POLICY = f"metadata.annotations[{POLICY_ANNOTATION}]"
OWN_SCOPE = f"metadata.annotations[{SCOPE_ANNOTATION}]"


class Unit(StrEnum):
    CPUS = "CPUs"
    MILLI_CPUS = "milli-CPUs"
    BYTES = "bytes"
    COUNT = "count"

    def quantity(self, amount: int) -> Quantity:
        if self is Unit.MILLI_CPUS:
            return Quantity(amount, -3) if amount % 1000 else Quantity.of(amount // 1000)
        return Quantity.of(amount, QuantityFormat.BINARY_SI if self is Unit.BYTES else QuantityFormat.DECIMAL_SI)

    def document(self, was: int, now: int) -> dict[str, str]:
        return {"was": str(self.quantity(was)), "now": str(self.quantity(now))}


@dataclass(frozen=True, slots=True)
class RequestChange:
    """Another amount of a resource for one container or for the pod.

    Exclusive CPUs are counted in CPUs, shared ones in milli-CPUs. A limit equal to the request changes with it, so
    that the QoS class stays. 0 removes the resource.
    """

    container: str | None  #: ``None``: the pod-level resources
    resource: str
    was: int
    now: int
    unit: Unit

    def apply(self, host: Host, pod: Pod) -> tuple[Host, Pod]:
        if self.container is None:
            return host, replace(pod, resources=self._changed(pod.resources))
        init, containers = (
            tuple(
                replace(container, resources=self._changed(container.resources))
                if container.name == self.container
                else container
                for container in group
            )
            for group in (pod.init, pod.containers)
        )
        return host, replace(pod, init=init, containers=containers)

    @property
    def subject(self) -> str:
        return f"container {self.container}" if self.container else "the pod"

    def describe(self, _: Ledger) -> str:
        if not self.now:
            return f"remove {self.resource} from {self.subject}"
        return f"request {_instead(self, milli=self.unit is Unit.MILLI_CPUS)} for {self.subject}"

    def to_document(self, _: Ledger) -> dict[str, Any]:
        subject = {"container": self.container, "resource": self.resource}
        return {"kind": "request", **subject, **self.unit.document(self.was, self.now)}

    def _changed(self, old: Resources) -> Resources:
        requests, limits = dict(old.requests), dict(old.limits)
        request, limit = requests.get(self.resource), limits.get(self.resource)
        limit_follows = request == limit or request is None or not self.now
        for amounts, changes in ((requests, request is not None), (limits, limit is not None and limit_follows)):
            if changes and self.now:
                amounts[self.resource] = self.unit.quantity(self.now)
            elif changes:
                del amounts[self.resource]
        return Resources(requests, limits, old.claims)


@dataclass(frozen=True, slots=True)
class SettingChange:
    """Another value for a field of the kubelet's configuration, or for an annotation of the pod."""

    field: str
    was: str
    now: str

    def apply(self, host: Host, pod: Pod) -> tuple[Host, Pod]:
        if self.field in {OWN_POLICY, OWN_SCOPE}:
            key = POLICY_ANNOTATION if self.field == OWN_POLICY else SCOPE_ANNOTATION
            return host, replace(pod, annotations={**pod.annotations, key: self.now})
        settings = host.settings
        if self.field.startswith(CPU_OPTION):
            options = {**settings.cpus.options, self.field.removeprefix(CPU_OPTION): self.now}
            return migrate_host(host, replace(settings, cpus=replace(settings.cpus, options=options))), pod
        topology = settings.topology
        if self.field == POLICY:
            topology = replace(topology, policy=Policy(self.now))
        elif self.field == SCOPE:
            topology = replace(topology, scope=Scope(self.now))
        else:
            option = {self.field.removeprefix(TOPOLOGY_OPTION): self.now}
            option_set = TopologyOptions.parse(option, gates=settings.gates, base=topology.options)
            topology = replace(topology, options=option_set)
        return migrate_host(host, replace(settings, topology=topology)), pod

    def describe(self, _: Ledger) -> str:
        return f"set {self.field} to {self.now} instead of {self.was}"

    def to_document(self, _: Ledger) -> dict[str, Any]:
        return {"kind": "setting", "field": self.field, "was": self.was, "now": self.now}


@dataclass(frozen=True, slots=True)
class Eviction:
    pods: tuple[str, ...]  #: uids
    alternatives: tuple[tuple[str, ...], ...] = ()  #: for each pod, the others that could go instead

    def apply(self, host: Host, pod: Pod) -> tuple[Host, Pod]:
        return host.without_pods(self.pods), pod

    def describe(self, ledger: Ledger) -> str:
        count = sum(map(len, self.alternatives))
        if not count:
            others = ""
        elif len(self.pods) > 1:
            others = " (or other pods that hold the same)"
        elif count == 1:
            others = " (or another pod that holds the same)"
        else:
            others = f" (or one of {count} others that hold the same)"
        return f"evict {_and(map(ledger.pod_name, self.pods))}{others}"

    def to_document(self, ledger: Ledger) -> dict[str, Any]:
        pods = [{"uid": uid, "name": ledger.pod_name(uid)} for uid in self.pods]
        return {"kind": "leaving", "pods": pods, "instead": [list(alike) for alike in self.alternatives]}


class NodeReservationChange(NamedTuple):
    """A change of ``reservedMemory`` on one NUMA node, in bytes."""

    node: int
    was: int
    now: int

    def __str__(self) -> str:
        was, now = map(sentences.format_quantity, (self.was, self.now))
        return f"{now} instead of {was} on NUMA node {self.node}"


@dataclass(frozen=True, slots=True)
class ReservationChange:
    """A smaller reservation for system daemons, or the same one on other NUMA nodes.

    A kubelet does not start on stored state when ``reservedMemory`` changed: the node has to be drained first.
    """

    resource: str
    was: int  #: reserved on the whole host: milli-CPUs or bytes
    now: int
    listed: tuple[CpuSet, CpuSet] | None = None  #: ``reservedSystemCPUs`` before and after; ``None``: not set
    shares: tuple[NodeReservationChange, ...] = ()  #: the changed entries of ``reservedMemory``

    @property
    def unit(self) -> Unit:
        return Unit.MILLI_CPUS if self.resource == CPU else Unit.BYTES

    def apply(self, host: Host, pod: Pod) -> tuple[Host, Pod]:
        settings = host.settings
        reservation, cpus = dict(settings.reservation), settings.cpus
        if self.resource in reservation:
            reservation[self.resource] = self._adjust(reservation[self.resource])
        if self.resource == CPU and cpus.reservation is not None:
            explicit = self.listed[1] if self.listed else cpus.explicit
            cpus = replace(cpus, reservation=self._adjust(cpus.reservation), explicit=explicit)
        entries = settings.reserved_memory
        if self.shares:
            new = {share.node: Unit.BYTES.quantity(share.now) for share in self.shares}
            new_entries = [
                ReservedMemory(entry.node, {**entry.limits, self.resource: new.pop(entry.node)})
                if self.resource in entry.limits and entry.node in new
                else entry
                for entry in entries
            ]
            new_entries += [ReservedMemory(node, {self.resource: amount}) for node, amount in new.items()]
            positive = (
                {name: amount for name, amount in entry.limits.items() if amount.unscaled} for entry in new_entries
            )
            entries = tuple(
                ReservedMemory(entry.node, limits)
                for entry, limits in zip(new_entries, positive, strict=True)
                if limits
            )
        other = migrate_host(host, replace(settings, reservation=reservation, cpus=cpus, reserved_memory=entries))
        sizes = {entry.node: {type_: amount.value() for type_, amount in entry.limits.items()} for entry in entries}
        for excess in reserved_memory.excess_reservations(host.view.nodes, sizes) if self.shares else ():
            raise StateError(excess)
        return other, pod

    def describe(self, _: Ledger) -> str:
        if self.shares:
            was, now = map(sentences.format_quantity, (self.was, self.now))
            total = f"reserve {now} instead of {was} of {self.resource} in total, in reservedMemory"
            action = f"move reservedMemory ({self.resource}):" if self.was == self.now else total
            drain = "(drain the node first: memory_manager_state records the old reservation)"
            return f"{action} {_and(map(str, self.shares))} {drain}"
        if self.listed:
            was, now = (bits.show(cpus) or "none" for cpus in self.listed)
            return f"set reservedSystemCPUs to {now} instead of {was}"
        return f"reserve {_instead(self, milli=self.resource == CPU)} for system daemons"

    def to_document(self, _: Ledger) -> dict[str, Any]:
        document: dict[str, Any] = {"kind": "reservation", "resource": self.resource}
        document |= self.unit.document(self.was, self.now)
        if self.listed:
            was, now = map(bits.show, self.listed)
            document["reservedSystemCPUs"] = {"was": was, "now": now}
        if self.shares:
            document["reservedMemory"] = [
                {"node": share.node, **self.unit.document(share.was, share.now)} for share in self.shares
            ]
        return document

    def _adjust(self, amount: Quantity) -> Quantity:
        """Return *amount*, changed by as much as the reservation."""
        if self.was == self.now:
            return amount
        old_amount = amount.milli() if self.resource == CPU else amount.value()
        return self.unit.quantity(max(0, old_amount - self.was + self.now))


Change = RequestChange | SettingChange | Eviction | ReservationChange


def _instead(change: RequestChange | ReservationChange, *, milli: bool) -> str:
    now = sentences.format_amount(change.resource, change.now, milli=milli)
    return f"{now} instead of {sentences.format_number(change.resource, change.was, milli=milli)}"


def _and(names: Iterable[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def apply_changes(changes: Iterable[Change], host: Host, pod: Pod) -> tuple[Host, Pod]:
    host = copy(host)
    for change in changes:
        host, pod = change.apply(host, pod)
    return host, pod


class Proposal(NamedTuple):
    """Changes that together admit the pod, and the decision that proves it."""

    changes: tuple[Change, ...]
    decision: Decision

    def apply(self, host: Host, pod: Pod) -> tuple[Host, Pod]:
        return apply_changes(self.changes, host, pod)

    def describe(self, ledger: Ledger) -> str:
        """Return the changes in one sentence; *ledger* gives the names of pods."""
        return ", and ".join(change.describe(ledger) for change in self.changes)

    def describe_result(self) -> str:
        """Return what the containers get; where the resources of one have no NUMA node in common, this is said."""
        placements, new_ledger = self.decision.placements, self.decision.after
        spans = {}
        for placement in placements if new_ledger is not None else ():
            common, union = -1, 0
            for nodes in placement.sites(new_ledger):  # type: ignore[arg-type] # the loop is empty without a ledger
                common, union = common & nodes, union | nodes
            if not common:
                spans[placement.container] = f"spans NUMA nodes {bits.show(union)}"
        if len(placements) == 1:
            return " · ".join([sentences.describe_allocation(placements[0]), *spans.values()])
        return "; ".join(
            [sentences.describe_allocations(placements), *(f"{name} {text}" for name, text in spans.items())]
        )

    def to_document(self, ledger: Ledger) -> dict[str, Any]:
        return {
            "sentence": self.describe(ledger),
            "changes": [change.to_document(ledger) for change in self.changes],
            "placements": [
                {
                    "container": placement.container,
                    "nodes": sentences.node_list(placement.hint.nodes),
                    "given": placement.as_text(),
                }
                for placement in self.decision.placements
            ],
        }


def migrate_host(host: Host, settings: Settings) -> Host:
    """Return a host with *settings* and the pods of *host*, which hold the same as before.

    A kubelet restarted with other settings finds its pods in place, and counts what is free again. It does not start if
    that is impossible, such as when a pod holds a CPU that is now reserved.
    Raises ``SettingsError`` if a kubelet would not start with the settings, ``StateError`` if not with these pods.
    """
    other = Host(host.machine, settings, others=host.others)
    provider, cpus = other.cpus, host.ledger.cpus
    if provider.policy is not CpuPolicy.NONE:
        excluded_cpus = provider.reserved if provider.options.strict_cpu_reservation else 0
        owned_cpus = bits.union(map(cpus.owned, {*cpus.held, *cpus.pod_held}))
        shared_cpus = other.view.all_cpus & ~(owned_cpus | excluded_cpus)
        if (shared_cpus, provider.reserved) != (cpus.shared, cpus.reserved):
            cpu_ledger = provider.restore_ledger(shared_cpus, cpus.held, pod_held=cpus.pod_held)
            cpus = replace(cpu_ledger, reusable=cpus.reusable)
    idle, memory = other.ledger.memory, host.ledger.memory
    if idle.allocatable() != memory.allocatable():
        memory = memory.moved_to(idle)
    other.ledger = replace(host.ledger, cpus=cpus, memory=memory)
    return other


class WhatIf:
    """A pod on a host, decided again under changed conditions: the basis of every search for remedies.

    Device plugins cannot be called here. A missing preferred allocation is assumed to be the lowest device ids offered.
    """

    def __init__(self, host: Host, pod: Pod, *, answers: PreferenceAnswers, should_stop: Callable[[], bool]) -> None:
        self.host = host
        self.pod = pod
        self._answers = answers
        self._should_stop = should_stop
        self.unsearched: list[str] = []  #: what was not tried and why, as sentences
        self.decision = host.decide_without_plugins(pod, answers)  #: without any change
        self.shortage = HostShortage.of(host, pod)

    def propose(self, *changes: Change) -> Proposal | None:
        """Return these changes as a proposal if they admit the pod, else ``None``."""
        self.check_time()
        try:
            host, pod = apply_changes(changes, self.host, self.pod)
            decision = host.decide_without_plugins(pod, self._answers)
        except (SettingsError, StateError):
            return None
        except WorkLimitError:
            self.note_unsearched("A change that exceeds the work limit was not tried.")
            return None
        return Proposal(changes, decision) if decision.admitted else None

    def first(
        self,
        candidates: Iterable[Sequence[Change]],
        *,
        limit: int | None = None,
        beyond: str = "",
        is_valid: Callable[[Proposal], bool] = lambda _: True,
    ) -> tuple[Proposal, ...]:
        """Return the first valid proposal of *candidates*, if any; *beyond* is noted if there are more than *limit*."""
        rest = iter(candidates)
        for changes in islice(rest, limit):
            proposal = self.propose(*changes)
            if proposal and is_valid(proposal):
                return (proposal,)
        if next(rest, None) is not None:
            self.note_unsearched(beyond)
        return ()

    def check_time(self) -> None:
        if self._should_stop():
            raise SearchTimeoutError

    def missing(self, resource: str) -> int:
        return next((short.missing for short in self.shortage.shortfalls if short.resource == resource), 0)

    def note_unsearched(self, sentence: str) -> None:
        if sentence not in self.unsearched:
            self.unsearched.append(sentence)
