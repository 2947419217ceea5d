"""The client of the Kubernetes API with a real API server, and the test server beside it: both answer alike."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from alignup.kubernetes.api import (
    LEASES,
    NODE_RESOURCE_TOPOLOGIES,
    NODES,
    PODS,
    UNFINISHED_PODS,
    Access,
    ApiClient,
    EventType,
    Informer,
    LeaderElection,
    PatchType,
    Query,
    Resource,
    Timing,
    find_access,
)
from alignup.kubernetes.api.errors import (
    AlreadyExistsError,
    ConflictError,
    ForbiddenError,
    GoneError,
    InvalidObjectError,
    NotFoundError,
    ServerFailureError,
    TooManyRequestsError,
    UnauthorizedError,
)
from alignup.kubernetes.api.objects import ApiPod, PartialObject
from alignup.testing.api_server import ApiServer
from e2e import control_plane
from e2e.control_plane import ADMIN, STRANGER, ControlPlane
from e2e.definitions import DEFINITIONS, wait_served
from e2e.marks import needs
from e2e.simulated_cluster import until

pytestmark = [needs(control_plane.missing()), pytest.mark.anyio]

TIMING = Timing(retry=0.05, longest_retry=0.5)
SECONDS = 60.0  #: for what takes milliseconds
BUDGETS = Resource(
    type=PartialObject, kind="PodDisruptionBudget", plural="poddisruptionbudgets", group="policy", namespaced=True
)
ZONES = [
    {
        "name": "node-0",
        "type": "Node",
        "resources": [{"name": "cpu", "capacity": 4, "allocatable": "4", "available": "3"}],
    }
]


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path_factory.mktemp("control-plane")) as control:
        yield control


@asynccontextmanager
async def client_of(access: Access) -> AsyncIterator[ApiClient]:
    async with ApiClient(access, timing=TIMING) as client:
        yield client


@asynccontextmanager
async def real_client(plane: ControlPlane) -> AsyncIterator[ApiClient]:
    """Yield a client of the real server; its pods and nodes are deleted afterwards."""
    async with client_of(find_access(plane.kubeconfig(plane.directory / "config"), environ={})) as client:
        yield client
        for pod in (await client.list(PODS)).items:
            await client.delete(PODS.of(pod), grace_period=0)
        for node in (await client.list(NODES)).items:
            await client.delete(NODES.of(node))


@pytest.fixture
async def real(plane: ControlPlane) -> AsyncIterator[ApiClient]:
    """A client of the real server."""
    async with real_client(plane) as client:
        yield client


@pytest.fixture(params=["real", "test"])
async def client(request: pytest.FixtureRequest, plane: ControlPlane) -> AsyncIterator[ApiClient]:
    """A client of the real server, and one of the test server."""
    if request.param == "real":
        async with real_client(plane) as client:
            yield client
    else:
        async with ApiServer() as server, client_of(Access(server=server.url)) as client:
            yield client


@asynccontextmanager
async def following(informer: Informer[Any]) -> AsyncIterator[list[str]]:
    """Run an informer; the list has its changes as ``TYPE name``."""
    changes: list[str] = []
    informer.subscribe(lambda change: changes.append(f"{change.type} {change.object.metadata.name}"))
    task = asyncio.create_task(informer.run())
    try:
        async with asyncio.timeout(SECONDS):
            await informer.wait_synced()
        yield changes
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def pod(name: str, **spec: object) -> dict[str, Any]:
    resources = {"requests": {"cpu": "1"}, "limits": {"cpu": "1"}}
    containers = [{"name": "app", "image": "app:1", "resources": resources}]
    return {"metadata": {"name": name, "labels": {"app": name}}, "spec": {"containers": containers, **spec}}


async def create(client: ApiClient, name: str, **spec: object) -> ApiPod:
    return await client.create(PODS, pod(name, **spec), namespace="default")


async def test_objects_are_created_read_changed_and_deleted(client: ApiClient) -> None:
    created = await create(client, "web")

    assert (created.status.phase, created.spec.containers[0].resources.requests) == ("Pending", {"cpu": "1"})
    assert created.metadata.uid
    with pytest.raises(AlreadyExistsError, match=r'pods "web" already exists'):
        await create(client, "web")

    changed = await client.patch(PODS.of(created), {"metadata": {"labels": {"app": None, "tier": "a"}}})
    assert changed.metadata.labels == {"tier": "a"}
    with pytest.raises(ConflictError, match="the object has been modified"):
        await client.patch(
            PODS.of(created), {"metadata": {"resourceVersion": created.metadata.resource_version, "labels": {}}}
        )
    operations = [{"op": "add", "path": "/metadata/labels/x", "value": "y"}]
    assert (await client.patch(PODS.of(created), operations, patch_type=PatchType.JSON)).metadata.labels["x"] == "y"
    status = await client.patch(PODS.of(created, subresource="status"), {"status": {"phase": "Running"}})
    assert status.status.phase == "Running"

    await client.delete(PODS.of(created), grace_period=0)
    with pytest.raises(NotFoundError, match=r'get pods default/web: pods "web" not found'):
        await client.get(PODS.of(created))


async def test_lists_have_pages_and_queries(client: ApiClient) -> None:
    for number in range(5):
        await create(client, f"p{number}")

    pages = [page async for page in client.pages(PODS, Query(namespace="default"), size=2)]
    assert [len(page.items) for page in pages] == [2, 2, 1]
    assert len({page.resource_version for page in pages}) == 1
    listed = await client.list(PODS, Query(labels="app in (p1,p3)", fields="spec.nodeName="))
    assert [item.metadata.name for item in listed.items] == ["p1", "p3"]


async def test_an_informer_follows_every_change(client: ApiClient) -> None:
    kept = await create(client, "kept")
    async with following(Informer(client, PODS, UNFINISHED_PODS)) as changes:
        await until(lambda: changes == ["ADDED kept"])
        new = await create(client, "new")
        await client.patch(PODS.of(kept), {"metadata": {"labels": {"a": "b"}}})
        await client.patch(PODS.of(kept, subresource="status"), {"status": {"phase": "Succeeded"}})
        await client.delete(PODS.of(new), grace_period=0)
        await until(lambda: changes[-1] == "DELETED new")

    marked = "MODIFIED new"  # with a deletion timestamp
    assert changes == ["ADDED kept", "ADDED new", "MODIFIED kept", "DELETED kept", marked, "DELETED new"]


@pytest.mark.parametrize("initial", [True, False], ids=["streamed", "from a version"])
async def test_a_watch_reports_additions(client: ApiClient, initial: bool) -> None:  # noqa: FBT001 - a parameter of the test
    version = (await client.list(PODS)).resource_version
    await create(client, "web")

    async with client.watch(PODS, resource_version="" if initial else version, initial=initial) as events:
        try:
            event = await anext(events)
        except ServerFailureError as error:
            if "RequestWatchProgress" in str(error):
                pytest.skip("streamed lists need etcd 3.4.25 or newer")
            raise
        end = await anext(events) if initial else None

    assert (event.type, event.namespace, event.name) == (EventType.ADDED, "default", "web")
    assert end is None or end.initial_events_end


async def test_bindings_and_evictions(client: ApiClient) -> None:
    await client.create(NODES, {"metadata": {"name": "host-a"}})
    web = await create(client, "web", terminationGracePeriodSeconds=0)

    await client.bind(PODS.of(web), "host-a", annotations={"alignup.dev/placement": "0"})
    bound = await client.get(PODS.of(web))
    assert (bound.spec.node_name, bound.metadata.annotations) == ("host-a", {"alignup.dev/placement": "0"})
    with pytest.raises(ConflictError, match="already assigned to node"):
        await client.bind(PODS.of(web), "host-a")

    gated = await create(client, "gated", schedulingGates=[{"name": "alignup.dev/place"}])
    with pytest.raises(ConflictError, match="schedulingGates"):
        await client.bind(PODS.of(gated), "host-a")

    await client.evict(PODS.of(gated))
    assert await client.find(PODS.of(gated)) is None


async def test_a_disruption_budget_prevents_an_eviction(real: ApiClient) -> None:
    """Without its controller a budget allows no disruption."""
    await real.create(NODES, {"metadata": {"name": "host-b"}})
    web = await create(real, "web")
    await real.bind(PODS.of(web), "host-b")
    await real.patch(PODS.of(web, subresource="status"), {"status": {"phase": "Running"}})
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}}
    await real.create(BUDGETS, {"metadata": {"name": "web"}, "spec": spec}, namespace="default")

    with pytest.raises(TooManyRequestsError):
        await real.evict(PODS.of(web))


def definition(resource: Resource[Any]) -> dict[str, Any]:
    names = {"kind": resource.kind, "plural": resource.plural, "singular": resource.kind.lower()}
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": resource.version, "served": True, "storage": True, "schema": schema}
    approval = {"api-approved.kubernetes.io": "https://github.com/kubernetes/enhancements/pull/1870"}
    return {
        "metadata": {"name": resource.full_name, "annotations": approval},
        "spec": {"group": resource.group, "scope": "Cluster", "names": names, "versions": [version]},
    }


async def test_server_side_apply(client: ApiClient) -> None:
    ref = NODE_RESOURCE_TOPOLOGIES.at("host-a")
    await client.create(DEFINITIONS, definition(NODE_RESOURCE_TOPOLOGIES))
    await wait_served(client, NODE_RESOURCE_TOPOLOGIES)

    attributes = [{"name": "topologyManagerPolicy", "value": "restricted"}]
    first = await client.apply(ref, {"zones": ZONES, "attributes": attributes})
    same = await client.apply(ref, {"zones": ZONES, "attributes": attributes})
    assert same.metadata.resource_version == first.metadata.resource_version
    assert first.zones[0].resources[0].capacity == 4

    other = {"zones": [{**ZONES[0], "name": "node-1"}]}
    with pytest.raises(ConflictError, match="Apply failed with 1 conflict"):
        await client.apply(ref, other, manager="other", force=False)
    assert (await client.apply(ref, other, manager="other")).zones[0].name == "node-1"
    left = await client.apply(ref, {"metadata": {"labels": {"a": "b"}}})
    assert (left.attributes, left.metadata.labels, left.zones[0].name) == ((), {"a": "b"}, "node-1")
    await client.delete(ref)


async def test_one_of_two_candidates_leads_and_the_other_follows(client: ApiClient) -> None:
    elections = [LeaderElection(client, name="e2e", namespace="default", identity=name) for name in ("first", "second")]
    tasks = [asyncio.create_task(election.run(asyncio.Event().wait)) for election in elections]
    await until(lambda: any(election.leading for election in elections))
    leader = next(election for election in elections if election.leading)

    tasks[elections.index(leader)].cancel()
    await until(lambda: any(election.leading for election in elections if election is not leader))

    tasks[1 - elections.index(leader)].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    lease = await client.get(LEASES.at("e2e", namespace="default"))
    assert (lease.spec.holder_identity, lease.spec.lease_transitions) == (None, 1)


async def test_an_old_version_is_gone(real: ApiClient) -> None:
    await create(real, "web")

    with pytest.raises(GoneError):
        async with real.watch(PODS, resource_version="1") as events:
            await anext(events)


async def test_an_informer_continues_when_the_server_comes_back(plane: ControlPlane, real: ApiClient) -> None:
    await create(real, "before")
    informer = Informer(real, PODS)
    async with following(informer) as changes:
        plane.kill()
        await until(lambda: informer.error is not None)
        plane.start()
        await create(real, "after")
        await until(lambda: len(changes) == 2)

    assert changes == ["ADDED before", "ADDED after"]


async def test_credentials_by_certificate_and_plugin(plane: ControlPlane, tmp_path: Path) -> None:
    certificate, key = plane.sign(
        "admin", subject="/O=system:masters/CN=admin", extensions="extendedKeyUsage=clientAuth\n"
    )
    answer = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": ADMIN}}
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": sys.executable,
        "args": ["-c", f"print({json.dumps(answer)!r})"],
        "interactiveMode": "Never",
    }
    users: dict[str, dict[str, Any]] = {
        "certificate": {"client-certificate": str(certificate), "client-key": str(key)},
        "plugin": {"exec": plugin},
    }
    for name, user in users.items():
        async with client_of(find_access(plane.kubeconfig(tmp_path / name, user), environ={})) as client:
            assert (await client.list(NODES)).resource_version


async def test_wrong_credentials_and_missing_permissions(plane: ControlPlane, tmp_path: Path) -> None:
    async with client_of(find_access(plane.kubeconfig(tmp_path / "a", {"token": "wrong"}), environ={})) as client:
        with pytest.raises(UnauthorizedError):
            await client.list(NODES)
    async with client_of(find_access(plane.kubeconfig(tmp_path / "b", {"token": STRANGER}), environ={})) as client:
        with pytest.raises(ForbiddenError, match=r'list nodes: nodes is forbidden: User "stranger" cannot list'):
            await client.list(NODES)


async def test_an_invalid_object_is_rejected_with_the_reason(real: ApiClient) -> None:
    with pytest.raises(InvalidObjectError, match=r"spec\.containers: Required value"):
        await create(real, "web", containers=[])
