"""Whether CPUs and memory are beside the devices of claims, and where these are."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from alignup.align import bits
from alignup.align.bits import NodeSet
from alignup.align.claims.allocation import Matches, allocate, is_available
from alignup.align.claims.claimed_locality import NOTHING_UNMET, ClaimedDevices, ClaimedLocality, pci_address
from alignup.align.claims.resource_claims import (
    NUMA_NODE,
    PCI_BUS_ID,
    PCIE_ROOT,
    AttributeValue,
    Claim,
    ClaimObjects,
    DeviceId,
    SliceDevice,
)
from alignup.align.decision import Placement
from alignup.align.errors import AlignError
from alignup.align.host import Host
from alignup.align.machine import MAX_NODE_ID, Machine
from alignup.align.workload import Pod
from alignup.align.workload.names import DEVICES_ANNOTATION

_MAX_NAMED = 4  #: devices that a sentence names


def numa_nodes(attributes: Mapping[str, AttributeValue], machine: Machine | None) -> NodeSet | None:
    """Return the NUMA nodes of a device; ``None`` if they are unknown.

    They are an attribute of the device, or follow from its PCI address or root on the *machine*. A node that has memory
    but no CPUs, as that of some GPUs, stands for the nearest nodes with CPUs.
    """
    value = attributes.get(NUMA_NODE)
    values = value if isinstance(value, tuple) else (value,)
    ids = [node for node in values if isinstance(node, int) and not isinstance(node, bool)]
    if machine is None:
        return bits.of(node for node in ids if 0 <= node < MAX_NODE_ID) or None
    node_ids = {node.id for node in machine.nodes}
    nodes = {node for node in ids if node in node_ids} or _pci_nodes(attributes, machine)
    return bits.of(near for node in nodes for near in _with_cpus(node, machine)) or None


def _wrong_numa_nodes(attributes: Mapping[str, AttributeValue], machine: Machine) -> tuple[int, ...]:
    """Return the NUMA nodes in the attributes of a device that the *machine* does not have; -1 means unknown."""
    value = attributes.get(NUMA_NODE)
    values = value if isinstance(value, tuple) else (value,)
    node_ids = {-1, *(node.id for node in machine.nodes)}
    return tuple(node for node in values if isinstance(node, int) and node not in node_ids)


def _pci_nodes(attributes: Mapping[str, AttributeValue], machine: Machine) -> set[int]:
    address, root = attributes.get(PCI_BUS_ID), attributes.get(PCIE_ROOT)
    if isinstance(address, str):
        bus = address.lower()
        nodes = {device.node for device in machine.pci if device.address.lower() == bus and device.node is not None}
        if nodes:
            return nodes
    if isinstance(root, str) and root.startswith("pci"):
        domain_bus = f"{root.removeprefix('pci').lower()}:"  # a root complex is named after its first bus
        return {
            device.node
            for device in machine.pci
            if device.address.lower().startswith(domain_bus) and device.node is not None
        }
    return set()


def _with_cpus(node: int, machine: Machine) -> Iterable[int]:
    """Return *node*, or the nearest nodes with CPUs if it has none."""
    with_cpus = {cpu.node for cpu in machine.cpus if cpu.node is not None}
    distances = machine.distances
    if node in with_cpus or distances is None or node not in distances.ids:
        return (node,)
    near = {other: distances.between(node, other) for other in with_cpus if other in distances.ids}
    return [other for other, distance in near.items() if distance == min(near.values())]


@dataclass(frozen=True, slots=True)
class ClaimState:
    """A claim of a pod and its devices, as far as they are known."""

    name: str  #: in the pod; of an extended resource that a DeviceClass offers, the resource
    claim: Claim | None  #: ``None``: its object is missing
    #: allocated devices, or if there are none yet, devices that match: request → its devices
    devices: tuple[tuple[str, SliceDevice], ...] = ()
    allocated: bool = False
    problem: str = ""  #: why its devices are not known

    @property
    def nodes(self) -> NodeSet | None:
        """The NUMA nodes of the allocated devices; ``None`` if one is unknown or nothing is allocated."""
        if not self.allocated or any(device.nodes is None for _, device in self.devices):
            return None
        return bits.union(device.nodes or 0 for _, device in self.devices)


class DecidedNodes(NamedTuple):
    """The NUMA nodes of what the containers that use a claim get; empty: nothing exclusive."""

    cpus: NodeSet = 0
    memory: NodeSet = 0

    @property
    def all(self) -> NodeSet:
        return self.cpus | self.memory

    def __str__(self) -> str:
        subject = " and ".join(name for name, nodes in (("CPUs", self.cpus), ("memory", self.memory)) if nodes)
        return f"the {subject} will be {_on_nodes(self.all)}"


def decided_nodes(pod: Pod, placements: Iterable[Placement], claim: str, machine: Machine) -> DecidedNodes:
    """Return where *placements* put the containers that use *claim*, or the extended resource of this name."""
    users = {
        container.name
        for container in pod.all_containers
        if claim in (container.resources.limits if "/" in claim else container.resources.claim_names)
    }
    node_of = {cpu.id: cpu.node for cpu in machine.cpus}
    cpus = memory = 0
    for placement in placements:
        if placement.container in users:
            nodes = (node_of.get(cpu) for cpu in bits.members(placement.cpus or 0))
            cpus |= bits.of(node for node in nodes if node is not None)
            memory |= bits.union(block.nodes for block in placement.memory)
    return DecidedNodes(cpus, memory)


def is_aligned(devices: Iterable[NodeSet], decided_mask: NodeSet) -> bool:
    """Return whether everything decided is on NUMA nodes of the devices, and every device on one of these nodes."""
    nodes = tuple(devices)
    return not decided_mask & ~bits.union(nodes) and all(group & decided_mask for group in nodes)


def _on_nodes(nodes: NodeSet) -> str:
    return f"on NUMA node{'s' if nodes.bit_count() > 1 else ''} {bits.show(nodes)}"


@dataclass(frozen=True, slots=True)
class ExplainedClaim:
    """A claim of a pod beside a decision on this pod."""

    state: ClaimState
    decided: DecidedNodes
    #: free devices on these nodes that the claim could have instead
    better: tuple[SliceDevice, ...] = ()
    #: whether the devices of all claims of the pod satisfy its demands on near devices
    locality: ClaimedLocality = NOTHING_UNMET

    @property
    def aligned(self) -> bool | None:
        """Whether CPUs and memory are beside the devices; ``None`` if that is unknown, or there are none."""
        places = self._places()
        if not self.decided.all or not places or None in places:
            return None
        if self.state.allocated:
            return is_aligned([device.nodes or 0 for _, device in self.state.devices], self.decided.all)
        verdicts = {is_aligned([nodes or 0], self.decided.all) for nodes in places}
        return verdicts.pop() if len(verdicts) == 1 else None

    def sentence(self) -> str:
        """Say where the devices are and whether CPUs and memory are beside them; empty if no device is known."""
        state, places = self.state, self._places()
        if not state.devices:
            return ""
        names = sorted({device.id.device for _, device in state.devices})
        subject = f"device{'s' if len(names) > 1 else ''} {', '.join(names)}"
        if not state.allocated:
            subject = f"the device of claim {state.name}"
        sites = sorted(nodes for nodes in places if nodes is not None)
        if not sites or (state.allocated and None in places):
            return f"the NUMA node of {subject} is not known"
        if state.allocated:
            sentence = f"{subject} {'is' if len(names) == 1 else 'are'} {_on_nodes(bits.union(sites))}"
        else:
            sentence = f"{subject} will be on NUMA node {' or '.join(map(bits.show, sites))}"
        sentence += f"; {self.locality.unmet}" if self.locality.unmet else ""
        if not self.decided.all:
            return sentence
        verdict = {True: ": aligned", False: ": not aligned", None: ": aligned or not, as the scheduler chooses"}
        return f"{sentence}, {self.decided}{verdict[self.aligned]}"

    def remedy(self) -> str:
        """Say which change, which was tried, brings the devices to the CPUs; empty if there is none."""
        if self.aligned or not self.better:
            return ""
        names = ", ".join(device.id.device for device in self.better[:_MAX_NAMED])
        names += ", …" if len(self.better) > _MAX_NAMED else ""
        nodes = self.decided.all
        text = f"claim a device {_on_nodes(nodes)} ({names})"
        if nodes.bit_count() == 1 and all(NUMA_NODE in device.attributes for device in self.better):
            domain, _, name = NUMA_NODE.rpartition("/")
            text += f' with the selector device.attributes["{domain}"].{name} == {bits.show(nodes)}'
        return text

    def to_document(self) -> dict[str, Any]:
        state = self.state
        return {
            "name": state.name,
            "claim": state.claim.title if state.claim else None,
            "allocated": state.allocated,
            "devices": [
                {
                    "request": request,
                    "driver": device.id.driver,
                    "pool": device.id.pool,
                    "device": device.id.device,
                    "numaNodes": None if device.nodes is None else list(bits.members(device.nodes)),
                    "attributes": dict(device.attributes),
                }
                for request, device in state.devices
            ],
            "problem": state.problem,
            "cpuNumaNodes": list(bits.members(self.decided.cpus)),
            "memoryNumaNodes": list(bits.members(self.decided.memory)),
            "aligned": self.aligned,
            "sentence": self.sentence(),
            "remedy": self.remedy(),
        }

    def _places(self) -> set[NodeSet | None]:
        """Return the NUMA nodes of all allocated devices together, or of each device that the claim can get."""
        if self.state.allocated:
            return {self.state.nodes}
        return {device.nodes for _, device in self.state.devices}


def place_devices(
    devices: Iterable[SliceDevice], machine: Machine | None
) -> tuple[tuple[SliceDevice, ...], tuple[str, ...]]:
    """Return *devices* with their NUMA nodes on the *machine*, and what is wrong with them."""
    devices_on_nodes = tuple(replace(device, nodes=numa_nodes(device.attributes, machine)) for device in devices)
    wrong: dict[tuple[int, ...], list[DeviceId]] = {}
    for device in devices_on_nodes if machine is not None else ():
        if machine is not None and (nodes := _wrong_numa_nodes(device.attributes, machine)):
            wrong.setdefault(nodes, []).append(device.id)
    problems = [
        f"this machine does not have NUMA node {', '.join(map(str, nodes))} of {name_devices(ids)} in its ResourceSlice"
        for nodes, ids in wrong.items()
    ]
    return devices_on_nodes, tuple(problems)


def name_devices(ids: Sequence[DeviceId]) -> str:
    """Return the names of some devices for a sentence."""
    more = len(ids) - _MAX_NAMED
    return f"device {', '.join(map(str, ids[:_MAX_NAMED]))}" + (f" and {more} more" if more > 0 else "")


class HostClaims(NamedTuple):
    """What is known of claims on one host."""

    objects: ClaimObjects
    devices: tuple[SliceDevice, ...]  #: that the host can use, with their NUMA nodes
    matches: Matches

    def states(self, pod: Pod, host: Host) -> tuple[ClaimState, ...]:
        """Return the claims of *pod* with their allocated devices, or with the devices that they can get."""
        by_id = {device.id: device for device in self.devices}
        states = []
        for name, claim in self.objects.claims_of(pod, capacity=host.ledger.devices.allocatable(pod.uid)):
            if isinstance(claim, str):
                states.append(ClaimState(name, None, problem=claim))
            elif claim.allocated is not None:
                states.append(_allocated_state(name, claim, by_id, pod))
            else:
                states.append(self._open_state(name, claim))
        return self._together(states)

    def _together(self, states: Sequence[ClaimState]) -> tuple[ClaimState, ...]:
        """Return *states* with a problem where each claim can get devices, but not all of them."""
        claims = [state.claim for state in states if state.claim and not state.allocated and not state.problem]
        problem = "this node does not have enough free devices for all claims together"
        try:
            if len(claims) < 2 or self._can_allocate(claims):
                return tuple(states)
        except AlignError as error:
            problem = str(error)
        return tuple(replace(state, problem=problem) if state.claim in claims else state for state in states)

    def _can_allocate(self, claims: Sequence[Claim]) -> bool:
        return allocate(claims, self.devices, matches=self.matches, taken_ids=self.objects.taken()) is not None

    def explain(self, pod: Pod, placements: Collection[Placement], host: Host) -> tuple[ExplainedClaim, ...]:
        """Return the claims of *pod* beside *placements*, which it gets on *host*."""
        explained_claims = []
        states = self.states(pod, host)
        locality = self._check_locality(pod, states, placements, host)
        for state in states:
            nodes_of_pod = decided_nodes(pod, placements, state.name, host.machine)
            claim = ExplainedClaim(state, nodes_of_pod, locality=locality)
            if claim.decided.all and state.claim is not None and not claim.aligned:
                claim = replace(claim, better=self._devices_beside(state.claim, claim.decided.all))
            explained_claims.append(claim)
        return tuple(explained_claims)

    def _check_locality(
        self, pod: Pod, states: Iterable[ClaimState], placements: Collection[Placement], host: Host
    ) -> ClaimedLocality:
        if DEVICES_ANNOTATION not in pod.annotations:
            return NOTHING_UNMET
        ledger = host.ledger
        by_name = {state.name: state for state in states}
        others: dict[str, Collection[str]] = {**ledger.devices.held_by_others(pod.uid)}
        allocated_ids = {device.id for state in by_name.values() if state.allocated for _, device in state.devices}
        unavailable = self.objects.taken() - allocated_ids
        others["claims"] = [pci_address(device) for device in self.devices if device.id in unavailable]
        machine, unsettled_devices = ledger.places or (host.machine, {})
        return ClaimedDevices(by_name, machine.locality, others, unsettled_devices).check(pod, placements)

    def _devices_beside(self, claim: Claim, nodes: NodeSet) -> tuple[SliceDevice, ...]:
        """Return the free devices on *nodes* that match *claim*, if they suffice for it."""
        unavailable = self.objects.taken() - {device.id for device in claim.allocated or ()}
        near = [device for device in self.devices if device.nodes is not None and is_aligned([device.nodes], nodes)]
        try:
            if allocate([claim], near, matches=self.matches, taken_ids=unavailable) is None:
                return ()
            requests = [request for alternatives in claim.requests for request in alternatives]
            return tuple(
                device
                for device in near
                if any(
                    is_available(device, request, unavailable) and self.matches(request, device) for request in requests
                )
            )
        except AlignError:
            return ()

    def _open_state(self, name: str, claim: Claim) -> ClaimState:
        """Return a claim without devices, and all free devices that match one of its requests."""
        if classes := self.objects.missing_classes([claim]):
            return ClaimState(name, claim, problem=f"DeviceClass {', '.join(classes)} is not known")
        unavailable = self.objects.taken()
        try:
            candidates = tuple(
                (request.name, device)
                for alternatives in claim.requests
                for request in alternatives
                for device in self.devices
                if is_available(device, request, unavailable) and self.matches(request, device)
            )
            possible = self._can_allocate([claim])
        except AlignError as error:
            return ClaimState(name, claim, problem=str(error))
        problem = "" if possible else "this node does not have enough free devices that match"
        return ClaimState(name, claim, candidates, problem=problem)


def _allocated_state(name: str, claim: Claim, devices: Mapping[DeviceId, SliceDevice], pod: Pod) -> ClaimState:
    claim_devices = tuple(
        (allocation.request, devices.get(allocation.id) or SliceDevice(allocation.id))
        for allocation in claim.allocated or ()
    )
    problem = ""
    if missing_ids := [str(allocation.id) for allocation in claim.allocated or () if allocation.id not in devices]:
        problem = f"no ResourceSlice of this node has {', '.join(missing_ids)}"
    elif pod.uid and claim.reserved_for and pod.uid not in claim.reserved_for:
        problem = f"{claim.title} is reserved for other pods"
    return ClaimState(name, claim, claim_devices, allocated=True, problem=problem)
