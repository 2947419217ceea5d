"""Faults of the test runtime: calls fail, hang and get lost; it stops and comes back."""

import asyncio

import grpc
import pytest

from alignup.align.errors import CriError, ListenError, ParseError
from alignup.kubernetes.plugins import rpc
from alignup.run.cri.client import CriTimeouts
from alignup.run.cri.client import RuntimeClient as Client
from alignup.run.cri.types import ContainerState
from alignup.testing.recording_server import NO_FAULT, Fault, RecordingServer
from alignup.testing.runtime import Runtime
from tests.testing.runtimes import pod, shell, start_container, wait_exited, wait_reachable

pytestmark = pytest.mark.anyio

FOREVER = shell("sleep 1000")
IMPATIENT = CriTimeouts(sandbox=0.1)


async def test_calls_fail_the_given_number_of_times(runtime, client):
    runtime.inject("PullImage", Fault(error="no route to host", code="UNAVAILABLE", times=2))
    runtime.images.add("app", pullable=True)

    for _ in range(2):
        with pytest.raises(CriError, match="no route to host") as caught:
            await client.pull("app")
        assert caught.value.unavailable

    assert await client.pull("app")
    assert [request.image.image for request in runtime.requests("PullImage")] == ["app"] * 3


async def test_a_failed_call_has_no_effect(runtime, client):
    runtime.inject("RunPodSandbox", Fault(error="no", times=1))

    with pytest.raises(CriError, match="no"):
        await client.run_sandbox(pod())

    assert runtime.sandboxes == ()


@pytest.mark.parametrize("fault", [Fault(hang=True, done=True, times=1), Fault(delay=600, done=True, times=1)])
async def test_a_call_may_take_effect_without_a_response(runtime, client, fault):
    runtime.inject("RunPodSandbox", fault)
    async with Client(runtime.socket, timeouts=IMPATIENT) as impatient:
        while not runtime.sandboxes:  # on a busy machine, the request may not arrive in time
            with pytest.raises(CriError) as caught:
                await impatient.run_sandbox(pod())
    with pytest.raises(CriError, match="is reserved for"):
        await client.run_sandbox(pod())

    assert caught.value.timed_out
    assert len(runtime.sandboxes) == 1


async def test_responses_may_be_late_or_garbage(runtime, client):
    runtime.inject("Version", Fault(delay=0.01))
    await client.version()
    runtime.inject("Version", Fault(garbage=True))
    with pytest.raises(CriError):
        await client.version()
    runtime.inject("Version", Fault())
    await client.version()


async def test_a_fault_of_all_methods_excepts_those_with_another_fault(runtime, client):
    runtime.inject("*", Fault(error="out of order"))
    runtime.inject("Version", Fault())

    await client.version()
    for call in (client.sandboxes(), client.conditions(), client.image("app")):
        with pytest.raises(CriError, match="out of order"):
            await call


async def test_containers_survive_a_stop_of_the_runtime(runtime, client):
    made = await start_container(client, FOREVER)
    pid = (await client.container(made)).pid

    await runtime.drop()
    with pytest.raises(CriError) as caught:
        await client.container(made)
    await runtime.serve()
    await wait_reachable(client)

    assert caught.value.unavailable
    seen = await client.container(made)
    assert (seen.state, seen.pid) == (ContainerState.RUNNING, pid)


async def test_containers_may_exit_while_the_runtime_is_stopped(runtime, client):
    made = await start_container(client, FOREVER)

    await runtime.drop()
    runtime.kill("main")
    await runtime.container("main").wait_exited()
    await runtime.serve()
    await wait_reachable(client)

    assert (await wait_exited(client, made)).exit_code == 137


async def test_pending_calls_fail_when_the_runtime_stops(runtime, client):
    runtime.inject("Version", Fault(hang=True))
    pending = asyncio.create_task(client.version())
    await runtime.wait_called("Version")

    await runtime.restart()

    with pytest.raises(CriError) as caught:
        await pending
    assert caught.value.unavailable
    runtime.inject("Version", Fault())
    await wait_reachable(client)


async def test_a_sandbox_may_fail(runtime, client):
    made = await start_container(client, FOREVER)
    other = await start_container(client, FOREVER, sandbox=pod("other"))

    await runtime.fail_sandboxes("web")

    assert [(seen.name, seen.ready) for seen in await client.sandboxes()] == [("web", False), ("other", True)]
    assert (await client.container(made)).exit_code == 137
    assert (await client.container(other)).state == ContainerState.RUNNING


async def test_requests_are_recorded_in_order(runtime, client):
    await start_container(client, FOREVER)

    assert [method for method, _ in runtime.calls.entries] == ["RunPodSandbox", "CreateContainer", "StartContainer"]
    assert runtime.requests("CreateContainer")[0].config.metadata.name == "main"


async def test_tests_can_wait_for_a_call(runtime, client):
    waiting = asyncio.create_task(runtime.wait_called("Version", times=2))
    await client.version()
    await asyncio.sleep(0)
    early = waiting.done()
    await client.version()

    assert not early
    await asyncio.wait_for(waiting, 60)


async def test_a_socket_in_use_is_left_alone(root, runtime, client):
    with pytest.raises(ListenError, match="another process listens"):
        await Runtime(runtime.socket, directory=root).serve()

    await client.version()


async def test_a_malformed_request_is_rejected(runtime):
    async with rpc.channel(runtime.socket) as channel:
        send: grpc.aio.UnaryUnaryMultiCallable = channel.unary_unary("/runtime.v1.RuntimeService/Version")
        with pytest.raises(grpc.aio.AioRpcError, match="error unmarshalling request"):
            await send(b"\xff\xff\xff")

    assert runtime.calls.entries == []


async def test_faults_expire(root):
    server = RecordingServer(root / "x.sock")
    server.inject("A", Fault(error="x", times=2))
    server.inject("B", Fault(error="x", times=0))

    assert [server.take_fault("A").error for _ in range(3)] == ["x", "x", ""]
    assert server.take_fault("B") == NO_FAULT


@pytest.mark.parametrize("code", ["OK", "NOPE", "unavailable"])
def test_a_fault_needs_a_valid_code(code):
    with pytest.raises(ParseError, match=f"a call cannot fail with {code}"):
        Fault(error="x", code=code)
