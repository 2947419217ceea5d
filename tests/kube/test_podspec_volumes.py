import pytest

from alignup.kube.podspec.types import DownwardApiFile, EnvVar, Permission, Volume, VolumeKind, VolumeMount
from tests.kube.podspec import EVERYTHING, NOTHING, container, holding, manifest, parse, problems_of, read, warnings_of


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
        pytest.param({}, {}, id="nothing said"),
        pytest.param({"emptyDir": None}, {}, id="null"),
        pytest.param({"emptyDir": {"medium": "Memory"}}, {"medium": "Memory"}, id="in memory"),
        pytest.param({"emptyDir": {"medium": "HugePages"}}, {"medium": "HugePages"}, id="in huge pages"),
        pytest.param({"emptyDir": {"medium": "HugePages-1Gi"}}, {"medium": "HugePages-1Gi"}, id="in those of a size"),
        pytest.param({"emptyDir": {"sizeLimit": "1.5Gi"}}, {"size_limit": 3 << 29}, id="with a limit"),
        pytest.param({"emptyDir": {"sizeLimit": 0}}, {}, id="with a limit that is none"),
    ],
)
def test_empty_directories(source, facts):
    assert volume_of(source) == Volume(name="v", kind=VolumeKind.EMPTY_DIR, **facts)


def test_a_path_of_the_host():
    document = mounting({"hostPath": {"path": "/data", "type": "DirectoryOrCreate"}})

    volume = Volume(name="v", kind=VolumeKind.HOST_PATH, path="/data", path_type="DirectoryOrCreate")
    assert read(document, frozenset({Permission.HOST_PATH})).volumes == (volume,)
    assert problems_of(document, NOTHING) == [
        (
            "spec.volumes[0].hostPath: asks for a path of the host, which is not allowed here;"
            " start the agent with --allow host-path"
        )
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


def test_files_that_tell_of_the_pod():
    written = {"downwardAPI": {"items": [NAME_FILE, CPU_FILE], "defaultMode": 0}}

    assert volume_of(written) == Volume(name="v", kind=VolumeKind.DOWNWARD, items=ITEMS, mode=0)


def test_a_projected_volume_of_files_that_tell_of_the_pod():
    sources = [{"downwardAPI": {"items": [NAME_FILE]}}, {"downwardAPI": {"items": [CPU_FILE]}}]

    assert volume_of({"projected": {"sources": sources}}) == Volume(name="v", kind=VolumeKind.DOWNWARD, items=ITEMS)


def test_an_optional_part_of_a_projected_volume_is_not_there():
    sources = [{"downwardAPI": {"items": [NAME_FILE]}}, {"configMap": {"name": "c", "optional": True}}]

    reading = parse(mounting({"projected": {"sources": sources}}), NOTHING)

    assert reading.spec.volumes == (Volume(name="v", kind=VolumeKind.DOWNWARD, items=ITEMS[:1]),)
    assert reading.warnings == (
        "spec.volumes[0].projected.sources[1].configMap: its files are not there, as there is no Kubernetes API here",
    )


NEEDY = [
    pytest.param("configMap", {"name": "c"}, "is filled from a ConfigMap, and there is no Kubernetes API here"),
    pytest.param("secret", {"secretName": "s"}, "is filled from a Secret, and there is no Kubernetes API here"),
    pytest.param(
        "projected",
        {"sources": [{"serviceAccountToken": {"path": "token"}}]},
        "is filled from what a cluster keeps, and there is no Kubernetes API here",
    ),
    pytest.param(
        "persistentVolumeClaim", {"claimName": "c"}, "is a persistent volume, and there is no Kubernetes API here"
    ),
    pytest.param("ephemeral", {}, "is made by a cluster, and there is no Kubernetes API here"),
    pytest.param("csi", {"driver": "d"}, "is made by a driver, and there is no Kubernetes API here"),
    pytest.param("image", {"reference": "r"}, "is an image, and images are not mounted here"),
    pytest.param("nfs", {"server": "s"}, "is kept elsewhere, and nothing is attached here"),
]


@pytest.mark.parametrize(("kind", "source", "why"), NEEDY)
def test_what_a_host_cannot_give_is_refused(kind, source, why):
    assert problems_of(mounting({kind: source})) == [
        f"spec.volumes[0].{kind}: {why}; use emptyDir, or put the files on the host and use hostPath"
    ]


@pytest.mark.parametrize(("kind", "source", "why"), NEEDY)
def test_what_a_host_cannot_give_and_nobody_mounts_is_left_out(kind, source, why):
    reading = parse(manifest(volumes=[{"name": "v", kind: source}]), NOTHING)

    assert reading.spec.volumes == ()
    assert reading.warnings == (f"spec.volumes[0].{kind}: {why}: it is left out, as no container mounts it",)


@pytest.mark.parametrize("kind", ["configMap", "secret"])
def test_what_is_optional_is_an_empty_directory(kind):
    reading = parse(mounting({kind: {"optional": True}}), NOTHING)

    assert reading.spec.volumes == (Volume(name="v", kind=VolumeKind.EMPTY_DIR),)
    assert reading.spec.containers[0].mounts == (VolumeMount("v", "/v"),)
    assert [warning.rpartition(": ")[2] for warning in reading.warnings] == ["it is an empty directory"]


@pytest.mark.parametrize(
    ("mount", "facts"),
    [
        pytest.param({}, {}, id="plain"),
        pytest.param({"readOnly": True}, {"read_only": True}, id="read only"),
        pytest.param({"subPath": "a/b"}, {"sub_path": "a/b"}, id="a part of it"),
        pytest.param({"subPathExpr": "$(A)/b"}, {"sub_path": "$(A)/b", "expand_sub_path": True}, id="a part that depends"),
        pytest.param(
            {"mountPropagation": "HostToContainer"}, {"propagation": "HostToContainer"}, id="what comes later"
        ),
        pytest.param({"recursiveReadOnly": "IfPossible"}, {}, id="read only below it if possible"),
    ],
)
def test_mounts(mount, facts):
    assert mount_of(**mount) == VolumeMount("v", "/v", **facts)


def test_a_mount_always_begins_at_the_root():
    """The kubelet takes it so."""
    assert mount_of(mountPath="data").path == "/data"


@pytest.mark.parametrize(
    ("document", "told"),
    [
        pytest.param(
            holding(volumeMounts=[{"name": "v", "mountPath": "/v"}]),
            'spec.containers[0].volumeMounts[0].name: Not found: "v": must be the name of one of spec.volumes',
            id="no such volume",
        ),
        pytest.param(
            mounting({}, mountPath=""), "spec.containers[0].volumeMounts[0].mountPath: Required value", id="nowhere"
        ),
        pytest.param(
            mounting({}, subPath="a/../b"),
            "spec.containers[0].volumeMounts[0].subPath: Invalid value: \"a/../b\": must not contain '..'",
            id="a way out of the volume",
        ),
        pytest.param(
            mounting({}, subPathExpr="/a"),
            'spec.containers[0].volumeMounts[0].subPathExpr: Invalid value: "/a": must be a relative path',
            id="a part from the root",
        ),
        pytest.param(
            mounting({}, subPath="a", subPathExpr="b"),
            "spec.containers[0].volumeMounts[0].subPathExpr: Invalid value: subPathExpr and subPath are mutually"
            " exclusive",
            id="two parts at once",
        ),
        pytest.param(
            mounting({}, mountPropagation="Bidirectional"),
            "spec.containers[0].volumeMounts[0].mountPropagation: Forbidden: Bidirectional is available only to"
            " privileged containers",
            id="mounts for the host",
        ),
        pytest.param(
            mounting({"emptyDir": {"medium": "HugePages-much"}}),
            'spec.volumes[0].emptyDir.medium: Unsupported value: "HugePages-much": supported values: "", "Memory",'
            ' "HugePages", "HugePages-SIZE"',
            id="pages of no size",
        ),
        pytest.param(
            mounting({"emptyDir": {"sizeLimit": "-1"}}),
            'spec.volumes[0].emptyDir.sizeLimit: Invalid value: "-1": must be greater than or equal to 0',
            id="less than nothing",
        ),
        pytest.param(
            mounting({"emptyDir": {}, "hostPath": {"path": "/a"}}),
            "spec.volumes[0].hostPath: Forbidden: may not specify more than 1 volume type: emptyDir is there too",
            id="two kinds at once",
        ),
        pytest.param(
            mounting({"hostPath": {"path": "/a/../b"}}),
            "spec.volumes[0].hostPath.path: Invalid value: \"/a/../b\": must not contain '..'",
            id="steps back on the host",
        ),
        pytest.param(
            mounting({"hostPath": {"path": "a"}}),
            'spec.volumes[0].hostPath.path: Invalid value: "a": must be an absolute path',
            id="a path from anywhere",
        ),
        pytest.param(
            mounting({"hostPath": {"path": "/a", "type": "Link"}}),
            'spec.volumes[0].hostPath.type: Unsupported value: "Link": supported values: "DirectoryOrCreate",'
            ' "Directory", "FileOrCreate", "File", "Socket", "CharDevice", "BlockDevice"',
            id="no kind of path",
        ),
        pytest.param(
            mounting({"downwardAPI": {"items": [{"path": "a"}]}}),
            "spec.volumes[0].downwardAPI.items[0]: Required value: one of fieldRef and resourceFieldRef is required",
            id="a file of nothing",
        ),
        pytest.param(
            mounting({"downwardAPI": {"items": [{"path": "a", "fieldRef": {"fieldPath": "status.podIP"}}]}}),
            'spec.volumes[0].downwardAPI.items[0].fieldRef.fieldPath: Unsupported value: "status.podIP": supported'
            ' values: "metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"',
            id="a file of what is only a variable",
        ),
        pytest.param(
            mounting({"downwardAPI": {"items": [NAME_FILE], "defaultMode": 0o1000}}),
            "spec.volumes[0].downwardAPI.defaultMode: Invalid value: 512: must be between 0 and 511, inclusive",
            id="no mode",
        ),
        pytest.param(
            manifest(volumes=[{"name": "v"}, {"name": "v"}]),
            'spec.volumes[1].name: Duplicate value: "v"',
            id="one name for two",
        ),
    ],
)
def test_what_is_wrong_with_volumes_is_told(document, told):
    assert problems_of(document) == [told]


def test_two_mounts_cannot_be_in_one_place():
    mount = {"name": "v", "mountPath": "/v"}

    assert problems_of(manifest(containers=[container(volumeMounts=[mount, mount])], volumes=[{"name": "v"}])) == [
        'spec.containers[0].volumeMounts[1].mountPath: Invalid value: "/v": must be unique'
    ]


def test_block_devices_are_refused():
    document = manifest(
        containers=[container(volumeDevices=[{"name": "v", "devicePath": "/dev/x"}])],
        volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}],
    )

    assert [problem.partition(":")[0] for problem in problems_of(document)] == [
        "spec.volumes[0].persistentVolumeClaim",
        "spec.containers[0].volumeDevices[0]",
    ]


@pytest.mark.parametrize(
    ("mount", "told"),
    [
        pytest.param({"recursiveReadOnly": "Enabled", "readOnly": True}, "what is mounted below it stays writable"),
        pytest.param({"bindMountOptions": ["noexec"]}, "it is mounted without these options"),
    ],
)
def test_what_mounts_do_not_do_is_told(mount, told):
    assert [warning.rpartition(": ")[2] for warning in warnings_of(mounting({}, **mount), EVERYTHING)] == [told]
