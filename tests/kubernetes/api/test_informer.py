"""Informers against the test server: the cache equals the server, and changes lead to it in order."""

import asyncio
import random
from contextlib import asynccontextmanager
from typing import Any

import pytest

from alignup.kubernetes.api import (
    PODS,
    UNFINISHED_PODS,
    ApiClient,
    EventType,
    Informer,
    ObjectPage,
    Query,
    ServerVersion,
    Timing,
    WatchEvent,
)
from alignup.kubernetes.api import client as clients
from alignup.kubernetes.api import informer as informers
from alignup.kubernetes.api.access import Access
from alignup.kubernetes.api.errors import ApiError, ForbiddenError, UnreachableError
from alignup.kubernetes.api.objects import ApiPod, ObjectMeta
from alignup.testing.api_server import ApiFault, ApiServer
from tests.deadlines import until
from tests.effort import SEED, did, rounds
from tests.kubernetes.api.objects import pod
from tests.kubernetes.api.tasks import running

pytestmark = pytest.mark.anyio


def recorded(informer):
    """The changes of an informer as ``TYPE name``, in order."""
    changes = []
    informer.subscribe(lambda change: changes.append(f"{change.type} {change.object.metadata.name}"))
    return changes


def parameters(server, **wanted):
    return [request.parameters for request in server.requests if wanted.items() <= request.parameters.items()]


@pytest.fixture(params=[True, False], ids=["streamed", "paged"])
def way(request, server):
    """Whether the server streams lists."""
    server.streamed_lists = request.param
    return request.param


@pytest.fixture
def synced(client, follow):
    """Start an informer of pods that has their list; return it with the changes that it reports."""

    async def start():
        informer = Informer(client, PODS)
        changes = recorded(informer)
        follow(informer.run())
        await informer.wait_synced()
        return informer, changes

    return start


async def test_listed_objects_are_added_and_then_followed(server, way, synced):
    server.put(pod("a"))
    informer, changes = await synced()
    assert changes == ["ADDED a"]

    server.put(pod("b"))
    server.put(pod("a", cpu="2"))
    server.remove("pods", "b")
    await until(lambda: len(changes) == 4)

    assert changes == ["ADDED a", "ADDED b", "MODIFIED a", "DELETED b"]
    assert list(informer.objects) == [("default", "a")]
    (listed,) = informer.objects.values()
    assert informer.get("a", namespace="default") is listed
    assert listed.spec.containers[0].resources.requests == {"cpu": "2"}
    assert bool(parameters(server, limit="500")) is not way


async def test_a_list_and_a_watch_have_a_limit_of_objects(server, client, follow, way, monkeypatch):
    for module in (clients, informers):
        monkeypatch.setattr(module, "MAX_OBJECTS", 3)
    for number in range(3):
        server.put(pod(f"p{number}"))
    informer = Informer(client, PODS)
    follow(informer.run())
    await informer.wait_synced()
    for number in range(3, 6):
        server.put(pod(f"p{number}"))
    await until(lambda: "pods: more than 3 objects" in str(informer.error))
    assert len(informer.objects) <= 4

    other = Informer(client, PODS)
    follow(other.run())
    await until(lambda: "pods: more than 3 objects" in str(other.error))
    assert not other.objects


async def test_old_servers_are_not_asked_for_streamed_lists(timing):
    async with ApiServer(version="1.33") as server, running() as follow:
        server.streamed_lists = False
        async with ApiClient(Access(server=server.url), timing=timing) as client:
            informer = Informer(client, PODS)
            follow(informer.run())
            await informer.wait_synced()

    assert not parameters(server, sendInitialEvents="true")


async def test_lists_are_read_in_pages_when_streaming_fails(server, client, follow):
    server.put(pod())
    server.inject(ApiFault(status=500, message="required storage feature is disabled"), verb="watch")
    informer = Informer(client, PODS)
    follow(informer.run())

    await server.wait_watches(1)
    server.expire(watches=True)
    await until(lambda: len(parameters(server, limit="500")) == 2)

    assert len(parameters(server, sendInitialEvents="true")) == 1


async def test_a_watch_resumes_at_the_last_version_without_a_list(server, way, synced):
    informer, changes = await synced()
    server.put(pod("a"))
    await until(lambda: changes)

    await server.wait_watches(1)
    server.disconnect()
    server.put(pod("b"))
    await until(lambda: len(changes) == 2)
    server.end_watches()
    server.put(pod("c"))
    await until(lambda: len(changes) == 3)

    assert changes == ["ADDED a", "ADDED b", "ADDED c"]
    lists = parameters(server, limit="500") + parameters(server, sendInitialEvents="true")
    assert len(lists) == (1 if way else 2)  # the second was the rejected attempt to stream
    assert informer.error is None


async def test_bookmarks_advance_the_version_to_resume_at(server, client, follow):
    informer = Informer(client, PODS, Query(namespace="ml"))
    follow(informer.run())
    await informer.wait_synced()
    await server.wait_watches(1)
    server.put(pod("elsewhere"))
    server.bookmark()
    version = str(server.store.revision)
    server.end_watches()
    await until(lambda: parameters(server, resourceVersion=version))


async def test_after_410_only_differences_are_reported(server, way, synced):
    for name in ("kept", "changed", "replaced", "gone"):
        server.put(pod(name))
    _, changes = await synced()
    await server.wait_watches(1)
    changes.clear()

    server.hold()
    server.remove("pods", "gone")
    server.put(pod("new"))
    server.remove("pods", "replaced")
    server.put(pod("changed", cpu="2"))
    server.put(pod("replaced"))
    server.expire(watches=True)
    server.hold(held=False)
    await until(lambda: len(changes) == 5)

    assert changes == ["DELETED gone", "ADDED new", "MODIFIED changed", "DELETED replaced", "ADDED replaced"]


async def test_late_subscribers_get_what_is_there_and_can_leave(server, synced):
    server.put(pod("a"))
    informer, _ = await synced()

    changes = []
    leave = informer.subscribe(lambda change: changes.append(change.object.metadata.name))
    every = informer.changes()
    assert (await anext(every)).object.metadata.name == "a"
    leave()
    server.put(pod("b"))

    assert (await anext(every)).object.metadata.name == "b"
    assert changes == ["a"]
    await every.aclose()


async def test_errors_are_kept_logged_once_and_retried(server, client, follow, log):
    server.inject(ApiFault(status=403, message="pods is forbidden", times=3), verb="watch")
    informer = Informer(client, PODS)
    seen: list[ApiError | None] = []
    follow(informer.run())
    follow(record_errors(informer, seen))
    await informer.wait_synced()

    assert informer.error is None
    (failure,) = [entry for entry in log if entry["event"] == "cannot follow the API server"]
    assert failure["problem"].endswith("pods is forbidden")
    assert any(isinstance(error, ForbiddenError) for error in seen)


async def record_errors(informer, seen):
    while True:
        seen.append(informer.error)
        await asyncio.sleep(0)


async def test_delays_grow_while_a_server_is_down_and_start_again_after_it():
    waits = []

    async def sleep(seconds):
        waits.append(seconds)
        await asyncio.sleep(0)

    timing = Timing(retry=1, longest_retry=5, sleep=sleep, random=lambda: 1.0, attempts=1)
    async with ApiServer() as server, running() as follow:
        server.inject(ApiFault(status=429, times=5), verb="watch")
        async with ApiClient(Access(server=server.url), timing=timing) as client:
            informer = Informer(client, PODS)
            changes = recorded(informer)
            follow(informer.run())
            await informer.wait_synced()
            server.put(pod())
            await until(lambda: changes)
            assert waits == [1, 2, 4, 5, 5]

            server.inject(ApiFault(disconnect=True, times=1), verb="watch")
            server.end_watches()
            await until(lambda: len(waits) == 6)
    assert waits[5] == 1


async def test_a_server_that_ends_watches_at_once_is_not_asked_without_a_pause(server, follow):
    waits: asyncio.Queue[float] = asyncio.Queue()

    async def sleep(seconds):
        waits.put_nowait(seconds)
        await asyncio.sleep(0)  # a client that is closed fails at once

    timing = Timing(sleep=sleep, random=lambda: 1.0, clock=lambda: 0.0)
    async with ApiClient(Access(server=server.url), timing=timing) as client:
        informer = Informer(client, PODS)
        follow(informer.run())
        await informer.wait_synced()
        for expected in (0.5, 1.0, 2.0):
            await server.wait_watches(1)
            server.end_watches()
            if expected == 0.5:
                await server.wait_watches(0)  # the first watch had events: those of the list
                await server.wait_watches(1)
                server.end_watches()
            async with asyncio.timeout(60):
                assert await waits.get() == expected
        assert isinstance(informer.error, UnreachableError)


async def test_a_version_that_the_server_does_not_know_yet_is_listed_again(server, synced):
    """After etcd is restored from a backup, the server's versions start again below ours."""
    informer, _ = await synced()
    await server.wait_watches(1)
    server.store.revision += 100
    server.bookmark()
    server.end_watches()
    server.store.revision -= 100
    server.put(pod())

    await until(lambda: informer.objects)


async def test_a_listener_that_fails_on_one_object_ends_nothing(server, client, follow, log, way):
    """The object is named, counted and logged; other objects, and other listeners of this one, go on."""
    server.put(pod("bad"))
    informer = Informer(client, PODS)

    def fail_on_bad(change):
        if change.object.metadata.name == "bad" and change.object.spec.containers[0].resources.requests != {"cpu": "7"}:
            raise RecursionError("too deep")

    informer.subscribe(fail_on_bad)
    changes = recorded(informer)
    follow(informer.run())
    await informer.wait_synced()
    server.put(pod("good"))
    await until(lambda: "ADDED good" in changes)

    assert changes == ["ADDED bad", "ADDED good"]
    assert informer.unreadable == {("default", "bad"): "RecursionError: too deep"}
    assert informer.failures == 1
    (entry,) = [entry for entry in log if entry["event"] == "object ignored"]
    assert (entry["kind"], entry["namespace"], entry["name"]) == ("Pod", "default", "bad")
    assert entry["exc_info"]
    informer.subscribe(fail_on_bad)  # a late listener, too
    assert informer.failures == 2

    server.put(pod("bad", cpu="7"))
    await until(lambda: not informer.unreadable)


async def test_a_change_that_a_listener_fails_on_is_reported_again(server, client, follow, monkeypatch, log):
    """Later changes of the object are part of it."""
    monkeypatch.setattr(informers, "_FIRST_RETRY", 0.0)
    server.put(pod("p"))
    informer, fails = Informer(client, PODS), True
    seen: list[tuple[str, str, bool]] = []

    def listen(change):
        if fails:
            raise LookupError("a defect")
        request = change.object.spec.containers[0].resources.requests["cpu"]
        seen.append((change.type.value, str(request), change.old is None))

    informer.subscribe(listen)
    follow(informer.run())
    await until(lambda: informer.failures > 2)
    server.put(pod("p", cpu="7"))
    await until(lambda: informer.objects["default", "p"].spec.containers[0].resources.requests == {"cpu": "7"})
    fails = False
    await until(lambda: seen)
    assert not informer.unreadable
    fails = True
    server.remove("pods", "p")
    await until(lambda: not informer.objects)
    fails = False
    await until(lambda: len(seen) > 1)
    assert seen == [("ADDED", "7", True), ("DELETED", "7", False)]


async def test_a_list_listener_that_fails_ends_nothing(client, follow):
    informer = Informer(client, PODS)
    informer.subscribe_lists(lambda: int("one"))
    listed = []
    informer.subscribe_lists(lambda: listed.append(True))
    follow(informer.run())
    await until(lambda: listed)
    assert informer.failures == 1


@pytest.mark.parametrize("depth", [600, 3_000, 9_900])
async def test_an_object_that_is_nested_too_deeply_does_not_hide_the_others(server, way, depth, synced):
    for name in ("a", "deep", "z"):
        server.put(pod(name))
    stored = server.store.find(server.resources.named("pods"), ("default", "deep"))
    nested = b'{"deep":%b%b,' % (b"[" * depth, b"]" * depth)
    vars(stored)["text"] = nested + stored.text[1:]  # what the server sends for it
    informer, _ = await synced()

    names = {name for _, name in informer.objects}
    assert names == ({"a", "deep", "z"} if depth == 600 else {"a", "z"})
    assert informer.unreadable == ({} if depth == 600 else {("default", "deep"): "nested too deeply"})

    server.put(pod("b"))
    await until(lambda: informer.get("b", namespace="default"))
    server.put(pod("deep", cpu="3"))
    await until(lambda: not informer.unreadable and informer.get("deep", namespace="default"))


async def test_an_unreadable_object_is_named_until_it_is_gone(server, way, log, synced):
    server.put({**pod("bad"), "spec": {"nodeName": 7}})
    server.put({**pod("good")})
    informer, _ = await synced()

    assert [name for _, name in informer.objects] == ["good"]
    assert list(informer.unreadable) == [("default", "bad")]
    assert "nodeName" in informer.unreadable["default", "bad"]
    assert [(entry["kind"], entry["name"]) for entry in log if entry["event"] == "object ignored"] == [("Pod", "bad")]

    server.put({**pod("good"), "spec": {"nodeName": 8}})
    await until(lambda: len(informer.unreadable) == 2)
    assert not informer.objects
    server.remove("pods", "bad")
    server.remove("pods", "good")
    await until(lambda: not informer.unreadable)


async def test_a_truncated_list_is_asked_for_again(server, log, synced):
    server.streamed_lists = False
    server.put(pod("a"))
    server.inject(ApiFault(garbage=True, times=2), verb="list")
    informer, _ = await synced()

    assert list(informer.objects) == [("default", "a")]
    (failure,) = [entry for entry in log if entry["event"] == "cannot follow the API server"]
    assert "truncated" in failure["problem"]


class ScriptedWatch:
    """A client whose lists and watches are scripted: every watch sends its events, and the last one stays open."""

    def __init__(self, lists, watches, timing):
        self.timing = timing
        self.lists, self.watches = list(lists), list(watches)
        self.resumed = []

    async def version(self):
        return ServerVersion("1", "30")

    async def list(self, resource, query):
        names, version = self.lists.pop(0)
        return ObjectPage(tuple(scripted_pod(*name.split()) for name in names), version)

    @asynccontextmanager
    async def watch(self, resource, query, *, resource_version, initial):
        events = self.watches.pop(0)
        self.resumed.append(resource_version)

        async def send():
            for type_, name in events:
                obj = scripted_pod(*name.split())
                version = obj.metadata.resource_version
                if type_ == "BOOKMARK":
                    yield WatchEvent(EventType.BOOKMARK, None, "", "", version)
                else:
                    yield WatchEvent(EventType(type_), obj, "default", obj.metadata.name, version)
            if not self.watches:
                await asyncio.Event().wait()

        yield send()


def scripted_pod(name, version="", uid=""):
    return ApiPod(metadata=ObjectMeta(name=name, namespace="default", uid=uid or name, resource_version=version))


async def test_events_that_come_twice_are_reported_once(timing, follow):
    events = [("ADDED", "a 5"), ("ADDED", "a 5"), ("MODIFIED", "a 6"), ("ADDED", "a 5"), ("MODIFIED", "a 6")]
    events += [("ADDED", "b 7"), ("DELETED", "b 8"), ("DELETED", "b 8"), ("ADDED", "c 9")]
    client: Any = ScriptedWatch([([], "4")], [events], timing)
    informer = Informer(client, PODS)
    changes = recorded(informer)
    follow(informer.run())
    await until(lambda: "ADDED c" in changes)

    assert changes == ["ADDED a", "MODIFIED a", "ADDED b", "DELETED b", "ADDED c"]


async def test_events_out_of_order_lead_to_a_new_list(timing, follow):
    """A deleted pod does not come back, and the pod whose event came late is not lost."""
    events = [("ADDED", "a 5"), ("DELETED", "a 7"), ("MODIFIED", "a 6"), ("ADDED", "never 99")]
    client: Any = ScriptedWatch([([], "4"), (["b 6"], "8")], [events, [("ADDED", "c 9")]], timing)
    informer = Informer(client, PODS)
    changes = recorded(informer)
    follow(informer.run())
    await until(lambda: "ADDED c" in changes)

    assert changes == ["ADDED a", "DELETED a", "ADDED b", "ADDED c"]
    assert informer.error is None


@pytest.mark.parametrize("version", ["5", "", "opaque"])
async def test_a_late_bookmark_does_not_bring_a_deleted_object_back(timing, follow, version):
    events = [("ADDED", "a 6"), ("DELETED", "a 7"), ("BOOKMARK", f"- {version}"), ("ADDED", "a 6")]
    client: Any = ScriptedWatch([([], "4"), ([], "8")], [events, [("ADDED", "c 9")]], timing)
    informer = Informer(client, PODS)
    changes = recorded(informer)
    follow(informer.run())
    await until(lambda: len(changes) >= 3)

    assert changes == ["ADDED a", "DELETED a", "ADDED c"]


async def test_bookmarks_of_a_server_whose_versions_are_no_numbers_are_taken(timing, follow):
    client: Any = ScriptedWatch([([], "x")], [[("BOOKMARK", "- y"), ("ADDED", "a y")], []], timing)
    informer = Informer(client, PODS)
    follow(informer.run())
    await until(lambda: not client.watches)

    assert client.resumed == ["x", "y"]


class Mirror:
    """A second cache, made of the changes of an informer alone."""

    def __init__(self, informer):
        self.objects = {}
        self._informer = informer
        informer.subscribe(self._take)

    def _take(self, change):
        metadata = change.object.metadata
        key = (metadata.namespace, metadata.name)
        assert (change.type == "ADDED") is (key not in self.objects)
        assert change.old is self.objects.get(key)
        if change.type == "DELETED":
            del self.objects[key]
        else:
            assert change.old is None or int(change.old.metadata.resource_version) < int(metadata.resource_version)
            self.objects[key] = change.object
        assert self.objects == self._informer.objects


@pytest.mark.soak
@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "paged"])
async def test_the_cache_equals_the_server_after_any_faults(server, client, follow, streamed):
    """Random writes, disconnects, ended watches, 410 and slow streams."""
    random_ = random.Random(SEED)
    server.streamed_lists = streamed
    server.chunk = 50
    informer = Informer(client, PODS, UNFINISHED_PODS)
    mirror = Mirror(informer)
    follow(informer.run())
    actions = [
        server.disconnect,
        server.end_watches,
        server.bookmark,
        server.hold,
        lambda: server.hold(held=False),
        server.expire,
        lambda: server.expire(watches=True),
        lambda: server.inject(ApiFault(status=503, times=2)),
        lambda: server.inject(ApiFault(status=410, times=1), verb="list"),
        lambda: server.inject(ApiFault(disconnect=True, times=1), verb="watch"),
    ]
    for _ in range(rounds(60, soak=6000)):
        for _ in range(random_.randrange(6)):
            name = f"p{random_.randrange(8)}"
            if random_.random() < 0.3 and server.store.find(server.resources.named("pods"), ("default", name)):
                server.remove("pods", name)
            else:
                server.put(pod(name, cpu=str(random_.randrange(4)), phase=random_.choice(["Running", "Failed"])))
        random_.choice(actions)()
        for _ in range(random_.randrange(20)):
            await asyncio.sleep(0)
        did("faults of an API server")
    server.hold(held=False)

    def equal():
        wanted = {
            obj["metadata"]["name"]: obj["metadata"]["resourceVersion"]
            for obj in server.objects("pods")
            if obj["status"]["phase"] != "Failed"
        }
        return wanted == {key[1]: obj.metadata.resource_version for key, obj in informer.objects.items()}

    await until(equal)
    assert mirror.objects == informer.objects
    assert not informer.failures, informer.unreadable
