"""The claims of simulated nodes: which devices each pod gets, as the scheduler allocates them before the admission.

A claim gets the first free devices that match, in the order of the slices. A claim made from a template, or for an
extended resource, ends with its pod; a claim that is an object of its own keeps its devices, and pods share it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from alignup.align.claims.alignment import ClaimState, ExplainedClaim, HostClaims, decided_nodes
from alignup.align.claims.allocation import allocate
from alignup.align.claims.resource_claims import Claim, DeviceId
from alignup.align.decision import Placement
from alignup.align.errors import AlignError
from alignup.align.host import Host
from alignup.align.machine import Machine
from alignup.align.workload import Pod
from alignup.documents.codec import Count, Document

_DeviceIds = tuple[DeviceId, ...]


class ClaimCounts(Document, frozen=True):
    """The claims of the admitted pods."""

    aligned: Count = 0  #: CPUs and memory are beside the devices
    unaligned: Count = 0
    unknown: Count = 0  #: nothing exclusive, or devices without a known NUMA node

    @classmethod
    def of(cls, claims: Iterable[ExplainedClaim]) -> "ClaimCounts":
        verdicts = [claim.aligned for claim in claims]
        return cls(verdicts.count(True), verdicts.count(False), verdicts.count(None))


NO_CLAIMS = ClaimCounts()


class SimulatedClaims:
    """The claims of the pods on one host; the hosts of a cluster share *named_claims*, the claims that are objects."""

    def __init__(
        self, claims: HostClaims, *, host: str = "", named_claims: dict[tuple[str, str], Claim] | None = None
    ) -> None:
        self._claims = claims
        self._host = host
        self._devices = {device.id: device for device in claims.devices}
        self._named_claims = dict(claims.objects.claims) if named_claims is None else named_claims
        self._taken_ids = {id_ for id_ in claims.objects.taken() if id_ in self._devices}
        self._of_pods: dict[str, _DeviceIds] = {}  #: of claims that end with their pod, by its uid
        self._first: dict[str, list[tuple[str, str]]] = {}  #: named claims that got devices for a pod, by its uid

    def prepare(self, pod: Pod) -> Pod:
        """Return *pod* with the extended resources that a DeviceClass offers."""
        return self._claims.objects.with_class_resources(pod)

    def find(self, pod: Pod, host: Host) -> tuple[ClaimState, ...] | str:
        """Return the claims of *pod* with devices for all of them, or why that is impossible."""
        objects = replace(self._claims.objects, claims=self._named_claims)
        claims: list[tuple[str, Claim]] = []
        for name, claim in objects.claims_of(pod, capacity=host.ledger.devices.allocatable()):
            if isinstance(claim, str):
                return f"claim {name}: {claim}"
            if claim.allocated is not None and claim.host not in ("", self._host):
                return f"claim {name} has devices of node {claim.host}"
            claims.append((name, claim))
        unallocated_claims = [claim for _, claim in claims if claim.allocated is None]
        if classes := objects.missing_classes(unallocated_claims):
            return f"DeviceClass {', '.join(classes)} is not known"
        try:
            allocations = allocate(
                unallocated_claims, self._claims.devices, matches=self._claims.matches, taken_ids=self._taken_ids
            )
        except AlignError as error:
            return str(error)
        if allocations is None:
            return "no free devices match its claims"
        states = []
        new = iter(allocations)
        for name, claim in claims:
            allocated_devices = next(new) if claim.allocated is None else claim.allocated
            devices = tuple(
                (device.request, self._devices[device.id]) for device in allocated_devices if device.id in self._devices
            )
            states.append(ClaimState(name, replace(claim, allocated=allocated_devices), devices, allocated=True))
        return tuple(states)

    def allocate(self, pod: Pod, states: Iterable[ClaimState]) -> None:
        """Give *pod* the devices that :meth:`find` found."""
        ending: list[DeviceId] = []
        for state in states:
            claim = state.claim
            if claim is None:
                continue
            ids = [device.id for device in claim.allocated or ()]
            key = (claim.namespace, claim.name)
            if key in self._named_claims:
                if self._named_claims[key].allocated is None:
                    self._first.setdefault(pod.uid, []).append(key)
                self._named_claims[key] = replace(claim, host=self._host)
            else:
                ending += ids
            self._taken_ids.update(ids)
        self._of_pods[pod.uid] = tuple(ending)

    def forget(self, uid: str) -> None:
        """Undo :meth:`allocate` for a pod that is not bound."""
        for key in self._first.get(uid, ()):
            claim = self._named_claims[key]
            self._taken_ids.difference_update(device.id for device in claim.allocated or ())
            self._named_claims[key] = replace(claim, allocated=None, host="")
        self.release(uid)

    def release(self, uid: str) -> None:
        self._taken_ids.difference_update(self._of_pods.pop(uid, ()))
        self._first.pop(uid, None)


def explain_claims(
    pod: Pod, placements: Sequence[Placement], machine: Machine, states: Iterable[ClaimState]
) -> tuple[ExplainedClaim, ...]:
    """Return the claims of *pod* beside what it gets."""
    return tuple(ExplainedClaim(state, decided_nodes(pod, placements, state.name, machine)) for state in states)
