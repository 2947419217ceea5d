"""Volumes and who mounts them: what a host can give by itself is read, what only a cluster can give is refused.

What cannot be had does no harm as long as no container mounts it, or if it is optional: then a warning is enough. The
token by which a pod of a cluster speaks to its API server is left out, with its mounts: there is no such server.
"""

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from alignup.align.bits import quote
from alignup.align.workload import names
from alignup.kube.podspec.environment import read_env_source
from alignup.kube.podspec.object_reader import NO_API, ObjectReader
from alignup.kube.podspec.types import DownwardApiFile, Permission, Volume, VolumeKind, VolumeMount

_TOKEN = "kube-api-access-"  # noqa: S105 - how a cluster names the volume, no secret
_KEPT_ELSEWHERE = (
    "awsElasticBlockStore",
    "azureDisk",
    "azureFile",
    "cephfs",
    "cinder",
    "fc",
    "flexVolume",
    "flocker",
    "gcePersistentDisk",
    "gitRepo",
    "glusterfs",
    "iscsi",
    "nfs",
    "photonPersistentDisk",
    "portworxVolume",
    "quobyte",
    "rbd",
    "scaleIO",
    "storageos",
    "vsphereVolume",
)
#: Kinds of volumes a host cannot give by itself → why.
UNSUPPORTED_VOLUMES = {
    "configMap": f"is filled from a ConfigMap, and {NO_API}",
    "secret": f"is filled from a Secret, and {NO_API}",
    "projected": f"is filled from what a cluster keeps, and {NO_API}",
    "persistentVolumeClaim": f"is a persistent volume, and {NO_API}",
    "ephemeral": f"is made by a cluster, and {NO_API}",
    "csi": f"is made by a driver, and {NO_API}",
    "image": "is an image, and images are not mounted here",
    **dict.fromkeys(_KEPT_ELSEWHERE, "is kept elsewhere, and nothing is attached here"),
}
_KINDS = (*VolumeKind, *UNSUPPORTED_VOLUMES)
_MAY_BE_OPTIONAL = ("configMap", "secret", "clusterTrustBundle")
_SOURCES = ("downwardAPI", *_MAY_BE_OPTIONAL, "serviceAccountToken", "podCertificate")

_PATH_TYPES = ("DirectoryOrCreate", "Directory", "FileOrCreate", "File", "Socket", "CharDevice", "BlockDevice")
_PROPAGATIONS = ("None", "HostToContainer", "Bidirectional")
_PAGES = "HugePages-"
_MODES = 0o777


@dataclass(frozen=True, slots=True)
class PodVolumes:
    """The volumes of a pod."""

    kept: tuple[Volume, ...]
    names: frozenset[str]  #: of all, those too that are left out


def mounted_volume_names(containers: tuple[ObjectReader, ...]) -> frozenset[str]:
    """The names of volumes that some container asks for."""
    return frozenset(
        part.text("name")
        for container in containers
        for kind in ("volumeMounts", "volumeDevices")
        for part in container.parts(kind)
    )


def read_volumes(spec: ObjectReader, *, used: AbstractSet[str], everyone: AbstractSet[str]) -> PodVolumes:
    """The volumes of a pod with the containers *everyone*, which mount those *used*."""
    taken: set[str] = set()
    kept = []
    for part in spec.parts("volumes"):
        name = part.label("name", taken)
        found = [kind for kind in _KINDS if part.has(kind)]
        if len(found) > 1:
            part.bad(found[1], f"Forbidden: may not specify more than 1 volume type: {found[0]} is there too")
        elif volume := _volume(part, found[0] if found else "", name=name, used=name in used, everyone=everyone):
            kept.append(volume)
    return PodVolumes(tuple(kept), frozenset(taken))


def read_mounts(container: ObjectReader, volumes: PodVolumes) -> tuple[VolumeMount, ...]:
    """What *container* mounts, without what is left out."""
    for part in container.parts("volumeDevices"):
        part.bad("", f"asks for a block device of a persistent volume, and {NO_API}; use a device plugin or hostPath")
    kept = {volume.name for volume in volumes.kept}
    return tuple(mount for mount in _mounts(container, volumes.names) if mount.volume in kept)


def _volume(part: ObjectReader, kind: str, *, name: str, used: bool, everyone: AbstractSet[str]) -> Volume | None:
    """One volume; ``None`` if it is left out or refused. One of no kind is an empty directory, as Kubernetes has it."""
    match kind:
        case "" | "emptyDir":
            return _empty_dir(part.part("emptyDir"), name)
        case "hostPath":
            return _host_path(part.part("hostPath"), name)
        case "downwardAPI":
            source = part.part("downwardAPI")
            return _told(source, name, items=tuple(_items(source, everyone)))
        case "projected" if name.startswith(_TOKEN):
            part.warn("", f"the pod has no token for an API server, as {NO_API}")
            return None
        case "projected" if _projects(part.part("projected")):
            source = part.part("projected")
            inner = (each.part("downwardAPI") for each in source.parts("sources"))
            return _told(source, name, items=tuple(item for each in inner for item in _items(each, everyone)))
        case "configMap" | "secret" if part.part(kind).flag("optional"):
            part.warn(kind, f"{UNSUPPORTED_VOLUMES[kind]}: it is an empty directory")
            return Volume(name=name, kind=VolumeKind.EMPTY_DIR)
        case _ if not used:
            part.warn(kind, f"{UNSUPPORTED_VOLUMES[kind]}: it is left out, as no container mounts it")
        case _:
            part.bad(kind, f"{UNSUPPORTED_VOLUMES[kind]}; use emptyDir, or put the files on the host and use hostPath")
    return None


def _empty_dir(part: ObjectReader, name: str) -> Volume:
    medium = part.text("medium")
    pages = names.page_size(names.HUGEPAGES + medium.removeprefix(_PAGES)) if medium.startswith(_PAGES) else None
    if medium not in {"", "Memory", "HugePages"} and pages is None:
        supported = f'"", "Memory", "HugePages", "{_PAGES}SIZE"'
        part.bad("medium", f"Unsupported value: {quote(medium)}: supported values: {supported}")
    limit = part.amount("sizeLimit")
    if limit is not None and limit.sign < 0:
        part.bad("sizeLimit", f"Invalid value: {quote(str(limit))}: must be greater than or equal to 0")
    size_limit = limit.value() if limit is not None else 0
    return Volume(
        name=name, kind=VolumeKind.EMPTY_DIR, medium=medium, size_limit=size_limit if size_limit > 0 else None
    )


def _host_path(part: ObjectReader, name: str) -> Volume:
    part.ask(Permission.HOST_PATH, "", "asks for a path of the host")
    path = part.required("path")
    if path and not path.startswith("/"):
        part.bad("path", f"Invalid value: {quote(path)}: must be an absolute path")
    _without_steps_back(part, "path")
    return Volume(name=name, kind=VolumeKind.HOST_PATH, path=path, path_type=part.choice("type", _PATH_TYPES))


def _told(part: ObjectReader, name: str, *, items: tuple[DownwardApiFile, ...]) -> Volume:
    """A volume of files that tell of the pod."""
    mode = part.number("defaultMode", most=_MODES)
    return Volume(name=name, kind=VolumeKind.DOWNWARD, items=items, mode=0o644 if mode is None else mode)


def _items(part: ObjectReader, everyone: AbstractSet[str]) -> Iterator[DownwardApiFile]:
    for each in part.parts("items"):
        path = each.required("path")
        _relative(each, "path")
        if path.startswith(".."):
            each.bad("path", f"Invalid value: {quote(path)}: must not start with '..'")
        if each.has("fieldRef") and each.has("resourceFieldRef"):
            each.bad("", "Invalid value: fieldRef and resourceFieldRef can not be specified simultaneously")
        source = read_env_source(each, "", everyone=everyone, file=True)
        if source is None:
            each.bad("", "Required value: one of fieldRef and resourceFieldRef is required")
        else:
            yield DownwardApiFile(path=path, source=source, mode=each.number("mode", most=_MODES))


def _projects(part: ObjectReader) -> bool:
    """Whether a projected volume can be had: of things that tell of the pod alone, or with others that are optional."""
    missing = []
    for source in part.parts("sources"):
        for kind in _SOURCES[1:]:
            if source.has(kind):
                optional = kind in _MAY_BE_OPTIONAL and source.part(kind).flag("optional")
                missing.append((source, kind, optional))
    if not all(optional for _, _, optional in missing):
        return False
    for source, kind, _ in missing:
        source.warn(kind, f"its files are not there, as {NO_API}")
    return True


def _mounts(container: ObjectReader, known: AbstractSet[str]) -> Iterator[VolumeMount]:
    paths = set()
    for part in container.parts("volumeMounts"):
        volume, path = part.required("name"), part.required("mountPath")
        if volume and volume not in known:
            part.bad("name", f"Not found: {quote(volume)}: must be the name of one of spec.volumes")
        if path and path in paths:
            part.bad("mountPath", f"Invalid value: {quote(path)}: must be unique")
        paths.add(path)
        for name in ("subPath", "subPathExpr"):
            _relative(part, name)
        if part.has("subPath") and part.text("subPathExpr"):
            part.bad("subPathExpr", "Invalid value: subPathExpr and subPath are mutually exclusive")
        expression = part.text("subPathExpr")
        yield VolumeMount(
            volume=volume,
            path=path if path.startswith("/") else f"/{path}",  # as the kubelet takes it
            read_only=part.flag("readOnly"),
            sub_path=expression or part.text("subPath"),
            expand_sub_path=bool(expression),
            propagation=_propagation(part, container),
        )


def _propagation(part: ObjectReader, container: ObjectReader) -> str:
    found = part.choice("mountPropagation", _PROPAGATIONS, "None")
    if found == "Bidirectional" and not container.part("securityContext").flag("privileged"):
        part.bad("mountPropagation", "Forbidden: Bidirectional is available only to privileged containers")
    return found


def _relative(part: ObjectReader, name: str) -> None:
    """Note a path that leads out of a volume."""
    if part.text(name).startswith("/"):
        part.bad(name, f"Invalid value: {quote(part.text(name))}: must be a relative path")
    _without_steps_back(part, name)


def _without_steps_back(part: ObjectReader, name: str) -> None:
    if ".." in part.text(name).split("/"):
        part.bad(name, f"Invalid value: {quote(part.text(name))}: must not contain '..'")
