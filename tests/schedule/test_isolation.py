"""Whatever one pod, gang, workload, node or claim raises, the service goes on with all others.

Every method and function raises that is called about a bad one and no good one. Pages show the others, too.

``tests/placement/scheduling/test_isolation.py`` does the same inside the scheduling state.
"""

import asyncio
import inspect
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import fields, is_dataclass, replace
from functools import wraps
from types import ModuleType, SimpleNamespace
from typing import Any

import httpx2
import msgspec
import pytest

from alignup.align.workload import Pod
from alignup.kubernetes.api import Access, ApiClient, Timing
from alignup.placement.host_record import HostRecord
from alignup.placement.host_report import HostReport
from alignup.placement.scheduling.options import GateOptions
from alignup.placement.verdict import DEFECT
from alignup.schedule import (
    best_nodes,
    claim_alignment,
    cluster_claims,
    cluster_facts,
    cluster_snapshot,
    known_claims,
    kueue_checks,
    large_pods,
    live_cluster,
    node_cards,
    node_selection,
    object_events,
    pages,
    pod_answers,
    pod_groups,
    pod_states,
    pod_trimmer,
    rejections,
    schedulable_nodes,
    selector_results,
    steering_writer,
)
from alignup.schedule.extender import (
    bind,
    filter,  # noqa: A004 - a verb of the protocol
    messages,
    preempt,
    prioritize,
    wake_up,
)
from alignup.schedule.gate import controller, release_patch
from alignup.schedule.gate.service import GateServiceOptions, add_gate
from alignup.schedule.service import ScheduleService, schedule_app
from alignup.schedule.step_guard import ServiceStep
from alignup.testing.api_server import ApiServer
from alignup.web.asgi_server import serve_app
from alignup.web.sockets import tcp_socket
from tests.align.hosts import pod
from tests.deadlines import SECONDS, until
from tests.effort import SEED, SOAK, did
from tests.kubernetes.api.tasks import running
from tests.observe.api_objects import api_pod
from tests.placement.scheduling.model_shell import InjectedError
from tests.schedule.claim_objects import claim, claiming, device_class, resource_slice, template
from tests.schedule.gang_objects import SERVED_GROUPS, member
from tests.schedule.gate.simulated import GatedCluster
from tests.schedule.test_kueue_checks import Kueue

pytestmark = pytest.mark.anyio

BAD, GOOD = "bad", "good"  #: namespaces, and what names begin with
NODES = frozenset((*"abcd", "bad-node"))
SAMPLES = 4  #: of the methods, in ``make test``
MODULES = (
    *(cluster_claims, cluster_facts, kueue_checks, large_pods, live_cluster, pages, object_events, pod_groups),
    *(pod_trimmer, rejections, schedulable_nodes, steering_writer, bind, filter, wake_up, controller),
    *(node_selection, pod_answers, selector_results, pod_states, node_cards, known_claims, claim_alignment),
    *(best_nodes, cluster_snapshot, preempt, prioritize, messages, release_patch),
)
#: What is not about one object: the guards themselves, and what they need to go on.
GUARDS = frozenset(
    (
        *("schedule", "_touch", "_carry_out", "instruction_failed", "_start", "_guarded", "guard", "run", "note"),
        *(
            "insufficient",
            "_isolated",
            "excludes",
            "_card",
            "_encode",
            "_place",
            "_summarize",
            "object_label",
            "failed_row",
        ),
        *("failed_summary", "group_pods", "_named", "claim_fit", "explain_claims", "verdict_without_report"),
        *("ask_nodes", "_ask"),  # which make the whole page of a pod
    )
)


def decision_points() -> Iterator[tuple[type | ModuleType, str]]:
    for module in MODULES:
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if function.__module__ == module.__name__ and name not in GUARDS:
                yield module, name
        for _, part in inspect.getmembers(module, inspect.isclass):
            if part.__module__ == module.__name__ and not is_dataclass(part) and not issubclass(part, tuple | str):
                names = [name for name, value in vars(part).items() if inspect.isfunction(value)]
                yield from ((part, name) for name in names if not name.startswith("__") and name not in GUARDS)


POINTS = sorted(decision_points(), key=lambda point: (point[0].__name__, point[1]))


def names(value: Any, depth: int = 3) -> Iterator[str]:  # noqa: C901 - a case for each type
    """The namespaces and names of the objects that something is about."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Pod):
        yield from (value.namespace, *(named.claim for named in value.claims))
    elif isinstance(value, HostReport):
        yield value.host
    elif isinstance(value, HostRecord):
        yield value.name
    elif isinstance(value, type) or depth == 0:
        return
    elif isinstance(value, tuple | list | set | frozenset):
        for each in value:
            yield from names(each, depth - 1)
    elif hasattr(value, "metadata"):
        yield from (value.metadata.namespace, value.metadata.name)
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield from names(getattr(value, name), depth - 1)
    elif is_dataclass(value):
        for each in fields(value):
            yield from names(getattr(value, each.name, None), depth - 1)


def is_about_a_pod(texts: AbstractSet[str]) -> bool:
    """Whether something is about a bad pod, gang or workload, and about no good one."""
    return any(name.startswith(BAD) for name in texts - OTHERS) and not any(name.startswith(GOOD) for name in texts)


def is_about_a_node(texts: AbstractSet[str]) -> bool:
    """Whether something is about the bad node, and about no other, whatever the pod."""
    return texts & NODES == {"bad-node"}


def is_about_a_claim(texts: AbstractSet[str]) -> bool:
    """Whether something is about a bad claim, class or slice, and about no good one."""
    return bool(texts & CLAIMS) and not texts & {"good-claim", "gpu"}


CLAIMS = frozenset(("bad-claim", "bad-class", "bad-slice", "bad-template"))
OTHERS = CLAIMS | {"bad-node"}
KINDS: tuple[Callable[[AbstractSet[str]], bool], ...] = (is_about_a_pod, is_about_a_node, is_about_a_claim)


in_scheduler: ContextVar[bool] = ContextVar("in_scheduler", default=False)  #: it uses parts of the service


class Injection(SimpleNamespace):
    """A method or function that raises whenever it is called about something bad, until it is over.

    *counts*: it never raises, and only its calls are counted.
    """

    def __init__(
        self,
        patches: pytest.MonkeyPatch,
        part: type | ModuleType,
        name: str,
        is_bad: Callable[[AbstractSet[str]], bool],
        *,
        counts: bool = False,
    ) -> None:
        self.calls, self.over = 0, counts
        method = getattr(part, name)

        def check(arguments: Any, named: Any) -> None:
            if in_scheduler.get():
                return
            if is_bad({*names(arguments, 4), *names(tuple(named.values()), 4)}):
                self.calls += 1
                if not self.over:
                    raise InjectedError(f"{part.__name__}.{name}")

        #: of the arguments that count: not the object of a method, unless it is a value
        first = inspect.isclass(part) and not is_dataclass(part)

        @wraps(method)
        def raising(*arguments: Any, **named: Any) -> Any:
            check(arguments[first:], named)
            return method(*arguments, **named)

        @wraps(method)
        def raising_iterator(*arguments: Any, **named: Any) -> Any:
            check(arguments[first:], named)
            yield from method(*arguments, **named)

        @wraps(method)
        async def raising_later(*arguments: Any, **named: Any) -> Any:
            check(arguments[first:], named)
            return await method(*arguments, **named)

        replacement = raising_later if inspect.iscoroutinefunction(method) else raising
        replacement = raising_iterator if inspect.isgeneratorfunction(method) else replacement
        importers = [module for module in list(sys.modules.values()) if vars(module).get(name) is method]
        for owner in (part,) if inspect.isclass(part) else importers:
            patches.setattr(owner, name, replacement)


class Cluster(GatedCluster):
    """Good and bad pods of each kind, a scheduler that asks about some of them, Kueue, nodes, and claims."""

    def __init__(self, server: Any, client: Any) -> None:
        super().__init__(server, client)
        for resource in SERVED_GROUPS:
            server.serve(resource)
        self.kueue = Kueue(server)
        for name in NODES:
            self.add(name)
        for document in (device_class(), device_class("bad-class"), template("bad-template")):
            server.put(document)
        for name in "abc":
            server.put(resource_slice(name))
        server.put(resource_slice("d", name="bad-slice"))

    async def schedule(self) -> None:
        in_scheduler.set(True)
        await super().schedule()

    def fill(self) -> None:
        for namespace in (BAD, GOOD):
            self.gate(self.pod(namespace, "gated"))
            for number in range(2):
                name = f"{namespace}-train-{number}"
                self.gate(replace(member(name, 1, size=2, namespace=namespace), uid=name))
            self.paused.add(f"{namespace}-asked")
            self.server.put(api_pod(self.pod(namespace, "asked"), phase="Pending"))
            self.paused.add(f"paused-{namespace}")
            paused = replace(self.pod(namespace, "paused"), name=f"paused-{namespace}", uid=f"paused-{namespace}")
            self.server.put(api_pod(paused, phase="Pending"))  # which waits until the end
            self.kueue.reserve(f"{namespace}-workload", 1, cpu="1", namespace=namespace)
            self.server.put(claim(f"{namespace}-claim"))
            user = claiming(self.pod("default", "user"), claim=f"{namespace}-claim")
            self.gate(replace(user, name=f"{namespace}-user", uid=f"{namespace}-user"))

    def pod(self, namespace: str, kind: str) -> Pod:
        name = f"{namespace}-{kind}"
        return replace(pod(name, cpu="1", memory="1Gi"), namespace=namespace, uid=name)

    def unbound(self, namespace: str) -> list[str]:
        return [name for name, host in self.bound().items() if name.startswith(namespace) and not host]


async def ask(http: Any, asked: Pod) -> str:
    """Ask for nodes, and bind the pod to the first; return why it is not bound."""
    question = {"Pod": api_pod(asked, phase="Pending"), "Nodes": None, "NodeNames": list("abcd")}
    for verb in ("prioritize", "preempt"):
        victims: dict[str, Any] = {"NodeNameToMetaVictims": {"a": {"Pods": []}}}
        answer = await http.post(f"/v1/extender/{verb}", json=question | victims)
        assert answer.status_code == 200 or asked.namespace == BAD, verb
    answer = await http.post("/v1/extender/filter", json=question)
    if answer.status_code != 200 or not answer.json()["NodeNames"]:
        return "no node"
    message = {"PodName": asked.name, "PodNamespace": asked.namespace, "PodUID": asked.uid}
    answer = await http.post("/v1/extender/bind", json=message | {"Node": answer.json()["NodeNames"][0]})
    return str(answer.json()["Error"]) if answer.status_code == 200 else "no answer"


async def run(service: ScheduleService, cluster: Cluster, http: Any, injection: Injection) -> None:
    live = service.live
    cluster.fill()
    await until(lambda: len(live.pods.objects) == len(cluster.bound()))
    problems: dict[str, str] = {}
    async with asyncio.timeout(SECONDS):  # nodes wait until their kubelets have admitted other pods
        while problems.get(GOOD) != "":
            for namespace in (BAD, GOOD):
                if problems.get(namespace) != "":
                    problems[namespace] = await ask(http, cluster.pod(namespace, "asked"))
    await until(lambda: not cluster.unbound(GOOD))
    await until(lambda: cluster.kueue.state("good-workload") == "Ready")
    await check_pages(http)
    assert service.leading
    injection.over = True
    assert not failed_tasks(service), "others had to wait until a task of the service was started again"
    for name in cluster.bound():
        cluster.finish(name)
    await until(lambda: not live.assumed and not live.pods.objects)
    assert live.scheduling.gate
    await until(lambda: live.scheduling.gate and not live.scheduling.gate.releases)


def failed_tasks(service: ScheduleService) -> float:
    """How many tasks of the service have ended with an error; all that they do waits until they are started again."""
    return sum(
        sample.value
        for metric in service.metrics.failed_steps.collect()
        for sample in metric.samples
        if sample.name.endswith("_total") and sample.labels["step"] == ServiceStep.TASK
    )


async def check_pages(http: Any, pods: Sequence[str] = ("good-gated", "bad-gated")) -> None:
    """All pages are there, and those about many nodes or pods show good and bad ones."""
    shown = {
        "/": ("/nodes/a", "/nodes/bad-node"),
        "/nodes.json": ('"a"', '"bad-node"'),
        "/pods": pods,
        "/v1/explain/good/good-gated": ('"a"', '"bad-node"'),
        "/pods/good/good-gated": ("would be admitted", "bad-node"),
    }
    for path in (*shown, "/nodes/a", "/metrics", "/readyz", "/pods?q=gated"):
        answer = await http.get(path)
        assert answer.status_code == 200, path
        for text in shown.get(path, ()):
            assert text in answer.text, (path, text)


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[ScheduleService, Cluster, Any]]:
    """A service with all of its parts, which leads, its cluster, and a client of its HTTP endpoints."""
    timing = Timing(retry=0.0, sleep=lambda _seconds: asyncio.sleep(0))
    async with (
        ApiServer() as server,
        ApiClient(Access(server=server.url, source="the test"), timing=timing) as client,
        running() as follow,
    ):
        cluster = Cluster(server, client)
        service = ScheduleService(client, kueue=True)
        with add_gate(service, GateServiceOptions(controller=GateOptions())), tcp_socket(0) as listener:
            follow(service.run())
            follow(cluster.schedule())
            await until(lambda: service.leading)
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            async with (
                serve_app(schedule_app(service), listener, stopping=asyncio.Event()),
                httpx2.AsyncClient(
                    base_url=url, trust_env=False, verify=False, timeout=SECONDS
                ) as http,  # reads no certificates
            ):
                yield service, cluster, http


async def called_points(is_bad: Callable[[AbstractSet[str]], bool]) -> list[tuple[type | ModuleType, str]]:
    """Return the methods and functions that are called about something bad when nothing fails."""
    with pytest.MonkeyPatch.context() as patches:
        injections = {point: Injection(patches, *point, is_bad, counts=True) for point in POINTS}
        async with serving() as parts:
            await run(*parts, injections[POINTS[0]])
    return [point for point, injection in injections.items() if injection.calls]


async def raise_at(
    part: type | ModuleType, name: str, log: list[Any], is_bad: Callable[[AbstractSet[str]], bool] = is_about_a_pod
) -> None:
    """Run the service while a method or function raises about something bad; the log must say so."""
    with pytest.MonkeyPatch.context() as patches:
        injection = Injection(patches, part, name, is_bad)
        async with serving() as parts:
            await run(*parts, injection)
        assert injection.calls
        assert any("exc_info" in entry for entry in log)
        log.clear()


@pytest.mark.parametrize(
    ("part", "name"), [(kueue_checks, "_waiting_order"), (wake_up.WakeUpWriter, "_wake")], ids=["order", "wake"]
)
async def test_a_workload_or_pod_that_cannot_be_ordered_or_woken_stops_no_other(log, part, name):
    await raise_at(part, name, log)


@pytest.mark.soak
@pytest.mark.parametrize("is_bad", KINDS)
async def test_what_one_object_raises_stops_no_other(log, is_bad):
    """At some of the methods and functions in ``make test``, at all of them in ``make soak``."""
    points = await called_points(is_bad)
    assert len(points) > SAMPLES
    for part, name in points if SOAK else points[SEED :: len(points) // SAMPLES]:
        await raise_at(part, name, log, is_bad)
        did("methods of the service that raise")


@pytest.mark.parametrize(
    ("part", "name", "path"),
    [
        (pages.ClusterPages, "_measure", "/"),
        (cluster_snapshot, "present_host", "/nodes.json"),
        (node_cards.NodeCard, "row", "/nodes.json"),
        (pod_answers, "missing_devices", "/pods/good/good-gated"),
        (pod_answers, "answer_row", "/v1/explain/good/good-gated"),
        (node_selection, "exclusions", "/pods/good/good-gated"),
    ],
)
async def test_the_row_of_a_node_that_raises_says_so(log, part, name, path):
    with pytest.MonkeyPatch.context() as patches:
        Injection(patches, part, name, is_about_a_node)
        async with serving() as (_, cluster, http):
            cluster.gate(cluster.pod(GOOD, "gated"))
            await until(lambda: cluster.bound() and not cluster.unbound(GOOD))
            text = (await http.get(path)).text
            assert DEFECT in text
            await check_pages(http, pods=("good-gated",))


@pytest.mark.parametrize("name", ["summarize_pod", "pod_state", "_age"])
async def test_the_row_of_a_pod_that_raises_says_so(log, name):
    with pytest.MonkeyPatch.context() as patches:
        Injection(patches, pod_states, name, is_about_a_pod)
        async with serving() as (service, cluster, http):
            for namespace in (GOOD, BAD):
                cluster.paused.add(f"{namespace}-gated")
                cluster.gate(cluster.pod(namespace, "gated"))
            await until(lambda: len(service.live.pods.objects) == 2)
            assert (
                "The pod cannot be shown, and the log of alignup schedule says why: InjectedError"
                in (await http.get("/pods")).text
            )
            await check_pages(http)


async def test_a_node_that_raised_is_used_again_after_a_while(log):
    """It is the only one."""
    with pytest.MonkeyPatch.context() as patches:
        injection = Injection(patches, node_selection, "exclusions", lambda texts: "bad-node" in texts)
        async with serving() as (service, cluster, _):
            for name in "abcd":
                cluster.server.remove("nodes", name, namespace="")
            await until(lambda: len(service.live.nodes.objects) == 1)
            cluster.gate(cluster.pod(GOOD, "gated"))
            await until(lambda: injection.calls)
            injection.over = True
            await until(lambda: cluster.bound() == {"good-gated": "bad-node"})
