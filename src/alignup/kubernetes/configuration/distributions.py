"""The files in which distributions of Kubernetes and clouds configure the kubelets of their nodes.

Each format of :data:`_FORMATS` is recognized by its kind or its fields, and read as the fields of a
KubeletConfiguration with the paths that they come from. Flags of the kubelet become fields as well. What the tools
add to a file is added here as far as it is the same on every node, with a note; a note also names what each node
computes for itself, which only the kubelet's ``/configz`` has. The facts are from the public documentation and source
of the tools, as of August 2026.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from typing import Any, NamedTuple

from alignup.align import bits
from alignup.align.bits import CpuSet, quote
from alignup.align.errors import DocumentError, ParseError, ProblemKind, QuantityError
from alignup.align.quantity import Quantity
from alignup.align.settings import Policy
from alignup.kubernetes.configuration.fields import KIND
from alignup.kubernetes.manifests import documents
from alignup.kubernetes.manifests.documents import ParsedDocument
from alignup.kubernetes.manifests.object_reader import Diagnostics, ObjectReader

FETCH = "kubectl get --raw /api/v1/nodes/NODE/proxy/configz > configz.json"

SNIPPET = "kubeletconfig.experimental"  #: the annotation of a PerformanceProfile with other fields, as JSON
_DRA = "performance.openshift.io/dra-resource-management"
#: The fields of a PerformanceProfile below ``spec``, and below the fields that are read.
_PROFILE_FIELDS: Mapping[str, tuple[str, ...]] = {
    "": (
        *("additionalKernelArgs", "cpu", "globallyDisableIrqLoadBalancing", "hardwareTuning", "hugepages"),
        *("kernelPageSize", "machineConfigLabel", "machineConfigPoolSelector", "net", "nodeSelector", "numa"),
        *("realTimeKernel", "workloadHints"),
    ),
    "cpu": ("balanceIsolated", "isolated", "offlined", "ovsDpdk", "reserved", "shared"),
    "numa": ("topologyPolicy",),
    "workloadHints": ("highPowerConsumption", "mixedCpus", "perPodPowerManagement", "realTime"),
}
_OPENSHIFT_RESERVED = {"cpu": "500m", "memory": "1Gi", "ephemeral-storage": "1Gi"}
_THRESHOLDS = {"memory.available": "100Mi", "nodefs.available": "10%", "nodefs.inodesFree": "5%"}
_TALOS_MEMORY = {"controlplane": "512Mi", "worker": "384Mi"}
_KOPS_EVICTION = (
    "memory.available<100Mi,nodefs.available<10%,nodefs.inodesFree<5%,imagefs.available<10%,imagefs.inodesFree<5%"
)
_GKE_FIELDS = {
    "cpuManagerPolicy": "cpuManagerPolicy",
    "topologyManager.policy": "topologyManagerPolicy",
    "topologyManager.scope": "topologyManagerScope",
    "memoryManager.policy": "memoryManagerPolicy",
}
_GKE_COMPUTED = "kubeReserved, evictionHard, maxPods and reservedMemory"
_AKS_COMPUTED = "kubeReserved, evictionHard and maxPods"
_AKS_FIELDS = {"cpuManagerPolicy": "cpuManagerPolicy", "topologyManagerPolicy": "topologyManagerPolicy"}
#: Names that the configuration of AKS has and a KubeletConfiguration does not.
_AKS_ONLY = (
    *("cpuCfsQuota", "cpuCfsQuotaPeriod", "imageGcHighThreshold", "imageGcLowThreshold", "podMaxPids"),
    "containerLogMaxSizeMB",
)
_KOPS_FIELDS = (
    *("cpuManagerPolicy", "topologyManagerPolicy", "kubeReserved", "systemReserved", "maxPods"),
    *("kubeReservedCgroup", "systemReservedCgroup"),
)


@dataclass(slots=True)
class NodeFile:
    """What a file says about the kubelets of nodes."""

    fields: dict[str, Any] = field(default_factory=dict)
    part: str = ""  #: the field of the file that has the fields under their own names
    places: dict[str, str] = field(default_factory=dict)  #: other fields → where their values are in the file
    defaults: list[str] = field(default_factory=list)  #: what the tool sets, and the file does not
    notes: list[str] = field(default_factory=list)
    computed: str = ""  #: what each node computes for itself
    title: str = ""  #: of the tool
    number: int = 0  #: of the document
    snippet: Mapping[str, Any] | None = None  #: the fields in the annotation ``SNIPPET``; ``None``: it can have none
    offline: CpuSet = 0  #: CPUs that the tool takes offline

    def default(self, name: str, value: object) -> None:
        """Set a field that the file does not set, as the tool does."""
        if name not in self.fields:
            self.fields[name] = value
            self.defaults.append(f"{name} {value}")

    def default_keys(self, name: str, values: Mapping[str, str]) -> None:
        """Add keys of a field that has an object as value."""
        current = self.fields.get(name)
        if current is not None and not isinstance(current, Mapping):
            return  # the reader of the configuration says what is wrong
        self.fields[name] = {**values, **(current or {})}
        self.defaults += [f"{name}.{key} {value}" for key, value in values.items() if key not in (current or {})]

    def take(self, reader: ObjectReader, names: Mapping[str, str]) -> None:
        """Take the fields of *reader* that *names* has; other fields are noted."""
        for path, name in names.items():
            outer, _, inner = path.rpartition(".")
            source = reader.child(outer) if outer else reader
            if source.has(inner):
                self.fields[name] = source.fields[inner]
                self.places[name] = source.path_of(inner)
        names_read = {path.partition(".")[0] for path in names}
        self._note_unread([reader.path_of(name) for name in reader.fields if name not in names_read])

    def apply_flags(self, flags: "Iterable[_Flag]", top: ObjectReader) -> None:
        """Let *flags* of the kubelet replace fields, as the kubelet does. Problems are recorded in *top*."""
        unread, fresh = [], set()
        for flag in flags:
            if flag.name in {"config", "config-dir"}:
                message = f"the kubelet reads {flag.value}: give a copy of it with --{flag.name}"
                top.error(flag.place, message)
            elif flag.name not in _FLAGS:
                unread.append(flag.name)
            else:
                name, parse = _FLAGS[flag.name]
                try:
                    value = parse(flag.value)
                except ValueError as error:
                    top.error(flag.place, f"--{flag.name}={flag.value}: {error}")
                    continue
                earlier = self.fields.get(name) if name in fresh or name == "featureGates" else None
                merged = isinstance(value, list | dict) and type(earlier) is type(value)
                self.fields[name] = _join(earlier, value) if merged else value
                self.places[name] = flag.place
                fresh.add(name)
        self._note_unread([f"--{name}" for name in unread])

    def _note_unread(self, names: list[str]) -> None:
        if names:
            self.notes.append(f"not read: {', '.join(names)}")


_Documents = Sequence[ParsedDocument]


class _Flag(NamedTuple):
    name: str  #: without dashes
    value: str
    place: str  #: in the file


class _Format(NamedTuple):
    """A format that people have."""

    title: str
    read: Callable[[ObjectReader, _Documents], NodeFile]  #: gets the object, and all documents of the file
    group: str = ""  #: the beginning of the apiVersion; empty: objects have no kind, and *fields* recognize them
    kinds: tuple[str, ...] = ()  #: empty: any
    fields: tuple[str, ...] = ()

    def matches(self, value: Mapping[str, Any]) -> bool:
        kind = value.get("kind")
        if not self.group:
            return kind is None and not value.keys().isdisjoint(self.fields)
        return str(value.get("apiVersion")).startswith(self.group) and (not self.kinds or kind in self.kinds)


def read_node_file(parsed_documents: _Documents, diagnostics: Diagnostics) -> NodeFile | None:
    """Return what the documents of a file say; ``None`` if their format is not known.

    Problems are recorded in *diagnostics*.
    """
    for format_ in _FORMATS:
        for document, value in _objects(parsed_documents):
            if format_.matches(value):
                node_file = format_.read(ObjectReader.of(value, diagnostics), parsed_documents)
                node_file.title = format_.title
                node_file.number = node_file.number or document.number
                return node_file
    return None


def _refuse_unknown(reader: ObjectReader, names: Sequence[str]) -> None:
    spelling = {name.lower(): name for name in names}
    for name in map(str, reader.fields):
        if name not in names:
            similar_names = [*filter(None, [spelling.get(name.lower())]), *get_close_matches(name, names, n=1)]
            message = f"unknown field; did you mean {similar_names[0]}?" if similar_names else "unknown field"
            reader.error(name, message, ProblemKind.UNKNOWN_FIELD)


def _performance_profile(top: ObjectReader, _: object) -> NodeFile:
    """Read what the Node Tuning Operator and the Machine Config Operator of OpenShift make of a PerformanceProfile."""
    spec, annotations = top.child("spec"), top.child("metadata").mapping("annotations")
    snippet = _snippet(annotations, top)
    node_file = NodeFile(dict(snippet), snippet=snippet)
    if _is_true(annotations.get(_DRA)):
        node_file.fields |= {"cpuManagerPolicy": "none", "topologyManagerPolicy": "none", "memoryManagerPolicy": "None"}
        node_file.fields.pop("cpuManagerPolicyOptions", None)
        _finish_openshift(node_file)
        return node_file
    for name, names in _PROFILE_FIELDS.items():
        _refuse_unknown(spec.child(name) if name else spec, names)
    cpu, numa = spec.child("cpu"), spec.child("numa")
    policy = numa.choice("topologyPolicy", tuple(Policy), Policy.BEST_EFFORT.value)
    node_file.fields |= {
        "cpuManagerPolicy": "static",
        "cpuManagerReconcilePeriod": "5s",
        "topologyManagerPolicy": policy,
    }
    if numa.has("topologyPolicy"):
        node_file.places["topologyManagerPolicy"] = "spec.numa.topologyPolicy"
    else:
        node_file.defaults.append(f"topologyManagerPolicy {policy}")
    node_file.default_keys("evictionHard", {**_THRESHOLDS, "imagefs.available": "15%"})
    node_file.default_keys("kubeReserved", {"memory": "500Mi"})
    node_file.default_keys("systemReserved", {"memory": "500Mi"})
    cpu.required("reserved")
    mixed_cpus = spec.child("workloadHints").flag("mixedCpus")
    lists = ("reserved", "ovsDpdk", *(("shared",) if mixed_cpus else ()))
    node_file.fields["reservedSystemCPUs"] = bits.show(bits.union(_cpus(cpu, name) for name in lists))
    node_file.places["reservedSystemCPUs"] = "spec.cpu.reserved"
    if policy in {Policy.RESTRICTED, Policy.SINGLE_NUMA_NODE}:
        node_file.fields["memoryManagerPolicy"] = "Static"
        if "reservedMemory" not in node_file.fields:
            memory = _reserved_memory(node_file.fields, top)
            node_file.fields["reservedMemory"] = [{"numaNode": 0, "limits": {"memory": memory}}]
            node_file.defaults.append(f"reservedMemory of NUMA node 0 {memory}")
    if policy == Policy.SINGLE_NUMA_NODE:
        node_file.default_keys("cpuManagerPolicyOptions", {"full-pcpus-only": "true"})
    if spec.has("hugepages"):
        node_file.notes.append(
            "spec.hugepages sets the kernel's arguments: the machine must have these pages, see --machine"
        )
    if cpu.has("offlined"):
        node_file.offline = _cpus(cpu, "offlined")
        node_file.notes.append(f"spec.cpu.offlined: CPUs {bits.show(node_file.offline)} are not counted")
    _finish_openshift(node_file)
    return node_file


def _snippet(annotations: Mapping[str, Any], top: ObjectReader) -> dict[str, Any]:
    text, problem = annotations.get(SNIPPET, "{}"), "must be a JSON object"
    try:
        parsed_documents = documents.read(text) if isinstance(text, str) else ()
        if len(parsed_documents) == 1 and parsed_documents[0].json:  # not YAML
            return dict(parsed_documents[0].value)
    except DocumentError as error:
        problem = f"must be JSON: {error.message}"
    top.error(f"metadata.annotations[{SNIPPET}]", problem)
    return {}


def _reserved_memory(fields: Mapping[str, Any], top: ObjectReader) -> str:
    """Return the sum that the operator reserves on NUMA node 0."""
    total = Quantity.parse("0")
    for name, key in (("kubeReserved", "memory"), ("systemReserved", "memory"), ("evictionHard", "memory.available")):
        value = fields[name].get(key) if isinstance(fields[name], Mapping) else None
        try:
            total += Quantity.parse(str(value))
        except QuantityError:
            message = f"{name}.{key}: the operator cannot add {quote(str(value))} to reserved memory; use a quantity"
            top.error(f"metadata.annotations[{SNIPPET}]", message)
    return str(total)


def _cpus(cpu: ObjectReader, name: str) -> int:
    try:
        return bits.parse(cpu.text(name))
    except ParseError as error:
        cpu.error(name, str(error))
        return 0


def _finish_openshift(node_file: NodeFile) -> None:
    """Add what the Machine Config Operator adds to every KubeletConfig."""
    node_file.default("maxPods", 250)
    if node_file.fields.pop("featureGates", None):
        node_file.notes.append("featureGates is ignored: OpenShift takes feature gates from its FeatureGate object")
    reservation = node_file.fields.get("systemReserved")
    if isinstance(reservation, Mapping) and not _OPENSHIFT_RESERVED.keys().isdisjoint(reservation):
        # Reserved CPUs replace the reserved amount.
        left_out = {"cpu"} if node_file.fields.get("reservedSystemCPUs") else set()
        rest = {name: amount for name, amount in _OPENSHIFT_RESERVED.items() if name not in left_out}
        node_file.default_keys("systemReserved", rest)
    else:
        node_file.computed = "systemReserved"
    node_file.notes.append("other KubeletConfig objects of the machine config pool are not known")


def _openshift_kubelet_config(top: ObjectReader, _: object) -> NodeFile:
    spec = top.child("spec")
    node_file = NodeFile(dict(spec.mapping("kubeletConfig")), part="spec.kubeletConfig")
    if not spec.has("kubeletConfig"):
        spec.error("kubeletConfig", "Required value")
    if spec.fields.get("autoSizingReserved") is False:
        node_file.default_keys("systemReserved", _OPENSHIFT_RESERVED)
    _finish_openshift(node_file)
    return node_file


def _kubeadm(top: ObjectReader, parsed_documents: _Documents) -> NodeFile:
    node_file = NodeFile()
    for document, value in _objects(parsed_documents):
        if value.get("kind") == KIND and not node_file.fields:
            node_file.fields = dict(value)
            node_file.number = document.number
            node_file.notes += [f"line {key.line}: {key}" for key in document.repeated]
    flags: list[_Flag] = []
    for _, value in _objects(parsed_documents):
        registration = ObjectReader.of(value, top.diagnostics).child("nodeRegistration")
        if not registration.has("kubeletExtraArgs"):
            continue
        if flags:
            registration.error("kubeletExtraArgs", "is in several documents; keep that of the node")
        flags += _named_flags(registration, "kubeletExtraArgs")
    if not node_file.number and not flags:
        message = (
            f"is a configuration of kubeadm without a document of kind {KIND} and without kubeletExtraArgs; "
            "fetch kubectl get -n kube-system configmap kubelet-config -o yaml"
        )
        top.error("kind", message)
    elif not node_file.number:
        node_file.computed = "what the kubelet-config ConfigMap of the cluster sets"
    node_file.apply_flags(flags, top)
    return node_file


def _nodeadm(top: ObjectReader, _: object) -> NodeFile:
    kubelet = top.child("spec").child("kubelet")
    node_file = NodeFile(dict(kubelet.mapping("config")), part="spec.kubelet.config")
    node_file.default_keys("evictionHard", _THRESHOLDS)
    node_file.default("systemReservedCgroup", "/system")
    node_file.default("kubeReservedCgroup", "/runtime")
    node_file.apply_flags(_flags(kubelet, "flags"), top)
    node_file.computed = _missing(node_file, ("kubeReserved", "maxPods"))
    return node_file


def _eksctl(top: ObjectReader, _: object) -> NodeFile:
    groups = [group for group in top.children("nodeGroups") if group.has("kubeletExtraConfig")]
    node_file = NodeFile()
    if len(groups) != 1:
        names = ", ".join(str(group.fields.get("name")) for group in groups) or "none"
        top.error("nodeGroups", f"must have one group with kubeletExtraConfig, not {len(groups)}: {names}")
    else:
        (group,) = groups
        node_file = NodeFile(dict(group.mapping("kubeletExtraConfig")), part=group.path_of("kubeletExtraConfig"))
        if group.has("maxPodsPerNode"):
            node_file.fields["maxPods"] = group.fields["maxPodsPerNode"]
            node_file.places["maxPods"] = group.path_of("maxPodsPerNode")
    node_file.computed = _missing(node_file, ("kubeReserved", "maxPods"))
    return node_file


def _cloud(top: ObjectReader, _: object, *, part: str = "", names: Mapping[str, str], computed: str) -> NodeFile:
    """Read a file of a cloud, which has names of its own for a few fields."""
    node_file = NodeFile(computed=computed)
    node_file.take(top.child(part) if part else top, names)
    return node_file


def _talos(top: ObjectReader, parsed_documents: _Documents) -> NodeFile:
    machine = top.child("machine")
    holder, name = (top, "config") if top.has("kind") else (machine.child("kubelet"), "extraConfig")
    node_file = NodeFile(dict(holder.mapping(name)), part=holder.path_of(name))
    if not node_file.fields.get("systemReserved"):
        types = [ObjectReader.of(value).child("machine").text("type") for _, value in _objects(parsed_documents)]
        type_ = next(filter(None, types), "worker")
        memory = _TALOS_MEMORY.get(type_, _TALOS_MEMORY["worker"])
        node_file.fields.pop("systemReserved", None)
        node_file.default_keys(
            "systemReserved", {"cpu": "50m", "memory": memory, "pid": "100", "ephemeral-storage": "256Mi"}
        )
    node_file.apply_flags(_named_flags(holder, "extraArgs"), top)
    return node_file


def _k3s(top: ObjectReader, _: object) -> NodeFile:
    node_file = NodeFile({"evictionHard": {"imagefs.available": "5%", "nodefs.available": "5%"}})
    node_file.defaults.append("evictionHard imagefs.available 5% and nodefs.available 5%, without memory.available")
    flags = [flag for name in ("kubelet-arg", "kubelet-arg+") for flag in _flags(top, name)]
    node_file.apply_flags(flags, top)
    return node_file


def _kops(top: ObjectReader, parsed_documents: _Documents) -> NodeFile:
    objects = [
        (document, ObjectReader.of(value, top.diagnostics).child("spec").child("kubelet"))
        for document, value in _objects(parsed_documents)
    ]
    kubelets = [(document.number, kubelet) for document, kubelet in objects if kubelet.fields]
    node_file = NodeFile()
    if len(kubelets) != 1:
        top.error("spec.kubelet", f"must be in one document, not {len(kubelets)}; keep those of one instance group")
        return node_file
    ((number, kubelet),) = kubelets
    node_file.number = number
    strings = {"evictionHard": "eviction-hard", "enforceNodeAllocatable": "enforce-node-allocatable"}
    node_file.take(kubelet, {name: name for name in (*_KOPS_FIELDS, *strings, "featureGates")})
    for name, flag in strings.items():
        if isinstance(text := node_file.fields.get(name), str):
            node_file.apply_flags([_Flag(flag, text, kubelet.path_of(name))], top)
    if isinstance(gates := node_file.fields.get("featureGates"), Mapping):
        node_file.fields["featureGates"] = {gate: _is_true(on) for gate, on in gates.items()}
    node_file.default("evictionHard", _pairs(_KOPS_EVICTION, "<"))
    node_file.computed = _missing(node_file, ("maxPods",))
    return node_file


def _objects(parsed_documents: _Documents) -> Iterator[tuple[ParsedDocument, Mapping[str, Any]]]:
    return ((document, document.value) for document in parsed_documents if isinstance(document.value, Mapping))


def _missing(node_file: NodeFile, names: Iterable[str]) -> str:
    return " and ".join(name for name in names if name not in node_file.fields)


def _is_true(value: object) -> bool:
    return str(value).lower() in {"true", "1", "t"}


def _join(earlier: Any, value: Any) -> Any:  # noqa: ANN401 - both are lists, or both are objects
    return {**earlier, **value} if isinstance(value, dict) else [*earlier, *value]


def _flags(reader: ObjectReader, name: str) -> list[_Flag]:
    """Return flags that are written as ``--name=value``, one or a list, with or without dashes."""
    single = isinstance(reader.fields.get(name), str)
    texts = (reader.text(name),) if single else reader.strings(name)
    flags = []
    for index, text in enumerate(texts):
        flag, equals, value = text.partition("=")
        path = reader.path_of(name if single else f"{name}[{index}]")
        flags.append(_make_flag(flag, value if equals else "true", path))
    return flags


def _named_flags(reader: ObjectReader, name: str) -> list[_Flag]:
    """Return flags that are keys of an object, or objects with ``name`` and ``value``."""
    if isinstance(reader.fields.get(name), list):
        entries = reader.children(name)
        return [_make_flag(entry.required("name"), entry.text("value"), entry.path) for entry in entries]
    flags = []
    for flag, value in reader.mapping(name).items():
        values = value if isinstance(value, list) else [value]
        flags += [_make_flag(flag, str(text), reader.path_of(f"{name}[{flag}]")) for text in values]
    return flags


def _make_flag(name: str, value: str, path: str) -> _Flag:
    return _Flag(name.strip().lstrip("-").replace("_", "-"), value, path)


def _pairs(text: str, separator: str = "=") -> dict[str, str]:
    pairs = {}
    for item in filter(None, text.split(",")):
        key, middle, value = item.partition(separator)
        if not middle:
            raise ValueError(f"write KEY{separator}VALUE, not {quote(item)}")
        pairs[key.strip()] = value.strip()
    return pairs


def _boolean(text: str) -> bool:
    if text.lower() not in {"true", "false", "1", "0", "t", "f"}:
        raise ValueError("must be true or false")
    return _is_true(text)


def _integer(text: str) -> int:
    if not text.removeprefix("-").isdecimal():
        raise ValueError("must be an integer")
    return int(text)


def _option(text: str) -> dict[str, str]:
    """Return one option: the kubelet does not split this flag at commas."""
    key, _, value = text.partition("=")
    return {key: value}


def _memory(text: str) -> list[dict[str, Any]]:
    node, colon, limits = text.partition(":")
    if not colon:
        raise ValueError("write NODE:memory=QUANTITY")
    return [{"numaNode": _integer(node), "limits": _pairs(limits)}]


_FLAGS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "cgroups-per-qos": ("cgroupsPerQOS", _boolean),
    "cpu-manager-policy": ("cpuManagerPolicy", str),
    "cpu-manager-policy-options": ("cpuManagerPolicyOptions", _option),
    "cpu-manager-reconcile-period": ("cpuManagerReconcilePeriod", str),
    "enforce-node-allocatable": ("enforceNodeAllocatable", lambda text: text.split(",") if text else []),
    "eviction-hard": ("evictionHard", lambda text: _pairs(text, "<")),
    "feature-gates": (
        "featureGates",
        lambda text: {gate: _boolean(value) for gate, value in _pairs(text).items()},
    ),
    "kube-reserved": ("kubeReserved", _pairs),
    "kube-reserved-cgroup": ("kubeReservedCgroup", str),
    "local-storage-capacity-isolation": ("localStorageCapacityIsolation", _boolean),
    "max-pods": ("maxPods", _integer),
    "memory-manager-policy": ("memoryManagerPolicy", str),
    "pods-per-core": ("podsPerCore", _integer),
    "qos-reserved": ("qosReserved", _pairs),
    "reserved-cpus": ("reservedSystemCPUs", str),
    "reserved-memory": ("reservedMemory", _memory),
    "system-reserved": ("systemReserved", _pairs),
    "system-reserved-cgroup": ("systemReservedCgroup", str),
    "topology-manager-policy": ("topologyManagerPolicy", str),
    "topology-manager-policy-options": ("topologyManagerPolicyOptions", _pairs),
    "topology-manager-scope": ("topologyManagerScope", str),
}

_FORMATS = (
    _Format("kubeadm", _kubeadm, "kubeadm.k8s.io/"),
    _Format("OpenShift", _performance_profile, "performance.openshift.io/", ("PerformanceProfile",)),
    _Format("OpenShift", _openshift_kubelet_config, "machineconfiguration.openshift.io/", ("KubeletConfig",)),
    _Format("nodeadm", _nodeadm, "node.eks.aws/", ("NodeConfig",)),
    _Format("eksctl", _eksctl, "eksctl.io/", ("ClusterConfig",)),
    _Format("kOps", _kops, "kops.k8s.io/", ("Cluster", "InstanceGroup")),
    _Format("Talos", _talos, "v1alpha1", ("KubeletConfig",)),
    _Format("Talos", _talos, fields=("machine",)),
    _Format(
        "GKE",
        partial(_cloud, part="kubeletConfig", names=_GKE_FIELDS, computed=_GKE_COMPUTED),
        fields=("kubeletConfig",),
    ),
    _Format("k3s", _k3s, fields=("kubelet-arg", "kubelet-arg+")),
    _Format("AKS", partial(_cloud, names=_AKS_FIELDS, computed=_AKS_COMPUTED), fields=_AKS_ONLY),
)
