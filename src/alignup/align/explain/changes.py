"""What could be changed to have a refused pod admitted, each change as a value that can be applied.

Applying never touches the host and the pod it is given: it returns others. Where a kubelet would not start under a
change, or not with the pods that are there, applying is a ``SettingsError`` or a ``StateError``.
"""

from collections.abc import Iterable, Iterator
from copy import copy
from dataclasses import dataclass, replace
from enum import StrEnum

from alignup.align.admit import POLICY_ANNOTATION, SCOPE_ANNOTATION
from alignup.align.bits import CpuSet
from alignup.align.decision import Decision
from alignup.align.errors import StateError
from alignup.align.explain.migrate import migrate_host
from alignup.align.host import Host, Settings
from alignup.align.memory import reserved_memory
from alignup.align.memory.reserved_memory import ReservedMemory
from alignup.align.quantity import Quantity, QuantityFormat
from alignup.align.settings import Policy, Scope, TopologySettings, parse_bool
from alignup.align.workload import Amounts, Container, Pod, Resources
from alignup.align.workload.names import CPU

POLICY = "topologyManagerPolicy"
SCOPE = "topologyManagerScope"
TOPOLOGY_OPTION = "topologyManagerPolicyOptions."
CPU_OPTION = "cpuManagerPolicyOptions."
CLOSEST = TOPOLOGY_OPTION + "prefer-closest-numa-nodes"
#: The fields of a pod that chooses for itself.
OWN_POLICY = f"metadata.annotations[{POLICY_ANNOTATION}]"
OWN_SCOPE = f"metadata.annotations[{SCOPE_ANNOTATION}]"


class Unit(StrEnum):
    """What an amount is counted in."""

    CPUS = "CPUs"
    MILLI_CPUS = "milli-CPUs"
    BYTES = "bytes"
    PIECES = "pieces"

    def quantity(self, amount: int) -> Quantity:
        """*amount* as Kubernetes writes it."""
        if self is Unit.MILLI_CPUS:
            return Quantity(amount, -3) if amount % 1000 else Quantity.of(amount // 1000)
        return Quantity.of(amount, QuantityFormat.BINARY_SI if self is Unit.BYTES else QuantityFormat.DECIMAL_SI)


@dataclass(frozen=True, slots=True)
class RequestChange:
    """Another amount of a resource for one container, or for the pod as a whole.

    CPUs of its own a container asks for in whole CPUs, a share of the others' in thousandths. The limit goes with the
    request where both were equal, so that the QoS class stays; none at all means that the resource is not named.
    """

    container: str | None  #: ``None``: the resources of the pod as a whole
    resource: str
    was: int
    now: int
    unit: Unit

    def apply(self, host: Host, pod: Pod) -> tuple[Host, Pod]:
        """The same host, and the pod that asks for another amount."""
        if self.container is None:
            return host, replace(pod, resources=self._changed(pod.resources))
        init, containers = (tuple(map(self._where_meant, group)) for group in (pod.init, pod.containers))
        return host, replace(pod, init=init, containers=containers)

    def _where_meant(self, container: Container) -> Container:
        if container.name != self.container:
            return container
        return replace(container, resources=self._changed(container.resources))

    def _changed(self, old: Resources) -> Resources:
        request, limit = old.requests.get(self.resource), old.limits.get(self.resource)
        both = request == limit or not self.now
        return Resources(
            old.requests if request is None else self._set(old.requests),
            self._set(old.limits) if limit is not None and (both or request is None) else old.limits,
            old.claims,
        )

    def _set(self, amounts: Amounts) -> Amounts:
        if not self.now:
            return {name: amount for name, amount in amounts.items() if name != self.resource}
        return {**amounts, self.resource: self.unit.quantity(self.now)}


@dataclass(frozen=True, slots=True)
class SettingChange:
    """Another value of a field of the kubelet's configuration, by its name there, or of an annotation of the pod."""

    field: str
    was: str
    now: str

    def apply(self, host: Host, pod: Pod) -> tuple[Host, Pod]:
        """The host under the other setting with all its pods, and the pod with the other annotation, if it is one."""
        if self.field in {OWN_POLICY, OWN_SCOPE}:
            key = POLICY_ANNOTATION if self.field == OWN_POLICY else SCOPE_ANNOTATION
            return host, replace(pod, annotations={**pod.annotations, key: self.now})
        return migrate_host(host, self._changed(host.settings)), pod

    def _changed(self, old: Settings) -> Settings:
        if self.field.startswith(CPU_OPTION):
            options = {**old.cpus.options, self.field.removeprefix(CPU_OPTION): self.now}
            return replace(old, cpus=replace(old.cpus, options=options))
        return replace(old, topology=self._topology(old.topology))

    def _topology(self, old: TopologySettings) -> TopologySettings:
        if self.field == POLICY:
            return replace(old, policy=Policy(self.now))
        if self.field == SCOPE:
            return replace(old, scope=Scope(self.now))
        return replace(old, options=replace(old.options, prefer_closest=parse_bool(self.field, self.now)))


@dataclass(frozen=True, slots=True)
class Eviction:
    """Running pods leave."""

    pods: tuple[str, ...]  #: their uids
    instead_of: tuple[tuple[str, ...], ...] = ()  #: for each of them, others of whom one could leave in its place

    def apply(self, host: Host, pod: Pod) -> tuple[Host, Pod]:
        """The host without them, and the same pod."""
        rest = copy(host)
        for uid in self.pods:
            rest.release(uid)
        return rest, pod


@dataclass(frozen=True, slots=True)
class NodeReservationChange:
    """What ``reservedMemory`` keeps back on one NUMA node, in bytes."""

    node: int
    was: int
    now: int


@dataclass(frozen=True, slots=True)
class ReservationChange:
    """Less kept back for system and Kubernetes, or the same in other places.

    A kubelet does not start with another ``reservedMemory`` on the state it stored: its node is to be drained before.
    """

    resource: str
    was: int  #: kept back on the host as a whole: thousandths of a CPU, or bytes
    now: int
    listed: tuple[CpuSet, CpuSet] | None = None  #: ``reservedSystemCPUs`` before and after; ``None``: there is no list
    shares: tuple[NodeReservationChange, ...] = ()  #: ``reservedMemory`` where it changes

    @property
    def moved(self) -> bool:
        """Whether as much is kept back as before."""
        return self.was == self.now

    def apply(self, host: Host, pod: Pod) -> tuple[Host, Pod]:
        """The host with another reservation and all its pods, and the same pod."""
        other = migrate_host(host, self._changed(host.settings))
        kept = {
            entry.node: {type_: amount.value() for type_, amount in entry.limits.items()}
            for entry in other.settings.reserved_memory
        }
        for sentence in reserved_memory.excess_reservations(host.view.nodes, kept) if self.shares else ():
            raise StateError(sentence)
        return other, pod

    def _changed(self, old: Settings) -> Settings:
        reservation = dict(old.reservation)
        if self.resource in reservation:
            reservation[self.resource] = self._less(reservation[self.resource])
        cpus = old.cpus
        if self.resource == CPU and cpus.reservation is not None:
            explicit = self.listed[1] if self.listed else cpus.explicit
            cpus = replace(cpus, reservation=self._less(cpus.reservation), explicit=explicit)
        entries = tuple(self._entries(old.reserved_memory)) if self.shares else old.reserved_memory
        return replace(old, reservation=reservation, cpus=cpus, reserved_memory=entries)

    def _less(self, amount: Quantity) -> Quantity:
        """*amount* by as much less as the reservation is."""
        if self.moved:
            return amount
        unit = Unit.MILLI_CPUS if self.resource == CPU else Unit.BYTES
        before = amount.milli() if self.resource == CPU else amount.value()
        return unit.quantity(max(0, before - self.was + self.now))

    def _entries(self, old: tuple[ReservedMemory, ...]) -> Iterator[ReservedMemory]:
        """The entries with the shares as they are to be; what is nothing is left out."""
        left = {share.node: share.now for share in self.shares}
        for entry in old:
            limits = dict(entry.limits)
            if self.resource in limits and entry.node in left:
                limits[self.resource] = Unit.BYTES.quantity(left.pop(entry.node))
            limits = {type_: amount for type_, amount in limits.items() if not amount.is_zero}
            if limits:
                yield ReservedMemory(entry.node, limits)
        for node, size in left.items():
            yield ReservedMemory(node, {self.resource: Unit.BYTES.quantity(size)})


Change = RequestChange | SettingChange | Eviction | ReservationChange


def apply_changes(changes: Iterable[Change], host: Host, pod: Pod) -> tuple[Host, Pod]:
    """Another host and another pod, under all *changes*; those given stay as they are."""
    host = copy(host)
    for change in changes:
        host, pod = change.apply(host, pod)
    return host, pod


@dataclass(frozen=True, slots=True)
class Proposal:
    """Changes that, made together, have the pod admitted, and the decision that proves it."""

    changes: tuple[Change, ...]
    decision: Decision

    def apply(self, host: Host, pod: Pod) -> tuple[Host, Pod]:
        """Another host and another pod, on which to decide is to admit; those given stay as they are."""
        return apply_changes(self.changes, host, pod)
