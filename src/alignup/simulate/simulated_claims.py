"""The claims of a simulated node: which devices each pod gets, as the scheduler allocates them before the admission.

A claim gets the first free devices that match, in the order of the slices. A claim made from a template, or for an
extended resource, ends with its pod; a claim that is an object of its own keeps its devices, and pods share it.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from alignup.align.claims.alignment import ClaimState, ExplainedClaim, HostClaims, decided_nodes
from alignup.align.claims.allocation import allocate
from alignup.align.claims.objects import Claim, DeviceId
from alignup.align.decision import Decision
from alignup.align.errors import AlignError
from alignup.align.host import Host
from alignup.align.workload import Pod

_DeviceIds = tuple[DeviceId, ...]


class ClaimCounts(NamedTuple):
    """Claims of admitted pods."""

    aligned: int = 0  #: CPUs and memory are beside the devices
    unaligned: int = 0
    unknown: int = 0  #: nothing exclusive, or devices without a known NUMA node

    @classmethod
    def of(cls, claims: Iterable[ExplainedClaim]) -> "ClaimCounts":
        verdicts = [claim.aligned for claim in claims]
        return cls(verdicts.count(True), verdicts.count(False), verdicts.count(None))


NO_CLAIMS = ClaimCounts()


class SimulatedClaims:
    def __init__(self, claims: HostClaims) -> None:
        self._claims = claims
        self._devices = {device.id: device for device in claims.devices}
        self._named = dict(claims.objects.claims)
        self._taken = claims.objects.taken()
        self._of_pods: dict[str, _DeviceIds] = {}  #: of claims that end with their pod, by its uid

    def prepare(self, pod: Pod) -> Pod:
        """Return *pod* with the extended resources that a DeviceClass offers."""
        return self._claims.objects.with_class_resources(pod)

    def allocate(self, pod: Pod, host: Host) -> tuple[ClaimState, ...] | str:
        """Allocate devices to all claims of *pod*; return them, or why that is impossible, and nothing is allocated."""
        objects = replace(self._claims.objects, claims=self._named)
        states: list[tuple[str, Claim]] = []
        for name, claim in objects.claims_of(pod, capacity=host.ledger.devices.allocatable()):
            if isinstance(claim, str):
                return f"claim {name}: {claim}"
            states.append((name, claim))
        missing = [claim for _, claim in states if claim.allocated is None]
        if classes := objects.missing_classes(missing):
            return f"DeviceClass {', '.join(classes)} is not known"
        try:
            given = allocate(missing, self._claims.devices, matches=self._claims.matches, taken=self._taken)
        except AlignError as error:
            return str(error)
        if given is None:
            return "no free devices match its claims"
        own: list[DeviceId] = []
        result = []
        for name, claim in states:
            allocated = given.get(claim.title, ()) if claim.allocated is None else claim.allocated
            key = (claim.namespace, claim.name)
            if key in self._named:
                self._named[key] = replace(claim, allocated=allocated)
            else:
                own += [device.id for device in allocated]
            self._taken.update(device.id for device in allocated)
            known = tuple((each.request, self._devices[each.id]) for each in allocated if each.id in self._devices)
            result.append(ClaimState(name, claim, known, allocated=True))
        self._of_pods[pod.uid] = tuple(own)
        return tuple(result)

    def release(self, uid: str) -> None:
        self._taken.difference_update(self._of_pods.pop(uid, ()))


def explain_claims(
    pod: Pod, decision: Decision, host: Host, states: Iterable[ClaimState]
) -> tuple[ExplainedClaim, ...]:
    """Return the claims of *pod* beside the decision on it."""
    return tuple(ExplainedClaim(state, decided_nodes(pod, decision, state.name, host.machine)) for state in states)
