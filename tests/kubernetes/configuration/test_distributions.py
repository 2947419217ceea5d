"""Files of OpenShift, kubeadm, EKS, GKE, AKS, Talos, k3s and kOps as the configuration of a kubelet."""

import copy
import json
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from alignup.align import bits
from alignup.align.errors import AlignError, ConfigurationError
from alignup.kubernetes.configuration import host_settings, unwrap
from alignup.kubernetes.configuration.distributions import FETCH
from alignup.kubernetes.manifests.documents import to_yaml
from alignup.machines import synthetic

KUBELET = {"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration"}
PROFILE: dict[str, Any] = {
    "apiVersion": "performance.openshift.io/v2",
    "kind": "PerformanceProfile",
    "metadata": {"name": "low-latency"},
    "spec": {
        "cpu": {"reserved": "0-1", "isolated": "2-15"},
        "numa": {"topologyPolicy": "single-numa-node"},
        "nodeSelector": {"node-role.kubernetes.io/worker": ""},
    },
}
KUBELET_CONFIG: dict[str, Any] = {
    "apiVersion": "machineconfiguration.openshift.io/v1",
    "kind": "KubeletConfig",
    "spec": {"kubeletConfig": {"cpuManagerPolicy": "static", "systemReserved": {"memory": "2Gi"}}},
}
KUBEADM: dict[str, Any] = {
    "apiVersion": "kubeadm.k8s.io/v1beta4",
    "kind": "InitConfiguration",
    "nodeRegistration": {
        "kubeletExtraArgs": [
            {"name": "topology-manager-policy", "value": "restricted"},
            {"name": "node-labels", "value": "a=b"},
        ]
    },
}
OLD_KUBEADM: dict[str, Any] = {
    "apiVersion": "kubeadm.k8s.io/v1beta3",
    "kind": "JoinConfiguration",
    "nodeRegistration": {"kubeletExtraArgs": {"cpu-manager-policy": "static"}},
}
NODEADM: dict[str, Any] = {
    "apiVersion": "node.eks.aws/v1alpha1",
    "kind": "NodeConfig",
    "spec": {
        "kubelet": {
            "config": {"cpuManagerPolicy": "static", "kubeReserved": {"cpu": "1"}, "maxPods": 58},
            "flags": ["--topology-manager-scope=pod", "--node-labels=a=b"],
        }
    },
}
EKSCTL: dict[str, Any] = {
    "apiVersion": "eksctl.io/v1alpha5",
    "kind": "ClusterConfig",
    "nodeGroups": [
        {"name": "small"},
        {"name": "numa", "maxPodsPerNode": 30, "kubeletExtraConfig": {"topologyManagerPolicy": "best-effort"}},
    ],
}
GKE: dict[str, Any] = {
    "kubeletConfig": {
        "cpuManagerPolicy": "static",
        "topologyManager": {"policy": "restricted", "scope": "pod"},
        "podPidsLimit": 1024,
    },
    "linuxConfig": {"sysctl": {}},
}
AKS: dict[str, Any] = {"cpuManagerPolicy": "static", "topologyManagerPolicy": "single-numa-node", "podMaxPids": 100}
TALOS: dict[str, Any] = {
    "version": "v1alpha1",
    "machine": {
        "type": "controlplane",
        "kubelet": {
            "extraConfig": {"topologyManagerPolicy": "restricted"},
            "extraArgs": {"feature-gates": "MemoryQoS=true", "rotate-server-certificates": True},
        },
    },
}
TALOS_DOCUMENT: dict[str, Any] = {
    "apiVersion": "v1alpha1",
    "kind": "KubeletConfig",
    "config": {"topologyManagerPolicy": "restricted", "systemReserved": {"cpu": "1"}},
    "extraArgs": {"reserved-memory": ["0:memory=1Gi", "1:memory=2Gi,hugepages-2Mi=4Mi"]},
}
K3S: dict[str, Any] = {
    "token": "x",
    "kubelet-arg": ["cpu-manager-policy=static", "system-reserved=cpu=1,memory=1Gi", "topology_manager_scope=pod"],
}
KOPS: dict[str, Any] = {
    "apiVersion": "kops.k8s.io/v1alpha2",
    "kind": "InstanceGroup",
    "spec": {
        "kubelet": {
            "cpuManagerPolicy": "static",
            "topologyManagerPolicy": "restricted",
            "kubeReserved": {"cpu": "1"},
            "evictionHard": "memory.available<300Mi",
            "enforceNodeAllocatable": "pods",
            "featureGates": {"MemoryQoS": "true"},
        }
    },
}
FILES: dict[str, dict[str, Any]] = {
    "profile": PROFILE,
    "kubelet-config": KUBELET_CONFIG,
    "kubeadm": KUBEADM,
    "nodeadm": NODEADM,
    "eksctl": EKSCTL,
    "gke": GKE,
    "aks": AKS,
    "talos": TALOS,
    "talos-document": TALOS_DOCUMENT,
    "k3s": K3S,
    "kops": KOPS,
}


def source(*documents):
    return unwrap("---\n".join(map(to_yaml, documents)).encode(), name="node.yaml")


def read(*documents):
    return source(*documents).read()


def profile(*, annotations=None, **spec):
    """PROFILE with other fields."""
    changed = copy.deepcopy(PROFILE)
    changed["metadata"]["annotations"] = annotations or {}
    for name, value in spec.items():
        changed["spec"][name] = {**changed["spec"].get(name, {}), **value}
    return changed


def problems(*documents):
    with pytest.raises(ConfigurationError) as raised:
        source(*documents)
    return {problem.field: problem.message for problem in raised.value.problems}, raised.value


def values(configuration, expected):
    return {name: getattr(configuration, name) for name in expected}


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        pytest.param(
            KUBELET_CONFIG,
            {"system_reserved": {"memory": "2Gi", "cpu": "500m", "ephemeral-storage": "1Gi"}, "max_pods": 250},
            id="OpenShift completes reservations that are given in part",
        ),
        pytest.param(OLD_KUBEADM, {"cpu_manager_policy": "static"}, id="flags of kubeadm alone"),
        pytest.param(
            NODEADM,
            {
                "topology_manager_scope": "pod",
                "max_pods": 58,
                "eviction_hard": {"memory.available": "100Mi", "nodefs.available": "10%", "nodefs.inodesFree": "5%"},
                "system_reserved_cgroup": "/system",
                "kube_reserved_cgroup": "/runtime",
            },
            id="EKS has the thresholds and cgroups of nodeadm",
        ),
        pytest.param(
            EKSCTL,
            {"topology_manager_policy": "best-effort", "max_pods": 30},
            id="the only group of eksctl with a configuration",
        ),
        pytest.param(
            GKE,
            {
                "cpu_manager_policy": "static",
                "topology_manager_policy": "restricted",
                "topology_manager_scope": "pod",
            },
            id="a node system configuration of GKE",
        ),
        pytest.param(AKS, {"topology_manager_policy": "single-numa-node"}, id="AKS"),
        pytest.param(
            TALOS,
            {
                "topology_manager_policy": "restricted",
                "feature_gates": {"MemoryQoS": True},
                "system_reserved": {"cpu": "50m", "memory": "512Mi", "pid": "100", "ephemeral-storage": "256Mi"},
            },
            id="a control plane of Talos",
        ),
        pytest.param(
            K3S,
            {
                "cpu_manager_policy": "static",
                "topology_manager_scope": "pod",
                "system_reserved": {"cpu": "1", "memory": "1Gi"},
                "eviction_hard": {"imagefs.available": "5%", "nodefs.available": "5%"},
            },
            id="arguments of k3s",
        ),
        pytest.param({"kubelet-arg": "max-pods=7"}, {"max_pods": 7}, id="one argument of k3s"),
        pytest.param(
            KOPS,
            {
                "topology_manager_policy": "restricted",
                "eviction_hard": {"memory.available": "300Mi"},
                "enforce_node_allocatable": ("pods",),
                "feature_gates": {"MemoryQoS": True},
                "kube_reserved": {"cpu": "1"},
            },
            id="an instance group of kOps",
        ),
    ],
)
def test_a_file_of_each_distribution_is_read(document, expected):
    assert values(read(document), expected) == expected


@pytest.mark.parametrize(
    ("document", "text"),
    [
        pytest.param(OLD_KUBEADM, "kubelet-config ConfigMap", id="kubeadm's ConfigMap"),
        pytest.param({**NODEADM, "spec": {}}, "each node sets kubeReserved and maxPods", id="what EKS computes"),
        pytest.param(GKE, "node.yaml: not read: kubeletConfig.podPidsLimit", id="a field of GKE"),
        pytest.param(GKE, "kubeReserved", id="what GKE computes"),
        pytest.param(AKS, "node.yaml: not read: podMaxPids", id="a field of AKS"),
        pytest.param(KOPS, "maxPods", id="what kOps computes"),
    ],
)
def test_what_is_not_read_or_not_known_is_said(document, text):
    made = source(document)

    assert any(text in said for said in (*made.notes, made.incomplete))
    assert not source(NODEADM).incomplete


def test_the_type_of_a_node_decides_about_its_defaults():
    worker = {**TALOS, "machine": {**TALOS["machine"], "type": "worker"}}

    assert read(worker).system_reserved["memory"] == "384Mi"
    assert read({**KOPS, "spec": {"kubelet": {"maxPods": 7}}}).eviction_hard["imagefs.available"] == "10%"


def test_a_performance_profile_gives_the_configuration_that_the_operator_renders():
    """The operator's repository has the same values in its example of a rendered KubeletConfig."""
    configuration = read(profile(cpu={"reserved": "0"}))

    (memory,) = configuration.reserved_memory
    assert (memory.node, {name: str(amount) for name, amount in memory.limits.items()}) == (0, {"memory": "1100Mi"})
    expected = {
        "cpu_manager_policy": "static",
        "cpu_manager_policy_options": {"full-pcpus-only": "true"},
        "memory_manager_policy": "Static",
        "topology_manager_policy": "single-numa-node",
        "reserved_system_cpus": "0",
        "kube_reserved": {"memory": "500Mi"},
        "max_pods": 250,
    }
    assert values(configuration, expected) == expected
    assert str(configuration.cpu_manager_reconcile_period) == "5s"
    assert configuration.system_reserved["memory"] == "500Mi"
    assert configuration.eviction_hard == {
        "imagefs.available": "15%",
        "memory.available": "100Mi",
        "nodefs.available": "10%",
        "nodefs.inodesFree": "5%",
    }


def test_a_kubelet_starts_with_the_configuration_of_a_profile():
    settings = host_settings(read(PROFILE), synthetic.parse("numa:2 core:4 pu:2"))

    assert settings.cpus.policy == "static"


@pytest.mark.parametrize(
    ("policy", "memory", "options"),
    [
        ("none", "None", {}),
        ("best-effort", "None", {}),
        ("restricted", "Static", {}),
        ("single-numa-node", "Static", {"full-pcpus-only": "true"}),
    ],
)
def test_the_topology_policy_of_a_profile_decides_about_memory_and_whole_cores(policy, memory, options):
    configuration = read(profile(numa={"topologyPolicy": policy}))

    assert configuration.topology_manager_policy == policy
    assert configuration.memory_manager_policy == memory
    assert configuration.cpu_manager_policy_options == options
    assert bool(configuration.reserved_memory) == (memory == "Static")


def test_a_profile_without_a_policy_is_best_effort_and_says_so():
    without = profile()
    del without["spec"]["numa"]
    made = source(without)

    assert made.read().topology_manager_policy == "best-effort"
    assert any("set as OpenShift sets it: topologyManagerPolicy best-effort" in note for note in made.notes)


def test_the_annotation_of_a_profile_adds_fields_but_no_feature_gates():
    snippet = {
        "systemReserved": {"memory": "1Gi"},
        "topologyManagerScope": "pod",
        "cpuManagerPolicy": "none",
        "featureGates": {"MemoryQoS": True},
        "maxPods": 7,
    }
    made = source(profile(annotations={"kubeletconfig.experimental": json.dumps(snippet)}))
    configuration = made.read()

    assert configuration.topology_manager_scope == "pod"
    assert configuration.cpu_manager_policy == "static"
    assert (configuration.feature_gates, configuration.max_pods) == ({}, 7)
    assert str(configuration.reserved_memory[0].limits["memory"]) == "1624Mi"
    assert any("featureGates is ignored" in note for note in made.notes)


def test_shared_and_dpdk_cpus_of_a_profile_are_reserved():
    assert read(profile(cpu={"shared": "3"})).reserved_system_cpus == "0-1"
    mixed = profile(cpu={"shared": "3", "ovsDpdk": "5"}, workloadHints={"mixedCpus": True})
    assert read(mixed).reserved_system_cpus == "0-1,3,5"


def test_a_profile_for_dra_turns_the_managers_off():
    configuration = read(profile(annotations={"performance.openshift.io/dra-resource-management": "true"}))

    assert configuration.cpu_manager_policy == configuration.topology_manager_policy == "none"
    assert configuration.memory_manager_policy == "None"


def test_what_a_profile_says_about_the_machine_is_noted():
    made = source(profile(hugepages={"pages": []}, cpu={"offlined": "8-9,15"}))

    assert any("spec.hugepages" in note for note in made.notes)
    assert any("spec.cpu.offlined: CPUs 8-9,15 are not counted" in note for note in made.notes)
    assert made.offline == bits.parse("8-9,15")


def test_unknown_fields_can_be_ignored_with_a_note():
    text = to_yaml(profile(cpu={"Shared": "3"})).encode()
    made = unwrap(text, name="profile.yaml", ignore_unknown_fields=True)

    assert made.read().reserved_system_cpus == "0-1"
    assert "profile.yaml: ignored spec.cpu.Shared: unknown field; did you mean shared?" in made.notes


class TestFieldsInTheFormOfTheFile:
    FIELDS = to_yaml({"reservedSystemCPUs": "0-3", "systemReserved": {"memory": "1Gi"}})

    def test_of_a_profile(self):
        snippet = {"kubeletconfig.experimental": '{"topologyManagerScope": "pod"}'}
        placed = yaml.safe_load(source(profile(annotations=snippet)).write_fields(self.FIELDS))

        annotation = placed["metadata"]["annotations"]["kubeletconfig.experimental"]
        assert placed["spec"] == {"cpu": {"reserved": "0-3"}}
        assert json.loads(annotation) == {"topologyManagerScope": "pod", "systemReserved": {"memory": "1Gi"}}

    def test_of_a_kubelet_config(self):
        placed = yaml.safe_load(source(KUBELET_CONFIG).write_fields(self.FIELDS))

        assert placed == {"spec": {"kubeletConfig": yaml.safe_load(self.FIELDS)}}

    def test_of_a_file_of_gke(self):
        made = source({"kubeletConfig": {"topologyManager": {"policy": "restricted"}}})
        placed = yaml.safe_load(made.write_fields("topologyManagerPolicy: none\n"))

        assert placed == {"kubeletConfig": {"topologyManager": {"policy": "none"}}}

    def test_flags_and_plain_configurations_stay_as_they_are(self):
        flag = source(KUBEADM).write_fields("topologyManagerPolicy: none\n")

        assert yaml.safe_load(flag) == {"topologyManagerPolicy": "none"}
        assert source(KUBELET).write_fields(self.FIELDS) == self.FIELDS


@pytest.mark.parametrize(
    ("fields", "field", "message"),
    [
        ({"cpu": {"reserved": "0-"}}, "spec.cpu.reserved", "strconv"),
        ({"cpu": {"reserved": None}}, "spec.cpu.reserved", "Required value"),
        ({"cpu": {"reserved": 4}}, "spec.cpu.reserved", "must be a string, not a number"),
        ({"numa": {"topologyPolicy": "strict"}}, "spec.numa.topologyPolicy", "Unsupported value"),
        ({"cpu": {"Shared": "3"}}, "spec.cpu.Shared", "unknown field; did you mean shared?"),
        ({"cpu": {"isolatd": "3"}}, "spec.cpu.isolatd", "unknown field; did you mean isolated?"),
        ({"zzz": {}}, "spec.zzz", "unknown field"),
    ],
)
def test_a_wrong_field_of_a_profile_is_an_error_with_its_line(fields, field, message):
    messages, error = problems(profile(**fields))

    assert message in messages[field]
    assert all(problem.line for problem in error.problems)
    assert FETCH in error.advice


@pytest.mark.parametrize(
    ("snippet", "message"),
    [
        ("{", "must be JSON"),
        *(('{"a":' * depth + "{}" + "}" * depth, "nested more than 100 levels deep") for depth in (500, 100_000)),
        *((wrong, "must be a JSON object") for wrong in ("", "[]", "{maxPods: 7}", "{} {}", {"maxPods": 7})),
        ('{"evictionHard": {"memory.available": "5%"}}', "evictionHard.memory.available: the operator cannot add"),
    ],
)
def test_a_wrong_annotation_of_a_profile_is_an_error_with_its_line(snippet, message):
    messages, error = problems(profile(annotations={"kubeletconfig.experimental": snippet}))

    assert message in messages["metadata.annotations[kubeletconfig.experimental]"]
    assert all(problem.line for problem in error.problems)
    assert FETCH in error.advice


@pytest.mark.parametrize(("sized", "known"), [(None, False), (True, False), (False, True)])
def test_a_node_of_openshift_sizes_its_own_reservations_unless_told_not_to(sized, known):
    made = source({**KUBELET_CONFIG, "spec": {"kubeletConfig": {}, "autoSizingReserved": sized}})

    assert ("systemReserved" in made.incomplete) != known
    assert bool(made.read().system_reserved) == known


def test_flags_of_kubeadm_replace_fields_of_the_configuration_beside_them():
    made = source({**KUBELET, "topologyManagerPolicy": "none", "maxPods": 7}, KUBEADM)

    assert made.read().topology_manager_policy == "restricted"
    assert made.read().max_pods == 7
    assert made.notes == ("node.yaml: not read: --node-labels",)


def test_kubeadm_without_anything_for_the_kubelet_names_what_to_fetch():
    messages, _ = problems({"apiVersion": "kubeadm.k8s.io/v1beta4", "kind": "ClusterConfiguration"})

    assert "kubectl get -n kube-system configmap kubelet-config -o yaml" in messages["kind"]


def test_flags_of_two_nodes_are_an_error():
    messages, _ = problems(KUBEADM, {**KUBEADM, "kind": "JoinConfiguration"})

    assert "several documents" in messages["nodeRegistration.kubeletExtraArgs"]


def test_reserved_cpus_on_eks_need_empty_cgroups():
    spec = {"kubelet": {"config": {"reservedSystemCPUs": "0"}}}
    cleared = {"kubelet": {"config": {"reservedSystemCPUs": "0", "systemReservedCgroup": "", "kubeReservedCgroup": ""}}}

    with pytest.raises(ConfigurationError, match="can't use reservedSystemCPUs"):
        read({**NODEADM, "spec": spec})
    assert read({**NODEADM, "spec": cleared}).reserved_system_cpus == "0"


def test_two_groups_of_eksctl_are_an_error_that_names_them():
    assert source(EKSCTL).part == "nodeGroups[1].kubeletExtraConfig"
    messages, _ = problems(
        {**EKSCTL, "nodeGroups": [EKSCTL["nodeGroups"][1], {"name": "b", "kubeletExtraConfig": {"a": 1}}]}
    )

    assert messages["nodeGroups"].endswith("not 2: numa, b")


def test_the_kubelet_document_of_talos_is_found_among_others():
    configuration = read({"apiVersion": "v1alpha1", "kind": "HostnameConfig"}, TALOS_DOCUMENT)

    assert configuration.system_reserved == {"cpu": "1"}
    assert [entry.node for entry in configuration.reserved_memory] == [0, 1]
    assert str(configuration.reserved_memory[1].limits["hugepages-2Mi"]) == "4Mi"


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("config=/etc/rancher/k3s/kubelet.yaml", "the kubelet reads /etc/rancher/k3s/kubelet.yaml: give a copy"),
        ("max-pods=many", "must be an integer"),
        ("system-reserved=1Gi", "write KEY=VALUE"),
        ("eviction-hard=memory.available=1Gi", "write KEY<VALUE"),
        ("cgroups-per-qos=perhaps", "must be true or false"),
        ("reserved-memory=memory=1Gi", "write NODE:memory=QUANTITY"),
    ],
)
def test_a_wrong_flag_is_an_error_with_its_line(argument, message):
    messages, error = problems({"kubelet-arg": ["max-pods=7", argument]})

    assert message in messages["kubelet-arg[1]"]
    assert [problem.line for problem in error.problems] == [3]


def test_options_of_the_cpu_manager_are_one_for_each_flag():
    """The kubelet splits the options of the topology manager at commas, and those of the CPU manager not."""
    configuration = read(
        {
            "kubelet-arg": [
                "cpu-manager-policy-options=full-pcpus-only=true",
                "cpu-manager-policy-options=align-by-socket=true",
                "topology-manager-policy-options=prefer-closest-numa-nodes=true,max-allowable-numa-nodes=9",
            ]
        }
    )

    assert configuration.cpu_manager_policy_options == {"full-pcpus-only": "true", "align-by-socket": "true"}
    assert len(configuration.topology_manager_policy_options) == 2


def test_two_instance_groups_of_kops_are_an_error():
    messages, _ = problems(KOPS, KOPS)

    assert "must be in one document, not 2" in messages["spec.kubelet"]


def test_a_kind_that_is_not_known_is_left_to_the_kubelets_reader():
    with pytest.raises(ConfigurationError, match='no kind "EC2NodeClass" is registered'):
        read({"apiVersion": "karpenter.k8s.aws/v1", "kind": "EC2NodeClass", "spec": {"kubelet": {}}})


def leaves(value, path=()):
    """Yield the path of every value in a document."""
    yield path
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in entries:
        yield from leaves(inner, (*path, key))


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)


@given(name=st.sampled_from(sorted(FILES)), data=st.data(), junk=JUNK)
def test_any_value_in_any_place_is_read_or_an_error_in_words(name, data, junk):
    changed = copy.deepcopy(FILES[name])
    *outer, last = data.draw(st.sampled_from([path for path in leaves(changed) if path]))
    target: Any = changed
    for key in outer:
        target = target[key]
    target[last] = junk

    try:
        host_settings(read(changed), synthetic.parse("numa:2 core:4 pu:2"))
    except AlignError as error:
        assert str(error)
