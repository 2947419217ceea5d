"""The codes of all rejections, refusals, warnings and findings: what each means, an example, and what to do.

A code is stable and CamelCase, as Kubernetes' reasons are; where the kubelet or the API server has a reason, it is that
one. ``alignup explain CODE`` prints an entry, and docs/reasons.md has all of them (``make reasons``).
"""

from dataclasses import dataclass

OUT_OF = "OutOf"  #: how the kubelet's reasons begin for a resource of which the node as a whole has too little


@dataclass(frozen=True, slots=True)
class ReasonCode:
    code: str
    meaning: str
    example: str
    remedy: str


REASON_CODES: dict[str, ReasonCode] = {}  #: by code


def _define(code: str, meaning: str, example: str, remedy: str) -> str:
    REASON_CODES[code] = ReasonCode(code, meaning, example, remedy)
    return code


def find_reason(code: str) -> ReasonCode | None:
    """Return the entry for a code in any case; ``OutOfexample.com/gpu`` is one of ``OutOfExtendedResources``."""
    by_lower_case = {name.lower(): reason for name, reason in REASON_CODES.items()}
    family = OUT_OF_EXTENDED_RESOURCES if code.startswith(OUT_OF) and ("/" in code or "hugepages" in code) else ""
    return by_lower_case.get(code.lower()) or REASON_CODES.get(family)


# Rejections by a kubelet

TOPOLOGY_AFFINITY = _define(
    "TopologyAffinityError",
    "The policy of the topology manager accepts no NUMA nodes for all resources of the pod or container together.",
    "10 CPUs under single-numa-node, where each NUMA node has 8.",
    "`alignup why -f pod.yaml` says which NUMA node lacks what, and tries changes: smaller requests, another scope or "
    "policy, other reservations.",
)
UNEXPECTED_ADMISSION = _define(
    "UnexpectedAdmissionError",
    "A manager of the kubelet could not allocate a resource although the hints allowed it, or a device plugin failed.",
    "`Allocate failed due to not enough cpus available to satisfy request, which is unexpected`.",
    "Read the message: request less of the resource that it names, or repair the device plugin. `alignup why` shows "
    "what is free.",
)
SMT_ALIGNMENT = _define(
    "SMTAlignmentError",
    "With full-pcpus-only, the node gives whole cores only, and the request is not a multiple of the threads of a "
    "core, or too few whole cores are free.",
    "3 CPUs on a machine with 2 threads per core.",
    "Request a multiple of the threads per core, or use nodes without full-pcpus-only.",
)
EMPTY_POD_SHARED_POOL = _define(
    "EmptyPodSharedPoolError",
    "The containers with exclusive resources take all pod-level resources, and nothing is left for the others.",
    "spec.resources has 4 CPUs, one container requests all 4, and a second one requests none.",
    "Raise the pod-level requests, or lower those of the containers.",
)
KUBELET_HANGS = _define(
    "KubeletHangs",
    "A defect of the kubelet: it does not return from the selection of CPUs, and admits no more pods.",
    "full-pcpus-only and distribute-cpus-across-numa, and NUMA nodes with free CPUs, but not in whole cores.",
    "Do not send the pod to this node; docs/kubelet-defects.md says which release has the fix.",
)
OUT_OF_CPU = _define(
    "OutOfcpu",
    "The node as a whole has fewer CPUs left than the pod requests.",
    "requested: 4000, used: 30000, capacity: 31000.",
    "Free CPUs on the node, or request less. A scheduler that sees all pods does not send the pod there.",
)
OUT_OF_MEMORY = _define(
    "OutOfmemory",
    "The node as a whole has less memory left than the pod requests.",
    "16Gi on a node with 8Gi left.",
    "Free memory on the node, or request less.",
)
OUT_OF_EPHEMERAL_STORAGE = _define(
    "OutOfephemeral-storage",
    "The node as a whole has less ephemeral storage left than the pod requests.",
    "100Gi on a node with a disk of 50 GiB.",
    "Request less, or use nodes with larger disks.",
)
OUT_OF_PODS = _define(
    "OutOfpods",
    "The node runs as many pods as maxPods of its kubelet allows.",
    "requested: 1, used: 110, capacity: 110.",
    "Raise maxPods, or use more nodes.",
)
OUT_OF_EXTENDED_RESOURCES = _define(
    "OutOfExtendedResources",
    "The node as a whole has too few devices or huge pages left. The reason of the pod has the resource at its end; "
    "this code stands for all of them in metrics.",
    "`OutOfexample.com/gpu`: 4 requested, 3 free.",
    "Free the resource on the node, or request less.",
)
POD_OS_SELECTOR = _define(
    "PodOSSelectorNodeLabelDoesNotMatch",
    "The label kubernetes.io/os of the pod names another operating system than that of the node.",
    "`kubernetes.io/os: windows` on a Linux node.",
    "Remove the label, or use nodes with that system.",
)
POD_OS = _define(
    "PodOSNotSupported",
    "The field spec.os of the pod names another operating system than that of the node.",
    "`os: {name: windows}` on a Linux node.",
    "Correct spec.os, or use nodes with that system.",
)
OTHER = _define(
    "Other",
    "The label of all other reasons in `kubelet_admission_rejections_total`, as in the kubelet.",
    "SMTAlignmentError counts as `Other`.",
    "The status and the decision of the pod have the reason itself: `alignup decisions --outcome rejected`.",
)
DEFERRED = _define(
    "Deferred",
    "The kubelet cannot resize the pod now, and tries again later.",
    "From 2 to 4 CPUs on a node with 1 CPU left.",
    "Wait, or free resources on the node.",
)
INFEASIBLE = _define(
    "Infeasible",
    "The kubelet can never resize the pod on this node.",
    "A Guaranteed pod under the static CPU manager policy.",
    "Create the pod again with the new requests.",
)

# What we say about a pod

NOT_SCHEDULABLE = _define(
    "NotSchedulable",
    "No device plugin or driver of the node provides a resource that the pod requests, so no scheduler binds it there.",
    "`nvidia.com/gpu: 1` on a node without GPUs.",
    "Correct the name of the resource, or install the device plugin.",
)
INVALID = _define(
    "Invalid",
    "The API server rejects the pod.",
    "A request above its limit.",
    "Correct the field that the message names.",
)
INVALID_POD = _define(
    "InvalidPod",
    "No kubelet can decide on the pod: a field that matters cannot be read, or has an invalid value.",
    "A pod whose annotations were changed after its creation to values that kubelets reject.",
    "Correct the field that the message names.",
)
MAY_BE_REJECTED = _define(
    "MayBeRejected",
    "The kubelet or a device plugin chooses devices at random, and after some choices it rejects the pod.",
    "Two containers with a GPU each, and one GPU per NUMA node.",
    "Give all devices to one container, use scope pod, or request devices of one NUMA node only.",
)
NOT_ALIGNED = _define(
    "NotAligned",
    "The kubelet admits the pod, but not, or not for every choice of devices, on NUMA nodes that the demanded policy "
    "accepts.",
    "A GPU on NUMA node 0 and CPUs of both NUMA nodes under policy none.",
    "Use nodes with policy restricted or single-numa-node, or request less.",
)
DEMAND_NOT_MET = _define(
    "DemandNotMet",
    "The kubelet would admit the pod, but not place it as its annotations demand.",
    "`topology.alignup.dev/policy: single-numa-node`, and a node of policy none with CPUs of two NUMA nodes.",
    "Use a node with the demanded policy, request less, or demand less.",
)
UNKNOWN_DEMAND = _define(
    "UnknownDemand",
    "An annotation that says how the pod must be placed has an unknown value, so the pod waits.",
    "`topology.alignup.dev/policy: strict`.",
    "Use one of the values that the message lists.",
)
FRACTIONAL_CPUS = _define(
    "FractionalCPUs",
    "A Guaranteed pod requests a part of a CPU, so that container shares CPUs with others.",
    "`cpu: 1500m`.",
    "Request whole CPUs if the container is to have them for itself.",
)
QOS_BY_RELEASE = _define(
    "QoSClassDependsOnRelease",
    "Pod-level requests or limits that are not complete make another QoS class since Kubernetes 1.37, which completes "
    "them from those of the containers.",
    "Requests only in spec.resources, and containers with limits: Burstable up to 1.36, Guaranteed since 1.37.",
    "Set both requests and limits, of CPU and memory, in spec.resources.",
)
UNKNOWN_ANNOTATION = _define(
    "UnknownAnnotation",
    "An annotation of topology.alignup.dev/ has an unknown name, so it has no effect.",
    "`topology.alignup.dev/polcy: restricted`.",
    "Use one of the names that the message lists.",
)
NOT_PREDICTED = _define(
    "NotPredicted",
    "It is not known what the kubelet of a node would decide.",
    "The node has no observer, or waits for the end of terminating pods.",
    "The text beside the code has the reason. Most pass within seconds; docs/cluster-why.md has the others.",
)
NOT_CONSIDERED = _define(
    "NotConsidered",
    "Schedulers do not consider the node for the pod, whatever its kubelet would decide.",
    "A taint that the pod does not tolerate.",
    "Add a toleration, or change the node selector or the affinity.",
)
NOT_STEERED = _define(
    "NotSteered",
    "The pod opted in to steering, and gets no request for a marker of a NUMA node, or waited for markers too long.",
    "No NUMA node of one of the nodes that it may go to can hold the pod.",
    "docs/steering.md says what a pod needs; or remove the label topology.alignup.dev/steer.",
)
RESERVED_ANNOTATION = _define(
    "ReservedAnnotation",
    "The webhook refuses a new pod with annotations that only controllers of Alignup write.",
    "A pod copied from a running one, with `alignup.dev/node`.",
    "Create the pod without annotations that begin with alignup.dev/.",
)

# Pods that wait for an agent

WAITS_ITS_TURN = _define(
    "WaitsItsTurn",
    "The pod fits, but may not overtake another waiting pod again.",
    "A small pod behind a large one that others have overtaken as often as the limit allows.",
    "Wait, or release the pod before it: `alignup ps` lists them.",
)
PREPARING_DEVICES = _define(
    "DevicesArePrepared",
    "The pod fits, and its device plugins have not answered yet.",
    "A plugin that resets a GPU first.",
    "Wait. If it lasts, read the log of the device plugin.",
)
RELEASED_WHILE_PENDING = _define(
    "Released",
    "The pod was released before its device plugins had answered.",
    "`alignup release` while DevicesArePrepared.",
    "Send the pod again if it is still needed.",
)
NOT_RETRIED = _define(
    "NotRetriedYet",
    "The pod was waiting when the agent was restarted, would fit now, and has not been tried again.",
    "The first seconds after a restart.",
    "Wait.",
)

# Events of the cluster service

WAITS_FOR_STEERING = _define(
    "WaitsForSteering",
    "The pod opted in to steering, and waits for the markers of NUMA nodes, or for a silent observer.",
    "The observer of the node has just started, and its HostState has no markers yet.",
    "Wait: after a minute the pod goes without steering. If that is usual, look at the log of the observer.",
)
NO_NODE = _define(
    "NoNode",
    "No node will admit the pod now, or a gang finds no place; the event counts the nodes by reason.",
    "0/5 nodes will admit the pod: 3 not enough cpu on one NUMA node, 2 no report about this host.",
    "`alignup cluster why POD` says what each node lacks, and what would admit the pod.",
)
MOVES_WOULD_HELP = _define(
    "MovesWouldHelp",
    "The pod, or its gang, waits long, and would have room if these pods moved, or ended; nothing is evicted for it.",
    "'alignup cluster plan trainer-0 -n ml' would move 1 pod to make room for it: shop/web-1 on host-a.",
    "Run the command, which shows each step with its proof; docs/plan.md.",
)
GANG_INCOMPLETE = _define(
    "GangIncomplete",
    "Pods of a gang are missing or not bound, so the others wait.",
    "3 of 4 pods are behind the gate or released.",
    "Create the missing pods, or correct the minimum of the group; docs/gangs.md.",
)
CLAIMS_NOT_ALIGNED = _define(
    "ClaimsNotAligned",
    "The devices of the pod's claims are not beside its CPUs, and its annotation requires that.",
    "`topology.alignup.dev/claims: require`, a claim on NUMA node 1, and free CPUs on node 0 only.",
    "Delete the claims so that they are allocated again, or set the annotation to prefer.",
)
UNKNOWN_CLAIM_PREFERENCE = _define(
    "UnknownClaimPreference",
    "The annotation topology.alignup.dev/claims has an unknown value.",
    "`topology.alignup.dev/claims: always`.",
    "Use one of the values that the event lists.",
)
UNKNOWN_NUMA_PREFERENCE = _define(
    "UnknownNumaPreference",
    "The annotation topology.alignup.dev/numa has an unknown value.",
    "`topology.alignup.dev/numa: first`.",
    "Use pack, spread or the number of a NUMA node.",
)
OTHER_SCHEDULER = _define(
    "OtherScheduler",
    "The pod is behind the gate, and names a scheduler that the gate does not release pods to.",
    "`schedulerName: batch-scheduler`.",
    "Name it with `alignup schedule --gate-scheduler`, or let the pod opt out of the gate.",
)
RELEASE_FAILED = _define(
    "ReleaseFailed",
    "The API server refused to release the pod from the gate.",
    "A policy of the cluster forbids the change.",
    "Correct what the message names; the gate tries again.",
)
NOT_SCHEDULED = _define(
    "NotScheduled",
    "The pod was released from the gate, and its scheduler did not bind it to the chosen node.",
    "A topology spread constraint that excludes the node.",
    "Delete the pod so that its controller creates another, or let the gate do that with --gate-replace-stuck.",
)
GATE_MISSED = _define(
    "GateMissed",
    "The pod opted in to the gate, and was created without it, since the API server did not reach the webhook.",
    "All replicas of the service were restarted at once.",
    "Delete the pod so that its controller creates another; run two replicas.",
)
INTERNAL_ERROR = _define(
    "InternalError",
    "A defect of Alignup: a decision about the pod failed, and is tried again.",
    "The log has `step failed` or `decision failed` with a traceback.",
    "Please report it, with the log.",
)

# Findings about a kubelet's configuration and state files

INVALID_CONFIGURATION = _define(
    "InvalidConfiguration",
    "The kubelet cannot read its configuration, or finds a value invalid, and does not start.",
    "`featureGates: {CPUManager: true}`, a gate that this release does not have.",
    "Correct or remove the field that the finding names.",
)
TOPOLOGY_MANAGER_FAILS = _define(
    "TopologyManagerFails",
    "The kubelet stops at its topology manager.",
    "More than 8 NUMA nodes without max-allowable-numa-nodes.",
    "Follow the advice of the finding, or set topologyManagerPolicy to none.",
)
CPU_MANAGER_FAILS = _define(
    "CPUManagerFails",
    "The kubelet stops at its CPU manager.",
    "Policy static without a reserved CPU.",
    "Follow the advice of the finding: it has YAML to paste where that is possible.",
)
MEMORY_MANAGER_FAILS = _define(
    "MemoryManagerFails",
    "The kubelet stops at its memory manager.",
    "reservedMemory does not add up to systemReserved, kubeReserved and evictionHard.",
    "Paste the reservedMemory that the finding proposes.",
)
RESERVATION_EXCEEDS_MACHINE = _define(
    "ReservationExceedsMachine",
    "More is reserved than the machine, or one of its NUMA nodes, has.",
    "reservedMemory of 8Gi on a NUMA node with 4 GiB.",
    "Reserve less: systemReserved, kubeReserved and evictionHard add up.",
)
NOT_CHECKED = _define(
    "NotChecked",
    "A file could not be read, or exceeds a limit of Alignup; the kubelet may accept it.",
    "A configuration nested more than 100 levels deep.",
    "Run the command as a user who may read the file, or simplify the value.",
)
IGNORED_SETTING = _define(
    "IgnoredSetting",
    "The kubelet starts, and a setting has no effect, or less than it seems.",
    "topologyManagerScope under topologyManagerPolicy none.",
    "Remove the setting, or change the one that it depends on.",
)
FEATURE_GATE_DUE = _define(
    "FeatureGateDue",
    "A feature gate is due for removal in the release.",
    "1.38 is due to remove a gate that is set.",
    "Remove it from featureGates before the upgrade.",
)
EVICTION_THRESHOLD = _define(
    "IneffectiveEvictionThreshold",
    "The kubelet does not evict pods for a signal, because its threshold is missing or not a number.",
    "evictionHard without memory.available, which replaces the defaults.",
    "Add the threshold, or set mergeDefaultEvictionSettings to true.",
)
NOTHING_TO_ALIGN = _define(
    "NothingToAlign",
    "The machine has one NUMA node.",
    "A virtual machine without virtual NUMA nodes.",
    "Nothing, if the machine is as intended.",
)
MANAGERS_NOT_ALIGNED = _define(
    "ManagersNotAligned",
    "Some resources are not aligned with others, because a manager has policy none.",
    "cpuManagerPolicy static and topologyManagerPolicy none.",
    "Set topologyManagerPolicy, and the policies of the managers, if pods are to be aligned.",
)
MANY_NUMA_NODES = _define(
    "ManyNUMANodes",
    "The machine has more than 8 NUMA nodes, and the kubelet tries all combinations of them for each pod.",
    "16 NUMA nodes: 65,535 hints for each resource.",
    "Request few aligned resources per pod, or let the machine show fewer NUMA nodes.",
)
PARTLY_RESERVED_CORE = _define(
    "PartlyReservedCore",
    "One thread of a core is reserved and another is not, under full-pcpus-only.",
    "reservedSystemCPUs 0, where core 0 has CPUs 0 and 16.",
    "Reserve whole cores.",
)
ALL_CPUS_RESERVED = _define(
    "AllCPUsReserved",
    "No CPU is left for exclusive use.",
    "reservedSystemCPUs 0-3 on a machine with 4 CPUs.",
    "Reserve fewer CPUs.",
)
SHARED_POOL_MAY_BE_EMPTY = _define(
    "SharedPoolMayBeEmpty",
    "With strict-cpu-reservation, containers can take all CPUs, and then the kubelet does not start again.",
    "default cpuset cannot be empty.",
    "Keep a CPU shared; to recover, `alignup doctor --write` repairs the state file.",
)
RESERVED_ON_ONE_NODE = _define(
    "ReservedCPUsOnOneNUMANode",
    "All reserved CPUs are on one NUMA node, which has less for pods than the others.",
    "reservedSystemCPUs 0-3, all on NUMA node 0.",
    "Nothing, or spread the reserved CPUs over the NUMA nodes.",
)
RESERVED_ARE_SHARED = _define(
    "ReservedCPUsAreShared",
    "Containers without exclusive CPUs also run on the reserved CPUs.",
    "reservedSystemCPUs without strict-cpu-reservation.",
    "Set strict-cpu-reservation to true to keep them off.",
)
STATE_FILE_REJECTED = _define(
    "StateFileRejected",
    "The kubelet cannot use a state file: it does not start on that of the CPU or memory manager, and forgets the "
    "devices of pods without that of the device manager.",
    "The checksum does not match, or the policy is another one than configured.",
    "`alignup doctor --kubelet-dir DIR --write` repairs it, after a backup.",
)
ALLOCATION_NOT_RESTORED = _define(
    "AllocationNotRestored",
    "A state file gives a container resources that it cannot keep.",
    "CPU 9 of a container is offline.",
    "`alignup doctor --kubelet-dir DIR --write` drops the entry; the kubelet allocates again.",
)
OUTDATED_STATE_FILE = _define(
    "OutdatedStateFile",
    "A state file is of an older version than the kubelet writes, or its copy for older kubelets is wrong.",
    "Version 2 of cpu_manager_state after an upgrade.",
    "Nothing: the kubelet rewrites it. Before a downgrade, `alignup doctor --write` corrects the copy.",
)
HELD_BY_UNKNOWN_POD = _define(
    "HeldByUnknownPod",
    "A state file has resources of a pod that is not among the given ones.",
    "A pod that was deleted while the kubelet was down.",
    "Nothing: the kubelet releases them once it runs. Or give all pods with --pods.",
)
LEFTOVER_FILE = _define(
    "LeftoverFile",
    "A file is left over from an interrupted write.",
    "`.cpu_manager_state123`.",
    "Delete it.",
)
DEVICES_MISSING = _define(
    "DevicesMissing",
    "Containers hold devices that were not healthy, or more than the machine has.",
    "A GPU that failed after the container got it.",
    "Check the device and its plugin.",
)
LATE_DEVICE_PLUGIN = _define(
    "LateDevicePlugin",
    "Pods hold devices; a kubelet that starts before their device plugin has registered again rejects these pods.",
    "A node that is rebooted with pods of GPUs.",
    "Keep a taint on the node until the device plugin is ready.",
)
IMPLAUSIBLE_DISTANCES = _define(
    "ImplausibleDistances",
    "The firmware reports distances between NUMA nodes that cannot be true, and prefer-closest-numa-nodes uses them.",
    "A distance of 10 between two NUMA nodes, which is that of a node to itself.",
    "Compare them with `numactl -H`; a new firmware may correct them.",
)
NUMA_BALANCING = _define(
    "NUMABalancing",
    "The kernel moves memory between NUMA nodes by itself, although the managers place containers.",
    "kernel.numa_balancing is 1 on a node with cpuManagerPolicy static.",
    "Set kernel.numa_balancing=0 in /etc/sysctl.d on nodes whose pods are aligned.",
)
INVALID_SUB_IDS = _define(
    "InvalidSubIDs",
    "The ranges of IDs in subuid and subgid, or those of a running pod, keep the new kubelet from starting.",
    "A range that ends at 4294967295.",
    "Give the user kubelet a range that ends below it, or delete the pod before the upgrade.",
)
