"""What may stand in a KubeletConfiguration file: every field of version v1beta1, and what kind of value it takes.

The kubelet reads its file as Go reads JSON, which is strict about kinds and lenient about names. A text is not a number
and a number not a text; ``null`` is as good as nothing, but for a duration. A field that does not exist, also one in
other capitals, is overlooked. All fields are looked at for their kind, and only those that bear on alignment are kept.
"""

import difflib
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from alignup.align.errors import ParseError, Problem, QuantityError
from alignup.align.memory.reserved_memory import ReservedMemory
from alignup.align.quantity import Quantity
from alignup.kube.configuration.model import Duration
from alignup.kube.documents import NumberLiteral

_WHOLE = re.compile(r"-?[0-9]{1,19}", re.ASCII)


@dataclass
class SchemaFindings:
    """What reading came across: values of the wrong kind, and fields that do not exist."""

    problems: list[Problem] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    def wrong(self, value: object, where: str, wanted: str) -> None:
        """Note that *value* is not what is wanted there."""
        self.problems.append(Problem(where, f"must be {wanted}, not {_kind(value)}"))


#: Reads a value at a path, or notes why it cannot and gives ``None``. It is asked about ``null`` too.
FieldDecoder = Callable[[SchemaFindings, Any, str], Any]


def read_fields(found: SchemaFindings, document: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a *document* that are given, by name; their kinds are as ``FIELDS`` says."""
    read = {}
    for name, value in document.items():
        kind = FIELDS.get(name)
        if kind is None:
            found.unknown.append(name)
        elif (one := kind(found, value, name)) is not None:
            read[name] = one
    return read


def suggest_field(name: str) -> str | None:
    """The field that somebody meant who wrote *name*, as far as one can guess."""
    known = {one.lower(): one for one in FIELDS}
    close = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.7)
    return known[close[0]] if close else None


def _text(found: SchemaFindings, value: object, where: str) -> str | None:
    if value is None or type(value) is str:
        return value
    found.wrong(value, where, "a string")
    return None


def _flag(found: SchemaFindings, value: object, where: str) -> bool | None:
    if value is None or type(value) is bool:
        return value
    found.wrong(value, where, "true or false")
    return None


def _integer(bits: int) -> FieldDecoder:
    fitting = range(-(1 << bits - 1), 1 << bits - 1)

    def read(found: SchemaFindings, value: object, where: str) -> int | None:
        if value is None:
            return None
        if isinstance(value, NumberLiteral) and _WHOLE.fullmatch(value) and int(value) in fitting:
            return int(value)
        found.wrong(value, where, f"a whole number of {bits} bits")
        return None

    return read


def _number(found: SchemaFindings, value: object, where: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, NumberLiteral) and math.isfinite(float(value)):
        return float(value)
    found.wrong(value, where, "a number of 64 bits")
    return None


def _duration(found: SchemaFindings, value: object, where: str) -> Duration | None:
    """Nothing is the empty text here, which is none of the durations."""
    text = _text(found, "" if value is None else value, where)
    if text is None:
        return None
    try:
        return Duration.parse(text)
    except ParseError as error:
        found.problems.append(Problem(where, str(error)))
        return None


def _amount(found: SchemaFindings, value: object, where: str) -> Quantity | None:
    """An amount, as a string or a number, taken as it stands in the file: escapes and all."""
    try:
        return Quantity.from_json_token(
            value if isinstance(value, NumberLiteral) else json.dumps(value, ensure_ascii=False)
        )
    except QuantityError as error:
        found.problems.append(Problem(where, str(error)))
        return None


def _maybe(kind: FieldDecoder) -> FieldDecoder:
    """The same, or ``null`` for none."""

    def read(found: SchemaFindings, value: object, where: str) -> Any:  # noqa: ANN401 - whatever the kind gives
        return None if value is None else kind(found, value, where)

    return read


def _map_of(kind: FieldDecoder, empty: object) -> FieldDecoder:
    """An object with any keys; ``null`` for a value is *empty*."""

    def read(found: SchemaFindings, value: object, where: str) -> dict[str, Any] | None:
        if value is None:
            return None
        if not isinstance(value, Mapping):
            found.wrong(value, where, "an object")
            return None
        items = {key: kind(found, item, f"{where}[{key}]") for key, item in value.items()}
        return {key: empty if item is None else item for key, item in items.items()}

    return read


def _list_of(kind: FieldDecoder, empty: object) -> FieldDecoder:
    """A list; ``null`` for an item is *empty*."""

    def read(found: SchemaFindings, value: object, where: str) -> tuple[Any, ...] | None:
        if value is None:
            return None
        if not isinstance(value, list):
            found.wrong(value, where, "a list")
            return None
        items = [kind(found, item, f"{where}[{index}]") for index, item in enumerate(value)]
        return tuple(empty if item is None else item for item in items)

    return read


def _object(**fields: FieldDecoder) -> FieldDecoder:
    """An object with these fields."""

    def read(found: SchemaFindings, value: object, where: str) -> dict[str, Any] | None:
        if value is None:
            return None
        if not isinstance(value, Mapping):
            found.wrong(value, where, "an object")
            return None
        found.unknown += [f"{where}.{name}" for name in value if name not in fields]
        return {name: kind(found, value[name], f"{where}.{name}") for name, kind in fields.items() if name in value}

    return read


def _anything(_found: SchemaFindings, value: object, _where: str) -> object:
    """A part that is not looked into."""
    return value


def _reserved(found: SchemaFindings, value: object, where: str) -> ReservedMemory | None:
    entry = _RESERVED(found, value, where)
    return None if entry is None else ReservedMemory(entry.get("numaNode") or 0, entry.get("limits") or {})


def _kind(value: object) -> str:
    """What a value is, in JSON's words."""
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case NumberLiteral():
            return f"the number {value}"
        case str():
            return "a string"
        case list():
            return "a list"
        case _:
            return "an object"


_INT = _integer(32)
_LONG = _integer(64)
_TEXTS = _map_of(_text, "")
_LIST = _list_of(_text, "")
_RESERVED = _object(numaNode=_INT, limits=_map_of(_amount, Quantity.ZERO))
_TAINT = _object(key=_text, value=_text, effect=_text, timeAdded=_text)

_KINDS: tuple[tuple[FieldDecoder, str], ...] = (
    (
        _text,
        """
        address apiVersion cgroupDriver cgroupRoot clusterDomain configMapAndSecretChangeDetectionStrategy
        containerLogMaxSize containerRuntimeEndpoint contentType cpuManagerPolicy hairpinMode healthzBindAddress
        imagePullCredentialsVerificationPolicy imageServiceEndpoint kind kubeReservedCgroup kubeletCgroups
        memoryManagerPolicy memoryReservationPolicy podCIDR podLogsDir providerID reservedSystemCPUs resolvConf
        showHiddenMetricsForVersion staticPodPath staticPodURL systemCgroups systemReservedCgroup tlsCertFile
        tlsMinVersion tlsPrivateKeyFile topologyManagerPolicy topologyManagerScope volumePluginDir
        """,
    ),
    (
        _flag,
        """
        cgroupsPerQOS cpuCFSQuota enableContentionProfiling enableControllerAttachDetach enableDebugFlagsHandler
        enableDebuggingHandlers enableProfilingHandler enableServer enableSystemLogHandler enableSystemLogQuery
        failCgroupV1 failSwapOn kernelMemcgNotification localStorageCapacityIsolation makeIPTablesUtilChains
        mergeDefaultEvictionSettings protectKernelDefaults registerNode rotateCertificates runOnce seccompDefault
        serializeImagePulls serverTLSBootstrap singleProcessOOMKill
        """,
    ),
    (
        _INT,
        """
        containerLogMaxFiles containerLogMaxWorkers eventBurst eventRecordQPS evictionMaxPodGracePeriod healthzPort
        imageGCHighThresholdPercent imageGCLowThresholdPercent iptablesDropBit iptablesMasqueradeBit kubeAPIBurst
        kubeAPIQPS maxParallelImagePulls maxPods nodeLeaseDurationSeconds nodeStatusMaxImages oomScoreAdj podsPerCore
        port readOnlyPort registryBurst registryPullQPS
        """,
    ),
    (_LONG, "maxOpenFiles podPidsLimit"),
    (_number, "memoryThrottlingFactor"),
    (
        _duration,
        """
        cpuManagerReconcilePeriod evictionPressureTransitionPeriod fileCheckFrequency httpCheckFrequency
        imageMaximumGCAge imageMinimumGCAge nodeStatusReportFrequency nodeStatusUpdateFrequency runtimeRequestTimeout
        shutdownGracePeriod shutdownGracePeriodCriticalPods streamingConnectionIdleTimeout syncFrequency
        volumeStatsAggPeriod
        """,
    ),
    (_maybe(_duration), "containerLogMonitorInterval cpuCFSQuotaPeriod"),
    (
        _TEXTS,
        """
        cpuManagerPolicyOptions defaultPodSysctls evictionHard evictionMinimumReclaim evictionSoft
        evictionSoftGracePeriod kubeReserved qosReserved systemReserved topologyManagerPolicyOptions
        """,
    ),
    (
        _LIST,
        """
        allowedUnsafeSysctls clusterDNS enforceNodeAllocatable preloadedImagesVerificationAllowlist tlsCipherSuites
        """,
    ),
    (_list_of(_INT, 0), "tlsCurvePreferences"),
    (_map_of(_flag, empty=False), "featureGates"),
    (_map_of(_LIST, ()), "staticPodURLHeader"),
    (_list_of(_reserved, ReservedMemory(0, {})), "reservedMemory"),
    (_list_of(_TAINT, {}), "registerWithTaints"),
    (_list_of(_object(priority=_INT, shutdownGracePeriodSeconds=_LONG), {}), "shutdownGracePeriodByPodPriority"),
    (
        _object(
            x509=_object(clientCAFile=_text),
            webhook=_object(enabled=_flag, cacheTTL=_duration),
            anonymous=_object(enabled=_flag),
        ),
        "authentication",
    ),
    (
        _object(mode=_text, webhook=_object(cacheAuthorizedTTL=_duration, cacheUnauthorizedTTL=_duration)),
        "authorization",
    ),
    (_object(swapBehavior=_text), "memorySwap"),
    (_object(maxContainerRestartPeriod=_maybe(_duration)), "crashLoopBackOff"),
    (_object(idsPerPod=_LONG), "userNamespaces"),
    (_object(endpoint=_text, samplingRatePerMillion=_INT), "tracing"),
    (_anything, "logging"),
)

#: Every field, and how it is read.
FIELDS: Mapping[str, FieldDecoder] = {name: kind for kind, names in _KINDS for name in names.split()}
