"""The runtime as a process: it listens, does as its script says, and takes its containers with it."""

import asyncio
import json
import signal

import pytest

from alignup.align.errors import CriError, ParseError
from alignup.enforce.cri.client import RuntimeClient as Client
from alignup.enforce.cri.types import ContainerState
from alignup.testing.runtime import script
from alignup.testing.runtime.__main__ import main
from tests.testing.processes import runtime_process
from tests.testing.runtimes import exited, lives, pod, reached, shell, started, until

pytestmark = pytest.mark.anyio


async def test_it_runs_containers_until_it_is_told_to_stop(place):
    async with runtime_process(place, "--image", "busybox", "--cgroup-driver", "cgroupfs", "--no-network") as process:
        async with Client(place / "cri.sock") as client:
            made = await started(client, shell("sleep 1000"))
            pid = (await client.container(made)).pid
            driver = await client.cgroup_driver()
            with pytest.raises(CriError, match="cni plugin not initialized"):
                await client.run_sandbox(pod("own", host_network=False))
        async with Client(place / "cri.sock") as another:
            found = await another.container(made)

        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 10) == 0
        assert process.stderr
        complaints = await process.stderr.read()

    assert (driver, found.state, found.pid) == ("cgroupfs", ContainerState.RUNNING, pid)
    assert pid
    assert not lives(pid)
    assert not (place / "cri.sock").exists()
    assert complaints == b""


async def test_it_does_what_its_script_says(place, tmp_path):
    steps = [
        {"do": "fault", "method": "PullImage", "error": "not now", "times": 1},
        {"after": 1, "do": "drop", "seconds": 0.3},
        {"after": 0.5, "do": "crash"},
    ]
    (tmp_path / "script").write_text("\n".join(map(json.dumps, steps)))
    told = ("--image", "busybox", "--pullable", "app=sleep 60", "--script", str(tmp_path / "script"))

    async with runtime_process(place, *told) as process, Client(place / "cri.sock") as client:
        with pytest.raises(CriError, match="not now"):
            await client.pull("app")
        assert await client.pull("app")
        made = await client.run_sandbox(pod())
        await until(lambda: not (place / "cri.sock").exists())
        await reached(client)
        assert (await client.sandbox(made)).ready
        assert await asyncio.wait_for(process.wait(), 10) == -signal.SIGKILL


async def test_what_is_said_is_done(runtime, client):
    async def do(**told):
        await script.play(script.parse(json.dumps(told)), runtime)

    made = await started(client, shell("sleep 1000"))
    other = await started(client, shell("sleep 1000", name="beside"), sandbox=pod("other"))
    await do(do="kill", container="main", signal=9)
    await do(do="lose", pod="other")
    await do(do="forget", image="busybox")
    await do(do="image", image="app")
    await do(do="pullable", image="tool")
    await do(do="network", ready=False)

    assert [(await exited(client, one)).exit_code for one in (made, other)] == [137, 137]
    assert [bool(await client.image(name)) for name in ("busybox", "app", "tool")] == [False, True, False]
    assert await client.pull("tool")
    assert [one.ready for one in await client.conditions()] == [True, False]


def test_the_example_in_the_documentation_is_one():
    example = "\n".join(line for line in (script.__doc__ or "").splitlines() if line.lstrip().startswith("{"))

    assert {step.do for step in script.parse(example)} == script.FIELDS.keys()


@pytest.mark.parametrize(
    ("line", "says"),
    [
        pytest.param({"do": "devices", "devices": "1"}, "no such thing to do: devices", id="what a plugin does"),
        pytest.param({"do": "drop"}, "drop has to be told seconds", id="told too little"),
        pytest.param({"do": "fault", "method": "*", "code": "OK"}, "cannot fail with OK", id="no failure"),
        pytest.param({"do": "fault", "method": "*", "times": "2"}, "not times: 2", id="a text for a number"),
        pytest.param({"do": "kill", "container": "main", "signal": 900}, "900 is no signal", id="no signal"),
    ],
)
def test_what_is_wrong_in_a_script_is_said_with_its_line(line, says):
    with pytest.raises(ParseError, match=r"^line 1 of the script: ") as caught:
        script.parse(json.dumps(line))

    assert says in str(caught.value)


def test_what_is_wrong_is_said(capsys, tmp_path):
    (tmp_path / "file").write_text("")

    assert main(["--socket", str(tmp_path / "file"), "--dir", "nowhere"]) == 2
    assert "is no socket" in capsys.readouterr().err
    assert main(["--socket", str(tmp_path / "sock"), "--dir", "nowhere", "--script", "no/such/script"]) == 2
    assert "No such file" in capsys.readouterr().err
