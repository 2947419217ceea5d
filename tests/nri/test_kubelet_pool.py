"""The shared pool as the kubelet's files have it."""

import json

import pytest

from alignup.align import bits
from alignup.align.errors import FileError, StateError
from alignup.align.settings import FeatureGates
from alignup.kubernetes.kubelet_files.state_files import CPU_FILE, MEMORY_FILE, CpuState, dump_cpu_state
from alignup.nri.kubelet_pool import KubeletPoolReader
from tests.align.test_shared_pool import GIB, machine
from tests.nri.kubelet_node import STATIC_MEMORY, KubeletNode


@pytest.fixture
def reader(tmp_path):
    return KubeletPoolReader(tmp_path, machine())


def write(directory, state, **gates):
    (directory / CPU_FILE).write_bytes(dump_cpu_state(state, gates=FeatureGates(gates)))


def test_the_default_set_is_shared_and_its_offline_cpus_are_not(reader, tmp_path):
    write(tmp_path, CpuState(policy="static", default=bits.parse("0-2,6-9"), entries={"u": {"app": bits.parse("3-5")}}))
    pool = reader.read()

    assert bits.show(pool.shared.cpus) == "0-2,6-7"
    assert (pool.shares("u", "app"), pool.shares("u", "sidecar"), pool.shares("v", "app")) == (False, True, True)


def test_containers_of_a_pod_with_cpus_of_its_own_do_not_share(reader, tmp_path):
    state = CpuState(policy="static", default=0b11, pod_entries={"u": 0b1100})
    write(tmp_path, state, PodLevelResourceManagers=True)

    assert not reader.read().shares("u", "any")


@pytest.mark.parametrize("checksum", [0, None])
def test_files_of_older_kubelets_are_read(reader, tmp_path, checksum):
    document = {"policyName": "static", "defaultCpuSet": "0-5", "entries": {"u": {"app": "6-7"}}}
    (tmp_path / CPU_FILE).write_text(json.dumps(document if checksum is None else {**document, "checksum": checksum}))

    assert bits.show(reader.read().shared.cpus) == "0-5"


def test_with_policy_none_all_cpus_are_shared(reader, tmp_path):
    write(tmp_path, CpuState(policy="none"))

    assert bits.show(reader.read().shared.cpus) == "0-7"


def test_memory_that_the_kubelet_reserved_is_not_free_and_pins_its_container(tmp_path):
    node = KubeletNode.started(tmp_path, machine(), **STATIC_MEMORY)
    node.admit("t", "500m", "12Gi")
    node.admit("u", "500m", "10Gi")
    pool = KubeletPoolReader(tmp_path, node.kubelet.machine).read()

    assert pool.shared.node_memory == {0: 4 * GIB - (64 << 20), 1: 6 * GIB}
    assert pool.pinned == {"t": {"app": 0b01}, "u": {"app": 0b10}}


def test_the_same_files_give_the_same_pool(reader, tmp_path):
    write(tmp_path, CpuState(policy="static", default=0b1111))
    first = reader.read()
    assert reader.read() is first
    write(tmp_path, CpuState(policy="static", default=0b111))
    assert reader.read() is not first


def test_missing_and_damaged_files_are_errors_in_words(reader, tmp_path):
    with pytest.raises(FileError, match=r"cpu_manager_state: no such file; start the kubelet, or name its directory"):
        reader.read()
    write(tmp_path, CpuState(policy="static", default=0b1111))
    (tmp_path / MEMORY_FILE).write_text("{}x")
    with pytest.raises(StateError, match="memory_manager_state"):
        reader.read()
