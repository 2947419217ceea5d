"""Whatever one pod, gang or workload raises, the service goes on with all others: every method and function raises.

``tests/placement/scheduling/test_isolation.py`` does the same inside the scheduling state.
"""

import asyncio
import inspect
import sys
from collections.abc import AsyncIterator, Iterator
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
from alignup.kubernetes.api.objects import ApiPod
from alignup.placement.host_report import HostReport
from alignup.placement.scheduling.options import GateOptions
from alignup.schedule import (
    cluster_claims,
    cluster_facts,
    kueue_checks,
    large_pods,
    live_cluster,
    node_selection,
    object_events,
    pages,
    pod_answers,
    pod_groups,
    pod_trimmer,
    rejections,
    schedulable_nodes,
    selector_results,
    steering_writer,
)
from alignup.schedule.extender import bind, filter, wake_up  # noqa: A004 - a verb of the protocol
from alignup.schedule.gate import controller
from alignup.schedule.gate.service import GateServiceOptions, add_gate
from alignup.schedule.service import ScheduleService, schedule_app
from alignup.testing.api_server import ApiServer
from alignup.web.asgi_server import serve_app
from alignup.web.sockets import tcp_socket
from tests.align.hosts import pod
from tests.deadlines import SECONDS, until
from tests.effort import SEED, SOAK, did
from tests.kubernetes.api.tasks import running
from tests.observe.api_objects import api_pod
from tests.placement.scheduling.model_shell import InjectedError
from tests.schedule.gang_objects import SERVED_GROUPS, member
from tests.schedule.gate.simulated import GatedCluster
from tests.schedule.test_kueue_checks import Kueue

pytestmark = pytest.mark.anyio

BAD, GOOD = "bad", "good"  #: namespaces
SAMPLES = 4  #: of the methods, in ``make test``
MODULES = (
    *(cluster_claims, cluster_facts, kueue_checks, large_pods, live_cluster, pages, object_events, pod_groups),
    *(pod_trimmer, rejections, schedulable_nodes, steering_writer, bind, filter, wake_up, controller),
    *(node_selection, pod_answers, selector_results),
)
#: What is not about one object: the guards themselves, and what they need to go on.
GUARDS = frozenset(("schedule", "_carry_out", "instruction_failed", "_start", "_guarded", "guard", "run"))


def decision_points() -> Iterator[tuple[type | ModuleType, str]]:
    for module in MODULES:
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if function.__module__ == module.__name__ and not inspect.isgeneratorfunction(function):
                yield module, name
        for _, part in inspect.getmembers(module, inspect.isclass):
            if part.__module__ == module.__name__ and not is_dataclass(part) and not issubclass(part, tuple | str):
                names = [name for name, value in vars(part).items() if inspect.isfunction(value)]
                yield from ((part, name) for name in names if not name.startswith("__") and name not in GUARDS)


POINTS = sorted(decision_points(), key=lambda point: (point[0].__name__, point[1]))


def concerns(value: Any, depth: int = 3) -> bool:
    """Whether something is about a bad object, and about no good one."""
    if isinstance(value, str):
        return value.startswith(BAD)
    if isinstance(value, Pod):
        return value.namespace == BAD
    if isinstance(value, HostReport | type) or depth == 0:
        return False
    if isinstance(value, tuple | list):
        return any(concerns(each, depth - 1) for each in value)
    if isinstance(value, ApiPod) or hasattr(value, "metadata"):
        return bool(value.metadata.namespace == BAD)
    if isinstance(value, msgspec.Struct):
        return any(concerns(getattr(value, name), depth - 1) for name in value.__struct_fields__)
    if is_dataclass(value):
        return any(concerns(getattr(value, each.name), depth - 1) for each in fields(value))
    return False


in_scheduler: ContextVar[bool] = ContextVar("in_scheduler", default=False)  #: it uses parts of the service


class Injection(SimpleNamespace):
    """A method or function that raises whenever it is called about a bad object, until it is over.

    *counts*: it never raises, and only its calls are counted.
    """

    def __init__(
        self, patches: pytest.MonkeyPatch, part: type | ModuleType, name: str, *, counts: bool = False
    ) -> None:
        self.calls, self.over = 0, counts
        method = getattr(part, name)

        def check(arguments: Any, named: Any) -> None:
            if in_scheduler.get():
                return
            if concerns(arguments) or concerns(tuple(named.values())):
                self.calls += 1
                if not self.over:
                    raise InjectedError(f"{part.__name__}.{name}")

        first = inspect.isclass(part)  # of the arguments that count: not the object of a method

        @wraps(method)
        def raising(*arguments: Any, **named: Any) -> Any:
            check(arguments[first:], named)
            return method(*arguments, **named)

        @wraps(method)
        async def raising_later(*arguments: Any, **named: Any) -> Any:
            check(arguments[first:], named)
            return await method(*arguments, **named)

        replacement = raising_later if inspect.iscoroutinefunction(method) else raising
        importers = [module for module in list(sys.modules.values()) if vars(module).get(name) is method]
        for owner in (part,) if first else importers:
            patches.setattr(owner, name, replacement)


class Cluster(GatedCluster):
    """Good and bad pods of each kind, a scheduler that asks about some of them, and Kueue."""

    def __init__(self, server: Any, client: Any) -> None:
        super().__init__(server, client)
        for resource in SERVED_GROUPS:
            server.serve(resource)
        self.kueue = Kueue(server)
        for name in "abcd":
            self.add(name)

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
            self.kueue.reserve(f"{namespace}-workload", 1, cpu="1", namespace=namespace)

    def pod(self, namespace: str, kind: str) -> Pod:
        name = f"{namespace}-{kind}"
        return replace(pod(name, cpu="1", memory="1Gi"), namespace=namespace, uid=name)

    def unbound(self, namespace: str) -> list[str]:
        return [name for name, host in self.bound().items() if name.startswith(namespace) and not host]


async def ask(http: Any, asked: Pod) -> str:
    """Ask for nodes, and bind the pod to the first; return why it is not bound."""
    question = {"Pod": api_pod(asked, phase="Pending"), "Nodes": None, "NodeNames": list("abcd")}
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
    for path in ("/v1/explain/good/good-gated", "/", "/nodes.json", "/nodes/a", "/pods", "/pods/good/good-gated"):
        assert (await http.get(path)).status_code == 200, path
    assert service.leading
    injection.over = True
    for name in cluster.bound():
        cluster.finish(name)
    await until(lambda: not live.assumed and not live.pods.objects)
    assert live.scheduling.gate
    await until(lambda: live.scheduling.gate and not live.scheduling.gate.releases)


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


async def called_points() -> list[tuple[type | ModuleType, str]]:
    """Return the methods and functions that are called about a bad object when nothing fails."""
    with pytest.MonkeyPatch.context() as patches:
        injections = {point: Injection(patches, *point, counts=True) for point in POINTS}
        async with serving() as parts:
            await run(*parts, injections[POINTS[0]])
    return [point for point, injection in injections.items() if injection.calls]


async def raise_at(part: type | ModuleType, name: str, log: list[Any]) -> None:
    """Run the service while a method or function raises about bad objects; the log must say so."""
    with pytest.MonkeyPatch.context() as patches:
        injection = Injection(patches, part, name)
        async with serving() as parts:
            await run(*parts, injection)
        assert injection.calls
        assert any("exc_info" in entry for entry in log)
        log.clear()


async def test_a_workload_that_cannot_be_ordered_stops_no_other(log):
    await raise_at(kueue_checks, "_waiting_order", log)


@pytest.mark.soak
async def test_what_one_object_raises_stops_no_other(log):
    """At some of the methods and functions in ``make test``, at all of them in ``make soak``."""
    points = await called_points()
    assert len(points) > SAMPLES
    for part, name in points if SOAK else points[SEED :: len(points) // SAMPLES]:
        await raise_at(part, name, log)
        did("methods of the service that raise")
