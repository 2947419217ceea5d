"""A simulated kubelet whose observer needs no files and sockets."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from alignup.align.errors import PluginError
from alignup.documents.host_state import HostStateDocument
from alignup.kubernetes.plugins.pod_resources import ListedPod, ListedResources, PodResourcesClient
from alignup.observe.observation import Sources, join
from alignup.observe.published_objects import host_state
from alignup.testing.simulated_kubelet import SimulatedKubelet

if TYPE_CHECKING:
    from alignup.align.claims.resource_claims import Slice


class ObservedKubelet(SimulatedKubelet):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.slices: tuple[Slice, ...] | None = None
        self.addresses: dict[str, str] = {}  #: of PCI devices; see ``Sources``

    def sources(self, **changes: Any) -> Sources:
        made = Sources(
            machine=self.machine,
            configuration=self.configuration,
            files=self.files,
            allocated=self.allocated,
            listed=self.listed,
            allocatable=self.allocatable,
            pods=dict(self.pods),
            slices=self.slices,
            addresses=self.addresses,
            kubelet="1",
        )
        return replace(made, **changes)

    @property
    def published_state(self) -> HostStateDocument:
        return host_state(join(self.sources()))


class SimulatedPodResources(PodResourcesClient):
    """PodResources of a simulated kubelet."""

    def __init__(self, kubelet: SimulatedKubelet) -> None:
        self.kubelet = kubelet
        self.fails = False

    async def list(self) -> tuple[ListedPod, ...]:
        if self.fails:
            raise PluginError("no such socket")
        return self.kubelet.listed

    async def allocatable(self) -> ListedResources:
        return self.kubelet.allocatable
