"""Reads volumes and mounts.

A volume that only a cluster can provide is a problem, or a warning if it is optional or no container mounts it. The API
server token of pods exported from a cluster is left out together with its mounts.
"""

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet

from alignup.align.bits import quote
from alignup.align.quantity import Quantity
from alignup.align.workload import names
from alignup.kubernetes.manifests.object_reader import ObjectReader
from alignup.kubernetes.podspec.environment import read_env_source
from alignup.kubernetes.podspec.types import DownwardApiFile, Permission, Volume, VolumeKind, VolumeMount

_TOKEN_PREFIX = "kube-api-access-"  # noqa: S105 - of a volume's name, not a secret
_REMOTE_VOLUMES = (
    "awsElasticBlockStore azureDisk azureFile cephfs cinder fc flexVolume flocker gcePersistentDisk gitRepo glusterfs"
    " iscsi nfs photonPersistentDisk portworxVolume quobyte rbd scaleIO storageos vsphereVolume"
)
_NO_API = "there is no Kubernetes API"
#: Kinds of volumes that a host without a cluster cannot provide → why.
UNSUPPORTED_VOLUMES = {
    "configMap": f"ConfigMaps are not available: {_NO_API}",
    "secret": f"Secrets are not available: {_NO_API}",
    "projected": f"projected objects are not available: {_NO_API}",
    "persistentVolumeClaim": f"persistent volumes are not available: {_NO_API}",
    "ephemeral": f"ephemeral volumes are not available: {_NO_API}",
    "csi": f"CSI volumes are not available: {_NO_API}",
    "image": "image volumes are not supported",
    **dict.fromkeys(_REMOTE_VOLUMES.split(), "remote volumes are not supported"),
}
_KINDS = (*VolumeKind, *UNSUPPORTED_VOLUMES)
_OPTIONAL_SOURCES = ("configMap", "secret", "clusterTrustBundle")
_UNAVAILABLE_SOURCES = (*_OPTIONAL_SOURCES, "serviceAccountToken", "podCertificate")

_PATH_TYPES = ("DirectoryOrCreate", "Directory", "FileOrCreate", "File", "Socket", "CharDevice", "BlockDevice")
_PROPAGATIONS = ("None", "HostToContainer", "Bidirectional")
_MAX_MODE = 0o777


def read_volumes(
    spec: ObjectReader, containers: Iterable[ObjectReader], container_names: AbstractSet[str]
) -> tuple[tuple[Volume, ...], AbstractSet[str]]:
    """The available volumes of a pod, and the names of all volumes."""
    used = {
        mount.text("name")
        for container in containers
        for kind in ("volumeMounts", "volumeDevices")
        for mount in container.children(kind)
    }
    taken: set[str] = set()
    available = []
    for volume in spec.children("volumes"):
        name = volume.label("name", taken)
        kinds = [kind for kind in _KINDS if volume.has(kind)]
        if len(kinds) > 1:
            volume.error(kinds[1], f"Forbidden: may not specify more than 1 volume type: {kinds[0]} is set too")
        elif read := _volume(volume, "".join(kinds), name=name, used=name in used, containers=container_names):
            available.append(read)
    return tuple(available), taken


def read_mounts(
    container: ObjectReader, volumes: Iterable[Volume], volume_names: AbstractSet[str]
) -> tuple[VolumeMount, ...]:
    """The mounts of *container* whose volume is available; *volume_names* are those of all volumes."""
    for device in container.children("volumeDevices"):
        device.error("", f"block devices are not available: {_NO_API}; use a device plugin or hostPath")
    available = {volume.name for volume in volumes}
    return tuple(mount for mount in _mounts(container, volume_names) if mount.volume in available)


def _volume(volume: ObjectReader, kind: str, *, name: str, used: bool, containers: AbstractSet[str]) -> Volume | None:
    """One volume; ``None`` if it is left out or a problem. Without a kind it is an ``emptyDir``, as in Kubernetes."""
    match kind:
        case "" | "emptyDir":
            return _empty_dir(volume.child("emptyDir"), name)
        case "hostPath":
            source = volume.child("hostPath")
            source.require(Permission.HOST_PATH, "", "a host path")
            path = source.required("path")
            if path and not path.startswith("/"):
                source.invalid("path", path, "must be an absolute path")
            _check_no_parent(source, "path")
            path_type = source.choice("type", _PATH_TYPES)
            return Volume(name=name, kind=VolumeKind.HOST_PATH, path=path, path_type=path_type)
        case "downwardAPI":
            source = volume.child("downwardAPI")
            return _downward_api(source, name, items=tuple(_items(source, containers)))
        case "projected" if name.startswith(_TOKEN_PREFIX):
            volume.warn("", f"ignored: the pod gets no API server token: {_NO_API}")
            return None
        case "projected" if _can_project(volume.child("projected")):
            source = volume.child("projected")
            inner = (each.child("downwardAPI") for each in source.children("sources"))
            items = tuple(item for each in inner for item in _items(each, containers))
            return _downward_api(source, name, items=items)
        case "configMap" | "secret" if volume.child(kind).flag("optional"):
            volume.warn(kind, f"{UNSUPPORTED_VOLUMES[kind]}; the volume is an empty directory")
            return Volume(name=name, kind=VolumeKind.EMPTY_DIR)
        case _ if not used:
            volume.warn(kind, f"{UNSUPPORTED_VOLUMES[kind]}; ignored, as no container mounts the volume")
        case _:
            volume.error(kind, f"{UNSUPPORTED_VOLUMES[kind]}; use emptyDir, or put the files on the host for hostPath")
    return None


def _empty_dir(source: ObjectReader, name: str) -> Volume:
    medium = source.text("medium")
    kind, _, size = medium.partition("-")
    pages = names.page_size(names.HUGEPAGES + size) if kind == "HugePages" and size else None
    if medium not in {"", "Memory", "HugePages"} and pages is None:
        source.unsupported("medium", medium, ["", "Memory", "HugePages", "HugePages-SIZE"])
    limit = source.quantity("sizeLimit") or Quantity.ZERO
    if limit.sign < 0:
        source.invalid("sizeLimit", str(limit), "must be greater than or equal to 0")
    return Volume(name=name, kind=VolumeKind.EMPTY_DIR, medium=medium, size_limit=max(limit.value(), 0) or None)


def _downward_api(source: ObjectReader, name: str, *, items: tuple[DownwardApiFile, ...]) -> Volume:
    mode = source.number("defaultMode", high=_MAX_MODE)
    return Volume(name=name, kind=VolumeKind.DOWNWARD, items=items, mode=0o644 if mode is None else mode)


def _items(source: ObjectReader, containers: AbstractSet[str]) -> Iterator[DownwardApiFile]:
    for item in source.children("items"):
        path = item.required("path")
        _check_relative(item, "path")
        if path.startswith(".."):
            item.invalid("path", path, "must not start with '..'")
        if item.has("fieldRef") and item.has("resourceFieldRef"):
            item.error("", "Invalid value: fieldRef and resourceFieldRef can not be specified simultaneously")
        value = read_env_source(item, "", containers=containers, file=True)
        if value is None:
            item.error("", "Required value: one of fieldRef and resourceFieldRef is required")
        else:
            yield DownwardApiFile(path=path, source=value, mode=item.number("mode", high=_MAX_MODE))


def _can_project(projected: ObjectReader) -> bool:
    """Whether every source of a projected volume is a ``downwardAPI`` or optional."""
    missing = [
        (source, kind) for source in projected.children("sources") for kind in _UNAVAILABLE_SOURCES if source.has(kind)
    ]
    if not all(kind in _OPTIONAL_SOURCES and source.child(kind).flag("optional") for source, kind in missing):
        return False
    for source, kind in missing:
        source.warn(kind, f"ignored: {_NO_API}")
    return True


def _mounts(container: ObjectReader, volumes: AbstractSet[str]) -> Iterator[VolumeMount]:
    paths = set()
    for mount in container.children("volumeMounts"):
        volume, path = mount.required("name"), mount.required("mountPath")
        if volume and volume not in volumes:
            mount.error("name", f"Not found: {quote(volume)}: must be the name of one of spec.volumes")
        if path and path in paths:
            mount.invalid("mountPath", path, "must be unique")
        paths.add(path)
        for name in ("subPath", "subPathExpr"):
            _check_relative(mount, name)
        expression = mount.text("subPathExpr")
        if mount.has("subPath") and expression:
            mount.error("subPathExpr", "Invalid value: subPathExpr and subPath are mutually exclusive")
        propagation = mount.choice("mountPropagation", _PROPAGATIONS, "None")
        if propagation == "Bidirectional" and not container.child("securityContext").flag("privileged"):
            mount.error("mountPropagation", "Forbidden: Bidirectional is available only to privileged containers")
        yield VolumeMount(
            volume=volume,
            path=path if path.startswith("/") else f"/{path}",  # as in the kubelet
            read_only=mount.flag("readOnly"),
            sub_path=expression or mount.text("subPath"),
            expand_sub_path=bool(expression),
            propagation=propagation,
        )


def _check_relative(owner: ObjectReader, name: str) -> None:
    if owner.text(name).startswith("/"):
        owner.invalid(name, owner.text(name), "must be a relative path")
    _check_no_parent(owner, name)


def _check_no_parent(owner: ObjectReader, name: str) -> None:
    if ".." in owner.text(name).split("/"):
        owner.invalid(name, owner.text(name), "must not contain '..'")
