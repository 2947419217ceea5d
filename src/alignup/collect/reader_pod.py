"""The reader: a pod that prints the topology of its node and the state files of its kubelet, and ends.

It has no privileges, capabilities or service account. It runs as root, since only root may read the state files, and
mounts the kubelet's directory read-only, without the volumes and secrets of pods. Its output is its log, so that
reading it needs no permission to execute commands in pods. The sysfs of every container is that of its node.
"""

import base64
import binascii
import gzip
import io
import secrets
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

from alignup.align.errors import OWN_LIMIT, AlignError, SourceError, StateError
from alignup.collect.collection import READER_PARTS, Part
from alignup.kubernetes.api import ApiClient, Resource
from alignup.kubernetes.api.errors import ApiError, NotFoundError
from alignup.kubernetes.api.objects import ObjectMeta
from alignup.kubernetes.kubelet_files.go_json import count_marks
from alignup.kubernetes.kubelet_files.state_files import (
    CPU_FILE,
    DEVICE_PATH,
    MEMORY_FILE,
    dump_device_state,
    parse_device_state,
)
from alignup.kubernetes.manifests.pod_decoder import ObjectPart
from alignup.machines import record_script
from alignup.machines.archive import members_of

IMAGE = "busybox:stable"
NAMESPACE = "kube-system"
KUBELET_DIR = "/var/lib/kubelet"
SECONDS = 120.0  #: for the image and the reader itself
PREFIX = "alignup-reader-"  #: of its name
MOUNT, ETC_MOUNT = "/kubelet", "/etc-of-node"
POLL_SECONDS = 0.5
MAX_LOG, MAX_CONTENT = 4 << 20, 4 << 20  #: bytes; large machines have a twentieth of it
MAX_MARKS = 100_000  #: commas, colons and brackets of the state of devices; large nodes have half of it

_BEGIN, _END = "-----BEGIN ALIGNUP RECORDING-----", "-----END ALIGNUP RECORDING-----"
#: Reasons why a container waits that do not pass by themselves.
_HOPELESS = {
    "CreateContainerConfigError",
    "ErrImageNeverPull",
    "ImageInspectError",
    "ImagePullBackOff",
    "InvalidImageName",
}
_SCRIPT = f"""
t=$(mktemp -d) && mkdir "$t/state" "$t/etc" || exit 1
(
{{record}}) > "$t/{Part.RECORDING}"
for f in {CPU_FILE} {MEMORY_FILE} {DEVICE_PATH}; do [ -f "{MOUNT}/$f" ] && cp "{MOUNT}/$f" "$t/state/"; done
for f in subuid subgid; do [ -f "{ETC_MOUNT}/$f" ] && grep '^kubelet:' "{ETC_MOUNT}/$f" > "$t/etc/$f"; done
cd "$t" && echo "{_BEGIN}" && tar -cf - {Part.RECORDING} state etc | gzip -c | base64 && echo "{_END}"
""".lstrip()


class WaitingState(ObjectPart, frozen=True):
    reason: str = ""
    message: str = ""


class ReaderState(ObjectPart, frozen=True):
    waiting: WaitingState | None = None


class ReaderContainer(ObjectPart, frozen=True):
    state: ReaderState = ReaderState()


class ReaderStatus(ObjectPart, frozen=True):
    phase: str = ""
    reason: str = ""
    message: str = ""
    container_statuses: tuple[ReaderContainer, ...] = ()


class ReaderPod(ObjectPart, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    status: ReaderStatus = ReaderStatus()


_PODS = Resource(type=ReaderPod, kind="Pod", plural="pods", namespaced=True)


class ReaderError(AlignError):
    """The reader did not run to its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """What a reader is made of; its name is new with every one."""

    node: str
    image: str = IMAGE
    namespace: str = NAMESPACE
    kubelet_dir: str = KUBELET_DIR
    seconds: float = SECONDS
    sub_ids: bool = False  #: whether it may read the node's ``/etc/subuid`` and ``/etc/subgid``; it mounts ``/etc``
    name: str = ""

    def named(self) -> Self:
        """Return the same with a name that no other pod has."""
        return replace(self, name=PREFIX + secrets.token_hex(4))

    @property
    def path(self) -> str:
        """The URL path of the pod."""
        return _PODS.at(self.name, namespace=self.namespace).path

    def manifest(self) -> dict[str, Any]:
        """Return the manifest of the pod."""
        container = {
            "name": "reader",
            "image": self.image,
            "imagePullPolicy": "IfNotPresent",
            "command": ["sh", "-c", _SCRIPT.replace("{record}", record_script())],
            "env": [{"name": "TMPDIR", "value": "/tmp"}],  # noqa: S108 - of the container
            "volumeMounts": [
                {"name": "kubelet", "mountPath": MOUNT, "readOnly": True},
                # Volumes and secrets of the node's pods are hidden.
                {"name": "empty", "mountPath": f"{MOUNT}/pods", "readOnly": True},
                {"name": "empty", "mountPath": f"{MOUNT}/plugins", "readOnly": True},
                {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108
                *([{"name": "etc", "mountPath": ETC_MOUNT, "readOnly": True}] if self.sub_ids else ()),
            ],
            "securityContext": {
                "runAsUser": 0,
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
                "readOnlyRootFilesystem": True,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
        }
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": self.name,
                "namespace": self.namespace,
                "labels": {"app.kubernetes.io/name": "alignup-reader", "app.kubernetes.io/managed-by": "alignup"},
            },
            "spec": {
                "nodeName": self.node,
                "restartPolicy": "Never",
                "activeDeadlineSeconds": max(1, int(self.seconds)),  # even if nothing deletes it
                "terminationGracePeriodSeconds": 1,
                "automountServiceAccountToken": False,
                "enableServiceLinks": False,
                "tolerations": [{"operator": "Exists"}],
                "containers": [container],
                "volumes": [
                    {"name": "kubelet", "hostPath": {"path": self.kubelet_dir, "type": "Directory"}},
                    {"name": "empty", "emptyDir": {"sizeLimit": "1Mi"}},
                    {"name": "tmp", "emptyDir": {"medium": "Memory", "sizeLimit": "128Mi"}},
                    *([{"name": "etc", "hostPath": {"path": "/etc", "type": "Directory"}}] if self.sub_ids else ()),
                ],
            },
        }


async def run_reader(client: ApiClient, reader: Reader, report: Callable[[str], None]) -> bytes:
    """Create the pod, wait until it has ended, and return its log; the pod is deleted in any case.

    *report* gets a line about each step. ``ReaderError`` or ``ApiError`` if the pod does not succeed.
    """
    pod_name = f"{reader.namespace}/{reader.name}"
    ref = _PODS.at(reader.name, namespace=reader.namespace)
    report(f"creating pod {pod_name} on {reader.node}")
    created = False
    try:
        await client.create(_PODS, reader.manifest(), namespace=reader.namespace)
        created = True
        await _wait(client, reader)
        return await client.get_raw(f"{ref.path}/log", {"container": "reader"}, max_bytes=MAX_LOG)
    finally:
        await _delete(client, reader, report, created=created)


async def _wait(client: ApiClient, reader: Reader) -> None:
    """Wait until the pod has succeeded."""
    timing = client.timing
    end, waits = timing.clock() + reader.seconds, ""
    while timing.clock() < end:
        pod = await client.get(_PODS.at(reader.name, namespace=reader.namespace))
        status = pod.status
        if status.phase == "Succeeded":
            return
        if status.phase == "Failed":
            why = (
                f"{status.reason}: {status.message}".strip(": ")
                or "its container failed: does the image have sh, tar and base64?"
            )
            raise ReaderError(f"the reader failed on node {reader.node}: {why}")
        for container in status.container_statuses:
            if (waiting_state := container.state.waiting) is not None:
                waits = f"{waiting_state.reason}: {waiting_state.message}".strip(": ")
                if waiting_state.reason in _HOPELESS:
                    raise ReaderError(f"the reader cannot start on node {reader.node}: {waits}")
        await timing.sleep(POLL_SECONDS)
    why = f": {waits}" if waits else ""
    raise ReaderError(f"the reader has not ended on node {reader.node} after {reader.seconds:g} seconds{why}")


async def _delete(client: ApiClient, reader: Reader, report: Callable[[str], None], *, created: bool) -> None:
    pod_name = f"{reader.namespace}/{reader.name}"
    try:
        # The server may have created it although its response is lost.
        await client.delete(_PODS.at(reader.name, namespace=reader.namespace), grace_period=1)
    except NotFoundError:
        return
    except ApiError as error:
        if created:
            advice = f"kubectl delete pod {reader.name} -n {reader.namespace}"
            report(f"pod {pod_name} is not deleted: {error}; it ends by itself; delete it with: {advice}")
        return
    report(f"deleted pod {pod_name}")


def read_log(log: bytes) -> dict[str, bytes]:
    """Return the parts in the log of a reader; ``SourceError`` if the log is damaged."""
    lines = log.decode("ascii", "replace").splitlines()
    try:
        begin = lines.index(_BEGIN)
        end = lines.index(_END, begin)
    except ValueError:
        tail = " ".join(lines[-3:])[-300:]
        raise SourceError(f"the log of the reader is incomplete: {tail or 'it is empty'}") from None
    try:
        packed_log = base64.b64decode("".join(lines[begin + 1 : end]), validate=True)
        with gzip.GzipFile(fileobj=io.BytesIO(packed_log)) as gzip_file:
            content = gzip_file.read(MAX_CONTENT + 1)
    except (binascii.Error, OSError, EOFError, zlib.error) as error:
        raise SourceError(f"the log of the reader is damaged: {error}") from error
    if len(content) > MAX_CONTENT:
        raise SourceError(f"the log of the reader has more than {MAX_CONTENT >> 20} MiB")
    contents, _ = members_of(io.BytesIO(content), name="the log of the reader", limit=lambda _path: MAX_CONTENT)
    return {str(part): contents[part] for part in READER_PARTS if part in contents}


def without_responses(text: bytes) -> bytes:
    """Return the state file of devices without what plugins set in containers: variables, mounts, annotations.

    ``StateError`` if it cannot be read, or is larger than that of any node.
    """
    if count_marks(text) > MAX_MARKS:
        raise StateError(f"{Part.DEVICE_STATE}: more than {MAX_MARKS} commas, colons and brackets {OWN_LIMIT}")
    state = parse_device_state(text, path=Part.DEVICE_STATE)
    return dump_device_state(replace(state, entries=tuple(replace(entry, response=b"") for entry in state.entries)))
