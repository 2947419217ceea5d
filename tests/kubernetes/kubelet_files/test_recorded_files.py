"""State files of a real kubelet (``--recorded DIR``): written back byte for byte, with the same results at startup."""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import pytest

from alignup.align.errors import StateError
from alignup.align.host import Host
from alignup.align.settings import FeatureGates
from alignup.align.workload.validation import PodSource, accept
from alignup.kubernetes.kubelet_files import state_files
from alignup.kubernetes.kubelet_files.ledger import export_ledger, restore_ledger
from alignup.kubernetes.kubelet_files.state_files import DeviceState, KubeletFiles
from alignup.kubernetes.manifests.pod_decoder import read_pod
from tests.recorded.replay import HOST, load
from tests.recorded.setting import machine_of, release_of, settings_of

Document = Mapping[str, Any]
FOLDER = "/var/lib/kubelet"
NAMES = (state_files.CPU_FILE, state_files.MEMORY_FILE, state_files.DEVICE_FILE)


@pytest.fixture(scope="module")
def recordings(request) -> list[Document]:
    return [load(path) for path in sorted(request.config.getoption("--recorded").glob("*.json.gz"))]


def test_every_file_is_written_back_unchanged(recordings):
    """By itself, and by way of the host it makes: nothing is missing there but the names of pods.

    The order of devices is the kubelet's own, and no two times the same.
    """
    seen = 0
    for recording in recordings:
        host = Host(
            machine := machine_of(recording), settings_of(recording["kubelet_config"], machine, release_of(recording))
        )
        gates = host.settings.gates
        for shown in snapshots(recording):
            texts = {name: shown[name].encode() for name in NAMES}
            files = parsed(texts, host)
            restored = restore_ledger(host, files)
            again = export_ledger(Host(machine, host.settings, ledger=restored.ledger))

            assert written(files, gates) == texts
            assert {**written(again, gates), state_files.DEVICE_FILE: b""} == {**texts, state_files.DEVICE_FILE: b""}
            assert in_any_order(again.devices) == in_any_order(files.devices)
            assert len(restored.gaps) == bool(restored.unknown)
            seen += 1
    if not seen:
        pytest.skip("these recordings have no state files")


def in_any_order(state: DeviceState | None) -> Any:
    """Return held and healthy devices."""
    assert state
    held = {(entry.uid, entry.container, entry.resource): entry.nodes for entry in state.entries}
    return held, {resource: set(ids or ()) for resource, ids in state.registered.items()}


def snapshots(recording: Document) -> Iterator[Document]:
    """Yield the observations of the kubelet for which all three files exist."""
    for shown in (recording.get("initial", {}), *recording["steps"]):
        if all(shown.get(name) for name in NAMES):
            yield shown


def parsed(texts: Mapping[str, bytes], host: Host) -> KubeletFiles:
    settings = host.settings
    cpu, memory, devices = (f"{FOLDER}/{name}" for name in NAMES)
    return KubeletFiles(
        cpu=state_files.parse_cpu_state(
            texts[state_files.CPU_FILE], configured_policy=settings.cpus.policy, gates=settings.gates, path=cpu
        ),
        memory=state_files.parse_memory_state(
            texts[state_files.MEMORY_FILE], configured_policy=settings.memory_policy, gates=settings.gates, path=memory
        ),
        devices=state_files.parse_device_state(texts[state_files.DEVICE_FILE], path=devices),
    )


def written(files: KubeletFiles, gates: FeatureGates) -> dict[str, bytes]:
    assert files.cpu
    assert files.memory
    assert files.devices
    return {
        state_files.CPU_FILE: state_files.dump_cpu_state(files.cpu, gates=gates),
        state_files.MEMORY_FILE: state_files.dump_memory_state(files.memory, gates=gates),
        state_files.DEVICE_FILE: state_files.dump_device_state(files.devices),
    }


def test_another_configuration_is_accepted_or_rejected_as_recorded(recordings):
    """The files are from the previous configuration, on an idle machine."""
    for recording in recordings:
        machine = machine_of(recording)
        kept: dict[str, bytes] = {}
        for step in recording["steps"]:
            if step["op"] != "bad_config" or (step["verdict"] == "refused" and not step.get("keep_state")):
                continue
            host = Host(machine, settings_of(step["config"], machine, release_of(recording)))
            if not step.get("keep_state"):
                kept = written(export_ledger(host), host.settings.gates)
                continue
            try:
                restore_ledger(host, parsed(kept, host))
            except StateError as error:
                said = str(error).replace('"', '\\"')
                assert step["verdict"] == "refused", f"{step['name']}: {error}"
                assert any(f'manager error: {said}"' in line for line in step["log"]), f"{step['name']}: {error}"
            else:
                assert step["verdict"] == "started", f"{step['name']}: taken, recorded {step['log']}"


def test_the_next_pod_is_decided_as_recorded(recordings):
    """The files contain the holdings, and the manifests the pods."""
    judged = 0
    for recording in recordings:
        host = Host(
            machine := machine_of(recording), settings_of(recording["kubelet_config"], machine, release_of(recording))
        )
        manifests = {}
        for before, step in pairwise((recording.get("initial", {}), *recording["steps"])):
            if step["op"] != "pod":
                continue
            pod = accept(read_pod(step["manifest"]), source=PodSource.STATIC, host=HOST)
            manifests[pod.uid] = pod
            if step["verdict"] not in ("admitted", "rejected") or not all(before.get(name) for name in NAMES):
                continue
            texts = {name: before[name].encode() for name in NAMES}
            there = [
                manifests[running_pod["uid"]]
                for running_pod in before["pods"]
                if running_pod["status"]["phase"] == "Running"
            ]
            restored = restore_ledger(host, parsed(texts, host), there)
            now = Host(machine, host.settings, ledger=restored.ledger)
            for gone in restored.unknown:  # the kubelet takes back what they had when the next pod comes
                now.release(gone)
            decision = now.decide(pod)

            where = f"{recording['scenario']}, {pod.name}"
            assert decision.admitted == (step["verdict"] == "admitted"), where
            assert decision.rejection is None or decision.rejection.reason == step["reason"], where
            judged += 1
    assert judged or not recordings
