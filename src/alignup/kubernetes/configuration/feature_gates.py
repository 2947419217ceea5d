"""The feature gates of the kubelet 1.37: for each its default, whether it is locked, and its dependencies.

A kubelet does not start with an unknown gate, with a locked gate set to another value, or with a gate enabled whose
dependencies are disabled. So all gates are listed, not only those that matter to alignment
(``align.settings.FEATURE_GATES``). ``AllAlpha`` and ``AllBeta`` set every gate of that stage that is not set itself.
"""

from collections.abc import Iterator, Mapping

from alignup.align.errors import Problem, ProblemKind
from alignup.align.settings import FEATURE_GATES, FeatureGate, FeatureGates, FeatureStage

_ALPHA = """
    APIServerWebhookAuthenticationToken APIServingWithRoutine AtomicWriteVolumeUserFields CBORServingAndStorage
    CPUManagerPolicyAlphaOptions CRIListStreaming CSIVolumeHealth ClientsAllowCBOR ClientsPreferCBOR
    CloudControllerManagerWatchBasedRoutesReconciliation CloudControllerManagerWebhook CompositePodGroup
    ConsistentListFromCacheSkipTimeoutFallback ContainerStopSignals ControllerManagerReleaseLeaderElectionLockOnExit
    CrossNamespaceVolumeDataSource DRADerivedAttributes DRADeviceCompatibilityGroups DRAListTypeAttributes
    DRANodeAllocatableResources DRAOptionalNodeOperations DRAPartitionableDevicesType DRAResourcePoolStatus
    DefaultPodSysctls EmptyDirVolumeMode EventedPLEG EvictionRequestAPI GRPCContainerProbeTLS H2CContainerProbe
    ImageVolumeWithDigest InPlacePodVerticalScalingExclusiveCPUs InPlacePodVerticalScalingExclusiveMemory
    InPlacePodVerticalScalingMemoryBackedVolumes InPlacePodVerticalScalingSchedulerPreemption
    InterPodAffinityHostnameFastPath KubeProxyNFTablesLocalhostNodePorts KubeletAllocatedPodsEndpoint
    LoggingAlphaOptions MutablePVNodeAffinity NodeLifecycleConditions PodGroupPreemptionPolicy
    PodLogsQuerySplitStreams QOSReserved ReduceDefaultCrashLoopBackOffDecay RuntimeClassInImageCriApi
    SchedulerPreQueueingHints ShardedListAndWatch StatefulSetRecreateStrategy StorageVersionAPI
    TaintTolerationComparisonOperators TopologyAwareWorkloadScheduling TopologyManagerPolicyAlphaOptions
    UserNamespacesHostNetworkSupport VolumeBindMountOptions WindowsCPUAndMemoryAffinity WorkloadWithJob
"""
_BETA_ON = """
    APIResponseCompression APIServerIdentity AllowParsingUserUIDFromCertAuth AllowUnsafeMalformedObjectDeletion
    AtomicFIFO AuthorizePodWebsocketUpgradeCreatePermission CPUManagerPolicyBetaOptions CRDObservedGenerationTracking
    ClearingNominatedNodeNameAfterBinding ClientsAllowCARotation ClientsAllowTLSCacheGC ComponentFlagz
    ComponentStatusz ConcurrentWatchObjectDecode ConstrainedImpersonation ContainerCheckpoint ContainerRestartRules
    ContextualLogging DRAConsumableCapacity DRADeviceBindingConditions DRAPartitionableDevices
    DRAResourceClaimGranularStatusAuthorization DRASchedulerFilterTimeout DeclarativeValidationBeta
    DeploymentReplicaSetTerminatingReplicas DetectCacheInconsistency EnvFiles EtcdRangeStream
    ExcludeAdmissionWebhookVirtualResources ExtendWebSocketsToKubelet GracefulNodeShutdown
    GracefulNodeShutdownBasedOnPodPriority HPAGeneration HPAOptimizedSelectorStore HPAScaleToZero
    HugepageAwareEviction InOrderInformersBatchProcess InPlacePodLevelResourcesVerticalScaling
    KubeletCrashLoopBackOffMax KubeletEnsureSecretPulledImages KubeletInUserNamespace KubeletSeparateDiskGC
    KubeletServiceAccountTokenForCredentialProviders ListFromCacheSnapshot LoggingBetaOptions
    ManifestBasedAdmissionControlConfig MatchLabelKeysInPodTopologySpread
    MatchLabelKeysInPodTopologySpreadSelectorMerge MaxUnavailableStatefulSet MemoryQoS
    MutablePodResourcesForSuspendedJobs MutableSchedulingDirectivesForSuspendedJobs NFTablesNetlink NativeHistograms
    NodeControllerLeaseCircuitBreaker NominatedNodeNameForExpectation OpenAPIEnums OpportunisticBatching
    PersistentVolumeClaimUnusedSinceTime PodDeletionCost PodLevelResources PodLevelResourcesFixDefaulting
    PodLevelResourcesFixKubeletQOSClass PodTopologyLabelsAdmission PodsAPI PortForwardWebsockets
    ReloadKubeletClientCAFile ReloadKubeletServerCertificateFile RemoteRequestHeaderUID ResourceHealthStatus
    ResourceHealthStatusMessage RestartAllContainersOnContainerExits RotateKubeletServerCertificate
    SchedulerAsyncPreemption SchedulerPopFromBackoffQ ServiceAccountNodeAudienceRestriction SizeBasedListCostEstimate
    StaleControllerConsistencyDaemonSet StaleControllerConsistencyHPA StaleControllerConsistencyJob
    StaleControllerConsistencyReplicaSet StaleControllerConsistencyStatefulSet StatefulSetSemanticRevisionComparison
    StorageCapacityScoring StorageVersionHash StrictIPCIDRValidation
    StructuredAuthenticationConfigurationEgressSelector StructuredAuthenticationConfigurationJWKSMetrics
    TokenRequestServiceAccountUIDValidation TopologyManagerPolicyBetaOptions TranslateStreamCloseWebsocketRequests
    UnauthenticatedHTTP2DOSMitigation UnknownVersionInteroperabilityProxy UnlockWhileProcessingFIFO VolumeLimitScaling
    WatchList WatchListClient WatchListCompression WebhookRoundTripLoadBalancing WindowsGracefulNodeShutdown
"""
_BETA_OFF = """
    CoordinatedLeaderElection DRAFractionalCapacityRange DRAWorkloadResourceClaims GenericWorkload
    LocalStorageCapacityIsolationFSQuotaMonitoring PodAndContainerStatsFromCRI PodLevelResourceManagers
    SchedulerAsyncAPICalls
"""
_LOCKED_ON = """
    AggregatedDiscoveryRemoveBetaType CPUManagerPolicyOptions CRDValidationRatcheting CSIServiceAccountTokenSecrets
    CustomResourceFieldSelectors DRAAdminAccess DRAExtendedResource DRAPrioritizedList DRAResourceClaimDeviceStatus
    DeclarativeValidation DisableAllocatorDualWrite DisableCPUQuotaWithExclusiveCPUs DisableNodeKubeProxyVersion
    DynamicResourceAllocation ExecProbeTimeout ExternalServiceAccountTokenSigner HPAConfigurableTolerance
    HostnameOverride ImageMaximumGCAge ImageVolume InOrderInformers InPlacePodVerticalScaling
    InPlacePodVerticalScalingInitContainers JobManagedBy KubeletCgroupDriverFromCRI KubeletFineGrainedAuthz KubeletPSI
    KubeletPodResourcesDynamicResources KubeletPodResourcesGet KubeletTracing MatchLabelKeysInPodAffinity
    MultiCIDRServiceAllocator MutableCSINodeAllocatableCount NFTablesProxyMode NodeDeclaredFeatures
    NodeInclusionPolicyInPodTopologySpread NodeLogQuery NodeSwap PLEGOnDemandRelist PodObservedGenerationTracking
    PodReadyToStartContainersCondition PodSchedulingReadiness PreferSameTrafficDistribution ProcMountType
    RecoverVolumeExpansionFailure RecursiveReadOnlyMounts RelaxedEnvironmentVariableValidation
    RelaxedServiceNameValidation SELinuxChangePolicy SELinuxMountReadWriteOncePod SeparateTaintEvictionController
    ServiceAccountTokenJTI ServiceAccountTokenNodeBinding ServiceAccountTokenNodeBindingValidation
    ServiceAccountTokenPodNodeInfo SupplementalGroupsPolicy SystemdWatchdog TopologyManagerPolicyOptions
    UserNamespacesSupport VolumeAttributesClass WatchCacheInitializationPostStartHook WinDSR WinOverlay
"""
_LOCKED_OFF = """
    AllowOverwriteTerminationGracePeriodSeconds DeclarativeValidationTakeover GitRepoVolumeDriver
    SeparateCacheWatchRPC
"""
_GA_ON = """
    AllowServiceExternalIPs ClusterTrustBundle ClusterTrustBundleProjection CustomCPUCFSQuotaPeriod
    DRADeviceTaintRules DRADeviceTaints InformerResourceVersion KubeProxyIPVS KubeletPodResourcesListUseActivePods
    MutatingAdmissionPolicy PodCertificateRequest SELinuxMount ServiceCIDRStatusFieldWiping StorageNamespaceIndex
    StorageVersionMigrator
"""
_GA_OFF = """
    AllowDNSOnlyNodeCSR AllowInsecureKubeletCertificateSigningRequests ChangeContainerStatusOnKubeletRestart KMSv1
    KubeletRegistrationGetOnExistsOnly WindowsHostNetwork
"""
#: Deprecated gates count as GA: only their own name sets them.
KUBELET_GATES: Mapping[str, FeatureGate] = {
    **dict.fromkeys(_ALPHA.split(), FeatureGate(FeatureStage.ALPHA, default=False)),
    **dict.fromkeys(_BETA_ON.split(), FeatureGate(FeatureStage.BETA, default=True)),
    **dict.fromkeys(_BETA_OFF.split(), FeatureGate(FeatureStage.BETA, default=False)),
    **dict.fromkeys(_LOCKED_ON.split(), FeatureGate(FeatureStage.GA, default=True, locked=True)),
    **dict.fromkeys(_LOCKED_OFF.split(), FeatureGate(FeatureStage.GA, default=False, locked=True)),
    **dict.fromkeys(_GA_ON.split(), FeatureGate(FeatureStage.GA, default=True)),
    **dict.fromkeys(_GA_OFF.split(), FeatureGate(FeatureStage.GA, default=False)),
}

#: A required gate, and the gates that depend on it.
_DEPENDENTS = {
    "ClusterTrustBundle": "ClusterTrustBundleProjection",
    "DynamicResourceAllocation": """DRAAdminAccess DRAConsumableCapacity DRADerivedAttributes
        DRADeviceBindingConditions DRADeviceCompatibilityGroups DRADeviceTaints DRAExtendedResource
        DRAListTypeAttributes DRANodeAllocatableResources DRAOptionalNodeOperations DRAPartitionableDevices
        DRAPartitionableDevicesType DRAPrioritizedList DRAResourceClaimGranularStatusAuthorization
        DRAResourcePoolStatus DRASchedulerFilterTimeout DRAWorkloadResourceClaims ResourceHealthStatus""",
    "DRADeviceTaints": "DRADeviceTaintRules",
    "DRAConsumableCapacity": "DRAFractionalCapacityRange",
    "DeclarativeValidation": "DeclarativeValidationBeta DeclarativeValidationTakeover",
    "MultiCIDRServiceAllocator": "DisableAllocatorDualWrite",
    "PLEGOnDemandRelist": "EventedPLEG",
    "GracefulNodeShutdown": "GracefulNodeShutdownBasedOnPodPriority WindowsGracefulNodeShutdown",
    "ImageVolume": "ImageVolumeWithDigest",
    "InPlacePodVerticalScaling": """InPlacePodLevelResourcesVerticalScaling InPlacePodVerticalScalingExclusiveCPUs
        InPlacePodVerticalScalingExclusiveMemory InPlacePodVerticalScalingInitContainers
        InPlacePodVerticalScalingMemoryBackedVolumes InPlacePodVerticalScalingSchedulerPreemption
        KubeletAllocatedPodsEndpoint""",
    "MatchLabelKeysInPodTopologySpread": "MatchLabelKeysInPodTopologySpreadSelectorMerge",
    "AtomicFIFO": """NodeControllerLeaseCircuitBreaker StaleControllerConsistencyDaemonSet
        StaleControllerConsistencyHPA StaleControllerConsistencyJob StaleControllerConsistencyReplicaSet
        StaleControllerConsistencyStatefulSet""",
    "UserNamespacesSupport": "ProcMountType UserNamespacesHostNetworkSupport",
    "ResourceHealthStatus": "ResourceHealthStatusMessage",
    "ContainerRestartRules": "RestartAllContainersOnContainerExits",
    "ServiceAccountTokenNodeBindingValidation": "ServiceAccountTokenNodeBinding",
    "APIServerIdentity": "StorageVersionAPI UnknownVersionInteroperabilityProxy",
    "DRAPartitionableDevices": "DRADeviceCompatibilityGroups DRAPartitionableDevicesType",
    "DRAResourceClaimDeviceStatus": "DRADeviceBindingConditions DRAResourceClaimGranularStatusAuthorization",
    "GenericWorkload": """CompositePodGroup DRAWorkloadResourceClaims PodGroupPreemptionPolicy
        TopologyAwareWorkloadScheduling WorkloadWithJob""",
    "PodLevelResources": """InPlacePodLevelResourcesVerticalScaling PodLevelResourceManagers
        PodLevelResourcesFixDefaulting PodLevelResourcesFixKubeletQOSClass""",
    "DRAResourcePoolStatus": "DRAPartitionableDevicesType",
    "TopologyAwareWorkloadScheduling": "CompositePodGroup",
    "NodeDeclaredFeatures": """DRAOptionalNodeOperations ExtendWebSocketsToKubelet H2CContainerProbe
        InPlacePodLevelResourcesVerticalScaling InPlacePodVerticalScalingInitContainers
        InPlacePodVerticalScalingMemoryBackedVolumes RestartAllContainersOnContainerExits
        UserNamespacesHostNetworkSupport""",
}
#: Gate → the gates that it requires, in the kubelet's order.
DEPENDENCIES: Mapping[str, tuple[str, ...]] = {
    name: tuple(required for required, dependents in _DEPENDENTS.items() if name in dependents.split())
    for name in sorted({name for dependents in _DEPENDENTS.values() for name in dependents.split()})
}

_ALL = {"AllAlpha": FeatureStage.ALPHA, "AllBeta": FeatureStage.BETA}


def problems(chosen: Mapping[str, bool]) -> tuple[Problem, ...]:
    """Return the kubelet's errors about the gates *chosen* in a file; of several it reports random ones."""
    if rejected := tuple(unsettable(chosen)):
        return rejected
    unmet = {name: [need for need in needs if not is_enabled(need, chosen)] for name, needs in DEPENDENCIES.items()}
    return tuple(
        Problem(
            f"featureGates[{name}]", f"{name} is enabled, but depends on features that are disabled: [{' '.join(off)}]"
        )
        for name, off in unmet.items()
        if off and is_enabled(name, chosen)
    )


def unsettable(chosen: Mapping[str, bool]) -> Iterator[Problem]:
    """Yield the problems of the gates that do not exist, or that are locked to another value."""
    for name, on in sorted(chosen.items()):
        field = f"featureGates[{name}]"
        gate = KUBELET_GATES.get(name)
        if gate is None and name not in _ALL:
            yield Problem(field, f"unrecognized feature gate: {name}", ProblemKind.UNKNOWN_GATE)
        if gate and gate.locked and on is not gate.default:
            fixed = str(gate.default).lower()
            message = f"cannot set feature gate {name} to {str(on).lower()}, feature is locked to {fixed}"
            yield Problem(field, message, ProblemKind.LOCKED_GATE)


def resolve(chosen: Mapping[str, bool]) -> FeatureGates:
    """Return the gates that matter to alignment; *chosen* must have no problems."""
    if not chosen:
        return FeatureGates()
    changed = {name: is_enabled(name, chosen) for name in FEATURE_GATES}
    return FeatureGates({name: on for name, on in changed.items() if on is not FEATURE_GATES[name].default})


def is_enabled(name: str, chosen: Mapping[str, bool]) -> bool:
    if name in chosen:
        return chosen[name]
    gate = KUBELET_GATES[name]
    for word, stage in _ALL.items():
        if word in chosen and gate.stage is stage:
            return chosen[word]
    return gate.default
