"""A machine as SVG: one self-contained file, readable on light and dark paper, with everything also said in words.

Up to some hundred CPUs every one has its number; up to some thousand every one has a place; beyond that NUMA nodes
have bars, and nodes that are alike share a box.
"""

from collections.abc import Iterable, Iterator, Sequence
from math import sqrt
from xml.sax.saxutils import escape

from alignup.align import bits
from alignup.align.bits import CpuSet
from alignup.align.ledger import Ledger
from alignup.align.machine import Machine
from alignup.picture import distances, palette
from alignup.picture.layout import (
    Core,
    CoreGroup,
    DeviceGroup,
    MachineLayout,
    NodeBox,
    SocketFrame,
    fold_key,
    format_memory,
    group_adjacent,
    layout_machine,
)
from alignup.picture.occupancy import Holder, MemoryBar, Occupancy, UseInfo, UseState, format_block
from alignup.picture.svg_layout import Canvas, Drawable, bar, block, flow, framed, grid, label, row, stack
from alignup.picture.text_format import clean, format_ids, format_list, format_size, pluralize, shorten, width_in_em

#: Machines with at most so many CPUs show their numbers, or at least each CPU.
_NUMBERED, _SHOWN = 512, 4096
#: At most so many boxes are drawn each for itself.
_BOXES = 64
_DEVICES = 16
_DESCRIBED = 16
_GAPS = 8
_PAGE = 1540.0
_MARGIN = 16.0
_NARROWEST = 300.0


def draw(machine: Machine, ledger: Ledger | None = None) -> str:
    """The picture of *machine*, with a *ledger* also of who holds what."""
    scene = layout_machine(machine, ledger)
    page = stack(_page(scene), 12)
    canvas = Canvas()
    page.draw(canvas, _MARGIN, _MARGIN, page.width, page.height)
    across, down = round(page.width + 2 * _MARGIN), round(page.height + 2 * _MARGIN)
    room = f'width="{across}" height="{down}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="alignup" role="img" {room} viewBox="0 0 {across} {down}">',
            f"<title>{escape(scene.title)}</title>",
            f"<desc>{escape(' '.join(_sentences(scene)))}</desc>",
            f"<style>{palette.css()}</style>",
            f'<rect class="paper" {room}/>',
            *canvas.parts,
            "</svg>\n",
        ]
    )


def _page(scene: MachineLayout) -> Iterator[Drawable]:
    yield label(scene.title, 18, kind="strong")
    if scene.facts:
        yield flow((label(fact, 13, kind="dim") for fact in scene.facts), _PAGE, gap=24)
    total = sum(box.cpus.bit_count() for box in scene.boxes)
    digits = len(str(max((_union(box.cpus for box in scene.boxes)).bit_length() - 1, 0)))
    painter = _Painter(scene.uses, digits=digits if total <= _NUMBERED else 0)
    if total > _SHOWN or len(scene.boxes) > _BOXES:
        groups = group_adjacent(scene.boxes, key=lambda box: fold_key(box, scene.uses))
        manned = flow((painter.folded(group) for group in groups), _PAGE, gap=12)
    else:
        manned = flow(painter.frames(scene.frames), _PAGE, gap=12)
    yield manned
    yield flow(_apart(scene, painter), max(manned.width, _PAGE * 0.6), gap=12)
    if scene.uses.known:
        yield framed(label("Who holds what", 13, kind="strong"), stack(_legend(scene), 6), kind="frame")


def _apart(scene: MachineLayout, painter: "_Painter") -> Iterator[Drawable]:
    """What is on no socket or near no one node."""
    if scene.bare:
        boxes = flow(painter.bares(scene), _PAGE * 0.6 - 30, gap=8)
        yield framed(label("NUMA nodes without CPUs", 13, kind="strong"), boxes, kind="frame")
    if scene.loose or scene.pci:
        parts = [piece for where, kinds in scene.loose for piece in (label(where, kind="dim"), *painter.devices(kinds))]
        parts += [label(f"PCI: {text}", 11) for text in scene.pci]
        yield framed(label("Devices near several NUMA nodes, or none", 13, kind="strong"), stack(parts), kind="frame")
    if scene.table and len(scene.table.groups) != 1:
        yield framed(label("Distances", 13, kind="strong"), _distances(scene.table), kind="frame")
    if scene.gaps:
        lines = [label(shorten(clean(gap), 120), 11) for gap in scene.gaps[:_GAPS]]
        lines += [label(f"and {len(scene.gaps) - _GAPS} more", 11, kind="dim")] if len(scene.gaps) > _GAPS else []
        yield framed(label("Not known", 13, kind="strong"), stack(lines), kind="frame")


class _Painter:
    """Draws boxes, all in one manner."""

    def __init__(self, uses: Occupancy, *, digits: int) -> None:
        self._uses = uses
        self._digits = digits  #: of the largest number; 0: CPUs show no numbers

    def frames(self, frames: Sequence[SocketFrame]) -> list[Drawable]:
        """Sockets around their nodes, all in one size; one node alone shares the box with its sockets."""
        inside = [[self._box(box, _title(frame, box)) for box in frame.boxes] for frame in frames]
        widest = max((box.width for boxes in inside for box in boxes), default=0)
        drawn = []
        for frame, boxes in zip(frames, inside, strict=True):
            sized = [box._replace(width=widest) for box in boxes]
            if len(sized) == 1:
                drawn.append(sized[0])
            else:
                across = _columns(len(sized), max(1, min(int(_PAGE / (widest + 12)), 2 if len(sized) <= 4 else 4)))
                drawn.append(framed(label(frame.name, 14, kind="strong"), grid(sized, across, gap=10), kind="frame"))
        return drawn

    def folded(self, group: Sequence[NodeBox]) -> Drawable:
        """One box for all that are alike."""
        first, each = group[0], "each: " if len(group) > 1 else ""
        cpus = _union(box.cpus for box in group)
        ids = [box.node.id for box in group if box.node]
        sockets = format_ids("socket", {socket for box in group for socket in box.sockets})
        shape = (
            f"{len(first.clusters)} times {first.clusters[0].shape}"
            if len(first.clusters) > 1
            else first.clusters[0].shape
        )
        parts = [
            label(f"{sockets}: CPUs {shorten(format_list(bits.members(cpus)), 40)}"),
            label(f"{each}{shape}"),
            self._shares(cpus),
            *([label(f"{each}{format_memory(first)}")] if len(group) > 1 else self._memory(first, 560)),
            *self.devices(first.kinds),
        ]
        return framed(
            label(format_ids("NUMA node", ids) if ids else first.name, 13, kind="strong"), stack(parts), kind="node"
        )

    def bares(self, scene: MachineLayout) -> list[Drawable]:
        """Nodes without CPUs; where they are very many, or have nothing at all, those alike share a box."""
        many = len(scene.bare) > _BOXES
        drawn = []
        for run in group_adjacent(scene.bare, key=lambda box: (fold_key(box, self._uses), scene.near_of(box))):
            empty = run[0].node is not None and not run[0].node.memory
            drawn += [self._bare(group, scene) for group in ([run] if many or empty else [(box,) for box in run])]
        widest = max(piece.width for piece in drawn)
        return [piece._replace(width=widest) for piece in drawn]

    def _bare(self, group: Sequence[NodeBox], scene: MachineLayout) -> Drawable:
        first = group[0]
        ids = [box.node.id for box in group if box.node]
        near = scene.near_of(first)
        parts = [
            *([label(f"{len(group)} nodes", 11)] if len(group) > 1 else []),
            *([label(near, 11, kind="dim")] if near else []),
            *([label(format_memory(first), 11)] if len(group) > 1 else self._memory(first, 110)),
            *self.devices(first.kinds),
            *(label(f"PCI: {text}", 11) for text in first.pci),
        ]
        return framed(label(format_ids("node", ids), 12, kind="strong"), stack(parts), kind="bare", padding=7)

    def devices(self, kinds: Iterable[DeviceGroup], most: float = 560) -> Iterator[Drawable]:
        """Devices by resource, each with its id and who holds it; of many only those held or ill."""
        for kind in kinds:
            shown, rest = kind.devices, 0
            if len(shown) > _DEVICES:
                shown = tuple(one for one in shown if self._uses.of_device(one).tenant or not one.healthy)[:_DEVICES]
                rest = len(kind.devices) - len(shown)
            pills = []
            for device in shown:
                use = self._uses.of_device(device)
                name = shorten(clean(device.id), 28) + (f" · {use.mark}" if use.tenant else "")
                name += "" if device.healthy else " · unhealthy"
                title = f"{clean(device.resource)} {clean(device.id)}, {clean(use.words)}"
                pills.append(block([name], kind=_class(use), data={"device": clean(device.id), "title": title}))
            if rest:
                kind_ = _class(UseInfo(UseState.FREE if self._uses.known else UseState.PLAIN))
                pills.append(
                    block([f"{rest} {'more' if shown else 'devices'}"], kind=kind_, data={"devices": str(rest)})
                )
            yield stack([label(shorten(clean(kind.resource), 40), 11, kind="dim"), flow(pills, most)], 2)

    def _box(self, box: NodeBox, title: str) -> Drawable:
        cpus = self._cpus(box)
        most = max(_NARROWEST, cpus.width)
        parts = [
            cpus,
            *self._memory(box, most),
            *self.devices(box.kinds, most),
            *(flow((label(word, 11) for word in f"PCI: {text}".split()), most, gap=7, across=1) for text in box.pci),
        ]
        piece = framed(label(title, 13, kind="strong"), stack(parts, 8), kind="node")
        return piece._replace(width=max(piece.width, _NARROWEST + 20))

    def _cpus(self, box: NodeBox) -> Drawable:
        clusters = [self._cluster(cluster, _NARROWEST / len(box.clusters)) for cluster in box.clusters]
        widest = max((cluster.width for cluster in clusters), default=0)
        most = max(widest, 460.0)
        across = _columns(len(clusters), max(1, int(most / (widest + 14))))
        parts = [grid([cluster._replace(width=widest) for cluster in clusters], across, gap=12)]
        if self._uses.known:
            split = self._uses.split(bits.members(box.cpus)).items()
            told = [label(f"{_short(use)} {own.bit_count()}", 11, kind="dim") for use, own in split]
            parts.append(flow(told, max(most, _NARROWEST), gap=14))
        return stack(parts, 6)

    def _cluster(self, cluster: CoreGroup, least: float) -> Drawable:
        cores = [self._core(core) for core in cluster.cores]
        widest = max(core.width for core in cores)
        wanted = sqrt(3 * len(cores) * cores[0].height / widest)
        across = max(1 << max(0, (int(wanted) - 1).bit_length()), int((least + 4) / (widest + 4)))
        across = min(across, max(1, int(600 / widest)), len(cores))
        body = grid(
            [core._replace(width=widest) for core in cores], _columns(len(cores), across), gap=4 if self._digits else 3
        )
        name = cluster.name
        if not self._digits:
            name += f"{': ' if name else ''}CPUs {shorten(format_list(bits.members(cluster.cpus)), 24)}"
        return stack([label(name, 11, kind="dim"), body], 3) if name else body

    def _core(self, core: Core) -> Drawable:
        """The threads of a core beside each other."""
        return row((self._cpu(cpu, core) for cpu in core.cpus), 0 if self._digits else 1)

    def _cpu(self, cpu: int, core: Core) -> Drawable:
        use = self._uses.of_cpu(cpu)
        title = f"CPU {cpu}, core {core.id}" + ("" if use.state is UseState.PLAIN else f", {clean(use.words)}")
        if not self._digits:
            data = {"cpu": str(cpu)} | ({"title": title} if use.tenant else {})
            return block([], kind=_class(use), corner=1, data=data)._replace(width=8, height=12)
        lines = [str(cpu), use.mark or " "] if self._uses.known else [str(cpu)]
        piece = block(lines, kind=_class(use), data={"cpu": str(cpu), "title": title})
        return piece._replace(width=max(piece.width, width_in_em("0") * 11 * max(2, self._digits) + 10))

    def _shares(self, cpus: CpuSet) -> Drawable:
        """CPUs as one bar, divided by what they are doing."""
        split = self._uses.split(bits.members(cpus))
        shares = [(_class(use), own.bit_count() / cpus.bit_count()) for use, own in split.items()]
        told = [label(f"{_short(use)} {own.bit_count()}", 11, kind="dim") for use, own in split.items()]
        return stack([bar(shares, height=14), flow(told, 560, gap=14)]) if self._uses.known else bar(shares, height=14)

    def _memory(self, box: NodeBox, most: float) -> Iterator[Drawable]:
        if box.node is None:
            return
        bars = self._uses.bars(box.node)
        if not bars or not box.node.memory:
            yield label(format_memory(box), 11)
            return
        for each in bars:
            yield stack([_told(each, most), bar(_parts(each))] if each.parts else [_told(each, most)], 2)


def _title(frame: SocketFrame, box: NodeBox) -> str:
    return box.name if len(frame.boxes) > 1 else f"{frame.name} · {box.name}"


def _columns(count: int, fit: int) -> int:
    """How many to put in a row when *fit* fit: a number that leaves no gaps, if one is near."""
    even = next((each for each in range(min(fit, count), 0, -1) if count % each == 0), 1)
    return even if even * 2 > fit or even * 2 > count else -(-count // -(-count // fit))


def _told(each: MemoryBar, most: float) -> Drawable:
    words = [f"huge pages {each.name}" if each.page else f"memory {each.name}"]
    words += [f"{format_size(amount)} {name}" for name, amount in each.parts]
    return flow((label(word, 11) for word in words), most, gap=12, across=1)


def _parts(each: MemoryBar) -> list[tuple[str, float]]:
    kinds = {"in huge pages": "huge", "reserved": "reserved", "held": "held", "free": "free"}
    return [(kinds[name], amount / each.total) for name, amount in each.parts]


def _distances(table: distances.DistanceTable) -> Drawable:
    """A table: rows are from, columns are to."""
    names = [shorten(name, 18) for name in table.names]
    texts = [["", *names], *([name, *cells] for name, cells in zip(names, table.cells, strict=True))]
    pieces = [
        [label(text, 11, kind="" if turn and place else "dim") for place, text in enumerate(line)]
        for turn, line in enumerate(texts)
    ]
    widths = [max(line[place].width for line in pieces) for place in range(len(names) + 1)]
    rows = [row([piece._replace(width=widths[place]) for place, piece in enumerate(line)], 12) for line in pieces]
    rows = rows if names else []
    return stack([*rows, *([label(table.note, 11, kind="dim")] if table.note else [])], 2)


def _legend(scene: MachineLayout) -> Iterator[Drawable]:
    uses = scene.uses
    found = uses.split(bits.members(_union(box.cpus for box in scene.boxes)))
    states = [
        row(
            [block([use.mark or " "], kind=_class(use)), label(f"{use.state}: {pluralize(cpus.bit_count(), 'CPU')}")], 6
        )
        for use, cpus in found.items()
        if not use.tenant
    ]
    yield flow(states, _PAGE - 30, gap=24)
    if uses.sharing:
        names = ", ".join(shorten(clean(name), 40) for name in uses.sharing[:3])
        more = f" and {len(uses.sharing) - 3} more" if len(uses.sharing) > 3 else ""
        yield label(f"shared by {names}{more}", kind="dim")
    for tenant in uses.tenants:
        yield _tenant(tenant)


def _tenant(tenant: Holder) -> Drawable:
    texts = [shorten(clean(tenant.name), 48)]
    if tenant.cpus:
        texts.append(f"CPUs {shorten(format_list(bits.members(tenant.cpus)), 40)}")
    texts += map(format_block, tenant.memory)
    for resource, ids in tenant.devices:
        texts.append(f"{shorten(clean(resource), 32)}: {shorten(clean(', '.join(ids)), 40)}")
    key = block([tenant.key], kind=f"tenant{tenant.place % 8}")
    return row([key, flow((label(text) for text in texts), _PAGE - 100, gap=18)], 8)


def _sentences(scene: MachineLayout) -> Iterator[str]:
    """The picture in words, for who cannot see it."""
    for box in scene.boxes[:_DESCRIBED]:
        where = f"{box.name} on {format_ids('socket', box.sockets)}"
        memory = f", {format_memory(box)}" if box.node else ""
        devices = "".join(f", {len(kind.devices)} of {clean(kind.resource)}" for kind in box.kinds)
        yield f"{where}: CPUs {format_list(bits.members(box.cpus))}{memory}{devices}."
    if len(scene.boxes) > _DESCRIBED:
        yield f"{len(scene.boxes) - _DESCRIBED} more NUMA nodes."
    if scene.bare:
        yield f"{pluralize(len(scene.bare), 'NUMA node')} without CPUs."
    for tenant in scene.uses.tenants:
        yield f"{clean(tenant.name)} holds CPUs {format_list(bits.members(tenant.cpus)) or 'of nobody else'}."


def _class(use: UseInfo) -> str:
    return f"tenant{use.tenant.place % 8}" if use.tenant else str(use.state)


def _short(use: UseInfo) -> str:
    return use.mark if use.tenant else str(use.state)


def _union(sets: Iterable[CpuSet]) -> CpuSet:
    joined = 0
    for cpus in sets:
        joined |= cpus
    return joined
