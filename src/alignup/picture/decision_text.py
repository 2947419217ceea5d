"""A decision for the terminal: what every NUMA node has of each requested resource, and which pods hold the rest.

    ┌─ cpu · 6 requested ────────────────────────────────────────────────────────┐
    │ node 0     ▓▓▓▓▓█████░░░░░░░░░░  4 free · 2 short · 2 reserved · 2 team/web │
    │ node 1     ░░░░░░░░░░░░░░░░░░░░  8 free                                     │
    │ hints      {1}* {0-1}                                                      │
    └────────────────────────────────────────────────────────────────────────────┘
    *            preferred: no smaller set fits, even on an empty machine

Equal nodes share a line, so that 64 of them stay readable.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from alignup.align import bits
from alignup.align.decision import Decision, MergeStep, Placement, ResourceHints, shown_hints
from alignup.align.explain import sentences
from alignup.align.hint import DONT_CARE, HintList
from alignup.align.host import Host
from alignup.align.ledger import Ledger
from alignup.align.machine import Machine
from alignup.align.memory.ledger import EMPTY_TABLE
from alignup.align.merging.merge import MergeRule
from alignup.align.workload import Pod
from alignup.picture.occupancy import UseState, format_amount, group_by, known_devices, read_occupancy
from alignup.picture.text_format import (
    MAX_LABEL,
    MIN_WIDTH,
    Cell,
    Line,
    clean,
    display_width,
    draw_box,
    draw_strip,
    format_list,
    labeled,
    shorten,
    split_words,
)

_BAR_WIDTH = 16
_MAX_HOLDERS = 4  #: the most holders of a node that are listed
_DOT = Cell("· ", "dim")


class DecisionPart(NamedTuple):
    container: str | None  #: ``None``: the whole pod
    resources: tuple[ResourceHints, ...]  #: only requested resources
    step: MergeStep | None  #: ``None``: nothing was merged
    placements: tuple[Placement, ...] = ()


class NodeShare(NamedTuple):
    """A share of what one node has of a resource."""

    state: UseState
    amount: int
    who: str = ""  #: the pod that holds it


def decision_parts(host: Host, pod: Pod, decision: Decision) -> Iterator[DecisionPart]:
    """Yield the parts of *decision*, which *host* made about *pod*, in order."""
    for step in decision.steps:
        placements = tuple(
            placement for placement in decision.placements if step.container in (None, placement.container)
        )
        yield DecisionPart(
            step.container, tuple(resource for resource in step.resources if resource.resource), step, placements
        )
    for container in () if decision.steps else pod.all_containers:  # policy none merges nothing
        request_texts = tuple(
            ResourceHints(provider.name, resource, need.request, need.free, DONT_CARE)
            for provider in host.providers
            for resource, need in provider.needs(host.ledger.by_provider()[provider.name], pod, container).items()
        )
        placements = tuple(placement for placement in decision.placements if placement.container == container.name)
        yield DecisionPart(container.name, request_texts, None, placements)


def draw_decision(host: Host, pod: Pod, decision: Decision, *, width: int = 80) -> list[Line]:
    """Draw everything *decision* considered, in lines of at most *width* columns."""
    renderer = _DecisionRenderer(host.machine, decision.before, max(width, MIN_WIDTH))
    lines = [line for part in decision_parts(host, pod, decision) for line in renderer.part(part, decision)]
    if any(cell.text.endswith("}*") for line in lines for cell in line):
        lines += renderer.sentence("*", "preferred: no smaller set fits, even on an empty machine")
    return lines


class _DecisionRenderer:
    def __init__(self, machine: Machine, ledger: Ledger | None, width: int) -> None:
        self.width = width
        self.view = machine.kubelet_view()
        self.occupancy = read_occupancy(ledger)
        self.devices = group_by(known_devices(machine, ledger), lambda device: device.resource)

    def part(self, part: DecisionPart, decision: Decision) -> Iterator[Line]:
        yield ()
        yield (Cell(f"Container {clean(part.container)}" if part.container else "Whole pod", "title"),)
        for resource in part.resources:
            yield from self.resource_box(resource, requested=part.step is not None)
        if part.step:
            step = part.step
            if step.accepted:
                choice = sentences.describe_choice(step)
            elif step.rule is MergeRule.NOTHING or step.hint.nodes is None:
                choice = "nothing: no set of NUMA nodes suits every resource"
            else:
                hint = sentences.format_hint(step.hint)
                choice = f"nothing: policy {decision.policy} rejects {hint}, not preferred by every resource"
            yield from self.sentence("chosen", choice)
        elif not part.resources:
            yield from self.sentence("requests", "nothing exclusive")
        for placement in part.placements:
            name = "allocated" if part.container else placement.container
            yield from self.sentence(clean(name), clean(sentences.describe_allocation(placement)))

    def resource_box(self, resource: ResourceHints, *, requested: bool) -> list[Line]:
        name = resource.resource or ""
        rows: list[tuple[str, Sequence[Line]]] = []
        by_shares = group_by(sorted(resource.free or ()), lambda node: tuple(self._shares(resource, node)))
        for shares, ids in sorted(by_shares.items(), key=lambda pair: pair[1]):
            label = f"node{'s' if len(ids) > 1 else ''} {format_list(ids)}"
            rows.append((label, [_strip(shares), *_describe_shares(resource, shares, ids)]))
        # Devices of no node, the free ones last.
        others = list(self._devices(name, None)) if resource.provider == "device" else []
        free = sum(share.amount for share in others if share.state is UseState.FREE)
        if others:
            without_node = [share for share in others if share.state is not UseState.FREE]
            without_node.append(NodeShare(UseState.FREE, free))
            texts = _describe_shares(resource._replace(request=None), without_node)
            rows.append(("no node", [_strip(without_node), *texts]))
        if requested:
            rows.append(("hints", _hints(resource, free=sum((resource.free or {}).values()) + free)))
        request = "" if resource.request is None else f" · {format_amount(name, resource.request)} requested"
        # Strips are aligned, however long the labels are.
        column = max(11, *(min(display_width(label), MAX_LABEL) + 2 for label, _ in rows)) if rows else 11
        lines = [line for row in rows for line in labeled(*row, width=self.width - 4, column=column)]
        return draw_box(f"{clean(name)}{request}", lines, width=self.width)

    def sentence(self, label: str, sentence: str) -> list[Line]:
        return labeled(label, split_words((Cell(sentence),)), width=self.width, column=13)

    def _shares(self, resource: ResourceHints, node: int) -> Iterator[NodeShare]:
        """Yield how one node's part of a resource is divided; the free part is the decision's."""
        box = {"cpu": self._cpus, "device": self._devices, "memory": self._memory}.get(resource.provider)
        free = (resource.free or {}).get(node, 0)
        rest = list(box(resource.resource or "", node)) if box else []
        yield from (share for share in rest if share.state is not UseState.FREE and share.amount)
        was = sum(share.amount for share in rest if share.state is UseState.FREE)
        if was > free:
            yield NodeShare(UseState.HELD, was - free, "this pod")
        yield NodeShare(UseState.FREE, free)

    def _cpus(self, _resource: str, node: int) -> Iterator[NodeShare]:
        for use, cpus in self.occupancy.split(bits.members(self.view.node_cpus.get(node, 0))).items():
            state = UseState.FREE if use.state is UseState.SHARED else use.state
            yield NodeShare(state, cpus.bit_count(), use.holder.name if use.holder else "")

    def _devices(self, resource: str, node: int | None) -> Iterator[NodeShare]:
        counts: Counter[tuple[UseState, str]] = Counter()
        for device in self.devices.get(resource, ()):
            if not device.nodes if node is None else (device.nodes or 0) >> node & 1:
                use = self.occupancy.of_device(device)
                state = UseState.LOST if use.state is UseState.FREE and not device.healthy else use.state
                counts[state, use.holder.name if use.holder else ""] += 1
        for (state, who), number in counts.items():
            yield NodeShare(state, number, who)

    def _memory(self, type_: str, node: int) -> Iterator[NodeShare]:
        node_memory = self.occupancy.memory.nodes.get(node)
        table = node_memory.tables.get(type_, EMPTY_TABLE) if node_memory else EMPTY_TABLE
        yield NodeShare(UseState.RESERVED, table.system_reserved)
        spread = sorted(
            holder.name
            for holder in self.occupancy.holders
            if any(b.type == type_ and b.nodes >> node & 1 and b.nodes != 1 << node for b in holder.memory)
        )
        others = ", ".join(spread) + (" (spread over nodes)" if spread else "")
        for holder, size in self.occupancy.held_memory(node, type_):
            yield NodeShare(UseState.HELD, size, holder.name if holder else others)
        yield NodeShare(UseState.FREE, table.free)


def _describe_shares(resource: ResourceHints, shares: Sequence[NodeShare], ids: Iterable[int] = ()) -> Iterator[Line]:
    """Yield what is free and what is missing on nodes *ids*, then which pods hold the rest."""
    name = resource.resource or ""
    free = shares[-1].amount
    yield (Cell(f"{format_amount(name, free)} free", "free"),)
    hints = resource.hints
    # A node with too little free is still enough if the pod reuses what it holds there.
    fits = hints.masks.__contains__ if isinstance(hints, HintList) else hints.fits
    if resource.request is not None and free < resource.request and not any(fits(1 << node) for node in ids):
        yield _DOT, Cell(f"{format_amount(name, resource.request - free)} short", "warn")
    named_shares = sorted((share for share in shares[:-1] if share.who), key=lambda share: -share.amount)
    shown_count = len(named_shares) if len(named_shares) <= _MAX_HOLDERS + 1 else _MAX_HOLDERS
    for share in [share for share in shares[:-1] if not share.who] + named_shares[:shown_count]:
        descriptions = {UseState.RESERVED: "reserved", UseState.LOST: "unhealthy or lost", UseState.UNSEEN: "unknown"}
        text = shorten(clean(share.who), 40) if share.who else descriptions.get(share.state, str(share.state))
        yield _DOT, Cell(f"{format_amount(name, share.amount)} {text}", str(share.state))
    if more := named_shares[shown_count:]:
        yield (
            _DOT,
            Cell(f"{format_amount(name, sum(share.amount for share in more))} in {len(more)} other pods", "held"),
        )


def _hints(resource: ResourceHints, *, free: int) -> list[Line]:
    if sentences.has_no_hints(resource):
        return split_words((Cell("none: no set of nodes has enough, so memory gives no hints", "warn"),))
    if resource.has_no_preference:
        enough = resource.request is None or resource.request <= free
        return split_words((Cell("anywhere" if enough else "not enough, so it gives no hints", "dim"),))
    hints, hidden = shown_hints(resource)
    chunks: list[Line] = [(Cell(sentences.format_hint(hint), "free" if hint.preferred else ""),) for hint in hints]
    if not chunks and hidden:
        return split_words((Cell("sets of several nodes, too many to list", "dim"),))
    if not chunks:
        return split_words((Cell("none: fits on no set of nodes", "warn"),))
    return [*chunks, (Cell("…", "dim"),)] if hidden else chunks


def _strip(shares: Sequence[NodeShare]) -> Line:
    shades = {UseState.RESERVED: "▓", UseState.HELD: "█", UseState.LOST: "▒", UseState.UNSEEN: "▒", UseState.FREE: "░"}
    parts = [(shades.get(share.state, "░"), str(share.state), share.amount) for share in shares]
    total = sum(share.amount for share in shares)
    return (*draw_strip(parts, total=total, width=_BAR_WIDTH, fill=Cell(" ")), Cell(" "))
