import pytest

from alignup.kubernetes.podspec.types import DownwardApiFile, EnvVar, Permission, Volume, VolumeKind, VolumeMount
from tests.kubernetes.manifests.podspec import (
    EVERYTHING,
    NOTHING,
    container,
    holding,
    manifest,
    parse,
    problems_of,
    read,
    warnings_of,
)


def mounting(source, **mount):
    """A pod that mounts a volume of some kind."""
    return manifest(
        containers=[container(volumeMounts=[{"name": "v", "mountPath": "/v", **mount}])],
        volumes=[{"name": "v", **source}],
    )


def volume_of(source):
    (volume,) = read(mounting(source)).volumes
    return volume


def mount_of(**mount):
    (mounted,) = read(mounting({"emptyDir": {}}, **mount)).containers[0].mounts
    return mounted


@pytest.mark.parametrize(
    ("source", "facts"),
    [
        pytest.param({"emptyDir": {}}, {}, id="an empty directory"),
        pytest.param({}, {}, id="no kind"),
        pytest.param({"emptyDir": None}, {}, id="null"),
        pytest.param({"emptyDir": {"medium": "Memory"}}, {"medium": "Memory"}, id="in memory"),
        pytest.param({"emptyDir": {"medium": "HugePages"}}, {"medium": "HugePages"}, id="in huge pages"),
        pytest.param(
            {"emptyDir": {"medium": "HugePages-1Gi"}}, {"medium": "HugePages-1Gi"}, id="in huge pages of a size"
        ),
        pytest.param({"emptyDir": {"sizeLimit": "1.5Gi"}}, {"size_limit": 3 << 29}, id="with a limit"),
        pytest.param({"emptyDir": {"sizeLimit": 0}}, {}, id="a zero limit"),
    ],
)
def test_empty_directories(source, facts):
    assert volume_of(source) == Volume(name="v", kind=VolumeKind.EMPTY_DIR, **facts)


def test_a_host_path_requires_a_permission():
    document = mounting({"hostPath": {"path": "/data", "type": "DirectoryOrCreate"}})

    volume = Volume(name="v", kind=VolumeKind.HOST_PATH, path="/data", path_type="DirectoryOrCreate")
    assert read(document, frozenset({Permission.HOST_PATH})).volumes == (volume,)
    assert problems_of(document, NOTHING) == [
        ("spec.volumes[0].hostPath: a host path is not allowed; start the agent with --allow host-path to allow it")
    ]


NAME_FILE = {"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}
CPU_FILE = {
    "path": "of/cpu",
    "mode": 0o600,
    "resourceFieldRef": {"containerName": "app", "resource": "limits.cpu", "divisor": "1m"},
}
ITEMS = (
    DownwardApiFile(path="name", source=EnvVar("", field_path="metadata.name")),
    DownwardApiFile(
        path="of/cpu", source=EnvVar("", resource="limits.cpu", container_name="app", divisor="1m"), mode=0o600
    ),
)


def test_downward_api_files():
    written = {"downwardAPI": {"items": [NAME_FILE, CPU_FILE], "defaultMode": 0}}

    assert volume_of(written) == Volume(name="v", kind=VolumeKind.DOWNWARD, items=ITEMS, mode=0)


def test_a_projected_volume_of_downward_api_files():
    sources = [{"downwardAPI": {"items": [NAME_FILE]}}, {"downwardAPI": {"items": [CPU_FILE]}}]

    assert volume_of({"projected": {"sources": sources}}) == Volume(name="v", kind=VolumeKind.DOWNWARD, items=ITEMS)


def test_optional_sources_of_a_projected_volume_are_ignored():
    sources = [{"downwardAPI": {"items": [NAME_FILE]}}, {"configMap": {"name": "c", "optional": True}}]

    parsed = parse(mounting({"projected": {"sources": sources}}), NOTHING)

    assert parsed.spec.volumes == (Volume(name="v", kind=VolumeKind.DOWNWARD, items=ITEMS[:1]),)
    assert parsed.warnings == ("spec.volumes[0].projected.sources[1].configMap: ignored: there is no Kubernetes API",)


UNAVAILABLE = [
    pytest.param("configMap", {"name": "c"}, "ConfigMaps are not available: there is no Kubernetes API"),
    pytest.param("secret", {"secretName": "s"}, "Secrets are not available: there is no Kubernetes API"),
    pytest.param(
        "projected",
        {"sources": [{"serviceAccountToken": {"path": "token"}}]},
        "projected objects are not available: there is no Kubernetes API",
    ),
    pytest.param(
        "persistentVolumeClaim", {"claimName": "c"}, "persistent volumes are not available: there is no Kubernetes API"
    ),
    pytest.param("ephemeral", {}, "ephemeral volumes are not available: there is no Kubernetes API"),
    pytest.param("csi", {"driver": "d"}, "CSI volumes are not available: there is no Kubernetes API"),
    pytest.param("image", {"reference": "r"}, "image volumes are not supported"),
    pytest.param("nfs", {"server": "s"}, "remote volumes are not supported"),
]


@pytest.mark.parametrize(("kind", "source", "why"), UNAVAILABLE)
def test_unavailable_volumes_are_rejected(kind, source, why):
    assert problems_of(mounting({kind: source})) == [
        f"spec.volumes[0].{kind}: {why}; use emptyDir, or put the files on the host for hostPath"
    ]


@pytest.mark.parametrize(("kind", "source", "why"), UNAVAILABLE)
def test_unavailable_volumes_that_are_not_mounted_are_ignored(kind, source, why):
    parsed = parse(manifest(volumes=[{"name": "v", kind: source}]), NOTHING)

    assert parsed.spec.volumes == ()
    assert parsed.warnings == (f"spec.volumes[0].{kind}: {why}; ignored, as no container mounts the volume",)


@pytest.mark.parametrize("kind", ["configMap", "secret"])
def test_an_optional_volume_is_an_empty_directory(kind):
    parsed = parse(mounting({kind: {"optional": True}}), NOTHING)

    assert parsed.spec.volumes == (Volume(name="v", kind=VolumeKind.EMPTY_DIR),)
    assert parsed.spec.containers[0].mounts == (VolumeMount("v", "/v"),)
    assert [warning.rpartition("; ")[2] for warning in parsed.warnings] == ["the volume is an empty directory"]


@pytest.mark.parametrize(
    ("mount", "facts"),
    [
        pytest.param({}, {}, id="plain"),
        pytest.param({"readOnly": True}, {"read_only": True}, id="read only"),
        pytest.param({"subPath": "a/b"}, {"sub_path": "a/b"}, id="a sub-path"),
        pytest.param(
            {"subPathExpr": "$(A)/b"}, {"sub_path": "$(A)/b", "expand_sub_path": True}, id="a sub-path expression"
        ),
        pytest.param({"mountPropagation": "HostToContainer"}, {"propagation": "HostToContainer"}, id="propagation"),
        pytest.param({"recursiveReadOnly": "IfPossible"}, {}, id="recursively read only if possible"),
    ],
)
def test_mounts(mount, facts):
    assert mount_of(**mount) == VolumeMount("v", "/v", **facts)


def test_a_relative_mount_path_starts_at_the_root():
    assert mount_of(mountPath="data").path == "/data"


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        pytest.param(
            holding(volumeMounts=[{"name": "v", "mountPath": "/v"}]),
            'spec.containers[0].volumeMounts[0].name: Not found: "v": must be the name of one of spec.volumes',
            id="no such volume",
        ),
        pytest.param(
            mounting({}, mountPath=""),
            "spec.containers[0].volumeMounts[0].mountPath: Required value",
            id="no mount path",
        ),
        pytest.param(
            mounting({}, subPath="a/../b"),
            "spec.containers[0].volumeMounts[0].subPath: Invalid value: \"a/../b\": must not contain '..'",
            id="a sub-path out of the volume",
        ),
        pytest.param(
            mounting({}, subPathExpr="/a"),
            'spec.containers[0].volumeMounts[0].subPathExpr: Invalid value: "/a": must be a relative path',
            id="an absolute sub-path",
        ),
        pytest.param(
            mounting({}, subPath="a", subPathExpr="b"),
            "spec.containers[0].volumeMounts[0].subPathExpr: Invalid value: subPathExpr and subPath are mutually"
            " exclusive",
            id="two sub-paths",
        ),
        pytest.param(
            mounting({}, mountPropagation="Bidirectional"),
            "spec.containers[0].volumeMounts[0].mountPropagation: Forbidden: Bidirectional is available only to"
            " privileged containers",
            id="bidirectional propagation",
        ),
        pytest.param(
            mounting({"emptyDir": {"medium": "HugePages-much"}}),
            'spec.volumes[0].emptyDir.medium: Unsupported value: "HugePages-much": supported values: "", "Memory",'
            ' "HugePages", "HugePages-SIZE"',
            id="an invalid huge page size",
        ),
        pytest.param(
            mounting({"emptyDir": {"sizeLimit": "-1"}}),
            'spec.volumes[0].emptyDir.sizeLimit: Invalid value: "-1": must be greater than or equal to 0',
            id="a negative limit",
        ),
        pytest.param(
            mounting({"emptyDir": {}, "hostPath": {"path": "/a"}}),
            "spec.volumes[0].hostPath: Forbidden: may not specify more than 1 volume type: emptyDir is set too",
            id="two kinds",
        ),
        pytest.param(
            mounting({"hostPath": {"path": "/a/../b"}}),
            "spec.volumes[0].hostPath.path: Invalid value: \"/a/../b\": must not contain '..'",
            id="a host path with ..",
        ),
        pytest.param(
            mounting({"hostPath": {"path": "a"}}),
            'spec.volumes[0].hostPath.path: Invalid value: "a": must be an absolute path',
            id="a relative host path",
        ),
        pytest.param(
            mounting({"hostPath": {"path": "/a", "type": "Link"}}),
            'spec.volumes[0].hostPath.type: Unsupported value: "Link": supported values: "DirectoryOrCreate",'
            ' "Directory", "FileOrCreate", "File", "Socket", "CharDevice", "BlockDevice"',
            id="an invalid host path type",
        ),
        pytest.param(
            mounting({"downwardAPI": {"items": [{"path": "a"}]}}),
            "spec.volumes[0].downwardAPI.items[0]: Required value: one of fieldRef and resourceFieldRef is required",
            id="a file without a source",
        ),
        pytest.param(
            mounting({"downwardAPI": {"items": [{"path": "a", "fieldRef": {"fieldPath": "status.podIP"}}]}}),
            'spec.volumes[0].downwardAPI.items[0].fieldRef.fieldPath: Unsupported value: "status.podIP": supported'
            ' values: "metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"',
            id="a field that files do not support",
        ),
        pytest.param(
            mounting({"downwardAPI": {"items": [NAME_FILE], "defaultMode": 0o1000}}),
            "spec.volumes[0].downwardAPI.defaultMode: Invalid value: 512: must be between 0 and 511, inclusive",
            id="an invalid mode",
        ),
        pytest.param(
            manifest(volumes=[{"name": "v"}, {"name": "v"}]),
            'spec.volumes[1].name: Duplicate value: "v"',
            id="a duplicate name",
        ),
    ],
)
def test_invalid_volumes_and_mounts(document, expected):
    assert problems_of(document) == [expected]


def test_mount_paths_must_be_unique():
    mount = {"name": "v", "mountPath": "/v"}

    assert problems_of(manifest(containers=[container(volumeMounts=[mount, mount])], volumes=[{"name": "v"}])) == [
        'spec.containers[0].volumeMounts[1].mountPath: Invalid value: "/v": must be unique'
    ]


def test_block_devices_are_rejected():
    document = manifest(
        containers=[container(volumeDevices=[{"name": "v", "devicePath": "/dev/x"}])],
        volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}],
    )

    assert [problem.partition(":")[0] for problem in problems_of(document)] == [
        "spec.volumes[0].persistentVolumeClaim",
        "spec.containers[0].volumeDevices[0]",
    ]


@pytest.mark.parametrize(
    ("mount", "expected"),
    [
        pytest.param({"recursiveReadOnly": "Enabled", "readOnly": True}, "mounts below it stay writable"),
        pytest.param({"bindMountOptions": ["noexec"]}, "the volume is mounted without these options"),
    ],
)
def test_unsupported_mount_options_are_reported(mount, expected):
    assert [warning.rpartition(": ")[2] for warning in warnings_of(mounting({}, **mount), EVERYTHING)] == [expected]
