"""Every field of a pod, and whether it takes effect here.

A field that is not in these tables is a typo and gets a warning. Fields that only a scheduler, a controller or the
cluster DNS uses share one warning, since every pod exported from a cluster has some. ``kubernetes.manifests.pod`` reads resources.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from alignup.align.bits import quote
from alignup.kubernetes.manifests.object_reader import ObjectReader, word_table
from alignup.kubernetes.podspec.volumes import UNSUPPORTED_VOLUMES

_EMPTY: tuple[object, ...] = ("", (), [], {})
_MAX_NAME = 40  # characters of an unknown name in a warning


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldSupport:
    #: of the object in the field, or of each object in a list; ``None``: not checked
    inside: Mapping[str, "FieldSupport"] | None = None
    warning: str = ""  #: what has no effect; empty: the field takes effect, or makes no difference
    harmless: tuple[object, ...] = ()  #: values, besides empty ones, that make no difference
    cluster: bool = False  #: only a scheduler, a controller or the cluster DNS uses it


#: Types and their fields, each as NAME or NAME=TYPE.
_TYPES = """
    FieldRef: apiVersion fieldPath
    ResourceRef: containerName resource divisor
    KeyRef: name key optional
    FileKeyRef: volumeName path key optional
    ObjectRef: name optional
    NameAndValue: name value
    EnvVarSource: fieldRef=FieldRef resourceFieldRef=ResourceRef configMapKeyRef=KeyRef secretKeyRef=KeyRef
        fileKeyRef=FileKeyRef
    EnvVar: name value valueFrom=EnvVarSource
    EnvFromSource: prefix configMapRef=ObjectRef secretRef=ObjectRef

    Exec: command
    HttpGet: path port host scheme httpHeaders=NameAndValue
    TcpSocket: port host
    Grpc: port service mode
    Sleep: seconds
    Probe: initialDelaySeconds timeoutSeconds periodSeconds successThreshold failureThreshold
        terminationGracePeriodSeconds exec=Exec httpGet=HttpGet tcpSocket=TcpSocket grpc=Grpc
    Handler: exec=Exec httpGet=HttpGet tcpSocket=TcpSocket sleep=Sleep
    Lifecycle: postStart=Handler preStop=Handler

    Profile: type localhostProfile
    SELinux: user role type level
    Capabilities: add drop
    SecurityContext: runAsUser runAsGroup runAsNonRoot privileged readOnlyRootFilesystem allowPrivilegeEscalation
        procMount seLinuxOptions=SELinux seccompProfile=Profile appArmorProfile=Profile capabilities=Capabilities
    PodSecurityContext: runAsUser runAsGroup runAsNonRoot supplementalGroups fsGroup fsGroupChangePolicy
        seLinuxChangePolicy seLinuxOptions=SELinux seccompProfile=Profile appArmorProfile=Profile sysctls=NameAndValue

    Claim: name request
    Resources: limits requests claims=Claim
    Port: name hostPort containerPort protocol hostIP
    VolumeMount: name readOnly mountPath subPath subPathExpr mountPropagation
    VolumeDevice: name devicePath
    Container: name image command args workingDir imagePullPolicy stdin stdinOnce tty restartPolicy resizePolicy
        terminationMessagePath terminationMessagePolicy resources=Resources ports=Port env=EnvVar envFrom=EnvFromSource
        volumeMounts=VolumeMount volumeDevices=VolumeDevice livenessProbe=Probe readinessProbe=Probe startupProbe=Probe
        lifecycle=Lifecycle securityContext=SecurityContext

    EmptyDir: medium sizeLimit
    HostPath: path type
    DownwardItem: path mode fieldRef=FieldRef resourceFieldRef=ResourceRef
    DownwardSource: items=DownwardItem
    Projection: secret configMap serviceAccountToken clusterTrustBundle podCertificate downwardAPI=DownwardSource
    DownwardAPI: defaultMode items=DownwardItem
    Projected: defaultMode sources=Projection
    Volume: name emptyDir=EmptyDir hostPath=HostPath downwardAPI=DownwardAPI projected=Projected

    HostAlias: ip hostnames
    DnsConfig: nameservers searches options=NameAndValue
    PodSpec: restartPolicy terminationGracePeriodSeconds activeDeadlineSeconds dnsPolicy hostNetwork hostPID hostIPC
        shareProcessNamespace hostname hostnameOverride runtimeClassName resources overhead os nodeName schedulerName
        tolerations priority priorityClassName preemptionPolicy enableServiceLinks serviceAccountName serviceAccount
        automountServiceAccountToken containers=Container initContainers=Container volumes=Volume
        securityContext=PodSecurityContext hostAliases=HostAlias dnsConfig=DnsConfig
    Metadata: name generateName namespace selfLink uid resourceVersion generation creationTimestamp deletionTimestamp
        deletionGracePeriodSeconds labels annotations ownerReferences finalizers managedFields clusterName
    Pod: apiVersion kind status metadata=Metadata spec=PodSpec
"""

#: Fields of a pod spec that only a cluster uses.
_CLUSTER = """
    nodeSelector affinity topologySpreadConstraints schedulingGates schedulingGroup workloadRef readinessGates
    evictionResponders subdomain
"""

_ROOT = ("root owns the files", 0, "0")
#: Fields without effect: a warning, then values that make no difference.
_IGNORED: Mapping[str, Mapping[str, tuple[object, ...]]] = {
    "HttpGet": {"protocol": ("requests use HTTP/1.1", "HTTP1")},
    "Lifecycle": {"stopSignal": ("the container gets the stop signal of its image, or SIGTERM", "SIGTERM")},
    "SecurityContext": {"windowsOptions": ("it applies to Windows only",)},
    "PodSecurityContext": {
        "windowsOptions": ("it applies to Windows only",),
        "supplementalGroupsPolicy": ("the groups of the image are added too", "Merge"),
    },
    "VolumeMount": {
        "recursiveReadOnly": ("mounts below it stay writable", "Disabled", "IfPossible"),
        "bindMountOptions": ("the volume is mounted without these options",),
    },
    "Container": {"restartPolicyRules": ("the pod's restartPolicy applies",)},
    "EmptyDir": {"mode": ("the directory has mode 0777", 0o777, "511")},
    "DownwardItem": {"user": _ROOT},
    "DownwardAPI": {"defaultUser": _ROOT},
    "Projected": {"defaultUser": _ROOT},
    "PodSpec": {
        "ephemeralContainers": ("ephemeral containers are not started",),
        "imagePullSecrets": ("images are pulled with the credentials of the runtime",),
        "resourceClaims": ("no devices are allocated for resource claims",),
        "hostUsers": ("the pod gets no user namespace", True),
    },
}


def _build_types() -> dict[str, dict[str, FieldSupport]]:
    types: dict[str, dict[str, FieldSupport]] = {}
    for kind, words in word_table(_TYPES).items():
        pairs = (word.partition("=") for word in words)
        types[kind] = {name: FieldSupport(inside=types[type_] if type_ else None) for name, _, type_ in pairs}
    for kind, ignored in _IGNORED.items():
        for name, (warning, *harmless) in ignored.items():
            types[kind][name] = FieldSupport(warning=f"ignored: {warning}", harmless=tuple(harmless))
    for name in UNSUPPORTED_VOLUMES:  # reported as a whole where volumes are read
        types["Volume"].setdefault(name, FieldSupport())
    types["PodSpec"] |= dict.fromkeys(_CLUSTER.split(), FieldSupport(cluster=True))
    types["PodSpec"]["setHostnameAsFQDN"] = FieldSupport(cluster=True, harmless=(False,))
    return types


TYPES: Mapping[str, Mapping[str, FieldSupport]] = _build_types()


def warn_unsupported(pod: ObjectReader) -> None:
    cluster_only = list(_walk(pod, TYPES["Pod"]))
    if cluster_only:
        pod.diagnostics.warnings.append(f"{', '.join(cluster_only)}: ignored: there is no scheduler and no cluster")


def _walk(owner: ObjectReader, known: Mapping[str, FieldSupport]) -> Iterator[str]:
    """Warn about unsupported fields of *owner*; yield the paths of those that only a cluster uses."""
    for name, value in owner.fields.items():
        field = known.get(name)
        if field is None:
            _warn_unknown(owner, str(name), known)
        elif value is not None and field.inside is not None:
            path = owner.path_of(name)
            items = (
                {f"{path}[{index}]": item for index, item in enumerate(value)}
                if isinstance(value, list)
                else {path: value}
            )
            for where, item in items.items():
                if isinstance(item, dict):  # values of other types are problems already
                    yield from _walk(ObjectReader(owner.diagnostics, where, item), field.inside)
        elif value is None or value in _EMPTY or value in field.harmless:
            continue
        elif field.cluster:
            yield owner.path_of(name)
        elif field.warning:
            owner.warn(name, field.warning)


def _warn_unknown(owner: ObjectReader, name: str, known: Mapping[str, FieldSupport]) -> None:
    plain = name.isidentifier() and len(name) <= _MAX_NAME
    where = owner.path_of(name) if plain else f"{owner.path}[{quote(name[:_MAX_NAME])}]"
    close = get_close_matches(name, known, n=1) if plain else ()
    hint = "".join(f"; did you mean {one}?" for one in close)
    owner.diagnostics.warnings.append(f"{where}: unknown field{hint}")
