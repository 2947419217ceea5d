"""Paths that are too long for sockets: every program says so in the same words, and what to do."""

import asyncio
import os
import socket
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from alignup.align.errors import AlignError
from alignup.kubernetes.plugins import unix_grpc
from alignup.kubernetes.plugins.device_plugin import DevicePlugin
from alignup.kubernetes.plugins.endpoint import Endpoint, PluginTimeouts
from alignup.kubernetes.plugins.pod_resources import pod_resources_client
from alignup.socket_paths import length_problem
from alignup.testing import Plugin, plugin
from alignup.web.address import UnixAddress
from alignup.web.agent_client import AgentClient
from alignup.web.sockets import unix_socket
from alignup.wire import device_plugin_pb2
from tests.cli.commands import in_process
from tests.deadlines import until

WORDS = "bytes too long for a socket, which allows 107; choose a shorter one"
SERVICE = device_plugin_pb2.DESCRIPTOR.services_by_name["Registration"]
MACHINE = "numa:1 core:2 pu:1"


def test_paths_are_long_enough_for_this_to_be_tested(tmp_path):
    assert length_problem(tmp_path)


@pytest.mark.parametrize("name", ["s", "socket"])
def test_the_longest_path_that_is_allowed_is_one_that_the_kernel_takes(short_path, name):
    directory = short_path / ("x" * (105 - len(os.fsencode(short_path)) - len(name)))
    directory.mkdir()
    assert length_problem(directory / name) == ""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(directory / name))

    assert length_problem(directory / f"{name}x").startswith("the path is 1 byte too long")
    assert length_problem(directory / name, bound_path=directory / f"{name}xx") == f"the path is 2 {WORDS}"


async def serve(path: Path) -> None:
    async with unix_grpc.serve(path, SERVICE, {}):
        pass


async def list_pods(path: Path) -> None:
    async with pod_resources_client(path) as client:
        await client.list()


async def listen(path: Path) -> None:
    with unix_socket(path):
        pass


USES = {
    "an agent listens": listen,
    "a client of the agent": lambda path: asyncio.to_thread(AgentClient(UnixAddress(path)).ping),
    "the kubelet's side of plugins": serve,
    "a client of PodResources": list_pods,
    "the agent calls a plugin": lambda path: Endpoint.dial("a/b", path, timeouts=PluginTimeouts()),
    "a plugin of the tests": lambda path: Plugin("a/b", "1@0", directory=path.parent).__aenter__(),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_path_that_is_too_long_is_an_error_in_words(tmp_path, use):
    with pytest.raises((AlignError, OSError), match=rf"the path is \d+ {WORDS}"):
        asyncio.run(use(tmp_path / "kubelet.sock"))


def test_a_device_plugin_logs_that_its_kubelet_cannot_be_there(tmp_path):
    async def run() -> None:
        task = asyncio.ensure_future(DevicePlugin("a/b", tmp_path).run())
        await until(lambda: logs)
        task.cancel()

    with capture_logs() as logs:
        asyncio.run(run())

    assert WORDS in logs[0]["problem"]


def test_commands_name_the_option_to_change(tmp_path, short_path, capsys):
    agent = in_process("agent", "--root-dir", tmp_path / "root", "--machine", MACHINE)
    ps = in_process("ps", "--agent", f"unix:{tmp_path}/agent.sock")
    audit = in_process("audit", "--agent", f"unix:{tmp_path}/agent.sock")
    nri = in_process("nri", "--socket", tmp_path / "nri.sock", "--kubelet-dir", short_path)
    code = plugin.main(["--resource", "a/b", "--devices", "1@0", "--dir", str(tmp_path)])

    assert (agent.returncode, ps.returncode, audit.returncode, nri.returncode, code) == (1, 1, 1, 2, 2)
    for run, option in (agent, "--root-dir"), (ps, "--agent"), (audit, "--agent"), (nri, "--socket"):
        assert WORDS in run.stderr
        assert option in run.stderr
    assert WORDS in capsys.readouterr().err
