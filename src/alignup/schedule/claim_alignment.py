"""Whether the CPUs and memory of a pod will be beside the devices of its claims, on each node.

The kubelet does not align claims, and the scheduler chooses their devices without looking at NUMA nodes. Before they
are allocated, it is predicted whether they can be aligned; at the binding it is known.
"""

from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum

from alignup.align.claims.alignment import ExplainedClaim
from alignup.align.claims.resource_claims import Claim
from alignup.align.workload import Pod
from alignup.align.workload.names import CLAIMS_ANNOTATION
from alignup.placement.host_record import HostRecord
from alignup.placement.verdict import Verdict
from alignup.schedule.known_claims import KnownClaims, ObjectName

UNKNOWN_PREFERENCE = "UnknownClaimPreference"  #: the reason of events about pods with another value of the annotation


class ClaimPreference(StrEnum):
    """The value of the annotation: whether CPUs and memory must be beside the devices."""

    REQUIRE = "require"
    PREFER = "prefer"
    IGNORE = "ignore"


class ClaimAlignment(StrEnum):
    ALIGNED = "aligned"
    UNALIGNED = "unaligned"
    UNKNOWN = "unknown"  #: which devices it gets, on which NUMA nodes they are, or the pod has no CPUs of its own


def claim_preference(pod: Pod) -> tuple[ClaimPreference, str]:
    """Return the rule of *pod*, and what is wrong with its annotation."""
    value = pod.annotations.get(CLAIMS_ANNOTATION, ClaimPreference.PREFER.value)
    if value in [preference.value for preference in ClaimPreference]:
        return ClaimPreference(value), ""
    return ClaimPreference.PREFER, f"annotation {CLAIMS_ANNOTATION} is {value!r}; use {', '.join(ClaimPreference)}"


def explain_claims(
    claims: KnownClaims,
    record: HostRecord | None,
    pod: Pod,
    verdict: Verdict,
    fresh: Mapping[ObjectName, Claim] | None = None,
) -> tuple[tuple[ExplainedClaim, ...], ...]:
    """Return the claims of *pod* beside each of the placements that *verdict* allows; empty if the host is unknown.

    *fresh* claims were read later than the others.
    """
    if record is None:
        return ()
    host = record.model.at(record.ledger)
    host_claims = claims.host_claims(record.name, host.machine, fresh)
    if record.ledger.claims is not None:
        # The observer knows the PCI devices of the machine, and so more NUMA nodes than attributes tell.
        observed = {device.id: device.nodes for device in record.ledger.claims.devices}
        devices = [
            replace(device, nodes=observed.get(device.id)) if device.nodes is None else device
            for device in host_claims.devices
        ]
        host_claims = host_claims._replace(devices=tuple(devices))
    return tuple(host_claims.explain(pod, placements, host) for placements in verdict.possible_placements)


def alignment(explained: tuple[tuple[ExplainedClaim, ...], ...]) -> ClaimAlignment:
    """Return whether everything is beside the devices of all claims, whatever placement the pod gets."""
    if explained and not any(explained):
        return ClaimAlignment.ALIGNED  # device plugins of the node serve everything
    verdicts = {claim.aligned for claims in explained for claim in claims}
    if False in verdicts:
        return ClaimAlignment.UNALIGNED
    return ClaimAlignment.ALIGNED if verdicts == {True} else ClaimAlignment.UNKNOWN


def may_align(explained: tuple[tuple[ExplainedClaim, ...], ...], *, required: bool = False) -> bool:
    """Return whether the scheduler can choose devices so that everything is beside them.

    Where that is unknown, the answer is yes, unless it is *required*.
    """
    suitable = {True} if required else {True, None}
    return bool(explained or not required) and all(
        claim.aligned in suitable or (not claim.state.allocated and bool(claim.better))
        for claims in explained
        for claim in claims
    )
