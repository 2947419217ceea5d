"""The page of a node: the machine and who holds what, the shared pool, waiting pods, decisions, and device plugins."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from alignup.align import bits
from alignup.align.errors import ParseError
from alignup.align.explain import sentences
from alignup.align.host import Host
from alignup.documents.api import AdmissionStatus, PodView, StoredDecision
from alignup.documents.codec import timestamp
from alignup.documents.decisions import from_document
from alignup.picture.machine_svg import draw_parts
from alignup.picture.occupancy import Holder, Occupancy, UseState, format_block
from alignup.picture.text_format import clean, format_list, pluralize
from alignup.web.pages.html import Content, Html, element, group, path, trusted
from alignup.web.pages.page import section

MAX_PODS = 500  #: that the page lists
RECENT = 20  #: decisions that the page lists

_MARKS = {"admitted": "✓", "rejected": "✗", "waiting": "…", "asking": "?"}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """What the page of a node shows, of one moment."""

    host: Host
    pods: Sequence[PodView]  #: the first ``MAX_PODS``
    pod_count: int
    decisions: Sequence[StoredDecision]
    plugins: Mapping[str, bool]  #: resource → whether its device plugin is connected
    problems: Sequence[str] = ()  #: why the agent cannot decide on pods
    notes: Sequence[str] = ()  #: problems with manifest files


def node_page(state: NodeState) -> Html:
    parts = draw_parts(state.host.machine, state.host.ledger)
    occupancy = parts.layout.occupancy
    holders = {holder.uid: holder for holder in occupancy.holders}
    held = [view for view in state.pods if view.status is AdmissionStatus.ADMITTED]
    waiting = [view for view in state.pods if view.status is AdmissionStatus.WAITING]
    facts = " · ".join([parts.layout.title, *parts.layout.facts])
    return group(
        element("div", _banners(state), id="problems", data_live=True),
        element("p", facts, " · ", _rules(state.host), class_="facts"),
        section(
            "Machine",
            element("p", _legend(occupancy, parts.layout.cpus), class_="legend"),
            element("div", map(trusted, parts.pictures), class_="machine"),
            id_="machine",
            live=True,
        ),
        section("Pods", _pods(held, holders, state), id_="pods", live=True, count=len(held)),
        section("Shared CPU pool", _shared_pool(state.host, occupancy), id_="shared", live=True),
        section("Waiting pods", _waiting(waiting), id_="waiting", live=True, count=len(waiting)),
        section("Recent decisions", decision_table(state.decisions), id_="decisions", live=True),
        section("Device plugins", _plugins(state), id_="plugins", live=True),
    )


def outcome_badge(outcome: str) -> Html:
    """An outcome, told by a mark and the word, not by color alone."""
    mark = element("span", _MARKS.get(outcome, "·"), aria_hidden="true")
    return element("span", mark, f" {outcome}", class_=f"badge {outcome if outcome in _MARKS else 'other'}")


def table(heads: Sequence[str], rows: Sequence[Html], *, caption: str) -> Html:
    """A table with rows of :func:`row`; *caption* is for screen readers."""
    return element(
        "div",
        element(
            "table",
            element("caption", caption),
            element("thead", element("tr", [element("th", head, scope="col") for head in heads])),
            element("tbody", rows),
        ),
        class_="table",
        role="region",
        aria_label=caption,
        tabindex="0",
    )


def row(first: Content, *cells: Content, **attributes: str | int | bool | None) -> Html:
    return element("tr", element("th", first, scope="row"), [element("td", cell) for cell in cells], **attributes)


def time_element(seconds: float) -> Html:
    """A time in UTC, which the script shows in the time zone of the reader."""
    text = timestamp(seconds)
    return element("time", text[:19].replace("T", " ") + " UTC", datetime=text)


def _banners(state: NodeState) -> Iterator[Html]:
    for problem in state.problems:
        yield element(
            "p", element("strong", "The agent cannot decide on pods: "), problem, class_="banner", role="alert"
        )
    for note in state.notes:
        yield element("p", note, class_="banner note")


def _rules(host: Host) -> str:
    topology, settings = host.settings.topology, host.settings
    return (
        f"policy {topology.policy} · scope {topology.scope} · CPU manager {settings.cpus.policy} · "
        f"memory manager {settings.memory_policy}"
    )


def _legend(occupancy: Occupancy, cpus: int) -> Iterator[Html]:
    """What the marks in the boxes of CPUs mean."""
    for use, own in occupancy.split(bits.members(cpus)).items():
        if use.holder is None:
            mark = element("span", use.mark or "\N{NO-BREAK SPACE}", class_=f"key {use.style}", aria_hidden="true")
            yield element("span", mark, f" {pluralize(own.bit_count(), 'CPU')} {use.state}", class_="entry")
    if any(use.state is UseState.HELD for use in occupancy.by_cpu.values()):
        yield element("span", "letters: exclusive to the pod with this key", class_="entry")


def _pods(views: Sequence[PodView], holders: Mapping[str, Holder], state: NodeState) -> Content:
    if not views:
        return element("p", "No pod is admitted.", class_="empty")
    rows = [_pod(view, holders.get(view.pod.uid)) for view in views]
    shown = table(
        ("Key", "Pod", "QoS", "NUMA nodes", "CPUs", "Memory", "Devices", "Status", "Since"),
        rows,
        caption="Admitted pods and what they hold; the decision is behind the name",
    )
    more = state.pod_count - len(state.pods)
    return group(shown, element("p", f"and {more} more, see /v1/pods", class_="empty") if more > 0 else None)


def _pod(view: PodView, holder: Holder | None) -> Html:
    name = f"{view.pod.namespace}/{view.pod.name}"
    nodes = bits.union(one.hint.nodes or 0 for one in view.decision.placements)
    key = "s" if holder is None else holder.key
    style = "shared" if holder is None else f"holder{holder.index % 8}"
    return row(
        element("span", key, class_=f"key {style}"),
        element("a", clean(name), href=path("/pods", view.pod.uid)),
        str(view.pod.qos),
        format_list(bits.members(nodes)) or "any",
        format_list(bits.members(holder.cpus)) if holder and holder.cpus else "shared pool",
        ", ".join(map(format_block, holder.memory)) if holder else "",
        _devices(holder) if holder else "",
        outcome_badge(str(view.status)),
        time_element(view.since),
        data_holder=key if holder else None,
    )


def holder_table(occupancy: Occupancy) -> Content:
    """The pods that hold something, where no more is known about them."""
    if not occupancy.holders:
        return element("p", "No pod holds resources of its own.", class_="empty")
    rows = [
        row(
            element("span", one.key, class_=f"key holder{one.index % 8}"),
            clean(one.name),
            format_list(bits.members(one.cpus)) or "shared pool",
            ", ".join(map(format_block, one.memory)),
            _devices(one),
            data_holder=one.key,
        )
        for one in occupancy.holders
    ]
    return table(("Key", "Pod", "CPUs", "Memory", "Devices"), rows, caption="Pods and what they hold")


def _devices(holder: Holder) -> str:
    return ", ".join(f"{clean(resource)} {', '.join(map(clean, ids))}" for resource, ids in holder.devices)


def _shared_pool(host: Host, occupancy: Occupancy) -> Content:
    cpus = host.ledger.cpus
    shared = cpus.available
    who = ", ".join(map(clean, occupancy.sharing[:20])) or "no pod"
    more = f" and {len(occupancy.sharing) - 20} more" if len(occupancy.sharing) > 20 else ""
    return element(
        "dl",
        element("dt", "CPUs"),
        element("dd", f"{pluralize(shared.bit_count(), 'CPU')}: {format_list(bits.members(shared)) or 'none'}"),
        element("dt", "Pods"),
        element("dd", f"{who}{more}"),
        element("dt", "Reserved for system daemons"),
        element("dd", f"CPUs {format_list(bits.members(cpus.reserved))}" if cpus.reserved else "no CPUs"),
    )


def _waiting(views: Sequence[PodView]) -> Content:
    if not views:
        return element("p", "No pod is waiting.", class_="empty")
    rows = []
    for view in views:
        rejection = view.decision.rejection
        why = [element("li", one) for one in sentences.describe_rejection(view.decision)]
        rows.append(
            row(
                view.position or "",
                element("a", clean(f"{view.pod.namespace}/{view.pod.name}"), href=path("/pods", view.pod.uid)),
                group(element("code", rejection.reason), element("ul", why) if why else None) if rejection else "",
                time_element(view.since),
            )
        )
    return table(("Position", "Pod", "Why", "Since"), rows, caption="Waiting pods, the first in the queue first")


def decision_table(stored: Sequence[StoredDecision]) -> Content:
    if not stored:
        return element("p", "No decision yet.", class_="empty")
    rows = []
    for one in stored:
        pod = one.document.get("pod") or {}
        outcome = str(one.document.get("outcome", ""))
        rows.append(
            row(
                element("a", f"Decision {one.id}", href=path("/decisions", one.id)),
                clean(f"{pod.get('namespace', '')}/{pod.get('name', '')}"),
                outcome_badge("rejected" if outcome == "refused" else outcome),
                _summary(one),
                time_element(one.time),
            )
        )
    return table(("Decision", "Pod", "Outcome", "Placement or reason", "Time"), rows, caption="Recent decisions")


def _summary(stored: StoredDecision) -> str:
    try:
        decision = from_document(stored.document)
    except ParseError:
        return "stored by another version"
    if decision.rejection:
        return decision.rejection.reason
    return sentences.describe_allocations(decision.placements)


def _plugins(state: NodeState) -> Content:
    devices = state.host.ledger.devices
    rows = []
    for resource, inventory in sorted(devices.inventories.items()):
        healthy, total = inventory.healthy.bit_count(), len(inventory.devices)
        ill = [device.id for device in inventory.devices if not device.healthy]
        if resource not in state.plugins:
            plugin = "none: declared in the machine file"
        else:
            plugin = "✓ connected" if state.plugins[resource] else "✗ not connected"
        health = (
            f"✓ all {total} healthy"
            if healthy == total
            else f"✗ {len(ill)} of {total} not healthy: {', '.join(map(clean, ill[:8]))}"
        )
        held = len(devices.in_use.get(resource, ()))
        rows.append(
            row(clean(resource), plugin, health, f"{held} held, {devices.free.get(resource, 0).bit_count()} free")
        )
    if not rows:
        return element("p", "No device plugin has registered.", class_="empty")
    return table(
        ("Resource", "Plugin", "Health", "Devices"), rows, caption="Device plugins and the health of their devices"
    )
