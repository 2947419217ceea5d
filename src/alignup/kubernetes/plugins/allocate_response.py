"""What a device plugin's Allocate returns for a container: environment, mounts, device nodes, annotations, CDI names.

The response is stored with the container's placement, so that a container that restarts while the plugin is down gets
the same settings.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from google.protobuf.message import DecodeError

from alignup.align.errors import ParseError, StateError
from alignup.documents import codec
from alignup.wire import device_plugin_pb2 as wire

_FIELDS = {"envs", "mounts", "devices", "annotations", "cdi"}
_INVALID = "not a stored device plugin response"


@dataclass(frozen=True, slots=True)
class MountSpec:
    container_path: str
    host_path: str
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """A host device to make available in a container; ``permissions`` combine r, w and m."""

    container_path: str
    host_path: str
    permissions: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocateResponse:
    envs: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[MountSpec, ...] = ()
    devices: tuple[DeviceSpec, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    cdi: tuple[str, ...] = ()  #: names of CDI devices

    @classmethod
    def from_message(cls, message: wire.ContainerAllocateResponse) -> Self:
        return cls(
            envs=dict(sorted(message.envs.items())),
            mounts=tuple(MountSpec(mount.container_path, mount.host_path, mount.read_only) for mount in message.mounts),
            devices=tuple(
                DeviceSpec(node.container_path, node.host_path, node.permissions) for node in message.devices
            ),
            annotations=dict(sorted(message.annotations.items())),
            cdi=tuple(device.name for device in message.cdi_devices),
        )

    def to_message(self) -> wire.ContainerAllocateResponse:
        """Return the protobuf message; its bytes are ``AllocResp`` in the kubelet's checkpoint."""
        return wire.ContainerAllocateResponse(
            envs=self.envs,
            mounts=[wire.Mount(**asdict(mount)) for mount in self.mounts],
            devices=[wire.DeviceSpec(**asdict(device)) for device in self.devices],
            annotations=self.annotations,
            cdi_devices=[wire.CDIDevice(name=name) for name in self.cdi],
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read ``AllocResp`` of the kubelet's checkpoint; raise ``StateError`` if the bytes are no response."""
        try:
            return cls.from_message(wire.ContainerAllocateResponse.FromString(data))
        except DecodeError as error:
            raise StateError(str(error)) from error

    @classmethod
    def from_document(cls, document: object) -> Self:
        """Read the output of :meth:`to_document`; raise ``StateError`` if it is anything else."""
        if not isinstance(document, dict) or document.keys() != _FIELDS:
            raise StateError(f"{_INVALID}: it must have exactly the keys {', '.join(sorted(_FIELDS))}")
        try:
            return codec.convert(document, cls)
        except ParseError as error:
            raise StateError(f"{_INVALID}: {error}") from error

    def to_document(self) -> dict[str, Any]:
        document: dict[str, Any] = codec.load(codec.encode(self))  # with lists, as it is read back
        return document
