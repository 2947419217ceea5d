"""The CRI client against servers that work, are old, slow, broken, or missing."""

import asyncio
import os
import re
from dataclasses import replace
from pathlib import Path
from socket import AF_UNIX, SOCK_STREAM
from socket import socket as make_socket

import pytest

from alignup.align.errors import CriError, EnforceError
from alignup.run.cri import convert
from alignup.run.cri.client import CriTimeouts, RuntimeClient, parse_endpoint, short_id
from alignup.run.cri.types import (
    ContainerConfig,
    ContainerState,
    CriImage,
    ExecResult,
    LinuxResources,
    SandboxConfig,
)
from alignup.wire import cri_pb2 as wire
from tests.enforce.cri.scripted_runtime import Responses, scripted_runtime, status_error

pytestmark = pytest.mark.anyio

ID = "0123456789abcdef" * 4
SANDBOX = SandboxConfig(uid="u", name="web", namespace="default", handler="kata")
CONTAINER = ContainerConfig(name="main", image="sha256:1", requested_image="busybox:1")
VERSION = wire.VersionResponse(runtime_name="fake", runtime_version="1", runtime_api_version="v1")
GONE = status_error("NOT_FOUND", "no such thing")
QUICK = CriTimeouts(request=0.05, sandbox=0.05, pull=0.05)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        pytest.param("unix:///run/containerd/containerd.sock", "/run/containerd/containerd.sock", id="a URI"),
        pytest.param("unix:/run/a.sock", "/run/a.sock", id="with one slash"),
        pytest.param("UNIX:///run/a.sock", "/run/a.sock", id="an upper-case scheme"),
        pytest.param("/run/a.sock", "/run/a.sock", id="a path"),
        pytest.param("/run/odd:name%20.sock", "/run/odd:name%20.sock", id="a path with special characters"),
    ],
)
def test_endpoints(text, path):
    assert parse_endpoint(text) == Path(path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/",
        "unix:",
        "unix://",
        "unix:///",
        "unix://run/a.sock",
        "run/a.sock",
        "unix:a",
        "tcp://127.0.0.1:1",
        "npipe://x",
    ],
)
def test_other_endpoints_are_rejected(text):
    with pytest.raises(EnforceError, match=r"\n.*unix:///run/containerd/containerd\.sock"):
        parse_endpoint(text)


async def test_version_conditions_and_cgroup_driver(socket):
    status = wire.StatusResponse(status=wire.RuntimeStatus(conditions=[wire.RuntimeCondition(type="RuntimeReady")]))
    config = wire.RuntimeConfigResponse(linux=wire.LinuxRuntimeConfiguration(cgroup_driver=wire.SYSTEMD))
    responses = {"Version": VERSION, "Status": status, "RuntimeConfig": config}

    async with scripted_runtime(socket, responses), RuntimeClient(socket) as runtime:
        version, (condition,), driver = (
            await runtime.version(),
            await runtime.conditions(),
            await runtime.cgroup_driver(),
        )

    assert (version.name, condition.type, condition.ready, driver) == ("fake", "RuntimeReady", False, "systemd")


async def test_an_old_runtime_reports_no_cgroup_driver(socket):
    async with scripted_runtime(socket, {"Version": VERSION}), RuntimeClient(socket) as runtime:
        assert await runtime.cgroup_driver() is None


async def test_sandboxes_are_created_listed_and_read(socket):
    young = wire.PodSandbox(id="b", created_at=2 * 10**9)
    old = wire.PodSandbox(id="a", created_at=10**9)
    shown = wire.PodSandboxStatus(id="a", network=wire.PodSandboxNetworkStatus(ip="10.0.0.2"))
    responses = {
        "RunPodSandbox": wire.RunPodSandboxResponse(pod_sandbox_id="a"),
        "ListPodSandbox": wire.ListPodSandboxResponse(items=[young, old]),
        "PodSandboxStatus": wire.PodSandboxStatusResponse(status=shown),
    }

    async with scripted_runtime(socket, responses) as requests, RuntimeClient(socket) as runtime:
        made = await runtime.run_sandbox(SANDBOX)
        listed = await runtime.sandboxes({"app": "web"})
        seen = await runtime.sandbox("a")

    assert requests == [
        wire.RunPodSandboxRequest(config=convert.sandbox_config(SANDBOX), runtime_handler="kata"),
        wire.ListPodSandboxRequest(filter=wire.PodSandboxFilter(label_selector={"app": "web"})),
        wire.PodSandboxStatusRequest(pod_sandbox_id="a"),
    ]
    assert (made, [one.id for one in listed], seen.ips) == ("a", ["a", "b"], ("10.0.0.2",))


async def test_a_container_is_created_from_its_configuration(socket, tmp_path):
    (tmp_path / "devices/system/cpu/cpu3/thermal_throttle").mkdir(parents=True)
    responses = {"CreateContainer": wire.CreateContainerResponse(container_id="c")}

    async with scripted_runtime(socket, responses) as requests, RuntimeClient(socket, sysfs=tmp_path) as runtime:
        made = await runtime.create("s", CONTAINER, sandbox=SANDBOX)

    masked = (*convert.MASKED_PATHS, "/sys/devices/system/cpu/cpu3/thermal_throttle")
    assert made == "c"
    assert requests == [
        wire.CreateContainerRequest(
            pod_sandbox_id="s",
            config=convert.container_config(CONTAINER, masked=masked),
            sandbox_config=convert.sandbox_config(SANDBOX),
        )
    ]


async def test_containers_are_started_stopped_updated_and_removed(socket):
    names = ("StartContainer", "StopContainer", "UpdateContainerResources", "ReopenContainerLog", "RemoveContainer")
    responses = {name: getattr(wire, f"{name}Response")() for name in names}
    resources = LinuxResources(cpus=0b110)

    async with scripted_runtime(socket, responses) as requests, RuntimeClient(socket) as runtime:
        await runtime.start("c")
        await runtime.stop("c", grace=1.2)
        await runtime.update("c", resources)
        await runtime.reopen_log("c")
        await runtime.remove("c")

    assert requests == [
        wire.StartContainerRequest(container_id="c"),
        wire.StopContainerRequest(container_id="c", timeout=2),
        wire.UpdateContainerResourcesRequest(container_id="c", linux=wire.LinuxContainerResources(cpuset_cpus="1-2")),
        wire.ReopenContainerLogRequest(container_id="c"),
        wire.RemoveContainerRequest(container_id="c"),
    ]


async def test_containers_are_listed_and_read(socket):
    young = wire.Container(id="b", pod_sandbox_id="s", created_at=2 * 10**9, state=wire.CONTAINER_RUNNING)
    old = wire.Container(id="a", pod_sandbox_id="s", created_at=10**9)
    shown = wire.ContainerStatus(id="b", state=wire.CONTAINER_RUNNING, created_at=2 * 10**9)
    responses = {
        "ListContainers": wire.ListContainersResponse(containers=[young, old]),
        "ContainerStatus": wire.ContainerStatusResponse(status=shown, info={"info": '{"sandboxID": "s", "pid": 42}'}),
    }

    async with scripted_runtime(socket, responses) as requests, RuntimeClient(socket) as runtime:
        first, second = await runtime.containers()
        seen = await runtime.container("b")

    assert (first.id, second.id, second.state) == ("a", "b", ContainerState.RUNNING)
    assert seen == replace(second, pid=42)
    assert requests[1] == wire.ContainerStatusRequest(container_id="b", verbose=True)


async def test_the_sandbox_of_a_container_is_taken_from_the_list_if_its_status_lacks_it(socket):
    responses = {
        "ListContainers": wire.ListContainersResponse(containers=[wire.Container(id="b", pod_sandbox_id="s")]),
        "ContainerStatus": wire.ContainerStatusResponse(status=wire.ContainerStatus(id="b"), info={"pid": "42"}),
    }

    async with scripted_runtime(socket, responses) as requests, RuntimeClient(socket) as runtime:
        seen = await runtime.container("b")

    assert (seen.sandbox, seen.pid) == ("s", 42)
    assert requests[1] == wire.ListContainersRequest(filter=wire.ContainerFilter(id="b"))


async def test_commands_return_their_result(socket):
    responses = {"ExecSync": wire.ExecSyncResponse(stdout=b"out", exit_code=1)}

    async with scripted_runtime(socket, responses) as requests, RuntimeClient(socket) as runtime:
        done = await runtime.execute("c", ["echo", "out"], seconds=0.4)

    assert done == ExecResult(exit_code=1, output=b"out")
    assert requests == [wire.ExecSyncRequest(container_id="c", cmd=["echo", "out"], timeout=1)]


@pytest.mark.parametrize(
    "response",
    [
        pytest.param(status_error("DEADLINE_EXCEEDED", "timeout 1s exceeded"), id="a status code, as from containerd"),
        pytest.param(wire.ExecSyncResponse(stderr=b"command timed out", exit_code=-1), id="an output, as from CRI-O"),
    ],
)
async def test_a_command_timeout_is_recognized(socket, response):
    async with scripted_runtime(socket, {"ExecSync": response}), RuntimeClient(socket) as runtime:
        with pytest.raises(CriError, match="failed to run sleep in container c") as late:
            await runtime.execute("c", ["sleep", "9"], seconds=1)

    assert late.value.timed_out


async def test_images(socket):
    responses = {
        "ImageStatus": wire.ImageStatusResponse(image=wire.Image(id="sha256:1", repo_tags=["busybox:1"])),
        "PullImage": wire.PullImageResponse(image_ref="sha256:1"),
    }

    async with scripted_runtime(socket, responses) as requests, RuntimeClient(socket) as runtime:
        image = await runtime.image("busybox:1")
        ref = await runtime.pull("busybox:1", sandbox=SANDBOX)

    assert image == CriImage(id="sha256:1", tags=("busybox:1",))
    assert ref == "sha256:1"
    assert requests == [
        wire.ImageStatusRequest(image=wire.ImageSpec(image="busybox:1")),
        wire.PullImageRequest(image=wire.ImageSpec(image="busybox:1"), sandbox_config=convert.sandbox_config(SANDBOX)),
    ]


@pytest.mark.parametrize("response", [GONE, wire.ImageStatusResponse()])
async def test_a_missing_image_is_none(socket, response):
    async with scripted_runtime(socket, {"ImageStatus": response}), RuntimeClient(socket) as runtime:
        assert await runtime.image("busybox:1") is None


@pytest.mark.parametrize("code", ["NOT_FOUND", "UNKNOWN", "INVALID_ARGUMENT"])
async def test_a_missing_image_is_distinguished_from_other_creation_errors(socket, code):
    error, present = status_error(code, "oh no"), wire.ImageStatusResponse(image=wire.Image(id="sha256:1"))

    absent: Responses = {"CreateContainer": error, "ImageStatus": wire.ImageStatusResponse()}
    async with scripted_runtime(socket, absent), RuntimeClient(socket) as runtime:
        with pytest.raises(CriError) as missing:
            await runtime.create("s", CONTAINER, sandbox=SANDBOX)
    async with (
        scripted_runtime(socket, {"CreateContainer": error, "ImageStatus": present}),
        RuntimeClient(socket) as runtime,
    ):
        with pytest.raises(CriError) as broken:
            await runtime.create("s", CONTAINER, sandbox=SANDBOX)

    assert missing.value.image_missing
    assert str(missing.value).endswith("create container main: the image busybox:1 is missing")
    assert not broken.value.image_missing
    assert str(broken.value) == "the container runtime failed to create container main: oh no"
    assert (broken.value.code, broken.value.details) == (code, "oh no")


@pytest.mark.parametrize(("code", "missing"), [("NOT_FOUND", True), ("UNKNOWN", False), ("PERMISSION_DENIED", False)])
async def test_an_unknown_image_is_distinguished_from_other_pull_errors(socket, code, missing):
    async with scripted_runtime(socket, {"PullImage": status_error(code, "sorry")}), RuntimeClient(socket) as runtime:
        with pytest.raises(CriError, match="failed to pull image busybox:1: sorry") as caught:
            await runtime.pull("busybox:1")

    assert caught.value.image_missing is missing


async def test_removing_what_is_gone_succeeds(socket):
    names = ("StopPodSandbox", "RemovePodSandbox", "StopContainer", "RemoveContainer")

    async with scripted_runtime(socket, dict.fromkeys(names, GONE)), RuntimeClient(socket) as runtime:
        await runtime.stop_sandbox(ID)
        await runtime.remove_sandbox(ID)
        await runtime.stop(ID, grace=1)
        await runtime.remove(ID)


async def test_removal_errors_are_raised(socket):
    names = ("StopPodSandbox", "RemovePodSandbox", "StopContainer", "RemoveContainer")

    async with (
        scripted_runtime(socket, dict.fromkeys(names, status_error("UNKNOWN", "busy"))),
        RuntimeClient(socket) as runtime,
    ):
        for doing in (
            runtime.stop_sandbox(ID),
            runtime.remove_sandbox(ID),
            runtime.stop(ID, grace=1),
            runtime.remove(ID),
        ):
            with pytest.raises(CriError, match=f"failed to (stop|remove) (sandbox|container) {short_id(ID)}: busy"):
                await doing


async def test_reading_what_is_gone_raises_not_found(socket):
    responses = {"ContainerStatus": GONE, "PodSandboxStatus": GONE, "StartContainer": GONE}

    async with scripted_runtime(socket, responses), RuntimeClient(socket) as runtime:
        for doing in (runtime.container(ID), runtime.sandbox(ID), runtime.start(ID)):
            with pytest.raises(CriError, match="no such thing") as caught:
                await doing
            assert caught.value.not_found


async def test_calls_time_out(socket):
    async def forever(_):
        await asyncio.sleep(60)

    responses = {"RunPodSandbox": forever, "Status": forever}
    async with scripted_runtime(socket, responses), RuntimeClient(socket, timeouts=QUICK) as runtime:
        for doing in (runtime.run_sandbox(SANDBOX), runtime.conditions()):
            with pytest.raises(CriError) as late:
                await doing
            assert late.value.timed_out


async def test_a_garbage_response_is_an_error(socket):
    async def garbage(_):
        return b"\xff\xff\xff"

    async with scripted_runtime(socket, {"Version": garbage}), RuntimeClient(socket) as runtime:
        with pytest.raises(CriError, match="failed to get its version: grpc: failed to unmarshal"):
            await runtime.version()


async def test_a_starting_containerd_is_unavailable(socket):
    starting = status_error("UNKNOWN", "server is not initialized yet")

    async with scripted_runtime(socket, {"Version": starting}), RuntimeClient(socket) as runtime:
        with pytest.raises(CriError, match="not initialized yet") as early:
            await runtime.version()

    assert early.value.unavailable


async def test_a_v1alpha2_runtime_is_named_as_such(socket):
    services = ("runtime.v1alpha2.RuntimeService",)

    async with scripted_runtime(socket, {"Version": VERSION}, services=services), RuntimeClient(socket) as runtime:
        with pytest.raises(CriError, match=r"implements only CRI v1alpha2\nupgrade to containerd 1\.6, CRI-O 1\.26"):
            await runtime.version()


async def test_a_server_without_cri_is_named_as_such(socket):
    async with scripted_runtime(socket, {}), RuntimeClient(socket) as runtime:
        with pytest.raises(CriError, match=r"does not implement CRI\n.*disabled_plugins"):
            await runtime.version()


async def test_an_unreachable_runtime_is_explained(socket):
    async with RuntimeClient(socket) as runtime:
        with pytest.raises(CriError) as absent:
            await runtime.version()
        socket.write_text("")
        with pytest.raises(CriError) as no_socket:
            await runtime.version()
        socket.unlink()
        with make_socket(AF_UNIX, SOCK_STREAM) as bound:
            bound.bind(os.fspath(socket))
        with pytest.raises(CriError) as deserted:
            await runtime.version()

    advice = "\nstart the runtime, or set its socket with --runtime-endpoint"
    failed = "the container runtime failed to get its version: "
    assert str(absent.value) == f"{failed}{socket} does not exist{advice}"
    assert str(no_socket.value) == f"{failed}{socket} is not a socket{advice}"
    assert re.sub(r" \(.*\)", "", str(deserted.value)) == f"{failed}no server listens at {socket}{advice}"
    assert all(one.value.unavailable for one in (absent, no_socket, deserted))


async def test_a_client_survives_restarts_of_the_runtime(socket):
    async def seen(runtime):
        try:
            return (await runtime.version()).name
        except CriError as error:
            return error.unavailable

    async with RuntimeClient(socket) as runtime:
        results = [await seen(runtime)]
        for _ in range(2):
            async with scripted_runtime(socket, {"Version": VERSION}):
                async with asyncio.timeout(60):
                    while (name := await seen(runtime)) is True:  # noqa: ASYNC110 - gRPC reconnects by itself
                        await asyncio.sleep(0.02)
                results.append(name)
            results.append(await seen(runtime))

    assert results == [True, "fake", True, "fake", True]


async def test_a_closed_client_is_unavailable(socket):
    runtime = RuntimeClient(socket)
    async with scripted_runtime(socket, {"Version": VERSION}):
        async with runtime:
            await runtime.version()
        with pytest.raises(CriError, match="the connection is closed") as closed:
            await runtime.version()

    assert closed.value.unavailable


async def test_responses_may_be_large(socket):
    many = [wire.Container(id=ID + str(number), labels={"x": "y" * 4000}) for number in range(2000)]
    responses = {"ListContainers": wire.ListContainersResponse(containers=many)}

    async with scripted_runtime(socket, responses), RuntimeClient(socket) as runtime:
        assert len(await runtime.containers()) == 2000


async def test_calls_run_concurrently(socket):
    everyone = asyncio.Barrier(50)

    async def waiting(_):
        await everyone.wait()
        return wire.StartContainerResponse()

    async with scripted_runtime(socket, {"StartContainer": waiting}) as requests, RuntimeClient(socket) as runtime:
        async with asyncio.timeout(60):
            await asyncio.gather(*(runtime.start(str(number)) for number in range(50)))

    assert len(requests) == 50
