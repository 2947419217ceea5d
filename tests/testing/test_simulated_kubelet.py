"""The simulated kubelet: what it admits, whom it preempts, and that its files, lists and objects say the same."""

from dataclasses import replace

import pytest

from alignup.align.errors import StateError
from alignup.align.workload import Pod
from alignup.documents.host_state.writer import to_object
from alignup.kubernetes.kubelet_files.allocated_pods import read_allocated_pods
from alignup.kubernetes.kubelet_files.ledger import restore_ledger
from alignup.kubernetes.kubelet_files.state_files import read_state_files
from alignup.observe.observation import join
from alignup.observe.published_objects import host_state
from alignup.testing.simulated_kubelet import GPU, SimulatedKubelet
from tests.align.hosts import make_pod
from tests.observe.kubelets import ObservedKubelet
from tests.placement.model import CRITICAL
from tests.strategies_pods import container, guaranteed


def critical_pod(cpu: str) -> Pod:
    return Pod(name="critical", uid="critical", containers=(container("app", {"cpu": cpu}),), priority=CRITICAL)


def busy_kubelet(**fields) -> ObservedKubelet:
    """A kubelet with 5 of 7 CPUs and one GPU in use."""
    kubelet = ObservedKubelet(**fields)
    kubelet.run(make_pod("first", cpu="2", gpu="1"))
    kubelet.run(make_pod("second", cpu="2"))
    kubelet.run(Pod(name="shared", uid="shared", containers=(container("app", {"cpu": "1"}),)))
    return kubelet


def test_a_rejection_changes_nothing():
    kubelet = busy_kubelet()
    before = kubelet.host.ledger
    decision = kubelet.admit(make_pod("large", cpu="3"))

    assert decision.rejection
    assert decision.rejection.reason == "TopologyAffinityError"
    assert (kubelet.host.ledger, list(kubelet.pods)) == (before, ["first", "second", "shared"])
    with pytest.raises(StateError, match="pod large is rejected: Resources cannot be allocated"):
        kubelet.run(make_pod("large", cpu="3"))


def test_an_ended_pod_keeps_its_resources_until_the_next_admission():
    kubelet = busy_kubelet()
    kubelet.end("first")

    assert [listed.name for listed in kubelet.listed] == ["second", "shared"]
    assert "first" in kubelet.allocated
    assert kubelet.files.cpu
    assert "first" in kubelet.files.cpu.entries
    kubelet.run(make_pod("next", cpu="3", gpu="1"))
    assert "first" not in kubelet.allocated
    assert kubelet.host.ledger.cpus.owned("first") == 0


def test_a_critical_pod_preempts_the_last_pods_and_gets_nothing_of_theirs():
    kubelet = busy_kubelet()
    cpus = kubelet.host.ledger.cpus.owned("second")

    assert kubelet.admit(critical_pod("4")).admitted
    assert kubelet.ended == {"shared", "second"}
    assert kubelet.host.ledger.cpus.owned("second") == cpus  # until the next admission
    assert list(kubelet.pods) == ["first", "critical"]


def test_a_critical_pod_without_enough_victims_is_rejected():
    kubelet = busy_kubelet()

    assert not kubelet.admit(critical_pod("8")).admitted
    assert not kubelet.ended


def test_the_numa_nodes_of_a_pod_are_those_of_all_it_holds():
    kubelet = SimulatedKubelet(topologyManagerPolicy="none")
    kubelet.run(make_pod("first", cpu="2"))
    kubelet.run(replace(make_pod("wide"), containers=(guaranteed("app", {"cpu": "4", "memory": "1Gi", GPU: "1"}),)))

    assert kubelet.numa_nodes("first") == 0b01
    assert kubelet.numa_nodes("wide") == 0b11
    assert kubelet.numa_nodes("unknown") == 0


@pytest.mark.parametrize("fields", [{}, {"topologyManagerPolicy": "best-effort", "topologyManagerScope": "pod"}])
def test_the_files_have_what_the_kubelet_counts_with(tmp_path, fields):
    kubelet = busy_kubelet(**fields)
    kubelet.write(tmp_path)
    pods = [known.pod for known in kubelet.pods.values()]
    files = read_state_files(tmp_path, gates=kubelet.host.settings.gates)
    restored = restore_ledger(kubelet.host, files, pods)

    assert restored.ledger.alignment_key() == kubelet.host.ledger.alignment_key()
    assert restored.gaps == ()
    assert read_allocated_pods(tmp_path) == kubelet.allocated


@pytest.mark.parametrize("fields", [{}, {"topologyManagerPolicy": "restricted", "maxPods": 250}])
def test_the_host_state_is_the_one_that_an_observer_publishes(fields):
    kubelet = busy_kubelet(**fields)

    assert kubelet.host_state(7) == to_object(host_state(join(kubelet.sources(kubelet=""))).replace(generation=7))
