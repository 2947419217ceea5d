"""What the NRI plugin of a node gave to each container, as it writes it to a file for ``alignup audit``."""

from alignup.documents.codec import Document, LinuxList

FILE = "placements.json"  #: in the plugin's directory
REFRESH = 10.0  #: seconds after which an unchanged file is written again, as a sign of life


class PlacedContainerDocument(Document, frozen=True):
    id: str
    pod: str  #: namespace/name
    container: str
    cpus: LinuxList  #: empty: any
    memory_nodes: LinuxList  #: empty: any
    exclusive: bool


class PlacementsDocument(Document, frozen=True, kw_only=True):
    version: int = 1
    mode: str
    problem: str = ""  #: why the runtime sends no events; empty: it does
    written: float  #: seconds since 1970
    containers: list[PlacedContainerDocument] = []
    unaligned: dict[str, str] = {}  #: pods that run without a decision → why
