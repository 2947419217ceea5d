"""The state file of the device manager: read, hashed and written as the kubelet does."""

from alignup.kubernetes.kubelet_files import device_file
from alignup.kubernetes.kubelet_files.checkpoint import fnv1a
from tests.conformance.harness import Case, run


def test_state_files_of_devices_are_read_and_written_as_the_kubelet_does(request):
    run(request, "device_checkpoint", check)


def check(case: Case) -> None:
    state = device_file.parse(case["file"].encode(), path="kubelet_internal_checkpoint")

    assert device_file.checksum_text(device_file.contents(state)) == case["hashed_text"]
    assert fnv1a(case["hashed_text"]) == case["checksum"]
    assert device_file.dump(state).decode() == case["file"]
