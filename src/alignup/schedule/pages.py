"""The web pages of the cluster service: the cluster at ``/``, its nodes, and answers about pods.

Everything but the search for remedies runs in the event loop of the live cluster, some nodes at a time. Cards are kept
until their node changes, so that a page about thousands of nodes costs little.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from heapq import nsmallest
from typing import Any, NamedTuple

from msgspec import Raw
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from alignup.align.errors import AlignError, ParseError
from alignup.align.workload import Pod
from alignup.align.workload.names import CPU, MEMORY, is_hugepages
from alignup.documents import codec
from alignup.documents.codec import timestamp
from alignup.explain import page, why
from alignup.kubernetes.api.client import ObjectKey
from alignup.kubernetes.api.known_pods import asked_pod, check_container_count
from alignup.kubernetes.api.objects import ApiNode, ApiPod, ApiPodSpec
from alignup.kubernetes.manifests import workloads as manifests
from alignup.picture.numa_bars import measure_bars
from alignup.picture.plots import Series, stacked_plot
from alignup.picture.sparkline import draw_sparkline
from alignup.picture.svg_elements import svg_inline
from alignup.placement.free_capacity import measure_free_capacity
from alignup.placement.gang import GangAnswer
from alignup.placement.pod_demands import has_demands
from alignup.placement.verdict import DEFECT
from alignup.schedule.best_nodes import PlacedPods, choose_best, describe_score, place_pods
from alignup.schedule.cluster_snapshot import ClusterView, incomplete_release, present_host
from alignup.schedule.live_cluster import NO_HOST_STATE, LiveCluster
from alignup.schedule.metrics import OUTCOMES, ago
from alignup.schedule.move_searches import MoveSearches
from alignup.schedule.node_cards import (
    MAX_COLUMNS,
    POLICIES,
    SORTS,
    Capacity,
    NodeCard,
    count_stranded_devices,
    failed_row,
    group_unknown,
    measure_capacity,
    read_query,
    select_cards,
)
from alignup.schedule.node_selection import restrictions, scheduling_spec
from alignup.schedule.pod_answers import (
    NodeAnswer,
    PodAnswers,
    ask_nodes_again,
    group_answers,
    iterate_answers,
    search_remedies,
)
from alignup.schedule.pod_states import (
    NEEDS_ATTENTION,
    FailedPodListener,
    PodState,
    PodStates,
    PodSummary,
    failed_summary,
    find_owner,
    group_pods,
    summarize_pod,
)
from alignup.schedule.shared_manifests import EXAMPLES, read_shared, share
from alignup.schedule.step_guard import ServiceStep
from alignup.schedule.trends import PodCountHistory, Trends
from alignup.schedule.workload_answers import WorkloadAnswer, accept_for, ask_about_gang, split_by_object
from alignup.web.authentication import count_authenticated
from alignup.web.event_streams import EventBus, EventStreams
from alignup.web.pages import HTML, PageHandler, Pages, describe_machine, file_response, path, read_form, static_routes
from alignup.web.paging import gather_items
from alignup.web.responses import ProblemError, json_response
from alignup.web.tiles import Tile, capacity_tiles, resource_name

EVENTS = "/v1/events"
LINKS = (("Cluster", "/"), ("Pods", "/pods"), ("Where would a pod go?", "/where"))
ROWS = 20  #: nodes in the table at first
PLACED, REJECTED, WAITING, STRANDED, RIGHT = "placed", "rejected", "waiting", "stranded", "right"  #: trends
MAX_LISTED = 200  #: pods, or groups of pods
MAX_ATTENTION = 5  #: groups of failed pods, and of waiting ones, on the page of the cluster
MAX_NAMESPACES = 1000  #: to choose from
MAX_STREAMS = 64
CHANGED = "changed"  #: the kind of event after which pages are renewed
CHANGE_SECONDS = 1.0  #: between events about changes
SEARCH_SECONDS = 2.0  #: for changes that would admit a pod; the default of alignup cluster why
MAX_WORKLOADS = 20  #: of one manifest
MAX_GANG_STEPS = 1000  #: of the search for nodes for all pods of a workload, in which schedulers wait
AT_ONCE = 100  #: nodes that are asked before the loop does something else
NAMES_AT_ONCE = 5000  #: the same for names of pods that are searched
MAX_LINK = 6000  #: characters of a manifest in a link

_MAX_MANIFEST = 256 << 10
_HEARTBEAT_SECONDS = 15.0
_NOTHING = Pod(name="", namespace="", uid="", containers=())


def page_routes(pages: "ClusterPages", *, stopping: asyncio.Event) -> list[BaseRoute]:
    """Build the routes of *pages*; who may use them is checked before."""
    streams = EventStreams(pages.events.subscribe, limit=MAX_STREAMS, heartbeat=_HEARTBEAT_SECONDS, stopping=stopping)

    async def events(request: Request) -> ASGIApp:
        try:
            count_authenticated(request)
            return streams.response(request)
        except ProblemError as problem:
            return problem.response()

    return [
        *static_routes(),
        Route("/", pages.guard(pages.cluster)),
        Route("/nodes.json", pages.guard(pages.node_rows)),
        Route("/nodes/{name}", pages.guard(pages.node)),
        Route("/pods", pages.guard(pages.pods)),
        Route("/pods/{namespace}/{name}", pages.guard(pages.pod)),
        Route("/pods/{namespace}/{name}/file", pages.guard(pages.pod_file)),
        Route("/where", pages.guard(pages.where), methods=["GET", "POST"]),
        Route(EVENTS, events),
    ]


class AnsweredPod(NamedTuple):
    name: str
    answers: PodAnswers
    notes: Sequence[str] = ()
    best: Sequence[NodeAnswer] = ()
    placed: PlacedPods | None = None  #: the best node with the pod, or with all pods of the gang that go there
    gang: WorkloadAnswer | None = None
    present: PodSummary | None = None  #: of a pod of the cluster: what it is now, whatever nodes would answer


class ClusterPages:
    """The handlers of the pages; *problems* returns why answers could be wrong."""

    def __init__(
        self,
        live: LiveCluster,
        problems: Callable[[], tuple[str, ...]],
        searches: MoveSearches,
        proposal: Callable[[str], str],
        *,
        subject: str = "",
    ) -> None:
        functions = {
            "page_path": lambda query, offset: path("/", **query.parameters(offset)),
            "describe_score": describe_score,
            "free_head": lambda name: f"#Free {resource_name(name)}",
        }
        self.events = EventBus(now=time.time)
        self._templates = Pages("alignup.schedule", links=LINKS, subject=subject, functions=functions)
        self._live = live
        self._problems = problems
        self._searches = searches
        self._proposal = proposal  #: returns what was proposed for a pod by its uid
        self._computing = asyncio.Semaphore(1)  #: one question about pods at a time
        self._cards: dict[str, NodeCard] = {}
        self._serial = 0  #: of the last change
        self._removed = 0  #: of the last change that removed a node
        self._resources: dict[str, int] = {CPU: 0, MEMORY: 1}  #: as the script numbers them
        self._labels: dict[str, int] = {}
        self._has_gpus = False
        self._trends = Trends()
        self._timeline = PodCountHistory(time.monotonic())
        self._pending = False  #: whether an event is about to be published
        self._warming: asyncio.Task[list[NodeCard]] | None = None
        live.on_change(self._changed)
        self._pods = PodStates(live.pods, self._announce)

    def guard(self, handler: PageHandler) -> PageHandler:
        async def handle(request: Request) -> Response:
            count_authenticated(request)
            return await handler(request)

        return self._templates.guard(handle, None)

    def refuse(self, request: Request, problem: ProblemError) -> Response:
        """Return the answer to a client that may not use the service: a page for browsers."""
        wants_page = HTML in request.headers.get("accept", "")
        return self._templates.problem_page(problem) if wants_page else problem.response()

    @property
    def missing(self) -> Callable[[Request, Exception], Awaitable[Response]]:
        return self._templates.missing(None, hint="see docs/scheduling.md for the endpoints.")

    async def cluster(self, request: Request) -> Response:
        query = read_query(request.query_params)
        cards = await gather_items(self._all_cards())
        capacity = await asyncio.to_thread(measure_capacity, cards)
        self._sample()
        predictions = self._live.metrics.predictions
        selected_cards = select_cards(cards, query)
        if self._count_stranded():
            self._searches.renew_report(self._announce)
        return self._templates.response(
            "cluster.html",
            problems=self._problems(),
            caveats=self._caveats(),
            attention=await self._attention(),
            activity=list(self._activity(cards)),
            figures=_capacity_tiles(capacity),
            capacity=capacity,
            moves=self._searches.report,
            unknown=group_unknown(cards, no_report=NO_HOST_STATE.reason),
            count=len(cards),
            query=query,
            columns=[name for name in capacity if not is_hugepages(name)][:MAX_COLUMNS],
            sorts=[(key, text) for key, (text, _) in SORTS.items()],
            policies=[("", "all"), *((policy, policy) for policy in (*POLICIES, "unknown"))],
            cards=selected_cards[query.offset : query.offset + ROWS],
            selected=len(selected_cards),
            rows=ROWS,
            outcomes=", ".join(f"{predictions.totals[name]} {text}" for name, text in OUTCOMES.items()),
            plot=predictions.plot(),
            timeline=self._plot_timeline(),
        )

    async def node_rows(self, request: Request) -> Response:
        """Return all nodes for the script, or the nodes that changed after the serial number ``since``."""
        text = request.query_params.get("since", "")
        since = int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0
        cards = await gather_items(self._all_cards())
        whole = since < self._removed
        rows = [Raw(self._encode(card)) for card in cards if whole or card.serial > since]
        document = {
            "serial": self._serial,
            "whole": whole,
            "resources": list(self._resources),
            "labels": list(self._labels),
            "nodes": rows,
        }
        return json_response(document)

    def _encode(self, card: NodeCard) -> bytes:
        if not card.encoded:
            try:
                row = card.row(self._resources, self._labels)
            except Exception as error:  # noqa: BLE001
                self._live.failed_decisions.note(card.name, error)
                row = failed_row(card.name)
            card.encoded = codec.encode(row)
        return card.encoded

    def _count_stranded(self) -> int:
        return count_stranded_devices(self._cards.values(), gpus=self._has_gpus)

    def _activity(self, cards: Sequence[NodeCard]) -> Iterator[Tile]:
        """Yield the tiles with a trend."""
        now, trends = time.monotonic(), self._trends
        totals = self._live.metrics.predictions.totals
        prediction_count, right = sum(totals.values()), totals["as_predicted"]
        present = sum(not card.unknown for card in cards)
        unit, absent = f"of {len(cards):,}", len(cards) - present
        note = f"{absent} without a report" if absent else ""
        yield Tile("Nodes that report", f"{present:,}", note, _tone(absent), unit=unit)
        yield Tile("Pods", f"{sum(card.pods for card in cards):,}", "that hold resources")
        rates = trends.rates(PLACED, now)
        value = f"{sum(rates[-6:]) / max(len(rates[-6:]), 1):.1f}"
        yield Tile("Placed pods", value, "in the last minute", trend=_line(rates, "Placed pods per second"), unit="/ s")
        rejected, failed, waiting = map(self._pods.count, NEEDS_ATTENTION)
        line = _line(trends.series(REJECTED, now), "Pods rejected by kubelets")
        note = f"{failed:,} failed for other reasons" if failed else "and no other pod failed"
        yield Tile("Rejected by kubelets", f"{rejected:,}", note, _tone(rejected), line, "pods")
        line = _line(trends.series(WAITING, now), "Waiting pods")
        yield Tile("Waiting pods", f"{waiting:,}", "not bound to a node", "wait" if waiting else "", line)
        stranded_count, name = self._count_stranded(), "Stranded GPUs" if self._has_gpus else "Stranded devices"
        line = _line(trends.series(STRANDED, now), name)
        yield Tile(name, f"{stranded_count:,}", "free, without CPUs or memory", "wait" if stranded_count else "", line)
        share = f"{100 * right / prediction_count:.1f} %" if prediction_count else "none"
        line = _line(trends.series(RIGHT, now), "Share of right predictions")
        note = f"{right} of {prediction_count} in the last day" if prediction_count else "no pod was predicted yet"
        yield Tile("Predictions right", share, note, _tone(prediction_count - right) if prediction_count else "", line)

    def _sample(self) -> None:
        metrics, totals = self._live.metrics, self._live.metrics.predictions.totals
        prediction_count = sum(totals.values())
        numbers = {
            PLACED: metrics.placed_pods,
            REJECTED: self._pods.count(PodState.REJECTED),
            WAITING: self._pods.count(PodState.WAITING),
            STRANDED: self._count_stranded(),
            RIGHT: totals["as_predicted"] / prediction_count if prediction_count else 1.0,
        }
        now = time.monotonic()
        self._trends.add(now, numbers)
        self._timeline.add(now, {name: numbers[name] for name in (REJECTED, WAITING)})

    def _plot_timeline(self) -> str:
        """Return rejected and waiting pods since this replica started, as SVG; empty: there were none."""
        now = time.monotonic()
        series = [
            Series("rejected by kubelets", self._timeline.series(REJECTED, now), 3),
            Series("waiting", self._timeline.series(WAITING, now), 1),
        ]
        if not any(map(any, (layer.values for layer in series))):
            return ""
        plot = stacked_plot("Pods, at most at one time", self._timeline.starts(now), series, x=lambda at: ago(-at))
        return svg_inline(plot, "Rejected and waiting pods since the start")

    async def node(self, request: Request) -> Response:
        name = request.path_params["name"]
        card, host = self._card(name), present_host(self._live.cluster, name)
        if card is None:
            raise ProblemError(404, f"The cluster has no node {name}.")
        unknown = group_unknown([card], no_report=NO_HOST_STATE.reason)

        def build() -> Response:
            node = None if host is None else describe_machine(host)
            release = None if host is None else host.settings.release
            return self._templates.response("node.html", summary=card, node=node, unknown=unknown, release=release)

        return await asyncio.to_thread(build)

    async def pods(self, request: Request) -> Response:
        """List the pods: failed pods first, and the pods of one owner together unless a text is searched for."""
        text = request.query_params.get("q", "")[:253]
        namespace = request.query_params.get("namespace", "")[:63]
        namespaces: set[str] = set()
        summaries: list[PodSummary] = []
        match_count = 0
        for state in PodState:
            names = [name for name in await self._named(state, text, namespaces) if namespace in ("", name[0])]
            match_count += len(names)
            if state in NEEDS_ATTENTION:
                pods = [pod for name in names if (pod := self._live.pods.objects.get(name)) is not None]
                summaries += await asyncio.to_thread(group_pods, pods, self._pod_failed(), apart=bool(text))
            else:
                first = nsmallest(max(MAX_LISTED - len(summaries), 0), names)
                pods = [pod for name in first if (pod := self._live.pods.objects.get(name)) is not None]
                summaries += map(self._summarize, pods)
        summaries = summaries[:MAX_LISTED]
        return await asyncio.to_thread(
            self._templates.response,
            "pods.html",
            text=text,
            namespace=namespace,
            namespaces=[("", "all"), *((name, name) for name in sorted(namespaces)[:MAX_NAMESPACES])],
            pods=summaries,
            counts=[(str(state), self._pods.count(state)) for state in PodState],
            more=match_count - sum(summary.count for summary in summaries),
        )

    async def _named(self, state: PodState, text: str, namespaces: set[str]) -> list[ObjectKey]:
        """Return the pods in *state* whose names, or names of owners, contain *text*; some thousands at a time.

        The namespaces of all pods in *state* are added to *namespaces*.
        """
        names, pod_names = self._pods.names(state), []
        for start in range(0, len(names), NAMES_AT_ONCE):
            for name in names[start : start + NAMES_AT_ONCE]:
                namespaces.add(name[0])
                is_named = True  # one that fails is shown
                with self._live.guard.guarded(ServiceStep.ANSWER, f"list {name[0]}/{name[1]}"):
                    is_named = self._is_named(name, state, text)
                pod_names += [name] if is_named else []
            await asyncio.sleep(0)
        return pod_names

    def _is_named(self, name: ObjectKey, state: PodState, text: str) -> bool:
        if text in f"{name[0]}/{name[1]}":
            return True
        # The owners of other pods are not stored.
        pod = self._live.pods.objects.get(name) if state in NEEDS_ATTENTION else None
        owner = find_owner(pod) if pod is not None else None
        return owner is not None and text in f"{name[0]}/{owner.name}"

    async def _attention(self) -> list[tuple[list[PodSummary], int]]:
        """Return groups of failed pods and of waiting ones, each with the number of pods that are in no group."""
        parts = []
        for states in (NEEDS_ATTENTION[:2], NEEDS_ATTENTION[2:]):
            names = [name for state in states for name in self._pods.names(state)]
            pods = [pod for name in names if (pod := self._live.pods.objects.get(name)) is not None]
            summaries = (await asyncio.to_thread(group_pods, pods, self._pod_failed()))[:MAX_ATTENTION]
            parts.append((summaries, len(pods) - sum(summary.count for summary in summaries)))
        return parts

    def _summarize(self, pod: ApiPod) -> PodSummary:
        try:
            return summarize_pod(pod)
        except Exception as error:  # noqa: BLE001 - whatever one pod raises, the others are shown
            return self._pod_failed()(pod, error)

    def _pod_failed(self) -> FailedPodListener:
        """Return how a pod whose summary fails, perhaps in a thread, is counted and shown."""
        loop, guard = asyncio.get_running_loop(), self._live.guard

        def failed(pod: ApiPod, error: Exception) -> PodSummary:
            report = partial(guard.report, step=ServiceStep.ANSWER, name=pod.metadata.full_name, error=error, retry=0.0)
            loop.call_soon_threadsafe(report)
            return failed_summary(pod, error)

        return failed

    async def pod(self, request: Request) -> Response:
        api_pod = self._requested_pod(request)
        pod = asked_pod(api_pod)
        async with self._computing:
            notes = tuple(filter(None, [self._proposal(api_pod.metadata.uid)]))
            answered_pod = await self._ask(api_pod.metadata.full_name, pod, api_pod.spec, notes, api_pod)
        namespace, name = request.path_params["namespace"], request.path_params["name"]
        document = path("/v1/explain", namespace, name)
        # What claims and demands add to the kubelet's decision is not in the file.
        file = "" if pod.uses_claims or has_demands(pod) else path("/pods", namespace, name, "file")
        return self._templates.response("pod.html", answered=answered_pod, document=document, file=file)

    async def pod_file(self, request: Request) -> Response:
        """Return what the kubelet of a node would decide on a pod now, as one file for a ticket."""
        api_pod, node = self._requested_pod(request), request.query_params.get("node", "")
        pod, host = asked_pod(api_pod), present_host(self._live.cluster, node)
        if host is None:
            raise ProblemError(404, f"What node {node!r} holds is unknown here.")
        check_container_count(len(pod.containers) + len(pod.init))
        other = host.without_pods([pod.uid])  # what it holds is free for it

        def build() -> Response:
            answer = why(other, pod, seconds=SEARCH_SECONDS)
            title = f"{answer.verdict} (node {node}, {timestamp(time.time())})"
            return file_response(page([answer], title=title), f"{pod.namespace}-{pod.name}-{node}.html")

        async with self._computing:
            return await asyncio.to_thread(build)

    def _requested_pod(self, request: Request) -> ApiPod:
        namespace, name = request.path_params["namespace"], request.path_params["name"]
        pod = self._live.find_pod(namespace, name)
        if pod is None:
            raise ProblemError(404, f"There is no pod {namespace}/{name}.")
        return pod

    async def where(self, request: Request) -> Response:
        if request.method == "POST":
            manifest = (await read_form(request, limit=_MAX_MANIFEST)).get("manifest", "")
        else:
            manifest = read_shared(request.query_params.get("m", ""))
        link = share(manifest) if manifest.strip() else ""
        values: dict[str, Any] = {
            "manifest": manifest or EXAMPLES["a pod"],
            "examples": [(name, path("/where", m=share(text))) for name, text in EXAMPLES.items()],
            "link": path("/where", m=link) if 0 < len(link) <= MAX_LINK else "",
            "answers": (),
            "problem": "",
        }
        if manifest.strip():
            try:
                async with self._computing:
                    values["answers"] = await self._ask_manifest(manifest.encode())
            except AlignError as error:
                values["problem"] = str(error)
        return self._templates.response("where.html", **values)

    def _all_cards(self) -> Iterator[NodeCard]:
        for _, name in tuple(self._live.nodes.objects):
            if (card := self._card(name)) is not None:
                yield card

    def _card(self, node: str) -> NodeCard | None:
        api_node = self._live.nodes.get(node)
        if api_node is None:
            return None
        card = self._cards.get(node)
        if card is None or card.labels is not api_node.metadata.labels:
            try:
                card = self._measure(api_node)
            except Exception as error:  # noqa: BLE001 - whatever one node raises, the others are shown
                self._live.failed_decisions.note(node, error)
                self._serial += 1
                card = NodeCard(name=node, labels=api_node.metadata.labels, unknown=DEFECT, serial=self._serial)
            self._cards[node] = card
        return card

    async def _ask_manifest(self, manifest: bytes) -> list[AnsweredPod]:
        """Answer for each workload of a manifest; raise an ``AlignError`` for one that cannot be read."""
        loaded = await asyncio.to_thread(manifests.read_workloads, manifest, name="the manifest")
        if not loaded.workloads:
            raise ParseError("\n".join(loaded.warnings) or "the manifest has no workloads")
        answers: list[AnsweredPod] = []
        with_class_resources = self._live.claims.objects.with_class_resources
        accepted_workloads = accept_for(self._live.cluster, loaded.workloads[:MAX_WORKLOADS])
        workloads = [replace(workload, pod=with_class_resources(workload.pod)) for workload in accepted_workloads]
        for templates in split_by_object(workloads):
            new_answers = []
            for workload in templates:
                name = f"{workload.kind} {workload.title}"
                new_answers.append(await self._ask(name, workload.pod, scheduling_spec(workload), loaded.warnings))
            considered_nodes = [answered_pod.answers.considered for answered_pod in new_answers]
            gang = ask_about_gang(self._live.cluster, templates, considered_nodes, max_steps=MAX_GANG_STEPS)
            if gang is not None:
                new_answers[0] = new_answers[0]._replace(
                    gang=gang, placed=await self._place_gang(gang.gang) or new_answers[0].placed
                )
            answers += new_answers
        return answers

    async def _ask(
        self, name: str, pod: Pod, spec: ApiPodSpec, notes: Sequence[str], api_pod: ApiPod | None = None
    ) -> AnsweredPod:
        """Ask all nodes about *pod*, and search for changes that would admit it, as ``alignup cluster why`` does."""
        check_container_count(len(pod.containers) + len(pod.init))
        answers = await self.ask_nodes(pod, spec, api_pod)
        with self._live.guard.guarded(ServiceStep.ANSWER, f"remedies for {name}"):
            answers = await asyncio.to_thread(search_remedies, answers, seconds=SEARCH_SECONDS)
        best = choose_best(answers.groups)
        placed_pods = await self._place(best[0].node, [pod]) if best else None
        present = None if api_pod is None else self._summarize(api_pod)
        return AnsweredPod(name, answers, (*notes, *self._caveats()), best, placed_pods, present=present)

    def _caveats(self) -> tuple[str, ...]:
        release = incomplete_release(self._live.cluster)
        return (f"Kubernetes {release.caveat}",) if release else ()

    async def _place(self, node: str, pods: Sequence[Pod]) -> PlacedPods | None:
        try:
            host = present_host(self._live.cluster, node)
            return None if host is None else await asyncio.to_thread(place_pods, node, host, pods)
        except Exception as error:  # noqa: BLE001 - the answers of all nodes are shown
            self._live.failed_decisions.note(node, error)
            return None

    async def _place_gang(self, gang: GangAnswer) -> PlacedPods | None:
        """Return the node that gets most of the pods, with these pods."""
        nodes = Counter(binding.host for binding in gang.bindings)
        if not nodes:
            return None
        node = min(nodes, key=lambda name: (-nodes[name], name))
        return await self._place(node, [binding.pod for binding in gang.bindings if binding.host == node])

    async def ask_nodes(self, pod: Pod, spec: ApiPodSpec, api_pod: ApiPod | None = None) -> PodAnswers:
        """Ask some nodes at a time: thousands of them can take a second, in which schedulers would wait."""
        cluster, pod = self._live.cluster, self._live.claims.objects.with_class_resources(pod)
        await self._live.large_pods.decide(pod)
        for number, name in enumerate(cluster.hosts, start=1):
            cluster.verdict(pod, name)  # is kept
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
        view, answers = self._view(), []
        answer_stream = ask_nodes_again(view, api_pod, pod) if api_pod else iterate_answers(view, pod, spec)
        for number, answer in enumerate(answer_stream, start=1):
            answers.append(answer)
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
        return group_answers(view, pod, answers)

    def _view(self) -> ClusterView:
        live, reports, unknown = self._live, {}, {}
        nodes = {name: node for (_, name), node in live.nodes.objects.items()}
        for name in nodes:
            record = live.cluster.record(name)
            if record is not None:
                reports[name] = record.report
            else:
                unknown[name] = live.verdict(_NOTHING, name).reason
        return ClusterView(
            nodes=nodes,
            cluster=live.cluster,
            reports=reports,
            unknown=unknown,
            claims=live.claims,
            failed=live.failed_decisions.note,
        )

    def _measure(self, node: ApiNode) -> NodeCard:
        name = node.metadata.name
        self._serial += 1
        card = NodeCard(name=name, labels=node.metadata.labels, restrictions=restrictions(node), serial=self._serial)
        host, record = present_host(self._live.cluster, name), self._live.cluster.record(name)
        if host is None:
            why = record.states().problem if record else self._live.verdict(_NOTHING, name).reason
            return replace(card, unknown=why or "unknown state")
        topology = host.settings.topology
        self._has_gpus = self._has_gpus or any("gpu" in name for name in host.ledger.devices.inventories)
        return replace(
            card,
            policy=str(topology.policy),
            scope=str(topology.scope),
            pods=len(host.ledger.pods),
            numa=measure_bars(host),
            largest=measure_free_capacity(host).largest,
        )

    def _changed(self, nodes: Collection[str]) -> None:
        for name in nodes:
            self._cards.pop(name, None)
            if self._live.nodes.get(name) is None:
                self._serial += 1
                self._removed = self._serial
        self._announce()

    def _announce(self) -> None:
        """Publish an event soon, after which pages are renewed."""
        if not self._pending:
            self._pending = True
            asyncio.get_running_loop().call_later(CHANGE_SECONDS, self._publish)

    def _publish(self) -> None:
        self._pending = False
        if self._warming is None:  # the first reader of the page does not wait for all nodes
            self._warming = asyncio.create_task(gather_items(self._all_cards()))
        self._sample()
        self.events.publish(CHANGED, {})


def _capacity_tiles(capacity: Mapping[str, Capacity]) -> list[Tile]:
    largest = {name: part.largest for name, part in capacity.items() if part.largest is not None}
    return capacity_tiles({name: part.bar for name, part in capacity.items()}, largest)


def _line(values: Sequence[float], name: str) -> str:
    return draw_sparkline(values, name=f"{name} in the last minutes")


def _tone(wrong: int) -> str:
    return "bad" if wrong else "good"
