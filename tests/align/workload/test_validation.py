from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.align.errors import PodError
from alignup.align.quantity import Quantity
from alignup.align.workload import Container, Pod, PodClaim, QoS, Resources, demand
from alignup.align.workload.validation import PodSource, accept, apply_defaults, validation_problems
from alignup.kubernetes.manifests.pod_decoder import read_pod
from tests.strategies_pods import DEVICES, amounts, container, guaranteed, pods

MAIN = guaranteed("main", {"cpu": "2", "memory": "1Gi"})
POD = Pod(name="p", containers=(MAIN,))


def fields(pod):
    return [problem.field for problem in validation_problems(pod)]


def with_own(requests=None, limits=None, *, containers=(MAIN,)):
    return replace(POD, containers=containers, resources=Resources(amounts(requests), amounts(limits)))


def test_the_pod_of_the_announcement_is_guaranteed():
    """Limits alone, as the announcement of the Topology Manager writes them, make requests and a Guaranteed pod."""
    limits = {"cpu": 2, "memory": "200Mi", "gpu-vendor.com/gpu": 1, "nic-vendor.com/nic": 1}
    written = read_pod(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "numa-aligned-pod"},
            "spec": {
                "containers": [{"name": "numa-aligned-container", "image": "alpine", "resources": {"limits": limits}}]
            },
        }
    )

    pod = accept(written)

    asked = pod.containers[0].resources
    assert asked.requests == asked.limits == amounts({name: str(amount) for name, amount in limits.items()})
    assert pod.qos is QoS.GUARANTEED
    assert demand.exclusive_cpus(pod, None) == 2
    assert demand.memory(pod, None) == {"memory": 200 << 20}
    assert demand.devices(pod, None, {"gpu-vendor.com/gpu", "nic-vendor.com/nic"}) == {
        "gpu-vendor.com/gpu": 1,
        "nic-vendor.com/nic": 1,
    }


def test_the_api_server_rewrites_amounts_and_a_static_pod_keeps_them():
    written = Pod(name="p", containers=(container("c", {"memory": "1.5Gi"}),))

    stored, kept = accept(written), accept(written, source=PodSource.STATIC)

    assert demand.memory(stored, None) == {"memory": 3 << 29}
    assert kept.containers[0].resources.requests["memory"].as_int64() is None


def test_a_static_pod_is_named_after_its_host():
    written = Pod(name="web", namespace="", containers=(MAIN,))

    pod, twin = (accept(written, source=PodSource.STATIC, host="Node-1") for _ in range(2))
    elsewhere = accept(written, source=PodSource.STATIC, host="node-2")

    assert (pod.name, pod.namespace) == ("web-node-1", "default")
    assert pod.uid == twin.uid != elsewhere.uid
    assert accept(replace(written, uid="mine"), source=PodSource.STATIC).uid == "mine"


def test_a_given_qos_class_is_computed_again():
    written = Pod(name="p", containers=(container("idle"),), recorded_qos=QoS.GUARANTEED)

    assert accept(written).recorded_qos is QoS.BEST_EFFORT
    assert accept(written, source=PodSource.STATIC).qos is QoS.BEST_EFFORT


@pytest.mark.parametrize(("uid", "qos"), [("", QoS.GUARANTEED), ("u1", QoS.BURSTABLE)])
def test_a_stored_pod_keeps_the_pod_level_resources_of_its_api_server(uid, qos):
    """An API server before 1.37 stores pod-level requests without limits."""
    exported = replace(with_own({"cpu": "4", "memory": "1Gi"}), uid=uid, recorded_qos=QoS.BURSTABLE)

    accepted = accept(exported)

    assert accepted.qos is qos
    assert (accepted.resources == exported.resources) is bool(uid)


R = "spec.containers[0].resources"


def test_a_pod_as_a_whole_may_not_use_claims():
    pod = replace(POD, resources=Resources(claims=("x",)))

    assert fields(pod) == ["spec.resources.claims", "spec.resources.claims[0]"]


def test_a_rejection_lists_every_problem_once():
    pod = Pod(name="A", containers=(container("c", {"x.y/a": "1", "x.y/b": "1"}),))

    with pytest.raises(PodError) as rejection:
        accept(pod)

    assert [problem.field for problem in rejection.value.problems] == ["metadata.name", f"{R}.limits"]
    assert str(rejection.value).startswith('metadata.name: Invalid value: "A": must be ')


def test_amounts_too_far_apart_to_add_are_rejected():
    huge, tiny = container("a", {"cpu": "1e20000"}), container("b", {"cpu": "1"})

    with pytest.raises(PodError, match=r"^spec: cannot add up the amounts: "):
        accept(with_own({"cpu": "1"}, containers=(huge, tiny)))


@given(pods(), st.sampled_from(PodSource), st.booleans())
def test_an_accepted_pod_is_accepted_unchanged(pod, source, gate):
    first = accept(pod, source=source, fix_pod_level=gate)

    assert accept(first, source=source, fix_pod_level=gate) == first


@given(pods())
def test_the_api_server_keeps_amounts(pod):
    """Rewriting amounts changes no value and gives whole bytes, as the memory provider needs."""
    filled, stored = apply_defaults(pod), accept(pod)

    assert demand.requests(stored) == demand.requests(filled)
    assert stored.qos is filled.qos
    for each in stored.all_containers:
        asked = demand.memory(stored, each)
        assert asked.items() <= {name: amount.value() for name, amount in each.resources.requests.items()}.items()


@given(pods())
def test_defaults_only_add(pod):
    filled = apply_defaults(pod)

    asked = [pod.resources, *(container.resources for container in pod.all_containers)]
    defaulted = [filled.resources, *(container.resources for container in filled.all_containers)]
    for before, after in zip(asked, defaulted, strict=True):
        assert before.requests.items() <= after.requests.items()
        assert before.limits.items() <= after.limits.items()


@given(pods(), st.sampled_from(["cpu", "memory", *DEVICES]), st.data())
def test_one_negative_limit_rejects_any_pod(pod, name, data):
    index = data.draw(st.integers(0, len(pod.containers) - 1))
    spoilt = Container("spoilt", Resources({}, {name: Quantity.of(-1)}))
    pod = replace(pod, containers=(*pod.containers[:index], spoilt, *pod.containers[index + 1 :]))

    with pytest.raises(PodError) as rejection:
        accept(pod)

    assert f"spec.containers[{index}].resources.limits[{name}]" in {
        problem.field for problem in rejection.value.problems
    }


def test_an_unknown_restart_policy_is_listed_with_all_other_problems():
    init = {"name": "Setup", "restartPolicy": "Often", "resources": {"limits": {"cpu": "-1"}}}
    spec = {"initContainers": [init], "containers": [{"name": "app"}]}
    written = read_pod({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": spec})

    with pytest.raises(PodError) as rejection:
        accept(written)

    assert [problem.field for problem in rejection.value.problems] == [
        "spec.initContainers[0].name",
        "spec.initContainers[0].resources.limits[cpu]",
        "spec.initContainers[0].resources.requests[cpu]",
        "spec.initContainers[0].restartPolicy",
    ]
    assert rejection.value.problems[-1].message == (
        'Unsupported value: "Often": supported values: "Always", "Never", "OnFailure"'
    )


@pytest.mark.parametrize(("policy", "rejected"), [("", True), (None, False), ("Never", False)])
def test_an_empty_restart_policy_of_a_container_is_not_an_absent_one(policy, rejected):
    spec = {"containers": [{"name": "app", "restartPolicy": policy}]}
    written = read_pod({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": spec})

    assert (
        "spec.containers[0].restartPolicy" in {problem.field for problem in validation_problems(written)}
    ) is rejected


def test_a_limit_from_containers_keeps_their_spelling():
    resources = Resources({"memory": Quantity.parse("1k")}, {"memory": Quantity.parse("1k")})
    pod = Pod(
        name="web",
        containers=(Container("app", resources),),
        resources=Resources(requests={"memory": Quantity.parse("1e3")}),
    )

    filled = apply_defaults(pod).resources

    assert {name: str(amount) for name, amount in filled.limits.items()} == {"memory": "1k"}
    assert {name: str(amount) for name, amount in filled.requests.items()} == {"memory": "1e3"}


@pytest.mark.parametrize(
    ("claims", "named"),
    [
        (("a/x", "a/y", "b/x"), []),
        (("a/x", "a/x"), ["claims[1]"]),
        (("a", "a/x"), ["claims[1]"]),
        (("a/x", "a"), ["claims[1]"]),
        (("a/x", "a/y", "a"), ["claims[2]"]),
        (("a/X y",), ["claims[0].request"]),
        (("a/x/y",), ["claims[0].request"]),
        (("c/x", "c/y"), ["claims[0]", "claims[1]"]),
        (("/x",), ["claims[0]"]),
    ],
)
def test_a_container_uses_a_whole_claim_or_several_requests_of_it(claims, named):
    """As an API server of 1.37 says."""
    used = Container("c", Resources(claims=claims))
    pod = replace(POD, claims=(PodClaim("a", claim="a"), PodClaim("b", claim="b")), containers=(used,))
    assert fields(pod) == [f"{R}.{name}" for name in named]
    assert used.resources.claim_names == tuple(dict.fromkeys(claim.partition("/")[0] for claim in claims))
