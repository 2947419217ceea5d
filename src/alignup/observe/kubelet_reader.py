"""The sources of one host, read as a consistent snapshot.

The machine and the configuration are read rarely: at the start, in every full check, and when the kubelet restarts.
PodResources is asked what can be allocated when a device plugin may have changed, and every ten seconds if there are
changes: a plugin whose socket stays when it crashes changes no file, and the kubelet reports its devices to the API
server every ten seconds as well. The rest is read on every change. The kubelet may write while it is read, so the files
are read again until they are the same before and after PodResources has answered.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from alignup.align.errors import AlignError, FileError, PluginError
from alignup.align.machine import Machine
from alignup.align.settings import FeatureGates
from alignup.kubernetes.api.configz import read_configuration
from alignup.kubernetes.api.known_pods import KnownPod
from alignup.kubernetes.api.node_tables import KnownSlices
from alignup.kubernetes.configuration import Configuration, feature_gates
from alignup.kubernetes.kubelet_files import state_files
from alignup.kubernetes.kubelet_files.allocated_pods import ALLOCATED_PODS_FILE, AllocatedPods, read_allocated_pods
from alignup.kubernetes.kubelet_files.state_files import KnownFiles, KubeletFiles
from alignup.kubernetes.kubelet_files.sub_ids import SubIds, read_sub_ids
from alignup.kubernetes.plugins.pod_resources import ListedPod, ListedResources, PodResourcesClient
from alignup.machines import machine_source, plugin_addresses
from alignup.observe.observation import Sources

if TYPE_CHECKING:
    from alignup.observe.marker_steering import Markers

POD_RESOURCES = "pod-resources"
SOCKET = "kubelet.sock"
CONFIG_NAME = "config.yaml"
ALLOCATABLE_SECONDS = 10.0  #: how long the allocatable devices are cached, unless a change is seen
_ATTEMPTS = 4  #: to read files that do not change meanwhile
_CLAIM_FILE = "dra_manager_state"  #: written after claims have been prepared, which is after the admission

FileVersion = tuple[int, int, int] | None  #: inode, time and size; ``None``: there is no file


@dataclass(frozen=True, kw_only=True)
class KubeletPaths:
    """Where a kubelet keeps its files, and where the host's ``/sys`` and ``/proc`` are."""

    host_root: Path = Path("/")
    directory: Path = Path("/var/lib/kubelet")
    config_file: Path | None = None  #: ``None``: ``config.yaml`` in the directory
    config_dir: Path | None = None  #: of drop-in files
    etc: Path | None = None  #: the host's ``/etc``, for the IDs of user namespaces; ``None``: they stay unknown

    @cached_property
    def state_files(self) -> tuple[Path, ...]:
        names = (
            state_files.CPU_FILE,
            state_files.MEMORY_FILE,
            state_files.DEVICE_PATH,
            ALLOCATED_PODS_FILE,
            _CLAIM_FILE,
        )
        return tuple(self.directory / name for name in names)

    @cached_property
    def config(self) -> Path:
        return self.config_file or self.directory / CONFIG_NAME

    @cached_property
    def pod_resources(self) -> Path:
        return self.directory / POD_RESOURCES / SOCKET

    @cached_property
    def plugin_socket(self) -> Path:
        """Return the socket that the kubelet creates anew whenever it starts."""
        return self.directory / state_files.PLUGINS_DIR / SOCKET

    @cached_property
    def watched(self) -> tuple[Path, ...]:
        """Return the directories in which changes matter."""
        plugins, resources = self.plugin_socket.parent, self.pod_resources.parent
        config_dirs = (self.config_dir,) if self.config_dir else ()
        return tuple(dict.fromkeys((self.directory, plugins, resources, self.config.parent, *config_dirs)))

    def is_plugin_socket(self, path: Path) -> bool:
        """Return whether *path* can be the socket of a device plugin; the kubelet keeps its own files there, too."""
        kubelets = path == self.plugin_socket or path in self.state_files or path.name.startswith(".")
        return path.parent == self.plugin_socket.parent and not kubelets

    def concerns_kubelet(self, path: Path) -> bool:
        """Return whether a change of *path* means that the kubelet restarts, or has another configuration."""
        return path in self._of_kubelet or path.parent == self.config_dir

    @cached_property
    def _of_kubelet(self) -> frozenset[Path]:
        return frozenset((self.plugin_socket, self.pod_resources, self.config, *self.watched))


@dataclass(frozen=True, slots=True)
class _Known:
    """What changes rarely."""

    machine: Machine
    configuration: Configuration
    gaps: tuple[str, ...]  #: about the configuration
    sub_ids: SubIds
    addresses: Mapping[str, str]  #: see ``Sources``


Registered = Mapping[str, tuple[str, ...] | None] | None  #: the devices in the kubelet's file


@dataclass(frozen=True, slots=True)
class _Allocatable:
    """What PodResources said can be allocated."""

    resources: ListedResources
    registered: Registered
    at: float


class KubeletReader:
    """Reads the sources of one host; *pods* returns the pods of the API server, or ``None`` while they are unknown."""

    def __init__(  # noqa: PLR0913 - a source each
        self,
        paths: KubeletPaths,
        *,
        pod_resources: PodResourcesClient,
        pods: Callable[[], Mapping[str, KnownPod] | None] = lambda: None,
        slices: Callable[[], KnownSlices] = KnownSlices,
        configz: Callable[[], Awaitable[bytes]] | None = None,
        discover: Callable[[Path], Machine] = machine_source.discover,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.paths = paths
        self.markers: Markers | None = None  #: of this observer, which may be withdrawn for a moment
        self._pod_resources = pod_resources
        self._pods = pods
        self._slices = slices
        self._configz = configz
        self._discover = discover
        self._clock = clock
        self._rarely_changed: _Known | None = None
        self._allocatable: _Allocatable | None = None
        self._forgotten = 0  #: how often it was forgotten
        self._files: KnownFiles = {}

    def machine(self) -> tuple[Machine, Configuration] | None:
        """Return the machine and the configuration as last read."""
        return (
            None if self._rarely_changed is None else (self._rarely_changed.machine, self._rarely_changed.configuration)
        )

    async def refresh(self) -> None:
        """Read the machine and the configuration; ``AlignError`` if that is not possible."""
        self._files.clear()
        self.forget_allocatable()
        machine, paths = await asyncio.to_thread(self._discover, self.paths.host_root), self.paths
        addresses, address_gaps = await asyncio.to_thread(plugin_addresses.read_addresses, paths.host_root)
        uuids = {device.uuid: device.address for device in machine.pci if device.uuid}
        configuration, gaps = await read_configuration(paths.config, paths.config_dir, self._configz)
        self._rarely_changed = _Known(
            replace(machine, devices=()),
            configuration,
            (*gaps, *address_gaps),
            await asyncio.to_thread(read_sub_ids, paths.etc) if paths.etc else {},
            {**addresses, **uuids},
        )

    def forget_allocatable(self) -> None:
        """Ask for what can be allocated again: a device plugin may have come or gone."""
        self._allocatable = None
        self._forgotten += 1

    async def read(self) -> Sources:
        """Read everything else, and the machine and configuration if they have not been read."""
        while (parts := self._rarely_changed) is None:
            await self.refresh()
        gates = feature_gates.resolve(parts.configuration.feature_gates, parts.configuration.release)
        for _ in range(_ATTEMPTS):
            old_versions = self._versions()
            files, allocated_pods, file_gaps = self._read_files(gates)
            listed_pods, allocatable, gaps = None, None, [*parts.gaps, *file_gaps]
            try:
                listed_pods, allocatable = await self._read_pod_resources(
                    files.devices.registered if files.devices else None
                )
            except PluginError as error:
                gaps.append(f"PodResources does not answer: {error}")
            if old_versions == self._versions():
                break
        pods, socket = self._pods(), _version(self.paths.plugin_socket)
        if pods is None:
            gaps.append("the pods of the API server are unknown")
        slices, slice_gap = self._slices()
        if slice_gap:
            gaps.append(slice_gap)
        return Sources(
            machine=parts.machine,
            configuration=parts.configuration,
            sub_ids=parts.sub_ids,
            addresses=parts.addresses,
            files=files,
            allocated=allocated_pods,
            listed=listed_pods,
            allocatable=allocatable,
            pods=pods,
            slices=slices,
            kubelet=f"{socket[1]:x}" if socket else "",
            gaps=tuple(gaps),
        )

    async def _read_pod_resources(self, file_ids: Registered) -> tuple[tuple[ListedPod, ...], ListedResources]:
        """Return the pods, and what can be allocated, which changes with device plugins only."""
        if self.markers is not None:
            withdrawals = self.markers.withdrawals
            listed_pods, allocatable = await self._pod_resources.read()
            return listed_pods, self.markers.at_rest(allocatable, since=withdrawals)
        cache, now = self._allocatable, self._clock()
        if cache is not None and cache.registered == file_ids and now - cache.at < ALLOCATABLE_SECONDS:
            return await self._pod_resources.list(), cache.resources
        forgotten_count = self._forgotten
        listed_pods, allocatable = await self._pod_resources.read()
        # Devices that only the file has belong to a plugin that has stopped. It can come back without another file.
        expected_devices = {(resource, id_) for resource, ids in (file_ids or {}).items() for id_ in ids or ()}
        reported_devices = {(device.resource, device.id) for device in allocatable.devices}
        if forgotten_count == self._forgotten and reported_devices == expected_devices:
            self._allocatable = _Allocatable(allocatable, file_ids, now)
        return listed_pods, allocatable

    def _read_files(self, gates: FeatureGates) -> tuple[KubeletFiles, AllocatedPods | None, list[str]]:
        try:
            # The file of devices exists only once a device plugin has registered.
            files = state_files.read_state_files(
                self.paths.directory, gates=gates, devices_optional=True, cache=self._files
            )
        except FileError as error:
            if not self.paths.directory.is_dir():
                raise
            return KubeletFiles(), None, [str(error)]
        try:
            return files, read_allocated_pods(self.paths.directory, cache=self._files), []
        except AlignError as error:
            return files, None, [str(error)]

    def _versions(self) -> tuple[FileVersion, ...]:
        return tuple(map(_version, self.paths.state_files))


def _version(path: Path) -> FileVersion:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
