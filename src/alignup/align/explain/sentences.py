"""A decision in sentences: the verdict, how nodes were chosen, and what did not fit where, by how much.

Everything is told from the record alone, so that a terminal, a log and a page of the dashboard say the same. What would
have admitted the pod is another question, and takes more than a record: ``align.explain.remedies``.
"""

from collections.abc import Iterable, Iterator, Sequence

from alignup.align import bits
from alignup.align.bits import NodeSet
from alignup.align.decision import Decision, MergeStep, Outcome, Placement, Rejection, ResourceHints, Shortfall
from alignup.align.hint import Hint, preferred_single_nodes
from alignup.align.merging.merge import MergeRule
from alignup.align.settings import Policy
from alignup.align.workload import QoS
from alignup.align.workload.names import CPU, MEMORY, is_hugepages

HOST = "host"  #: the provider of a refusal by the fit check, which counts CPUs in thousandths
_SMT = "SMTAlignmentError"
_UNITS = ((1 << 40, "Ti"), (1 << 30, "Gi"), (1 << 20, "Mi"), (1 << 10, "Ki"))


def verdict(decision: Decision) -> str:
    """``Pod default/web is refused: TopologyAffinityError``."""
    pod = f"Pod {decision.namespace}/{decision.name}"
    if decision.refusal:
        return f"{pod} is refused: {decision.refusal.reason}"
    if decision.outcome is Outcome.ASKING:
        resources = ", ".join(sorted({ask.resource for ask in decision.asks}))
        return f"{pod} waits: the device plugin of {resources} is to be asked first"
    return f"{pod} is there already and keeps what it has" if decision.kept else f"{pod} is admitted"


def describe_rules(decision: Decision) -> str:
    """By what the pod was judged, in a line."""
    pod = f"{decision.qos} pod"
    if decision.qos is not QoS.GUARANTEED:
        pod += ": no CPUs or memory of its own"
    if decision.policy is Policy.NONE:
        return f"policy none, which asks nobody and aligns nothing · {pod}"
    return f"policy {decision.policy} · scope {decision.scope} · {pod}"


def format_amount(resource: str, number: int, *, milli: bool = False) -> str:
    """So much of a resource, in words that can be pasted: ``6 CPUs``, ``3919Mi memory``, ``2 example.com/gpu``."""
    if resource == CPU:
        if milli and number % 1000:
            return f"{number}m CPU"
        whole = number // 1000 if milli else number
        return f"{whole} CPU" if whole == 1 else f"{whole} CPUs"
    return f"{format_quantity(number) if resource == MEMORY or is_hugepages(resource) else number} {resource}"


def format_number(resource: str, number: int, *, milli: bool = False) -> str:
    """An amount without the name of what it is of."""
    return format_amount(resource, number, milli=milli).split(" ", 1)[0]


def format_quantity(number: int) -> str:
    """Bytes as a Kubernetes quantity, exact: ``4Gi``, ``3919Mi``, ``17``."""
    for unit, suffix in _UNITS:
        if number and number % unit == 0:
            return f"{number // unit}{suffix}"
    return str(number)


def format_nodes(mask: NodeSet | None) -> str:
    """A set of nodes in braces; no set at all is "anywhere"."""
    return "anywhere" if mask is None else f"{{{bits.show(mask)}}}"


def node_list(mask: NodeSet | None) -> str | None:
    """A set of nodes as a Linux list, for documents."""
    return None if mask is None else bits.show(mask)


def format_hint(one: Hint) -> str:
    """A set of nodes, with a star when it is preferred."""
    return format_nodes(one.nodes) + ("*" if one.preferred else "")


def describe_choice(step: MergeStep) -> str:
    """How a merge came to its result."""
    if step.rule is MergeRule.NOTHING:
        return "no set of nodes suits every resource" + (": all of them" if step.accepted else "")
    everyone = "every resource that has a say" if any(map(has_no_hints, step.voices)) else "every resource"
    if not step.width:
        tied = "that has a say" if any(map(has_no_hints, step.voices)) else "it asks for"
        return f"anywhere: nothing {tied} is tied to a NUMA node"
    if step.rule is MergeRule.PREFERRED:
        chosen = "the only node" if step.hint.nodes is None else format_hint(step.hint)
        return f"{chosen} is preferred by {everyone}{_also(step)}"
    return f"{format_hint(step.hint)}, which not {everyone} prefers: {_second_best(step)}"


def has_no_hints(voice: ResourceHints) -> bool:
    """Whether something was asked for that fits nowhere, of a provider that keeps quiet about it until it is to give.

    The kubelet's memory manager gives no hints at all then, which reads like "anywhere".
    """
    return bool(voice.has_no_preference and voice.provider == MEMORY and voice.request)


def describe_allocation(placement: Placement) -> str:
    """What a container got of its own: ``CPUs 4-7 · 4Gi memory on node 1 · example.com/gpu gpu-2``."""
    return _own(placement) or "nothing of its own: it runs on the shared CPUs"


def describe_allocations(placements: Sequence[Placement]) -> str:
    """The same of several containers in one line; those that got nothing are named together."""
    owning = [f"{one.container}: {own}" for one in placements if (own := _own(one))]
    others = [one for one in placements if not _own(one)]
    if len(others) > 1:
        names = ", ".join(one.container for one in others)
        return "; ".join((*owning, f"{names}: nothing of their own: they run on the shared CPUs"))
    return "; ".join((*owning, *(f"{one.container}: {describe_allocation(one)}" for one in others)))


def describe_rejection(decision: Decision) -> tuple[str, ...]:
    """What did not fit where, and by how much; nothing for a pod that was not refused."""
    refusal = decision.refusal
    if refusal is None:
        return ()
    if decision.steps and not decision.steps[-1].accepted:
        return tuple(_unaligned(decision.steps[-1], decision.policy))
    return tuple(_unserved(refusal, decision.steps))


def _own(placement: Placement) -> str:
    own = (_given(resource, what) for part in placement.given.values() for resource, what in part.items())
    return " · ".join(filter(None, own))


def _given(resource: str, what: str) -> str:
    if resource == CPU:
        return f"CPUs {what}" if set(what) & set(",-") else f"CPU {what}"
    if resource == MEMORY or is_hugepages(resource):
        where, _, held = what.partition("=")
        if not int(held):
            return ""  # of an init container whose memory the next ones took over
        return f"{format_amount(resource, int(held))} on {_on(bits.parse(where))}"
    return f"{resource} {what}"


def _on(mask: NodeSet) -> str:
    return f"node {bits.show(mask)}" if mask.bit_count() == 1 else f"nodes {bits.show(mask)}"


def _unserved(refusal: Rejection, steps: Sequence[MergeStep]) -> Iterator[str]:
    """A provider, or the host as a whole, had too little."""
    whose = f"container {refusal.container}" if refusal.container else "the pod"
    for short in refusal.shortfalls:
        milli = short.provider == HOST
        where = "the host" if short.nodes is None else _on(short.nodes)
        numbers = _numbers(short, milli=milli)
        yield f"{where} has too little for {whose}: {format_amount(short.resource, short.missing, milli=milli)} {numbers}"
    if refusal.shortfalls:
        return
    memory = [*_nowhere(steps[-1])] if steps and refusal.provider == MEMORY else []
    if refusal.reason == _SMT:
        yield f"the CPUs of {whose} cannot be made up of free cores as a whole, and full-pcpus-only gives nothing else"
    else:
        yield from memory or [f"{refusal.provider or 'the host'} could not serve {whose}: {refusal.message}"]


def _nowhere(step: MergeStep) -> Iterator[str]:
    """Memory that fits on no set of nodes: the kubelet finds out when it is to give it."""
    asked = [voice for voice in step.voices if has_no_hints(voice)]
    told = False
    for voice in asked:
        name, request, free = voice.resource or "", voice.request or 0, voice.free or {}
        most, total = max(free.values(), default=0), sum(free.values())
        if total < request:
            told = True
            yield f"{format_amount(name, request)}: all nodes together have {format_quantity(total)} free, {format_quantity(request - total)} short"
        elif most < request:
            told = True
            yield (
                f"{format_amount(name, request)}: no node has that much free ({format_quantity(most)} at most), and nodes can be joined "
                "only while nobody has memory there, or as they are joined already"
            )
    if asked and not told:
        yield f"{' and '.join(format_amount(one.resource or '', one.request or 0) for one in asked)}: not on the same nodes"


def _numbers(short: Shortfall, *, milli: bool) -> str:
    asked, free = (format_number(short.resource, number, milli=milli) for number in (short.needed, short.free))
    return f"short ({asked} asked, {free} free)"


def _unaligned(step: MergeStep, policy: Policy) -> Iterator[str]:
    """No set of nodes was good enough: what speaks against each node, and who wants how many."""
    voices = [voice for voice in step.voices if voice.resource and not voice.has_no_preference]
    for voice in voices:
        yield from _too_wide(voice, policy)
    against: dict[str, NodeSet] = {}
    for node in sorted({node for voice in voices for node in voice.free or ()}):
        lacking = [lack for voice in voices if (lack := _lack(voice, node, policy))]
        if lacking:
            text = ", ".join(lacking)
            against[text] = against.get(text, 0) | 1 << node
    for text, mask in against.items():
        yield f"{_on(mask)}{' each' if mask.bit_count() > 1 else ''}: {text}"
    if policy is Policy.RESTRICTED:
        yield from _disagreement(voices)
    yield from _nowhere(step)


def _too_wide(voice: ResourceHints, policy: Policy) -> Iterator[str]:
    """A request that no single node of this machine could ever take."""
    if policy is Policy.SINGLE_NUMA_NODE and voice.request is not None:
        wanted = _wanted(voice)
        if wanted > 1:
            asked = format_amount(voice.resource or "", voice.request)
            yield f"{asked}: no node of this machine is large enough, even an empty one; it takes {wanted} of them"


def _lack(voice: ResourceHints, node: int, policy: Policy) -> str | None:
    """What *voice* misses on one node; nothing where it could go there, or needs more than one node anyway."""
    if voice.request is None or voice.free is None or _wanted(voice) > 1:
        return None
    name, free = voice.resource or "", voice.free.get(node, 0)
    if free < voice.request:
        numbers = f"({format_number(name, voice.request)} asked, {format_number(name, free)} free)"
        return f"{format_amount(name, voice.request - free)} short {numbers}"
    if policy is Policy.SINGLE_NUMA_NODE and not preferred_single_nodes(voice.options)[0] >> node & 1:
        return f"{name} has room, but not for a container on this node alone"
    return None


def _wanted(voice: ResourceHints) -> int:
    """On how many nodes it wants to be: 0 where it prefers nothing that is still possible."""
    if not voice.hints and voice.hidden:
        return 2  # or more: the record would show those of one node
    widths = {one.nodes.bit_count() for one in voice.hints if one.preferred and one.nodes is not None}
    return min(widths, default=0)


def _disagreement(voices: Sequence[ResourceHints]) -> Iterator[str]:
    """What each resource would prefer, where nobody's preference is everybody's."""
    homeless = [voice for voice in voices if not voice.hints and not voice.hidden]
    for voice in homeless or voices:
        preferred = [one.nodes for one in voice.hints if one.preferred]
        if preferred:
            # Hints are shown from narrow to wide: what comes after one that is not preferred is hardly preferred.
            more = voice.hidden and voice.hints[-1].preferred
            yield f"{voice.resource} prefers {_either(preferred, more=more)}"
        elif voice.hints:
            possible = _either([one.nodes for one in voice.hints], more=voice.hidden)
            yield f"{voice.resource} could go to {possible}, but an empty machine would take fewer nodes"
        elif voice.hidden:
            yield f"{voice.resource} takes several nodes"
        else:
            yield f"{voice.resource} fits nowhere"


def _either(masks: Iterable[NodeSet | None], *, more: bool) -> str:
    names = [format_nodes(mask) for mask in masks]
    if more:
        return ", ".join([*names, "…"])
    return " or ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]


def _also(step: MergeStep) -> str:
    """The runners-up, and why they are that."""
    others = [format_nodes(mask) for mask in step.runners_up]
    if not others:
        return ""
    alone = all(mask.bit_count() == 1 and mask > (step.hint.nodes or 0) for mask in step.runners_up)
    why = "higher in number" if alone else "less close or higher in number"
    if len(others) == 1:
        return f"; so is {others[0]}, which is {why}"
    return f"; so are {', '.join(others)}, {why}"


def _second_best(step: MergeStep) -> str:
    """Why a set was chosen that is not everybody's first choice."""
    needed = "1 node" if step.width == 1 else f"{step.width} nodes"
    if step.rule is MergeRule.AT_TARGET:
        if step.width == 1:
            return "the best single node, and no request needs more"
        return f"the best of {needed}, as many as the widest request needs"
    other = "fewer" if step.rule is MergeRule.NARROWER else "more"
    return f"no set of {needed}, as many as the widest request needs, can be had, so one of {other}"
