"""The claims of a pod beside what it gets on a node, by everything that is known of claims and devices."""

from collections.abc import Mapping
from dataclasses import replace

from alignup.align.claims.resource_claims import Claim
from alignup.align.workload import Pod
from alignup.align.workload.names import DEVICES_ANNOTATION
from alignup.placement.host_record import HostRecord
from alignup.placement.scheduling.facts import Explained
from alignup.placement.verdict import Verdict
from alignup.schedule.known_claims import KnownClaims, ObjectName
from alignup.schedule.selector_results import SelectorBudgetError


def explain_claims(
    claims: KnownClaims,
    record: HostRecord | None,
    pod: Pod,
    verdict: Verdict,
    fresh: Mapping[ObjectName, Claim] | None = None,
) -> Explained:
    """Return the claims of *pod* beside each of the placements that *verdict* allows.

    The result is empty if the host is unknown, or if the namespace of the pod has used up its time for searches.
    *fresh* claims were read later than the others.
    """
    if record is None:
        return ()
    ledger = record.ledger
    if DEVICES_ANNOTATION in pod.annotations:  # devices of pods on their way count, too
        earlier = record.before(pod.uid) if record.binding(pod.uid) else record
        ledger = next(iter(earlier.states().ledgers), ledger)
    host = record.model.at(ledger)
    host_claims = claims.host_claims(pod, record.name, host.machine, fresh)
    if record.ledger.claims is not None:
        # The observer knows the PCI devices of the machine, and so more NUMA nodes than attributes tell.
        observed_nodes = {device.id: device.nodes for device in record.ledger.claims.devices}
        devices = [
            replace(device, nodes=observed_nodes.get(device.id)) if device.nodes is None else device
            for device in host_claims.devices
        ]
        host_claims = host_claims._replace(devices=tuple(devices))
    try:
        return claims.selectors.search(
            pod.namespace,
            len(host_claims.devices),
            lambda: tuple(host_claims.explain(pod, placements, host) for placements in verdict.possible_placements),
        )
    except SelectorBudgetError:
        return ()
