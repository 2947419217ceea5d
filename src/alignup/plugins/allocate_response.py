"""What a device plugin gives a container along with its devices: environment, mounts, device nodes and more.

It is kept with the container's placement, so that a container that starts again while the plugin is away gets the same.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from alignup.align.errors import StateError
from alignup.wire import device_plugin_pb2 as wire

_LOG = logging.getLogger(__name__)
_FIELDS = {"envs", "mounts", "devices", "annotations", "cdi"}

_Fact = TypeVar("_Fact")


@dataclass(frozen=True, slots=True)
class MountSpec:
    """A path of the host that a container sees."""

    container_path: str
    host_path: str
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """A device of the host that a container may use; ``permissions`` are of r, w and m."""

    container_path: str
    host_path: str
    permissions: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocateResponse:
    """All of it for one container."""

    envs: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[MountSpec, ...] = ()
    devices: tuple[DeviceSpec, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    cdi: tuple[str, ...] = ()  #: names of CDI devices

    @classmethod
    def from_message(cls, told: wire.ContainerAllocateResponse) -> "AllocateResponse":
        """As a plugin said it."""
        return cls(
            envs=dict(sorted(told.envs.items())),
            mounts=tuple(MountSpec(one.container_path, one.host_path, one.read_only) for one in told.mounts),
            devices=tuple(DeviceSpec(one.container_path, one.host_path, one.permissions) for one in told.devices),
            annotations=dict(sorted(told.annotations.items())),
            cdi=tuple(one.name for one in told.cdi_devices),
        )

    def message(self) -> wire.ContainerAllocateResponse:
        """As a plugin would say it; its bytes are what the kubelet's checkpoint has under ``AllocResp``."""
        return wire.ContainerAllocateResponse(
            envs=self.envs,
            mounts=[wire.Mount(**asdict(one)) for one in self.mounts],
            devices=[wire.DeviceSpec(**asdict(one)) for one in self.devices],
            annotations=self.annotations,
            cdi_devices=[wire.CDIDevice(name=name) for name in self.cdi],
        )

    @classmethod
    def from_document(cls, document: object) -> "AllocateResponse":
        """What ``document`` wrote; ``StateError`` when it did not."""
        told = document if isinstance(document, dict) else {}
        if told.keys() != _FIELDS:
            raise StateError(f"this is not what a device plugin gave: it has to have {', '.join(sorted(_FIELDS))}")
        try:
            grant = cls(
                envs=dict(told["envs"]),
                mounts=tuple(MountSpec(**one) for one in told["mounts"]),
                devices=tuple(DeviceSpec(**one) for one in told["devices"]),
                annotations=dict(told["annotations"]),
                cdi=tuple(told["cdi"]),
            )
            same = cls.from_message(grant.message()) == grant  # a message takes only what is of the right kind
        except (TypeError, ValueError) as error:
            raise StateError(f"this is not what a device plugin gave: {error}") from error
        if not same:
            raise StateError("this is not what a device plugin gave: something in it is empty")
        return grant

    def document(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "envs": dict(self.envs),
            "mounts": [asdict(one) for one in self.mounts],
            "devices": [asdict(one) for one in self.devices],
            "annotations": dict(self.annotations),
            "cdi": list(self.cdi),
        }


def merge_responses(grants: Mapping[str, AllocateResponse]) -> AllocateResponse:
    """What a container gets of several resources together: where two say different things, the first one counts.

    Resources are taken by name, so that the same container gets the same every time; the kubelet takes them in any
    order. What is lost is only told in the log.
    """
    ordered = [grants[resource] for resource in sorted(grants)]
    return AllocateResponse(
        envs=_first("environment variable", (item for grant in ordered for item in grant.envs.items())),
        mounts=tuple(
            _first("mount", ((one.container_path, one) for grant in ordered for one in grant.mounts)).values()
        ),
        devices=tuple(
            _first("device node", ((one.container_path, one) for grant in ordered for one in grant.devices)).values()
        ),
        annotations=_first("annotation", (item for grant in ordered for item in grant.annotations.items())),
        cdi=tuple(dict.fromkeys(name for grant in ordered for name in grant.cdi)),
    )


def _first(kind: str, items: Iterable[tuple[str, _Fact]]) -> dict[str, _Fact]:
    """Key → the first that has it."""
    found: dict[str, _Fact] = {}
    for key, fact in items:
        if found.setdefault(key, fact) != fact:
            _LOG.warning("device plugins disagree about %s %s: %s counts, not %s", kind, key, found[key], fact)
    return found
