"""Conversion to and from CRI messages: nothing is lost, and nothing is invented."""

import json
from dataclasses import fields, replace
from typing import Any

import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from alignup.align import bits
from alignup.run.cri import convert
from alignup.run.cri.types import (
    ContainerConfig,
    ContainerMount,
    ContainerState,
    CriImage,
    DeviceNode,
    DnsConfig,
    ExecResult,
    LinuxResources,
    NamespaceOptions,
    PortMapping,
    RuntimeCondition,
    RuntimeVersion,
    SandboxConfig,
    SecurityOptions,
)
from alignup.wire import cri_pb2 as wire

SANDBOX = SandboxConfig(uid="u", name="web", namespace="default")
CONTAINER = ContainerConfig(name="main", image="busybox")
NODE, POD, OWN = wire.NODE, wire.POD, wire.CONTAINER

#: Type → field → a value that differs from the default, or from the one above.
OTHERS: dict[type, dict[str, Any]] = {
    SandboxConfig: {
        "uid": "v",
        "name": "db",
        "namespace": "prod",
        "attempt": 3,
        "hostname": "web-1",
        "log_directory": "/var/log/pods/x",
        "labels": {"a": "b"},
        "annotations": {"c": "d"},
        "cgroup_parent": "/alignup/podu",
        "namespaces": NamespaceOptions(host_ipc=True),
        "dns": DnsConfig(),
        "ports": (PortMapping(container_port=80, host_port=8080),),
        "sysctls": {"net.core.somaxconn": "1024"},
        "security": SecurityOptions(privileged=True),
        "handler": "kata",
    },
    ContainerConfig: {
        "name": "side",
        "attempt": 2,
        "image": "sha256:1",
        "requested_image": "busybox:latest",
        "command": ("sh",),
        "args": ("-c",),
        "working_dir": "/srv",
        "envs": {"A": "1"},
        "mounts": (ContainerMount(container_path="/a", host_path="/b"),),
        "devices": (DeviceNode(container_path="/dev/a", host_path="/dev/b"),),
        "cdi": ("vendor.com/gpu=0",),
        "labels": {"a": "b"},
        "annotations": {"c": "d"},
        "log_path": "main/0.log",
        "stdin": True,
        "stdin_once": True,
        "tty": True,
        "resources": LinuxResources(cpus=1),
        "security": SecurityOptions(user=0),
        "namespaces": NamespaceOptions(host_network=True),
    },
    LinuxResources: {
        "cpus": bits.parse("0-3,8"),
        "nodes": bits.parse("1,250"),
        "cpu_shares": 1024,
        "cpu_quota": -1,
        "cpu_period": 100_000,
        "memory_limit": 1 << 40,
        "memory_swap_limit": 1 << 41,
        "oom_score_adj": -997,
        "hugepages": {"2MB": 0},
        "unified": {"memory.oom.group": "1"},
    },
    ContainerMount: {
        "container_path": "/c",
        "host_path": "/d",
        "read_only": True,
        "propagation": "Bidirectional",
        "relabel": True,
    },
    DeviceNode: {"container_path": "/dev/c", "host_path": "/dev/d", "permissions": "r"},
    PortMapping: {"container_port": 81, "host_port": 8081, "host_ip": "127.0.0.1", "protocol": "UDP"},
    DnsConfig: {"servers": ("10.0.0.1",), "searches": ("local",), "options": ("ndots:5",)},
    NamespaceOptions: {"host_network": True, "host_pid": True, "host_ipc": True, "share_pid": True},
    SecurityOptions: {
        "user": 0,
        "username": "nobody",
        "group": 0,
        "groups": (1, 2),
        "privileged": True,
        "read_only_root": True,
        "no_new_privileges": True,
        "add": ("NET_ADMIN",),
        "drop": ("ALL",),
        "seccomp": "Localhost/profiles/a.json",
        "apparmor": "RuntimeDefault",
        "selinux": {"level": "s0:c1,c2"},
        "unmasked": True,
    },
}
#: Fields that only containers have.
SECURITY_OF_CONTAINERS = {"username", "no_new_privileges", "add", "drop", "unmasked"}


def sandbox_of(part: Any) -> Message:
    """Return a sandbox message that contains *part*."""
    match part:
        case SandboxConfig():
            return wire.RunPodSandboxRequest(config=convert.sandbox_config(part), runtime_handler=part.handler)
        case NamespaceOptions():
            return convert.sandbox_config(replace(SANDBOX, namespaces=part))
        case SecurityOptions():
            return convert.sandbox_config(replace(SANDBOX, security=part))
        case DnsConfig():
            return convert.sandbox_config(replace(SANDBOX, dns=part))
    return convert.sandbox_config(replace(SANDBOX, ports=(part,)))


def container_of(part: Any) -> Message:
    """Return a container message that contains *part*."""
    match part:
        case ContainerConfig():
            return convert.container_config(part)
        case LinuxResources():
            return convert.container_config(replace(CONTAINER, resources=part))
        case NamespaceOptions():
            return convert.container_config(replace(CONTAINER, namespaces=part))
        case SecurityOptions():
            return convert.container_config(replace(CONTAINER, security=part))
        case ContainerMount():
            return convert.container_config(replace(CONTAINER, mounts=(part,)))
    return convert.container_config(replace(CONTAINER, devices=(part,)))


IN_SANDBOXES = (
    SANDBOX,
    NamespaceOptions(),
    SecurityOptions(),
    DnsConfig(),
    PortMapping(container_port=80, host_port=8080),
)
IN_CONTAINERS = (
    CONTAINER,
    LinuxResources(),
    NamespaceOptions(),
    SecurityOptions(),
    ContainerMount(container_path="/a", host_path="/b"),
    DeviceNode(container_path="/dev/a", host_path="/dev/b"),
)


@pytest.mark.parametrize(
    ("part", "field", "message"),
    [
        pytest.param(part, one.name, message, id=f"{one.name} of {type(part).__name__} in {message.__name__}")
        for parts, message in ((IN_SANDBOXES, sandbox_of), (IN_CONTAINERS, container_of))
        for part in parts
        for one in fields(part)
        if message is container_of or one.name not in SECURITY_OF_CONTAINERS
    ],
)
def test_every_field_is_converted(part, field, message):
    other = replace(part, **{field: OTHERS[type(part)][field]})

    assert message(other) != message(part)


def test_a_sandbox_message():
    config = replace(
        SANDBOX,
        attempt=1,
        hostname="web",
        log_directory="/logs",
        cgroup_parent="/alignup/podu",
        namespaces=NamespaceOptions(host_network=True, share_pid=True),
        dns=DnsConfig(servers=("10.0.0.1",), searches=("a", "b"), options=("ndots:2",)),
        ports=(PortMapping(container_port=53, host_port=5353, host_ip="::1", protocol="UDP"),),
        security=SecurityOptions(user=0, groups=(7,), privileged=True),
    )

    message = convert.sandbox_config(config)

    assert (message.metadata.name, message.metadata.uid, message.metadata.namespace, message.metadata.attempt) == (
        "web",
        "u",
        "default",
        1,
    )
    assert (message.hostname, message.log_directory, message.linux.cgroup_parent) == ("web", "/logs", "/alignup/podu")
    assert (list(message.dns_config.servers), list(message.dns_config.searches)) == (["10.0.0.1"], ["a", "b"])
    (port,) = message.port_mappings
    assert (port.protocol, port.container_port, port.host_port, port.host_ip) == (wire.UDP, 53, 5353, "::1")
    security = message.linux.security_context
    assert security.HasField("run_as_user")
    assert not security.HasField("run_as_group")
    assert (security.privileged, list(security.supplemental_groups)) == (True, [7])
    options = security.namespace_options
    assert (options.network, options.pid, options.ipc) == (NODE, POD, POD)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        pytest.param(NamespaceOptions(), (POD, OWN, POD), id="default"),
        pytest.param(NamespaceOptions(host_pid=True, share_pid=True), (POD, NODE, POD), id="host PIDs take precedence"),
        pytest.param(NamespaceOptions(share_pid=True), (POD, POD, POD), id="options PIDs"),
        pytest.param(NamespaceOptions(host_network=True, host_ipc=True), (NODE, OWN, NODE), id="host network and IPC"),
    ],
)
def test_namespaces(options, expected):
    message = convert.container_config(replace(CONTAINER, namespaces=options)).linux.security_context.namespace_options

    assert (message.network, message.pid, message.ipc) == expected


@pytest.mark.parametrize(
    ("text", "kind", "path"),
    [
        pytest.param("RuntimeDefault", wire.SecurityProfile.RuntimeDefault, "", id="the default of the runtime"),
        pytest.param("Unconfined", wire.SecurityProfile.Unconfined, "", id="none"),
        pytest.param("Localhost/var/lib/a.json", wire.SecurityProfile.Localhost, "var/lib/a.json", id="a file"),
        pytest.param("", wire.SecurityProfile.Unconfined, "", id="unset is unconfined, as in the kubelet"),
    ],
)
def test_seccomp_profiles(text, kind, path):
    message = convert.container_config(
        replace(CONTAINER, security=SecurityOptions(seccomp=text))
    ).linux.security_context.seccomp

    assert (message.profile_type, message.localhost_ref) == (kind, path)


def test_only_a_localhost_profile_has_a_path():
    with pytest.raises(ValueError, match="profile Unconfined/x: only a Localhost profile has a path"):
        convert.container_config(replace(CONTAINER, security=SecurityOptions(seccomp="Unconfined/x")))


def test_a_sandbox_without_a_profile_gets_the_default_of_the_runtime():
    message = convert.sandbox_config(replace(SANDBOX, security=SecurityOptions(seccomp=""))).linux.security_context

    assert message.HasField("seccomp")
    assert message.seccomp.profile_type == wire.SecurityProfile.RuntimeDefault
    assert not message.HasField("apparmor")


@pytest.mark.parametrize(
    ("security", "hidden"),
    [
        pytest.param(SecurityOptions(), True, id="default"),
        pytest.param(SecurityOptions(unmasked=True), False, id="unmasked"),
        pytest.param(SecurityOptions(privileged=True), False, id="privileged"),
    ],
)
def test_parts_of_proc_and_sys_are_hidden(security, hidden):
    masked = (*convert.MASKED_PATHS, "/sys/devices/system/cpu/cpu0/thermal_throttle")

    message = convert.container_config(replace(CONTAINER, security=security), masked=masked).linux.security_context

    assert tuple(message.masked_paths) == (masked if hidden else ())
    assert tuple(message.readonly_paths) == (convert.READ_ONLY_PATHS if hidden else ())


def test_variables_keep_their_order_and_may_hold_any_bytes():
    envs = {"B": "ü", "A": b"\xff\xfe".decode("utf-8", "surrogateescape"), "C": ""}

    message = convert.container_config(replace(CONTAINER, envs=envs)).envs

    assert [(one.key, one.value) for one in message] == [("B", "ü".encode()), ("A", b"\xff\xfe"), ("C", b"")]


sets = st.sets(st.integers(0, 300)).map(bits.of)
resources = st.builds(
    LinuxResources,
    cpus=sets,
    nodes=sets,
    cpu_shares=st.integers(0, 262_144),
    cpu_quota=st.integers(-1, 10**9),
    cpu_period=st.integers(0, 10**6),
    memory_limit=st.integers(0, 1 << 60),
    memory_swap_limit=st.integers(0, 1 << 60),
    oom_score_adj=st.integers(-1000, 1000),
    hugepages=st.dictionaries(st.sampled_from(["2MB", "1GB", "64KB"]), st.integers(0, 1 << 62)),
    unified=st.dictionaries(st.text(min_size=1), st.text()),
)


def resources_of(message: wire.LinuxContainerResources) -> LinuxResources:
    return LinuxResources(
        cpus=bits.parse(message.cpuset_cpus),
        nodes=bits.parse(message.cpuset_mems),
        cpu_shares=message.cpu_shares,
        cpu_quota=message.cpu_quota,
        cpu_period=message.cpu_period,
        memory_limit=message.memory_limit_in_bytes,
        memory_swap_limit=message.memory_swap_limit_in_bytes,
        oom_score_adj=message.oom_score_adj,
        hugepages={one.page_size: one.limit for one in message.hugepage_limits},
        unified=dict(message.unified),
    )


@given(resources)
def test_resources_round_trip(wanted):
    raw = convert.linux_resources(wanted).SerializeToString()

    assert resources_of(wire.LinuxContainerResources.FromString(raw)) == wanted


def status(**more: Any) -> wire.ContainerStatusResponse:
    message = wire.ContainerStatus(
        id="c1",
        metadata=wire.ContainerMetadata(name="main", attempt=2),
        state=wire.CONTAINER_EXITED,
        created_at=1_500_000_000,
        started_at=2_000_000_000,
        finished_at=2_250_000_000,
        exit_code=137,
        reason="OOMKilled",
        message="too much",
        image=wire.ImageSpec(image="busybox"),
        image_ref="sha256:1",
        labels={"a": "b"},
        annotations={"c": "d"},
    )
    return wire.ContainerStatusResponse(status=message, **more)


def test_a_container_status():
    seen = convert.parse_container_status(status(info={"info": json.dumps({"sandboxID": "s1", "pid": 42})}))

    assert (seen.id, seen.sandbox, seen.name, seen.attempt) == ("c1", "s1", "main", 2)
    assert (seen.state, seen.exit_code, seen.reason, seen.message) == (
        ContainerState.EXITED,
        137,
        "OOMKilled",
        "too much",
    )
    assert (seen.created, seen.started, seen.finished) == (1.5, 2.0, 2.25)
    assert (seen.image, seen.image_ref, seen.labels, seen.annotations) == (
        "busybox",
        "sha256:1",
        {"a": "b"},
        {"c": "d"},
    )
    assert seen.pid == 42


@pytest.mark.parametrize(
    ("info", "pid"),
    [
        pytest.param({"info": '{"pid": 42, "removing": false}'}, 42, id="JSON, as from containerd and CRI-O"),
        pytest.param({"pid": "42"}, 42, id="a separate value"),
        pytest.param({"info": '{"pid": 0}'}, None, id="not running"),
        pytest.param({}, None, id="not reported"),
        pytest.param({"info": "no JSON"}, None, id="not JSON"),
        pytest.param({"info": "[1]"}, None, id="not an object"),
        pytest.param({"info": '{"pid": "x"}'}, None, id="not a number"),
        pytest.param({"info": '{"pid": null}'}, None, id="null"),
    ],
)
def test_the_pid_of_a_container(info, pid):
    assert convert.parse_container_status(status(info=info)).pid == pid


@pytest.mark.parametrize(
    ("value", "state"),
    [
        (wire.CONTAINER_CREATED, ContainerState.CREATED),
        (wire.CONTAINER_RUNNING, ContainerState.RUNNING),
        (wire.CONTAINER_EXITED, ContainerState.EXITED),
        (wire.CONTAINER_UNKNOWN, ContainerState.UNKNOWN),
        (17, ContainerState.UNKNOWN),
    ],
)
def test_container_states(value, state):
    raw = wire.Container(id="c", state=value).SerializeToString()

    assert convert.parse_container(wire.Container.FromString(raw)).state is state


@pytest.mark.parametrize("unset", [0, -1, -6_795_364_578_871_345_152])
def test_an_unset_time_is_zero(unset):
    seen = convert.parse_container_status(wire.ContainerStatusResponse(status=wire.ContainerStatus(finished_at=unset)))

    assert seen.finished == 0.0


def test_listed_sandboxes_have_no_ips():
    metadata = wire.PodSandboxMetadata(name="web", uid="u", namespace="default", attempt=1)
    listed = wire.PodSandbox(
        id="s", metadata=metadata, state=wire.SANDBOX_NOTREADY, created_at=10**9, labels={"a": "b"}
    )
    network = wire.PodSandboxNetworkStatus(ip="10.0.0.2", additional_ips=[wire.PodIP(ip="fd00::2")])
    shown = wire.PodSandboxStatus(id="s", metadata=metadata, created_at=10**9, labels={"a": "b"}, network=network)

    in_list, alone = convert.parse_sandbox(listed), convert.parse_sandbox(shown)

    assert (in_list.ready, in_list.ips) == (False, ())
    assert alone == replace(in_list, ready=True, ips=("10.0.0.2", "fd00::2"))
    assert (alone.uid, alone.name, alone.namespace, alone.attempt) == ("u", "web", "default", 1)
    assert convert.parse_sandbox(wire.PodSandboxStatus(id="s")).ips == ()


def test_versions_conditions_images_and_exec_results():
    condition = wire.RuntimeCondition(type="NetworkReady", reason="NetworkPluginNotReady", message="no network config")
    status_response = wire.StatusResponse(status=wire.RuntimeStatus(conditions=[condition]))
    version = wire.VersionResponse(runtime_name="containerd", runtime_version="1.6", runtime_api_version="v1")
    root = wire.Image(id="sha256:1", repo_tags=["a:1"], repo_digests=["a@sha256:2"], uid=wire.Int64Value(value=0))

    assert convert.parse_version(version) == RuntimeVersion("containerd", "1.6", "v1")
    assert convert.parse_conditions(status_response) == (
        RuntimeCondition("NetworkReady", ready=False, reason="NetworkPluginNotReady", message="no network config"),
    )
    assert convert.parse_image(wire.ImageStatusResponse()) is None
    assert convert.parse_image(wire.ImageStatusResponse(image=root)) == CriImage(
        id="sha256:1", tags=("a:1",), digests=("a@sha256:2",), user=0
    )
    named = convert.parse_image(wire.ImageStatusResponse(image=wire.Image(id="2", username="nobody")))
    assert named == CriImage(id="2", username="nobody")
    assert convert.parse_exec_result(wire.ExecSyncResponse(stdout=b"o", stderr=b"e", exit_code=3)) == ExecResult(
        exit_code=3, output=b"o", errors=b"e"
    )


@pytest.mark.parametrize(
    ("response", "driver"),
    [
        pytest.param(wire.RuntimeConfigResponse(), None, id="not reported"),
        pytest.param(
            wire.RuntimeConfigResponse(linux=wire.LinuxRuntimeConfiguration(cgroup_driver=wire.SYSTEMD)),
            "systemd",
            id="systemd, which is 0 on the wire",
        ),
        pytest.param(
            wire.RuntimeConfigResponse(linux=wire.LinuxRuntimeConfiguration(cgroup_driver=wire.CGROUPFS)),
            "cgroupfs",
            id="cgroupfs",
        ),
    ],
)
def test_cgroup_drivers(response, driver):
    assert convert.parse_cgroup_driver(wire.RuntimeConfigResponse.FromString(response.SerializeToString())) == driver
