"""The join of all sources: exact where they agree, filled in where one is missing, reported where they disagree."""

from dataclasses import replace

import pytest

from alignup.align import bits
from alignup.align.errors import Problem, StateError
from alignup.align.machine import Device
from alignup.align.workload import Container, Pod
from alignup.kubernetes import configuration
from alignup.kubernetes.kubelet_files.state_dir import KubeletFiles
from alignup.observe.observation import ForeignFilesError, UnsettledError, join
from alignup.placement.host_report import PodStage
from tests.align.hosts import pod
from tests.observe.kubelets import GPU, SimulatedKubelet
from tests.strategies_pods import container, guaranteed

SHARED = Pod(name="shared", uid="s", containers=(container("app", {"cpu": "1500m", "memory": "1Gi"}),))


@pytest.fixture
def kubelet():
    """A kubelet with a pod that holds a GPU, one without, and one that holds nothing."""
    made = SimulatedKubelet()
    for one in (pod("a", gpu="1"), pod("b", cpu="3", memory="2Gi"), SHARED):
        made.admit(one)
    return made


def same(found, expected):
    """Compare all that decisions depend on, and the pods."""
    assert found.alignment_key() == expected.alignment_key()
    assert found.used == expected.used
    assert {uid: one.pod for uid, one in found.pods.items()} == {uid: one.pod for uid, one in expected.pods.items()}
    assert found.cpus.held == expected.cpus.held
    assert found.memory.held == expected.memory.held
    assert found.devices.held == expected.devices.held


def test_all_sources_together_give_the_exact_ledger(kubelet):
    found = join(kubelet.sources(), settled=False)

    same(found.host.ledger, kubelet.host.ledger)
    assert (found.gaps, found.contradictions, found.ended) == ((), (), ())
    assert found.host.settings == kubelet.host.settings


def test_init_containers_count_though_podresources_hides_them():
    kubelet = SimulatedKubelet()
    kubelet.admit(
        Pod(
            name="a",
            uid="a",
            init=(guaranteed("init", {"cpu": "3", "memory": "2Gi", GPU: "1"}),),
            containers=(guaranteed("app", {"cpu": "1", "memory": "1Gi"}),),
        )
    )

    found = join(kubelet.sources(), settled=False)

    same(found.host.ledger, kubelet.host.ledger)
    assert (found.gaps, found.contradictions) == ((), ())


def test_a_pod_unknown_to_the_api_server_is_named_by_podresources_and_counted_as_allocated(kubelet):
    found = join(kubelet.sources(pods={uid: one for uid, one in kubelet.pods.items() if uid != "a"}), settled=False)

    assert found.host.ledger.pod_name("a") == "default/a"
    assert found.host.ledger.used == kubelet.host.ledger.used
    assert found.gaps == ()


def test_without_the_api_server_every_entry_counts_and_names_come_from_podresources(kubelet):
    found = join(kubelet.sources(pods=None), settled=False)

    assert [found.host.ledger.pod_name(uid) for uid in "abs"] == ["default/a", "default/b", "s"]
    assert found.host.ledger.alignment_key() == kubelet.host.ledger.alignment_key()
    assert found.gaps == ("the name of pod s is unknown",)


def test_without_podresources_the_files_and_the_api_server_suffice_for_pods(kubelet):
    found = join(kubelet.sources(listed=None, allocatable=None), settled=False)

    assert found.host.ledger.cpus.shared == kubelet.host.ledger.cpus.shared
    assert found.host.ledger.memory.held == kubelet.host.ledger.memory.held
    assert found.gaps == (f"the state files do not contain the topology of a free device of {GPU}",)


@pytest.mark.parametrize("missing", ["cpu", "memory", "devices"])
def test_podresources_fills_in_for_a_missing_file(kubelet, missing):
    files = replace(kubelet.files, **{missing: None})

    found = join(kubelet.sources(files=files), settled=False)

    same(found.host.ledger, kubelet.host.ledger)


def test_a_resized_pod_counts_with_what_is_allocated(kubelet):
    spec = replace(SHARED, containers=(container("app", {"cpu": "4", "memory": "1Gi"}),))
    pods = {**kubelet.pods, "s": replace(kubelet.pods["s"], pod=spec)}

    found = join(kubelet.sources(pods=pods), settled=False)

    assert found.host.ledger.used == kubelet.host.ledger.used


def test_a_stale_entry_of_a_dead_pod_is_free(kubelet):
    kubelet.end("a")

    found = join(kubelet.sources(), settled=False)

    assert found.ended == ("a",)
    kubelet.host.release("a")
    same(found.host.ledger, kubelet.host.ledger)


def test_a_finished_pod_is_free_though_older_kubelets_list_it(kubelet):
    pods = {**kubelet.pods, "a": replace(kubelet.pods["a"], stage=PodStage.ENDED, finished=True)}

    assert join(kubelet.sources(pods=pods), settled=False).ended == ("a",)


@pytest.mark.parametrize("stage", [PodStage.TERMINATING, PodStage.ENDED])
def test_a_terminating_pod_holds_its_resources_while_the_kubelet_lists_it(kubelet, stage):
    pods = {**kubelet.pods, "a": replace(kubelet.pods["a"], stage=stage)}

    assert join(kubelet.sources(pods=pods), settled=False).ended == ()
    unlisted = tuple(one for one in kubelet.listed if one.name != "a")
    assert join(kubelet.sources(pods=pods, listed=unlisted), settled=False).ended == ("a",)


def test_a_pod_created_again_under_the_same_name_is_another_pod(kubelet):
    kubelet.end("a")
    again = replace(pod("c", gpu="1", cpu="1"), name="a")
    stale = kubelet.files
    kubelet.admit(again)
    both = replace(
        kubelet.files,
        cpu=replace(kubelet.files.cpu, entries={**kubelet.files.cpu.entries, "x": {"app": bits.of([3])}}),
    )
    assert stale.cpu != both.cpu

    found = join(kubelet.sources(files=both, allocated={**kubelet.allocated, "x": kubelet.allocated["c"]}))

    assert found.ended == ("x",)
    assert found.host.ledger.pod_name("c") == "default/a"


def test_a_restarted_kubelet_that_lists_no_pods_yet_still_holds_everything(kubelet):
    found = join(kubelet.sources(listed=()), settled=False)

    assert found.host.ledger.alignment_key() == kubelet.host.ledger.alignment_key()
    assert found.ended == ()
    assert "pod default/a is in the kubelet's files, but PodResources does not list it" in found.contradictions


def test_devices_of_a_late_plugin_cannot_be_allocated_but_stay_held(kubelet):
    late = replace(kubelet.allocatable, devices=())

    found = join(kubelet.sources(allocatable=late), settled=False)

    devices = found.host.ledger.devices
    assert devices.held == kubelet.host.ledger.devices.held
    assert devices.free[GPU] == 0
    assert GPU in devices.handled
    assert found.contradictions == (
        f"the device plugin of {GPU} has stopped, or has not registered with this kubelet yet",
    )
    assert not found.host.decide(pod("d", gpu="1", cpu="1")).admitted


def test_a_plugin_that_registers_late_needs_no_restart_of_the_observer(kubelet):
    kubelet.host.update_devices("example.com/fpga", [Device("example.com/fpga", "f0", nodes=2)])
    before = replace(kubelet.files, devices=replace(kubelet.files.devices, registered={GPU: ("gpu-0", "gpu-1")}))

    found = join(kubelet.sources(files=before), settled=False)

    assert found.host.ledger.devices.free_on("example.com/fpga") == {1: 1}


def test_one_device_that_is_not_listed_is_unhealthy_and_reported(kubelet):
    one_left = replace(kubelet.allocatable, devices=tuple(one for one in kubelet.allocatable.devices if one.nodes == 1))

    found = join(kubelet.sources(allocatable=one_left), settled=False)

    assert found.host.ledger.devices.free[GPU] == 0
    assert found.contradictions == (f"devices gpu-1 of {GPU} are registered, but PodResources does not list them",)


def between_writes(kubelet):
    """The CPUs of a new pod are taken out of the pool, but its entry is not written yet."""
    cpu = kubelet.files.cpu
    return replace(kubelet.files, cpu=replace(cpu, default=cpu.default & ~bits.of([3])))


def test_a_cpu_between_two_writes_is_unsettled(kubelet):
    sources = kubelet.sources(files=between_writes(kubelet))

    with pytest.raises(UnsettledError, match=r"available CPUs \"0-7\" doesn't match with CPUs in state \"0-2,4-7\""):
        join(sources, settled=False)


def test_a_cpu_that_stays_between_two_writes_is_nobodys_and_reported(kubelet):
    found = join(kubelet.sources(files=between_writes(kubelet)))

    assert found.host.ledger.cpus.lost == bits.of([3])
    assert not found.host.ledger.cpus.shared & bits.of([3])
    assert any("a kubelet would not start with it" in gap for gap in found.gaps)


def test_memory_between_two_writes_is_unsettled(kubelet):
    before = SimulatedKubelet()
    before.admit(pod("a", gpu="1"))
    files = replace(kubelet.files, memory=replace(kubelet.files.memory, entries=before.files.memory.entries))

    with pytest.raises(UnsettledError, match="the expected machine state is different from the real one"):
        join(kubelet.sources(files=files), settled=False)
    assert join(kubelet.sources(files=files)).host.ledger.memory.nodes == kubelet.host.ledger.memory.nodes


def test_a_pod_in_the_middle_of_its_admission_is_unsettled(kubelet):
    allocated = {uid: own for uid, own in kubelet.allocated.items() if uid != "b"}

    with pytest.raises(UnsettledError, match="pod default/b is being admitted"):
        join(kubelet.sources(allocated=allocated), settled=False)


def test_a_pod_that_is_listed_before_it_is_in_the_files_is_unsettled(kubelet):
    before = SimulatedKubelet()
    before.admit(pod("a", gpu="1"))

    with pytest.raises(UnsettledError, match="pod default/b is not in the state files yet"):
        join(kubelet.sources(files=before.files, allocated=before.allocated), settled=False)


def test_a_rejected_pod_that_left_entries_is_free(kubelet):
    pods = {**kubelet.pods, "b": replace(kubelet.pods["b"], stage=PodStage.ENDED, finished=True)}
    allocated = {uid: own for uid, own in kubelet.allocated.items() if uid != "b"}
    listed = tuple(one for one in kubelet.listed if one.name != "b")

    found = join(kubelet.sources(pods=pods, allocated=allocated, listed=listed), settled=False)

    assert found.ended == ("b",)


def test_other_cpus_in_podresources_than_in_the_file_are_reported(kubelet):
    listed = tuple(
        replace(one, containers={"app": replace(one.containers["app"], cpus=bits.of([7]))}) if one.name == "a" else one
        for one in kubelet.listed
    )

    found = join(kubelet.sources(listed=listed), settled=False)

    assert found.contradictions == ("pod default/a container app holds CPUs 7, but 1-2 in the state file",)


def test_a_changed_configuration_that_the_kubelet_does_not_run_with_is_reported(kubelet):
    changed = configuration.read(kubelet.text.replace(b'"systemReserved":{"cpu":"1"', b'"systemReserved":{"cpu":"2"'))

    found = join(kubelet.sources(configuration=changed))

    assert "the kubelet allocates CPUs 1-7, but by its configuration it would allocate 2-7" in found.contradictions


def test_a_state_file_of_another_policy_is_an_error(kubelet):
    other = configuration.read(kubelet.text.replace(b'"cpuManagerPolicy":"static"', b'"cpuManagerPolicy":"none"'))

    with pytest.raises(StateError, match='configured policy "none" differs from state checkpoint policy "static"'):
        join(kubelet.sources(configuration=other))


@pytest.mark.parametrize(
    ("shape", "why"),
    [
        ("pack:2 numa:1 core:3 pu:1", "cpu_manager_state has CPUs 6-7, which this machine does not have"),
        ("pack:4 numa:1 core:2 pu:1", "memory_manager_state has NUMA nodes 0-1, but this machine has 0-3"),
    ],
)
def test_files_of_another_machine_are_an_error(kubelet, shape, why):
    with pytest.raises(ForeignFilesError, match=why):
        join(kubelet.sources(machine=SimulatedKubelet(shape=shape).machine))


def test_files_of_a_machine_with_other_memory_are_an_error(kubelet):
    nodes = tuple(replace(node, memory=8 << 30) for node in kubelet.machine.nodes)

    with pytest.raises(ForeignFilesError, match="has 17179869184 bytes on NUMA node 0, but this"):
        join(kubelet.sources(machine=replace(kubelet.machine, nodes=nodes)))


def test_a_damaged_file_is_an_error_and_not_filled_in(kubelet):
    files = KubeletFiles(problems=(Problem("x", "checkpoint is corrupted"),))

    with pytest.raises(StateError, match="checkpoint is corrupted"):
        join(kubelet.sources(files=files), settled=False)


def test_a_container_that_the_pod_does_not_have_is_an_error(kubelet):
    other = replace(kubelet.pods["a"], pod=replace(kubelet.pods["a"].pod, containers=(Container("x"),)))

    with pytest.raises(StateError, match="pod a has no container app"):
        join(kubelet.sources(pods={**kubelet.pods, "a": other}))
