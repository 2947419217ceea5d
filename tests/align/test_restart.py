"""What a restarted kubelet does with the pods that run."""

from dataclasses import replace

import pytest

from alignup.align.cpus.options import CpuSettings
from alignup.align.quantity import Quantity
from alignup.align.release import find_release
from alignup.align.restart import Restart, UpgradeSeverity, compare_restarts, restart
from alignup.align.settings import FeatureGates, Policy, Scope
from alignup.align.workload import Resources
from tests.align.hosts import GPU, make_host, pod
from tests.strategies_pods import amounts

WHOLE_CORES = CpuSettings(
    policy="static", options={"full-pcpus-only": "true"}, reservation=Quantity.parse("2"), explicit=0b11
)
PODS = [pod("first", cpu="2", memory="1Gi"), pod("second", cpu="2", memory="1Gi")]


def running(**settings):
    host = make_host(shape="pack:1 numa:1 core:3 pu:2", cpus=WHOLE_CORES, kubelet_faults=True, **settings)
    assert all(host.admit(each).admitted for each in PODS)
    return host


def test_pods_keep_what_they_have():
    host = running()

    assert restart(host, host.ledger, PODS).changes == {}


def test_up_to_1_36_a_full_node_rejects_its_pods_under_full_pcpus_only():
    host = running(release=find_release("1.36"))
    new = running(release=find_release("1.35"))

    changes = compare_restarts(restart(host, host.ledger, PODS), restart(new, new.ledger, PODS))

    assert [(change.uid, change.reason, change.also_now) for change in changes] == [
        ("first", "SMTAlignmentError", True),
        ("second", "SMTAlignmentError", True),
    ]
    assert changes[0].describe(new.settings.release).endswith("; a restart of the present kubelet does the same")
    assert changes[0].to_document()["alsoNow"] is True
    assert changes[0].severity is UpgradeSeverity.REJECTED


def kubelet(policy=Policy.NONE, *, reserved="1"):
    cpus = CpuSettings(policy="static", reservation=Quantity.parse(reserved))
    return Restart({}, make_host(policy, memory=False, cpus=cpus))


@pytest.mark.parametrize(
    ("old", "new", "cpu", "severity", "text"),
    [
        pytest.param(
            kubelet(),
            kubelet(Policy.SINGLE_NUMA_NODE),
            "5",
            UpgradeSeverity.WAITING,
            "would be rejected by a kubelet 1.37: TopologyAffinityError: ",
            id="rejected only by the new one",
        ),
        pytest.param(
            kubelet(Policy.SINGLE_NUMA_NODE),
            kubelet(),
            "5",
            UpgradeSeverity.NOTE,
            "would be admitted by a kubelet 1.37, and is rejected now",
            id="admitted only by the new one",
        ),
        pytest.param(
            kubelet(),
            kubelet(reserved="2"),
            "1",
            UpgradeSeverity.NOTE,
            "would get other resources from a kubelet 1.37",
            id="placed elsewhere",
        ),
    ],
)
def test_a_waiting_pod_may_get_another_answer(old, new, cpu, severity, text):
    (change,) = compare_restarts(old, new, [pod("waits", cpu=cpu)])
    item = change.item(new.host.settings.release)

    assert item.severity is severity
    assert item.text.startswith(f"default/waits, which waits, {text}")
    assert bool(item.advice) is (severity is UpgradeSeverity.WAITING)


def test_a_waiting_pod_with_the_same_answer_is_not_listed():
    assert compare_restarts(kubelet(), kubelet(), [pod("waits", cpu="1")]) == ()


def test_a_pod_that_is_placed_elsewhere_is_named():
    """A defect: pods with pod-level resources are placed again at every start."""
    gates = FeatureGates({"PodLevelResourceManagers": True})
    host = make_host(scope=Scope.POD, gates=gates, kubelet_faults=True)
    whole = amounts({"cpu": "2", "memory": "1Gi"})
    placed = replace(pod("placed", cpu="2", memory="1Gi"), resources=Resources(whole, whole))
    assert host.admit(placed).admitted

    (change,) = restart(host, host.ledger, [placed]).changes.values()

    assert (change.reason, change.severity) == ("", UpgradeSeverity.MOVED)
    assert change.describe(host.settings.release) == (
        f"{placed.namespace}/placed gets other resources when a kubelet 1.37 starts: its CPUs change"
    )


def test_containers_that_run_keep_devices_whose_plugin_is_not_back():
    host = make_host(kubelet_faults=True)
    holder = pod("holder", cpu="2", memory="1Gi", gpu="1")
    assert host.admit(holder).admitted
    host.update_devices(GPU, ())

    assert restart(host, host.ledger, [holder]).changes == {}
    assert restart(host, host.ledger, [replace(holder, uid="new")]).changes["new"].reason == "UnexpectedAdmissionError"


def test_a_kubelet_leaves_nothing_of_a_rejected_pod_but_the_spread_of_memory():
    """A host without its defects is not changed at all."""
    parts = pod("parts", cpu="1", memory="1Gi")
    greedy = replace(parts, containers=(*parts.containers, replace(pod("b", cpu="99").containers[0], name="b")))
    for faults in (False, True):
        host = make_host(kubelet_faults=faults)
        before = host.ledger

        decision = host.admit(greedy)

        assert not decision.admitted
        assert decision.residue is not None
        assert decision.residue.cpus.held.keys() == {"parts"}
        assert host.ledger == before
        assert (host.ledger is before) is not faults
