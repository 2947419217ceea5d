"""Whether a host with any policy places a pod as another policy demands.

A pod is placed as a policy demands if a kubelet with that policy would have accepted the hint for exactly the NUMA
nodes that the pod gets. So ``restricted`` demands a set that every resource prefers, ``single-numa-node`` one such
node, and ``best-effort`` nothing. A resource that no manager of the host places may be anywhere: see
``unplaced_resource``.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from itertools import islice, product
from operator import or_
from typing import Any, NamedTuple

from alignup.align import bits
from alignup.align.bits import NodeSet
from alignup.align.decision import Decision, Placement
from alignup.align.devices.provider import PreferenceAnswers
from alignup.align.errors import StateError
from alignup.align.hint import DONT_CARE, HintList, Hints, provider_inputs
from alignup.align.host import Host
from alignup.align.ledger import Ledger
from alignup.align.memory.provider import MemoryPolicy
from alignup.align.settings import Policy, Scope
from alignup.align.workload import Container, Pod, QoS
from alignup.align.workload.names import CPU, MEMORY, is_hugepages

#: From the loosest to the strictest.
_STRICTNESS = (Policy.NONE, Policy.BEST_EFFORT, Policy.RESTRICTED, Policy.SINGLE_NUMA_NODE)
_MAX_SETS = 64  #: of NUMA nodes that devices on several of them can stand for


class DemandedPolicy(NamedTuple):
    policy: Policy
    scope: Scope


def unmet_demand(
    host: Host, pod: Pod, decision: Decision, demand: DemandedPolicy, *, answers: PreferenceAnswers | None = None
) -> str:
    """Return why what *host* places for an admitted pod is not where *demand* wants it; empty: it is.

    *decision* is what the host decided on the pod, with these *answers* of device plugins.
    """
    topology = host.settings.topology
    if demand.policy in (Policy.NONE, Policy.BEST_EFFORT):
        return ""
    if demand.scope is topology.scope and _STRICTNESS.index(topology.policy) >= _STRICTNESS.index(demand.policy):
        return ""
    if decision.before is None or decision.after is None:
        raise StateError(f"the decision on pod {decision.uid} is not that of a host that admits it")
    for container, ledgers in _steps(host, pod, decision, demand.scope, answers):
        inputs = {
            resource or provider.name: hints
            for provider in host.providers
            for resource, hints in provider_inputs(
                provider.name, provider.hints(ledgers[provider.name], pod, container)
            )
            if hints != DONT_CARE
        }
        for sites in _possible_sites(decision.placements, container, decision.after):
            if inputs and sites and (problem := _unmet(inputs, sites, demand.policy)):
                return f"{f'container {container.name}' if container else 'the pod'} {problem}"
    return ""


def unplaced_resource(host: Host, pod: Pod) -> str:
    """Return which resource that *pod* requests no manager of *host* places, and why; empty: there is none."""
    guaranteed = pod.qos is QoS.GUARANTEED
    places_memory = host.memory.settings.policy is MemoryPolicy.STATIC
    inventories = host.ledger.devices.inventories
    for container in pod.all_containers:
        for name, amount in container.resources.requests.items():
            if not amount.milli():
                continue
            if guaranteed and name == CPU and amount.milli() % 1000 == 0 and not host.cpus.allocatable:
                return "the node places no CPUs (cpuManagerPolicy none)"
            if guaranteed and (name == MEMORY or is_hugepages(name)) and not places_memory:
                return f"the node places no {name} (memoryManagerPolicy None)"
            inventory = inventories.get(name)
            if inventory is not None and any(device.nodes is None for device in inventory.devices):
                return f"devices of {name} have no NUMA node"
    return ""


def _steps(
    host: Host, pod: Pod, decision: Decision, scope: Scope, answers: PreferenceAnswers | None
) -> Iterator[tuple[Container | None, Mapping[str, Any]]]:
    """Yield each container, or ``None`` for the pod as a whole, with the ledgers when a kubelet asks for its hints."""
    ledgers = decision.before.by_provider() if decision.before else {}
    if scope is Scope.POD or (host.rules.pod_level and pod.has_pod_level_resources):
        yield None, ledgers
        return
    affinities = {placement.container: placement.hint for placement in decision.placements}
    providers = (replace(host.devices, answers=answers), *host.providers[1:]) if answers else host.providers
    for container in pod.all_containers:
        yield container, dict(ledgers)
        for provider in providers:
            ledger = ledgers[provider.name]
            ledgers[provider.name] = provider.allocate(ledger, pod, container, affinity=affinities[container.name])


def _possible_sites(
    placements: Sequence[Placement], container: Container | None, ledger: Ledger
) -> Iterator[list[NodeSet]]:
    """Yield the nodes of every resource of a container, or of the whole pod, for each possible choice of devices."""
    chosen = [placement for placement in placements if container is None or placement.container == container.name]
    possible = [_possible_placements(placement, ledger) for placement in chosen]
    for combination in islice(product(*possible), _MAX_SETS):
        yield [site for placement in combination for site in placement.sites(ledger)]


def _possible_placements(placement: Placement, ledger: Ledger) -> list[Placement]:
    """Return a placement for each possible number of devices by NUMA node."""
    placements = [placement]
    for resource, choices in placement.choices.items():
        inventory = ledger.devices.inventories[resource]
        nodes = {device.id: device.nodes for device in inventory.devices}
        sets = choices.representatives(nodes.get, _MAX_SETS)
        placements = [
            replace(placement, devices={**placement.devices, resource: ids}) for placement in placements for ids in sets
        ]
    return placements


def _unmet(inputs: Mapping[str, Hints], sites: Sequence[NodeSet], policy: Policy) -> str:
    problem = ""
    for nodes in _node_sets(sites):
        several = nodes.bit_count() > 1
        unsuited = [resource for resource, hints in inputs.items() if not _prefers(hints, nodes)]
        if policy is Policy.SINGLE_NUMA_NODE and several:
            problem = f"is on NUMA nodes {bits.show(nodes)}, and {policy} demands one"
        elif unsuited:
            place = f"NUMA node{'s' if several else ''} {bits.show(nodes)}"
            problem = f"is on {place}, which {policy} does not accept for {', '.join(unsuited)}"
        else:
            return ""
    return problem


def _prefers(hints: Hints, nodes: NodeSet) -> bool:
    if isinstance(hints, HintList):
        return nodes in hints.preferred or (hints.anywhere is not None and hints.anywhere.preferred)
    return hints.fits(nodes) and hints.prefers(nodes)


def _node_sets(sites: Sequence[NodeSet]) -> list[NodeSet]:
    """Return the sets of NUMA nodes that a placement can stand for; a device on several nodes is on one of them."""
    fixed = reduce(or_, (site for site in sites if site & site - 1 == 0), 0)
    sets = [fixed]
    for site in sites:
        if not site & fixed:
            sets = list(dict.fromkeys(nodes | node for nodes in sets for node in bits.split(site)))[:_MAX_SETS]
    return sets
