"""What the runtime is told of a pod and its containers, beside what the kubelet would tell it."""

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
from alignup.enforce.cri.types import (
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
from alignup.kube.podspec import types as kube
from alignup.kube.podspec.types import LifecycleHook, PodSpec, SecurityContext
from alignup.plugins import allocate_response
from alignup.plugins.allocate_response import AllocateResponse
from tests.agent.pods.lives import APP, container

POD = Pod(name="web", namespace="shop", uid="4711")
PLACE = HostConfig(
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


def planned(spec: PodSpec = SPEC, *, host: HostConfig = PLACE, **more) -> ContainerConfig:
    """The first container of *spec*."""
    given_ = {"attempt": 2, "image": IMAGE, "resources": LinuxResources(), "envs": {}, **more}
    return container_config(POD, spec, spec.containers[0], host=host, **given_)


def test_a_sandbox_is_known_by_the_kubelets_labels_and_one_of_ours():
    plan = sandbox_config(POD, SPEC, attempt=3, host=PLACE)

    assert plan == SandboxConfig(
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


def test_a_sandbox_has_what_all_containers_share():
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

    plan = sandbox_config(POD, spec, attempt=0, host=PLACE)

    assert plan.ports == (PortMapping(container_port=80, host_port=8080, host_ip="127.0.0.1", protocol="UDP"),)
    assert plan.sysctls == {"net.ipv4.ip_unprivileged_port_start": "0"}
    assert plan.security == SecurityOptions(
        user=1000, group=100, groups=(7, 8), privileged=True, selinux={"level": "s0"}, seccomp="RuntimeDefault"
    )
    assert plan.namespaces == NamespaceOptions(host_pid=True)
    assert plan.handler == "kata"


@pytest.mark.parametrize(
    ("spec", "place"),
    [
        pytest.param(replace(SPEC, host_network=True), PLACE, id="the pod asks for it"),
        pytest.param(SPEC, replace(PLACE, host_network=True), id="the runtime has no other"),
    ],
)
def test_on_the_hosts_network_a_pod_has_the_hosts_name_and_addresses(spec, place):
    spec = replace(spec, ports=(kube.HostPort(container_port=80, host_port=80),))

    plan = sandbox_config(POD, spec, attempt=0, host=place)

    assert plan.hostname == ""
    assert plan.ports == ()
    assert plan.namespaces == NamespaceOptions(host_network=True)
    assert planned(spec, host=place).namespaces == plan.namespaces
    assert pod_facts(POD, spec, host=place, addresses=("10.0.0.7",)).pod_ips == ("192.0.2.1",)


@pytest.mark.parametrize(
    ("spec", "dns"),
    [
        pytest.param(replace(SPEC, dns_policy="Default"), None, id="as the host"),
        pytest.param(
            replace(SPEC, dns_policy="None", nameservers=("1.1.1.1",)), DnsConfig(servers=("1.1.1.1",)), id="alone"
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
            id="as many as a resolver takes",
        ),
        pytest.param(
            replace(SPEC, dns_policy="None", searches=("x" * 1500, "y" * 500, "z" * 500)),
            DnsConfig(searches=("x" * 1500, "y" * 500)),
            id="and as long",
        ),
    ],
)
def test_how_names_are_looked_up(spec, dns):
    assert sandbox_config(POD, spec, attempt=0, host=PLACE).dns == dns


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
def test_hostnames_are_as_long_as_the_kernel_takes(name, shown):
    assert hostname(replace(SPEC, name=name)) == shown
    assert hostname(replace(SPEC, hostname=name)) == shown


def test_a_name_of_nothing_but_dashes_is_none():
    with pytest.raises(PodStartError):
        hostname(replace(SPEC, hostname="-" * 5))


@given(st.from_regex(r"[a-z0-9]([-a-z0-9.]{0,250}[a-z0-9])?", fullmatch=True))
def test_hostnames_end_in_a_letter_or_digit(name):
    shown = hostname(replace(SPEC, hostname=name))

    assert name.startswith(shown)
    assert 0 < len(shown) <= 63
    assert shown[-1].isalnum()


@pytest.mark.parametrize("uid", ["../../etc", "a/b", "x" * 300, "\0"])
def test_logs_stay_where_logs_are(uid):
    with pytest.raises(PodStartError):
        log_directory(PLACE.log_root, replace(POD, uid=uid))


def test_a_container_is_known_again():
    stopping = replace(APP, pre_stop=LifecycleHook(command=("sh", "-c", "sleep 1")), fallback_to_logs_on_error=True)

    plan = planned(replace(SPEC, containers=(stopping,), grace=7))

    assert plan.labels == {
        "io.kubernetes.pod.name": "web",
        "io.kubernetes.pod.namespace": "shop",
        "io.kubernetes.pod.uid": "4711",
        "io.kubernetes.container.name": "app",
        "alignup.agent": "agent-1",
    }
    assert plan.annotations == {
        "io.kubernetes.container.hash": cri_config.container_hash(APP),
        "io.kubernetes.container.restartCount": "2",
        "io.kubernetes.container.terminationMessagePath": "/dev/termination-log",
        "io.kubernetes.container.terminationMessagePolicy": "FallbackToLogsOnError",
        "io.kubernetes.container.preStopHandler": '{"exec":{"command":["sh","-c","sleep 1"]}}',
        "io.kubernetes.pod.terminationGracePeriod": "7",
    }
    assert (plan.name, plan.attempt, plan.log_path) == ("app", 2, "app/2.log")
    assert (plan.image, plan.requested_image) == ("sha256:1234", "example.org/app")


def test_a_hook_that_sleeps_is_written_down_too():
    plan = planned(replace(SPEC, containers=(replace(APP, pre_stop=LifecycleHook(sleep=5)),)))

    assert json.loads(plan.annotations[cri_config.PRE_STOP_HANDLER]) == {"sleep": {"seconds": 5}}


def test_the_fingerprint_follows_the_image():
    assert cri_config.container_hash(APP) == cri_config.container_hash(replace(APP, command=("other",)))
    assert cri_config.container_hash(APP) != cri_config.container_hash(replace(APP, image="example.org/app:2"))
    assert int(cri_config.container_hash(APP), 16) < 1 << 32


def test_commands_know_all_variables():
    worker = replace(APP, command=("run", "$(DEVICE)"), args=("$$(DEVICE)", "$(NAME)"), working_dir="/srv", tty=True)
    envs = {"DEVICE": "gpu0", "NAME": "web"}

    plan = planned(replace(SPEC, containers=(worker,)), envs=envs)

    assert plan.command == ("run", "gpu0")
    assert plan.args == ("$(DEVICE)", "web")
    assert plan.envs == envs
    assert (plan.working_dir, plan.tty, plan.stdin) == ("/srv", True, False)


def test_what_plugins_give_comes_with_the_container():
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

    plan = planned(devices=grant, mounts=(volume,))

    assert plan.mounts == (ContainerMount(container_path="/lib/gpu", host_path="/opt/gpu", read_only=True), volume)
    assert plan.devices == (
        DeviceNode(container_path="/dev/gpu0", host_path="/dev/gpu7", permissions="rw"),
        DeviceNode(container_path="/dev/ctl", host_path="/dev/ctl", permissions="rwm"),
    )
    assert plan.cdi == ("vendor.com/gpu=0",)
    assert plan.annotations["vendor"] == "x"
    assert plan.annotations["io.kubernetes.container.restartCount"] == "2"


def test_resources_are_passed_on():
    held = LinuxResources(cpus=bits.of([2, 3]), nodes=bits.of([1]), cpu_quota=-1)

    assert planned(resources=held).resources is held


@pytest.mark.parametrize(
    ("said", "default", "seccomp"),
    [
        pytest.param("", "Unconfined", "Unconfined", id="as the kubelet does by default"),
        pytest.param("", "RuntimeDefault", "RuntimeDefault", id="as it does with seccompDefault"),
        pytest.param("RuntimeDefault", "Unconfined", "RuntimeDefault", id="as the manifest says"),
        pytest.param("Localhost/a/b.json", "Unconfined", "Localhost//profiles/a/b.json", id="from the host"),
    ],
)
def test_seccomp(said, default, seccomp):
    spec = replace(SPEC, containers=(replace(APP, security_context=SecurityContext(seccomp=said)),))
    place = replace(PLACE, seccomp=default, seccomp_root=Path("/profiles"))

    assert planned(spec, host=place).security.seccomp == seccomp


def test_rights():
    rights = SecurityContext(
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

    plan = planned(replace(SPEC, containers=(replace(APP, security_context=rights),), groups=(7,)))

    assert plan.security == SecurityOptions(
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
    ("rights", "image", "user", "username"),
    [
        pytest.param(SecurityContext(user=7), CriImage(id="i", user=8), 7, "", id="as the manifest says"),
        pytest.param(SecurityContext(), CriImage(id="i", user=8), 8, "", id="as its image says"),
        pytest.param(SecurityContext(), CriImage(id="i", username="web"), None, "web", id="as its image says by name"),
        pytest.param(SecurityContext(group=5), CriImage(id="i"), 0, "", id="as root where nobody says"),
    ],
)
def test_a_container_always_has_a_user_as_runtimes_take_no_group_without_one(rights, image, user, username):
    spec = replace(SPEC, containers=(replace(APP, security_context=rights),))

    security = planned(spec, image=image).security

    assert (security.user, security.username, security.group) == (user, username, rights.group)


def test_a_sandbox_has_no_group_without_a_user():
    spec = replace(SPEC, security_context=SecurityContext(group=100))

    assert sandbox_config(POD, spec, attempt=0, host=PLACE).security.group is None


@pytest.mark.parametrize("name", ["net.core.somaxconn", "kernel.domainname"])
def test_a_pod_put_on_the_hosts_network_by_force_does_not_change_it(name):
    spec = replace(SPEC, sysctls={"kernel.shmmax": "1", name: "1"})

    with pytest.raises(PodStartError, match=f"sysctl {name} would change the host"):
        sandbox_config(POD, spec, attempt=0, host=replace(PLACE, host_network=True))

    assert sandbox_config(POD, spec, attempt=0, host=PLACE).sysctls == spec.sysctls
