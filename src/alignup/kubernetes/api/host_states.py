"""``HostState`` objects of the API server, and their reader with what it needs of Kubernetes."""

from dataclasses import replace
from typing import Any

from alignup.align.host import Settings
from alignup.align.machine import Machine
from alignup.align.release import Release
from alignup.documents.host_state import schema
from alignup.documents.host_state.reader import HostStateReader
from alignup.kubernetes import configuration as kubelet_configuration
from alignup.kubernetes.api import Resource
from alignup.kubernetes.manifests.documents import ParsedDocument

HOST_STATES = Resource(
    type=schema.HostStateObject, kind=schema.KIND, plural=schema.PLURAL, group=schema.GROUP, version=schema.VERSION
)


def host_state_reader() -> HostStateReader:
    return HostStateReader(_read_settings)


def _read_settings(document: dict[str, Any], machine: Machine, release: Release, name: str) -> Settings:
    """Read a KubeletConfiguration; *name* is for messages."""
    configuration = kubelet_configuration.read_document(ParsedDocument(1, 1, document), name=name, release=release)
    return replace(kubelet_configuration.host_settings(configuration, machine), kubelet_faults=True)
