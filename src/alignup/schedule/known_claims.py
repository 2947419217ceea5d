"""What is known of claims: ResourceClaims, templates, DeviceClasses, and the devices of ResourceSlices by node.

The scheduler's DRA plugin allocates devices to claims; here it is only predicted whether it can.
"""

from collections import ChainMap
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from alignup.align.claims.alignment import HostClaims, place_devices
from alignup.align.claims.allocation import Matches, allocate
from alignup.align.claims.resource_claims import (
    Claim,
    ClaimObjects,
    ClaimRequest,
    DeviceClass,
    DeviceId,
    Slice,
    SliceDevice,
    usable_devices,
)
from alignup.align.errors import AlignError
from alignup.align.machine import Machine
from alignup.align.workload import Pod
from alignup.kubernetes.api import Change, EventType
from alignup.kubernetes.api.objects import ApiNode
from alignup.kubernetes.manifests.claims import (
    DeviceClassObject,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceSlice,
    claim_from,
    device_class_from,
    slices_from,
    template_from,
)
from alignup.kubernetes.manifests.node_selectors import NodeSelector
from alignup.placement.host_record import HostRecord
from alignup.placement.pod_shape import shape_key
from alignup.placement.scheduling.facts import ClaimFit
from alignup.schedule.node_selection import selects_node
from alignup.schedule.selector_results import SEARCHES, Payer, SelectorBudgetError, SelectorResults

MAX_SLICE_DEVICES = 4_096  #: of one slice; the API server accepts 128
MAX_DEVICES = 500_000  #: of all slices
MAX_REQUESTS = 256  #: of one claim; the API server accepts 32
_MAX_NOTES = 3  #: problems in a health check

ObjectName = tuple[str, str]  #: namespace and name
PoolName = tuple[str, str]  #: driver and pool


def object_label(kind: str, name: ObjectName) -> str:
    """Return how an object that cannot be read is named, such as ``ResourceClaim ml/gpus``."""
    return f"{kind} {'/'.join(filter(None, name))}"


class ClaimChange(NamedTuple):
    """A change of claims, for pods that wait for it."""

    nodes: Collection[str] | None = ()  #: whose devices may be free now; ``None``: all
    object: ObjectName | None = None  #: a claim or template
    classes: bool = False  #: extended resources may be offered now, or no longer


@dataclass(frozen=True, slots=True)
class _NodeObjects(ClaimObjects):
    """All objects, with the allocated devices of one node only."""

    allocated_ids: frozenset[DeviceId] = field(default_factory=frozenset)

    def taken(self) -> set[DeviceId]:
        return set(self.allocated_ids)


class KnownClaims:
    """All that is known of claims at one time; *find_node* returns a node of the cluster by its name.

    *changed* is called after every change. *pended* is called when selectors are to be computed in the background.
    """

    def __init__(
        self,
        find_node: Callable[[str], ApiNode | None],
        on_change: Callable[[ClaimChange], object] = lambda _change: None,
        *,
        pended: Callable[[], object] | None = None,
    ) -> None:
        self._find_node = find_node
        self._changed = on_change
        self.selectors = SelectorResults(self._report_budget, pended=pended)
        self._classes_by_name: dict[str, DeviceClass] = {}
        self._claims_by_name: dict[ObjectName, Claim] = {}
        self._templates_by_name: dict[ObjectName, Claim] = {}
        self.objects = ClaimObjects(self._classes_by_name, self._claims_by_name, self._templates_by_name)
        self._holders: dict[DeviceId, set[ObjectName]] = {}  #: by device, the claims that it is allocated to
        self._pools: dict[PoolName, dict[str, tuple[Slice, ...]]] = {}  #: slices by name
        self._pool_of: dict[str, PoolName] = {}  #: by slice
        self._hosts: dict[PoolName, set[str]] = {}  #: by pool, the nodes that its slices name; empty: other selections
        self._local: dict[str, set[PoolName]] = {}  #: by node, pools whose slices all name their nodes
        self._shared: set[PoolName] = set()  #: the other pools
        self.devices = 0  #: the number of devices of all slices
        self._devices: dict[str, tuple[Machine | None, tuple[SliceDevice, ...], tuple[str, ...]]] = {}  #: by node
        self._wrong: dict[str, str] = {}  #: kind and name of an object → why it is not read
        self._problem = ""  #: why claims are not known

    # Questions

    @property
    def known(self) -> bool:
        """Whether all objects are known."""
        return not self.problem

    @property
    def problem(self) -> str:
        """Why claims are not known; empty: they are, or they are still being listed."""
        return self._problem

    @property
    def unreadable(self) -> dict[str, str]:
        """Objects that cannot be read, and why."""
        return dict(self._wrong)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is wrong with claims and devices, the first of each kind."""
        doubles = (
            f"device {id_} is allocated to {' and '.join(sorted('/'.join(name) for name in claims))}"
            for id_, claims in self._holders.items()
            if len(claims) > 1 and not self._is_shared(id_)
        )
        devices = (f"node {node}: {text}" for node, (_, _, notes) in self._devices.items() for text in notes)
        problem = [f"claims of pods are not known: {self.problem}"] if self.problem else []
        return (*problem, *islice(doubles, _MAX_NOTES), *islice(devices, _MAX_NOTES))

    def devices_of(self, node: str, machine: Machine | None) -> tuple[SliceDevice, ...]:
        """Return the devices that pods on *node* can get, with their NUMA nodes on its *machine*."""
        return self._place(node, machine)[0]

    def notes(self, node: str, machine: Machine | None) -> tuple[str, ...]:
        """Return what is wrong with the devices of a node."""
        return self._place(node, machine)[1]

    def host_claims(
        self, pod: Pod, node: str, machine: Machine | None, fresh: Mapping[ObjectName, Claim] | None = None
    ) -> HostClaims:
        """Return what is known of claims on a node, for *pod*; *fresh* claims were read later than the others."""
        devices = self.devices_of(node, machine)
        allocated_ids = frozenset(device.id for device in devices if device.id in self._holders)
        claims = ChainMap(dict(fresh or {}), self._claims_by_name)
        objects = _NodeObjects(self._classes_by_name, claims, self._templates_by_name, allocated_ids)
        return HostClaims(objects, devices, self._matching(pod, node, devices))

    def kind(self, pod: Pod) -> Hashable:
        """Return a key that is equal for pods that the same nodes suit: of one shape, with claims for equal devices."""
        claims_by_name = self._claims_by_name
        claims: list[Hashable] = []
        for pod_claim in pod.claims:
            claim = claims_by_name.get((pod.namespace, pod_claim.claim))
            if claim is not None and claim.allocated is None:
                claims.append((pod_claim.name, claim.requests, claim.constraints))
            else:
                claims.append(pod_claim)
        users = tuple([container.resources.claims for container in pod.all_containers])
        return shape_key(pod), pod.namespace, pod.extended_claim, users, tuple(claims)

    def fit(
        self, pod: Pod, node: str, *, machine: Machine | None, capacity: Mapping[str, int], idle: bool = False
    ) -> ClaimFit:
        """Return whether *node* has devices for the claims of *pod*, perhaps when no other claim has any (*idle*).

        *capacity* is the capacity of its device plugins.
        """
        if not self.known:
            return ClaimFit(possible=True, reason=self.problem or "claims are not listed yet", certain=False)
        without_devices = []
        for _, claim in self.objects.claims_of(pod, capacity=capacity):
            if isinstance(claim, str):
                return ClaimFit(possible=False, reason=claim)
            if claim.allocated is None:
                without_devices.append(claim)
            elif not self._reaches(claim.selector, node):
                return ClaimFit(possible=False, reason=f"{claim.title} has devices of another node")
        if not without_devices:
            return ClaimFit(possible=True)
        if missing_classes := self.objects.missing_classes(without_devices):
            return ClaimFit(possible=False, reason=f"DeviceClass {', '.join(missing_classes)} is not known")
        devices = self.devices_of(node, machine)
        taken_ids = set() if idle else {device.id for device in devices if device.id in self._holders}
        matches = self._matching(pod, node, devices)
        try:
            return self.selectors.search(
                pod.namespace, len(devices), lambda: self._fit_devices(without_devices, devices, taken_ids, matches)
            )
        except SelectorBudgetError as error:
            return ClaimFit(possible=True, reason=str(error), certain=False)

    def fit_on(self, pod: Pod, node: str, record: HostRecord | None, *, idle: bool = False) -> ClaimFit:
        """Return the same as ``fit``, from what is known of a host."""
        capacity = record.ledger.devices.allocatable(pod.uid) if record else {}
        return self.fit(pod, node, machine=record.model.machine if record else None, capacity=capacity, idle=idle)

    def is_open(self, pod: Pod) -> bool:
        """Return whether a claim of *pod* has no devices, or is not known."""
        claims = [claim for _, claim in self.objects.claims_of(pod, capacity={})]
        return not self.known or any(isinstance(claim, str) or claim.allocated is None for claim in claims)

    def _fit_devices(
        self, claims: list[Claim], devices: tuple[SliceDevice, ...], taken_ids: set[DeviceId], matches: Matches
    ) -> ClaimFit:
        partial = any(request.capacity for claim in claims for alternative in claim.requests for request in alternative)
        try:
            fits = allocate(claims, devices, matches=matches, taken_ids=taken_ids) is not None
        except AlignError as error:
            return ClaimFit(possible=True, reason=str(error), certain=False)
        if fits and (partial or any(device.shared or device.counted for device in devices)):
            reason = "devices are shared or have parts, which only the scheduler computes"
            return ClaimFit(possible=True, reason=reason, certain=False)
        if fits:
            return ClaimFit(possible=True)
        if any(label.startswith("ResourceSlice ") for label in self.unreadable):
            return ClaimFit(possible=True, reason="a ResourceSlice cannot be read", certain=False)
        return ClaimFit(possible=False, reason="not enough free devices for its claims")

    # Devices of nodes

    def _place(self, node: str, machine: Machine | None) -> tuple[tuple[SliceDevice, ...], tuple[str, ...]]:
        node_devices = self._devices.get(node)
        if node_devices is None or node_devices[0] is not machine:
            pools = (*self._local.get(node, ()), *self._shared)
            slices = [part for pool in pools for parts in self._pools[pool].values() for part in parts]
            usable, problems = usable_devices(slices, reachable=lambda part: self._is_reachable(part, node))
            devices, wrong = place_devices(usable, machine)
            notes = (*wrong, *problems)
            for note in notes:
                self._report("device", node=node, problem=note)
            node_devices = (machine, devices, notes)
            if self._find_node(node) is not None:  # a scheduler may ask about one that is gone
                self._devices[node] = node_devices
        return node_devices[1:]

    def _is_reachable(self, part: Slice, node: str) -> bool:
        return part.host == node if part.host else self._reaches(part.selector, node)

    def _reaches(self, selector: object, node: str) -> bool:
        if not isinstance(selector, NodeSelector):
            return True
        api_node = self._find_node(node)
        return api_node is not None and selects_node(selector.node_selector_terms, node, api_node.metadata.labels)

    def _matching(self, pod: Pod, node: str, devices: tuple[SliceDevice, ...]) -> Matches:
        """Return how a device of *node* is matched with a request of the claims of *pod*, which pay for it."""
        payer = (pod.namespace, tuple([pod_claim.claim or pod_claim.template for pod_claim in pod.claims]))

        def matches(request: ClaimRequest, device: SliceDevice) -> bool:
            device_class = self._classes_by_name.get(request.device_class)
            if device_class is None:
                return False
            selectors = (*device_class.selectors, *request.selectors)
            return self.selectors.match(payer, selectors, device, node=node, devices=devices)

        return matches

    def _report_budget(self, payer: Payer) -> None:
        if payer[1] == SEARCHES:
            self._report("searching devices takes too long", namespace=payer[0])
        else:
            self._report("selectors take too long", namespace=payer[0], claims=payer[1])

    def _is_shared(self, id_: DeviceId) -> bool:
        parts = (part for parts in self._pools.get(id_[:2], {}).values() for part in parts)
        return any(device.shared for part in parts for device in part.devices if device.id == id_)

    # Changes

    def node_changed(self, change: Change[ApiNode]) -> None:
        old, name = change.old, change.object.metadata.name
        if change.type is EventType.DELETED or old is None or old.metadata.labels != change.object.metadata.labels:
            self._devices.pop(name, None)

    def class_changed(self, change: Change[DeviceClassObject]) -> None:
        name = change.object.metadata.name
        class_before = self._classes_by_name.pop(name, None)
        if change.type is not EventType.DELETED:
            self._classes_by_name[name] = device_class_from(change.object)
        if self._classes_by_name.get(name) != class_before:
            self._changed(ClaimChange(None, classes=True))

    def template_changed(self, change: Change[ResourceClaimTemplate]) -> None:
        metadata = change.object.metadata
        key = (metadata.namespace, metadata.name)
        self._templates_by_name.pop(key, None)
        deleted = change.type is EventType.DELETED
        problem = "" if deleted else _too_many_requests(change.object.spec.spec.devices.requests)
        if self._note("ResourceClaimTemplate", key, problem) and not deleted:
            self._templates_by_name[key] = template_from(change.object)
            self._changed(ClaimChange(object=key))

    def claim_changed(self, change: Change[ResourceClaim]) -> None:
        metadata = change.object.metadata
        key = (metadata.namespace, metadata.name)
        claim_before = self._claims_by_name.pop(key, None)
        for device in claim_before.allocated or () if claim_before else ():
            holders = self._holders.get(device.id, set())
            holders.discard(key)
            if not holders:
                self._holders.pop(device.id, None)
        problem = _too_many_requests(change.object.spec.devices.requests)
        claim = None
        if change.type is EventType.DELETED:
            self._note("ResourceClaim", key, "")
            if claim_before is not None and claim_before.allocated and claim_before.reserved_for:
                pods = sorted(claim_before.reserved_for)
                self._report("claim deleted while pods use it", claim="/".join(key), pod_uids=pods)
        elif self._note("ResourceClaim", key, problem):
            claim = self._claims_by_name[key] = claim_from(change.object)
        for device in claim.allocated or () if claim else ():
            if not device.admin_access:
                holders = self._holders.setdefault(device.id, set())
                holders.add(key)
                if len(holders) > 1 and not self._is_shared(device.id):
                    claims = sorted("/".join(name) for name in holders)
                    self._report("device allocated to several claims", device=str(device.id), claims=claims)
        if claim != claim_before:
            self._changed(ClaimChange(_freed_nodes(claim_before, claim), object=key))

    def slice_changed(self, change: Change[ResourceSlice]) -> None:
        name, spec = change.object.metadata.name, change.object.spec
        pools = {self._pool_of.pop(name)} if name in self._pool_of else set()
        for pool in pools:
            self.devices -= sum(len(part.devices) for part in self._pools[pool].pop(name))
        parts: tuple[Slice, ...] = ()
        problem = "" if change.type is EventType.DELETED else self._too_many_devices(len(spec.devices))
        if not problem and change.type is not EventType.DELETED:
            try:
                parts = slices_from(change.object)
            except AlignError as error:
                problem = str(error)
        self._note("ResourceSlice", ("", name), problem)
        if parts:
            pool = (spec.driver, spec.pool.name)
            pools.add(pool)
            self._pools.setdefault(pool, {})[name] = parts
            self.devices += len(spec.devices)
            self._pool_of[name] = pool
        hosts = {host for pool in pools for host in self._sort_in(pool)}
        touched_nodes = None if problem or "" in hosts else hosts
        for node in tuple(self._devices) if touched_nodes is None else touched_nodes:
            self._devices.pop(node, None)
        self._changed(ClaimChange(touched_nodes))

    def _too_many_devices(self, count: int) -> str:
        if count > MAX_SLICE_DEVICES:
            return f"it has {count} devices; slices with {MAX_SLICE_DEVICES} at most are read"
        return f"the slices have more than {MAX_DEVICES} devices" if self.devices + count > MAX_DEVICES else ""

    def _sort_in(self, pool: PoolName) -> set[str]:
        """Sort a pool in again; return the nodes that its slices name or named, the empty one for other selections."""
        hosts_before = self._hosts.pop(pool, set())
        for node in hosts_before:
            if pools := self._local.pop(node, set()) - {pool}:
                self._local[node] = pools
        self._shared.discard(pool)
        hosts = {part.host for parts in self._pools[pool].values() for part in parts}
        if not hosts:
            del self._pools[pool]
            return hosts_before
        self._hosts[pool] = hosts
        if "" in hosts:
            self._shared.add(pool)
        else:
            for node in hosts:
                self._local.setdefault(node, set()).add(pool)
        return hosts_before | hosts

    def _report(self, event: str, **details: object) -> None:
        """Report what is wrong with an object when it is noticed; users who ask read ``warnings``."""

    def _note(self, kind: str, name: ObjectName, problem: str) -> bool:
        """Name an object that is not read, and why; return whether it is read."""
        label = object_label(kind, name)
        if problem and self._wrong.get(label) != problem:
            self._report("object ignored", kind=kind, namespace=name[0], name=name[1], problem=problem)
        self._wrong.pop(label, None)
        if problem:
            self._wrong[label] = problem
        return not problem


def _freed_nodes(claim_before: Claim | None, claim: Claim | None) -> Collection[str] | None:
    """Return the nodes where devices became free; ``None``: perhaps on any."""
    if (
        claim_before is None
        or not claim_before.allocated
        or (claim is not None and claim.allocated == claim_before.allocated)
    ):
        return ()
    return (claim_before.host,) if claim_before.host else None


def _too_many_requests(requests: Iterable[object]) -> str:
    count = len(tuple(requests))
    return f"it has {count} requests; claims with {MAX_REQUESTS} at most are read" if count > MAX_REQUESTS else ""
