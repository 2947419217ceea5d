"""Every field of a pod, and whether it takes effect here.

A field that is not in these tables is a typo and gets a warning. Fields that only a scheduler, a controller or the
cluster DNS uses share one warning, since every pod exported from a cluster has some. ``kube.pod`` reads resources.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from alignup.align.bits import quote
from alignup.kube.object_reader import ObjectReader
from alignup.kube.podspec.volumes import UNSUPPORTED_VOLUMES

_EMPTY: tuple[object, ...] = ("", (), [], {})
_MAX_NAME = 40  # characters of an unknown name in a warning


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldSupport:
    #: of the object in the field, or of each object in a list; ``None``: not checked
    inside: Mapping[str, "FieldSupport"] | None = None
    warning: str = ""  #: what has no effect; empty: the field takes effect, or makes no difference
    harmless: tuple[object, ...] = ()  #: values, besides empty ones, that make no difference
    cluster: bool = False  #: only a scheduler, a controller or the cluster DNS uses it


def warn_unsupported(pod: ObjectReader) -> None:
    """Warn about every field of *pod*, metadata and spec, that has no effect."""
    cluster_only = list(_walk(pod, POD_FIELDS))
    if cluster_only:
        pod.diagnostics.warnings.append(f"{', '.join(cluster_only)}: ignored: there is no scheduler and no cluster")


def _walk(owner: ObjectReader, known: Mapping[str, FieldSupport]) -> Iterator[str]:
    """Warn about unsupported fields of *owner*; yield the paths of those that only a cluster uses."""
    for name, value in owner.fields.items():
        field = known.get(name)
        if field is None:
            owner.diagnostics.warnings.append(_unknown(owner, name, known))
        elif value is not None and field.inside is not None:
            for inner in _objects(owner, name, value):
                yield from _walk(inner, field.inside)
        elif value is None or value in _EMPTY or value in field.harmless:
            continue
        elif field.cluster:
            yield owner.path_of(name)
        elif field.warning:
            owner.warn(name, field.warning)


def _objects(owner: ObjectReader, name: str, value: object) -> Iterator[ObjectReader]:
    """The objects in a field; values of other types are problems already."""
    path = owner.path_of(name)
    if isinstance(value, dict):
        yield ObjectReader(owner.diagnostics, path, value)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            if isinstance(item, dict):
                yield ObjectReader(owner.diagnostics, f"{path}[{index}]", item)


def _unknown(owner: ObjectReader, name: object, known: Mapping[str, FieldSupport]) -> str:
    text = str(name)
    plain = text.isidentifier() and len(text) <= _MAX_NAME
    where = owner.path_of(text) if plain else f"{owner.path}[{quote(text[:_MAX_NAME])}]"
    close = get_close_matches(text, known, n=1) if plain else ()
    return f"{where}: unknown field" + "".join(f"; did you mean {one}?" for one in close)


def _supported(names: str) -> dict[str, FieldSupport]:
    """Fields that take effect, or make no difference."""
    return dict.fromkeys(names.split(), FieldSupport())


def _cluster(names: str) -> dict[str, FieldSupport]:
    return dict.fromkeys(names.split(), FieldSupport(cluster=True))


def _of(known: Mapping[str, FieldSupport]) -> FieldSupport:
    return FieldSupport(inside=known)


_METADATA = _supported(
    "name generateName namespace selfLink uid resourceVersion generation creationTimestamp deletionTimestamp"
    " deletionGracePeriodSeconds labels annotations ownerReferences finalizers managedFields clusterName"
)

_FIELD_REF = _of(_supported("apiVersion fieldPath"))
_RESOURCE_REF = _of(_supported("containerName resource divisor"))
_KEY_REF = _of(_supported("name key optional"))
_VALUE_FROM = {
    "fieldRef": _FIELD_REF,
    "resourceFieldRef": _RESOURCE_REF,
    "configMapKeyRef": _KEY_REF,
    "secretKeyRef": _KEY_REF,
    "fileKeyRef": _of(_supported("volumeName path key optional")),
}
_ENV = {**_supported("name value"), "valueFrom": _of(_VALUE_FROM)}
_ENV_FROM = {
    **_supported("prefix"),
    "configMapRef": _of(_supported("name optional")),
    "secretRef": _of(_supported("name optional")),
}

_EXEC = _of(_supported("command"))
_HTTP_GET = _of(
    {
        **_supported("path port host scheme"),
        "httpHeaders": _of(_supported("name value")),
        "protocol": FieldSupport(warning="ignored: requests use HTTP/1.1", harmless=("HTTP1",)),
    }
)
_TCP = _of(_supported("port host"))
_PROBE = _of(
    {
        **_supported("initialDelaySeconds timeoutSeconds periodSeconds successThreshold failureThreshold"),
        **_supported("terminationGracePeriodSeconds"),
        "exec": _EXEC,
        "httpGet": _HTTP_GET,
        "tcpSocket": _TCP,
        "grpc": _of(_supported("port service mode")),
    }
)
_HANDLER = _of({"exec": _EXEC, "httpGet": _HTTP_GET, "tcpSocket": _TCP, "sleep": _of(_supported("seconds"))})
_LIFECYCLE = {
    "postStart": _HANDLER,
    "preStop": _HANDLER,
    "stopSignal": FieldSupport(
        warning="ignored: the container gets the stop signal of its image, or SIGTERM", harmless=("SIGTERM",)
    ),
}

_PROFILE = _of(_supported("type localhostProfile"))
_SHARED_SECURITY_CONTEXT = {
    **_supported("runAsUser runAsGroup runAsNonRoot"),
    "seLinuxOptions": _of(_supported("user role type level")),
    "seccompProfile": _PROFILE,
    "appArmorProfile": _PROFILE,
    "windowsOptions": FieldSupport(warning="ignored: it applies to Windows only"),
}
_POD_SECURITY_CONTEXT = {
    **_SHARED_SECURITY_CONTEXT,
    # Both change policies apply to persistent volumes, which are not available.
    **_supported("supplementalGroups fsGroup fsGroupChangePolicy seLinuxChangePolicy"),
    "supplementalGroupsPolicy": FieldSupport(
        warning="ignored: the groups of the image are added too", harmless=("Merge",)
    ),
    "sysctls": _of(_supported("name value")),
}
_SECURITY_CONTEXT = {
    **_SHARED_SECURITY_CONTEXT,
    **_supported("privileged readOnlyRootFilesystem allowPrivilegeEscalation procMount"),
    "capabilities": _of(_supported("add drop")),
}

_MOUNT = {
    **_supported("name readOnly mountPath subPath subPathExpr mountPropagation"),
    "recursiveReadOnly": FieldSupport(
        warning="ignored: mounts below it stay writable", harmless=("Disabled", "IfPossible")
    ),
    "bindMountOptions": FieldSupport(warning="ignored: the volume is mounted without these options"),
}
_RESOURCES = {**_supported("limits requests"), "claims": _of(_supported("name request"))}
#: A container of any kind.
CONTAINER_FIELDS = {
    **_supported("name image command args workingDir imagePullPolicy stdin stdinOnce tty restartPolicy"),
    **_supported("terminationMessagePath terminationMessagePolicy"),
    **_supported("resizePolicy"),  # there is no in-place resize
    "resources": _of(_RESOURCES),
    "ports": _of(_supported("name hostPort containerPort protocol hostIP")),
    "env": _of(_ENV),
    "envFrom": _of(_ENV_FROM),
    "volumeMounts": _of(_MOUNT),
    "volumeDevices": _of(_supported("name devicePath")),
    "livenessProbe": _PROBE,
    "readinessProbe": _PROBE,
    "startupProbe": _PROBE,
    "lifecycle": _of(_LIFECYCLE),
    "securityContext": _of(_SECURITY_CONTEXT),
    "restartPolicyRules": FieldSupport(warning="ignored: the pod's restartPolicy applies"),
}

_OWNER = FieldSupport(warning="ignored: root owns the files", harmless=(0, "0"))
_DOWNWARD_ITEM = {**_supported("path mode"), "fieldRef": _FIELD_REF, "resourceFieldRef": _RESOURCE_REF, "user": _OWNER}
_PROJECTION = {
    **_supported("secret configMap serviceAccountToken clusterTrustBundle podCertificate"),
    "downwardAPI": _of({"items": _of(_DOWNWARD_ITEM)}),
}
_EMPTY_DIR = {
    **_supported("medium sizeLimit"),
    "mode": FieldSupport(warning="ignored: the directory has mode 0777", harmless=(0o777, "511")),
}
_VOLUME = {
    **_supported("name"),
    **dict.fromkeys(UNSUPPORTED_VOLUMES, FieldSupport()),  # reported as a whole where volumes are read
    "emptyDir": _of(_EMPTY_DIR),
    "hostPath": _of(_supported("path type")),
    "downwardAPI": _of({**_supported("defaultMode"), "items": _of(_DOWNWARD_ITEM), "defaultUser": _OWNER}),
    "projected": _of({**_supported("defaultMode"), "sources": _of(_PROJECTION), "defaultUser": _OWNER}),
}

SPEC_FIELDS = {
    **_supported(
        "restartPolicy terminationGracePeriodSeconds activeDeadlineSeconds dnsPolicy hostNetwork hostPID hostIPC"
    ),
    **_supported("shareProcessNamespace hostname hostnameOverride runtimeClassName resources overhead os"),
    # What the scheduler and the admission plugins add to every pod of a cluster.
    **_supported("nodeName schedulerName tolerations priority priorityClassName preemptionPolicy enableServiceLinks"),
    **_supported("serviceAccountName serviceAccount automountServiceAccountToken"),
    **_cluster("nodeSelector affinity topologySpreadConstraints schedulingGates schedulingGroup workloadRef"),
    **_cluster("readinessGates evictionResponders subdomain"),
    "setHostnameAsFQDN": FieldSupport(cluster=True, harmless=(False,)),
    "containers": _of(CONTAINER_FIELDS),
    "initContainers": _of(CONTAINER_FIELDS),
    "ephemeralContainers": FieldSupport(warning="ignored: ephemeral containers are not started"),
    "volumes": _of(_VOLUME),
    "securityContext": _of(_POD_SECURITY_CONTEXT),
    "hostAliases": _of(_supported("ip hostnames")),
    "dnsConfig": _of({**_supported("nameservers searches"), "options": _of(_supported("name value"))}),
    "imagePullSecrets": FieldSupport(warning="ignored: images are pulled with the credentials of the runtime"),
    "resourceClaims": FieldSupport(warning="ignored: no devices are allocated for resource claims"),
    "hostUsers": FieldSupport(warning="ignored: the pod gets no user namespace", harmless=(True,)),
}

#: A whole manifest.
POD_FIELDS = {**_supported("apiVersion kind status"), "metadata": _of(_METADATA), "spec": _of(SPEC_FIELDS)}
