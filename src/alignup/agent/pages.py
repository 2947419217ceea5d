"""The web pages of the agent: the node at ``/``, pods, and decisions with a "what if" form.

The form asks for another policy, scope or amount; the decision code answers on the node as it is now.
"""

import asyncio
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from alignup.agent.parts import AgentParts
from alignup.agent.state import AdmissionStatus, PodViews
from alignup.align import bits
from alignup.align.admit import effective_policy
from alignup.align.decision import Decision, ResourceHints, shown_hints
from alignup.align.errors import AlignError, ParseError, PodError
from alignup.align.explain import changes, sentences
from alignup.align.explain.changes import Change, RequestChange, SettingChange, Unit, apply_changes
from alignup.align.explain.remedies import find_remedies, requested_amounts
from alignup.align.hint import Hint
from alignup.align.host import Host
from alignup.align.quantity import Quantity
from alignup.align.settings import Policy, Scope
from alignup.align.workload import Pod
from alignup.documents.codec import timestamp
from alignup.documents.decisions import from_document
from alignup.explain import page, why
from alignup.picture.occupancy import format_amount
from alignup.picture.text_format import clean, format_bits, format_ids
from alignup.store.history import DecisionQuery, StoredDecision
from alignup.web.authentication import AccessRules
from alignup.web.pages import Pages, describe_machine, file_response, static_routes
from alignup.web.responses import ProblemError, make_app

LINKS = (("Node", "/"), ("Decisions", "/decisions"))
MAX_PODS = 500  #: that the page of a node lists
MAX_LATER = 5  #: decisions on the same pod that the page of a decision lists
RECENT = 20  #: decisions that the page of a node lists
PAGE_DECISIONS = 100
MAX_COLUMNS = 16  #: NUMA nodes that get a column each
MAX_AMOUNTS = 64  #: of a pod that can be changed in the form
AMOUNT = "amount-"  #: the fields of amounts: this, and their position among all of the pod


def page_app(agent: AgentParts, access: AccessRules, *, search_seconds: float) -> Starlette:
    """Build the pages; *search_seconds* limit the search for changes that would admit a pod."""
    pages = _AgentPages(agent, search_seconds)
    guard = pages.templates.guard
    routes: list[BaseRoute] = [
        *static_routes(),
        pages.templates.sign_in_route(access),
        Route("/", guard(pages.node, access)),
        Route("/decisions", guard(pages.decisions, access)),
        Route("/decisions/{id:int}", guard(pages.decision, access)),
        Route("/pods/{uid}", guard(pages.pod, access)),
        Route("/pods/{uid}/file", guard(pages.pod_file, access)),
    ]
    missing_page = pages.templates.missing(access, hint="see /openapi.json for the API.")
    return make_app(routes, {404: missing_page})


class _AgentPages:
    """The handlers of the pages."""

    def __init__(self, agent: AgentParts, search_seconds: float) -> None:
        functions = {
            "sentences": sentences,
            "placed_nodes": placed_nodes,
            "nodes_text": nodes_text,
            "hint_text": hint_text,
            "outcome_sentence": outcome_sentence,
            "hint_columns": hint_columns,
            "node_title": "NUMA node {}".format,
            "node_cell": node_cell,
            "all_hints": all_hints,
            "summary": summarize_decision,
        }
        self.templates = Pages("alignup.agent", links=LINKS, subject=platform.node(), functions=functions)
        self._agent = agent
        self._search_seconds = search_seconds
        self._computing = asyncio.Semaphore(1)  #: one search at a time: each takes up to a second of a CPU

    async def node(self, _request: Request) -> Response:
        agent, state = self._agent, self._agent.queue.state
        views = PodViews(state)
        shown_views = views[:MAX_PODS]
        values: dict[str, Any] = {
            "admitted": [view for view in shown_views if view.status is AdmissionStatus.ADMITTED],
            "waiting": [view for view in shown_views if view.status is AdmissionStatus.WAITING],
            "more_pods": len(views) - len(shown_views),
            "decisions": await agent.decisions(DecisionQuery(limit=RECENT)),
            "plugins": {name: agent.allocator.serves(name) for name in sorted(state.plugins)},
            "problems": await agent.probe.problems(),
            "notes": agent.notes,
        }
        host = state.shown_host()

        def build() -> Response:
            values["node"] = describe_machine(host)
            ledger = host.ledger
            return self.templates.response(
                "node.html", settings=host.settings, cpus=ledger.cpus, devices=ledger.devices, **values
            )

        return await asyncio.to_thread(build)

    async def decisions(self, request: Request) -> Response:
        before_id = request.query_params.get("before", "")
        pod = request.query_params.get("pod", "") or None
        number = int(before_id) if before_id.isascii() and before_id.isdigit() and len(before_id) < 19 else None
        entries = await self._agent.decisions(DecisionQuery(pod=pod, before=number, limit=PAGE_DECISIONS))
        older = entries[-1].id if len(entries) == PAGE_DECISIONS else None
        values: dict[str, Any] = {"decisions": entries, "pod": pod, "older": older}
        return await asyncio.to_thread(lambda: self.templates.response("decisions.html", **values))

    async def decision(self, request: Request) -> Response:
        id_ = request.path_params["id"]
        entry = await self._agent.decision(id_) if id_ < 1 << 63 else None
        if entry is None:
            raise ProblemError(404, f"The history has no decision {id_}.")
        try:
            decision = from_document(entry.document)
        except ParseError as error:
            raise ProblemError(410, f"This decision was stored by a version that cannot be read: {error}") from error
        view = self._agent.queue.state.pod_view(decision.uid)
        pod = self._find_pod(decision.uid)
        later = await self._agent.decisions(DecisionQuery(pod=decision.uid, limit=MAX_LATER))
        values: dict[str, Any] = {
            "stored": entry,
            "later": [other for other in later if other.id > entry.id],
            "known": str(view.status) if view else "",
        }
        return await self._respond("decision.html", request, decision, pod, **values)

    async def pod(self, request: Request) -> Response:
        uid = request.path_params["uid"]
        view = self._agent.queue.state.pod_view(uid)
        if view is None:
            raise ProblemError(404, f"No pod has the uid {uid}.")
        latest = await self._agent.decisions(DecisionQuery(pod=uid, limit=1))
        return await self._respond("pod.html", request, view.decision, view.pod, view=view, latest=latest)

    async def pod_file(self, request: Request) -> Response:
        """Return what the node would decide on a pod now, as one file for a ticket."""
        pod = self._find_pod(request.path_params["uid"])
        if pod is None:
            raise ProblemError(404, f"No pod has the uid {request.path_params['uid']}.")
        host = self._agent.queue.state.shown_host().without_pods([pod.uid])  # what it holds is free for it

        def build() -> Response:
            answer = why(host, pod, seconds=self._search_seconds)
            title = f"{answer.verdict} ({platform.node()}, {timestamp(time.time())})"
            return file_response(page([answer], title=title), f"{pod.namespace}-{pod.name}.html")

        async with self._computing:
            return await asyncio.to_thread(build)

    def _find_pod(self, uid: str) -> Pod | None:
        view = self._agent.queue.state.pod_view(uid)
        return view.pod if view else self._agent.allocator.rejected_pods.get(uid)

    async def _respond(
        self,
        template: str,
        request: Request,
        decision: Decision,
        pod: Pod | None,
        **values: Any,  # noqa: ANN401 - of the template
    ) -> Response:
        """Return a page about a decision; *pod* is ``None`` if the agent no longer knows it."""
        state = self._agent.queue.state
        host, view = state.shown_host(), state.pod_view(decision.uid)

        def build() -> Response:
            form = None
            if pod is not None:
                form = what_if(host, pod, dict(request.query_params))
                admitted = view is not None and view.status is AdmissionStatus.ADMITTED
                form["fits_now"] = form["fits_now"] and decision.rejection is not None and not admitted
                if decision.rejection is not None and not form["fits_now"] and not admitted:
                    end = time.monotonic() + self._search_seconds
                    form["remedies"] = find_remedies(form["host"], pod, should_stop=lambda: time.monotonic() > end)
            shown_decision = decision.without_ledgers()
            action = request.url.path
            return self.templates.response(template, decision=shown_decision, form=form, action=action, **values)

        async with self._computing:
            return await asyncio.to_thread(build)


def placed_nodes(decision: Decision) -> str:
    """Return the NUMA nodes of all containers; empty: any."""
    return format_bits(bits.union(placement.hint.nodes or 0 for placement in decision.placements))


def outcome_sentence(decision: Decision, outcome: str) -> str:
    """Return the verdict in a sentence; a pod that waits is not rejected for good."""
    if outcome == AdmissionStatus.WAITING and decision.rejection:
        return f"Pod {decision.namespace}/{decision.name} waits for room: {decision.rejection.reason}"
    return sentences.verdict(decision)


def nodes_text(nodes: int | None) -> str:
    return "anywhere" if nodes is None else format_ids("NUMA node", bits.members(nodes))


def hint_text(hint: Hint) -> str:
    return nodes_text(hint.nodes) + (" (preferred)" if hint.preferred and hint.nodes is not None else "")


def summarize_decision(entry: StoredDecision) -> str:
    """Return where the pod was placed, or why it was rejected."""
    try:
        decision = from_document(entry.document)
    except ParseError:
        return "stored by another version"
    if decision.rejection:
        return decision.rejection.reason
    return sentences.describe_allocations(decision.placements)


def hint_columns(resources: Sequence[ResourceHints]) -> list[int]:
    """Return the NUMA nodes that get a column each: all that a resource is known of, unless they are too many."""
    nodes = sorted({node for resource in resources for node in resource.free or ()})
    return nodes if len(nodes) <= MAX_COLUMNS else []


class NodeCell(NamedTuple):
    """What one NUMA node offers for one resource."""

    free: str  #: empty: unknown
    meter: int | None  #: how much of the request is free; ``None``: unknown
    hint: str  #: whether the node alone is a hint
    style: str


def node_cell(resource: ResourceHints, node: int) -> NodeCell:
    free = (resource.free or {}).get(node)
    hint = next((hint for hint in shown_hints(resource).hints if hint.nodes == 1 << node), None)
    if resource.has_no_preference:
        word, style = "anywhere", "any"
    elif hint is not None:
        word, style = ("preferred", "preferred") if hint.preferred else ("possible", "possible")
    else:
        word, style = "only with other nodes" if shown_hints(resource).hints else "does not fit", "none"
    text = "" if free is None else f"{format_amount(resource.resource or '', free)} free"
    return NodeCell(text, min(free, resource.request) if free is not None and resource.request else None, word, style)


def all_hints(resource: ResourceHints) -> str:
    """Return the hints in words."""
    if sentences.has_no_hints(resource):
        return "nowhere: no set of NUMA nodes has enough"
    if resource.has_no_preference:
        return "anywhere"
    hints, more = shown_hints(resource)
    texts = list(map(hint_text, hints))
    if not texts:
        return "on several NUMA nodes together" if more else "nowhere: fits on no set of NUMA nodes"
    return "; ".join([*texts, *(["…"] if more else [])])


def what_if(host: Host, pod: Pod, fields: Mapping[str, str]) -> dict[str, Any]:
    """Return what the form of a pod shows; with *fields*, also the answer to the last question."""
    other = host.without_pods([pod.uid])  # what it holds is free for it
    policy, scope = effective_policy(pod, other.rules)
    amounts = list(requested_amounts(other, pod))[:MAX_AMOUNTS]
    changes, problems = read_changes(other, pod, amounts, fields) if fields else ((), ())
    decision, problem = decide_changed(other, pod, changes) if fields and not problems else (None, "")
    current_decision, _ = decide_changed(other, pod, ())
    return {
        "host": other,
        "policies": [(str(name), str(name)) for name in Policy],
        "policy": fields.get("policy", str(policy)),
        "scopes": [(str(name), str(name)) for name in Scope],
        "scope": fields.get("scope", str(scope)),
        "amounts": [
            (
                f"{clean(amount.resource)} of {clean(amount.subject)}",
                f"{AMOUNT}{number}",
                fields.get(f"{AMOUNT}{number}", str(amount.unit.quantity(amount.was))),
            )
            for number, amount in enumerate(amounts)
        ],
        "problems": problems,
        "question": ", and ".join(change.describe(other.ledger) for change in changes) or "nothing changes",
        "decision": decision,
        "problem": problem,
        "fits_now": current_decision is not None and current_decision.admitted,
        "remedies": None,
    }


def read_changes(
    host: Host, pod: Pod, amounts: Sequence[RequestChange], fields: Mapping[str, str]
) -> tuple[tuple[Change, ...], tuple[str, ...]]:
    """Return the changes that the fields of the form ask for, and the problems of fields that cannot be read."""
    requested_changes: list[Change] = []
    problems: list[str] = []
    policy, scope = effective_policy(pod, host.rules)
    of_pod = host.settings.pod_policy_annotations
    names = (changes.OWN_POLICY, changes.OWN_SCOPE) if of_pod else (changes.POLICY, changes.SCOPE)
    for name, field, was, values in (
        ("policy", names[0], str(policy), set(Policy)),
        ("scope", names[1], str(scope), set(Scope)),
    ):
        value = fields.get(name, was)
        if value not in values:
            problems.append(f"There is no {name} {value}.")
        elif value != was:
            requested_changes.append(SettingChange(field, was, value))
    for number, amount in enumerate(amounts):
        text = fields.get(f"{AMOUNT}{number}", "").strip()
        if not text:
            continue
        try:
            quantity = Quantity.parse(text)
        except ParseError as error:
            problems.append(f"{amount.resource} of {amount.subject}: {error}")
            continue
        now = quantity.milli() if amount.unit is Unit.MILLI_CPUS else quantity.value()
        if now < 0:
            problems.append(f"{amount.resource} of {amount.subject}: must not be negative")
        elif now != amount.was:
            requested_changes.append(replace(amount, now=now))
    return tuple(requested_changes), tuple(problems)


def decide_changed(host: Host, pod: Pod, changes: Sequence[Change]) -> tuple[Decision | None, str]:
    """Return the decision with the changes, or why there is none."""
    try:
        changed_host, changed_pod = apply_changes(tuple(changes), host, pod)
        return changed_host.decide_without_plugins(changed_pod).without_ledgers(), ""
    except (PodError, AlignError) as error:
        return None, str(error)
