import io
import json
import re
import textwrap

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from alignup.align.errors import ManifestError, PodError, Problem, SourceLocation
from alignup.align.workload import Pod, QoS
from alignup.align.workload.validation import PodSource, accept
from alignup.kubernetes.manifests import documents
from alignup.kubernetes.manifests.workloads import LoadedWorkloads, load_pods, read_paths, read_workloads
from tests.deadlines import cpu_limit
from tests.strategies_pods import amounts


def spec(cpu="2", **more):
    limits = {"cpu": cpu, "memory": "1Gi"}
    return {"containers": [{"name": "app", "resources": {"limits": limits}}], **more}


def pod(name="web", **more):
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec(), **more}


def controller(kind, version="apps/v1", *, name="web", pods=None, **more):
    template_spec = {"template": {"metadata": {"labels": {"app": "x"}}, "spec": pods or spec()}, **more}
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": "shop"}, "spec": template_spec}


def listed(*items, kind="List", version="v1"):
    return {"apiVersion": version, "kind": kind, "metadata": {"resourceVersion": ""}, "items": list(items)}


def read(*objects):
    """Load *objects* from a YAML file."""
    return read_workloads(yaml.safe_dump_all(objects, sort_keys=False), name="some.yaml")


def only_workload(*objects):
    (workload,) = read(*objects).workloads
    return workload


def problems_of(text):
    with pytest.raises(ManifestError) as rejection:
        read_workloads(text, name="some.yaml")
    return [str(problem) for problem in rejection.value.problems]


def test_a_pod_is_a_workload_with_one_replica():
    workload = only_workload(pod())

    assert (workload.kind, workload.name, workload.namespace, workload.replicas) == ("Pod", "web", "default", 1)
    assert workload.source == SourceLocation("some.yaml", None, 1)
    assert list(workload.pods()) == [workload.pod]
    assert workload.pod.uid
    assert not workload.finished
    assert workload.pod.qos is workload.pod.recorded_qos is QoS.GUARANTEED, "as the API server sets the class"
    assert workload.pod.containers[0].resources.requests == amounts({"cpu": "2", "memory": "1Gi"}), "and requests"


@pytest.mark.parametrize(("fix_pod_level", "qos"), [(True, QoS.GUARANTEED), (False, QoS.BURSTABLE)])
def test_pod_level_limits_are_defaulted_since_1_37(tmp_path, fix_pod_level, qos):
    file = tmp_path / "pod.json"
    file.write_text(json.dumps(pod(spec=spec(resources={"requests": {"cpu": "4", "memory": "2Gi"}}))))

    (loaded,) = load_pods(file, fix_pod_level=fix_pod_level)

    assert loaded.qos is qos


def test_a_custom_accept_function_is_used():
    def static(pod: Pod) -> Pod:
        return accept(pod, source=PodSource.STATIC, host="node-1")

    (workload,) = read_workloads(json.dumps(pod()), name="some.json", accept=static).workloads

    assert workload.name == workload.pod.name == "web-node-1"


def test_a_pod_from_a_cluster():
    written = pod(status={"phase": "Succeeded", "qosClass": "Guaranteed", "startTime": "2024-01-01T00:00:00Z"})
    written["metadata"] |= {"uid": "u1", "namespace": "shop", "creationTimestamp": "2024-01-01T00:00:00Z"}
    written["spec"] |= {"nodeName": "node-1", "priority": 1000}

    workload = only_workload(written)

    assert (workload.pod.uid, workload.namespace, workload.pod.priority) == ("u1", "shop", 1000)
    assert (workload.phase, workload.host, workload.finished) == ("Succeeded", "node-1", True)


@pytest.mark.parametrize(
    ("written", "replicas"),
    [
        pytest.param(controller("Deployment", replicas=3), 3, id="a Deployment"),
        pytest.param(controller("Deployment"), 1, id="replicas default to 1"),
        pytest.param(controller("Deployment", replicas=None), 1, id="null replicas"),
        pytest.param(controller("Deployment", replicas=0), 0, id="zero replicas"),
        pytest.param(controller("ReplicaSet", replicas=2), 2, id="a ReplicaSet"),
        pytest.param(controller("StatefulSet", replicas=2), 2, id="a StatefulSet"),
        pytest.param(controller("ReplicationController", "v1", replicas=2), 2, id="a ReplicationController"),
        pytest.param(controller("DaemonSet"), 1, id="a DaemonSet runs one pod per host"),
        pytest.param(controller("Job", "batch/v1"), 1, id="a Job"),
        pytest.param(controller("Job", "batch/v1", parallelism=4), 4, id="a parallel Job"),
        pytest.param(
            controller("Job", "batch/v1", parallelism=4, completions=3), 3, id="completions limit parallelism"
        ),
        pytest.param(controller("Job", "batch/v1", completions=3), 1, id="completions run one at a time"),
        pytest.param(controller("Job", "batch/v1", parallelism=2, suspend=True), 2, id="a suspended Job counts"),
    ],
)
def test_controllers_create_replicas(written, replicas):
    workload = only_workload(written)
    pods = list(workload.pods())

    assert (workload.kind, workload.name, workload.namespace) == (written["kind"], "web", "shop")
    assert workload.replicas == replicas
    assert [each.name for each in pods] == [f"web-{number}" for number in range(replicas)]
    assert len({each.uid for each in pods}) == replicas
    assert all(each.labels == {"app": "x"} and each.namespace == "shop" for each in pods)
    assert pods == [workload.pod, *pods[1:]][:replicas]
    assert list(workload.pods()) == pods


def test_a_cron_job_counts_as_one_run():
    job = {"spec": {"parallelism": 2, "template": {"spec": spec()}}}
    written = {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "c"}, "spec": {"jobTemplate": job}}

    assert [each.name for each in only_workload(written).pods()] == ["c-0", "c-1"]


def test_a_pod_template():
    written = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "t"}, "template": {"spec": spec()}}

    assert only_workload(written).pod.qos is QoS.GUARANTEED


def test_derived_uids_are_stable_and_differ_between_kinds():
    again = [only_workload(controller(kind)).pod.uid for kind in ("Deployment", "StatefulSet", "Deployment")]

    assert again[0] == again[2] != again[1]
    assert again[0] == "be7b68cb-7647-5689-8c7f-f34dadf72bf2"


def test_generate_name_gives_stable_unique_names():
    written = pod()
    written["metadata"] = {"generateName": "web-"}

    names = [workload.name for workload in read(written, written).workloads]

    assert len(set(names)) == 2
    assert all(name.startswith("web-") and len(name) == 9 for name in names)
    assert names == [workload.name for workload in read(written, written).workloads]


def test_lists_may_be_nested_mixed_and_empty():
    text = json.dumps(listed(pod("a"), listed(pod("b")), controller("Deployment", name="c")))

    assert [workload.name for workload in read_workloads(text, name="some.json").workloads] == ["a", "b", "c"]
    assert read(listed()) == LoadedWorkloads()


@pytest.mark.parametrize(
    ("kind", "version", "item"),
    [
        pytest.param("PodList", "v1", pod(), id="pods"),
        pytest.param("DeploymentList", "apps/v1", controller("Deployment"), id="deployments"),
        pytest.param("JobList", "batch/v1", controller("Job", "batch/v1"), id="jobs"),
    ],
)
def test_items_of_a_typed_list_inherit_its_kind(kind, version, item):
    bare = {key: value for key, value in item.items() if key not in ("kind", "apiVersion")}

    assert only_workload(listed(bare, kind=kind, version=version)).kind == kind.removesuffix("List")


def test_workloads_know_their_source_location():
    text = textwrap.dedent("""\
        # two documents
        ---
        apiVersion: v1
        kind: List
        items:
        - {apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{name: c}]}}
        - apiVersion: v1
          kind: Pod
          metadata: {name: b}
          spec: {containers: [{name: c}]}
        ---
        {apiVersion: v1, kind: Pod, metadata: {name: c}, spec: {containers: [{name: c}]}}
        """)

    loaded = read_workloads(text, name="some.yaml")

    assert [str(workload.source) for workload in loaded.workloads] == [
        "some.yaml:6",
        "some.yaml:7",
        "some.yaml:12",
    ]


def test_other_kinds_are_skipped_with_a_warning():
    queue = {"apiVersion": "example.com/v1", "kind": "Queue", "metadata": {"name": "web"}}

    loaded = read(queue, controller("Deployment", "apps/v2"), pod())

    assert [workload.kind for workload in loaded.workloads] == ["Pod"]
    assert loaded.warnings == (
        "some.yaml:1: skipped Queue web of example.com/v1: no pod template found in it",
        "some.yaml:6: skipped Deployment web of apps/v2: not a supported workload kind",
    )


def test_objects_that_run_no_pods_are_counted_in_one_line():
    def other(kind, version="v1"):
        return {"apiVersion": version, "kind": kind, "metadata": {"name": "web"}}

    ingress, lease = other("Ingress", "extensions/v1beta1"), other("Lease", "coordination.k8s.io/v1")

    many = read(other("ConfigMap"), other("Service"), ingress, listed(other("ConfigMap"), pod()), lease)

    assert read(other("Service"), pod()).warnings == ("skipped 1 object that runs no pods: Service (1)",)
    assert many.warnings == ("skipped 5 objects that run no pods: ConfigMap (2), Service (1), Ingress (1), Lease (1)",)
    (warning,) = read(*(other(f"Kind{number}") for number in range(13)), pod()).warnings
    assert warning.startswith("skipped 13 objects that run no pods: Kind0 (1), ")
    assert warning.endswith(", Kind9 (1), 3 more kinds")


@pytest.mark.parametrize(
    ("kind", "version", "why"),
    [
        ("Deployment", "extensions/v1beta1", "Kubernetes 1.16 removed this API; use apps/v1"),
        ("StatefulSet", "apps/v1beta2", "Kubernetes 1.16 removed this API; use apps/v1"),
        ("CronJob", "batch/v1beta1", "Kubernetes 1.25 removed this API; use batch/v1"),
    ],
)
def test_removed_apis_are_named(kind, version, why):
    loaded = read(controller(kind, version), pod())

    assert loaded.warnings == (f"some.yaml:1: skipped {kind} web of {version}: {why}",)


def test_duplicate_keys_are_reported():
    text = yaml.safe_dump(pod(), sort_keys=False) + "kind: Pod\n"

    assert read_workloads(text, name="a.yaml").warnings == ('a.yaml:12: duplicate key "kind": the last value is used',)


def test_the_last_definition_of_a_workload_wins():
    loaded = read(controller("Deployment", replicas=1), controller("Deployment", replicas=2), controller("StatefulSet"))

    assert [(workload.kind, workload.replicas) for workload in loaded.workloads] == [
        ("Deployment", 2),
        ("StatefulSet", 1),
    ]
    assert loaded.warnings == ("some.yaml:20: Deployment web is defined twice: the last definition is used",)


def test_owners_of_listed_pods_are_skipped():
    """``kubectl get all`` lists a Deployment, its ReplicaSets and its pods."""
    old, new = controller("ReplicaSet", name="web-1", replicas=0), controller("ReplicaSet", name="web-2", replicas=1)
    running = pod("web-2-x")
    running["metadata"]["namespace"] = "shop"
    for part, kind, name in [(old, "Deployment", "web"), (new, "Deployment", "web"), (running, "ReplicaSet", "web-2")]:
        part["metadata"]["ownerReferences"] = [{"kind": kind, "name": name, "controller": True}]

    loaded = read(listed(running, controller("Deployment", replicas=1), old, new))

    assert [workload.name for workload in loaded.workloads if workload.replicas] == ["web-2-x"]
    assert [warning.partition(": ")[2] for warning in loaded.warnings] == [
        "skipped Deployment web: its pods are also listed",
        "skipped ReplicaSet web-2: its pods are also listed",
    ]


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        pytest.param([1], "must be an object, not a list", id="a list"),
        pytest.param("x", "must be an object, not a string", id="a string"),
        pytest.param({"a": 1}, "kind: Required value", id="no kind"),
        pytest.param({"kind": "Pod"}, "apiVersion: Required value", id="no version"),
        pytest.param({"kind": 1}, "kind: must be a string, not a number (got 1)", id="a number as kind"),
        pytest.param(listed(1), "items[0]: must be an object, not a number", id="a number in a list"),
        pytest.param(listed(listed({})), "items[0].items[0].kind: Required value", id="no kind, in a list of a list"),
        pytest.param({**listed(), "items": {}}, "items: must be a list, not an object", id="items not a list"),
        pytest.param(
            pod() | {"apiVersion": "v2"},
            'Pod web: apiVersion: no kind "Pod" is registered for version "v2"',
            id="a Pod of another version",
        ),
        pytest.param(
            pod() | {"metadata": 1},
            "Pod without a name: metadata: must be an object, not a number (got 1)",
            id="a number as metadata",
        ),
        pytest.param(pod() | {"metadata": {}}, "Pod without a name: metadata.name: Required value", id="no name"),
        pytest.param(
            pod() | {"status": {"phase": 1}},
            "Pod web: status.phase: must be a string, not a number (got 1)",
            id="a number as phase",
        ),
        pytest.param(pod() | {"spec": {}}, "Pod web: spec.containers: Required value", id="no containers"),
        pytest.param(
            controller("Deployment", replicas="3"),
            'Deployment web: spec.replicas: must be a 32-bit integer, not a string (got "3")',
            id="a string as replicas",
        ),
        pytest.param(
            controller("Deployment", replicas=-1),
            "Deployment web: spec.replicas: Invalid value: -1: must be greater than or equal to 0",
            id="negative replicas",
        ),
        pytest.param(
            controller("Deployment", replicas=2_000_000_000),
            "Deployment web: spec.replicas: 2000000000 is too many: the maximum is 100000",
            id="too many replicas",
        ),
        pytest.param(
            controller("Deployment", pods={"containers": [{"name": "A"}]}),
            'Deployment web: spec.template.spec.containers[0].name: Invalid value: "A": must be lower case letters,'
            " digits and '-', with a letter or digit at both ends",
            id="an invalid name in a template",
        ),
        pytest.param(
            controller("Deployment", template=1),
            "Deployment web: spec.template: must be an object, not a number (got 1)",
            id="a number as template",
        ),
        pytest.param(
            controller("Deployment") | {"metadata": {"name": "Web"}},
            "Deployment Web: metadata.name: Invalid value: \"Web\": must be lower case letters, digits, '-' and '.',"
            " with a letter or digit at both ends of each part",
            id="an invalid name",
        ),
        pytest.param(
            {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "c"}, "spec": {"jobTemplate": {}}},
            "CronJob c: spec.jobTemplate.spec.template.spec.containers: Required value",
            id="an empty CronJob",
        ),
    ],
)
def test_problems_name_the_field(written, expected):
    text = json.dumps(written)

    (problem,) = problems_of(text)

    named = re.fullmatch(r"some\.yaml(?::1)?: (.*?)(?: \(((?:Pod|Deployment|CronJob) [^()]*)\))?", problem)
    assert named
    assert ": ".join(filter(None, (named[2], named[1]))) == expected


def test_problems_name_the_line():
    text = yaml.safe_dump_all([pod("a"), controller("Deployment", pods=spec(cpu="2 cores"))], sort_keys=False)

    (problem,) = problems_of(text)

    assert text.splitlines()[27].strip() == "cpu: 2 cores"
    assert problem.startswith("some.yaml:28: spec.template.spec.containers[0].resources.limits[cpu]: ")
    assert problem.endswith('(got "2 cores") (Deployment web)')


def test_all_problems_are_reported_at_once():
    with pytest.raises(ManifestError) as rejection:
        read(*[controller("Deployment", name=f"d{number}", replicas=-1) for number in range(30)], pod())

    error = rejection.value
    assert len(error.problems) == 30
    assert str(error.problems[0]).startswith("some.yaml:18: spec.replicas: ")
    assert str(error.problems[0]).endswith(" (Deployment d0)")
    assert len(error.lines()) == 21
    assert str(error).endswith("\nand 10 more")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("", "some.yaml: is empty", id="empty"),
        pytest.param("# nothing\n---\n", "some.yaml: is empty", id="only a comment"),
        pytest.param("a:\n\tb", "some.yaml:2: found a tab where YAML allows only spaces", id="invalid YAML"),
        pytest.param("a: 1\n---\nb: *c", "some.yaml:3: unknown anchor 'c' referenced", id="an invalid later document"),
        pytest.param(b"\xff", "some.yaml:1: not valid UTF-8 (byte 0xff)", id="not UTF-8"),
    ],
)
def test_texts_without_workloads(text, expected):
    assert problems_of(text) == [expected]


@pytest.fixture
def folder(tmp_path):
    for name, written in [("b.yaml", pod("b")), ("a.json", pod("a")), ("c.yml", pod("c"))]:
        (tmp_path / name).write_text(json.dumps(written))
    (tmp_path / "notes.txt").write_text("not a manifest")
    (tmp_path / "inner.yaml").mkdir()
    (tmp_path / "inner.yaml" / "d.yaml").write_text(json.dumps(pod("d")))
    return tmp_path


def names(loaded):
    return [workload.name for workload in loaded.workloads]


def test_a_directory_is_read_like_kubectl_does(folder):
    assert names(read_paths([folder])) == ["a", "b", "c"]
    assert names(read_paths([str(folder / "inner.yaml"), folder / "c.yml"])) == ["d", "c"]
    assert read_paths([folder / "a.json"]).workloads[0].source == SourceLocation(str(folder / "a.json"))
    assert read_paths([]) == LoadedWorkloads()


def test_a_dash_means_standard_input():
    loaded = read_paths(["-"], io.BytesIO(json.dumps(pod()).encode()))

    assert names(loaded) == ["web"]
    assert str(loaded.workloads[0].source) == "standard input"


def test_all_unreadable_paths_are_reported(folder):
    empty = folder / "empty"
    empty.mkdir()
    (folder / "zero.yaml").touch()
    (folder / "large.yaml").write_bytes(b" " * (documents.MAX_BYTES + 1))
    paths = [folder / "none.yaml", empty, "-", folder / "zero.yaml", folder / "large.yaml", "a\0b", folder / "a.json"]

    with pytest.raises(ManifestError) as rejection:
        read_paths(paths)

    assert rejection.value.lines() == (
        f"{folder}/none.yaml: cannot be read: No such file or directory",
        f"{empty}: the directory has no files that end in .json, .yaml, .yml",
        "standard input: is empty",
        f"{folder}/zero.yaml: is empty",
        f"{folder}/large.yaml:1: larger than 32 MiB: split the file (a limit of alignup)",
        "a\0b: cannot be read: embedded null byte",
    )


def test_thousands_of_pods_are_read_in_seconds():
    many = json.dumps(listed(*[pod(f"p{number}") for number in range(2000)]))

    with cpu_limit():
        loaded = read_workloads(many, name="some.json")

    assert len(loaded.workloads) == 2000


KEYS = st.sampled_from(
    [
        "kind",
        "apiVersion",
        "metadata",
        "name",
        "generateName",
        "namespace",
        "ownerReferences",
        "spec",
        "status",
        "items",
    ]
)
VALUES = st.sampled_from(
    ["Pod", "List", "PodList", "Deployment", "CronJob", "v1", "apps/v1", "batch/v1", "web", "", -1, 2]
)
json_values = st.recursive(
    VALUES | st.none() | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=20,
)
objects = st.dictionaries(KEYS | st.sampled_from(["template", "jobTemplate", "replicas"]), json_values, max_size=5)
kinds = st.sampled_from(
    [("Pod", "v1"), ("List", "v1"), ("PodList", "v1"), ("Deployment", "apps/v1"), ("CronJob", "batch/v1")]
)


@given(objects, kinds, st.booleans())
def test_any_object_is_workloads_or_problems(written, kind, as_json):
    written |= {"kind": kind[0], "apiVersion": kind[1]}
    text = json.dumps(written) if as_json else yaml.safe_dump(written)
    try:
        loaded = read_workloads(text, name="some.yaml")
    except ManifestError as rejection:
        assert all(str(problem).startswith("some.yaml") for problem in rejection.problems)
    else:
        assert all(workload.pod.uid for workload in loaded.workloads)


@given(st.binary(max_size=100))
def test_any_bytes_are_workloads_or_problems(text):
    try:
        loaded = read_workloads(text, name="some.yaml")
    except ManifestError as rejection:
        assert rejection.problems
    else:
        assert not loaded.workloads


def test_problems_of_the_accept_function_name_the_field():
    def reject(pod: Pod) -> Pod:
        raise PodError([Problem("spec.nodeName", "Forbidden"), Problem("metadata.labels[app]", "Forbidden")])

    with pytest.raises(ManifestError) as rejection:
        read_workloads(yaml.safe_dump(controller("Deployment")), name="a.yaml", accept=reject)

    assert [problem.problem.field for problem in rejection.value.problems] == [
        "spec.template.spec.nodeName",
        "spec.template.metadata.labels[app]",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            "kind: Pod\n{{- if .Values.on }}\na: 1\n{{- end }}\n", "this is a Helm template; try helm", id="broken"
        ),
        pytest.param(
            json.dumps(pod() | {"spec": {"containers": [{"name": "{{ .Values.name }}"}]}}),
            "this is a Helm template; try helm template CHART | alignup why -f -",
            id="valid YAML",
        ),
        pytest.param(
            "kind: {{ .kind }}\n", "this is a Go template, not a manifest; render it first", id="without values"
        ),
        pytest.param("kind: {{inputs.parameters.kind}}\n", "", id="another language"),
    ],
)
def test_templates_are_recognized(text, expected):
    (problem,) = problems_of(text)

    assert problem.startswith(f"some.yaml: {expected}") if expected else "template" not in problem


def test_a_chart_is_recognized(tmp_path):
    (tmp_path / "Chart.yaml").write_text("name: web\n")
    (tmp_path / "values.yaml").write_text("cpu: 1\n")

    with pytest.raises(ManifestError) as rejection:
        read_paths([tmp_path])

    message = f"{tmp_path}: this is a Helm chart; try helm template {tmp_path} | alignup why -f -"
    assert list(rejection.value.lines()) == [message]


def test_the_patches_of_a_kustomization_are_not_applied_silently(tmp_path):
    (tmp_path / "kustomization.yaml").write_text("resources: [web.yaml]\npatches: [{path: more.yaml}]\n")
    (tmp_path / "web.yaml").write_text(json.dumps(pod()))

    loaded = read_paths([tmp_path])

    assert names(loaded) == ["web"]
    (warning,) = loaded.warnings
    assert warning.endswith(f"try alignup why -k {tmp_path}")


def test_templates_in_valid_manifests_are_data():
    rules = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"a": "{{ .Values.x }}"}}

    assert names(read(rules, pod())) == ["web"]


def test_an_invalid_quantity_is_explained_without_a_regular_expression():
    (problem,) = problems_of(
        json.dumps(pod() | {"spec": {"containers": [{"name": "a", "resources": {"limits": {"memory": "1GB"}}}]}})
    )

    assert 'limits[memory]: not a quantity; write 1G or 1Gi (got "1GB") (Pod web)' in problem


def test_files_of_alignup_among_manifests_are_skipped_with_a_note(folder):
    (folder / "machine.yaml").write_text("alignup: machine/v1\ncpus: []\n")
    (folder / "sweep.yaml").write_text("apiVersion: alignup.dev/v1\nkind: Sweep\n")

    loaded = read_paths([folder])

    assert names(loaded) == ["a", "b", "c"]
    assert loaded.warnings == tuple(
        f"{folder}/{name}.yaml:1: skipped a file of alignup, which is not a manifest" for name in ("machine", "sweep")
    )
