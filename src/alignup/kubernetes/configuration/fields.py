"""The fields of a KubeletConfiguration, version v1beta1, and their types.

The kubelet decodes its file as Go decodes JSON: strict about types, lenient about names. A string is not a number and
a number is not a string; ``null`` counts as absent, except for a duration. Unknown fields, also those in other
capitals, are ignored. The types of all fields are checked; only those that affect alignment are used.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from alignup.align.errors import ParseError
from alignup.align.memory.reserved_memory import ReservedMemory
from alignup.kubernetes.configuration.model import Duration
from alignup.kubernetes.manifests.object_reader import ObjectReader, type_of, word_table
from alignup.kubernetes.manifests.yaml_scalars import NumberLiteral

FieldDecoder = Callable[[ObjectReader, str], Any]  #: returns a field's value, or records why it cannot

_text = ObjectReader.text
_flag = ObjectReader.flag
_int32 = ObjectReader.integer
_int64 = partial(ObjectReader.integer, bits=64)
_strings = ObjectReader.strings
_map_of, _list_of = ObjectReader.map_of, ObjectReader.list_of


def read_fields(document: ObjectReader) -> dict[str, Any]:
    read = {}
    for name, value in document.fields.items():
        decode = FIELDS.get(name)
        if decode is None:
            document.diagnostics.unknown.append(name)
        elif value is not None or decode is _duration:
            read[name] = decode(document, name)
    return read


def holds_text(name: str) -> bool:
    """Whether the values of a field, or of its keys, are strings; true if it is unknown."""
    return FIELDS.get(name, _text) in (_text, _texts, _duration, _nullable_duration)


def suggest_field(name: str) -> str | None:
    import difflib  # noqa: PLC0415 - only for unknown fields

    known = {one.lower(): one for one in FIELDS}
    close = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.7)
    return known[close[0]] if close else None


def _number(owner: ObjectReader, name: str) -> None:
    value = owner.fields.get(name)
    if not isinstance(value, NumberLiteral) or not math.isfinite(float(value)):
        owner.error(name, f"must be a 64-bit number, not {type_of(value)}")


def _duration(owner: ObjectReader, name: str) -> Duration:
    """``null`` is the empty string, which is not a valid duration."""
    text = owner.text(name)
    if type(owner.fields.get(name)) in {str, type(None)}:
        try:
            return Duration.parse(text)
        except ParseError as error:
            owner.error(name, str(error))
    return Duration(0)


def _nullable_duration(owner: ObjectReader, name: str) -> Duration | None:
    return _duration(owner, name) if owner.has(name) else None


def _object(**fields: FieldDecoder) -> FieldDecoder:
    def read(owner: ObjectReader, name: str) -> dict[str, Any]:
        child = owner.child(name)
        owner.diagnostics.unknown.extend(child.path_of(inner) for inner in child.fields if inner not in fields)
        return {inner: decode(child, inner) for inner, decode in fields.items() if inner in child.fields}

    return read


def _reserved_memory(owner: ObjectReader, name: str) -> ReservedMemory:
    entry = _RESERVED_MEMORY(owner, name)
    return ReservedMemory(entry.get("numaNode") or 0, entry.get("limits") or {})


_texts = partial(_map_of, read=_text)
_RESERVED_MEMORY = _object(numaNode=_int32, limits=ObjectReader.quantities)
_X509, _ANONYMOUS = _object(clientCAFile=_text), _object(enabled=_flag)
_TAINT = _object(key=_text, value=_text, effect=_text, timeAdded=_text)
_SHUTDOWN_GRACE = _object(priority=_int32, shutdownGracePeriodSeconds=_int64)
_WEBHOOK = _object(cacheAuthorizedTTL=_duration, cacheUnauthorizedTTL=_duration)

_DECODERS: Mapping[str, FieldDecoder] = {
    "text": _text,
    "flag": _flag,
    "int32": _int32,
    "int64": _int64,
    "number": _number,
    "duration": _duration,
    "nullable-duration": _nullable_duration,
    "texts": _texts,
    "strings": _strings,
}
_PLAIN = """
    text: address apiVersion cgroupDriver cgroupRoot clusterDomain configMapAndSecretChangeDetectionStrategy
        containerLogMaxSize containerRuntimeEndpoint contentType cpuManagerPolicy hairpinMode healthzBindAddress
        imagePullCredentialsVerificationPolicy imageServiceEndpoint kind kubeReservedCgroup kubeletCgroups
        memoryManagerPolicy memoryReservationPolicy podCIDR podLogsDir providerID reservedSystemCPUs resolvConf
        showHiddenMetricsForVersion staticPodPath staticPodURL systemCgroups systemReservedCgroup tlsCertFile
        tlsMinVersion tlsPrivateKeyFile topologyManagerPolicy topologyManagerScope volumePluginDir
    flag: cgroupsPerQOS cpuCFSQuota enableContentionProfiling enableControllerAttachDetach enableDebugFlagsHandler
        enableDebuggingHandlers enableProfilingHandler enableServer enableSystemLogHandler enableSystemLogQuery
        failCgroupV1 failSwapOn kernelMemcgNotification localStorageCapacityIsolation makeIPTablesUtilChains
        mergeDefaultEvictionSettings protectKernelDefaults registerNode rotateCertificates runOnce seccompDefault
        serializeImagePulls serverTLSBootstrap singleProcessOOMKill
    int32: containerLogMaxFiles containerLogMaxWorkers eventBurst eventRecordQPS evictionMaxPodGracePeriod healthzPort
        imageGCHighThresholdPercent imageGCLowThresholdPercent iptablesDropBit iptablesMasqueradeBit kubeAPIBurst
        kubeAPIQPS maxParallelImagePulls maxPods nodeLeaseDurationSeconds nodeStatusMaxImages oomScoreAdj podsPerCore
        port readOnlyPort registryBurst registryPullQPS
    int64: maxOpenFiles podPidsLimit
    number: memoryThrottlingFactor
    duration: cpuManagerReconcilePeriod evictionPressureTransitionPeriod fileCheckFrequency httpCheckFrequency
        imageMaximumGCAge imageMinimumGCAge nodeStatusReportFrequency nodeStatusUpdateFrequency runtimeRequestTimeout
        shutdownGracePeriod shutdownGracePeriodCriticalPods streamingConnectionIdleTimeout syncFrequency
        volumeStatsAggPeriod
    nullable-duration: containerLogMonitorInterval cpuCFSQuotaPeriod
    texts: cpuManagerPolicyOptions defaultPodSysctls evictionHard evictionMinimumReclaim evictionSoft
        evictionSoftGracePeriod kubeReserved qosReserved systemReserved topologyManagerPolicyOptions
    strings: allowedUnsafeSysctls clusterDNS enforceNodeAllocatable preloadedImagesVerificationAllowlist
        tlsCipherSuites
"""
#: Every field → its decoder.
FIELDS: Mapping[str, FieldDecoder] = {
    **{name: _DECODERS[kind] for kind, names in word_table(_PLAIN).items() for name in names},
    "tlsCurvePreferences": partial(_list_of, read=_int32),
    "featureGates": partial(_map_of, read=_flag),
    "staticPodURLHeader": partial(_map_of, read=_strings),
    "reservedMemory": partial(_list_of, read=_reserved_memory),
    "registerWithTaints": partial(_list_of, read=_TAINT),
    "shutdownGracePeriodByPodPriority": partial(_list_of, read=_SHUTDOWN_GRACE),
    "authentication": _object(x509=_X509, webhook=_object(enabled=_flag, cacheTTL=_duration), anonymous=_ANONYMOUS),
    "authorization": _object(mode=_text, webhook=_WEBHOOK),
    "memorySwap": _object(swapBehavior=_text),
    "crashLoopBackOff": _object(maxContainerRestartPeriod=_nullable_duration),
    "userNamespaces": _object(idsPerPod=_int64),
    "tracing": _object(endpoint=_text, samplingRatePerMillion=_int32),
    "logging": lambda owner, name: owner.fields[name],
}
