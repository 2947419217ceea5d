"""The CRI client and whoever may be at the other end: as they should be, old, slow, strange, or not there."""

import asyncio
import os
import re
from dataclasses import replace
from pathlib import Path
from socket import AF_UNIX, SOCK_STREAM
from socket import socket as make_socket

import pytest

from alignup.align.errors import CriError, EnforceError
from alignup.enforce.cri import convert
from alignup.enforce.cri.client import CriTimeouts, RuntimeClient, parse_endpoint, short_id
from alignup.enforce.cri.types import (
    ContainerConfig,
    ContainerState,
    CriImage,
    ExecResult,
    LinuxResources,
    SandboxConfig,
)
from alignup.wire import cri_pb2 as wire
from tests.enforce.cri.answering import Answers, answering, refused

pytestmark = pytest.mark.anyio

ID = "0123456789abcdef" * 4
SANDBOX = SandboxConfig(uid="u", name="web", namespace="default", handler="kata")
CONTAINER = ContainerConfig(name="main", image="sha256:1", named="busybox:1")
VERSION = wire.VersionResponse(runtime_name="fake", runtime_version="1", runtime_api_version="v1")
GONE = refused("NOT_FOUND", "no such thing")
QUICK = CriTimeouts(usual=0.3, sandbox=0.3, pull=0.3)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        pytest.param(
            "unix:///run/containerd/containerd.sock", "/run/containerd/containerd.sock", id="as people write it"
        ),
        pytest.param("unix:/run/a.sock", "/run/a.sock", id="with one slash"),
        pytest.param("UNIX:///run/a.sock", "/run/a.sock", id="in capitals"),
        pytest.param("/run/a.sock", "/run/a.sock", id="a path"),
        pytest.param("/run/odd:name%20.sock", "/run/odd:name%20.sock", id="a path is taken as it stands"),
    ],
)
def test_where_a_runtime_listens(text, path):
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
def test_what_names_no_socket_is_refused(text):
    with pytest.raises(EnforceError, match=r"\n.*unix:///run/containerd/containerd\.sock"):
        parse_endpoint(text)


async def test_what_a_runtime_says_of_itself(socket):
    status = wire.StatusResponse(status=wire.RuntimeStatus(conditions=[wire.RuntimeCondition(type="RuntimeReady")]))
    driver = wire.RuntimeConfigResponse(linux=wire.LinuxRuntimeConfiguration(cgroup_driver=wire.SYSTEMD))
    answers = {"Version": VERSION, "Status": status, "RuntimeConfig": driver}

    async with answering(socket, answers), RuntimeClient(socket) as runtime:
        identity, (condition,), systemd = (
            await runtime.identity(),
            await runtime.conditions(),
            await runtime.cgroup_driver(),
        )

    assert (identity.name, condition.type, condition.ready, systemd) == ("fake", "RuntimeReady", False, "systemd")


async def test_an_old_runtime_does_not_tell_its_driver(socket):
    async with answering(socket, {"Version": VERSION}), RuntimeClient(socket) as runtime:
        assert await runtime.cgroup_driver() is None


async def test_sandboxes_are_made_listed_and_shown(socket):
    young = wire.PodSandbox(id="b", created_at=2 * 10**9)
    old = wire.PodSandbox(id="a", created_at=10**9)
    shown = wire.PodSandboxStatus(id="a", network=wire.PodSandboxNetworkStatus(ip="10.0.0.2"))
    answers = {
        "RunPodSandbox": wire.RunPodSandboxResponse(pod_sandbox_id="a"),
        "ListPodSandbox": wire.ListPodSandboxResponse(items=[young, old]),
        "PodSandboxStatus": wire.PodSandboxStatusResponse(status=shown),
    }

    async with answering(socket, answers) as asked, RuntimeClient(socket) as runtime:
        made = await runtime.run_sandbox(SANDBOX)
        listed = await runtime.sandboxes({"app": "web"})
        seen = await runtime.sandbox("a")

    assert asked == [
        wire.RunPodSandboxRequest(config=convert.sandbox_config(SANDBOX), runtime_handler="kata"),
        wire.ListPodSandboxRequest(filter=wire.PodSandboxFilter(label_selector={"app": "web"})),
        wire.PodSandboxStatusRequest(pod_sandbox_id="a"),
    ]
    assert (made, [one.id for one in listed], seen.ips) == ("a", ["a", "b"], ("10.0.0.2",))


async def test_a_container_is_made_with_all_its_plan_says(socket, tmp_path):
    (tmp_path / "devices/system/cpu/cpu3/thermal_throttle").mkdir(parents=True)
    answers = {"CreateContainer": wire.CreateContainerResponse(container_id="c")}

    async with answering(socket, answers) as asked, RuntimeClient(socket, sysfs=tmp_path) as runtime:
        made = await runtime.create("s", CONTAINER, sandbox=SANDBOX)

    masked = (*convert.MASKED_PATHS, "/sys/devices/system/cpu/cpu3/thermal_throttle")
    assert made == "c"
    assert asked == [
        wire.CreateContainerRequest(
            pod_sandbox_id="s",
            config=convert.container_config(CONTAINER, masked=masked),
            sandbox_config=convert.sandbox_config(SANDBOX),
        )
    ]


async def test_containers_are_started_stopped_changed_and_removed(socket):
    names = ("StartContainer", "StopContainer", "UpdateContainerResources", "ReopenContainerLog", "RemoveContainer")
    answers = {name: getattr(wire, f"{name}Response")() for name in names}
    resources = LinuxResources(cpus=0b110)

    async with answering(socket, answers) as asked, RuntimeClient(socket) as runtime:
        await runtime.start("c")
        await runtime.stop("c", grace=1.2)
        await runtime.update("c", resources)
        await runtime.reopen_log("c")
        await runtime.remove("c")

    assert asked == [
        wire.StartContainerRequest(container_id="c"),
        wire.StopContainerRequest(container_id="c", timeout=2),
        wire.UpdateContainerResourcesRequest(container_id="c", linux=wire.LinuxContainerResources(cpuset_cpus="1-2")),
        wire.ReopenContainerLogRequest(container_id="c"),
        wire.RemoveContainerRequest(container_id="c"),
    ]


async def test_containers_are_listed_and_shown(socket):
    young = wire.Container(id="b", pod_sandbox_id="s", created_at=2 * 10**9, state=wire.CONTAINER_RUNNING)
    old = wire.Container(id="a", pod_sandbox_id="s", created_at=10**9)
    shown = wire.ContainerStatus(id="b", state=wire.CONTAINER_RUNNING, created_at=2 * 10**9)
    answers = {
        "ListContainers": wire.ListContainersResponse(containers=[young, old]),
        "ContainerStatus": wire.ContainerStatusResponse(status=shown, info={"info": '{"sandboxID": "s", "pid": 42}'}),
    }

    async with answering(socket, answers) as asked, RuntimeClient(socket) as runtime:
        first, second = await runtime.containers()
        seen = await runtime.container("b")

    assert (first.id, second.id, second.state) == ("a", "b", ContainerState.RUNNING)
    assert seen == replace(second, pid=42)
    assert asked[1] == wire.ContainerStatusRequest(container_id="b", verbose=True)


async def test_whose_container_it_is_can_be_asked_in_another_way(socket):
    answers = {
        "ListContainers": wire.ListContainersResponse(containers=[wire.Container(id="b", pod_sandbox_id="s")]),
        "ContainerStatus": wire.ContainerStatusResponse(status=wire.ContainerStatus(id="b"), info={"pid": "42"}),
    }

    async with answering(socket, answers) as asked, RuntimeClient(socket) as runtime:
        seen = await runtime.container("b")

    assert (seen.sandbox, seen.pid) == ("s", 42)
    assert asked[1] == wire.ListContainersRequest(filter=wire.ContainerFilter(id="b"))


async def test_commands_are_run(socket):
    answers = {"ExecSync": wire.ExecSyncResponse(stdout=b"out", exit_code=1)}

    async with answering(socket, answers) as asked, RuntimeClient(socket) as runtime:
        done = await runtime.execute("c", ["echo", "out"], seconds=0.4)

    assert done == ExecResult(exit_code=1, output=b"out")
    assert asked == [wire.ExecSyncRequest(container_id="c", cmd=["echo", "out"], timeout=1)]


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(refused("DEADLINE_EXCEEDED", "timeout 1s exceeded"), id="with a code, as containerd does"),
        pytest.param(wire.ExecSyncResponse(stderr=b"command timed out", exit_code=-1), id="with a text, as CRI-O did"),
    ],
)
async def test_a_command_that_takes_too_long_is_told_from_others(socket, answer):
    async with answering(socket, {"ExecSync": answer}), RuntimeClient(socket) as runtime:
        with pytest.raises(CriError, match="could not run sleep in container c") as late:
            await runtime.execute("c", ["sleep", "9"], seconds=1)

    assert late.value.timed_out


async def test_images(socket):
    answers = {
        "ImageStatus": wire.ImageStatusResponse(image=wire.Image(id="sha256:1", repo_tags=["busybox:1"])),
        "PullImage": wire.PullImageResponse(image_ref="sha256:1"),
    }

    async with answering(socket, answers) as asked, RuntimeClient(socket) as runtime:
        image = await runtime.image("busybox:1")
        ref = await runtime.pull("busybox:1", sandbox=SANDBOX)

    assert image == CriImage(id="sha256:1", tags=("busybox:1",))
    assert ref == "sha256:1"
    assert asked == [
        wire.ImageStatusRequest(image=wire.ImageSpec(image="busybox:1")),
        wire.PullImageRequest(image=wire.ImageSpec(image="busybox:1"), sandbox_config=convert.sandbox_config(SANDBOX)),
    ]


@pytest.mark.parametrize("answer", [GONE, wire.ImageStatusResponse()])
async def test_an_image_that_is_not_there(socket, answer):
    async with answering(socket, {"ImageStatus": answer}), RuntimeClient(socket) as runtime:
        assert await runtime.image("busybox:1") is None


@pytest.mark.parametrize("code", ["NOT_FOUND", "UNKNOWN", "INVALID_ARGUMENT"])
async def test_a_container_without_an_image_is_told_from_one_that_cannot_be_made(socket, code):
    no, there = refused(code, "oh no"), wire.ImageStatusResponse(image=wire.Image(id="sha256:1"))

    absent: Answers = {"CreateContainer": no, "ImageStatus": wire.ImageStatusResponse()}
    async with answering(socket, absent), RuntimeClient(socket) as runtime:
        with pytest.raises(CriError) as missing:
            await runtime.create("s", CONTAINER, sandbox=SANDBOX)
    async with answering(socket, {"CreateContainer": no, "ImageStatus": there}), RuntimeClient(socket) as runtime:
        with pytest.raises(CriError) as broken:
            await runtime.create("s", CONTAINER, sandbox=SANDBOX)

    assert missing.value.image_missing
    assert str(missing.value).endswith("create container main: it does not have the image busybox:1")
    assert not broken.value.image_missing
    assert str(broken.value) == "the runtime could not create container main: oh no"
    assert (broken.value.code, broken.value.details) == (code, "oh no")


@pytest.mark.parametrize(("code", "missing"), [("NOT_FOUND", True), ("UNKNOWN", False), ("PERMISSION_DENIED", False)])
async def test_an_image_that_nobody_has_is_told_from_one_that_cannot_be_fetched(socket, code, missing):
    async with answering(socket, {"PullImage": refused(code, "sorry")}), RuntimeClient(socket) as runtime:
        with pytest.raises(CriError, match="could not pull image busybox:1: sorry") as failed:
            await runtime.pull("busybox:1")

    assert failed.value.image_missing is missing


async def test_what_is_gone_need_not_go(socket):
    names = ("StopPodSandbox", "RemovePodSandbox", "StopContainer", "RemoveContainer")

    async with answering(socket, dict.fromkeys(names, GONE)), RuntimeClient(socket) as runtime:
        await runtime.stop_sandbox(ID)
        await runtime.remove_sandbox(ID)
        await runtime.stop(ID, grace=1)
        await runtime.remove(ID)


async def test_what_does_not_go_is_told(socket):
    names = ("StopPodSandbox", "RemovePodSandbox", "StopContainer", "RemoveContainer")

    async with answering(socket, dict.fromkeys(names, refused("UNKNOWN", "busy"))), RuntimeClient(socket) as runtime:
        for doing in (
            runtime.stop_sandbox(ID),
            runtime.remove_sandbox(ID),
            runtime.stop(ID, grace=1),
            runtime.remove(ID),
        ):
            with pytest.raises(CriError, match=f"could not (stop|remove) (sandbox|container) {short_id(ID)}: busy"):
                await doing


async def test_what_was_looked_for_and_is_not_there_is_told(socket):
    answers = {"ContainerStatus": GONE, "PodSandboxStatus": GONE, "StartContainer": GONE}

    async with answering(socket, answers), RuntimeClient(socket) as runtime:
        for doing in (runtime.container(ID), runtime.sandbox(ID), runtime.start(ID)):
            with pytest.raises(CriError, match="no such thing") as failed:
                await doing
            assert failed.value.not_found


async def test_a_runtime_that_does_not_answer_is_not_waited_for(socket):
    async def forever(_):
        await asyncio.sleep(60)

    answers = {"RunPodSandbox": forever, "Status": forever}
    async with answering(socket, answers), RuntimeClient(socket, deadlines=QUICK) as runtime:
        for doing in (runtime.run_sandbox(SANDBOX), runtime.conditions()):
            with pytest.raises(CriError) as late:
                await doing
            assert late.value.timed_out


async def test_nonsense_is_no_answer(socket):
    async def nonsense(_):
        return b"\xff\xff\xff"

    async with answering(socket, {"Version": nonsense}), RuntimeClient(socket) as runtime:
        with pytest.raises(CriError, match="could not say who it is: grpc: failed to unmarshal"):
            await runtime.identity()


async def test_containerd_that_is_not_ready_yet_is_away(socket):
    not_yet = refused("UNKNOWN", "server is not initialized yet")

    async with answering(socket, {"Version": not_yet}), RuntimeClient(socket) as runtime:
        with pytest.raises(CriError, match="not initialized yet") as early:
            await runtime.identity()

    assert early.value.unavailable


async def test_one_who_speaks_the_old_interface_only_is_told_so(socket):
    services = ("runtime.v1alpha2.RuntimeService",)

    async with answering(socket, {"Version": VERSION}, services=services), RuntimeClient(socket) as runtime:
        with pytest.raises(CriError, match=r"speaks CRI v1alpha2 only\ncontainerd 1\.6, CRI-O 1\.26"):
            await runtime.identity()


async def test_one_who_speaks_something_else_is_told_so(socket):
    async with answering(socket, {}), RuntimeClient(socket) as runtime:
        with pytest.raises(CriError, match=r"does not speak CRI v1\n.*disabled_plugins"):
            await runtime.identity()


async def test_where_there_is_nothing_the_error_says_what_to_do(socket):
    async with RuntimeClient(socket) as runtime:
        with pytest.raises(CriError) as absent:
            await runtime.identity()
        socket.write_text("")
        with pytest.raises(CriError) as no_socket:
            await runtime.identity()
        socket.unlink()
        with make_socket(AF_UNIX, SOCK_STREAM) as bound:
            bound.bind(os.fspath(socket))
        with pytest.raises(CriError) as deserted:
            await runtime.identity()

    advice = "\nstart the runtime, or say where it listens with --runtime-endpoint"
    told = "the runtime could not say who it is: "
    assert str(absent.value) == f"{told}there is no {socket}{advice}"
    assert str(no_socket.value) == f"{told}{socket} is no socket{advice}"
    assert re.sub(r" \(.*\)", "", str(deserted.value)) == f"{told}nobody listens at {socket}{advice}"
    assert all(one.value.unavailable for one in (absent, no_socket, deserted))


async def test_the_same_client_goes_on_when_the_runtime_has_come_back(socket):
    async def seen(runtime):
        try:
            return (await runtime.identity()).name
        except CriError as error:
            return error.unavailable

    async with RuntimeClient(socket) as runtime:
        told = [await seen(runtime)]
        for _ in range(2):
            async with answering(socket, {"Version": VERSION}):
                for _ in range(500):
                    if (name := await seen(runtime)) is not True:
                        break
                    await asyncio.sleep(0.02)
                told.append(name)
            told.append(await seen(runtime))

    assert told == [True, "fake", True, "fake", True]


async def test_a_client_that_has_hung_up_says_so(socket):
    runtime = RuntimeClient(socket)
    async with answering(socket, {"Version": VERSION}):
        async with runtime:
            await runtime.identity()
        with pytest.raises(CriError, match="it was hung up on") as closed:
            await runtime.identity()

    assert closed.value.unavailable


async def test_answers_may_be_large(socket):
    many = [wire.Container(id=ID + str(number), labels={"x": "y" * 4000}) for number in range(2000)]
    answers = {"ListContainers": wire.ListContainersResponse(containers=many)}

    async with answering(socket, answers), RuntimeClient(socket) as runtime:
        assert len(await runtime.containers()) == 2000


async def test_many_calls_at_once_do_not_wait_for_each_other(socket):
    async def slow(_):
        await asyncio.sleep(0.2)
        return wire.StartContainerResponse()

    async with answering(socket, {"StartContainer": slow}) as asked, RuntimeClient(socket) as runtime:
        async with asyncio.timeout(3):
            await asyncio.gather(*(runtime.start(str(number)) for number in range(50)))

    assert len(asked) == 50
