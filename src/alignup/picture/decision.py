"""A decision for the terminal: for each resource asked for, what every NUMA node has of it, and who has the rest.

    ┌─ cpu · 6 asked for ────────────────────────────────────────────────────────┐
    │ node 0     ▓▓▓▓▓█████░░░░░░░░░░  4 free · 2 short · 2 reserved · 2 team/web │
    │ node 1     ░░░░░░░░░░░░░░░░░░░░  8 free                                     │
    │ hints      {1}* {0-1}                                                      │
    └────────────────────────────────────────────────────────────────────────────┘

Nodes that tell the same share a line, so that 64 of them stay readable.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from alignup.align import bits
from alignup.align.decision import Decision, MergeStep, ResourceHints, shown_hints
from alignup.align.explain import sentences
from alignup.align.explain.decision_parts import DecisionPart
from alignup.align.hint import HintList
from alignup.align.ledger import Ledger
from alignup.align.machine import Device, Machine
from alignup.align.memory.ledger import EMPTY_TABLE
from alignup.align.merging.merge import MergeRule
from alignup.align.workload.names import MEMORY, is_hugepages
from alignup.picture.cells import Cell, Chunk, Line, draw_box, labeled, split_words, to_ascii
from alignup.picture.occupancy import Occupancy, UseState, known_devices, read_occupancy
from alignup.picture.text import MIN_WIDTH
from alignup.picture.text_format import clean, display_width, format_list, format_size, shorten

_BAR = 16
_LABEL = 18  #: the longest name of a line, as ``cells.field`` has it
_HOLDERS = 4  #: of a node that are named
_DOT = Cell("· ", "dim")


@dataclass(frozen=True, slots=True)
class NodeShare:
    """A part of what one node has of a resource."""

    state: UseState
    amount: int
    who: str = ""  #: the pod that holds it


def draw(
    machine: Machine, decision: Decision, parts: Sequence[DecisionPart], *, width: int = 80, ascii_only: bool = False
) -> list[Line]:
    """Everything *decision* looked at, as lines of at most *width* columns."""
    desk = _Desk(machine, decision.before, max(width, MIN_WIDTH))
    lines = [line for part in parts for line in desk.part(part, decision)]
    return [tuple(Cell(to_ascii(text), style) for text, style in line) for line in lines] if ascii_only else lines


class _Desk:
    """Draws parts of one decision."""

    def __init__(self, machine: Machine, ledger: Ledger | None, width: int) -> None:
        self.width = width
        self.view = machine.kubelet_view()
        self.uses: Occupancy = read_occupancy(ledger)
        self.devices: dict[str, list[Device]] = {}
        for device in known_devices(machine, ledger):
            self.devices.setdefault(device.resource, []).append(device)

    def part(self, part: DecisionPart, decision: Decision) -> Iterator[Line]:
        """One container, or the pod as a whole."""
        yield ()
        yield (Cell(f"Container {clean(part.container)}" if part.container else "The pod as a whole", "title"),)
        for voice in part.voices:
            yield from self.voice(voice, asked=part.step is not None)
        if part.step:
            yield from self._told("chosen", _chosen(part.step, decision))
        elif not part.voices:
            yield from self._told("asks for", "nothing that would be its own")
        for placement in part.placements:
            name = "given" if part.container else f"given {placement.container}"
            yield from self._told(clean(name), clean(sentences.describe_allocation(placement)))

    def voice(self, voice: ResourceHints, *, asked: bool) -> list[Line]:
        """A box for one resource: its nodes, and its hints where it was *asked* for any."""
        name = voice.resource or ""
        rows: list[tuple[str, Sequence[Chunk]]] = []
        for ids, shares in self._alike(voice):
            label = f"node{'s' if len(ids) > 1 else ''} {format_list(ids)}"
            rows.append((label, [_strip(shares), *_words(voice, shares, ids)]))
        homeless = self._homeless(voice)
        if homeless:
            rows.append(("no node", [_strip(homeless), *_words(voice._replace(request=None), homeless)]))
        if asked:
            free = sum((voice.free or {}).values()) + (homeless[-1].amount if homeless else 0)
            rows.append(("hints", _hints(voice, free=free)))
        request = "" if voice.request is None else f" · {_bare(name, voice.request)} asked for"
        # Strips stand under one another, however long the names of some nodes are.
        column = max(11, *(min(display_width(label), _LABEL) + 2 for label, _ in rows)) if rows else 11
        lines = [line for row in rows for line in labeled(*row, width=self.width - 4, column=column)]
        return draw_box(f"{clean(name)}{request}", lines, width=self.width)

    def _told(self, label: str, sentence: str) -> list[Line]:
        return labeled(label, split_words((Cell(sentence),)), width=self.width, column=13)

    def _alike(self, voice: ResourceHints) -> Iterator[tuple[list[int], tuple[NodeShare, ...]]]:
        """Nodes with what they have of a resource, those alike together."""
        found: dict[tuple[NodeShare, ...], list[int]] = {}
        for node in sorted(voice.free or ()):
            found.setdefault(tuple(self._shares(voice, node)), []).append(node)
        for shares, ids in sorted(found.items(), key=lambda pair: pair[1]):
            yield ids, shares

    def _shares(self, voice: ResourceHints, node: int) -> Iterator[NodeShare]:
        """How one node's part of a resource is divided; the free part is what the record says."""
        before = {"cpu": self._cpus, "device": self._devices, "memory": self._memory}.get(voice.provider)
        free = (voice.free or {}).get(node, 0)
        rest = list(before(voice.resource or "", node)) if before else []
        yield from (share for share in rest if share.state is not UseState.FREE and share.amount)
        was = sum(share.amount for share in rest if share.state is UseState.FREE)
        if was > free:
            yield NodeShare(UseState.HELD, was - free, "this pod")
        yield NodeShare(UseState.FREE, free)

    def _cpus(self, _resource: str, node: int) -> Iterator[NodeShare]:
        for use, cpus in self.uses.split(bits.members(self.view.node_cpus.get(node, 0))).items():
            state = UseState.FREE if use.state is UseState.SHARED else use.state
            yield NodeShare(state, cpus.bit_count(), use.tenant.name if use.tenant else "")

    def _devices(self, resource: str, node: int) -> Iterator[NodeShare]:
        return self._counted(device for device in self.devices.get(resource, ()) if (device.nodes or 0) >> node & 1)

    def _homeless(self, voice: ResourceHints) -> tuple[NodeShare, ...]:
        """The devices of a resource that belong to no node, the free ones last; nothing where there are none."""
        if voice.provider != "device":
            return ()
        shares = list(self._counted(one for one in self.devices.get(voice.resource or "", ()) if not one.nodes))
        free = sum(share.amount for share in shares if share.state is UseState.FREE)
        return (
            (*(one for one in shares if one.state is not UseState.FREE), NodeShare(UseState.FREE, free))
            if shares
            else ()
        )

    def _counted(self, devices: Iterable[Device]) -> Iterator[NodeShare]:
        counts: dict[tuple[UseState, str], int] = {}
        for device in devices:
            use = self.uses.of_device(device)
            state = UseState.LOST if use.state is UseState.FREE and not device.healthy else use.state
            key = state, use.tenant.name if use.tenant else ""
            counts[key] = counts.get(key, 0) + 1
        for (state, who), number in counts.items():
            yield NodeShare(state, number, who)

    def _memory(self, type_: str, node: int) -> Iterator[NodeShare]:
        held = self.uses.memory.nodes.get(node)
        table = held.tables.get(type_, EMPTY_TABLE) if held else EMPTY_TABLE
        yield NodeShare(UseState.RESERVED, table.system_reserved)
        left = table.reserved
        for tenant in self.uses.tenants:
            own = sum(block.size for block in tenant.memory if block.type == type_ and block.nodes == 1 << node)
            if own:
                yield NodeShare(UseState.HELD, own, tenant.name)
                left -= own
        spread = sorted(
            tenant.name
            for tenant in self.uses.tenants
            if any(b.type == type_ and b.nodes >> node & 1 and b.nodes != 1 << node for b in tenant.memory)
        )
        if left > 0:
            yield NodeShare(UseState.HELD, left, ", ".join(spread) + (" (spread over nodes)" if spread else ""))
        yield NodeShare(UseState.FREE, table.free)


def _words(voice: ResourceHints, shares: Sequence[NodeShare], ids: Iterable[int] = ()) -> Iterator[Chunk]:
    """What the strip of nodes *ids* shows, in words: what is free there and what is missing, then who has the rest."""
    name = voice.resource or ""
    free = shares[-1].amount
    yield (Cell(f"{_bare(name, free)} free", "free"),)
    if voice.request is not None and free < voice.request and not any(_takes(voice, node) for node in ids):
        yield _DOT, Cell(f"{_bare(name, voice.request - free)} short", "warn")
    named = sorted((one for one in shares[:-1] if one.who), key=lambda one: -one.amount)
    shown = len(named) if len(named) <= _HOLDERS + 1 else _HOLDERS
    for share in [one for one in shares[:-1] if not one.who] + named[:shown]:
        what = {UseState.RESERVED: "reserved", UseState.LOST: "unhealthy or lost", UseState.UNSEEN: "not seen"}
        told = shorten(clean(share.who), 40) if share.who else what.get(share.state, str(share.state))
        yield _DOT, Cell(f"{_bare(name, share.amount)} {told}", str(share.state))
    if more := named[shown:]:
        yield _DOT, Cell(f"{_bare(name, sum(one.amount for one in more))} in {len(more)} other pods", "held")


def _takes(voice: ResourceHints, node: int) -> bool:
    """Whether a node that has too little free is enough all the same: this pod can use again what it has there."""
    options, alone = voice.hints, 1 << node
    return alone in options.masks if isinstance(options, HintList) else options.fits(alone)


def _chosen(step: MergeStep, decision: Decision) -> str:
    if step.accepted:
        return sentences.describe_choice(step)
    if step.rule is MergeRule.NOTHING or step.hint.nodes is None:
        return "nothing: no set of nodes suits every resource"
    return f"nothing: policy {decision.policy} does not take {sentences.format_hint(step.hint)}, which not every resource prefers"


def _hints(voice: ResourceHints, *, free: int) -> list[Chunk]:
    if sentences.has_no_hints(voice):
        return split_words((Cell("none: no set of nodes has it all, and then memory has no say", "warn"),))
    if voice.has_no_preference:
        enough = voice.request is None or voice.request <= free
        return split_words((Cell("anywhere" if enough else "there is not enough, so it has no say", "dim"),))
    hints, hidden = shown_hints(voice)
    told: list[Chunk] = [(Cell(sentences.format_hint(one), "free" if one.preferred else ""),) for one in hints]
    if not told and hidden:
        return split_words((Cell("sets of several nodes, too many to look through", "dim"),))
    if not told:
        return split_words((Cell("none: it fits on no set of nodes", "warn"),))
    return [*told, (Cell("…", "dim"),)] if hidden else told


def _strip(shares: Iterable[NodeShare]) -> Chunk:
    """How a node is divided, as a strip; each part ends where it would on a finer one."""
    shades = {UseState.RESERVED: "▓", UseState.HELD: "█", UseState.LOST: "▒", UseState.UNSEEN: "▒", UseState.FREE: "░"}
    known = list(shares)
    total = sum(share.amount for share in known)
    cells, sum_, used = [], 0, 0
    for share in known:
        sum_ += share.amount
        end = round(sum_ * _BAR / total) if total else 0
        cells.append(Cell(shades.get(share.state, "░") * (end - used), str(share.state)))
        used = end
    return (*cells, Cell(" " * (_BAR - used)), Cell(" "))


def _bare(resource: str, number: int) -> str:
    """An amount without the name of what it is of, sizes as people read them."""
    return format_size(number) if resource == MEMORY or is_hugepages(resource) else str(number)
