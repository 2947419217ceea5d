"""The overtaking of waiting pods: a pod may be admitted before them if it takes nothing that they could use.

A pod takes something from a waiting pod if the waiting pod could be admitted later without the other pod, but not with
it, whatever is released in between. :func:`competes` never misses that, and may see it where there is none. Two facts
make it a simple comparison of amounts:

* A set of NUMA nodes is suitable for a request if it has enough free in total. A node that has enough for all waiting
  pods by itself makes every set with that node suitable, whatever else is taken or released, and a set without it is
  not affected. So hints, and with them the result of the merge, stay as they are.
* The fit check, and allocation without alignment, compare totals of the whole host.

Memory needs more: a node whose memory is allocated alone cannot be part of a group of nodes later, and vice versa.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from alignup.align import bits
from alignup.align.admit import effective_policy
from alignup.align.bits import NodeSet
from alignup.align.decision import Decision
from alignup.align.errors import PodError
from alignup.align.hint import Need, Provider
from alignup.align.host import Host
from alignup.align.ledger import Ledger
from alignup.align.settings import Policy, Scope
from alignup.align.workload import Pod, demand

_ALIGNED = {Policy.RESTRICTED, Policy.SINGLE_NUMA_NODE}  #: the policies that reject a pod for its NUMA nodes


def competes(host: Host, decision: Decision, waiting_pods: Sequence[Pod], *, resources: Collection[str] = ()) -> bool:
    """Return whether the admission in *decision* may take something that one of *waiting_pods* could use.

    A device plugin has yet to choose the devices of *resources*.
    """
    old_ledger, new_ledger = decision.before, decision.after
    if old_ledger is None or new_ledger is None:
        return False
    try:
        return _takes_something(host, decision.uid, old_ledger, new_ledger, waiting_pods, resources)
    except PodError:  # invalid annotations: nothing is known about the policy of a waiting pod
        return True


def _takes_something(  # noqa: PLR0913, PLR0917 - only for competes
    host: Host,
    uid: str,
    old_ledger: Ledger,
    new_ledger: Ledger,
    waiting_pods: Sequence[Pod],
    resources: Collection[str],
) -> bool:
    return (
        any(not _needs(host.devices, old_ledger.devices, pod).keys().isdisjoint(resources) for pod in waiting_pods)
        or any(old_ledger.others[provider.name] is not new_ledger.others[provider.name] for provider in host.others)
        or _fails_fit_check(host, old_ledger, new_ledger, waiting_pods)
        or _lacks_free(host, old_ledger, new_ledger, waiting_pods)
        or _splits_memory(host, uid, new_ledger, waiting_pods)
    )


def _fails_fit_check(host: Host, old_ledger: Ledger, new_ledger: Ledger, waiting_pods: Sequence[Pod]) -> bool:
    allocatable = host.rules.allocatable
    if allocatable is None:
        return False
    requests = [demand.fit_used(pod) for pod in waiting_pods]
    capacity = allocatable.with_devices(host.devices.capacity(new_ledger.devices, "")).scalars
    comparisons = [(len(waiting_pods), allocatable.pods, old_ledger.used.pods, new_ledger.used.pods)]
    for name in ("milli_cpu", "memory", "ephemeral_storage"):
        total, earlier, now = (
            getattr(resources, name) for resources in (allocatable, old_ledger.used, new_ledger.used)
        )
        comparisons.append((sum(getattr(request, name) for request in requests), total, earlier, now))
    for name, total in capacity.items():
        earlier, now = (usage.scalars.get(name, 0) for usage in (old_ledger.used, new_ledger.used))
        comparisons.append((sum(request.scalars.get(name, 0) for request in requests), total, earlier, now))
    return any(request > max(0, total - now) and now > earlier for request, total, earlier, now in comparisons)


def _lacks_free(host: Host, old_ledger: Ledger, new_ledger: Ledger, waiting_pods: Sequence[Pod]) -> bool:
    """Return whether less than the waiting pods request is left on the host, or on a NUMA node for them."""
    nodes = {
        pod.uid: _usable_nodes(host, old_ledger, pod) if effective_policy(pod, host.rules)[0] in _ALIGNED else 0
        for pod in waiting_pods
    }
    for provider, earlier, later in _changed_ledgers(host, old_ledger, new_ledger):
        # full-pcpus-only does not count siblings of reserved CPUs as free.
        strict = provider is host.cpus and host.cpus.options.full_pcpus_only
        hidden_cores = (host.cpus.reserved_cores & ~host.cpus.reserved).bit_count() if strict else 0
        total: Counter[str] = Counter()
        on_node: Counter[tuple[str, int]] = Counter()
        free: dict[str, tuple[Need, Need]] = {}
        for pod in waiting_pods:
            was = _needs(provider, earlier, pod)
            for resource, need in _needs(provider, later, pod).items():
                free[resource] = was[resource], need
                total[resource] += need.request
                on_node.update({(resource, node): need.request for node in bits.members(nodes[pod.uid])})
        for resource, (was_free, now_free) in free.items():
            if now_free.total < min(was_free.total, total[resource] + hidden_cores):
                return True
            for node, amount in now_free.free.items():
                if on_node[resource, node] and amount < min(
                    was_free.free[node], on_node[resource, node] + hidden_cores
                ):
                    return True
    return False


def _splits_memory(host: Host, uid: str, new_ledger: Ledger, waiting_pods: Sequence[Pod]) -> bool:
    """Return whether memory of the admitted pod may prevent memory on several nodes, or on a group of nodes."""
    groups = {block.nodes for blocks in new_ledger.memory.held.get(uid, {}).values() for block in blocks}
    needs_by_uid = {pod.uid: (pod, _needs(host.memory, new_ledger.memory, pod)) for pod in waiting_pods}
    needs_by_uid = {key: (pod, needs) for key, (pod, needs) in needs_by_uid.items() if needs}
    if not groups or not needs_by_uid:
        return False
    if any(nodes.bit_count() != 1 for nodes in groups):
        return True
    if any(effective_policy(pod, host.rules)[0] is Policy.BEST_EFFORT for pod, _ in needs_by_uid.values()):
        return True
    for node in bits.members(bits.union(groups)):
        on_node: Counter[str] = Counter()
        for pod, needs in needs_by_uid.values():
            if _usable_nodes(host, new_ledger, pod) >> node & 1:
                on_node.update({type_: need.request for type_, need in needs.items()})
        if any(new_ledger.memory.free(1 << node, type_) < request for type_, request in on_node.items()):
            return True
    return False


def _changed_ledgers(host: Host, old_ledger: Ledger, new_ledger: Ledger) -> Iterator[tuple[Provider[Any], Any, Any]]:
    earlier, later = old_ledger.by_provider(), new_ledger.by_provider()
    for provider in (host.devices, host.cpus, host.memory):
        if earlier[provider.name] is not later[provider.name]:
            yield provider, earlier[provider.name], later[provider.name]


def _needs(provider: Provider[Any], ledger: Any, pod: Pod) -> Mapping[str, Need]:  # noqa: ANN401 - of any provider
    """Return what a pod needs at most: all containers together, or the pod as a whole."""
    needs = dict(provider.needs(ledger, pod, None))
    requests: Counter[str] = Counter()
    for container in pod.all_containers:
        for resource, need in provider.needs(ledger, pod, container).items():
            requests[resource] += need.request
            needs.setdefault(resource, need)
    return {
        resource: need._replace(request=max(requests[resource], need.request))
        for resource, need in needs.items()
        if requests[resource] or need.request
    }


def _usable_nodes(host: Host, ledger: Ledger, pod: Pod) -> NodeSet:
    """Return the NUMA nodes *pod* could use; with one node for all, the nodes with the devices that it requests."""
    policy, scope = effective_policy(pod, host.rules)
    nodes = host.view.all_nodes
    if policy is not Policy.SINGLE_NUMA_NODE or (scope is not Scope.POD and len(pod.all_containers) > 1):
        return nodes
    for resource in _needs(host.devices, ledger.devices, pod):
        inventory = ledger.devices.inventories.get(resource)
        if inventory and inventory.placed.bit_count() == len(inventory.devices):
            nodes &= bits.of(node for node, devices in inventory.on.items() if devices)
    return nodes
