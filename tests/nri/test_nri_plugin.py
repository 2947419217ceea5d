"""A plugin at a runtime of either generation: registered, configured, synchronized, called, and connected again."""

import asyncio
import socket
import sys
from contextlib import asynccontextmanager, suppress

import pytest

from alignup.nri.nri_plugin import EVENTS, ConnectionTiming, NriPlugin, PluginConnection, subscription
from alignup.nri.ttrpc import Code, ConnectionClosedError, RpcError
from alignup.wire import nri_pb2 as wire
from tests.deadlines import until
from tests.nri.runtime import ScriptedRuntime, next_plugin
from tests.short_paths import short_directory

pytestmark = pytest.mark.anyio

POD = wire.PodSandbox(id="s1", name="web", uid="u1", namespace="shop")
CONTAINER = wire.Container(id="c1", pod_sandbox_id="s1", name="app")
NEW = {"version": "2.3.4", "nri": "v0.12.0"}  #: how a runtime of the second generation configures plugins


class Recorder(NriPlugin):
    """Overrides every method, and notes each call."""

    def __init__(self):
        self.calls = []

    async def configure(self, request):
        self.calls.append(("configure", request.runtime_name, request.config))

    async def synchronize(self, pods, containers):
        self.calls.append(("synchronize", [pod.id for pod in pods], [container.id for container in containers]))
        return [wire.ContainerUpdate(container_id=container.id) for container in containers]

    async def disconnected(self):
        self.calls.append(("disconnected",))

    async def update_pod_sandbox(self, pod, overhead, resources):
        self.calls.append(("update_pod_sandbox", pod.name, overhead.cpu.shares.value, resources.cpu.shares.value))

    async def create_container(self, pod, container):
        self.calls.append(("create_container", pod.name, container.name))
        adjust = wire.ContainerAdjustment()
        adjust.linux.resources.cpu.cpus = "0-1"
        return wire.CreateContainerResponse(adjust=adjust)

    async def update_container(self, pod, container, resources):
        self.calls.append(("update_container", pod.name, container.name, resources.cpu.cpus))
        return [wire.ContainerUpdate(container_id=container.id)]

    async def stop_container(self, pod, container):
        self.calls.append(("stop_container", pod.name, container.name))
        return [wire.ContainerUpdate(container_id="other")]

    async def validate_container_adjustment(self, request):
        self.calls.append(("validate_container_adjustment", request.container.name))
        return "no" if request.adjust.linux.resources.cpu.cpus else ""


def _noting(name):
    async def note(self, *objects):
        self.calls.append((name, *(object_.name for object_ in objects)))

    return note


NOTIFICATIONS = {
    name: wire.Event.Name(event).lower()
    for name, event in EVENTS.items()
    if wire.Event.Name(event).lower() not in vars(Recorder)
}
for method in NOTIFICATIONS.values():
    setattr(Recorder, method, _noting(method))


class Silent(NriPlugin):
    """Wants nothing but new containers."""

    async def create_container(self, pod, container):
        return wire.CreateContainerResponse()


@asynccontextmanager
async def connected(plugin, **options):
    """Yield a runtime, its view of *plugin*, and the plugin's connection."""
    with short_directory() as place:
        async with ScriptedRuntime().listening(place / "nri.sock") as runtime:
            connection = PluginConnection(plugin, name="test", index="42", path=place / "nri.sock", **options)
            running = asyncio.create_task(connection.run())
            try:
                yield runtime, await next_plugin(runtime), connection
            finally:
                running.cancel()
                with suppress(asyncio.CancelledError):
                    await running


async def test_a_plugin_registers_and_is_configured_and_synchronized():
    plugin = Recorder()
    async with connected(plugin) as (runtime, called, connection):
        assert [(request.plugin_name, request.plugin_idx) for request in runtime.registered] == [("test", "42")]
        assert not connection.synchronized
        await called.configure()
        answer = await called.synchronize([POD], [CONTAINER])
        assert [update.container_id for update in answer.update] == ["c1"]
        assert connection.synchronized
        assert plugin.calls == [("configure", "containerd", ""), ("synchronize", ["s1"], ["c1"])]


async def test_a_synchronization_in_parts_is_one_for_the_plugin():
    plugin = Recorder()
    async with connected(plugin) as (_, called, connection):
        first = await called.synchronize([POD], [], more=True)
        assert (first.more, list(first.update)) == (True, [])
        assert (await called.synchronize([], [CONTAINER], more=True)).more
        assert not connection.synchronized
        last = await called.synchronize([wire.PodSandbox(id="s2")], [wire.Container(id="c2")])
        assert (last.more, [update.container_id for update in last.update]) == (False, ["c1", "c2"])
        assert plugin.calls == [("synchronize", ["s1", "s2"], ["c1", "c2"])]


@pytest.mark.parametrize("generation", ["StateChange", "calls of their own"])
async def test_notifications_of_both_generations_end_in_the_same_methods(generation):
    plugin = Recorder()
    async with connected(plugin) as (_, called, _):
        for method, event in EVENTS.items():
            if method not in NOTIFICATIONS:
                continue
            container = None if method.endswith("PodSandbox") else CONTAINER
            if generation == "StateChange":
                await called.notify(event, POD, container)
            else:
                await called.call(method, wire.NotificationRequest(pod=POD, container=container), wire.Empty)
    assert plugin.calls == [
        (name, "web") if name.endswith("pod_sandbox") else (name, "web", "app") for name in NOTIFICATIONS.values()
    ]
    assert len(plugin.calls) == 9


async def test_calls_with_an_answer():
    plugin = Recorder()
    async with connected(plugin) as (_, called, _):
        created = await called.create(POD, CONTAINER)
        assert created.adjust.linux.resources.cpu.cpus == "0-1"
        resources = wire.LinuxResources(cpu=wire.LinuxCPU(cpus="2", shares=wire.OptionalUInt64(value=512)))
        assert [update.container_id for update in await called.update(POD, CONTAINER, resources)] == ["c1"]
        assert [update.container_id for update in await called.stop(POD, CONTAINER)] == ["other"]
        resize = wire.UpdatePodSandboxRequest(pod=POD, linux_resources=resources)
        await called.call("UpdatePodSandbox", resize, wire.Empty)
        validate = wire.ValidateContainerAdjustmentRequest(pod=POD, container=CONTAINER)
        answer = await called.call("ValidateContainerAdjustment", validate, wire.ValidateContainerAdjustmentResponse)
        assert (answer.reject, answer.reason) == (False, "")
        validate.adjust.CopyFrom(created.adjust)
        answer = await called.call("ValidateContainerAdjustment", validate, wire.ValidateContainerAdjustmentResponse)
        assert (answer.reject, answer.reason) == (True, "no")
        await called.call("Shutdown", wire.Empty(), wire.Empty)
    assert plugin.calls == [
        ("create_container", "web", "app"),
        ("update_container", "web", "app", "2"),
        ("stop_container", "web", "app"),
        ("update_pod_sandbox", "web", 0, 512),
        ("validate_container_adjustment", "app"),
        ("validate_container_adjustment", "app"),
    ]


async def test_a_plugin_that_overrides_nothing_answers_every_call():
    async with connected(NriPlugin()) as (_, called, _):
        await called.configure(**NEW)
        assert await called.synchronize([POD], [CONTAINER]) == wire.SynchronizeResponse()
        for method in EVENTS:
            await called.call(method, wire.NotificationRequest(pod=POD), wire.Empty)
        await called.call("StateChange", wire.StateChangeEvent(event=99), wire.Empty)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "version", "nri", "events"),
    [
        ("containerd", "1.7.24~ds1", "", 11),
        ("containerd", "v2.1.9+unknown", "", 11),
        ("containerd", "v2.2.0", "", 14),
        ("containerd", "2.3.4", "v0.12.0", 14),
        ("cri-o", "1.36.0", "", 11),
        ("cri-o", "1.37.0", "v0.12.2", 14),
        ("containerd", "", "", 11),
    ],
)
def test_only_events_that_the_runtime_knows_are_subscribed_to(name, version, nri, events):
    request = wire.ConfigureRequest(runtime_name=name, runtime_version=version, NRI_version=nri)

    assert subscription(Recorder(), request) == (1 << events) - 1
    assert subscription(Silent(), request) == 1 << wire.CREATE_CONTAINER - 1


async def test_malformed_and_unknown_calls_are_refused():
    async with connected(Recorder()) as (_, called, _):
        with pytest.raises(RpcError) as failed:
            await called.call("Explode", wire.Empty(), wire.Empty)
        assert (failed.value.code, failed.value.message) == (Code.UNIMPLEMENTED, "method Explode does not exist")
        for method in ("Configure", "CreateContainer", "StartContainer"):
            broken = wire.LinuxCPU(cpus="not this message" * 3)  # field 6 is a string: of another type there
            payload = b"\xff" + broken.SerializeToString()
            with pytest.raises(RpcError) as failed:
                await called.connection.call("nri.pkg.api.v1alpha1.Plugin", method, payload, timeout=60)
            assert failed.value.code == Code.INVALID_ARGUMENT


async def test_a_plugin_changes_containers_by_itself_and_learns_which_changes_failed():
    async with connected(Recorder()) as (runtime, called, connection):
        await called.synchronize()
        runtime.failing.add("c2")
        updates = [wire.ContainerUpdate(container_id=id_) for id_ in ("c1", "c2")]
        with pytest.raises(RpcError, match="NRI update of some containers failed"):
            await connection.update_containers(updates)
        runtime.names_failures = True
        assert [update.container_id for update in await connection.update_containers(updates)] == ["c2"]
        assert [update.container_id for update in runtime.updates] == ["c1", "c2"] * 2


async def test_a_response_that_cannot_be_decoded_is_a_failed_call():
    async with connected(Recorder()) as (runtime, called, connection):
        await called.synchronize()
        runtime.answers_garbage = True
        with pytest.raises(RpcError, match="the response of UpdateContainers cannot be decoded"):
            await connection.update_containers([])
        assert connection.synchronized


async def test_a_plugin_connects_again_with_growing_delays():
    delays = []
    resume = asyncio.Semaphore(0)

    async def sleep(seconds):
        delays.append(seconds)
        await resume.acquire()

    plugin = Recorder()
    timing = ConnectionTiming(retry=1.0, longest_retry=4.0, sleep=sleep)
    async with connected(plugin, timing=timing) as (runtime, called, connection):
        await called.synchronize()
        runtime.disconnect()
        await until(lambda: len(delays) == 1)
        assert plugin.calls[-1] == ("disconnected",)
        assert not connection.synchronized
        assert connection.problem == "the runtime closed the connection"
        with pytest.raises(ConnectionClosedError):
            await connection.update_containers([])
        for _ in range(4):  # it is accepted, but never synchronized
            before = len(delays)
            resume.release()
            await next_plugin(runtime)
            runtime.disconnect()
            await until(lambda: len(delays) > before)  # noqa: B023 - called in this round only
        resume.release()
        await (await next_plugin(runtime)).synchronize([POD], [])
        assert connection.synchronized
        runtime.disconnect()
        await until(lambda: len(delays) == 6)
    limits = (1, 2, 4, 4, 4, 1)
    assert [limit / 2 <= delay <= limit for delay, limit in zip(delays, limits, strict=True)] == [True] * 6
    assert [call[0] for call in plugin.calls] == ["synchronize", "disconnected"] * 2


async def test_a_runtime_that_is_missing_or_refuses_is_tried_again():
    problems = []

    async def sleep(_seconds):
        problems.append(connection.problem)
        await asyncio.sleep(0)

    with short_directory() as place:
        path = place / "nri.sock"
        timing = ConnectionTiming(sleep=sleep)
        connection = PluginConnection(Recorder(), name="x", index="00", path=path, timing=timing)
        running = asyncio.create_task(connection.run())
        await until(lambda: problems)
        runtime = ScriptedRuntime()
        runtime.rejects = RpcError(Code.UNKNOWN, "invalid plugin index")
        async with runtime.listening(path):
            await next_plugin(runtime)
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
        assert problems[0] == f"{path}: [Errno 2] No such file or directory"
        assert problems[-1] == f"{path}: invalid plugin index"


@pytest.mark.parametrize(("name", "index"), [("two words", "10"), ("", "10"), ("good", "1"), ("good", "ab")])
def test_names_that_runtimes_reject_are_rejected_at_once(name, index):
    with pytest.raises(ValueError, match="expected two digits, and a name"):
        PluginConnection(NriPlugin(), name=name, index=index)


async def test_a_plugin_that_the_runtime_starts_uses_its_socket_and_name():
    program = """
import asyncio
from alignup.nri.nri_plugin import NriPlugin, PluginConnection
asyncio.run(PluginConnection(NriPlugin(), name="unused", index="99", path="/nowhere").run_once())
"""
    near, far = socket.socketpair()
    environment = {"NRI_PLUGIN_NAME": "started", "NRI_PLUGIN_IDX": "07", "NRI_PLUGIN_SOCKET": str(far.fileno())}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program),
        pass_fds=[far.fileno()],
        env={"PYTHONPATH": ":".join(sys.path), **environment},
    )
    far.close()
    runtime = ScriptedRuntime()
    serving = asyncio.create_task(runtime.accept(*await asyncio.open_unix_connection(sock=near)))
    await (await next_plugin(runtime)).synchronize()
    assert [(request.plugin_name, request.plugin_idx) for request in runtime.registered] == [("started", "07")]
    runtime.disconnect()
    await serving
    assert await asyncio.wait_for(process.wait(), 60) == 0
