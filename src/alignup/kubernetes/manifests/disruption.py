"""Which pods may be evicted: what their objects, their controllers and their volumes say about it.

A reason is a few words that follow a number of pods, such as "of DaemonSets".
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from alignup.align.workload.names import NEVER_MOVE_ANNOTATION
from alignup.align.workload.validation import MIRROR_ANNOTATION
from alignup.kubernetes.manifests.pod_decoder import ObjectPart, PodMetadata

SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"
DAEMON_SETS = "of DaemonSets"
EXEMPT = "in exempt namespaces"
JOBS = "of Jobs that count an eviction as a failure"
LOCAL_VOLUMES = "with local volumes (allow them with --allow-local-volumes)"
MAYBE_LOCAL = "with volumes that may be local (allow them with --allow-local-volumes)"
NEVER_MOVE = f"with {NEVER_MOVE_ANNOTATION}"
STATIC = "that are static"
TERMINATING = "that are terminating"
UNSAFE = f'with {SAFE_TO_EVICT}: "false"'
_IN_MEMORY = ("Memory", "HugePages")


class OwnerReference(ObjectPart, frozen=True):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


class EmptyDirectory(ObjectPart, frozen=True):
    medium: str = ""  #: ``Memory``, ``HugePages`` or ``HugePages-SIZE``: not on disk


class ClaimedVolume(ObjectPart, frozen=True):
    claim_name: str = ""


class PodVolume(ObjectPart, frozen=True):
    """A volume of a pod, as far as it may be local."""

    name: str = ""
    host_path: dict[str, Any] | None = None
    empty_dir: EmptyDirectory | None = None
    persistent_volume_claim: ClaimedVolume | None = None
    ephemeral: dict[str, Any] | None = None  #: a claim with the names of pod and volume


class EvictedMetadata(PodMetadata, frozen=True):
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    owner_references: tuple[OwnerReference, ...] = ()


class EvictedSpec(ObjectPart, frozen=True):
    volumes: tuple[PodVolume, ...] = ()


class EvictedPod(ObjectPart, frozen=True):
    """What decides whether a pod may be evicted."""

    metadata: EvictedMetadata = EvictedMetadata()
    spec: EvictedSpec = EvictedSpec()

    @property
    def controller(self) -> OwnerReference | None:
        """The owner that creates the pod again."""
        return next((owner for owner in self.metadata.owner_references if owner.controller), None)

    def claims(self) -> list[str]:
        """Return the PersistentVolumeClaims of the pod as ``NAMESPACE/NAME``."""
        names = [
            volume.persistent_volume_claim.claim_name
            if volume.persistent_volume_claim is not None
            else f"{self.metadata.name}-{volume.name}"
            for volume in self.spec.volumes
            if volume.persistent_volume_claim is not None or volume.ephemeral is not None
        ]
        return [f"{self.metadata.namespace}/{name}" for name in names]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionRules:
    """Which pods a plan evicts.

    *local_claims* are PersistentVolumeClaims of local volumes, and *disruptable_jobs* the uids of Jobs that ignore
    evictions; ``None``: unknown.
    """

    exempt: Collection[str] = ()  #: namespaces
    allow_preemption: bool = False  #: whether pods may be evicted that get no new place
    allow_local_volumes: bool = False
    local_claims: Collection[str] | None = None
    disruptable_jobs: Collection[str] | None = None

    def protection(self, pod: EvictedPod) -> str:
        """Return why *pod* is never evicted; empty: it may be."""
        metadata, controller = pod.metadata, pod.controller
        kind = controller.kind if controller else ""
        if MIRROR_ANNOTATION in metadata.annotations or kind == "Node":
            return STATIC
        if kind == "DaemonSet":
            return DAEMON_SETS
        if metadata.namespace in self.exempt:
            return EXEMPT
        if metadata.annotations.get(SAFE_TO_EVICT) == "false":
            return UNSAFE
        if metadata.annotations.get(NEVER_MOVE_ANNOTATION, "false") != "false":
            return NEVER_MOVE
        if metadata.deletion_timestamp is not None:
            return TERMINATING
        if kind == "Job" and (controller is None or controller.uid not in (self.disruptable_jobs or ())):
            return JOBS
        return "" if self.allow_local_volumes else self._local_volumes(pod)

    def _local_volumes(self, pod: EvictedPod) -> str:
        directories = (volume.empty_dir for volume in pod.spec.volumes if volume.empty_dir is not None)
        on_disk = (not directory.medium.startswith(_IN_MEMORY) for directory in directories)
        if any(on_disk) or any(volume.host_path is not None for volume in pod.spec.volumes):
            return LOCAL_VOLUMES
        claims = pod.claims()
        if claims and self.local_claims is None:
            return MAYBE_LOCAL
        return LOCAL_VOLUMES if any(claim in (self.local_claims or ()) for claim in claims) else ""
