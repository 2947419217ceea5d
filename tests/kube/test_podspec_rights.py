import pytest

from alignup.kube.podspec.types import Permission, SecurityContext
from tests.kube.podspec import NOTHING, container, holding, manifest, problems_of, read


def rights_of(own=None, shared=None, **metadata):
    document = manifest(
        containers=[container(securityContext=own)], securityContext=shared, metadata={"annotations": metadata}
    )
    return read(document).containers[0].security_context


@pytest.mark.parametrize(
    ("own", "shared", "rights"),
    [
        pytest.param(None, None, SecurityContext(), id="nothing said"),
        pytest.param(
            {}, {"runAsUser": 7, "runAsGroup": 8}, SecurityContext(user=7, group=8), id="what the pod says counts"
        ),
        pytest.param(
            {"runAsUser": 0}, {"runAsUser": 7, "runAsGroup": 8}, SecurityContext(user=0, group=8), id="over it its own"
        ),
        pytest.param({}, {"runAsNonRoot": True}, SecurityContext(run_as_non_root=True), id="never root"),
        pytest.param({"runAsNonRoot": False}, {"runAsNonRoot": True}, SecurityContext(), id="root after all"),
        pytest.param({"privileged": True}, None, SecurityContext(privileged=True), id="all rights"),
        pytest.param(
            {"readOnlyRootFilesystem": True}, None, SecurityContext(read_only_root=True), id="a root only to read"
        ),
        pytest.param(
            {"allowPrivilegeEscalation": False}, None, SecurityContext(no_new_privileges=True), id="no new rights"
        ),
        pytest.param({"allowPrivilegeEscalation": True}, None, SecurityContext(), id="new rights as usual"),
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
            id="a profile of the host",
        ),
        pytest.param(
            {"appArmorProfile": {"type": "Unconfined"}}, None, SecurityContext(apparmor="Unconfined"), id="AppArmor"
        ),
        pytest.param(
            {"seLinuxOptions": {"level": "s0"}},
            {"seLinuxOptions": {"type": "spc_t", "user": "u"}},
            SecurityContext(selinux={"level": "s0"}),
            id="SELinux, all of it or none",
        ),
        pytest.param({"procMount": "Unmasked"}, None, SecurityContext(unmasked=True), id="all of /proc"),
        pytest.param({"procMount": "Default"}, None, SecurityContext(), id="what is usual of /proc"),
    ],
)
def test_rights(own, shared, rights):
    assert rights_of(own, shared) == rights


def test_a_pod_has_rights_as_a_whole():
    spec = read(manifest(securityContext={"runAsUser": 7, "seLinuxOptions": {"level": "s0"}}))

    assert spec.security_context == SecurityContext(user=7, selinux={"level": "s0"})


@pytest.mark.parametrize(
    ("annotation", "profile"),
    [("runtime/default", "RuntimeDefault"), ("unconfined", "Unconfined"), ("localhost/mine", "Localhost/mine")],
)
def test_apparmor_by_annotation_as_long_as_there_is_no_field(annotation, profile):
    annotations = {"container.apparmor.security.beta.kubernetes.io/app": annotation}

    assert rights_of(**annotations).apparmor == profile
    assert rights_of({"appArmorProfile": {"type": "RuntimeDefault"}}, **annotations).apparmor == "RuntimeDefault"


def test_an_annotation_that_names_no_profile_is_refused():
    key = "container.apparmor.security.beta.kubernetes.io/app"

    assert problems_of(manifest(metadata={"annotations": {key: "mine"}})) == [
        f'metadata.annotations[{key}]: Invalid value: "mine": must be a profile, such as runtime/default'
    ]


def with_rights(**own):
    return holding(securityContext=own)


def with_shared(**shared):
    return manifest(securityContext=shared)


def with_sysctl(name, **more):
    return manifest(securityContext={"sysctls": [{"name": name, "value": "1"}]}, **more)


@pytest.mark.parametrize(
    ("document", "permission", "told"),
    [
        pytest.param(manifest(hostNetwork=True), "host-network", "spec.hostNetwork: asks for the host's network"),
        pytest.param(manifest(hostPID=True), "host-pid", "spec.hostPID: asks for the host's processes"),
        pytest.param(
            manifest(hostIPC=True), "host-ipc", "spec.hostIPC: asks for the host's shared memory and semaphores"
        ),
        pytest.param(
            holding(ports=[{"containerPort": 1, "hostPort": 2}]),
            "host-port",
            "spec.containers[0].ports[0].hostPort: asks for a port of the host",
        ),
        pytest.param(
            with_rights(privileged=True),
            "privileged",
            "spec.containers[0].securityContext.privileged: asks for all rights on the host",
        ),
        pytest.param(
            with_rights(capabilities={"add": ["CHOWN", "SYS_ADMIN"]}),
            "privileged",
            'spec.containers[0].securityContext.capabilities.add[1]: asks for the capability "SYS_ADMIN"',
        ),
        pytest.param(
            with_rights(procMount="Unmasked"),
            "privileged",
            "spec.containers[0].securityContext.procMount: asks for all of /proc",
        ),
        pytest.param(
            with_shared(seccompProfile={"type": "Unconfined"}),
            "privileged",
            "spec.securityContext.seccompProfile.type: asks to run without seccomp",
        ),
        pytest.param(
            with_shared(appArmorProfile={"type": "Unconfined"}),
            "privileged",
            "spec.securityContext.appArmorProfile.type: asks to run without AppArmor",
        ),
        pytest.param(
            manifest(metadata={"annotations": {"container.apparmor.security.beta.kubernetes.io/app": "unconfined"}}),
            "privileged",
            "metadata.annotations[container.apparmor.security.beta.kubernetes.io/app]: asks to run without AppArmor",
        ),
        pytest.param(
            with_rights(seLinuxOptions={"type": "spc_t"}),
            "privileged",
            'spec.containers[0].securityContext.seLinuxOptions.type: asks for the SELinux type "spc_t"',
        ),
        pytest.param(
            with_shared(seLinuxOptions={"role": "r"}),
            "privileged",
            'spec.securityContext.seLinuxOptions.role: asks for the SELinux role "r"',
        ),
        pytest.param(
            with_sysctl("net.core.somaxconn"),
            "sysctl",
            'spec.securityContext.sysctls[0].name: asks for "net.core.somaxconn", which is no safe sysctl',
        ),
        pytest.param(
            holding(livenessProbe={"tcpSocket": {"port": 1, "host": "10.0.0.1"}}),
            "host-network",
            'spec.containers[0].livenessProbe.tcpSocket.host: asks for requests to "10.0.0.1" on the host\'s network',
        ),
    ],
)
def test_what_goes_beyond_the_baseline_has_to_be_allowed(document, permission, told):
    assert problems_of(document, NOTHING) == [
        f"{told}, which is not allowed here; start the agent with --allow {permission}"
    ]
    assert problems_of(document, frozenset(Permission) - {permission}) == problems_of(document, NOTHING)
    assert read(document, frozenset({Permission(permission)}))


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(
            with_rights(capabilities={"add": ["CHOWN", "NET_BIND_SERVICE"], "drop": ["ALL"]}), id="capabilities"
        ),
        pytest.param(with_rights(seLinuxOptions={"type": "container_t", "level": "s0"}), id="SELinux"),
        pytest.param(with_rights(seccompProfile={"type": "RuntimeDefault"}), id="seccomp"),
        pytest.param(with_rights(allowPrivilegeEscalation=True, runAsUser=0), id="root, as images have it"),
        pytest.param(with_sysctl("net.ipv4.tcp_rmem"), id="a safe sysctl"),
        pytest.param(with_sysctl("kernel.shm_rmid_forced"), id="one of shared memory"),
        pytest.param(manifest(hostNetwork=False, hostPID=None), id="nothing of the host"),
    ],
)
def test_the_baseline_needs_no_permission(document):
    assert read(document, NOTHING)


@pytest.mark.parametrize(
    ("document", "told"),
    [
        pytest.param(
            with_rights(runAsUser=-1),
            "spec.containers[0].securityContext.runAsUser: Invalid value: -1: must be between 0 and 2147483647,"
            " inclusive",
            id="nobody",
        ),
        pytest.param(
            with_shared(supplementalGroups=[1, "x"]),
            "spec.securityContext.supplementalGroups[1]: must be a 64-bit integer, not a string",
            id="no group",
        ),
        pytest.param(
            with_shared(supplementalGroups=1), "spec.securityContext.supplementalGroups: must be a list", id="no groups"
        ),
        pytest.param(
            with_rights(privileged=True, allowPrivilegeEscalation=False),
            "spec.containers[0].securityContext: Invalid value: cannot set `allowPrivilegeEscalation` to false and"
            " `privileged` to true",
            id="all rights, and none",
        ),
        pytest.param(
            with_shared(seccompProfile={"type": "Localhost", "localhostProfile": "../x"}),
            'spec.securityContext.seccompProfile.localhostProfile: Invalid value: "../x": must be a relative path'
            " without '..'",
            id="a profile from anywhere",
        ),
        pytest.param(
            with_shared(seccompProfile={"type": "Localhost"}),
            "spec.securityContext.seccompProfile.localhostProfile: Required value: must be set when seccomp type is"
            " Localhost",
            id="a profile without name",
        ),
        pytest.param(
            with_shared(appArmorProfile={"type": "RuntimeDefault", "localhostProfile": "x"}),
            "spec.securityContext.appArmorProfile.localhostProfile: Invalid value: can only be set when AppArmor type"
            " is Localhost",
            id="a profile too many",
        ),
        pytest.param(
            with_shared(seccompProfile={}), "spec.securityContext.seccompProfile.type: Required value", id="no type"
        ),
        pytest.param(
            with_sysctl("vm.swappiness"),
            "spec.securityContext.sysctls[0].name: Invalid value: \"vm.swappiness\": is the whole host's, not a pod's;"
            " set it on the host",
            id="a sysctl of the host",
        ),
        pytest.param(
            with_sysctl("net/ipv4/tcp_syncookies", hostNetwork=True),
            'spec.securityContext.sysctls[0].name: Invalid value: "net.ipv4.tcp_syncookies": may not be specified when'
            " 'hostNetwork' is true",
            id="one of the network on the host's",
        ),
        pytest.param(
            with_sysctl("kernel.sem", hostIPC=True),
            "spec.securityContext.sysctls[0].name: Invalid value: \"kernel.sem\": may not be specified when 'hostIPC'"
            " is true",
            id="one of semaphores on the host's",
        ),
        pytest.param(
            with_sysctl("net.core/../../x"),
            'spec.securityContext.sysctls[0].name: Invalid value: "net.core/../../x": must be the name of a sysctl,'
            " such as net.core.somaxconn",
            id="no name of a sysctl",
        ),
        pytest.param(
            with_shared(sysctls=[{"name": "net/core/x"}, {"name": "net.core.x"}]),
            'spec.securityContext.sysctls[1].name: Duplicate value: "net.core.x"',
            id="one sysctl twice",
        ),
    ],
)
def test_what_is_wrong_with_rights_is_told(document, told):
    assert problems_of(document) == [told]
