"""A cluster without machines: a real API server and scheduler, simulated nodes, and ``alignup schedule``."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any, TypeVar

from alignup.align.workload.names import DEVICE_CLASS_PREFIX
from alignup.kubernetes.api import ApiClient, Resource, find_access
from alignup.kubernetes.api.objects import PartialObject
from alignup.placement.scheduling.options import GateOptions
from alignup.schedule.cluster_facts import GATE
from alignup.schedule.gate.controller import GateController
from alignup.schedule.live_cluster import LiveCluster
from e2e.api import EVENTS, Document
from e2e.control_plane import ControlPlane
from e2e.definitions import define_host_states
from e2e.fake_nodes import FakeNodes
from e2e.schedule_replicas import Replica, ScheduleReplicas

Result = TypeVar("Result")

#: Of the API server: pods need no controller that makes service accounts, and nodes none that removes taints.
FLAGS = ("--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",)
NODES = ("a", "b", "c")
SECONDS = 120.0  #: for what takes seconds
NAMESPACES = Resource(type=PartialObject, kind="Namespace", plural="namespaces")


def pod(name: str, cpus: int, *, gated: bool = False, **spec: Any) -> Document:  # noqa: ANN401 - of a pod
    """Return a Guaranteed pod; other fields of its *spec* by name."""
    limits = {"cpu": str(cpus), "memory": "1Gi"}
    container = {"name": "app", "image": "none", "resources": {"limits": limits}}
    gates = {"schedulingGates": [{"name": GATE}]} if gated else {}
    return {
        "metadata": {"name": name},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 1, **gates, **spec},
    }


def claim_pod(
    name: str, cpus: int, *, gated: bool = False, template: str = "gpus", annotations: dict[str, str] | None = None
) -> Document:
    """Return a Guaranteed pod with a claim of a template."""
    claims = [{"name": "gpu", "resourceClaimTemplateName": template}]
    document = pod(name, cpus, gated=gated, resourceClaims=claims)
    document["metadata"]["annotations"] = annotations or {}
    document["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpu"}]
    return document


def extended_pod(name: str, *, gated: bool = False) -> Document:
    """Return a Guaranteed pod with an extended resource of the device class."""
    document = pod(name, 1, gated=gated)
    document["spec"]["containers"][0]["resources"]["limits"][f"{DEVICE_CLASS_PREFIX}gpu"] = "1"
    return document


async def until(
    condition: Callable[[], Result | None], plane: ControlPlane | None = None, *, seconds: float = SECONDS
) -> Result:
    """Wait for a true result of *condition*, and return it; the error has the logs of *plane*."""

    async def ask() -> Result | None:
        return condition()

    return await poll(ask, plane, seconds=seconds)


async def poll(
    ask: Callable[[], Awaitable[Result | None]], plane: ControlPlane | None = None, *, seconds: float = SECONDS
) -> Result:
    """Ask again and again until there is a true answer, and return it; the error has the logs of *plane*."""
    try:
        async with asyncio.timeout(seconds):
            while not (answer := await ask()):  # noqa: ASYNC110 - there is no event
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(_logs(plane) if plane else "timed out") from None
    return answer


def _logs(plane: ControlPlane) -> str:
    names = ("alignup-schedule", "kube-scheduler")
    return "\n".join(plane.log(name, 6000) for name in names if (plane.directory / f"{name}.log").exists())


async def wait_event(client: ApiClient, text: str, plane: ControlPlane | None = None) -> str:
    """Wait until an event of the default namespace has *text*; return all of them as JSON."""

    async def events() -> str:
        answer = (await client.get_raw(EVENTS)).decode()
        return answer if text in answer else ""

    return await poll(events, plane)


async def create_nodes(client: ApiClient, *names: str) -> FakeNodes:
    nodes = FakeNodes(client)
    for name in names:
        await nodes.add(name)
    return nodes


@asynccontextmanager
async def idle_nodes(plane: ControlPlane, *names: str) -> AsyncIterator[tuple[ApiClient, FakeNodes]]:
    """Yield nodes (default: :data:`NODES`) that have published what they hold, and do nothing yet."""
    async with ApiClient(find_access(plane.kubeconfig(plane.directory / "admin.json"))) as client:
        await define_host_states(client)
        yield client, await create_nodes(client, *(names or NODES))


@asynccontextmanager
async def working_nodes(plane: ControlPlane, *names: str) -> AsyncIterator[tuple[ApiClient, FakeNodes]]:
    """Yield nodes (default: :data:`NODES`) that admit and end pods inside the context."""
    async with idle_nodes(plane, *names) as (client, nodes), nodes.working():
        yield client, nodes


@asynccontextmanager
async def running_service(plane: ControlPlane, *options: str, port: int = 0) -> AsyncIterator[Replica]:
    """Run ``alignup schedule`` with *options* on *port* (0: any), and wait until it is ready."""
    replicas = ScheduleReplicas(plane, leader_election=False, options=options)
    try:
        replicas.start(port)
        yield await until(replicas.leader, plane)
    finally:
        replicas.close()


@asynccontextmanager
async def in_thread(context: AbstractContextManager[Result]) -> AsyncIterator[Result]:
    """Enter and leave a context that blocks, while simulated kubelets go on."""
    entered = await asyncio.to_thread(context.__enter__)
    try:
        yield entered
    finally:
        await asyncio.to_thread(context.__exit__, None, None, None)


@asynccontextmanager
async def running(*coroutines: Coroutine[Any, Any, object]) -> AsyncIterator[None]:
    """Run coroutines inside the context; raise the errors with which they ended."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome


@asynccontextmanager
async def gate_controller(client: ApiClient) -> AsyncIterator[GateController]:
    """Run the gate controller in this process; it is ready."""
    live = LiveCluster(client)
    controller = GateController(client, live, options=GateOptions())
    async with running(live.run(), controller.run()):
        await live.ready.wait()
        yield controller
