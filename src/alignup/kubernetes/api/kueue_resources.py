"""The resources of Kueue (kueue.x-k8s.io/v1beta2) that an admission check reads and writes."""

from collections.abc import Iterator, Mapping
from enum import StrEnum

from alignup.align.errors import ParseError
from alignup.kubernetes.api.objects import ApiPodSpec, Condition, ObjectMeta, PartialObject, Toleration
from alignup.kubernetes.api.resource import Resource
from alignup.kubernetes.manifests.pod_decoder import Labels, ObjectPart

GROUP, VERSION = "kueue.x-k8s.io", "v1beta2"
WORKLOAD_ANNOTATION = "kueue.x-k8s.io/workload"  #: of pods, with the name of their Workload


class CheckState(StrEnum):
    PENDING = "Pending"
    READY = "Ready"
    RETRY = "Retry"
    REJECTED = "Rejected"


class PodSetTemplate(ObjectPart, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: ApiPodSpec = ApiPodSpec()


class PodSet(ObjectPart, frozen=True):
    """Equal pods of a workload."""

    name: str = "main"
    count: int = 1
    template: PodSetTemplate = PodSetTemplate()


class IndividualValues(ObjectPart, frozen=True):
    roots: tuple[str, ...] = ()
    prefix: str = ""
    suffix: str = ""


class LevelValues(ObjectPart, frozen=True):
    universal: str | None = None
    individual: IndividualValues | None = None

    def of(self, domain: int) -> str:
        """Return the value of the label in a domain."""
        if self.individual is None:
            return self.universal or ""
        return f"{self.individual.prefix}{self.individual.roots[domain]}{self.individual.suffix}"


class PodCounts(ObjectPart, frozen=True):
    universal: int | None = None
    individual: tuple[int, ...] = ()


class TopologySlice(ObjectPart, frozen=True):
    domain_count: int = 0
    values_per_level: tuple[LevelValues, ...] = ()
    pod_counts: PodCounts = PodCounts()


class TopologyAssignment(ObjectPart, frozen=True):
    """How many pods go to the nodes with which labels."""

    levels: tuple[str, ...] = ()
    slices: tuple[TopologySlice, ...] = ()

    def domains(self) -> Iterator[tuple[Mapping[str, str], int]]:
        """Yield the labels of the nodes of each domain, and how many pods go there.

        ``ParseError`` if there are fewer values than domains.
        """
        for part in self.slices:
            for domain in range(part.domain_count):
                counts = part.pod_counts
                try:
                    labels = {
                        level: values.of(domain)
                        for level, values in zip(self.levels, part.values_per_level, strict=True)
                    }
                    count = counts.individual[domain] if counts.universal is None else counts.universal
                except (IndexError, ValueError):
                    raise ParseError("its topologyAssignment has too few values") from None
                yield labels, count


class PodSetAssignment(ObjectPart, frozen=True):
    name: str = "main"
    count: int | None = None
    flavors: Mapping[str, str] = {}  #: resource → ResourceFlavor
    topology_assignment: TopologyAssignment | None = None


class WorkloadAdmission(ObjectPart, frozen=True):
    pod_set_assignments: tuple[PodSetAssignment, ...] = ()


class CheckStatus(ObjectPart, frozen=True):
    """The state of one admission check of a workload."""

    name: str
    state: str = CheckState.PENDING
    message: str = ""
    last_transition_time: str | None = None
    retry_count: int = 0


class WorkloadSpec(ObjectPart, frozen=True):
    pod_sets: tuple[PodSet, ...] = ()
    priority: int | None = None
    active: bool = True


class WorkloadStatus(ObjectPart, frozen=True):
    conditions: tuple[Condition, ...] = ()
    admission: WorkloadAdmission | None = None
    admission_checks: tuple[CheckStatus, ...] = ()


class KueueWorkload(PartialObject, frozen=True):
    spec: WorkloadSpec = WorkloadSpec()
    status: WorkloadStatus = WorkloadStatus()

    def has_condition(self, name: str) -> bool:
        return any(condition.type == name and condition.status == "True" for condition in self.status.conditions)


class AdmissionCheckSpec(ObjectPart, frozen=True):
    controller_name: str = ""


class AdmissionCheckStatus(ObjectPart, frozen=True):
    conditions: tuple[Condition, ...] = ()


class AdmissionCheck(PartialObject, frozen=True):
    spec: AdmissionCheckSpec = AdmissionCheckSpec()
    status: AdmissionCheckStatus = AdmissionCheckStatus()


class FlavorSpec(ObjectPart, frozen=True):
    node_labels: Labels = {}
    tolerations: tuple[Toleration, ...] = ()


class ResourceFlavor(PartialObject, frozen=True):
    """What is added to the pods that get a flavor: labels of nodes that they select, and tolerations."""

    spec: FlavorSpec = FlavorSpec()


WORKLOADS = Resource(
    type=KueueWorkload, kind="Workload", plural="workloads", group=GROUP, version=VERSION, namespaced=True
)
ADMISSION_CHECKS = Resource(
    type=AdmissionCheck, kind="AdmissionCheck", plural="admissionchecks", group=GROUP, version=VERSION
)
RESOURCE_FLAVORS = Resource(
    type=ResourceFlavor, kind="ResourceFlavor", plural="resourceflavors", group=GROUP, version=VERSION
)
