"""The state file of the device manager: read, hashed and written as the kubelet does."""

from alignup.kubernetes.kubelet_files import state_files
from alignup.kubernetes.kubelet_files.state_files import fnv1a
from tests.conformance.harness import Case, run


def test_state_files_of_devices_are_read_and_written_as_the_kubelet_does(request):
    run(request, "device_checkpoint", check)


def check(case: Case) -> None:
    state = state_files.parse_device_state(case["file"].encode(), path="kubelet_internal_checkpoint")

    assert state_files.device_checksum_text(state_files.device_contents(state)) == case["hashed_text"]
    assert fnv1a(case["hashed_text"]) == case["checksum"]
    assert state_files.dump_device_state(state).decode() == case["file"]
