"""What goes wrong with the runtime for tests when it is told to: calls fail, hang, get lost; it goes and comes back."""

import asyncio

import grpc
import pytest

from alignup import rpc
from alignup.align.errors import CriError, ListenError, ParseError
from alignup.enforce.cri.client import CriTimeouts
from alignup.enforce.cri.client import RuntimeClient as Client
from alignup.enforce.cri.types import ContainerState
from alignup.testing.faults import NO_FAULT, Fault, Faults
from alignup.testing.runtime import Runtime
from tests.testing.runtimes import exited, pod, reached, shell, started

pytestmark = pytest.mark.anyio

FOREVER = shell("sleep 1000")
HURRIED = CriTimeouts(request=0.3, sandbox=0.3, pull=0.3)


async def test_calls_fail_as_often_as_was_said(runtime, client):
    runtime.inject("PullImage", Fault(error="no route to host", code="UNAVAILABLE", times=2))
    runtime.images.add_pullable("app")

    for _ in range(2):
        with pytest.raises(CriError, match="no route to host") as caught:
            await client.pull("app")
        assert caught.value.unavailable

    assert await client.pull("app")
    assert [request.image.image for request in runtime.requests("PullImage")] == ["app"] * 3


async def test_a_failed_call_has_done_nothing(runtime, client):
    runtime.inject("RunPodSandbox", Fault(error="no", times=1))

    with pytest.raises(CriError, match="no"):
        await client.run_sandbox(pod())

    assert runtime.sandboxes == ()


@pytest.mark.parametrize("fault", [Fault(hang=True, done=True, times=1), Fault(delay=1, done=True, times=1)])
async def test_a_call_may_be_done_although_nobody_hears_of_it(runtime, fault):
    async with Client(runtime.socket, timeouts=HURRIED) as client:
        runtime.inject("RunPodSandbox", fault)
        with pytest.raises(CriError) as caught:
            await client.run_sandbox(pod())
        with pytest.raises(CriError, match="is reserved for"):
            await client.run_sandbox(pod())

    assert caught.value.timed_out
    assert len(runtime.sandboxes) == 1


async def test_answers_may_be_late_or_none_at_all(runtime, client):
    runtime.inject("Version", Fault(delay=0.05))
    await client.version()
    runtime.inject("Version", Fault(garbage=True))
    with pytest.raises(CriError):
        await client.version()
    runtime.inject("Version", Fault())
    await client.version()


async def test_all_methods_may_fail_but_those_with_a_fault_of_their_own(runtime, client):
    runtime.inject("*", Fault(error="out of order"))
    runtime.inject("Version", Fault())

    await client.version()
    for asked in (client.sandboxes(), client.conditions(), client.image("app")):
        with pytest.raises(CriError, match="out of order"):
            await asked


async def test_what_runs_goes_on_while_the_runtime_is_away(runtime, client):
    made = await started(client, FOREVER)
    pid = (await client.container(made)).pid

    await runtime.drop()
    with pytest.raises(CriError) as caught:
        await client.container(made)
    await runtime.serve()
    await reached(client)

    assert caught.value.unavailable
    seen = await client.container(made)
    assert (seen.state, seen.pid) == (ContainerState.RUNNING, pid)


async def test_what_ends_while_the_runtime_is_away_has_ended_when_it_is_back(runtime, client):
    made = await started(client, FOREVER)

    await runtime.drop()
    runtime.kill("main")
    await runtime.container("main").wait_exited()
    await runtime.serve()
    await reached(client)

    assert (await exited(client, made)).exit_code == 137


async def test_calls_under_way_break_off_when_it_goes(runtime, client):
    runtime.inject("Version", Fault(hang=True))
    asking = asyncio.create_task(client.version())
    await runtime.wait_called("Version")

    await runtime.restart()

    with pytest.raises(CriError) as caught:
        await asking
    assert caught.value.unavailable
    runtime.inject("Version", Fault())
    await reached(client)


async def test_a_sandbox_may_be_lost(runtime, client):
    made = await started(client, FOREVER)
    other = await started(client, FOREVER, sandbox=pod("other"))

    await runtime.fail_sandboxes("web")

    assert [(seen.name, seen.ready) for seen in await client.sandboxes()] == [("web", False), ("other", True)]
    assert (await client.container(made)).exit_code == 137
    assert (await client.container(other)).state == ContainerState.RUNNING


async def test_what_was_asked_is_remembered_in_order(runtime, client):
    await started(client, FOREVER)

    assert [method for method, _ in runtime.calls.entries] == ["RunPodSandbox", "CreateContainer", "StartContainer"]
    assert runtime.requests("CreateContainer")[0].config.metadata.name == "main"


async def test_somebody_can_wait_for_a_call(runtime, client):
    waiting = asyncio.create_task(runtime.wait_called("Version", times=2))
    await client.version()
    await asyncio.sleep(0)
    early = waiting.done()
    await client.version()

    assert not early
    await asyncio.wait_for(waiting, 5)


async def test_nobody_is_driven_from_his_socket(place, runtime, client):
    with pytest.raises(ListenError, match="another process listens"):
        await Runtime(runtime.socket, directory=place).serve()

    await client.version()


async def test_a_stranger_is_told_that_it_sent_no_message(runtime):
    async with rpc.channel(runtime.socket) as line:
        ask: grpc.aio.UnaryUnaryMultiCallable = line.unary_unary("/runtime.v1.RuntimeService/Version")
        with pytest.raises(grpc.aio.AioRpcError, match="error unmarshalling request"):
            await ask(b"\xff\xff\xff")

    assert runtime.calls.entries == []


def test_faults_are_used_up():
    faults, two, none = Faults(), Fault(error="x", times=2), Fault(error="x", times=0)
    faults.set("A", two)
    faults.set("B", none)

    assert [faults.take("A").error for _ in range(3)] == ["x", "x", ""]
    assert faults.take("B") == NO_FAULT


@pytest.mark.parametrize("code", ["OK", "NOPE", "unavailable"])
def test_calls_fail_with_codes_that_there_are(code):
    with pytest.raises(ParseError, match=f"a call cannot fail with {code}"):
        Fault(error="x", code=code)
