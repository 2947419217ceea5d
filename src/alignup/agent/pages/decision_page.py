"""A decision in full: the hints of each resource, the merge with its winner and runners-up, and what came of it."""

from collections.abc import Iterator, Sequence

from alignup.agent.pages.node_page import outcome_badge, row, table
from alignup.align.decision import Decision, MergeStep, ResourceHints, shown_hints
from alignup.align.explain import sentences
from alignup.align.explain.remedies import Remedies
from alignup.align.ledger import Ledger
from alignup.picture.text_format import clean, format_size
from alignup.web.pages.html import Content, Html, element, group
from alignup.web.pages.page import section

_MAX_COLUMNS = 16  #: NUMA nodes that get a column each


def decision_body(decision: Decision, *, outcome: str = "", prefix: str = "") -> Html:
    """The decision; *prefix* keeps ids apart where a page has two."""
    verdict = element(
        "p", outcome_badge(outcome or str(decision.outcome)), " ", sentences.verdict(decision), class_="verdict"
    )
    parts: list[Content] = [verdict, element("p", sentences.describe_rules(decision), class_="facts")]
    if decision.rejection:
        parts.append(element("p", decision.rejection.message))
        misfits = sentences.describe_rejection(decision)
        if misfits:
            parts.append(section("What does not fit", _list(misfits), id_=f"{prefix}misfits"))
    for number, step in enumerate(decision.steps):
        parts.append(_step(step, decision, id_=f"{prefix}step-{number}"))
    if decision.placements:
        rows = [
            row(clean(one.container), sentences.format_hint(one.hint), sentences.describe_allocation(one))
            for one in decision.placements
        ]
        placed = table(("Container", "NUMA nodes", "Allocation"), rows, caption="What each container gets")
        parts.append(section("Allocation", placed, id_=f"{prefix}allocation"))
    return group(*parts)


def remedies_section(found: Remedies, ledger: Ledger) -> Content:
    if found.proposals:
        items = [
            element("li", one.describe(ledger), element("br"), element("small", f"→ {one.describe_result()}"))
            for one in found.proposals
        ]
        body: Content = [element("p", "Each change was tried on the node as it is now."), element("ul", items)]
    else:
        body = element("p", "No single change that was tried admits it now.", class_="empty")
    unsearched = [element("p", "Not tried: ", " ".join(found.unsearched), class_="empty")] if found.unsearched else []
    return section("What would admit it", body, unsearched, id_="remedies")


def _step(step: MergeStep, decision: Decision, *, id_: str) -> Content:
    title = f"Container {clean(step.container)}" if step.container else "The pod as a whole"
    requested = [one for one in step.resources if one.resource]
    nodes = sorted({node for one in requested for node in one.free or ()})
    parts: list[Content] = []
    if requested:
        parts.append(_hints(requested, nodes))
    silent = [one.provider for one in step.resources if not one.resource]
    if silent:
        parts.append(element("p", f"No request for {', '.join(silent)}.", class_="empty"))
    parts.append(element("dl", _merge(step, decision)))
    return section(title, *parts, id_=id_)


def _merge(step: MergeStep, decision: Decision) -> Iterator[Html]:
    yield element("dt", "Target width")
    width = (
        f"{step.width} NUMA node{'' if step.width == 1 else 's'}"
        if step.width
        else "none: no resource is tied to a NUMA node"
    )
    yield element("dd", width)
    yield element("dt", "Winner")
    yield element("dd", sentences.describe_choice(step))
    yield element("dt", "Runners-up")
    others = ", ".join(map(sentences.format_nodes, step.runners_up))
    yield element("dd", element("code", others) if others else "none")
    yield element("dt", f"Policy {decision.policy}")
    yield element("dd", "✓ accepts the winner" if step.accepted else "✗ does not accept the winner")


def _hints(resources: Sequence[ResourceHints], nodes: Sequence[int]) -> Html:
    columns = nodes if len(nodes) <= _MAX_COLUMNS else ()
    heads = ["Resource", "Requested", *(f"NUMA node {node}" for node in columns), "All hints"]
    rows = []
    for one in resources:
        name = one.resource or ""
        request = "unknown" if one.request is None else _amount(name, one.request)
        cells = [_node_cell(one, node) for node in columns]
        rows.append(row(element("span", clean(name), title=one.provider), request, *cells, _all_hints(one)))
    return table(heads, rows, caption="Hints of each resource; * marks preferred ones")


def _node_cell(one: ResourceHints, node: int) -> Html:
    """What is free on one node, and whether the node alone is a hint."""
    free = (one.free or {}).get(node)
    name = one.resource or ""
    hint = next((hint for hint in shown_hints(one).hints if hint.nodes == 1 << node), None)
    if one.has_no_preference:
        word, kind = "anywhere", "any"
    elif hint is not None:
        word, kind = ("preferred *", "preferred") if hint.preferred else ("possible", "possible")
    else:
        word, kind = "not alone", "none"
    amount = "" if free is None else f"{_amount(name, free)} free"
    meter: Content = None
    if free is not None and one.request:
        shown = min(free, one.request)
        meter = element(
            "meter",
            f"{shown} of {one.request}",
            min=0,
            max=one.request,
            value=shown,
            aria_label=f"{name} on node {node}",
        )
    return element("span", amount, meter, element("span", word, class_=f"hint {kind}"), class_="cell")


def _all_hints(one: ResourceHints) -> Content:
    if sentences.has_no_hints(one):
        return "none: no set of nodes has enough"
    if one.has_no_preference:
        return "anywhere"
    hints, more = shown_hints(one)
    texts = [sentences.format_hint(hint) for hint in hints]
    if not texts:
        return "sets of several nodes" if more else "none: fits on no set of nodes"
    return element("code", " ".join([*texts, *(["…"] if more else [])]))


def _amount(resource: str, number: int) -> str:
    return format_size(number) if resource == "memory" or resource.startswith("hugepages-") else str(number)


def _list(texts: Sequence[str]) -> Html:
    return element("ul", [element("li", text) for text in texts])
