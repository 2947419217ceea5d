import pytest

from alignup.kubernetes.podspec.types import Permission, SecurityContext
from tests.kubernetes.manifests.podspec import NOTHING, container, holding, manifest, problems_of, read


def security_context_of(own=None, shared=None, **metadata):
    document = manifest(
        containers=[container(securityContext=own)], securityContext=shared, metadata={"annotations": metadata}
    )
    return read(document).containers[0].security_context


@pytest.mark.parametrize(
    ("own", "shared", "expected"),
    [
        pytest.param(None, None, SecurityContext(), id="not set"),
        pytest.param({}, {"runAsUser": 7, "runAsGroup": 8}, SecurityContext(user=7, group=8), id="the pod sets it"),
        pytest.param(
            {"runAsUser": 0},
            {"runAsUser": 7, "runAsGroup": 8},
            SecurityContext(user=0, group=8),
            id="the container overrides the pod",
        ),
        pytest.param({}, {"runAsNonRoot": True}, SecurityContext(run_as_non_root=True), id="non-root"),
        pytest.param(
            {"runAsNonRoot": False}, {"runAsNonRoot": True}, SecurityContext(), id="the container allows root"
        ),
        pytest.param({"privileged": True}, None, SecurityContext(privileged=True), id="privileged"),
        pytest.param(
            {"readOnlyRootFilesystem": True}, None, SecurityContext(read_only_root=True), id="a read-only root"
        ),
        pytest.param(
            {"allowPrivilegeEscalation": False},
            None,
            SecurityContext(no_new_privileges=True),
            id="no privilege escalation",
        ),
        pytest.param({"allowPrivilegeEscalation": True}, None, SecurityContext(), id="privilege escalation"),
        pytest.param(
            {"capabilities": {"add": ["NET_ADMIN"], "drop": ["ALL"]}},
            None,
            SecurityContext(add=("NET_ADMIN",), drop=("ALL",)),
            id="capabilities",
        ),
        pytest.param(
            {"seccompProfile": {"type": "RuntimeDefault"}},
            {"seccompProfile": {"type": "Unconfined"}},
            SecurityContext(seccomp="RuntimeDefault"),
            id="seccomp",
        ),
        pytest.param(
            None,
            {"seccompProfile": {"type": "Localhost", "localhostProfile": "a/b.json"}},
            SecurityContext(seccomp="Localhost/a/b.json"),
            id="a localhost profile",
        ),
        pytest.param(
            {"appArmorProfile": {"type": "Unconfined"}}, None, SecurityContext(apparmor="Unconfined"), id="AppArmor"
        ),
        pytest.param(
            {"seLinuxOptions": {"level": "s0"}},
            {"seLinuxOptions": {"type": "spc_t", "user": "u"}},
            SecurityContext(selinux={"level": "s0"}),
            id="SELinux options override as a whole",
        ),
        pytest.param({"procMount": "Unmasked"}, None, SecurityContext(unmasked=True), id="an unmasked /proc"),
        pytest.param({"procMount": "Default"}, None, SecurityContext(), id="the default /proc"),
    ],
)
def test_security_context(own, shared, expected):
    assert security_context_of(own, shared) == expected


def test_the_pod_has_a_security_context():
    spec = read(manifest(securityContext={"runAsUser": 7, "seLinuxOptions": {"level": "s0"}}))

    assert spec.security_context == SecurityContext(user=7, selinux={"level": "s0"})


@pytest.mark.parametrize(
    ("annotation", "profile"),
    [("runtime/default", "RuntimeDefault"), ("unconfined", "Unconfined"), ("localhost/mine", "Localhost/mine")],
)
def test_the_apparmor_annotation_applies_without_the_field(annotation, profile):
    annotations = {"container.apparmor.security.beta.kubernetes.io/app": annotation}

    assert security_context_of(**annotations).apparmor == profile
    assert (
        security_context_of({"appArmorProfile": {"type": "RuntimeDefault"}}, **annotations).apparmor == "RuntimeDefault"
    )


def test_an_invalid_apparmor_annotation_is_rejected():
    key = "container.apparmor.security.beta.kubernetes.io/app"

    assert problems_of(manifest(metadata={"annotations": {key: "mine"}})) == [
        f'metadata.annotations[{key}]: Invalid value: "mine": must be a profile, such as runtime/default'
    ]


def with_own(**own):
    return holding(securityContext=own)


def with_shared(**shared):
    return manifest(securityContext=shared)


def with_sysctl(name, **more):
    return manifest(securityContext={"sysctls": [{"name": name, "value": "1"}]}, **more)


@pytest.mark.parametrize(
    ("document", "permission", "expected"),
    [
        pytest.param(manifest(hostNetwork=True), "host-network", "spec.hostNetwork: the host network"),
        pytest.param(manifest(hostPID=True), "host-pid", "spec.hostPID: the host PID namespace"),
        pytest.param(manifest(hostIPC=True), "host-ipc", "spec.hostIPC: the host IPC namespace"),
        pytest.param(
            holding(ports=[{"containerPort": 1, "hostPort": 2}]),
            "host-port",
            "spec.containers[0].ports[0].hostPort: a host port",
        ),
        pytest.param(
            with_own(privileged=True),
            "privileged",
            "spec.containers[0].securityContext.privileged: privileged mode",
        ),
        pytest.param(
            with_own(capabilities={"add": ["CHOWN", "SYS_ADMIN"]}),
            "privileged",
            'spec.containers[0].securityContext.capabilities.add[1]: capability "SYS_ADMIN"',
        ),
        pytest.param(
            with_own(procMount="Unmasked"),
            "privileged",
            "spec.containers[0].securityContext.procMount: an unmasked /proc",
        ),
        pytest.param(
            with_shared(seccompProfile={"type": "Unconfined"}),
            "privileged",
            "spec.securityContext.seccompProfile.type: running without seccomp",
        ),
        pytest.param(
            with_shared(appArmorProfile={"type": "Unconfined"}),
            "privileged",
            "spec.securityContext.appArmorProfile.type: running without AppArmor",
        ),
        pytest.param(
            manifest(metadata={"annotations": {"container.apparmor.security.beta.kubernetes.io/app": "unconfined"}}),
            "privileged",
            "metadata.annotations[container.apparmor.security.beta.kubernetes.io/app]: running without AppArmor",
        ),
        pytest.param(
            with_own(seLinuxOptions={"type": "spc_t"}),
            "privileged",
            'spec.containers[0].securityContext.seLinuxOptions.type: SELinux type "spc_t"',
        ),
        pytest.param(
            with_shared(seLinuxOptions={"role": "r"}),
            "privileged",
            'spec.securityContext.seLinuxOptions.role: SELinux role "r"',
        ),
        pytest.param(
            with_sysctl("net.core.somaxconn"),
            "sysctl",
            'spec.securityContext.sysctls[0].name: unsafe sysctl "net.core.somaxconn"',
        ),
        pytest.param(
            holding(livenessProbe={"tcpSocket": {"port": 1, "host": "10.0.0.1"}}),
            "host-network",
            'spec.containers[0].livenessProbe.tcpSocket.host: probing "10.0.0.1" from the host network',
        ),
    ],
)
def test_fields_beyond_the_baseline_require_a_permission(document, permission, expected):
    assert problems_of(document, NOTHING) == [
        f"{expected} is not allowed; start the agent with --allow {permission} to allow it"
    ]
    assert problems_of(document, frozenset(Permission) - {permission}) == problems_of(document, NOTHING)
    assert read(document, frozenset({Permission(permission)}))


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(with_own(capabilities={"add": ["CHOWN", "NET_BIND_SERVICE"], "drop": ["ALL"]}), id="capabilities"),
        pytest.param(with_own(seLinuxOptions={"type": "container_t", "level": "s0"}), id="SELinux"),
        pytest.param(with_own(seccompProfile={"type": "RuntimeDefault"}), id="seccomp"),
        pytest.param(with_own(allowPrivilegeEscalation=True, runAsUser=0), id="root"),
        pytest.param(with_sysctl("net.ipv4.tcp_rmem"), id="a safe sysctl"),
        pytest.param(with_sysctl("kernel.shm_rmid_forced"), id="an IPC sysctl"),
        pytest.param(manifest(hostNetwork=False, hostPID=None), id="no host namespaces"),
    ],
)
def test_the_baseline_requires_no_permission(document):
    assert read(document, NOTHING)


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        pytest.param(
            with_own(runAsUser=-1),
            "spec.containers[0].securityContext.runAsUser: Invalid value: -1: must be between 0 and 2147483647,"
            " inclusive",
            id="a negative user",
        ),
        pytest.param(
            with_shared(supplementalGroups=[1, "x"]),
            "spec.securityContext.supplementalGroups[1]: must be a 64-bit integer, not a string",
            id="a string as group",
        ),
        pytest.param(
            with_shared(supplementalGroups=1),
            "spec.securityContext.supplementalGroups: must be a list, not a number",
            id="a number as groups",
        ),
        pytest.param(
            with_own(privileged=True, allowPrivilegeEscalation=False),
            "spec.containers[0].securityContext: Invalid value: cannot set `allowPrivilegeEscalation` to false and"
            " `privileged` to true",
            id="privileged without escalation",
        ),
        pytest.param(
            with_shared(seccompProfile={"type": "Localhost", "localhostProfile": "../x"}),
            'spec.securityContext.seccompProfile.localhostProfile: Invalid value: "../x": must be a relative path'
            " without '..'",
            id="a profile outside the profile directory",
        ),
        pytest.param(
            with_shared(seccompProfile={"type": "Localhost"}),
            "spec.securityContext.seccompProfile.localhostProfile: Required value: must be set when seccomp type is"
            " Localhost",
            id="a localhost profile without a path",
        ),
        pytest.param(
            with_shared(appArmorProfile={"type": "RuntimeDefault", "localhostProfile": "x"}),
            "spec.securityContext.appArmorProfile.localhostProfile: Invalid value: can only be set when AppArmor type"
            " is Localhost",
            id="a path without a localhost profile",
        ),
        pytest.param(
            with_shared(seccompProfile={}), "spec.securityContext.seccompProfile.type: Required value", id="no type"
        ),
        pytest.param(
            with_sysctl("vm.swappiness"),
            'spec.securityContext.sysctls[0].name: Invalid value: "vm.swappiness": is not namespaced; set it on'
            " the host",
            id="a sysctl that is not namespaced",
        ),
        pytest.param(
            with_sysctl("net/ipv4/tcp_syncookies", hostNetwork=True),
            'spec.securityContext.sysctls[0].name: Invalid value: "net.ipv4.tcp_syncookies": may not be specified when'
            " 'hostNetwork' is true",
            id="a network sysctl on the host network",
        ),
        pytest.param(
            with_sysctl("kernel.sem", hostIPC=True),
            "spec.securityContext.sysctls[0].name: Invalid value: \"kernel.sem\": may not be specified when 'hostIPC'"
            " is true",
            id="an IPC sysctl in the host IPC namespace",
        ),
        pytest.param(
            with_sysctl("net.core/../../x"),
            'spec.securityContext.sysctls[0].name: Invalid value: "net.core/../../x": must be the name of a sysctl,'
            " such as net.core.somaxconn",
            id="an invalid sysctl name",
        ),
        pytest.param(
            with_shared(sysctls=[{"name": "net/core/x"}, {"name": "net.core.x"}]),
            'spec.securityContext.sysctls[1].name: Duplicate value: "net.core.x"',
            id="a duplicate sysctl",
        ),
    ],
)
def test_invalid_security_contexts(document, expected):
    assert problems_of(document) == [expected]
