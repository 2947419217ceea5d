"""The file in which the plugin says what each container should have, for ``alignup audit``."""

import time
from collections.abc import Callable
from pathlib import Path

from alignup import atomic_files
from alignup.align import bits
from alignup.documents import codec
from alignup.documents.nri_placements import FILE, REFRESH, PlacedContainerDocument, PlacementsDocument
from alignup.nri.assist import AssistPlugin


class PlacementFile:
    """The file of *plugin* in *directory*."""

    def __init__(self, directory: Path, plugin: AssistPlugin, *, now: Callable[[], float] = time.time) -> None:
        self._path = directory / FILE
        self._plugin = plugin
        self._now = now
        self._written: PlacementsDocument | None = None

    def write(self, problem: str) -> None:
        """Write the file if anything has changed, or as a sign of life; *problem*: why the runtime is not connected.

        ``FileError`` if it cannot be written.
        """
        last_written, now = self._written, self._now()
        written_at = (
            last_written.written if last_written is not None and 0 <= now - last_written.written < REFRESH else now
        )
        document = self._document(problem, written_at)
        if document != last_written:
            document = document.replace(written=now)
            atomic_files.write(self._path, codec.encode(document))
            self._written = document

    def _document(self, problem: str, written_at: float) -> PlacementsDocument:
        plugin = self._plugin
        return PlacementsDocument(
            mode=plugin.mode,
            problem=problem,
            written=written_at,
            containers=[
                PlacedContainerDocument(
                    id=container.id,
                    pod=container.pod_name,
                    container=container.name,
                    cpus=bits.show(container.cpus),
                    memory_nodes=bits.show(container.memory_nodes),
                    exclusive=container.exclusive,
                )
                for container in plugin.containers
            ],
            unaligned=dict(plugin.unaligned.values()),
        )
