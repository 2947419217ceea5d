"""A kubelet's state directory: three files, some missing, some invalid."""

import pytest

from alignup.align.errors import FileError
from alignup.align.settings import FeatureGates
from alignup.kubernetes.kubelet_files import allocated_pods_file
from alignup.kubernetes.kubelet_files.cpu_file import CpuState
from alignup.kubernetes.kubelet_files.device_file import DeviceState
from alignup.kubernetes.kubelet_files.memory_file import MemoryState
from alignup.kubernetes.kubelet_files.state_dir import KubeletFiles, read_allocated_pods, read_dir, write_dir

GATES = FeatureGates()
CPU = CpuState(policy="static", default=0b11)
MEMORY = MemoryState(policy="Static")
DEVICES = DeviceState(registered={"example.com/gpu": ("gpu-0",)})


def test_a_written_directory_is_read(tmp_path):
    states = KubeletFiles(cpu=CPU, memory=MEMORY, devices=DEVICES)

    written = write_dir(tmp_path, states, gates=GATES)

    assert [str(path.relative_to(tmp_path)) for path in written] == [
        "cpu_manager_state",
        "memory_manager_state",
        "device-plugins/kubelet_internal_checkpoint",
    ]
    assert read_dir(tmp_path, gates=GATES) == states


def test_a_missing_file_is_a_gap(tmp_path):
    write_dir(tmp_path, KubeletFiles(memory=MEMORY), gates=GATES)

    found = read_dir(tmp_path, gates=GATES)

    assert (found.cpu, found.memory, found.devices, found.problems) == (None, MEMORY, None, ())
    assert found.gaps == (
        f"{tmp_path} has no cpu_manager_state, so the CPUs in use are unknown",
        f"{tmp_path} has no kubelet_internal_checkpoint, so the devices are unknown",
    )


def test_an_invalid_file_is_a_problem_and_the_others_are_read(tmp_path):
    write_dir(tmp_path, KubeletFiles(cpu=CPU, memory=MEMORY, devices=DEVICES), gates=GATES)
    (tmp_path / "cpu_manager_state").write_bytes(b"{")
    (tmp_path / "device-plugins" / "kubelet_internal_checkpoint").write_bytes(b"{}")

    found = read_dir(tmp_path, gates=GATES)

    assert (found.cpu, found.memory, found.devices, found.gaps) == (None, MEMORY, None, ())
    assert [problem.field for problem in found.problems] == [
        f"{tmp_path}/cpu_manager_state",
        f"{tmp_path}/device-plugins/kubelet_internal_checkpoint",
    ]
    assert "unexpected end of JSON input, please drain this node" in found.problems[0].what


def test_an_unreadable_file_is_a_problem(tmp_path):
    (tmp_path / "cpu_manager_state").mkdir()

    found = read_dir(tmp_path, gates=GATES)

    assert [problem.what for problem in found.problems] == [
        f"cannot read {tmp_path}/cpu_manager_state: it is not a regular file"
    ]


def test_the_device_file_may_be_beside_the_others(tmp_path):
    write_dir(tmp_path, KubeletFiles(devices=DEVICES), gates=GATES)
    (tmp_path / "device-plugins" / "kubelet_internal_checkpoint").rename(tmp_path / "kubelet_internal_checkpoint")

    assert read_dir(tmp_path, gates=GATES).devices == DEVICES


def test_policies_are_checked_if_they_are_given(tmp_path):
    write_dir(tmp_path, KubeletFiles(cpu=CPU, memory=MEMORY), gates=GATES)

    found = read_dir(tmp_path, gates=GATES, cpu_policy="none", memory_policy="None")

    assert (found.cpu, found.memory) == (None, None)
    assert ['configured policy "' in problem.what for problem in found.problems] == [True, True]


@pytest.mark.parametrize("folder", ["", "nowhere"], ids=["an empty directory", "no directory"])
def test_a_directory_without_state_files_is_an_error(tmp_path, folder):
    with pytest.raises(FileError):
        read_dir(tmp_path / folder, gates=GATES)


def test_allocated_pods_are_read_if_the_kubelet_writes_them(tmp_path):
    assert read_allocated_pods(tmp_path) is None
    pods = {"u": allocated_pods_file.AllocatedPod()}
    (tmp_path / allocated_pods_file.NAME).write_bytes(allocated_pods_file.dump(pods))

    assert read_allocated_pods(tmp_path) == pods
