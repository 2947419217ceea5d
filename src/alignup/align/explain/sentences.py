"""A decision in sentences: the verdict, how NUMA nodes were chosen, what did not fit, where, and by how much.

The sentences come from the decision alone, so the terminal, the log and the web pages agree. What would admit the pod
takes more than a decision: see ``align.explain.remedies``.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import takewhile
from typing import TYPE_CHECKING

from alignup.align import bits
from alignup.align.bits import NodeSet
from alignup.align.decision import Decision, MergeStep, Outcome, Placement, Rejection, ResourceHints, shown_hints
from alignup.align.devices.ledger import DeviceLedger
from alignup.align.devices.provider import CRASHED
from alignup.align.explain import defects
from alignup.align.hint import Hint, preferred_single_nodes
from alignup.align.merging.merge import MergeRule
from alignup.align.reason_codes import KUBELET_HANGS, SMT_ALIGNMENT
from alignup.align.settings import Policy
from alignup.align.workload import Pod, QoS
from alignup.align.workload.names import CPU, MARKER, MEMORY, is_hugepages

if TYPE_CHECKING:
    from alignup.align.host import Host

HOST = "host"  #: the provider of a rejection by the fit check, which counts milli-CPUs
_SHARED_POOL = "shared CPU pool"
_UNITS = ((1 << 40, "Ti"), (1 << 30, "Gi"), (1 << 20, "Mi"), (1 << 10, "Ki"))


def verdict(decision: Decision) -> str:
    """Return a sentence such as ``Pod default/web is rejected: TopologyAffinityError``."""
    pod = f"Pod {decision.namespace}/{decision.name}"
    if decision.rejection:
        return f"{pod} is rejected: {decision.rejection.reason}"
    if decision.possible and decision.possible.rejection:
        return f"{pod} may be rejected: {decision.possible.rejection.reason}"
    if decision.outcome is Outcome.ASKING:
        resources = ", ".join(sorted({ask.resource for ask in decision.preference_requests}))
        return f"{pod} is waiting for the preferred allocation of {resources} from its device plugin"
    return f"{pod} is already admitted and keeps its allocation" if decision.kept else f"{pod} is admitted"


def not_schedulable(pod: Pod, resources: Sequence[str]) -> str:
    """Return ``Pod default/web is not schedulable: no device plugin provides example.com/gpu``."""
    return f"Pod {pod.namespace}/{pod.name} is not schedulable: {no_plugin(resources)}"


def no_plugin(resources: Sequence[str]) -> str:
    return f"no device plugin provides {', '.join(resources)}"


def describe_rules(decision: Decision) -> str:
    pod = f"{decision.qos} pod"
    if decision.qos is not QoS.GUARANTEED:
        pod += ": no exclusive CPUs, no pinned memory"
    if decision.policy is Policy.NONE:
        return f"policy none: nothing is aligned · {pod}"
    return f"policy {decision.policy} · scope {decision.scope} · {pod}"


def format_amount(resource: str, number: int, *, milli: bool = False) -> str:
    """Return an amount that can be pasted into a manifest: ``6 CPUs``, ``3919Mi memory``, ``2 example.com/gpu``."""
    if resource == CPU:
        if milli and number % 1000:
            return f"{number}m CPU"
        whole = number // 1000 if milli else number
        return f"{whole} CPU" if whole == 1 else f"{whole} CPUs"
    return f"{format_quantity(number) if resource == MEMORY or is_hugepages(resource) else number} {resource}"


def format_number(resource: str, number: int, *, milli: bool = False) -> str:
    return format_amount(resource, number, milli=milli).split(" ", 1)[0]


def format_quantity(number: int) -> str:
    """Return bytes as an exact Kubernetes quantity: ``4Gi``, ``3919Mi``, ``17``."""
    for unit, suffix in _UNITS:
        if number and number % unit == 0:
            return f"{number // unit}{suffix}"
    return str(number)


def format_nodes(mask: NodeSet | None) -> str:
    """Return NUMA nodes in braces; ``None`` is "anywhere"."""
    return "anywhere" if mask is None else f"{{{bits.show(mask)}}}"


def node_list(mask: NodeSet | None) -> str | None:
    return None if mask is None else bits.show(mask)


def format_hint(hint: Hint) -> str:
    return format_nodes(hint.nodes) + ("*" if hint.preferred else "")


def describe_choice(step: MergeStep) -> str:
    if step.rule is MergeRule.NOTHING:
        return "no set of NUMA nodes suits every resource" + (": all nodes are used" if step.accepted else "")
    some_silent = any(map(has_no_hints, step.resources))
    every_resource = "every resource with hints" if some_silent else "every resource"
    if not step.width:
        unfit = [
            resource.resource or ""
            for resource in step.resources
            if has_no_hints(resource) or not (resource.has_no_preference or any(shown_hints(resource)))
        ]
        if unfit:
            return f"anywhere: {' and '.join(unfit)} {'fits' if len(unfit) == 1 else 'fit'} on no set of NUMA nodes"
        return "anywhere: no requested resource is tied to a NUMA node"
    if step.rule is MergeRule.PREFERRED:
        nodes = "the only NUMA node" if step.hint.nodes is None else format_hint(step.hint)
        return f"{nodes} is preferred by {every_resource}{_runners_up(step)}"
    if step.rule is MergeRule.STRATEGY:
        others = ", ".join(map(format_nodes, step.runners_up))
        return (
            f"{format_hint(step.hint)} is preferred by {every_resource}, as {others}; numa-allocation-strategy chose it"
        )
    if step.rule is MergeRule.RANDOM:
        possible = _format_alternatives(sorted((step.hint.nodes or 0, *step.runners_up)), more=False)
        return f"{possible}, at random: not preferred by {every_resource}, and equally fit for numa-allocation-strategy"
    return f"{format_hint(step.hint)}, not preferred by {every_resource}: {_second_best(step)}"


def has_no_hints(resource: ResourceHints) -> bool:
    """Return whether a memory request fits on no set of NUMA nodes.

    The kubelet's memory manager then returns no hints, which reads like "anywhere", and fails at allocation.
    """
    return bool(resource.has_no_preference and resource.provider == MEMORY and resource.request)


def describe_allocation(placement: Placement, *, pool_text: str = _SHARED_POOL) -> str:
    """Return ``CPUs 4-7 · 4Gi memory on NUMA node 1 · example.com/gpu gpu-2``, or *pool_text* if nothing is exclusive.

    Devices that are chosen at random are ``example.com/gpu any 1 of gpu-0…3``.
    """
    texts = placement.as_text()
    if placement.choices:
        texts[DeviceLedger.PROVIDER] |= {resource: str(choices) for resource, choices in placement.choices.items()}
    parts = (_format_given(resource, text) for part in texts.values() for resource, text in part.items())
    return " · ".join(filter(None, parts)) or pool_text


def describe_possible_rejection(decision: Decision) -> str:
    """Return why a pod may be rejected; empty if that does not depend on a random choice."""
    possible = decision.possible
    if possible is None or not decision.may_be_rejected:
        return ""
    if possible.rejection is None:
        return "the kubelet chooses devices at random, and not all of its choices were tried"
    container = f"container {possible.rejection.container}" if possible.rejection.container else "the pod"
    if CRASHED in possible.rejection.message:
        return f"the device plugin may crash when it chooses devices for {container}"
    rejected_container = possible.rejection.container
    earlier = takewhile(lambda placement: placement.container != rejected_container, decision.placements)
    names = [placement.container for placement in earlier if not placement.is_certain]
    gets = f"{' and '.join(names)} {'get' if len(names) > 1 else 'gets'}"
    return f"the kubelet chooses at random which devices {gets}, and some choices leave no place for {container}"


def describe_choices(placements: Sequence[Placement]) -> tuple[str, ...]:
    """Return what else is known about choices of devices that a kubelet or a plugin makes."""
    notes = {note: None for placement in placements for choice in placement.choices.values() for note in choice.notes}
    return tuple(notes)


def describe_allocations(placements: Sequence[Placement]) -> str:
    """Return the allocations of several containers in one line, and containers in the shared CPU pool together."""
    allocations = {placement.container: describe_allocation(placement, pool_text="") for placement in placements}
    parts = [f"{container}: {allocation}" for container, allocation in allocations.items() if allocation]
    sharing = [container for container, allocation in allocations.items() if not allocation]
    if sharing:
        parts.append(f"{', '.join(sharing)}: {_SHARED_POOL}")
    return "; ".join(parts)


def describe_rejection(decision: Decision) -> tuple[str, ...]:
    """Return what did not fit, where and by how much; empty unless the pod is rejected."""
    if decision.rejection is None:
        return ()
    if decision.steps and not decision.steps[-1].accepted:
        return tuple(_unaligned(decision.steps[-1], decision.policy))
    return tuple(_insufficient(decision.rejection, decision.steps))


def disagreeing_resources(decision: Decision) -> tuple[str, ...]:
    """Return resources of a rejected pod that each prefer NUMA nodes, but no common node; or none.

    That rejects a pod only with policy restricted: single-numa-node needs one node, preferred or not.
    """
    if decision.policy is not Policy.RESTRICTED or not decision.steps or decision.steps[-1].accepted:
        return ()
    resources = decision.steps[-1].resources
    return _disagreeing([resource for resource in resources if resource.resource and not resource.has_no_preference])


def _disagreeing(resources: Sequence[ResourceHints]) -> tuple[str, ...]:
    nodes_by_resource: dict[str, set[NodeSet | None]] = {}
    hidden = False
    for resource in resources:
        hints, more = shown_hints(resource)
        nodes_by_resource[resource.resource or ""] = {hint.nodes for hint in hints if hint.preferred}
        hidden |= more
    if not all(nodes_by_resource.values()):
        return ()
    for name in () if hidden else tuple(nodes_by_resource):  # leave out resources that prefer what all others prefer
        others = [masks for other, masks in nodes_by_resource.items() if other != name]
        if others and not set.intersection(*others):
            del nodes_by_resource[name]
    return tuple(nodes_by_resource) if len(nodes_by_resource) > 1 else ()


def ignored_requests(host: "Host", pods: Sequence[Pod]) -> tuple[str, ...]:
    """Describe the requests of *pods* that a kubelet silently ignores; for devices see ``Host.missing_devices``."""
    gates = host.settings.gates
    pod_level = [pod for pod in pods if pod.resources.requests or pod.resources.limits]
    if not pod_level or (gates.on("PodLevelResources") and gates.on("PodLevelResourceManagers")):
        return ()
    which = f"{pod_level[0].name} and others have" if len(pod_level) > 1 else f"{pod_level[0].name} has"
    if not gates.on("PodLevelResources"):
        note = "they are ignored without feature gate PodLevelResources; the containers count by their own requests"
    elif "PodLevelResourceManagers" in gates.release.gates:
        note = "their CPUs and memory are not aligned without feature gate PodLevelResourceManagers"
    else:
        note = f"their CPUs and memory are not aligned by Kubernetes {gates.release}"
    return (f"{which} pod-level resources (spec.resources): {note}",)


@lru_cache(maxsize=1024)  # the answer and the log describe the same placements
def _format_given(resource: str, text: str) -> str:
    if resource == CPU:
        return f"CPUs {text}" if set(text) & set(",-") else f"CPU {text}"
    if resource == MEMORY or is_hugepages(resource):
        nodes, _, size = text.partition("=")
        if not int(size):
            return ""  # later containers reuse the memory of this init container
        return f"{format_amount(resource, int(size))} on {_format_node_set(bits.parse(nodes))}"
    return f"marker {text}" if resource == MARKER else f"{resource} {text}"


def _format_node_set(mask: NodeSet) -> str:
    return f"NUMA node {bits.show(mask)}" if mask.bit_count() == 1 else f"NUMA nodes {bits.show(mask)}"


def _insufficient(rejection: Rejection, steps: Sequence[MergeStep]) -> Iterator[str]:
    subject = f"container {rejection.container}" if rejection.container else "the pod"
    for short in rejection.shortfalls:
        milli = short.provider == HOST
        area = "the node" if short.nodes is None else _format_node_set(short.nodes)
        shortage = format_amount(short.resource, short.missing, milli=milli)
        request, free = (format_number(short.resource, number, milli=milli) for number in (short.needed, short.free))
        yield f"{area} has too little for {subject}: {shortage} short ({request} requested, {free} free)"
    if rejection.shortfalls:
        return
    if rejection.reason == SMT_ALIGNMENT:
        yield f"the CPUs of {subject} do not make up whole free cores, which full-pcpus-only requires"
        return
    memory = _memory_without_hints(steps[-1]) if steps and rejection.provider == MEMORY else []
    yield from memory or [f"{rejection.provider or 'the node'} cannot serve {subject}: {rejection.message}"]


def _memory_without_hints(step: MergeStep) -> list[str]:
    """Describe memory that fits on no set of NUMA nodes, which the kubelet notices only when it allocates."""
    bare_resources = [resource for resource in step.resources if has_no_hints(resource)]
    sentences = []
    for resource in bare_resources:
        name, request, free = resource.resource or "", resource.request or 0, resource.free or {}
        most, total = max(free.values(), default=0), sum(free.values())
        if total < request:
            shortage = f"{format_quantity(total)} free, {format_quantity(request - total)} short"
            sentences.append(f"{format_amount(name, request)}: all NUMA nodes together have {shortage}")
        elif most < request:
            sentences.append(
                f"{format_amount(name, request)}: no NUMA node has that much free ({format_quantity(most)} at most), "
                "and nodes form a group only while no container holds memory on them, or if they form it already"
            )
    if bare_resources and not sentences:
        amounts = " and ".join(format_amount(entry.resource or "", entry.request or 0) for entry in bare_resources)
        sentences.append(f"{amounts}: not free on the same NUMA nodes")
    return sentences


def _unaligned(step: MergeStep, policy: Policy) -> Iterator[str]:
    """Describe why the policy accepts no NUMA nodes: what is missing on each, and which each resource prefers."""
    resources = [resource for resource in step.resources if resource.resource and not resource.has_no_preference]
    for resource in resources if policy is Policy.SINGLE_NUMA_NODE else ():
        width = _preferred_width(resource)
        if resource.request is not None and width > 1:
            amount = format_amount(resource.resource or "", resource.request)
            yield f"{amount}: too large for any single NUMA node of this machine, even an empty one; it needs {width}"
    reasons: dict[str, NodeSet] = {}
    for node in sorted({node for resource in resources for node in resource.free or ()}):
        shortages = [text for resource in resources if (text := _missing_on(resource, node, policy))]
        if shortages:
            text = ", ".join(shortages)
            reasons[text] = reasons.get(text, 0) | 1 << node
    for text, mask in reasons.items():
        yield f"{_format_node_set(mask)}{' each' if mask.bit_count() > 1 else ''}: {text}"
    if policy is Policy.RESTRICTED:
        if disagreement := _disagreeing(resources):
            yield f"{' and '.join(disagreement)} prefer different NUMA nodes"
        yield from _conflicting_preferences(resources)
    yield from _memory_without_hints(step)


def _missing_on(resource: ResourceHints, node: int, policy: Policy) -> str | None:
    """Return what *resource* lacks on one node; ``None`` where the request fits, or needs several nodes anyway."""
    if resource.request is None or resource.free is None or _preferred_width(resource) > 1:
        return None
    name, free = resource.resource or "", resource.free.get(node, 0)
    if free < resource.request:
        numbers = f"({format_number(name, resource.request)} requested, {format_number(name, free)} free)"
        return f"{format_amount(name, resource.request - free)} short {numbers}"
    if policy is Policy.SINGLE_NUMA_NODE and not preferred_single_nodes(resource.hints)[0] >> node & 1:
        return f"{name} has enough free, but not for a container on this node alone"
    return None


def _preferred_width(resource: ResourceHints) -> int:
    """Return the number of nodes of the narrowest preferred hint; 0 where no possible hint is preferred."""
    hints, hidden = shown_hints(resource)
    if not hints and hidden:
        return 2  # or more: the decision lists hints of one node first
    widths = {hint.nodes.bit_count() for hint in hints if hint.preferred and hint.nodes is not None}
    return min(widths, default=0)


def _conflicting_preferences(resources: Sequence[ResourceHints]) -> Iterator[str]:
    hint_entries = [(resource.resource, *shown_hints(resource)) for resource in resources]
    impossible = [entry for entry in hint_entries if not entry[1] and not entry[2]]
    for name, hints, hidden in impossible or hint_entries:
        preferred_nodes = [hint.nodes for hint in hints if hint.preferred]
        if preferred_nodes:
            # Hints are listed from narrow to wide: those after one that is not preferred are hardly ever preferred.
            more = hidden and hints[-1].preferred
            yield f"{name} prefers {_format_alternatives(preferred_nodes, more=more)}"
        elif hints:
            possible = _format_alternatives([hint.nodes for hint in hints], more=hidden)
            yield f"{name} fits on {possible}, but would need fewer nodes on an empty machine"
        elif hidden:
            yield f"{name} needs several NUMA nodes"
        else:
            yield f"{name} fits on no set of NUMA nodes"


def _format_alternatives(masks: Iterable[NodeSet | None], *, more: bool) -> str:
    names = [format_nodes(mask) for mask in masks]
    if more:
        return ", ".join([*names, "…"])
    return " or ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]


def _runners_up(step: MergeStep) -> str:
    others = [format_nodes(mask) for mask in step.runners_up]
    if not others:
        return ""
    single = all(mask.bit_count() == 1 and mask > (step.hint.nodes or 0) for mask in step.runners_up)
    reason = "higher-numbered" if single else "farther apart or higher-numbered"
    return f"; so {'is' if len(others) == 1 else 'are'} {', '.join(others)}, but {reason}"


def _second_best(step: MergeStep) -> str:
    """Return why the chosen set is not a set that every resource prefers."""
    node_count = "1 node" if step.width == 1 else f"{step.width} nodes"
    if step.rule is MergeRule.EQUALLY_FIT:
        return "numa-allocation-strategy chose it among equally fit sets"
    if step.rule is MergeRule.AT_TARGET:
        if step.width == 1:
            return "the best single node, and no request needs more"
        return f"the best set of {node_count}, which is what the widest request needs"
    other = "fewer" if step.rule is MergeRule.NARROWER else "more"
    return f"no set of {node_count}, which is what the widest request needs, is possible, so one of {other}"


def describe_defects(decision: Decision, safe: Decision) -> Iterator[str]:
    """Yield a sentence for the defect of the kubelet that makes *decision* differ from the *safe* one."""
    if (safe.outcome, safe.placements) == (decision.outcome, decision.placements):
        return
    cpus, safe_cpus = (bits.union(part.cpus or 0 for part in answer.placements) for answer in (decision, safe))
    unavailable = cpus & ~decision.before.cpus.available if decision.before else 0
    defect, detail = defects.SPLIT_GROUP, ""
    if decision.rejection is not None and decision.rejection.reason == KUBELET_HANGS:
        defect = defects.ENDLESS_LOOP
    elif unavailable:
        defect, detail = defects.CPUS_NOT_FREE, f"CPUs {bits.show(unavailable)} are not free; "
    elif claimed_resources := sorted(_device_resources(decision) - _device_resources(safe)):
        defect, detail = defects.CLAIMED_HINTS, f"{' and '.join(claimed_resources)}: "
    elif cpus != safe_cpus and decision.admitted:
        defect = defects.OTHER_NODES
    upstream = f"{defects.ISSUES}/{defect.issue}" if defect.issue else "no upstream issue was found"
    yield f"a defect of the kubelet, {defect.fix}: {detail}{defect.sentence} ({upstream})"


def _device_resources(decision: Decision) -> set[str]:
    """Return the resources of device plugins whose hints were merged."""
    resources = (resource for step in decision.steps for resource in step.resources)
    return {step.resource for step in resources if step.provider == DeviceLedger.PROVIDER and step.resource}
