"""Every field a pod can have, and what becomes of it here: heeded, harmless, or lost, and then what will not happen.

A field that is not in these tables is a slip of somebody's pen, and is told: ``imagee`` starts nothing. What means
something only to a scheduler, a controller or a cluster's DNS is told in one line, since every pod exported from a
cluster has some of it. Amounts of resources are read by ``kube.pod``, and count as heeded.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from alignup.align.bits import quote
from alignup.kube.podspec.object_reader import NO_API, ObjectReader
from alignup.kube.podspec.volumes import UNSUPPORTED_VOLUMES

_EMPTY: tuple[object, ...] = ("", (), [], {})
_LONGEST = 40  # of a name that is shown


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldSupport:
    """What is known of a field."""

    inside: Mapping[str, "FieldSupport"] | None = (
        None  #: of the object it holds, or of each in a list; ``None``: not looked at
    )
    lost: str = ""  #: what will not happen; empty: it is heeded, or harmless
    usual: tuple[object, ...] = ()  #: values that lose nothing, beside those that say nothing
    cluster: bool = False  #: it means something to a scheduler, a controller or DNS only


def warn_unsupported(pod: ObjectReader) -> None:
    """Warn of every field of *pod*, metadata and spec, that nobody here heeds."""
    elsewhere = list(_walk(pod, POD_FIELDS))
    if elsewhere:
        pod.notes.warnings.append(f"{', '.join(elsewhere)}: not heeded, as there is no scheduler and no cluster here")


def _walk(part: ObjectReader, known: Mapping[str, FieldSupport]) -> Iterator[str]:
    """Warn of what is lost in *part*; yield the paths of what means something in a cluster only."""
    for name, value in part.found.items():
        field = known.get(name)
        if field is None:
            part.notes.warnings.append(_unknown(part, name, known))
        elif value is not None and field.inside is not None:
            for inner in _objects(part, name, value):
                yield from _walk(inner, field.inside)
        elif value is None or value in _EMPTY or value in field.usual:
            continue
        elif field.cluster:
            yield part.at(name)
        elif field.lost:
            part.warn(name, field.lost)


def _objects(part: ObjectReader, name: str, value: object) -> Iterator[ObjectReader]:
    """The objects a field holds; what is no object is told by whoever reads it."""
    path = part.at(name)
    if isinstance(value, dict):
        yield ObjectReader(part.notes, path, value)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            if isinstance(item, dict):
                yield ObjectReader(part.notes, f"{path}[{index}]", item)


def _unknown(part: ObjectReader, name: Any, known: Mapping[str, FieldSupport]) -> str:  # noqa: ANN401 - keys of a stranger's object
    text = str(name)
    plain = text.isidentifier() and len(text) <= _LONGEST
    where = part.at(text) if plain else f"{part.at()}[{quote(text[:_LONGEST])}]"
    meant = get_close_matches(text, known, n=1) if plain else ()
    return f"{where} is no field of a pod" + "".join(f"; perhaps {one} is meant" for one in meant)


def _heeded(names: str) -> dict[str, FieldSupport]:
    """Fields that are read here or elsewhere, or that lose nothing by not being read."""
    return dict.fromkeys(names.split(), FieldSupport())


def _cluster(names: str) -> dict[str, FieldSupport]:
    return dict.fromkeys(names.split(), FieldSupport(cluster=True))


def _of(known: Mapping[str, FieldSupport]) -> FieldSupport:
    return FieldSupport(inside=known)


_METADATA = _heeded(
    "name generateName namespace selfLink uid resourceVersion generation creationTimestamp deletionTimestamp"
    " deletionGracePeriodSeconds labels annotations ownerReferences finalizers managedFields clusterName"
)

_FIELD_REF = _of(_heeded("apiVersion fieldPath"))
_RESOURCE_REF = _of(_heeded("containerName resource divisor"))
_KEY_REF = _of(_heeded("name key optional"))
_VALUE_FROM = {
    "fieldRef": _FIELD_REF,
    "resourceFieldRef": _RESOURCE_REF,
    "configMapKeyRef": _KEY_REF,
    "secretKeyRef": _KEY_REF,
    "fileKeyRef": _of(_heeded("volumeName path key optional")),
}
_ENV = {**_heeded("name value"), "valueFrom": _of(_VALUE_FROM)}
_ENV_FROM = {
    **_heeded("prefix"),
    "configMapRef": _of(_heeded("name optional")),
    "secretRef": _of(_heeded("name optional")),
}

_EXEC = _of(_heeded("command"))
_HTTP_GET = _of(
    {
        **_heeded("path port host scheme"),
        "httpHeaders": _of(_heeded("name value")),
        "protocol": FieldSupport(lost="it is asked over HTTP/1.1", usual=("HTTP1",)),
    }
)
_TCP = _of(_heeded("port host"))
_PROBE = _of(
    {
        **_heeded("initialDelaySeconds timeoutSeconds periodSeconds successThreshold failureThreshold"),
        **_heeded("terminationGracePeriodSeconds"),
        "exec": _EXEC,
        "httpGet": _HTTP_GET,
        "tcpSocket": _TCP,
        "grpc": _of(_heeded("port service mode")),
    }
)
_HANDLER = _of({"exec": _EXEC, "httpGet": _HTTP_GET, "tcpSocket": _TCP, "sleep": _of(_heeded("seconds"))})
_LIFECYCLE = {
    "postStart": _HANDLER,
    "preStop": _HANDLER,
    "stopSignal": FieldSupport(lost="the container gets the signal its image names, or TERM", usual=("SIGTERM",)),
}

_PROFILE = _of(_heeded("type localhostProfile"))
_WINDOWS = FieldSupport(lost="it is for Windows, and means nothing here")
_SHARED_RIGHTS = {
    **_heeded("runAsUser runAsGroup runAsNonRoot"),
    "seLinuxOptions": _of(_heeded("user role type level")),
    "seccompProfile": _PROFILE,
    "appArmorProfile": _PROFILE,
    "windowsOptions": _WINDOWS,
}
_POD_RIGHTS = {
    **_SHARED_RIGHTS,
    # Both policies speak of volumes that outlive a pod, of which there are none.
    **_heeded("supplementalGroups fsGroup fsGroupChangePolicy seLinuxChangePolicy"),
    "supplementalGroupsPolicy": FieldSupport(lost="groups that the image names are added too", usual=("Merge",)),
    "sysctls": _of(_heeded("name value")),
}
_RIGHTS = {
    **_SHARED_RIGHTS,
    **_heeded("privileged readOnlyRootFilesystem allowPrivilegeEscalation procMount"),
    "capabilities": _of(_heeded("add drop")),
}

_MOUNT = {
    **_heeded("name readOnly mountPath subPath subPathExpr mountPropagation"),
    "recursiveReadOnly": FieldSupport(lost="what is mounted below it stays writable", usual=("Disabled", "IfPossible")),
    "bindMountOptions": FieldSupport(lost="it is mounted without these options"),
}
_RESOURCES = {**_heeded("limits requests"), "claims": _of(_heeded("name request"))}
#: A container, of whatever kind.
CONTAINER_FIELDS = {
    **_heeded("name image command args workingDir imagePullPolicy stdin stdinOnce tty restartPolicy"),
    **_heeded("terminationMessagePath terminationMessagePolicy"),
    **_heeded("resizePolicy"),  # nothing is resized here
    "resources": _of(_RESOURCES),
    "ports": _of(_heeded("name hostPort containerPort protocol hostIP")),
    "env": _of(_ENV),
    "envFrom": _of(_ENV_FROM),
    "volumeMounts": _of(_MOUNT),
    "volumeDevices": _of(_heeded("name devicePath")),
    "livenessProbe": _PROBE,
    "readinessProbe": _PROBE,
    "startupProbe": _PROBE,
    "lifecycle": _of(_LIFECYCLE),
    "securityContext": _of(_RIGHTS),
    "restartPolicyRules": FieldSupport(lost="the pod's restartPolicy alone decides what is started again"),
}

_OWNER = FieldSupport(lost="its files belong to root", usual=(0, "0"))
_DOWNWARD_ITEM = {**_heeded("path mode"), "fieldRef": _FIELD_REF, "resourceFieldRef": _RESOURCE_REF, "user": _OWNER}
_PROJECTION = {
    **_heeded("secret configMap serviceAccountToken clusterTrustBundle podCertificate"),
    "downwardAPI": _of({"items": _of(_DOWNWARD_ITEM)}),
}
_VOLUME = {
    **_heeded("name"),
    **dict.fromkeys(UNSUPPORTED_VOLUMES, FieldSupport()),  # told as a whole where they are read
    "emptyDir": _of(
        {**_heeded("medium sizeLimit"), "mode": FieldSupport(lost="it has the usual mode, 0777", usual=(0o777, "511"))}
    ),
    "hostPath": _of(_heeded("path type")),
    "downwardAPI": _of({**_heeded("defaultMode"), "items": _of(_DOWNWARD_ITEM), "defaultUser": _OWNER}),
    "projected": _of({**_heeded("defaultMode"), "sources": _of(_PROJECTION), "defaultUser": _OWNER}),
}

#: Its spec.
SPEC_FIELDS = {
    **_heeded(
        "restartPolicy terminationGracePeriodSeconds activeDeadlineSeconds dnsPolicy hostNetwork hostPID hostIPC"
    ),
    **_heeded("shareProcessNamespace hostname hostnameOverride runtimeClassName resources overhead os"),
    # What a scheduler has done when it wrote nodeName, and what every pod of a cluster has.
    **_heeded("nodeName schedulerName tolerations priority priorityClassName preemptionPolicy enableServiceLinks"),
    **_heeded("serviceAccountName serviceAccount automountServiceAccountToken"),
    **_cluster("nodeSelector affinity topologySpreadConstraints schedulingGates schedulingGroup workloadRef"),
    **_cluster("readinessGates evictionResponders subdomain"),
    "setHostnameAsFQDN": FieldSupport(cluster=True, usual=(False,)),
    "containers": _of(CONTAINER_FIELDS),
    "initContainers": _of(CONTAINER_FIELDS),
    "ephemeralContainers": FieldSupport(lost="they are not started"),
    "volumes": _of(_VOLUME),
    "securityContext": _of(_POD_RIGHTS),
    "hostAliases": _of(_heeded("ip hostnames")),
    "dnsConfig": _of({**_heeded("nameservers searches"), "options": _of(_heeded("name value"))}),
    "imagePullSecrets": FieldSupport(lost=f"images are fetched with what the runtime knows itself, as {NO_API}"),
    "resourceClaims": FieldSupport(lost=f"no devices are given for claims, as {NO_API}"),
    "hostUsers": FieldSupport(lost="its users are those of the host: no user namespace is made", usual=(True,)),
}

#: A manifest.
POD_FIELDS = {**_heeded("apiVersion kind status"), "metadata": _of(_METADATA), "spec": _of(SPEC_FIELDS)}
