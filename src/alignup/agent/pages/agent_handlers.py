"""What the agent's pages show: loaded with the first request for a page, since most agents are never asked for one."""

import asyncio
import time
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from alignup.agent.pages import node_page, what_if
from alignup.agent.pages.decision_page import decision_body, remedies_section
from alignup.align.decision import Decision
from alignup.align.errors import ParseError
from alignup.align.explain.remedies import find_remedies
from alignup.align.host import Host
from alignup.align.workload import Pod
from alignup.documents.api import DecisionQuery, PodView
from alignup.documents.decisions import from_document
from alignup.picture.text_format import clean
from alignup.web.pages.html import Content, Html, element, group, path
from alignup.web.pages.page import Link, page_response
from alignup.web.responses import ProblemError

if TYPE_CHECKING:
    from alignup.agent.app import AgentBackend

EVENTS = "/v1/events"
PAGE_DECISIONS = 100


class AgentHandlers:
    """Handlers of the pages; *links* lead to the others."""

    def __init__(self, service: "AgentBackend", search_seconds: float, links: tuple[Link, ...]) -> None:
        self._service = service
        self._links = links
        self._search_seconds = search_seconds
        self._computing = asyncio.Semaphore(1)  #: one search at a time: each takes up to a second of a CPU

    async def node(self, _request: Request) -> Response:
        service = self._service
        views = service.pod_views()
        state = node_page.NodeState(
            host=service.host,
            pods=views[: node_page.MAX_PODS],
            pod_count=len(views),
            decisions=await service.decisions(DecisionQuery(limit=node_page.RECENT)),
            plugins=service.plugins(),
            problems=await service.problems(),
            notes=service.notes(),
        )
        body = await asyncio.to_thread(node_page.node_page, state)
        return page_response("Node", body, links=self._links, events=EVENTS)

    async def decisions(self, request: Request) -> Response:
        before = request.query_params.get("before", "")
        pod = request.query_params.get("pod", "") or None
        number = int(before) if before.isascii() and before.isdigit() and len(before) < 19 else None
        stored = await self._service.decisions(DecisionQuery(pod=pod, before=number, limit=PAGE_DECISIONS))
        body = await asyncio.to_thread(node_page.decision_table, stored)
        older = None
        if len(stored) == PAGE_DECISIONS:
            where = path("/decisions", before=stored[-1].id, pod=pod)
            older = element("p", element("a", "Older decisions", href=where, rel="next"))
        search = element(
            "form",
            element("label", "Pod: a name, namespace/name, or uid", for_="pod"),
            element("input", id="pod", name="pod", value=pod or "", type="search", maxlength=1024),
            element("button", "Find", type="submit"),
            method="get",
            action="/decisions",
            role="search",
        )
        return page_response("Decisions", search, body, older, links=self._links)

    async def decision(self, request: Request) -> Response:
        id_ = request.path_params["id"]
        stored = await self._service.decision(id_) if id_ < 1 << 63 else None
        if stored is None:
            raise ProblemError(404, f"The history has no decision {id_}.")
        try:
            decision = from_document(stored.document)
        except ParseError as error:
            raise ProblemError(410, f"This decision was stored by a version that cannot be read: {error}") from error
        about = element(
            "p", node_page.time_element(stored.time), " · ", element("a", "Permalink", href=path("/decisions", id_))
        )
        body = await self._with_what_if(request, decision, self._service.pod(decision.uid))
        return page_response(f"Decision {id_}: {clean(_full_name(decision))}", about, body, links=self._links)

    async def pod(self, request: Request) -> Response:
        uid = request.path_params["uid"]
        view = self._service.pod_view(uid)
        if view is None:
            raise ProblemError(404, f"No pod has the uid {uid}.")
        latest = await self._service.decisions(DecisionQuery(pod=uid, limit=1))
        links: list[Content] = [element("a", "All decisions on this pod", href=path("/decisions", pod=uid))]
        if latest:
            links = [element("a", f"Decision {latest[0].id}", href=path("/decisions", latest[0].id)), " · ", *links]
        about = element("p", _about(view), " · ", *links)
        body = await self._with_what_if(request, view.decision, view.pod, outcome=str(view.status))
        title = f"Pod {clean(_full_name(view.decision))}"
        return page_response(title, about, body, links=self._links)

    async def _with_what_if(self, request: Request, decision: Decision, pod: Pod | None, *, outcome: str = "") -> Html:
        """The decision, what would admit the pod, and the form; *pod* is ``None`` if the agent no longer knows it."""
        fields = dict(request.query_params)
        host = self._service.host
        action = request.url.path

        def build() -> Html:
            parts: list[Content] = [decision_body(decision.without_ledgers(), outcome=outcome)]
            if pod is None:
                note = "The agent no longer has the manifest of this pod, so it cannot decide on it again."
                return group(*parts, element("p", note, class_="empty"))
            now = what_if.with_room_of(host, pod)
            if decision.rejection is not None:
                parts.append(_remedies(now, pod, self._search_seconds))
            return group(*parts, what_if.what_if_section(now, pod, fields, action=action))

        async with self._computing:
            return await asyncio.to_thread(build)


def _remedies(host: Host, pod: Pod, seconds: float) -> Content:
    end = time.monotonic() + seconds
    found = find_remedies(host, pod, should_stop=lambda: time.monotonic() > end)
    return remedies_section(found, host.ledger)


def _about(view: PodView) -> Content:
    where = f"position {view.position} in the wait queue" if view.position else str(view.status)
    return [f"{where} since ", node_page.time_element(view.since), f" · from {clean(view.source)}"]


def _full_name(decision: Decision) -> str:
    return f"{decision.namespace}/{decision.name}"
