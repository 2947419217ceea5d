"""A decision in sentences: the verdict, how nodes were chosen, and what did not fit where, by how much.

Everything is told from the record alone, so that a terminal, a log and a page of the dashboard say the same. What would
have admitted the pod is another question, and takes more than a record: ``align.explain.remedies``.
"""

from collections.abc import Iterable, Iterator, Sequence

from alignup.align import bits
from alignup.align.bits import Nodes
from alignup.align.decision import Decision, Outcome, Placement, Refusal, Shortfall, Step, Voice
from alignup.align.hint import Hint, preferred_nodes
from alignup.align.merging.merge import Rule
from alignup.align.settings import Policy
from alignup.align.workload.names import CPU, MEMORY, is_hugepages

HOST = "host"  #: the provider of a refusal by the fit check, which counts CPUs in thousandths
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


def rules(decision: Decision) -> str:
    """By what the pod was judged, in a line."""
    if decision.policy is Policy.NONE:
        return f"policy none, which asks nobody and aligns nothing · {decision.qos} pod"
    return f"policy {decision.policy} · scope {decision.scope} · {decision.qos} pod"


def amount(resource: str, number: int, *, milli: bool = False) -> str:
    """So much of a resource, in words that can be pasted: ``6 CPUs``, ``3919Mi memory``, ``2 example.com/gpu``."""
    if resource == CPU:
        if milli and number % 1000:
            return f"{number}m CPU"
        whole = number // 1000 if milli else number
        return f"{whole} CPU" if whole == 1 else f"{whole} CPUs"
    return f"{size(number) if resource == MEMORY or is_hugepages(resource) else number} {resource}"


def bare(resource: str, number: int, *, milli: bool = False) -> str:
    """An amount without the name of what it is of."""
    return amount(resource, number, milli=milli).split(" ", 1)[0]


def size(number: int) -> str:
    """Bytes as a Kubernetes quantity, exact: ``4Gi``, ``3919Mi``, ``17``."""
    for unit, suffix in _UNITS:
        if number and number % unit == 0:
            return f"{number // unit}{suffix}"
    return str(number)


def nodes(mask: Nodes | None) -> str:
    """A set of nodes in braces; no set at all is "anywhere"."""
    return "anywhere" if mask is None else f"{{{bits.show(mask)}}}"


def listed(mask: Nodes | None) -> str | None:
    """A set of nodes as a Linux list, for documents."""
    return None if mask is None else bits.show(mask)


def hint(one: Hint) -> str:
    """A set of nodes, with a star when it is preferred."""
    return nodes(one.nodes) + ("*" if one.preferred else "")


def choice(step: Step) -> str:
    """How a merge came to its result."""
    if not step.width:
        return "nothing asked for belongs to NUMA nodes: anywhere will do"
    if step.rule is Rule.PREFERRED:
        others = ", ".join(map(nodes, step.runners_up))
        also = f"; so is {others}, which is less close or higher in number" if len(step.runners_up) == 1 else ""
        also = also or (f"; so are {others}, less close or higher in number" if others else "")
        return f"{hint(step.hint)} is preferred by every resource{also}"
    if step.rule is Rule.NOTHING:
        return "no set of nodes suits every resource"
    return f"{hint(step.hint)}, {step.rule}"


def given(placement: Placement) -> str:
    """What a container got of its own: ``CPUs 4-7 · 4Gi memory on node 1 · example.com/gpu gpu-2``."""
    own = [_given(resource, what) for part in placement.given.values() for resource, what in part.items()]
    return " · ".join(own) or "nothing of its own: it runs on the shared CPUs"


def misfits(decision: Decision) -> tuple[str, ...]:
    """What did not fit where, and by how much; nothing for a pod that was not refused."""
    refusal = decision.refusal
    if refusal is None:
        return ()
    if decision.steps and not decision.steps[-1].accepted:
        return tuple(_unaligned(decision.steps[-1], decision.policy))
    return tuple(_unserved(refusal))


def _given(resource: str, what: str) -> str:
    if resource == CPU:
        return f"CPUs {what}" if set(what) & set(",-") else f"CPU {what}"
    if resource == MEMORY or is_hugepages(resource):
        where, _, held = what.partition("=")
        return f"{amount(resource, int(held))} on {_on(bits.parse(where))}"
    return f"{resource} {what}"


def _on(mask: Nodes) -> str:
    return f"node {bits.show(mask)}" if mask.bit_count() == 1 else f"nodes {bits.show(mask)}"


def _unserved(refusal: Refusal) -> Iterator[str]:
    """A provider, or the host as a whole, had too little."""
    whose = f"container {refusal.container}" if refusal.container else "the pod"
    for short in refusal.shortfalls:
        milli = short.provider == HOST
        where = "the host" if short.nodes is None else _on(short.nodes)
        numbers = _numbers(short, milli=milli)
        yield f"{where} has too little for {whose}: {amount(short.resource, short.missing, milli=milli)} {numbers}"
    if not refusal.shortfalls:
        yield f"{refusal.provider or 'the host'} could not serve {whose}: {refusal.message}"


def _numbers(short: Shortfall, *, milli: bool) -> str:
    asked, free = (bare(short.resource, number, milli=milli) for number in (short.needed, short.free))
    return f"short ({asked} asked, {free} free)"


def _unaligned(step: Step, policy: Policy) -> Iterator[str]:
    """No set of nodes was good enough: what speaks against each node, and who wants how many."""
    voices = [voice for voice in step.voices if voice.resource and not voice.indifferent]
    for voice in voices:
        yield from _too_wide(voice, policy)
    against: dict[str, Nodes] = {}
    for node in sorted({node for voice in voices for node in voice.free or ()}):
        lacking = [lack for voice in voices if (lack := _lack(voice, node, policy))]
        if lacking:
            text = ", ".join(lacking)
            against[text] = against.get(text, 0) | 1 << node
    for text, mask in against.items():
        yield f"{_on(mask)}{' each' if mask.bit_count() > 1 else ''}: {text}"
    if policy is Policy.RESTRICTED:
        yield from _disagreement(voices)


def _too_wide(voice: Voice, policy: Policy) -> Iterator[str]:
    """A request that no single node of this machine could ever take."""
    if policy is Policy.SINGLE_NUMA_NODE and voice.request is not None:
        wanted = _wanted(voice)
        if wanted > 1:
            asked = amount(voice.resource or "", voice.request)
            yield f"{asked}: no node of this machine is large enough, even an empty one; it takes {wanted} of them"


def _lack(voice: Voice, node: int, policy: Policy) -> str | None:
    """What *voice* misses on one node; nothing where it could go there, or needs more than one node anyway."""
    if voice.request is None or voice.free is None or _wanted(voice) > 1:
        return None
    name, free = voice.resource or "", voice.free.get(node, 0)
    if free < voice.request:
        numbers = f"({bare(name, voice.request)} asked, {bare(name, free)} free)"
        return f"{amount(name, voice.request - free)} short {numbers}"
    if policy is Policy.SINGLE_NUMA_NODE and not preferred_nodes(voice.options)[0] >> node & 1:
        return f"{name} has room, but not for a container on this node alone"
    return None


def _wanted(voice: Voice) -> int:
    """On how many nodes it wants to be: 0 where it prefers nothing that is still possible."""
    widths = {one.nodes.bit_count() for one in voice.hints if one.preferred and one.nodes is not None}
    return min(widths, default=0)


def _disagreement(voices: Sequence[Voice]) -> Iterator[str]:
    """What each resource would prefer, where nobody's preference is everybody's."""
    for voice in voices:
        preferred = [one.nodes for one in voice.hints if one.preferred]
        if preferred:
            yield f"{voice.resource} prefers {_either(preferred, more=voice.hidden)}"
        elif voice.hints:
            possible = _either([one.nodes for one in voice.hints], more=voice.hidden)
            yield f"{voice.resource} could go to {possible}, but an empty machine would take fewer nodes"
        else:
            yield f"{voice.resource} fits nowhere"


def _either(masks: Iterable[Nodes | None], *, more: bool) -> str:
    names = [nodes(mask) for mask in masks]
    if more:
        return ", ".join([*names, "…"])
    return " or ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]
