"""The join of all sources: exact where they agree, filled in where one is missing, reported where they disagree."""

from dataclasses import replace

import pytest

from alignup.align import bits
from alignup.align.errors import Problem, StateError
from alignup.align.machine import Device
from alignup.align.workload import Container, Pod, Resources
from alignup.kubernetes import configuration
from alignup.kubernetes.api.known_pods import KnownPod
from alignup.kubernetes.kubelet_files.state_files import KubeletFiles
from alignup.kubernetes.plugins.pod_resources import ListedResources
from alignup.machines.synthetic import parse
from alignup.observe.observation import AdmittingError, ForeignFilesError, UnsettledError, join
from alignup.placement.host_report import PodStage
from tests.align.hosts import GPU, pod
from tests.observe.kubelets import ObservedKubelet
from tests.strategies_pods import amounts, container, guaranteed

SHARED = Pod(name="shared", uid="s", containers=(container("app", {"cpu": "1500m", "memory": "1Gi"}),))


@pytest.fixture
def kubelet():
    """A kubelet with a pod that holds a GPU, one without, and one that holds nothing."""
    made = ObservedKubelet()
    for listed_pod in (pod("a", gpu="1"), pod("b", cpu="3", memory="2Gi"), SHARED):
        made.run(listed_pod)
    return made


def same(observation, expected):
    """Compare all that decisions depend on, and the pods."""
    assert observation.alignment_key() == expected.alignment_key()
    assert observation.used == expected.used
    assert {uid: listed_pod.pod for uid, listed_pod in observation.pods.items()} == {
        uid: listed_pod.pod for uid, listed_pod in expected.pods.items()
    }
    assert observation.cpus.held == expected.cpus.held
    assert observation.memory.held == expected.memory.held
    assert observation.devices.held == expected.devices.held


def test_all_sources_together_give_the_exact_ledger(kubelet):
    observation = join(kubelet.sources(), settled=False)

    same(observation.host.ledger, kubelet.host.ledger)
    assert (observation.gaps, observation.contradictions, observation.ended) == ((), (), ())
    assert observation.host.settings == kubelet.host.settings


def test_init_containers_count_though_podresources_hides_them():
    kubelet = ObservedKubelet()
    kubelet.run(
        Pod(
            name="a",
            uid="a",
            init=(guaranteed("init", {"cpu": "3", "memory": "2Gi", GPU: "1"}),),
            containers=(guaranteed("app", {"cpu": "1", "memory": "1Gi"}),),
        )
    )

    observation = join(kubelet.sources(), settled=False)

    same(observation.host.ledger, kubelet.host.ledger)
    assert (observation.gaps, observation.contradictions) == ((), ())


def test_a_pod_unknown_to_the_api_server_is_named_by_podresources_and_counted_as_allocated(kubelet):
    observation = join(
        kubelet.sources(pods={uid: listed_pod for uid, listed_pod in kubelet.pods.items() if uid != "a"}), settled=False
    )

    assert observation.host.ledger.pod_name("a") == "default/a"
    assert observation.host.ledger.used == kubelet.host.ledger.used
    assert observation.gaps == ()


def test_without_the_api_server_every_entry_counts_and_names_come_from_podresources(kubelet):
    observation = join(kubelet.sources(pods=None), settled=False)

    assert [observation.host.ledger.pod_name(uid) for uid in "abs"] == ["default/a", "default/b", "s"]
    assert observation.host.ledger.alignment_key() == kubelet.host.ledger.alignment_key()
    assert observation.gaps == ("the name of pod s is unknown",)


def test_without_podresources_the_files_and_the_api_server_suffice_for_pods(kubelet):
    observation = join(kubelet.sources(listed=None, allocatable=None), settled=False)

    assert observation.host.ledger.cpus.shared == kubelet.host.ledger.cpus.shared
    assert observation.host.ledger.memory.held == kubelet.host.ledger.memory.held
    assert observation.gaps == (f"the state files do not contain the topology of a free device of {GPU}",)


@pytest.mark.parametrize("missing", ["cpu", "memory", "devices"])
def test_podresources_fills_in_for_a_missing_file(kubelet, missing):
    files = replace(kubelet.files, **{missing: None})

    observation = join(kubelet.sources(files=files), settled=False)

    same(observation.host.ledger, kubelet.host.ledger)


def test_a_resized_pod_counts_with_what_is_allocated(kubelet):
    spec = replace(SHARED, containers=(container("app", {"cpu": "4", "memory": "1Gi"}),))
    pods = {**kubelet.pods, "s": replace(kubelet.pods["s"], pod=spec)}

    observation = join(kubelet.sources(pods=pods), settled=False)

    assert observation.host.ledger.used == kubelet.host.ledger.used


def test_a_stale_entry_of_a_dead_pod_is_free(kubelet):
    kubelet.end("a")

    observation = join(kubelet.sources(), settled=False)

    assert observation.ended == ("a",)
    kubelet.host.release("a")
    same(observation.host.ledger, kubelet.host.ledger)


def test_a_finished_pod_is_free_though_older_kubelets_list_it(kubelet):
    pods = {**kubelet.pods, "a": replace(kubelet.pods["a"], stage=PodStage.ENDED, finished=True)}

    assert join(kubelet.sources(pods=pods), settled=False).ended == ("a",)


@pytest.mark.parametrize("stage", [PodStage.TERMINATING, PodStage.ENDED])
def test_a_terminating_pod_holds_its_resources_while_the_kubelet_lists_it(kubelet, stage):
    pods = {**kubelet.pods, "a": replace(kubelet.pods["a"], stage=stage)}

    assert join(kubelet.sources(pods=pods), settled=False).ended == ()
    unlisted = tuple(listed_pod for listed_pod in kubelet.listed if listed_pod.name != "a")
    assert join(kubelet.sources(pods=pods, listed=unlisted), settled=False).ended == ("a",)


def test_a_pod_created_again_under_the_same_name_is_another_pod(kubelet):
    kubelet.end("a")
    again = replace(pod("c", gpu="1", cpu="1"), name="a")
    stale = kubelet.files
    kubelet.run(again)
    both = replace(
        kubelet.files,
        cpu=replace(kubelet.files.cpu, entries={**kubelet.files.cpu.entries, "x": {"app": bits.of([3])}}),
    )
    assert stale.cpu != both.cpu

    observation = join(kubelet.sources(files=both, allocated={**kubelet.allocated, "x": kubelet.allocated["c"]}))

    assert observation.ended == ("x",)
    assert observation.host.ledger.pod_name("c") == "default/a"


def test_a_restarted_kubelet_that_lists_no_pods_yet_still_holds_everything(kubelet):
    observation = join(kubelet.sources(listed=()), settled=False)

    assert observation.host.ledger.alignment_key() == kubelet.host.ledger.alignment_key()
    assert observation.ended == ()
    assert "pod default/a is in the kubelet's files, but PodResources does not list it" in observation.contradictions


def test_devices_of_a_late_plugin_cannot_be_allocated_but_stay_held(kubelet):
    late = replace(kubelet.allocatable, devices=())

    observation = join(kubelet.sources(allocatable=late), settled=False)

    devices = observation.host.ledger.devices
    assert devices.held == kubelet.host.ledger.devices.held
    assert devices.free[GPU] == 0
    assert GPU in devices.handled
    assert observation.contradictions == (
        f"the device plugin of {GPU} has stopped, or has not registered with this kubelet yet",
    )
    assert not observation.host.decide(pod("d", gpu="1", cpu="1")).admitted


def test_a_plugin_that_registers_late_needs_no_restart_of_the_observer(kubelet):
    kubelet.host.update_devices("example.com/fpga", [Device("example.com/fpga", "f0", nodes=2)])
    before = replace(kubelet.files, devices=replace(kubelet.files.devices, registered={GPU: ("gpu-0", "gpu-1")}))

    observation = join(kubelet.sources(files=before), settled=False)

    assert observation.host.ledger.devices.free_on("example.com/fpga") == {1: 1}


def test_one_device_that_is_not_listed_is_unhealthy_and_reported(kubelet):
    one_left = replace(
        kubelet.allocatable,
        devices=tuple(listed_pod for listed_pod in kubelet.allocatable.devices if listed_pod.nodes == 1),
    )

    observation = join(kubelet.sources(allocatable=one_left), settled=False)

    assert observation.host.ledger.devices.free[GPU] == 0
    assert observation.contradictions == (
        f"devices gpu-1 of {GPU} are registered, but PodResources does not list them",
    )


def test_a_cpu_between_two_writes_is_unsettled_and_reported_as_nobodys_if_it_stays(kubelet):
    """The CPUs of a new pod are taken out of the pool, but its entry is not written yet."""
    cpu = kubelet.files.cpu
    between = replace(kubelet.files, cpu=replace(cpu, default=cpu.default & ~bits.of([3])))
    sources = kubelet.sources(files=between)

    with pytest.raises(UnsettledError, match=r"available CPUs \"0-7\" doesn't match with CPUs in state \"0-2,4-7\""):
        join(sources, settled=False)
    observation = join(sources)

    assert observation.host.ledger.cpus.lost == bits.of([3])
    assert not observation.host.ledger.cpus.shared & bits.of([3])
    assert any("a kubelet would not start with it" in gap for gap in observation.gaps)


def test_memory_between_two_writes_is_unsettled(kubelet):
    before = ObservedKubelet()
    before.run(pod("a", gpu="1"))
    entries = before.host.ledger.memory.held
    files = replace(kubelet.files, memory=replace(kubelet.files.memory, entries=entries))

    with pytest.raises(UnsettledError, match="the expected machine state is different from the real one"):
        join(kubelet.sources(files=files), settled=False)
    assert join(kubelet.sources(files=files)).host.ledger.memory.nodes == kubelet.host.ledger.memory.nodes


def test_a_pod_in_the_middle_of_its_admission_is_unsettled(kubelet):
    allocated = {uid: allocated_pod for uid, allocated_pod in kubelet.allocated.items() if uid != "b"}

    with pytest.raises(UnsettledError, match="pod default/b is being admitted"):
        join(kubelet.sources(allocated=allocated), settled=False)


def test_a_pod_that_is_listed_before_it_is_in_the_files_is_unsettled(kubelet):
    before = ObservedKubelet()
    before.run(pod("a", gpu="1"))

    with pytest.raises(UnsettledError, match="pod default/b is not in the state files yet"):
        join(kubelet.sources(files=before.files, allocated=before.allocated), settled=False)


def test_a_rejected_pod_that_left_entries_is_free(kubelet):
    pods = {**kubelet.pods, "b": replace(kubelet.pods["b"], stage=PodStage.ENDED, finished=True)}
    allocated = {uid: allocated_pod for uid, allocated_pod in kubelet.allocated.items() if uid != "b"}
    listed = tuple(listed_pod for listed_pod in kubelet.listed if listed_pod.name != "b")

    observation = join(kubelet.sources(pods=pods, allocated=allocated, listed=listed), settled=False)

    assert observation.ended == ("b",)


def test_other_cpus_in_podresources_than_in_the_file_are_reported(kubelet):
    listed = tuple(
        replace(listed_pod, containers={"app": replace(listed_pod.containers["app"], cpus=bits.of([7]))})
        if listed_pod.name == "a"
        else listed_pod
        for listed_pod in kubelet.listed
    )

    observation = join(kubelet.sources(listed=listed), settled=False)

    assert observation.contradictions == ("pod default/a container app holds CPUs 7, but 1-2 in the state file",)


@pytest.fixture
def pooled():
    """A kubelet with a pod that holds CPUs as a whole, and what PodResources lists of it: only exclusive ones."""
    kubelet = ObservedKubelet(featureGates={"PodLevelResourceManagers": True}, topologyManagerScope="pod")
    requests = amounts({"cpu": "3", "memory": "3Gi"})
    containers = (guaranteed("a", {"cpu": "2", "memory": "1Gi"}), Container("b"), Container("c"))
    kubelet.run(Pod(name="p", uid="p", containers=containers, resources=Resources(requests, requests)))
    (listed,) = kubelet.listed
    ledger = kubelet.host.ledger
    return kubelet, replace(
        listed,
        containers={**listed.containers, "b": ListedResources(), "c": ListedResources()},
        cpus=ledger.cpus.pod_held["p"],
        memory=ledger.memory.pod_held["p"],
    )


@pytest.mark.parametrize("api_server", [True, False])
def test_containers_that_share_cpus_of_their_pod_are_listed_without_any(pooled, api_server):
    kubelet, listed = pooled
    pods = kubelet.pods if api_server else None

    observation = join(kubelet.sources(listed=(listed,), pods=pods), settled=False)

    assert observation.contradictions == ()
    assert observation.host.ledger.pod_name("p") == "default/p"
    assert observation.host.ledger.cpus.pod_held == kubelet.host.ledger.cpus.pod_held


def test_other_cpus_of_a_pod_as_a_whole_are_reported(pooled):
    kubelet, listed = pooled

    observation = join(kubelet.sources(listed=(replace(listed, cpus=bits.of([1])),)), settled=False)

    assert "pod default/p container b holds CPUs none, but 3 in the state file" in observation.contradictions


def test_a_changed_configuration_that_the_kubelet_does_not_run_with_is_reported(kubelet):
    changed = configuration.read(kubelet.text.replace(b'"systemReserved":{"cpu":"1"', b'"systemReserved":{"cpu":"2"'))

    observation = join(kubelet.sources(configuration=changed))

    assert (
        "the kubelet allocates CPUs 1-7, but by its configuration it would allocate 2-7" in observation.contradictions
    )


def test_a_state_file_of_another_policy_is_an_error(kubelet):
    other = configuration.read(kubelet.text.replace(b'"cpuManagerPolicy":"static"', b'"cpuManagerPolicy":"none"'))

    with pytest.raises(StateError, match='configured policy "none" differs from state checkpoint policy "static"'):
        join(kubelet.sources(configuration=other))


@pytest.mark.parametrize(
    ("shape", "why"),
    [
        ("pack:2 numa:1 core:3 pu:1", "cpu_manager_state has CPUs 6-7, which this machine does not have"),
        ("pack:4 numa:1 core:2 pu:1", "memory_manager_state has NUMA nodes 0-1, but this machine has 0-3"),
        ("pack:2 numa:1(memory=8GiB) core:4 pu:1", "has 17179869184 bytes on NUMA node 0, but this"),
    ],
)
def test_files_of_another_machine_are_an_error(kubelet, shape, why):
    with pytest.raises(ForeignFilesError, match=why):
        join(kubelet.sources(machine=parse(shape, memory=16 << 30)))


def test_a_damaged_file_is_an_error_and_not_filled_in(kubelet):
    files = KubeletFiles(problems=(Problem("x", "checkpoint is corrupted"),))

    with pytest.raises(StateError, match="checkpoint is corrupted"):
        join(kubelet.sources(files=files), settled=False)


def test_a_container_that_the_pod_does_not_have_is_an_error(kubelet):
    other = replace(kubelet.pods["a"], pod=replace(kubelet.pods["a"].pod, containers=(Container("x"),)))

    with pytest.raises(StateError, match="pod a has no container app"):
        join(kubelet.sources(pods={**kubelet.pods, "a": other}))


def test_the_first_pod_of_a_kubelet_counts_after_its_admission():
    """Before, ``allocated_pods_state`` does not exist, and the kubelet lists the pod with nothing."""
    kubelet = ObservedKubelet()
    idle = kubelet.files
    kubelet.run(pod("a", gpu="1"))
    bound = {"a": replace(kubelet.pods["a"], reported=False)}
    nothing = tuple(replace(listed_pod, containers={}) for listed_pod in kubelet.listed)

    with pytest.raises(AdmittingError, match="pod default/a is being admitted"):
        join(kubelet.sources(files=idle, allocated=None, listed=nothing, pods=bound), settled=False)

    observation = join(kubelet.sources(allocated=None, pods=bound), settled=False)
    assert observation.host.ledger.devices.held == kubelet.host.ledger.devices.held


def test_an_older_kubelet_without_allocated_pods_counts_the_pods_that_it_lists():
    kubelet = ObservedKubelet()
    for listed_pod in (pod("a", gpu="1"), pod("b", cpu="1")):
        kubelet.run(listed_pod)
    bound = KnownPod(pod=Pod(name="web", uid="u", containers=()), stage=PodStage.RUNNING, finished=False)

    observation = join(kubelet.sources(allocated=None, pods={**kubelet.pods, "u": bound}), settled=False)

    assert list(observation.host.ledger.pods) == ["a", "b"]
    assert observation.host.ledger.used == kubelet.host.ledger.used


def test_a_pod_of_which_only_the_holdings_are_known_counts_with_them():
    kubelet = ObservedKubelet()
    kubelet.run(pod("a", gpu="1"))

    observation = join(kubelet.sources(allocated=None, pods=None), settled=False)

    assert observation.host.ledger.pod_name("a") == "default/a"
    assert observation.host.ledger.used == kubelet.host.ledger.used
