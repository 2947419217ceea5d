"""The client against the test server: operations, pages, watches, repeated attempts and errors."""

import asyncio

import msgspec
import pytest

from alignup.kubernetes.api import (
    ALL,
    LEASES,
    NODE_RESOURCE_TOPOLOGIES,
    NODES,
    PODS,
    UNFINISHED_PODS,
    Query,
    Resource,
    Timing,
)
from alignup.kubernetes.api.access import Access
from alignup.kubernetes.api.client import ApiClient, EventType, PatchType, ServerVersion
from alignup.kubernetes.api.credentials import Credential, UserCredentials
from alignup.kubernetes.api.errors import (
    AccessError,
    AlreadyExistsError,
    ApiStatusError,
    ConflictError,
    ForbiddenError,
    GoneError,
    InvalidObjectError,
    NotFoundError,
    ServerFailureError,
    TooManyRequestsError,
    UnauthorizedError,
    UnreachableError,
    UnreadableError,
)
from alignup.kubernetes.api.objects import ObjectMeta
from alignup.testing.api_server import ApiFault, ServedResource
from tests.cli.commands import python
from tests.kubernetes.api.objects import node, pod

pytestmark = pytest.mark.anyio


def names(page):
    return [obj.metadata.name for obj in page.items]


def sent(server, method):
    return [request for request in server.requests if request.method == method]


def test_only_a_client_imports_the_http_library():
    """It takes 90 ms and 10 MB, and the agent and commands without a cluster need not have it."""
    modules = "alignup.kubernetes.api, alignup.cli.why, alignup.cli.simulate, alignup.nri.node_pods"

    run = python("-c", f"import sys, {modules}; print(*sys.modules)")

    loaded = set(run.stdout.split())
    assert "alignup.kubernetes.api.client" in loaded
    assert loaded.isdisjoint({"aiohttp", "yarl"})


async def test_get_decodes_the_fields_of_the_struct(server, client):
    server.put(pod(cpu="2", labels={"app": "web"}))

    decoded = await client.get(PODS.at("web", namespace="default"))

    assert decoded.spec.containers[0].resources.requests == {"cpu": "2"}
    assert decoded.metadata.labels == {"app": "web"}
    assert decoded.status.phase == "Running"


async def test_a_missing_object_is_an_error_or_none(client):
    ref = PODS.at("web", namespace="default")

    with pytest.raises(NotFoundError, match=r'get pods default/web: pods "web" not found'):
        await client.get(ref)
    assert await client.find(ref) is None


async def test_lists_are_read_in_pages_of_one_version(server, client):
    for number in range(7):
        server.put(pod(f"p{number}"))

    pages = []
    async for page in client.pages(PODS, size=3):
        pages.append(page)
        server.put(pod(f"later-{len(pages)}"))

    assert [names(page) for page in pages] == [["p0", "p1", "p2"], ["p3", "p4", "p5"], ["p6"]]
    assert len({page.resource_version for page in pages}) == 1


async def test_pages_of_a_list_expire(server, client):
    for number in range(501):
        server.put(pod(f"p{number}"))
    pages = client.pages(PODS)
    await anext(pages)
    server.expire()

    with pytest.raises(GoneError, match="too old to display a consistent list"):
        await anext(pages)


async def test_a_list_whose_pages_expire_is_read_in_one(server, client):
    server.put(pod())
    server.inject(ApiFault(status=410, reason="Expired"), verb="list")

    assert names(await client.list(PODS)) == ["web"]
    assert [request.parameters.get("limit") for request in server.requests] == ["500", None]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        pytest.param(ALL, ["a", "b", "c"], id="all"),
        pytest.param(Query(namespace="ml"), ["c"], id="of a namespace"),
        pytest.param(Query(labels="app=web,tier!=db"), ["a"], id="by labels"),
        pytest.param(Query(labels="app in (web, api)"), ["a", "b"], id="by a set of labels"),
        pytest.param(Query(labels="!app"), ["c"], id="by a missing label"),
        pytest.param(UNFINISHED_PODS, ["a", "c"], id="by a field"),
    ],
)
async def test_queries_select_objects(server, client, query, expected):
    server.put(pod("a", labels={"app": "web"}))
    server.put(pod("b", labels={"app": "web", "tier": "db"}, phase="Succeeded"))
    server.put(pod("c", namespace="ml"))

    assert sorted(names(await client.list(PODS, query))) == expected


async def test_an_object_of_another_form_does_not_hide_the_others(server, client, log):
    server.put(pod("good"))
    server.put({**pod("bad"), "spec": {"nodeName": 7}})

    assert names(await client.list(PODS)) == ["good"]
    assert [(entry["name"], entry["problem"]) for entry in log] == [
        ("bad", "Expected `str`, got `int` - at `$.spec.nodeName`")
    ]


async def test_a_watch_reports_changes_after_a_version(server, client):
    server.put(pod("old"))
    version = server.put(pod("kept"))["metadata"]["resourceVersion"]
    server.put(pod("new"))
    server.put(pod("kept", cpu="2"))
    server.remove("pods", "old")

    async with client.watch(PODS, resource_version=version) as events:
        received = [await anext(events) for _ in range(3)]

    assert [(event.type, event.name) for event in received] == [
        (EventType.ADDED, "new"),
        (EventType.MODIFIED, "kept"),
        (EventType.DELETED, "old"),
    ]
    assert received[1].object.spec.containers[0].resources.requests == {"cpu": "2"}


async def test_an_object_that_no_longer_matches_counts_as_deleted(server, client):
    version = server.put(pod())["metadata"]["resourceVersion"]
    server.put(pod(phase="Succeeded"))
    server.put(pod(phase="Running"))

    async with client.watch(PODS, UNFINISHED_PODS, resource_version=version) as events:
        received = [await anext(events) for _ in range(2)]

    assert [event.type for event in received] == [EventType.DELETED, EventType.ADDED]


async def test_a_watch_can_begin_with_all_objects(server, client):
    server.put(pod("a"))
    server.put(pod("b"))

    async with client.watch(PODS, resource_version="", initial=True) as events:
        received = [await anext(events) for _ in range(3)]

    assert [(event.type, event.name, event.initial_events_end) for event in received] == [
        (EventType.ADDED, "a", False),
        (EventType.ADDED, "b", False),
        (EventType.BOOKMARK, "", True),
    ]
    assert received[2].resource_version == str(server.store.revision)


async def test_events_that_arrive_byte_by_byte_are_read(server, client):
    server.chunk = 1
    version = str(server.store.revision)
    server.put(pod(annotations={"text": "line\nbreak, ümlaut"}))

    async with client.watch(PODS, resource_version=version) as events:
        event = await anext(events)

    assert event.object.metadata.annotations == {"text": "line\nbreak, ümlaut"}


async def test_a_watch_at_a_version_that_is_gone_fails(server, client):
    version = str(server.store.revision)
    server.put(pod())
    server.expire()

    async with client.watch(PODS, resource_version=version) as events:
        with pytest.raises(GoneError, match="too old resource version"):
            await anext(events)


async def test_a_broken_watch_is_an_error(server, client):
    async with client.watch(PODS, resource_version=str(server.store.revision)) as events:
        server.disconnect()

        with pytest.raises(UnreachableError, match=r"cannot reach the API server http://127\.0\.0\.1:\d+ \(the test\)"):
            await anext(events)


async def test_the_server_is_asked_to_end_watches_at_different_times(server):
    timing = Timing(watch=300, random=iter([0.0, 0.5]).__next__)
    async with ApiClient(Access(server=server.url), timing=timing) as client:
        for _ in range(2):
            async with client.watch(PODS, resource_version="1"):
                pass

    assert [request.parameters["timeoutSeconds"] for request in server.requests] == ["300", "450"]
    assert server.requests[0].parameters["allowWatchBookmarks"] == "true"


async def test_create_and_delete(server, client):
    made = await client.create(PODS, pod(), namespace="default")

    assert made.status.phase == "Pending"
    with pytest.raises(AlreadyExistsError, match=r'create pods: pods "web" already exists'):
        await client.create(PODS, pod(), namespace="default")
    await client.delete(PODS.of(made))
    assert server.objects("pods") == []


async def test_an_object_with_another_uid_is_not_deleted(server, client):
    old = await client.create(PODS, pod(), namespace="default")
    server.remove("pods", "web")
    server.put(pod())

    with pytest.raises(ConflictError, match="Precondition failed: UID"):
        await client.delete(PODS.of(old))


async def test_a_merge_patch_changes_the_given_fields(server, client):
    server.put(pod(labels={"app": "web", "tier": "db"}))

    patch = {"metadata": {"labels": {"tier": None, "x": "y"}}}
    changed = await client.patch(PODS.at("web", namespace="default"), patch)

    assert changed.metadata.labels == {"app": "web", "x": "y"}


async def test_a_json_patch_is_a_list_of_operations(server, client):
    server.put(node(labels={"a": "b"}))
    patch = [{"op": "test", "path": "/metadata/labels/a", "value": "b"}, {"op": "remove", "path": "/metadata/labels/a"}]

    changed = await client.patch(NODES.at("host-a"), patch, patch_type=PatchType.JSON)

    assert changed.metadata.labels == {}
    with pytest.raises(InvalidObjectError, match="cannot be applied at /metadata/labels/a"):
        await client.patch(NODES.at("host-a"), patch, patch_type=PatchType.JSON)


async def test_a_patch_with_an_old_version_is_a_conflict(server, client):
    old = server.put(pod())["metadata"]["resourceVersion"]
    server.put(pod(cpu="2"))
    patch = {"metadata": {"resourceVersion": old, "labels": {"a": "b"}}}

    with pytest.raises(ConflictError, match="the object has been modified"):
        await client.patch(PODS.at("web", namespace="default"), patch)


async def test_the_status_is_a_subresource(client):
    made = await client.create(PODS, pod(), namespace="default")
    status = {"status": {"phase": "Failed", "reason": "TopologyAffinityError"}}

    assert (await client.patch(PODS.of(made), status)).status.phase == "Pending"
    failed = await client.patch(PODS.of(made, subresource="status"), status)

    assert (failed.status.phase, failed.status.reason) == ("Failed", "TopologyAffinityError")
    assert failed.finished


ZONES = [{"name": "node-0", "type": "Node", "resources": []}]


async def test_apply_creates_then_changes_and_leaves_the_version_of_an_equal_object(client):
    ref = NODE_RESOURCE_TOPOLOGIES.at("host-a")

    first = await client.apply(ref, {"zones": ZONES, "attributes": [{"name": "a", "value": "1"}]})
    same = await client.apply(ref, {"zones": ZONES, "attributes": [{"name": "a", "value": "1"}]})
    changed = await client.apply(ref, {"zones": ZONES})

    assert first.zones[0].name == "node-0"
    assert same.metadata.resource_version == first.metadata.resource_version
    assert changed.attributes == ()
    assert changed.metadata.resource_version != first.metadata.resource_version


async def test_apply_takes_fields_of_others_only_with_force(client):
    ref = NODE_RESOURCE_TOPOLOGIES.at("host-a")
    await client.apply(ref, {"zones": ZONES}, manager="other")
    mine = {"zones": [{**ZONES[0], "name": "node-1"}]}

    with pytest.raises(ConflictError, match=r'Apply failed with 1 conflict: conflict with "other": \.zones'):
        await client.apply(ref, mine, force=False)

    assert (await client.apply(ref, mine)).zones[0].name == "node-1"


async def test_binding_sets_node_and_annotations_once(client):
    made = await client.create(PODS, pod(), namespace="default")

    await client.bind(PODS.of(made), "host-a", annotations={"alignup.dev/placement": "0"})

    bound = await client.get(PODS.of(made))
    assert bound.spec.node_name == "host-a"
    assert bound.metadata.annotations == {"alignup.dev/placement": "0"}
    with pytest.raises(ConflictError, match='already assigned to node "host-a"'):
        await client.bind(PODS.of(made), "host-b")


async def test_a_gated_or_replaced_pod_is_not_bound(server, client):
    gated = pod("gated")
    gated["spec"]["schedulingGates"] = [{"name": "alignup.dev/place"}]
    made = await client.create(PODS, gated, namespace="default")

    with pytest.raises(ConflictError, match="schedulingGates"):
        await client.bind(PODS.of(made), "host-a")
    server.remove("pods", "gated")
    server.put(pod("gated"))
    with pytest.raises(ConflictError, match="Precondition failed: UID"):
        await client.bind(PODS.of(made), "host-a")


async def test_eviction_deletes_and_a_disruption_budget_is_not_asked_again(server, client):
    made = await client.create(PODS, pod(), namespace="default")
    message = "Cannot evict pod as it would violate the pod's disruption budget."
    server.inject(ApiFault(status=429, message=message, retry_after=10, times=None), verb="create")

    with pytest.raises(TooManyRequestsError, match="disruption budget") as caught:
        await client.evict(PODS.of(made))
    assert caught.value.retry_after == 10
    assert len(sent(server, "POST")) == 2

    server.inject(ApiFault(times=0), verb="create")
    await client.evict(PODS.of(made), grace_period=1)
    assert server.objects("pods") == []


async def test_a_running_pod_is_deleted_after_its_grace_period(server, client):
    running = pod()
    running["spec"]["nodeName"] = "host-a"
    server.put(running)
    ref = PODS.at("web", namespace="default")

    await client.delete(ref)
    assert (await client.get(ref)).metadata.deletion_grace_period_seconds == 30

    await client.delete(ref, grace_period=0)
    assert await client.find(ref) is None


async def test_raw_paths_and_the_version(server, client):
    server.respond("/api/v1/nodes/host-a/proxy/configz", b'{"kubeletconfig":{}}')

    assert await client.get_raw("/api/v1/nodes/host-a/proxy/configz") == b'{"kubeletconfig":{}}'
    assert (await client.version()).number == (1, 36)
    assert ServerVersion("1", "34+").number == (1, 34)  # a provider's build
    assert ServerVersion("", "").number == (0, 0)


class Metadata(msgspec.Struct, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


class HostStateExample(msgspec.Struct):
    metadata: Metadata
    generation: int = 0


async def test_any_struct_with_metadata_is_a_resource(server, client):
    resource = Resource(
        type=HostStateExample, kind="HostState", plural="hoststates", group="alignup.dev", version="v1alpha1"
    )
    server.serve(
        ServedResource(kind="HostState", plural="hoststates", group="alignup.dev", version="v1alpha1", namespaced=False)
    )

    await client.apply(resource.at("host-a"), {"generation": 7})

    (listed,) = (await client.list(resource)).items
    assert (listed.metadata.name, listed.generation) == ("host-a", 7)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, InvalidObjectError),
        (401, UnauthorizedError),
        (403, ForbiddenError),
        (404, NotFoundError),
        (409, ConflictError),
        (410, GoneError),
        (418, ApiStatusError),
        (422, InvalidObjectError),
        (429, TooManyRequestsError),
        (500, ServerFailureError),
        (503, ServerFailureError),
    ],
)
async def test_every_status_has_its_error(server, client, status, kind):
    server.inject(ApiFault(status=status, message="no", times=None))

    with pytest.raises(ApiStatusError, match=r"no$") as caught:
        await client.get(NODES.at("host-a"))

    assert type(caught.value) is kind
    assert caught.value.code == status


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(ApiFault(status=503, times=2), id="not ready"),
        pytest.param(ApiFault(status=429, times=2), id="throttled"),
        pytest.param(ApiFault(disconnect=True, times=2), id="a broken connection"),
    ],
)
async def test_reads_are_repeated(server, client, fault):
    server.put(node())
    server.inject(fault)

    assert (await client.get(NODES.at("host-a"))).metadata.name == "host-a"
    assert len(server.requests) == 3


async def test_reads_are_repeated_a_few_times_only(server, client):
    server.inject(ApiFault(status=503, times=None))

    with pytest.raises(ServerFailureError):
        await client.get(NODES.at("host-a"))

    assert len(server.requests) == client.timing.attempts


async def test_the_server_says_how_long_to_wait(server):
    waits = []

    async def sleep(seconds):
        waits.append(seconds)

    server.put(node())
    server.inject(ApiFault(status=429, retry_after=7, times=1))
    async with ApiClient(Access(server=server.url), timing=Timing(sleep=sleep)) as client:
        await client.get(NODES.at("host-a"))

    assert waits == [7]


@pytest.mark.parametrize(
    ("change", "method", "repeated"),
    [
        pytest.param(lambda client, _: client.create(PODS, pod("b"), namespace="default"), "POST", False, id="create"),
        pytest.param(lambda client, made: client.delete(PODS.of(made)), "DELETE", True, id="delete a uid"),
        pytest.param(
            lambda client, _: client.delete(PODS.at("web", namespace="default")),
            "DELETE",
            False,
            id="delete a name, which another object may have by then",
        ),
        pytest.param(
            lambda client, _: client.apply(NODE_RESOURCE_TOPOLOGIES.at("a"), {"zones": []}), "PATCH", True, id="apply"
        ),
    ],
)
async def test_a_change_whose_response_is_lost_is_repeated_if_that_is_safe(server, client, change, method, repeated):
    made = await client.create(PODS, pod(), namespace="default")
    server.requests.clear()
    for verb in ("create", "delete", "patch"):
        server.inject(ApiFault(disconnect=True, done=True), verb=verb)

    if repeated:
        await change(client, made)
    else:
        with pytest.raises(UnreachableError):
            await change(client, made)

    assert len(sent(server, method)) == 1 + repeated
    assert len(server.objects("pods")) == {"POST": 2, "DELETE": 0, "PATCH": 1}[method]


async def test_a_change_that_could_not_be_sent_is_repeated(server, timing):
    attempts = []

    async def sleep(seconds):
        attempts.append(seconds)
        if len(attempts) == 2:
            await server.__aenter__()

    await server.__aexit__(None, None, None)
    timing = Timing(retry=0.0, sleep=sleep)
    async with ApiClient(Access(server=server.url), timing=timing) as client:
        await client.create(NODES, node())

    assert len(server.objects("nodes")) == 1
    assert len(attempts) == 2


async def test_a_request_is_not_repeated_after_the_client_is_closed(server):
    async def sleep(_seconds):
        await client.__aexit__()

    client = ApiClient(Access(server=server.url), timing=Timing(sleep=sleep))
    server.inject(ApiFault(disconnect=True))

    with pytest.raises(UnreachableError, match="the client is closed"):
        await client.version()

    assert len(server.requests) == 1


async def test_a_rejected_credential_that_cannot_be_replaced_keeps_no_connection(server, monkeypatch):
    class FailingCredentials:
        """Credentials that cannot be replaced."""

        rejected = False

        async def current(self):
            if self.rejected:
                self.rejected = False
                raise AccessError("the plugin failed")
            return Credential("Bearer old")

        def reject(self, credential):
            self.rejected = True

    monkeypatch.setattr("alignup.kubernetes.api.connection.MAX_CONNECTIONS", 1)
    server.tokens = {"new"}
    access = Access(server=server.url, credentials=FailingCredentials())
    async with ApiClient(access, timing=Timing(attempts=1, connect=1.0)) as client:
        for _ in range(2):
            with pytest.raises(AccessError, match="the plugin failed"):
                await client.version()


async def test_no_server_is_an_error_with_its_address_and_reason(server, timing):
    await server.__aexit__(None, None, None)

    async with ApiClient(Access(server=server.url, source="context x"), timing=timing) as client:
        with pytest.raises(UnreachableError) as caught:
            await client.version()

    assert str(caught.value) == f"cannot reach the API server {server.url} (context x): Connection refused"


async def test_a_host_that_cannot_be_resolved_is_an_error(timing):
    async with ApiClient(Access(server="http://-"), timing=timing) as client:
        with pytest.raises(UnreachableError, match="Name or service not known"):
            await client.version()


@pytest.mark.parametrize(
    "proxy", ["socks5://a:secret@proxy:1", "a:secret@proxy:1", "http://a:b/secret@proxy:1", "http://a:secret#b@proxy:1"]
)
async def test_errors_do_not_show_the_password_of_a_proxy(proxy):
    async with ApiClient(Access(server="https://127.0.0.1:1", proxy=proxy)) as client:
        with pytest.raises(AccessError, match=r"by proxy (socks5://|http://|)proxy:1: the ") as caught:
            await client.version()

    assert "secret" not in str(caught.value)


async def test_a_user_in_the_address_of_the_server_is_sent(server, timing):
    address = server.url.replace("//", "//a:secret@")
    for credentials in (UserCredentials(), UserCredentials(token="other")):  # noqa: S106 - a token of a test
        async with ApiClient(Access(server=address, credentials=credentials), timing=timing) as client:
            await client.version()

    assert [request.headers["authorization"] for request in server.requests] == ["Basic YTpzZWNyZXQ=", "Bearer other"]


async def test_garbage_is_an_error(server, client):
    server.inject(ApiFault(garbage=True))

    with pytest.raises(UnreadableError, match="the API server sent an unreadable ApiNode: Input data was truncated"):
        await client.get(NODES.at("host-a"))


async def test_a_response_of_a_proxy_is_shown(server, client):
    server.inject(ApiFault(status=502, message="", times=None))

    with pytest.raises(ServerFailureError, match="get /version: the server responded with HTTP status 502"):
        await client.version()


async def test_cancelling_a_watch_closes_its_connection(server, client):
    async def follow():
        async with client.watch(PODS, resource_version=str(server.store.revision)) as events:
            async for _ in events:
                pass

    task = asyncio.create_task(follow())
    await server.wait_watches(1)
    task.cancel()
    await server.wait_watches(0)


async def test_references_know_whether_there_is_a_namespace():
    with pytest.raises(ValueError, match="Pod web needs a namespace"):
        PODS.at("web")
    with pytest.raises(ValueError, match="Node host-a has no namespace"):
        NODES.at("host-a", namespace="default")
    assert LEASES.at("a/b", namespace="c").path == "/apis/coordination.k8s.io/v1/namespaces/c/leases/a%2Fb"
    assert str(LEASES.at("x", namespace="c", subresource="status")) == "leases.coordination.k8s.io/status c/x"


async def test_the_last_applied_configuration_is_not_kept():
    meta = msgspec.json.decode(
        b'{"annotations":{"kubectl.kubernetes.io/last-applied-configuration":"{}","a":"b"}}', type=ObjectMeta
    )

    assert meta.annotations == {"a": "b"}
