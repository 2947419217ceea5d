"""The DRA driver as a process: it registers, publishes its slices, reads claims and runs its script."""

import asyncio
import json
import signal

import pytest

from alignup.align.errors import ParseError
from alignup.testing import dra_driver as driver_program
from alignup.testing import script
from alignup.testing.api_server import ApiServer
from alignup.testing.dra_driver import ACTIONS, main
from tests.testing.dra_driver_client import DraDriverClient, make_claim
from tests.testing.processes import program_process

pytestmark = pytest.mark.anyio

OPTIONS = ("--name", "gpu.example.com", "--devices", "1@0,1@1", "--node", "worker")


@pytest.fixture
async def server(tmp_path):
    async with ApiServer() as running:
        running.write_kubeconfig(tmp_path / "config")
        yield running


async def until_exists(path):
    async with asyncio.timeout(60):
        while not path.exists():  # noqa: ASYNC110 - the program under test creates it
            await asyncio.sleep(0.01)


async def test_it_publishes_prepares_and_stops_on_sigterm(directory, server, tmp_path):
    client = DraDriverClient(directory)
    claim = make_claim("a", "gpu-1")
    server.put(claim)
    options = (*OPTIONS, "--dir", str(directory), "--kubeconfig", str(tmp_path / "config"))
    async with program_process("alignup.testing.dra_driver", *options) as driver:
        await until_exists(directory / "plugins_registry" / "gpu.example.com-reg.sock")
        await client.register()
        assert driver.stdout is not None
        assert driver.stderr is not None
        printed = await driver.stdout.readline()
        await client.register()
        again = await driver.stdout.readline()
        slices = server.objects("resourceslices")
        prepared = await client.prepare(claim)
        missing = await client.prepare(make_claim("b"))
        server.tokens = {"another"}
        forbidden = await client.prepare(make_claim("c"))
        driver.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(driver.wait(), 60) == 0
        errors = await driver.stderr.read()

    assert (printed, again) == (b"registered gpu.example.com: 1\n", b"registered gpu.example.com: 2\n")
    assert errors == b""
    assert [entry["name"] for part in slices for entry in part["spec"]["devices"]] == ["gpu-0", "gpu-1"]
    assert [device.device_name for device in prepared["a"]] == ["gpu-1"]
    assert missing == {"b": "ResourceClaim default/b does not exist"}
    assert forbidden["c"].endswith(": Unauthorized")


async def test_it_runs_its_script(directory, server, tmp_path):
    client = DraDriverClient(directory)
    file = tmp_path / "script"
    file.write_text('{"do": "claim", "claim": "*", "error": "out of order"}\n{"do": "crash", "after": 1000}')
    options = (*OPTIONS, "--dir", str(directory), "--kubeconfig", str(tmp_path / "config"), "--script", str(file))
    async with program_process("alignup.testing.dra_driver", *options) as driver:
        await until_exists(directory / "plugins_registry" / "gpu.example.com-reg.sock")
        await client.register()
        assert driver.stdout is not None
        await driver.stdout.readline()

        assert await client.prepare(make_claim("a", "gpu-0")) == {"a": "out of order"}


def test_it_prints_slices(capsys):
    status = main([*OPTIONS, "--print-slices"])

    assert status == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["kind"] == "List"
    assert [item["kind"] for item in printed["items"]] == ["ResourceSlice"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        pytest.param(["--devices", "x", "--print-slices"], "is not a device list", id="invalid devices"),
        pytest.param(["--kubeconfig", "nowhere/at-all"], "nowhere/at-all", id="a missing kubeconfig"),
    ],
)
def test_invalid_options_are_rejected(capsys, options, text):
    status = main([*OPTIONS, *options])

    assert status == 2
    assert text in capsys.readouterr().err


def test_the_documented_actions_are_valid_and_complete():
    lines = (line for module in (driver_program, script) for line in (module.__doc__ or "").splitlines())
    example = "\n".join(line for line in lines if line.lstrip().startswith("{"))

    assert {step.do for step in script.parse(example, ACTIONS)} == {*ACTIONS, "crash"}


@pytest.mark.parametrize(
    ("step", "text"),
    [
        pytest.param({"do": "claim", "claim": "a", "method": "Allocate"}, "no method Allocate", id="a wrong method"),
        pytest.param({"do": "health", "name": "gpu-0", "status": "Hot"}, "Hot", id="a wrong status"),
    ],
)
def test_invalid_actions_are_rejected(step, text):
    with pytest.raises(ParseError, match=text):
        script.parse(json.dumps(step), ACTIONS)
