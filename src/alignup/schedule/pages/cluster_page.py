"""The page of a cluster: every node as a small multiple, what is free and what is stranded, and answers about pods."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from alignup.agent.pages.node_page import outcome_badge, row, table
from alignup.picture.numa_bars import NumaBars, ResourceBar, add_bars, describe_bars, draw_bars
from alignup.picture.text_format import clean, format_size, pluralize
from alignup.web.pages.html import Content, Html, element, group, path, trusted

CHUNK = 60  #: cards that are sent at once; every number of columns divides it
POLICIES = ("none", "best-effort", "restricted", "single-numa-node")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCard:
    """A node in brief."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    policy: str = ""  #: empty: unknown
    scope: str = ""
    pods: int = 0
    numa: tuple[NumaBars, ...] = ()
    largest: Mapping[str, int] = field(default_factory=dict)  #: the largest request that one container gets aligned
    unknown: str = ""  #: why the state is unknown
    restrictions: tuple[str, ...] = ()

    totals: Mapping[str, ResourceBar] = field(init=False, compare=False)  #: of all NUMA nodes, by resource
    free: int = field(init=False, compare=False)  #: free CPUs, stranded ones included
    #: CPUs and devices that are free, and that no aligned container can get
    stranded: int = field(init=False, compare=False)
    roomiest: int = field(init=False, compare=False)  #: the free CPUs of the NUMA node that has most of them

    def __post_init__(self) -> None:
        """Count once what queries compare again and again."""
        totals: dict[str, ResourceBar] = {}
        for node in self.numa:
            for bar in node.bars:
                totals[bar.resource] = add_bars(totals.get(bar.resource, ResourceBar(bar.resource)), bar)
        cpus = totals.get("cpu", ResourceBar("cpu"))
        stranded = sum(bar.stranded for bar in totals.values())
        roomiest = max((bar.free for node in self.numa for bar in node.bars if bar.resource == "cpu"), default=0)
        found = {"totals": totals, "free": cpus.free + cpus.stranded, "stranded": stranded, "roomiest": roomiest}
        for name, value in found.items():
            object.__setattr__(self, name, value)


class FoundPod(NamedTuple):
    namespace: str
    name: str
    node: str
    phase: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredGroup:
    """Nodes that answer alike."""

    kind: str
    reason: str
    numa_nodes: str
    nodes: tuple[str, ...]
    misfits: tuple[str, ...] = ()
    proposals: tuple[tuple[str, str], ...] = ()  #: what would admit the pod on the first node, and where it would go


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredPod:
    name: str
    groups: tuple[AnsweredGroup, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CardQuery:
    """Which nodes to show, and in which order."""

    sort: str = "name"
    policy: str = ""
    free: int = 0  #: at least so many free CPUs
    stranded: bool = False  #: only with something stranded
    label: str = ""  #: key or key=value, several with commas
    text: str = ""  #: in the name
    offset: int = 0

    def parameters(self, offset: int | None) -> dict[str, str | int | None]:
        return {
            "sort": self.sort if self.sort != "name" else None,
            "policy": self.policy or None,
            "free": self.free or None,
            "stranded": "yes" if self.stranded else None,
            "label": self.label or None,
            "q": self.text or None,
            "offset": offset or None,
        }


SORTS = {
    "name": ("Name", lambda card: card.name),
    "free": ("Most free CPUs", lambda card: (-card.free, card.name)),
    "largest": ("Largest aligned CPU request", lambda card: (-card.largest.get("cpu", 0), card.name)),
    "stranded": ("Most stranded", lambda card: (-card.stranded, card.name)),
    "pods": ("Most pods", lambda card: (-card.pods, card.name)),
}


def read_query(parameters: Mapping[str, str]) -> CardQuery:
    """The query; what cannot be read is left out."""

    def number(name: str) -> int:
        text = parameters.get(name, "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 8 else 0

    sort, policy = parameters.get("sort", "name"), parameters.get("policy", "")
    return CardQuery(
        sort=sort if sort in SORTS else "name",
        policy=policy if policy in {*POLICIES, "unknown"} else "",
        free=number("free"),
        stranded=parameters.get("stranded") == "yes",
        label=parameters.get("label", "")[:500],
        text=parameters.get("q", "")[:253],
        offset=number("offset"),
    )


def select_cards(cards: Iterable[NodeCard], query: CardQuery) -> list[NodeCard]:
    wanted = [part.strip().partition("=") for part in query.label.split(",") if part.strip()]

    def matches(card: NodeCard) -> bool:
        return (
            query.text in card.name
            and query.policy in {"", card.policy or "unknown"}
            and card.free >= query.free
            and (card.stranded > 0 or not query.stranded)
            and all(key in card.labels and (not equals or card.labels[key] == value) for key, equals, value in wanted)
        )

    return sorted(filter(matches, cards), key=SORTS[query.sort][1])


def summary(cards: Sequence[NodeCard]) -> Html:
    """The whole cluster: capacity, what is free, stranded and fragmented."""
    known = [card for card in cards if not card.unknown]
    totals: dict[str, ResourceBar] = {"cpu": ResourceBar("cpu")}
    for card in known:
        for resource, bar in card.totals.items():
            totals[resource] = add_bars(totals.get(resource, ResourceBar(resource)), bar)
    cpus = totals.pop("cpu")
    free = cpus.free + cpus.stranded
    elsewhere = free - sum(card.roomiest for card in known)
    pairs = [
        ("Nodes", f"{len(cards)}, of which {len(known)} report their state"),
        ("Pods", str(sum(card.pods for card in known))),
        ("CPUs", f"{cpus.total}, {free} free ({_share(free, cpus.total)})"),
        ("Stranded CPUs", f"{cpus.stranded} ({_share(cpus.stranded, free)} of the free ones)"),
        ("Fragmentation", f"{_share(elsewhere, free)} of the free CPUs are not on the NUMA node with most of them"),
    ]
    for resource, bar in sorted(totals.items())[:12]:
        text = f"{_amount(resource, bar.total)}, {_amount(resource, bar.free + bar.stranded)} free"
        pairs.append((clean(resource), text + (f", {bar.stranded} stranded" if bar.stranded else "")))
    return element("dl", [group(element("dt", name), element("dd", text)) for name, text in pairs])


def card_list(cards: Sequence[NodeCard], query: CardQuery) -> Html:
    """One chunk of the cards."""
    shown = cards[query.offset : query.offset + CHUNK]
    return element("ol", [_card(card) for card in shown], class_="cards", start=query.offset + 1)


def chunks(cards: Sequence[NodeCard], query: CardQuery) -> Html:
    """All cards: the first chunk, the places of the others, which the script fills, and links without it."""
    first = element("div", card_list(cards, query), class_="chunk", data_chunk=_chunk_path(query, query.offset))
    others = [
        element(
            "div", class_="chunk", data_chunk=_chunk_path(query, offset), data_count=min(CHUNK, len(cards) - offset)
        )
        for offset in range(query.offset + CHUNK, len(cards), CHUNK)
    ]
    links = []
    if query.offset:
        before = max(query.offset - CHUNK, 0)
        links.append(element("a", "Previous nodes", href=path("/", **query.parameters(before)), rel="prev"))
    if query.offset + CHUNK < len(cards):
        after = query.offset + CHUNK
        links.append(element("a", "Next nodes", href=path("/", **query.parameters(after)), rel="next"))
    note = element("p", "No node matches.", class_="empty") if not cards else None
    return group(note, element("div", first, others, class_="chunks"), element("p", links, class_="pages"))


def query_form(query: CardQuery) -> Html:
    return element(
        "form",
        _field("Name contains", "q", query.text, type_="search"),
        _select("Sort by", "sort", [(key, text) for key, (text, _) in SORTS.items()], query.sort),
        _select("Policy", "policy", [("", "all"), *((one, one) for one in (*POLICIES, "unknown"))], query.policy),
        _field("Free CPUs, at least", "free", str(query.free or ""), type_="number"),
        _field("Label, key or key=value", "label", query.label),
        element(
            "p",
            element("label", "Only with stranded capacity", for_="stranded"),
            element("input", id="stranded", name="stranded", type="checkbox", value="yes", checked=query.stranded),
            class_="field",
        ),
        element("p", element("button", "Show", type="submit"), class_="field"),
        method="get",
        action="/",
        role="search",
    )


def answer_section(answered: AnsweredPod) -> Html:
    """The verdict of each group of nodes."""
    rows = []
    for one in answered.groups:
        mark = {"admits": "admitted", "rejects": "rejected"}.get(one.kind, "other")
        badge = outcome_badge(mark) if mark != "other" else element("span", one.kind, class_="badge other")
        names = [group(element("a", clean(name), href=path("/nodes", name)), " ") for name in one.nodes[:8]]
        more = f"and {len(one.nodes) - 8} more" if len(one.nodes) > 8 else ""
        why: list[Content] = [one.reason or one.numa_nodes]
        if one.misfits:
            why.append(element("ul", [element("li", text) for text in one.misfits]))
        if one.proposals:
            why.append(element("p", f"What would admit it on {clean(one.nodes[0])}:"))
            why.append(element("ul", [element("li", f"{what} → {where}") for what, where in one.proposals]))
        rows.append(row(badge, pluralize(len(one.nodes), "node"), group(*why), group(*names, more)))
    notes = [element("p", note, class_="banner note") for note in answered.notes]
    shown = table(
        ("Verdict", "Nodes", "Where, or why not", "Names"), rows, caption=f"Answers of the nodes about {answered.name}"
    )
    return element("div", element("h2", clean(answered.name)), notes, shown)


def found_pods(pods: Sequence[FoundPod]) -> Html:
    if not pods:
        return element("p", "No pod matches.", class_="empty")
    rows = [
        row(
            element("a", clean(f"{one.namespace}/{one.name}"), href=path("/pods", one.namespace, one.name)),
            element("a", clean(one.node), href=path("/nodes", one.node)) if one.node else "not bound",
            one.phase,
            one.reason,
        )
        for one in pods
    ]
    return table(("Pod", "Node", "Phase", "Reason"), rows, caption="Pods that match")


def _card(card: NodeCard) -> Html:
    facts = " · ".join(_facts(card))
    return element(
        "li",
        element("a", clean(card.name), href=path("/nodes", card.name), class_="name"),
        element("span", facts, class_="facts"),
        trusted(draw_bars(card.numa, name=describe_bars(card.numa))) if card.numa else None,
        class_="card",
    )


def _facts(card: NodeCard) -> Iterator[str]:
    if card.unknown:
        yield f"unknown: {card.unknown}"
        return
    yield card.policy
    yield pluralize(card.pods, "pod")
    yield f"{card.free} CPUs free"
    if card.stranded:
        yield f"! {card.stranded} stranded"
    yield from card.restrictions


def _chunk_path(query: CardQuery, offset: int) -> str:
    return path("/nodes", **query.parameters(offset))


def _field(label: str, name: str, value: str, *, type_: str = "text") -> Html:
    field_ = element("input", id=name, name=name, value=value, type=type_, min=0 if type_ == "number" else None)
    return element("p", element("label", label, for_=name), field_, class_="field")


def _select(label: str, name: str, values: Sequence[tuple[str, str]], selected: str) -> Html:
    options = [element("option", text, value=value, selected=value == selected) for value, text in values]
    return element(
        "p", element("label", label, for_=name), element("select", options, id=name, name=name), class_="field"
    )


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "0 %"


def _amount(resource: str, amount: int) -> str:
    return format_size(amount) if resource == "memory" or resource.startswith("hugepages-") else str(amount)
