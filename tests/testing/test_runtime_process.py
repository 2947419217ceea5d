"""The runtime as a process: it serves, runs its script, and ends its containers."""

import asyncio
import json
import signal

import pytest

from alignup.align.errors import CriError, ParseError
from alignup.run.cri.client import RuntimeClient as Client
from alignup.run.cri.types import ContainerState
from alignup.testing import script
from alignup.testing.runtime import __main__ as runtime_main
from alignup.testing.runtime.__main__ import ACTIONS, main
from tests.deadlines import until
from tests.testing.processes import runtime_process
from tests.testing.runtimes import is_running, pod, shell, start_container, wait_exited, wait_reachable

pytestmark = pytest.mark.anyio


async def test_it_runs_containers_until_sigterm(root):
    async with runtime_process(root, "--image", "busybox", "--cgroup-driver", "cgroupfs", "--no-network") as process:
        async with Client(root / "cri.sock") as client:
            made = await start_container(client, shell("sleep 1000"))
            pid = (await client.container(made)).pid
            driver = await client.cgroup_driver()
            with pytest.raises(CriError, match="cni plugin not initialized"):
                await client.run_sandbox(pod("own", host_network=False))
        async with Client(root / "cri.sock") as another:
            found = await another.container(made)

        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 60) == 0
        assert process.stderr
        errors = await process.stderr.read()

    assert (driver, found.state, found.pid) == ("cgroupfs", ContainerState.RUNNING, pid)
    assert pid
    assert not is_running(pid)
    assert not (root / "cri.sock").exists()
    assert errors == b""


async def test_it_runs_its_script(root, tmp_path):
    (tmp_path / "script").write_text('{"do": "fault", "method": "PullImage", "error": "not now", "times": 1}')
    options = ("--image", "busybox", "--pullable", "app=sleep 60", "--script", str(tmp_path / "script"))

    async with runtime_process(root, *options), Client(root / "cri.sock") as client:
        with pytest.raises(CriError, match="not now"):
            await client.pull("app")
        assert await client.pull("app")
        assert await client.run_sandbox(pod())


async def test_its_script_may_crash_it(root, tmp_path):
    (tmp_path / "script").write_text('{"do": "crash"}')

    async with runtime_process(root, "--script", str(tmp_path / "script")) as process:
        assert await asyncio.wait_for(process.wait(), 60) == -signal.SIGKILL


async def test_a_dropped_runtime_comes_back_with_its_sandboxes(runtime, client):
    made = await client.run_sandbox(pod())

    steps = script.parse('{"do": "drop", "seconds": 0.1}', ACTIONS)
    playing = asyncio.create_task(script.play(steps, runtime))
    await until(lambda: not runtime.socket.exists())
    await playing
    await wait_reachable(client)

    assert (await client.sandbox(made)).ready


async def test_actions_run(runtime, client):
    async def do(**step):
        await script.play(script.parse(json.dumps(step), ACTIONS), runtime)

    made = await start_container(client, shell("sleep 1000"))
    other = await start_container(client, shell("sleep 1000", name="beside"), sandbox=pod("other"))
    await do(do="kill", container="main", signal=9)
    await do(do="lose", pod="other")
    await do(do="forget", image="busybox")
    await do(do="image", image="app")
    await do(do="pullable", image="tool")
    await do(do="network", ready=False)

    assert [(await wait_exited(client, one)).exit_code for one in (made, other)] == [137, 137]
    assert [bool(await client.image(name)) for name in ("busybox", "app", "tool")] == [False, True, False]
    assert await client.pull("tool")
    assert [one.ready for one in await client.conditions()] == [True, False]


def test_the_documented_examples_are_valid_and_complete():
    lines = (runtime_main.__doc__ or "").splitlines()
    example = "\n".join(line for line in lines if line.lstrip().startswith("{"))

    assert {step.do for step in script.parse(example, ACTIONS)} == ACTIONS.keys()


@pytest.mark.parametrize(
    ("line", "text"),
    [
        pytest.param({"do": "devices", "devices": "1"}, "unknown action devices", id="an action of a plugin"),
        pytest.param({"do": "drop"}, "drop needs seconds", id="a missing field"),
        pytest.param({"do": "fault", "method": "*", "code": "OK"}, "cannot fail with OK", id="not an error"),
        pytest.param(
            {"do": "fault", "method": "*", "times": "2"},
            "fault has an invalid times: 2",
            id="a string instead of a number",
        ),
        pytest.param({"do": "kill", "container": "main", "signal": 900}, "900 is not a signal", id="not a signal"),
    ],
)
def test_script_errors_name_the_line(line, text):
    with pytest.raises(ParseError, match=r"^line 1 of the script: ") as caught:
        script.parse(json.dumps(line), ACTIONS)

    assert text in str(caught.value)


def test_invalid_options_are_rejected(capsys, tmp_path):
    (tmp_path / "file").write_text("")

    assert main(["--socket", str(tmp_path / "file"), "--dir", "nowhere"]) == 2
    assert "is not a socket" in capsys.readouterr().err
    assert main(["--socket", str(tmp_path / "sock"), "--dir", "nowhere", "--script", "no/such/script"]) == 2
    assert "No such file" in capsys.readouterr().err
