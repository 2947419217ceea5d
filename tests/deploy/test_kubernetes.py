"""The objects in ``deploy/kubernetes`` fit each other and the programs that they run."""

import subprocess

import pytest
from starlette.routing import Route

import alignup
from alignup.cli import nri as nri_command
from alignup.cli import observe as observe_command
from alignup.cli import schedule as schedule_command
from alignup.cli import webhook_certificates as certificates_command
from alignup.observe.app import ObserverMetrics, observer_app
from alignup.observe.observation import join
from alignup.observe.published_objects import node_topology
from tests.deploy.manifests import (
    BASE,
    KUBERNETES,
    NRI_ASSIST,
    NRI_DECIDE,
    SCHEDULE,
    SCHEDULER,
    by_name,
    find_program,
    of_kind,
    read_documents,
    read_kustomization,
)
from tests.observe.kubelets import ObservedKubelet

KUBECTL = find_program("kubectl")
DIRECTORIES = (BASE, SCHEDULE, SCHEDULER, NRI_DECIDE)
MONITORING = KUBERNETES / "monitoring"
OBJECTS = [manifest for directory in DIRECTORIES for manifest in read_kustomization(directory)]
OBSERVER, NRI = of_kind(OBJECTS, "DaemonSet")
ASSIST = read_kustomization(NRI_ASSIST)
WORKLOADS = of_kind(OBJECTS, "DaemonSet", "Deployment")
JOBS = of_kind(OBJECTS, "Job")
CLUSTER_SCOPED = {
    *("Namespace", "CustomResourceDefinition", "ClusterRole", "ClusterRoleBinding", "PriorityClass"),
    *("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "MutatingWebhookConfiguration"),
}


BUILT_IN_ROLES = {"system:kube-scheduler", "system:volume-scheduler", "extension-apiserver-authentication-reader"}


def containers(workload):
    return workload["spec"]["template"]["spec"]["containers"]


@pytest.mark.skipif(KUBECTL is None, reason="not installed: kubectl")
def test_kubectl_builds_the_objects_that_the_tests_read():
    built = [
        subprocess.run([KUBECTL or "", "kustomize", directory], check=True, capture_output=True, text=True).stdout  # noqa: S603
        for directory in (*DIRECTORIES, MONITORING)
    ]

    expected = by_name([*OBJECTS, *read_kustomization(MONITORING)])
    assert by_name(manifest for text in built for manifest in read_documents(text)) == expected


def test_every_file_belongs_to_a_kustomization():
    listed = {
        (directory / name).resolve()
        for directory in (path.parent for path in KUBERNETES.rglob("kustomization.yaml"))
        for kustomization in read_documents((directory / "kustomization.yaml").read_text("utf-8"))
        for name in (
            *kustomization["resources"],
            *(patch["path"] for patch in kustomization.get("patches", ()) if "path" in patch),
        )
    }

    assert {path for path in KUBERNETES.rglob("*.yaml") if path.name != "kustomization.yaml"} == {
        path for path in listed if path.is_file()
    }


def test_objects_that_need_a_namespace_have_that_of_the_base():
    namespaces = {(manifest["kind"], manifest["metadata"].get("namespace")) for manifest in OBJECTS}

    assert {kind for kind, namespace in namespaces if namespace is None} <= CLUSTER_SCOPED
    assert {namespace for kind, namespace in namespaces if kind not in CLUSTER_SCOPED} == {"alignup", "kube-system"}
    assert [
        manifest["metadata"]["name"] for manifest in OBJECTS if manifest["metadata"].get("namespace") == "kube-system"
    ] == [
        "alignup-scheduler-authentication"  # as for every scheduler
    ]
    assert "Namespace /alignup" in by_name(OBJECTS)


def test_the_image_is_that_of_this_version():
    all_containers = [container for workload in (*WORKLOADS, *JOBS) for container in containers(workload)]
    images = {container["image"] for container in all_containers if "args" in container}

    assert images == {f"alignup:{alignup.__version__}"}


def test_a_job_has_the_version_in_its_name_because_it_cannot_be_changed():
    name = f"alignup-certificates-{alignup.__version__.replace('.', '-')}"

    assert [job["metadata"]["name"] for job in JOBS] == [name]


@pytest.mark.parametrize("workload", [*WORKLOADS, *JOBS], ids=lambda workload: workload["metadata"]["name"])
def test_the_programs_take_their_options(workload):
    commands = {
        "observe": observe_command.command,
        "schedule": schedule_command.command,
        "nri": nri_command.command,
        "webhook-certificates": certificates_command.command,
    }
    ((name, *words),) = [container["args"] for container in containers(workload) if "args" in container]

    assert commands[name].make_context(name, words).params["kubeconfig"] is None


def test_a_slow_start_is_no_reason_to_be_restarted():
    """On a busy machine, Python can take longer to start than a liveness probe waits."""
    containers = [
        container for workload in WORKLOADS for container in workload["spec"]["template"]["spec"]["containers"]
    ]
    ours = [container for container in containers if container["image"].startswith("alignup:")]
    assert [container["name"] for container in ours if "startupProbe" not in container] == []


def test_probes_ask_paths_that_exist():
    (container,) = containers(OBSERVER)
    app = observer_app(ObserverMetrics("n"), alive=lambda: True, problems=lambda: ())
    paths = {route.path for route in app.routes if isinstance(route, Route)}
    probes = [container[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")]

    assert {probe["path"] for probe in probes} <= paths
    assert {probe["port"] for probe in probes} == {port["name"] for port in container["ports"]}
    assert f":{container['ports'][0]['containerPort']}" in container["args"][1]


@pytest.mark.parametrize("workload", [*WORKLOADS, *JOBS], ids=lambda workload: workload["metadata"]["name"])
def test_containers_have_no_privilege_that_they_do_not_need(workload):
    pod = workload["spec"]["template"]["spec"]

    assert not pod.keys() & {"hostNetwork", "hostPID", "hostIPC"}
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in pod["containers"]:
        context = container["securityContext"]
        assert context["capabilities"] == {"drop": ["ALL"]}  # cluster.capabilities: the observer needs none
        assert context["readOnlyRootFilesystem"] is True
        assert context["allowPrivilegeEscalation"] is False
        assert "privileged" not in context
        assert container["resources"]["requests"].keys() == {"cpu", "memory"}
        assert "memory" in container["resources"]["limits"]


def test_the_observer_sees_the_directory_of_the_kubelet_read_only_and_no_volumes_of_pods():
    pod = OBSERVER["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    host = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}

    assert host == {"kubelet": "/var/lib/kubelet"}
    assert all(mount["readOnly"] for mount in mounts.values())
    assert {path: mount["name"] for path, mount in mounts.items()} == {
        "/var/lib/kubelet": "kubelet",
        "/var/lib/kubelet/pods": "empty",
        "/var/lib/kubelet/plugins": "empty",
    }


@pytest.mark.parametrize("objects", [OBJECTS, ASSIST], ids=["decide", "assist"])
def test_the_nri_plugin_writes_to_the_runtime_and_its_own_directory_only(objects):
    (daemon_set,) = [item for item in of_kind(objects, "DaemonSet") if item["metadata"]["name"] == "alignup-nri"]
    pod = daemon_set["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    host = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}

    assert host == {"nri": "/var/run/nri", "state": "/var/lib/alignup-nri", "kubelet": "/var/lib/kubelet"}
    assert [path for path, mount in mounts.items() if not mount.get("readOnly")] == [
        "/var/run/nri",
        "/var/lib/alignup-nri",
    ]
    assert "--state-dir=/var/lib/alignup-nri" in container["args"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_each_mode_of_nri_has_its_nodes_and_assist_mode_no_access_to_the_api_server():
    (assist,) = of_kind(ASSIST, "DaemonSet")
    modes = [item["spec"]["template"]["spec"]["nodeSelector"]["alignup.dev/nri"] for item in (assist, NRI)]
    words = [containers(item)[0]["args"][1] for item in (assist, NRI)]

    assert (modes, words) == (["assist", "decide"], ["--mode=assist", "--mode=decide"])
    assert assist["spec"]["template"]["spec"]["automountServiceAccountToken"] is False
    assert not of_kind(ASSIST, "ClusterRole", "ClusterRoleBinding")
    (policy,) = of_kind(ASSIST, "NetworkPolicy")
    assert policy["spec"]["egress"] == []


@pytest.mark.parametrize("workload", [*WORKLOADS, *JOBS], ids=lambda workload: workload["metadata"]["name"])
def test_selectors_and_references_match(workload):
    objects = by_name(OBJECTS)
    spec, template = workload["spec"], workload["spec"]["template"]
    account = template["spec"]["serviceAccountName"]
    (policy,) = [
        policy
        for policy in of_kind(OBJECTS, "NetworkPolicy")
        if policy["spec"]["podSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    ]

    if workload["kind"] != "Job":
        assert spec["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    assert f"ServiceAccount alignup/{account}" in objects
    assert f"PriorityClass /{template['spec']['priorityClassName']}" in objects
    if workload["kind"] == "Deployment":
        budget = objects[f"PodDisruptionBudget alignup/{workload['metadata']['name']}"]
        assert budget["spec"]["selector"] == spec["selector"]
        assert budget["spec"]["minAvailable"] < spec["replicas"]
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
    allowed = {port["port"] for rule in policy["spec"].get("ingress", ()) for port in rule["ports"]}
    open_ports = [port for container in containers(workload) for port in container.get("ports", ())]
    assert allowed == {port["containerPort"] for port in open_ports}


def test_bindings_refer_to_roles_and_accounts():
    objects = by_name(OBJECTS)

    for binding in of_kind(OBJECTS, "ClusterRoleBinding", "RoleBinding"):
        role, namespace = binding["roleRef"], binding["metadata"].get("namespace", "")
        if role["name"] not in BUILT_IN_ROLES:
            assert f"{role['kind']} {namespace if role['kind'] == 'Role' else ''}/{role['name']}" in objects
        for subject in binding["subjects"]:
            assert f"{subject['kind']} {subject['namespace']}/{subject['name']}" in objects


def test_the_definition_of_node_resource_topology_has_every_field_that_is_published():
    definition = by_name(OBJECTS)["CustomResourceDefinition /noderesourcetopologies.topology.node.k8s.io"]
    (version,) = [version for version in definition["spec"]["versions"] if version["storage"]]
    schema = version["schema"]["openAPIV3Schema"]

    def check(value, schema):
        if isinstance(value, dict):
            assert set(schema.get("required", ())) <= value.keys() <= schema["properties"].keys()
            for name, inner in value.items():
                check(inner, schema["properties"][name])
        elif isinstance(value, list):
            for inner in value:
                check(inner, schema["items"])

    assert version["name"] == "v1alpha2"
    check(node_topology(join(ObservedKubelet().sources())), schema)
