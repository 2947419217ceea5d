"""CRI configurations of sandboxes and containers, compared with the kubelet's."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.agent.pods import cri_config
from alignup.agent.pods.cri_config import (
    HostConfig,
    container_config,
    hostname,
    log_directory,
    pod_facts,
    sandbox_config,
)
from alignup.agent.pods.pod_state import PodStartError
from alignup.align import bits
from alignup.align.workload import Pod
from alignup.kubernetes.plugins import allocate_response
from alignup.kubernetes.plugins.allocate_response import AllocateResponse
from alignup.kubernetes.podspec import types as kube
from alignup.kubernetes.podspec.types import LifecycleHook, PodSpec, SecurityContext
from alignup.run.cri.types import (
    ContainerConfig,
    ContainerMount,
    CriImage,
    DeviceNode,
    DnsConfig,
    LinuxResources,
    NamespaceOptions,
    PortMapping,
    SandboxConfig,
    SecurityOptions,
)
from tests.agent.pods.statuses import APP, container

POD = Pod(name="web", namespace="shop", uid="4711")
HOST = HostConfig(
    agent="agent-1",
    log_root=Path("/var/log/pods"),
    cgroup_parent="/kubepods",
    host_name="node-1",
    host_ips=("192.0.2.1",),
    dns=DnsConfig(servers=("9.9.9.9",), searches=("example.org",), options=("ndots:2", "rotate")),
)
SPEC = PodSpec(
    name="web",
    namespace="shop",
    labels={"app": "web", "io.kubernetes.pod.uid": "made up"},
    annotations={"note": "hi"},
    containers=(APP,),
)
IMAGE = CriImage(id="sha256:1234")


def first_container_config(spec: PodSpec = SPEC, *, host: HostConfig = HOST, **more) -> ContainerConfig:
    """The configuration of the first container of *spec*."""
    given_ = {"attempt": 2, "image": IMAGE, "resources": LinuxResources(), "envs": {}, **more}
    return container_config(POD, spec, spec.containers[0], host=host, **given_)


def test_sandbox_labels_are_the_kubelets_plus_one():
    config = sandbox_config(POD, SPEC, attempt=3, host=HOST)

    assert config == SandboxConfig(
        uid="4711",
        name="web",
        namespace="shop",
        attempt=3,
        hostname="web",
        log_directory="/var/log/pods/shop_web_4711",
        labels={
            "app": "web",
            "io.kubernetes.pod.name": "web",
            "io.kubernetes.pod.namespace": "shop",
            "io.kubernetes.pod.uid": "4711",
            "alignup.agent": "agent-1",
        },
        annotations={"note": "hi"},
        cgroup_parent="/kubepods",
        namespaces=NamespaceOptions(),
        dns=None,
        security=SecurityOptions(seccomp="RuntimeDefault"),
    )


def test_a_sandbox_gets_the_pod_level_settings():
    spec = replace(
        SPEC,
        containers=(APP, replace(container("root"), security_context=SecurityContext(privileged=True))),
        ports=(kube.HostPort(container_port=80, host_port=8080, host_ip="127.0.0.1", protocol="UDP"),),
        sysctls={"net.ipv4.ip_unprivileged_port_start": "0"},
        groups=(7, 8),
        security_context=SecurityContext(user=1000, group=100, selinux={"level": "s0"}, seccomp="Unconfined"),
        host_pid=True,
        share_pid=True,
        runtime_handler="kata",
    )

    config = sandbox_config(POD, spec, attempt=0, host=HOST)

    assert config.ports == (PortMapping(container_port=80, host_port=8080, host_ip="127.0.0.1", protocol="UDP"),)
    assert config.sysctls == {"net.ipv4.ip_unprivileged_port_start": "0"}
    assert config.security == SecurityOptions(
        user=1000, group=100, groups=(7, 8), privileged=True, selinux={"level": "s0"}, seccomp="RuntimeDefault"
    )
    assert config.namespaces == NamespaceOptions(host_pid=True)
    assert config.handler == "kata"


@pytest.mark.parametrize(
    ("spec", "host"),
    [
        pytest.param(replace(SPEC, host_network=True), HOST, id="the pod requests it"),
        pytest.param(SPEC, replace(HOST, host_network=True), id="the runtime has no CNI network"),
    ],
)
def test_a_pod_on_the_host_network_has_the_hosts_name_and_addresses(spec, host):
    spec = replace(spec, ports=(kube.HostPort(container_port=80, host_port=80),))

    config = sandbox_config(POD, spec, attempt=0, host=host)

    assert config.hostname == ""
    assert config.ports == ()
    assert config.namespaces == NamespaceOptions(host_network=True)
    assert first_container_config(spec, host=host).namespaces == config.namespaces
    assert pod_facts(POD, spec, host=host, addresses=("10.0.0.7",)).pod_ips == ("192.0.2.1",)


@pytest.mark.parametrize(
    ("spec", "dns"),
    [
        pytest.param(replace(SPEC, dns_policy="Default"), None, id="the host's settings"),
        pytest.param(
            replace(SPEC, dns_policy="None", nameservers=("1.1.1.1",)),
            DnsConfig(servers=("1.1.1.1",)),
            id="dnsPolicy None",
        ),
        pytest.param(
            replace(SPEC, nameservers=("1.1.1.1", "9.9.9.9"), searches=("a",), dns_options=("ndots:5", "debug")),
            DnsConfig(
                servers=("9.9.9.9", "1.1.1.1"),
                searches=("example.org", "a"),
                options=("ndots:5", "rotate", "debug"),
            ),
            id="added to the host's",
        ),
        pytest.param(
            replace(SPEC, dns_policy="None", nameservers=tuple("abcd"), searches=tuple(map(str, range(40)))),
            DnsConfig(servers=tuple("abc"), searches=tuple(map(str, range(32)))),
            id="the number of entries is limited",
        ),
        pytest.param(
            replace(SPEC, dns_policy="None", searches=("x" * 1500, "y" * 500, "z" * 500)),
            DnsConfig(searches=("x" * 1500, "y" * 500)),
            id="the length of the search list is limited",
        ),
    ],
)
def test_dns_config(spec, dns):
    assert sandbox_config(POD, spec, attempt=0, host=HOST).dns == dns


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("web", "web"),
        ("a" * 63, "a" * 63),
        ("a" * 64, "a" * 63),
        ("a" * 61 + ".-b", "a" * 61),
        ("a" * 62 + "-b", "a" * 62),
    ],
)
def test_hostnames_are_cut_at_the_kernels_limit(name, shown):
    assert hostname(replace(SPEC, name=name)) == shown
    assert hostname(replace(SPEC, hostname=name)) == shown


def test_a_hostname_of_dashes_is_invalid():
    with pytest.raises(PodStartError):
        hostname(replace(SPEC, hostname="-" * 5))


@given(st.from_regex(r"[a-z0-9]([-a-z0-9.]{0,250}[a-z0-9])?", fullmatch=True))
def test_hostnames_end_in_a_letter_or_digit(name):
    shown = hostname(replace(SPEC, hostname=name))

    assert name.startswith(shown)
    assert 0 < len(shown) <= 63
    assert shown[-1].isalnum()


@pytest.mark.parametrize("uid", ["../../etc", "a/b", "x" * 300, "\0"])
def test_log_directories_stay_in_the_log_root(uid):
    with pytest.raises(PodStartError):
        log_directory(HOST.log_root, replace(POD, uid=uid))


def test_container_labels_and_annotations():
    stopping = replace(APP, pre_stop=LifecycleHook(command=("sh", "-c", "sleep 1")), fallback_to_logs_on_error=True)

    config = first_container_config(replace(SPEC, containers=(stopping,), grace=7))

    assert config.labels == {
        "io.kubernetes.pod.name": "web",
        "io.kubernetes.pod.namespace": "shop",
        "io.kubernetes.pod.uid": "4711",
        "io.kubernetes.container.name": "app",
        "alignup.agent": "agent-1",
    }
    assert config.annotations == {
        "io.kubernetes.container.hash": cri_config.container_hash(APP),
        "io.kubernetes.container.restartCount": "2",
        "io.kubernetes.container.terminationMessagePath": "/dev/termination-log",
        "io.kubernetes.container.terminationMessagePolicy": "FallbackToLogsOnError",
        "io.kubernetes.container.preStopHandler": '{"exec":{"command":["sh","-c","sleep 1"]}}',
        "io.kubernetes.pod.terminationGracePeriod": "7",
    }
    assert (config.name, config.attempt, config.log_path) == ("app", 2, "app/2.log")
    assert (config.image, config.requested_image) == ("sha256:1234", "example.org/app")


def test_a_sleep_hook_is_in_the_annotations():
    config = first_container_config(replace(SPEC, containers=(replace(APP, pre_stop=LifecycleHook(sleep=5)),)))

    assert json.loads(config.annotations["io.kubernetes.container.preStopHandler"]) == {"sleep": {"seconds": 5}}


def test_the_hash_depends_on_the_image():
    assert cri_config.container_hash(APP) == cri_config.container_hash(replace(APP, command=("other",)))
    assert cri_config.container_hash(APP) != cri_config.container_hash(replace(APP, image="example.org/app:2"))
    assert int(cri_config.container_hash(APP), 16) < 1 << 32


def test_commands_expand_all_variables():
    worker = replace(APP, command=("run", "$(DEVICE)"), args=("$$(DEVICE)", "$(NAME)"), working_dir="/srv", tty=True)
    envs = {"DEVICE": "gpu0", "NAME": "web"}

    config = first_container_config(replace(SPEC, containers=(worker,)), envs=envs)

    assert config.command == ("run", "gpu0")
    assert config.args == ("$(DEVICE)", "web")
    assert config.envs == envs
    assert (config.working_dir, config.tty, config.stdin) == ("/srv", True, False)


def test_device_plugin_responses_are_in_the_container_config():
    grant = AllocateResponse(
        mounts=(allocate_response.MountSpec("/lib/gpu", "/opt/gpu", read_only=True),),
        devices=(
            allocate_response.DeviceSpec("/dev/gpu0", "/dev/gpu7", "rw"),
            allocate_response.DeviceSpec("/dev/ctl", "/dev/ctl"),
        ),
        annotations={"vendor": "x", "io.kubernetes.container.restartCount": "99"},
        cdi=("vendor.com/gpu=0",),
    )
    volume = ContainerMount(container_path="/data", host_path="/srv/data")

    config = first_container_config(devices=grant, mounts=(volume,))

    assert config.mounts == (ContainerMount(container_path="/lib/gpu", host_path="/opt/gpu", read_only=True), volume)
    assert config.devices == (
        DeviceNode(container_path="/dev/gpu0", host_path="/dev/gpu7", permissions="rw"),
        DeviceNode(container_path="/dev/ctl", host_path="/dev/ctl", permissions="rwm"),
    )
    assert config.cdi == ("vendor.com/gpu=0",)
    assert config.annotations["vendor"] == "x"
    assert config.annotations["io.kubernetes.container.restartCount"] == "2"


def test_resources_are_passed_through():
    held = LinuxResources(cpus=bits.of([2, 3]), nodes=bits.of([1]), cpu_quota=-1)

    assert first_container_config(resources=held).resources is held


@pytest.mark.parametrize(
    ("said", "default", "seccomp"),
    [
        pytest.param("", "Unconfined", "Unconfined", id="the kubelet's default"),
        pytest.param("", "RuntimeDefault", "RuntimeDefault", id="with seccompDefault"),
        pytest.param("RuntimeDefault", "Unconfined", "RuntimeDefault", id="from the manifest"),
        pytest.param("Localhost/a/b.json", "Unconfined", "Localhost//profiles/a/b.json", id="a localhost profile"),
    ],
)
def test_seccomp(said, default, seccomp):
    spec = replace(SPEC, containers=(replace(APP, security_context=SecurityContext(seccomp=said)),))
    host = replace(HOST, seccomp=default, seccomp_root=Path("/profiles"))

    assert first_container_config(spec, host=host).security.seccomp == seccomp


def test_security_options():
    context = SecurityContext(
        user=1000,
        group=0,
        privileged=True,
        read_only_root=True,
        no_new_privileges=True,
        add=("SYS_NICE",),
        drop=("ALL",),
        apparmor="RuntimeDefault",
        selinux={"level": "s0"},
        unmasked=True,
    )

    config = first_container_config(replace(SPEC, containers=(replace(APP, security_context=context),), groups=(7,)))

    assert config.security == SecurityOptions(
        user=1000,
        group=0,
        groups=(7,),
        privileged=True,
        read_only_root=True,
        no_new_privileges=True,
        add=("SYS_NICE",),
        drop=("ALL",),
        seccomp="Unconfined",
        apparmor="RuntimeDefault",
        selinux={"level": "s0"},
        unmasked=True,
    )


@pytest.mark.parametrize(
    ("context", "image", "user", "username"),
    [
        pytest.param(SecurityContext(user=7), CriImage(id="i", user=8), 7, "", id="from the manifest"),
        pytest.param(SecurityContext(), CriImage(id="i", user=8), 8, "", id="from the image"),
        pytest.param(SecurityContext(), CriImage(id="i", username="web"), None, "web", id="a user name from the image"),
        pytest.param(SecurityContext(group=5), CriImage(id="i"), 0, "", id="root by default"),
    ],
)
def test_a_container_always_has_a_user(context, image, user, username):
    spec = replace(SPEC, containers=(replace(APP, security_context=context),))

    security = first_container_config(spec, image=image).security

    assert (security.user, security.username, security.group) == (user, username, context.group)


def test_a_sandbox_without_a_user_has_no_group():
    spec = replace(SPEC, security_context=SecurityContext(group=100))

    assert sandbox_config(POD, spec, attempt=0, host=HOST).security.group is None


@pytest.mark.parametrize("name", ["net.core.somaxconn", "kernel.domainname"])
def test_network_sysctls_are_rejected_when_the_runtime_has_no_network(name):
    spec = replace(SPEC, sysctls={"kernel.shmmax": "1", name: "1"})

    with pytest.raises(PodStartError, match=f"sysctl {name} would change the host"):
        sandbox_config(POD, spec, attempt=0, host=replace(HOST, host_network=True))

    assert sandbox_config(POD, spec, attempt=0, host=HOST).sysctls == spec.sysctls
