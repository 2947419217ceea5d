"""``HostState`` objects of the API server, and their reader with what it needs of Kubernetes."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from alignup.align.devices.plugin_rules import PluginRule
from alignup.align.host import Settings
from alignup.align.machine import Machine
from alignup.align.release import Release
from alignup.documents.codec import load
from alignup.documents.host_state import schema
from alignup.documents.host_state.reader import HostStateReader
from alignup.kubernetes import configuration as kubelet_configuration
from alignup.kubernetes.api import Resource
from alignup.kubernetes.configuration import feature_gates
from alignup.kubernetes.manifests.documents import ParsedDocument

HOST_STATES = Resource(
    type=schema.HostStateObject, kind=schema.KIND, plural=schema.PLURAL, group=schema.GROUP, version=schema.VERSION
)


def host_state_reader(plugin_rules: Mapping[str, PluginRule] = MappingProxyType({})) -> HostStateReader:
    """Return a reader; *plugin_rules* say how device plugins of all nodes choose, by resource."""
    return HostStateReader(lambda *parts: replace(_read_settings(*parts), plugin_rules=dict(plugin_rules)))


def read_gates(state: schema.HostStateObject) -> dict[str, bool]:
    """Return all feature gates that the configuration of a node sets; the reader must have read it."""
    gates = load(bytes(state.configuration)).get("featureGates") or {}
    return {name: on for name, on in gates.items() if isinstance(on, bool)}


def _read_settings(document: dict[str, Any], machine: Machine, release: Release, name: str) -> Settings:
    """Read a KubeletConfiguration; *name* is for messages. Gates that do not affect alignment may be unknown here."""
    if gates := document.get("featureGates"):
        relevant = {gate: on for gate, on in gates.items() if feature_gates.affects_alignment(gate)}
        document = {**document, "featureGates": relevant}
    configuration = kubelet_configuration.read_document(ParsedDocument(1, 1, document), name=name, release=release)
    return replace(kubelet_configuration.host_settings(configuration, machine), kubelet_faults=True)
