"""The simulated kubelet: what it admits, whom it preempts, and that its files, lists and objects say the same."""

import pytest

from alignup.align.errors import StateError
from alignup.align.workload import Pod
from alignup.kubernetes.kubelet_files.allocated_pods import read_allocated_pods
from alignup.kubernetes.kubelet_files.ledger import restore_ledger
from alignup.kubernetes.kubelet_files.state_files import read_state_files
from alignup.testing.simulated_kubelet import SimulatedKubelet
from tests.align.hosts import make_pod
from tests.observe.kubelets import ObservedKubelet
from tests.placement.model import CRITICAL
from tests.strategies_pods import container


def shared_pod(uid: str, cpu: str = "1", *, priority: int | None = None) -> Pod:
    return Pod(name=uid, uid=uid, containers=(container("app", {"cpu": cpu}),), priority=priority)


@pytest.fixture(params=[{}, {"topologyManagerPolicy": "best-effort", "topologyManagerScope": "pod"}], ids=str)
def kubelet(request):
    """A kubelet with 5 of 7 CPUs and one GPU in use."""
    busy = ObservedKubelet(**request.param)
    for pod in (make_pod("first", gpu="1"), make_pod("second"), shared_pod("shared")):
        busy.run(pod)
    return busy


def test_a_rejection_changes_nothing(kubelet):
    before = kubelet.host.ledger

    assert not kubelet.admit(make_pod("large", cpu="4")).admitted
    assert (kubelet.host.ledger, list(kubelet.pods)) == (before, ["first", "second", "shared"])
    with pytest.raises(StateError, match="pod large is rejected: "):
        kubelet.run(make_pod("large", cpu="4"))


def test_an_ended_pod_keeps_its_resources_until_the_next_admission(kubelet):
    kubelet.end("first")

    assert [listed.name for listed in kubelet.listed] == ["second", "shared"]
    assert {"first"} < kubelet.allocated.keys() & kubelet.files.cpu.entries.keys()
    kubelet.run(make_pod("next", cpu="3", gpu="1"))
    assert "first" not in kubelet.allocated.keys() | kubelet.files.cpu.entries.keys()


def test_a_critical_pod_preempts_the_last_pods_and_gets_nothing_of_theirs(kubelet):
    cpus = kubelet.host.ledger.cpus.owned("second")

    assert not kubelet.admit(shared_pod("too-large", "8", priority=CRITICAL)).admitted
    assert not kubelet.ended
    assert kubelet.admit(shared_pod("critical", "4", priority=CRITICAL)).admitted
    assert (kubelet.ended, list(kubelet.pods)) == ({"shared", "second"}, ["first", "critical"])
    assert kubelet.host.ledger.cpus.owned("second") == cpus  # until the next admission


def test_the_numa_nodes_of_a_pod_are_those_of_all_it_holds():
    kubelet = SimulatedKubelet(topologyManagerPolicy="none")
    kubelet.run(make_pod("first"))
    kubelet.run(make_pod("wide", cpu="4", gpu="1"))

    assert [kubelet.numa_nodes(uid) for uid in ("first", "wide", "unknown")] == [0b01, 0b11, 0]


def test_the_files_have_what_the_kubelet_counts_with(kubelet, tmp_path):
    kubelet.write(tmp_path)
    files = read_state_files(tmp_path, gates=kubelet.host.settings.gates)
    restored = restore_ledger(kubelet.host, files, [known.pod for known in kubelet.pods.values()])

    assert (restored.ledger.alignment_key(), restored.gaps) == (kubelet.host.ledger.alignment_key(), ())
    assert read_allocated_pods(tmp_path) == kubelet.allocated


def test_the_host_state_is_the_one_that_an_observer_publishes(kubelet):
    assert super(ObservedKubelet, kubelet).published_state == kubelet.published_state
