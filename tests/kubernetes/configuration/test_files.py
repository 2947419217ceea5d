"""KubeletConfigurations inside other objects, and drop-ins."""

import json

import pytest

from alignup.align.errors import ConfigurationError, FileError
from alignup.kubernetes.configuration import files, find_drop_ins, merge_drop_ins, parse_drop_in, unwrap
from alignup.kubernetes.configuration.fields import DEFAULT_EVICTION_HARD
from alignup.kubernetes.manifests.documents import to_yaml

TYPE = {"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration"}


def text(**fields):
    return json.dumps({**TYPE, **fields}).encode()


def openshift(**spec):
    return {"apiVersion": "machineconfiguration.openshift.io/v1", "kind": "KubeletConfig", "spec": spec}


def config_map(**data):
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kubelet-config"}, "data": data}


def unwrapped(value, name="given.yaml"):
    return unwrap(to_yaml(value).encode(), name=name)


def parsed(value):
    source = unwrapped(value)
    return source.read()


def merged(*drop_ins, base=None):
    """The result of merging *drop_ins*, named 0.conf and so on, into *base*, called base.yaml."""
    given = [parse_drop_in(text(**fields), name=f"{index}.conf") for index, fields in enumerate(drop_ins)]
    first = None if base is None else unwrap(text(**base), name="base.yaml")
    return merge_drop_ins(first, given, directory="conf.d")


def read_merged(*drop_ins, base=None):
    source = merged(*drop_ins, base=base)
    return source.read()


@pytest.mark.parametrize(
    ("value", "name"),
    [
        pytest.param({**TYPE, "maxPods": 7}, "given.yaml", id="the kubelet's own file"),
        pytest.param({"kubeletconfig": {**TYPE, "maxPods": 7}}, "given.yaml, kubeletconfig", id="configz"),
        pytest.param({"kubeletconfig": {"maxPods": 7}}, "given.yaml, kubeletconfig", id="configz before 1.36"),
        pytest.param(
            config_map(kubelet=to_yaml({**TYPE, "maxPods": 7})), "given.yaml, data.kubelet", id="a ConfigMap of kubeadm"
        ),
        pytest.param(openshift(kubeletConfig={"maxPods": 7}), "given.yaml, spec.kubeletConfig", id="OpenShift"),
        pytest.param(
            {"apiVersion": "v1", "kind": "List", "items": [openshift(kubeletConfig={"maxPods": 7})]},
            "given.yaml, spec.kubeletConfig",
            id="a List of one",
        ),
        pytest.param(
            {"apiVersion": "v1", "kind": "List", "items": [{**TYPE, "maxPods": 7}]},
            "given.yaml, items[0]",
            id="a List with a file",
        ),
    ],
)
def test_a_configuration_is_found_in_the_objects_that_people_have(value, name):
    configuration = parsed(value)

    assert configuration.max_pods == 7
    assert configuration.source == name


def test_of_a_file_of_kubeadm_the_document_with_the_kubelets_configuration_is_read():
    init = {"apiVersion": "kubeadm.k8s.io/v1beta4", "kind": "InitConfiguration"}
    source = unwrap("\n---\n".join(map(to_yaml, (init, {**TYPE, "maxPods": 7}))).encode(), name="kubeadm.yaml")

    assert source.read().max_pods == 7
    assert source.name == "kubeadm.yaml, document 2"


def test_absent_fields_of_configz_are_empty_not_defaults():
    """A running kubelet omits what is empty, and has its defaults set already."""
    live = parsed({"kubeletconfig": {"mergeDefaultEvictionSettings": True}})
    thresholds = parsed(
        {"kubeletconfig": {"evictionHard": {"pid.available": "5%"}, "enforceNodeAllocatable": ["pods"]}}
    )

    assert live.eviction_hard == {}
    assert live.enforce_node_allocatable == ()
    assert thresholds.eviction_hard == {"pid.available": "5%"}
    assert thresholds.enforce_node_allocatable == ("pods",)


def test_feature_gates_of_other_releases_in_configz_are_ignored_with_a_note():
    source = unwrapped({"kubeletconfig": {"featureGates": {"CPUManager": True, "MemoryQoS": False}}})

    assert source.read().feature_gates == {"MemoryQoS": False}
    (note,) = source.notes
    assert note.startswith("given.yaml: ignored featureGates[CPUManager], which Kubernetes 1.37 rejects: unrecognized")


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        pytest.param(config_map(config="x"), "data.kubelet: Required value: data has only config", id="other data"),
        pytest.param(config_map(), "data.kubelet: Required value: data is empty", id="no data"),
        pytest.param(config_map(kubelet={}), "data.kubelet: must be a string, not an object", id="an object as text"),
        pytest.param(openshift(kubeletconfig={}), "spec.kubeletConfig: Required value", id="a misspelled field"),
        pytest.param(openshift(kubeletConfig=[]), "spec.kubeletConfig: must be an object", id="a list for an object"),
        pytest.param({"kind": "List", "items": []}, "items: must have one object", id="an empty List"),
        pytest.param(
            {"apiVersion": "kubeadm.k8s.io/v1beta4", "kind": "ClusterConfiguration"},
            "kind: is a configuration of kubeadm without",
            id="kubeadm without the kubelet",
        ),
    ],
)
def test_an_object_without_a_configuration_is_an_error_that_names_the_field(value, problem):
    with pytest.raises(ConfigurationError) as raised:
        unwrapped(value)

    assert str(raised.value).startswith(problem)
    assert raised.value.source == "given.yaml"


@pytest.mark.parametrize("broken", [b"", b"a: [", b"[]", b"# nothing"])
def test_other_texts_are_left_to_the_kubelets_reader(broken):
    assert unwrap(broken, name="x").text == broken


@pytest.mark.parametrize(
    ("fields", "drop_ins", "expected"),
    [
        pytest.param({"maxPods": 7}, [{"maxPods": 8}, {"maxPods": 9}], {"max_pods": 9}, id="the last wins"),
        pytest.param(
            {"systemReserved": {"cpu": "1", "memory": "1Gi"}},
            [{"systemReserved": {"memory": "2Gi", "pid": "5"}}],
            {"system_reserved": {"cpu": "1", "memory": "2Gi", "pid": "5"}},
            id="objects are merged by key",
        ),
        pytest.param(
            {"systemReserved": {"cpu": "1", "memory": "1Gi"}, "maxPods": 7},
            [{"systemReserved": {"cpu": None}, "maxPods": None}],
            {"system_reserved": {"memory": "1Gi"}, "max_pods": 110},
            id="null removes",
        ),
        pytest.param(
            {"enforceNodeAllocatable": ["pods", "system-reserved"]},
            [{"enforceNodeAllocatable": ["pods"]}],
            {"enforce_node_allocatable": ("pods",)},
            id="lists are replaced",
        ),
        pytest.param(
            {"enforceNodeAllocatable": []}, [], {"enforce_node_allocatable": ("pods",)}, id="an empty list is lost"
        ),
        pytest.param(
            {"topologyManagerPolicy": "nonsense"},
            [{"topologyManagerPolicy": "restricted"}],
            {"topology_manager_policy": "restricted"},
            id="only the result is validated",
        ),
        pytest.param(
            {},
            [{"evictionHard": {"memory.available": "1Gi"}}],
            {"eviction_hard": {**DEFAULT_EVICTION_HARD, "memory.available": "1Gi"}},
            id="thresholds are added to the default ones",
        ),
        pytest.param(
            {"evictionHard": {"memory.available": "1Gi"}},
            [{"mergeDefaultEvictionSettings": True}],
            {"eviction_hard": {"memory.available": "1Gi"}},
            id="defaults are not merged for a drop-in",
        ),
        pytest.param({}, [{"evictionHard": None}], {"eviction_hard": {}}, id="null removes all thresholds"),
        pytest.param(
            None,
            [{"maxPods": 7}],
            {"eviction_hard": {}, "max_pods": 7},
            id="no default thresholds without a first file",
        ),
        pytest.param({}, [{"ReservedSystemCPUs": "0"}], {"reserved_system_cpus": "0"}, id="names in another case"),
        pytest.param(
            {}, [{"MaxPods": 7}], {"max_pods": 110}, id="a default comes after a name with more capital letters"
        ),
        pytest.param({"maxPods": 7}, [{"maxpods": 8}], {"max_pods": 8}, id="and before one with fewer"),
        pytest.param(
            {"systemReserved": {"cpu": "1"}},
            [{"systemreserved": {"pid": "5"}}],
            {"system_reserved": {"cpu": "1", "pid": "5"}},
            id="objects in another case add up",
        ),
    ],
)
def test_drop_ins_are_merged_as_the_kubelet_merges_them(fields, drop_ins, expected):
    configuration = read_merged(*drop_ins, base=fields)

    assert {name: getattr(configuration, name) for name in expected} == expected


def test_quantities_of_the_first_file_become_canonical():
    memory = [{"numaNode": 0, "limits": {"memory": "1.5Gi"}}]

    (first,) = read_merged(base={"reservedMemory": memory}).reserved_memory
    (second,) = read_merged({"reservedMemory": memory}, base={}).reserved_memory

    assert first.limits["memory"].as_int64() == 1536 << 20
    assert second.limits["memory"].as_int64() is None


def test_an_invalid_field_is_reported_with_the_file_that_sets_it():
    typed = merged({"topologyManagerPolicy": "nonsense"}, {"systemReserved": {"cpu": 1}}, base={"maxPods": -1})
    valid = merged({"topologyManagerPolicy": "nonsense"}, base={"maxPods": -1})

    with pytest.raises(ConfigurationError) as wrong_type:
        typed.read()
    with pytest.raises(ConfigurationError) as invalid:
        valid.read()

    assert typed.name == "base.yaml with the drop-ins of conf.d"
    assert str(wrong_type.value).endswith("must be a string, not a number")
    assert [typed.origin(problem.field) for problem in wrong_type.value.problems] == ["1.conf"]
    assert [valid.origin(problem.field) for problem in invalid.value.problems] == ["base.yaml", "0.conf"]


def test_ignored_fields_are_noted_with_their_file():
    source = merged(
        {"nonsense": 1, "reservedSystemCpus": "0", "mergeDefaultEvictionSettings": True}, base={"reservedCPUs": "0"}
    )

    assert source.notes == (
        'base.yaml: the kubelet ignores unknown field "reservedCPUs"; did you mean reservedSystemCPUs?',
        "0.conf: mergeDefaultEvictionSettings has no effect in a drop-in",
        '0.conf: the kubelet ignores unknown field "nonsense"',
        '0.conf: the case of names does not matter in drop-ins: "reservedSystemCpus" is reservedSystemCPUs',
    )
    assert not source.read().warnings


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        pytest.param(b"", "was empty", id="empty"),
        pytest.param(b"maxPods: 7", "kind: is missing", id="without a kind"),
        pytest.param(b"kind: Pod\napiVersion: v1", 'no kind "Pod" is registered', id="another kind"),
        pytest.param(b"kind: [", "did not find expected node content", id="invalid YAML"),
        pytest.param(text() + b"\nmaxPods: 7", "not JSON: Expecting value", id="invalid JSON"),
        pytest.param(
            f"kind: {TYPE['kind']}\napiVersion: {TYPE['apiVersion']}\nmaxPods: 7\nmaxPods: 8\n".encode(),
            "maxPods: line 4: duplicate key",
            id="a duplicate key",
        ),
    ],
)
def test_a_drop_in_that_the_kubelet_rejects_is_an_error(content, problem):
    with pytest.raises(ConfigurationError) as raised:
        parse_drop_in(content, name="10.conf")

    assert problem in str(raised.value)
    assert raised.value.source == "10.conf"


def test_drop_ins_are_found_in_the_order_of_the_kubelet(tmp_path):
    (tmp_path / "20-more.conf").mkdir()
    for name in (
        "10.conf",
        "20-more.conf/99.conf",
        "20-more.conf/01.conf",
        "3.conf",
        "skipped.yaml",
        ".conf",
        "é.conf",
    ):
        (tmp_path / name).touch()
    (tmp_path / "15-link").symlink_to(tmp_path / "20-more.conf")
    (tmp_path / "25-link.conf").symlink_to(tmp_path / "3.conf")

    paths = [str(path.relative_to(tmp_path)) for path in find_drop_ins(tmp_path)]

    links = ["10.conf", "20-more.conf/01.conf", "20-more.conf/99.conf", "25-link.conf", "3.conf", "é.conf"]
    assert paths == [".conf", *links]


def test_a_directory_with_too_many_files_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MAX_FILES", 1)
    (tmp_path / "a").touch()
    (tmp_path / "b").touch()

    with pytest.raises(FileError, match="more than 1 files"):
        find_drop_ins(tmp_path)
