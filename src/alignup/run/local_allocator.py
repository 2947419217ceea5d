"""The allocator without an agent: the user's own ledger, in the directory of the runs, and claims of other users.

The host is this machine with the static CPU and memory policies, one CPU and some memory reserved, and topology policy
best-effort, unless a KubeletConfiguration says otherwise. CPUs and memory nodes that this process's cgroups withhold
are never allocated.
"""

import os
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from alignup.align import bits
from alignup.align.bits import CpuSet, NodeSet
from alignup.align.cpus.options import CpuPolicy, CpuSettings
from alignup.align.decision import Decision
from alignup.align.devices.ledger import DeviceLedger
from alignup.align.errors import EnforceError, RestoreError, StateError
from alignup.align.host import Host, Settings
from alignup.align.ledger import AdmittedPod
from alignup.align.machine import CadvisorNode, Machine, NumaNode
from alignup.align.memory import reserved_memory
from alignup.align.memory.provider import MemoryPolicy
from alignup.align.policy_overrides import PolicyOverrides
from alignup.align.quantity import Quantity, QuantityFormat
from alignup.align.reason_codes import NOT_SCHEDULABLE
from alignup.align.settings import Policy, TopologySettings
from alignup.align.workload import Amounts, Container, Pod, QoS, Resources
from alignup.align.workload.demand import FitRequest
from alignup.align.workload.names import CPU, DEVICES_ANNOTATION, MEMORY
from alignup.documents.ledgers import restore_ledger
from alignup.run import cgroup, process, registry
from alignup.run.cgroup import Cpuset
from alignup.run.process import NodeMap
from alignup.run.registry import RunRegistry
from alignup.run.request import CONTAINER, RunPlacement, RunRejectedError, RunRequest, resolve_placement
from alignup.run.run_claims import RunClaims
from alignup.store.state_store import DurableState, StateStore

_MIB = 1 << 20
_RESERVED_SHARE = 32  #: one part in this many of the memory is reserved
_MAX_RUNS = 10_000
_CLAIM_ATTEMPTS, _CLAIM_DELAY = 50, 0.05  #: the delay between two attempts is at most this many seconds
Node = TypeVar("Node", NumaNode, CadvisorNode)


def permitted_machine(machine: Machine) -> tuple[Machine, CpuSet]:
    """Return this machine with only the memory that this process may use, and the CPUs that the process may use."""
    cpuset = cgroup.effective_cpuset()
    return restrict_memory(machine, cpuset), cpuset.cpus if cpuset else process.permitted_cpus()


def restrict_memory(machine: Machine, cpuset: Cpuset | None) -> Machine:
    """Remove the memory of nodes that are not permitted. CPUs stay: :func:`build_host` reserves them."""
    if cpuset is None or not cpuset.nodes:
        return machine
    usable = cpuset.nodes

    def restrict(node: Node) -> Node:
        is_allowed = node.id >= 0 and usable >> node.id & 1
        return node if is_allowed else replace(node, memory=0, hugepages=())

    nodes, report = tuple(map(restrict, machine.nodes)), machine.report
    if nodes == machine.nodes:
        return machine
    if report is not None and report.nodes is not None:
        report = replace(report, nodes=tuple(map(restrict, report.nodes)))
    return replace(machine, nodes=nodes, report=report, devices=()).with_reported(machine.devices)


def build_host(machine: Machine, overrides: PolicyOverrides, *, permitted_cpus: CpuSet | None = None) -> Host:
    """Build an idle host. Raises ``SettingsError`` when the settings do not suit each other or the machine."""
    settings = overrides.settings or _default_settings(machine, permitted_cpus)
    return Host(machine, replace(overrides.apply(settings), near_devices=True))


def build_pod(request: RunRequest) -> Pod:
    """Return the run as a pod. Whole CPUs are exclusive even without a memory request."""
    amounts = {name: Quantity.parse(text) for name, text in request.amounts.items()}
    resources = Resources(requests=amounts, limits=amounts)
    return Pod(
        name=request.name,
        namespace="run",
        uid=request.uid,
        containers=(Container(CONTAINER, resources),),
        recorded_qos=QoS.GUARANTEED if resources.whole_cpus else None,
        annotations={DEVICES_ANNOTATION: request.devices_near} if request.devices_near else {},
    )


class LocalAllocator:
    """Allocates from the user's own ledger, in the database of a directory whose lock the caller holds."""

    address = ""  #: no agent

    def __init__(  # noqa: PLR0913 - two have defaults
        self,
        directory: Path,
        idle: Host,
        *,
        permitted_cpus: CpuSet,
        explain: Callable[[Host, Pod], None],
        claims: RunClaims | None = None,
        ignore_claims: bool = False,
    ) -> None:
        self._claims = claims or RunClaims(())
        self._ignore_claims = ignore_claims
        self._active: Collection[str] = ()  #: runs of this ledger
        self._unclaimed = idle.ledger  #: the ledger without the claims of others
        self._others: list[str] = []  #: uids of pods that stand for claims of others in the ledger
        self._directory = directory
        self._store: StateStore | None = None  #: its constructor creates the directory
        self._idle = idle
        self._permitted = permitted_cpus
        self._explain = explain
        self.host = Host(idle.machine, idle.settings)
        self.changed = False  #: since the last load or save

    def load(self, *, active: Collection[str], finished: Collection[str] = ()) -> None:
        del finished
        self.host = Host(self._idle.machine, self._idle.settings)
        self._store = StateStore(self._directory)
        stored_state = self._store.load()
        if stored_state is not None:
            entries = [pod.entry for pod in stored_state.pods if pod.entry.pod.uid in active]
            self.changed = len(entries) < len(stored_state.pods)
            idle, providers = self.host.ledger, self.host.providers
            try:
                self.host.ledger = restore_ledger(entries, stored_state.residue, idle=idle, providers=providers)
            except RestoreError as error:
                raise StateError(
                    f"the resources of running runs do not fit this machine and these settings: {error}; "
                    "use the configuration and options of these runs, or wait until they end"
                ) from error
        self._active = active
        self._unclaimed = self.host.ledger
        self._add_claims()

    def _add_claims(self) -> None:
        """Let a pod for each claim of another user or ledger hold the claimed resources, as far as they are free."""
        self._others = []
        for claim in () if self._ignore_claims else self._claims.read():
            if claim.owner == os.geteuid() and claim.run in self._active:
                continue
            ledger, uid = self.host.ledger, f"claim-{claim.owner}-{claim.run}"
            cpus, devices = claim.cpus & ledger.cpus.available, _free_devices(ledger.devices, claim.devices)
            if cpus or devices:
                self._others.append(uid)
                counts = {resource: len(ids) for resource, ids in devices.items()}
                usage = FitRequest(1000 * cpus.bit_count(), 0, 0, counts)
                pod = Pod(name=claim.run, namespace=f"user-{claim.owner}", uid=uid, containers=(Container(CONTAINER),))
                self.host.ledger = replace(
                    ledger,
                    cpus=ledger.cpus.give(uid, CONTAINER, cpus=cpus) if cpus else ledger.cpus,
                    devices=ledger.devices.give(uid, CONTAINER, devices=devices),
                    pods={**ledger.pods, uid: AdmittedPod(pod, {}, usage)},
                    used=ledger.used.plus(usage),
                )

    def load_for_dry_run(self) -> None:
        if not self._directory.exists():
            self._add_claims()
            return
        runs = RunRegistry(self._directory)
        with runs.locked():
            records = runs.all()
            finished_uids = {record.uid for record in registry.finished_runs(records)}
            self.load(active=[record.uid for record in records if record.uid not in finished_uids])

    def admit(self, request: RunRequest) -> RunPlacement:
        pod = build_pod(request)
        if self.host.missing_devices(pod):
            raise RunRejectedError(NOT_SCHEDULABLE, partial(self._explain, self._idle, pod), impossible=True)
        for _ in range(_CLAIM_ATTEMPTS):
            decision = self.host.admit(pod)
            if decision.rejection is not None:
                host = self._idle.with_ledger(self.host.ledger)
                impossible, reason = not self._idle.decide(pod).admitted, decision.rejection.reason
                raise RunRejectedError(reason, partial(self._explain, host, pod), impossible=impossible)
            placement = self.placement(decision)
            cpus = placement.cpus if placement.exclusive else 0
            devices = {resource: frozenset(ids) for resource, ids in placement.devices.items()}
            is_claimed = not (cpus or devices) or self._claims.make(
                request.uid, cpus=cpus, devices=devices, ignore=self._ignore_claims
            )
            if is_claimed:
                self.changed = True
                return placement
            # Another user has just claimed the same: decide again, after a time that differs between the two.
            time.sleep(_CLAIM_DELAY * os.urandom(1)[0] / 256)
            self.host.ledger = self._unclaimed
            self._add_claims()
        raise EnforceError("other users claimed the same CPUs or devices at the same time, again and again; try again")

    def placement(self, decision: Decision) -> RunPlacement:
        machine = self._idle.machine
        with_memory = bits.of(node.id for node in machine.nodes if node.memory is None or node.memory > 0)
        devices: dict[str, dict[str, NodeSet | None]] = {}
        for device in machine.devices:
            devices.setdefault(device.resource, {})[device.id] = device.nodes
        (placement,) = decision.placements
        nodes = placement.hint.nodes
        return resolve_placement(
            {"hint": {"nodes": None if nodes is None else bits.show(nodes)}, "given": placement.as_text()},
            shared=self.shared(),
            devices=devices,
            node_map=NodeMap(machine.kubelet_view().node_cpus, with_memory),
            strict=decision.policy in {Policy.RESTRICTED, Policy.SINGLE_NUMA_NODE},
        )

    def shared(self) -> CpuSet:
        shared_cpus: CpuSet = self.host.ledger.cpus.shared
        return shared_cpus & self._permitted

    def release(self, uid: str) -> None:
        self.changed |= uid in self.host.ledger.pods
        self.host.release(uid)

    def save(self) -> None:
        """Write the ledger if it has changed. Raises ``StoreError``."""
        if not self.changed:
            return
        host = self.host.without_pods(self._others) if self._others else self.host
        with closing(self._store or StateStore(self._directory)) as store:
            store.save(DurableState(host=host))
        self.changed = False


def _free_devices(ledger: DeviceLedger, claimed_ids: Mapping[str, Collection[str]]) -> dict[str, set[str]]:
    """Return the claimed devices that exist and that no run in the ledger holds."""
    free = {
        resource: set(claimed_ids.get(resource, ()))
        & inventory.indexes.keys() - ledger.in_use.get(resource, frozenset())
        for resource, inventory in ledger.inventories.items()
    }
    return {resource: ids for resource, ids in free.items() if ids}


def _default_settings(machine: Machine, permitted_cpus: CpuSet | None) -> Settings:
    view = machine.kubelet_view()
    usable_cpus = view.all_cpus if permitted_cpus is None else view.all_cpus & permitted_cpus
    # All CPUs that are not permitted, and one that is; 0 (the CPU manager chooses one) when all are permitted.
    cpus = 0 if usable_cpus in {view.all_cpus, 0} else view.all_cpus & ~usable_cpus | usable_cpus & -usable_cpus
    amount = Quantity(cpus.bit_count() or 1)
    settings = Settings(
        topology=TopologySettings(policy=Policy.BEST_EFFORT, limit_nodes=False),
        cpus=CpuSettings(policy=CpuPolicy.STATIC, reservation=amount, explicit=cpus),
        reservation={CPU: amount},
        max_pods=_MAX_RUNS,
    )
    node_sizes = [node.memory for node in view.nodes if node.memory is not None]
    if len(node_sizes) < len(view.nodes) or not sum(node_sizes):
        return settings
    memory = max(_MIB, sum(node_sizes) // _RESERVED_SHARE // _MIB * _MIB)
    reservation: Amounts = {CPU: amount, MEMORY: Quantity(memory, format=QuantityFormat.BINARY_SI)}
    proposal = reserved_memory.propose_reserved_memory(reservation, view)
    return replace(settings, memory_policy=MemoryPolicy.STATIC, reserved_memory=proposal, reservation=reservation)
