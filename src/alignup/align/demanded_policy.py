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
from alignup.align.admit import annotated_policy
from alignup.align.bits import NodeSet
from alignup.align.decision import Decision, Placement
from alignup.align.devices.choices import DeviceChoices
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
_MAX_SETS = 64  #: of NUMA nodes that devices on several of them can stand for, and of possible choices of devices
_POD_LEVEL = "of pods with pod-level resources (feature gate PodLevelResourceManagers)"


class DemandedPolicy(NamedTuple):
    policy: Policy
    scope: Scope

    @classmethod
    def of(cls, pod: Pod, host: Host) -> "DemandedPolicy":
        """Return what the annotations of *pod* demand; what they leave out is as on *host*."""
        return cls(*annotated_policy(pod, host.settings.topology))


class UnmetDemand(NamedTuple):
    """Why an admitted pod is not placed as it demands."""

    subject: str  #: a container, or the pod
    problem: str
    certain: bool = True  #: ``False``: only some of the possible choices of devices do not meet the demand

    def __str__(self) -> str:
        return f"{self.subject} {'is' if self.certain else 'may be'} {self.problem}"


_TOO_MANY = UnmetDemand("the pod", "anywhere: there are too many possible choices of devices to try", certain=False)


def is_enforced(decision: Decision, demand: DemandedPolicy) -> bool:
    """Return whether the policy that decided is as strict as *demand*: it admits nothing that *demand* forbids."""
    if demand.policy in (Policy.NONE, Policy.BEST_EFFORT):
        return True
    as_strict = _STRICTNESS.index(decision.policy) >= _STRICTNESS.index(demand.policy)
    return as_strict and decision.scope is demand.scope


def unmet_demand(host: Host, pod: Pod, decision: Decision, demand: DemandedPolicy) -> UnmetDemand | None:
    """Return why what *host* places for an admitted pod is not where *demand* wants it; ``None``: it is.

    If *decision* is a prediction, all devices count that the pod may get.
    """
    if is_enforced(decision, demand):
        return None
    possible = decision.possible
    if possible and not possible.complete:
        return _TOO_MANY
    variants = (decision.placements, *(possible.variants if possible else ()))
    unmet = [_unmet_by_variant(host, pod, decision, placements, demand) for placements in variants]
    first = next(filter(None, unmet), None)
    return first and first._replace(certain=all(demand and demand.certain for demand in unmet))


def _unmet_by_variant(
    host: Host, pod: Pod, decision: Decision, placements: Sequence[Placement], demand: DemandedPolicy
) -> UnmetDemand | None:
    if decision.before is None or decision.after is None:
        raise StateError(f"the decision on pod {decision.uid} is not that of a host that admits it")
    unmet: UnmetDemand | None = None
    for container, ledgers in _steps(host, pod, decision.before, placements, demand.scope):
        inputs = {
            resource or provider.name: hints
            for provider in host.providers
            for resource, hints in provider_inputs(
                provider.name, provider.hints(ledgers[provider.name], pod, container)
            )
            if hints != DONT_CARE
        }
        combinations = _possible_combinations(decision, placements, container, decision.after) if inputs else []
        if len(combinations) > _MAX_SETS:
            return _TOO_MANY
        problems = [_unmet(inputs, combination, decision.after, demand.policy) for combination in combinations]
        if any(problems):
            subject = f"container {container.name}" if container else "the pod"
            problem = next(filter(None, problems))
            if all(problems):
                return UnmetDemand(subject, problem)
            unmet = unmet or UnmetDemand(subject, problem, certain=False)
    return unmet


def unplaced_resource(host: Host, pod: Pod) -> str:
    """Return which resource that *pod* requests no manager of *host* places, and why; empty: there is none."""
    guaranteed = pod.qos is QoS.GUARANTEED
    places_memory = host.memory.settings.policy is MemoryPolicy.STATIC
    skipped = pod.has_pod_level_resources and not host.rules.pod_level
    inventories = host.ledger.devices.inventories
    for resources in (*[container.resources for container in pod.all_containers], pod.resources):
        for name, amount in resources.requests.items():
            if not amount.milli():
                continue
            if guaranteed and name == CPU and amount.milli() % 1000 == 0 and (skipped or not host.cpus.allocatable):
                return f"the node places no CPUs {_POD_LEVEL if skipped else '(cpuManagerPolicy none)'}"
            if guaranteed and (name == MEMORY or is_hugepages(name)) and (skipped or not places_memory):
                return f"the node places no {name} {_POD_LEVEL if skipped else '(memoryManagerPolicy None)'}"
            inventory = inventories.get(name)
            if inventory is not None and any(device.nodes is None for device in inventory.devices):
                return f"devices of {name} have no NUMA node"
    return ""


def _steps(
    host: Host, pod: Pod, ledger_before: Ledger, placements: Sequence[Placement], scope: Scope
) -> Iterator[tuple[Container | None, Mapping[str, Any]]]:
    """Yield each container, or ``None`` for the pod as a whole, with the ledgers when a kubelet asks for its hints."""
    ledgers = ledger_before.by_provider()
    if scope is Scope.POD or (host.rules.pod_level and pod.has_pod_level_resources):
        yield None, ledgers
        return
    by_container = {placement.container: placement for placement in placements}

    def choose(_uid: str, choices: Sequence[DeviceChoices]) -> dict[str, tuple[str, ...]]:
        return {choice.resource: by_container[choice.container].devices[choice.resource] for choice in choices}

    providers = (replace(host.devices, chooser=choose), *host.providers[1:])
    for container in pod.all_containers:
        yield container, dict(ledgers)
        for provider in providers:
            ledger, hint = ledgers[provider.name], by_container[container.name].hint
            ledgers[provider.name] = provider.allocate(ledger, pod, container, affinity=hint)


def _possible_combinations(
    decision: Decision, placements: Sequence[Placement], container: Container | None, ledger: Ledger
) -> list[tuple[Placement, ...]]:
    """Return what a container, or the whole pod, may get, for each possible number of devices by NUMA node.

    *placements* are one of the variants of a prediction. Without a policy there is one, and otherwise one for each
    choice for all containers but the last. At most one more than ``_MAX_SETS`` are returned.
    """
    every = decision.policy is Policy.NONE
    choices = {placement.container: placement.choices for placement in decision.placements}
    last = placements[-1].container
    possible = [
        _possible_placements(placement, choices[placement.container], ledger)
        if every or placement.container == last
        else [placement]
        for placement in placements
        if container is None or placement.container == container.name
    ]
    return list(islice(product(*possible), _MAX_SETS + 1))


def _possible_placements(placement: Placement, choices: Mapping[str, DeviceChoices], ledger: Ledger) -> list[Placement]:
    """Return a placement for each possible number of devices by NUMA node."""
    placements = [placement]
    for resource, possible in choices.items():
        inventory = ledger.devices.inventories[resource]
        nodes = {device.id: device.nodes for device in inventory.devices}
        sets = possible.representatives(nodes.get, _MAX_SETS + 1)
        placements = [
            replace(placement, devices={**placement.devices, resource: ids}) for placement in placements for ids in sets
        ][: _MAX_SETS + 1]
    return placements


def _unmet(inputs: Mapping[str, Hints], placements: Sequence[Placement], ledger: Ledger, policy: Policy) -> str:
    """Return the NUMA nodes that *policy* does not accept, and why; empty: it accepts all."""
    sites = [site for placement in placements for site in placement.sites(ledger)]
    problem = ""
    for nodes in _node_sets(sites) if sites else ():
        several = nodes.bit_count() > 1
        resources = [resource for resource, hints in inputs.items() if not _prefers(hints, nodes)]
        subject = f"NUMA node{'s' if several else ''} {bits.show(nodes)} ({_describe_sites(placements, ledger)})"
        if policy is Policy.SINGLE_NUMA_NODE and several:
            problem = f"on {subject}, and {policy} demands one"
        elif resources:
            problem = f"on {subject}, which {policy} does not accept for {', '.join(resources)}"
        else:
            return ""
    return problem


def _describe_sites(placements: Sequence[Placement], ledger: Ledger) -> str:
    """Return the NUMA nodes of each resource, such as ``cpu on 0, example.com/gpu on 0-1``."""
    sites: dict[str, NodeSet] = {}
    for placement in placements:
        parts = {CPU: replace(placement, memory=(), devices={})}
        parts |= {block.type: replace(placement, cpus=None, memory=(block,), devices={}) for block in placement.memory}
        parts |= {
            resource: replace(placement, cpus=None, memory=(), devices={resource: ids})
            for resource, ids in placement.devices.items()
        }
        for resource, part in parts.items():
            sites[resource] = reduce(or_, part.sites(ledger), sites.get(resource, 0))
    return ", ".join(f"{resource} on {bits.show(nodes)}" for resource, nodes in sites.items() if nodes)


def _prefers(hints: Hints, nodes: NodeSet) -> bool:
    if isinstance(hints, HintList):
        return nodes in hints.preferred or (hints.anywhere is not None and hints.anywhere.preferred)
    return hints.fits(nodes) and hints.prefers(nodes)


def _node_sets(sites: Sequence[NodeSet]) -> list[NodeSet]:
    """Return the sets of NUMA nodes that a placement can stand for; a device on several nodes counts on one node."""
    fixed_nodes = reduce(or_, (site for site in sites if site & site - 1 == 0), 0)
    sets = [fixed_nodes]
    for site in sites:
        if not site & fixed_nodes:
            sets = list(dict.fromkeys(nodes | node for nodes in sets for node in bits.split(site)))[:_MAX_SETS]
    return sets
