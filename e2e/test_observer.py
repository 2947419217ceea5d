"""The observer with a real API server: its objects are accepted, read back alike, and follow the kubelet's files."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from alignup.align.claims.resource_claims import DeviceId
from alignup.kubernetes.api import NODES, ApiClient, EventType, find_access
from alignup.kubernetes.api.claim_resources import RESOURCE_SLICES
from alignup.kubernetes.api.host_states import HOST_STATES, host_state_reader
from alignup.kubernetes.api.node_tables import SliceTable
from alignup.observe.app import ObserverMetrics
from alignup.observe.kubelet_reader import KubeletPaths, KubeletReader
from alignup.observe.observer import Observer, ObserverTiming, Publisher
from e2e import control_plane
from e2e.control_plane import STRANGER, ControlPlane
from e2e.definitions import define_host_states
from e2e.marks import needs
from tests.align.hosts import pod
from tests.observe.api_objects import resource_slice
from tests.observe.kubelets import ObservedKubelet, SimulatedPodResources

pytestmark = [needs(control_plane.missing()), pytest.mark.anyio]

STEPS = 5
SECONDS = 60.0  #: for what takes milliseconds


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path_factory.mktemp("plane")) as control:
        yield control


def reader_of(kubelet: ObservedKubelet, directory: Path, **more: Any) -> KubeletReader:  # noqa: ANN401 - of a reader
    """Return a reader of a kubelet whose files are in *directory*."""
    return KubeletReader(
        KubeletPaths(directory=directory),
        pod_resources=SimulatedPodResources(kubelet),
        pods=lambda: dict(kubelet.pods),
        discover=lambda _root: kubelet.machine,
        **more,
    )


async def test_a_host_state_follows_the_files_of_the_kubelet(plane: ControlPlane, tmp_path: Path) -> None:
    kubelet = ObservedKubelet()
    (tmp_path / "device-plugins").mkdir()
    (tmp_path / "config.yaml").write_bytes(kubelet.text)
    kubelet.write(tmp_path)
    reader = reader_of(kubelet, tmp_path)
    async with ApiClient(find_access(plane.kubeconfig(tmp_path / "kubeconfig"))) as client:
        await define_host_states(client)
        node = await client.create(NODES, {"metadata": {"name": "host-a"}})
        publisher = Publisher(client, "host-a", uid=node.metadata.uid)
        timing = ObserverTiming(interval=0.0)
        observer = Observer(reader, publisher, ObserverMetrics("host-a"), timing=timing)
        task = asyncio.ensure_future(observer.run())
        try:
            delays = [await _step(client, kubelet, tmp_path, number) for number in range(STEPS)]
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    print("seconds from the kubelet's last write to the watch event:", [round(delay, 3) for delay in delays])


async def test_slices_of_the_node_and_their_holders_are_published(plane: ControlPlane, tmp_path: Path) -> None:
    kubelet = ObservedKubelet()
    (tmp_path / "config.yaml").write_bytes(kubelet.text)
    kubelet.run(pod("a", cpu="1"))
    kubelet.claims["a"] = {"default/gpu": (DeviceId("gpu.example.com", "host-b", "gpu-1"),)}
    kubelet.write(tmp_path)
    async with ApiClient(find_access(plane.kubeconfig(tmp_path / "kubeconfig"))) as client:
        await define_host_states(client)
        slices = SliceTable(client, "host-b")
        reader = reader_of(kubelet, tmp_path, slices=slices.known)
        metrics, publisher = ObserverMetrics("host-b"), Publisher(client, "host-b", uid="")
        observer = Observer(reader, publisher, metrics, timing=ObserverTiming(interval=0.0))
        for host in ("host-b", "host-c"):
            await client.create(RESOURCE_SLICES, resource_slice(f"of-{host}", host, node=1, devices=2))
        async with asyncio.timeout(SECONDS), slices.following(observer.notify):
            await observer.check_once()
        state = await client.get(HOST_STATES.at("host-b"))
    claims = host_state_reader().read(state).ledger.claims

    assert claims is not None
    assert [(str(device.id), device.nodes) for device in claims.devices] == [
        (f"gpu.example.com/host-b/gpu-{number}", 2) for number in range(2)
    ]
    assert claims.claims_of("a") == kubelet.claims["a"]
    assert state.problems == []


async def test_an_observer_without_the_right_to_read_slices_says_so(plane: ControlPlane, tmp_path: Path) -> None:
    access = find_access(plane.kubeconfig(tmp_path / "kubeconfig", {"token": STRANGER}))
    async with ApiClient(access) as client, asyncio.timeout(SECONDS):
        slices = SliceTable(client, "host-b")
        async with slices.following(lambda: None):
            known, gap = slices.known()

    assert known is None
    assert gap.startswith("the ResourceSlices of this node cannot be read: ")
    assert "forbidden" in gap


async def _step(client: ApiClient, kubelet: ObservedKubelet, directory: Path, number: int) -> float:
    """Admit a pod, and wait for the object that has it; return how long that took."""
    listed = await client.list(HOST_STATES)
    async with asyncio.timeout(SECONDS), client.watch(HOST_STATES, resource_version=listed.resource_version) as events:
        kubelet.run(pod(f"pod-{number}", cpu="1"))
        kubelet.write(directory)
        started = time.monotonic()
        async for event in events:
            if event.type is EventType.BOOKMARK or event.object is None or event.object.ledger is None:
                continue
            report = host_state_reader().read(event.object)
            if len(report.ledger.pods) == number + 1:
                assert report.ledger.alignment_key() == kubelet.host.ledger.alignment_key()
                return time.monotonic() - started
    raise AssertionError("the watch ended")
