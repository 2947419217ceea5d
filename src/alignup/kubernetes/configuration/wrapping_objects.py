"""The objects in which people have a KubeletConfiguration, other than the kubelet's own file.

* The answer of a running kubelet's ``/configz``: ``{"kubeletconfig": {…}}``.
* The ConfigMap of kubeadm, ``kubelet-config``: a file in ``data.kubelet``.
* A configuration file of kubeadm: one document of several.
* OpenShift's KubeletConfig: ``spec.kubeletConfig``.
* A List with one of these objects, as ``kubectl get -o yaml`` prints it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from alignup.align.errors import ConfigurationError, ParseError, Problem
from alignup.kubernetes.configuration import feature_gates
from alignup.kubernetes.configuration.load import KIND, VERSION
from alignup.kubernetes.configuration.model import StartupStage
from alignup.kubernetes.manifests import documents
from alignup.kubernetes.manifests.object_reader import ObjectReader
from alignup.kubernetes.manifests.yaml_documents import ParsedDocument

_OPENSHIFT = "machineconfiguration.openshift.io/"
_KUBEADM = "kubeadm.k8s.io/"
_TYPE = {"apiVersion": VERSION, "kind": KIND}


@dataclass(frozen=True, slots=True)
class ConfigurationText:
    """A KubeletConfiguration as a file that the kubelet reads."""

    text: bytes
    name: str  #: of the file it comes from, and the field there
    notes: tuple[str, ...] = ()  #: what the text does not say, each with the name of a file
    #: field or ``field[key]`` → the file that sets it; empty if there is only one file
    origins: Mapping[str, str] = field(default_factory=dict)

    def origin(self, path: str) -> str:
        """The file that sets the field at *path*; empty if only one file can, or none does."""
        return self.origins.get(path) or self.origins.get(path.partition("[")[0].partition(".")[0], "")

    def locate(self, error: ConfigurationError) -> ConfigurationError:
        """*error* with the file that sets each field."""
        problems = [
            replace(one, what=f"{one.what} (set in {origin})") if (origin := self.origin(one.field)) else one
            for one in error.problems
        ]
        return ConfigurationError(problems, stage=error.stage, source=error.source, advice=error.advice)


def unwrap(text: bytes, *, name: str) -> ConfigurationText:
    """The KubeletConfiguration in *text*; a text in another form is returned as it is.

    :class:`ConfigurationError` if *text* is one of the objects above, but without a configuration.
    """
    try:
        found = documents.read(text)
    except ParseError:
        found = ()  # the kubelet's own reader explains what is wrong
    if not found or not isinstance(found[0].value, Mapping):
        return ConfigurationText(text, name)
    first, value = found[0], found[0].value
    if "kind" not in value and isinstance(value.get("kubeletconfig"), Mapping):
        return _live_configuration(value["kubeletconfig"], name)
    if value.get("kind") == "List" and isinstance(value.get("items"), list):
        value = _only_item(value["items"], name)
    version, kind = str(value.get("apiVersion")), value.get("kind")
    if version.startswith(_KUBEADM):
        return _kubeadm_document(found, name)
    if (version, kind) == ("v1", "ConfigMap"):
        return ConfigurationText(_config_map_text(value, name), f"{name}, data.kubelet")
    if version.startswith(_OPENSHIFT) and kind == "KubeletConfig":
        return _openshift(value, name)
    if value is not first.value:
        return ConfigurationText(documents.to_json(value).encode(), f"{name}, items[0]")
    return ConfigurationText(text, name)


def _live_configuration(given: Mapping[str, Any], name: str) -> ConfigurationText:
    """A running kubelet's configuration, in which absent fields are empty: its defaults are already set.

    A kubelet of another release may have feature gates that 1.37 does not know. They do not keep it from running.
    """
    fields: dict[str, Any] = {**_TYPE, "evictionHard": {}, "enforceNodeAllocatable": [], **given}
    fields.pop("mergeDefaultEvictionSettings", None)  # evictionHard has the defaults that it added
    notes = []
    gates = fields.get("featureGates")
    if isinstance(gates, Mapping) and all(isinstance(on, bool) for on in gates.values()):
        problems = feature_gates.problems(gates)
        unknown = {one.field: one for one in problems if one.what.startswith(("unrecognized", "cannot set"))}
        fields["featureGates"] = {gate: on for gate, on in gates.items() if f"featureGates[{gate}]" not in unknown}
        notes = [f"{name}: ignored {path}, which Kubernetes 1.37 rejects: {unknown[path].what}" for path in unknown]
    return ConfigurationText(documents.to_json(fields).encode(), f"{name}, kubeletconfig", tuple(notes))


def _only_item(items: list[Any], name: str) -> Mapping[str, Any]:
    if len(items) != 1 or not isinstance(items[0], Mapping):
        raise _error("items", f"must have one object with a configuration, not {len(items)}", name)
    return items[0]


def _kubeadm_document(found: tuple[ParsedDocument, ...], name: str) -> ConfigurationText:
    for document in found:
        if isinstance(document.value, Mapping) and document.value.get("kind") == KIND:
            notes = [f"{name}: line {one.line}: {one}" for one in document.repeated]
            text = documents.to_json(document.value).encode()
            return ConfigurationText(text, f"{name}, document {document.number}", tuple(notes))
    raise _error("kind", f"is a configuration of kubeadm without a document of kind {KIND}", name)


def _config_map_text(value: Mapping[str, Any], name: str) -> bytes:
    top = ObjectReader.of(value)
    data = top.child("data")
    text = data.text("kubelet")
    if not text and not top.diagnostics.problems:
        known = f"has only {', '.join(data.fields)}" if data.fields else "is empty"
        data.error("kubelet", f"Required value: data {known}, and the kubelet-config ConfigMap has a file here")
    if problems := top.diagnostics.problems:
        raise ConfigurationError(problems, stage=StartupStage.LOAD, source=name)
    return text.encode()


def _openshift(value: Mapping[str, Any], name: str) -> ConfigurationText:
    top = ObjectReader.of(value)
    spec = top.child("spec")
    given = spec.child("kubeletConfig")
    sized = spec.flag("autoSizingReserved")
    if not spec.has("kubeletConfig"):
        spec.error("kubeletConfig", "Required value")
    if problems := top.diagnostics.problems:
        raise ConfigurationError(problems, stage=StartupStage.LOAD, source=name)
    better = "the kubelet's /configz, or /etc/kubernetes/kubelet.conf of a node, has the result"
    notes = [f"{name}: OpenShift adds this to the configuration of the machine config pool: {better}"]
    if sized:
        notes.append(f"{name}: spec.autoSizingReserved: each node computes its own systemReserved, unknown here")
    text = documents.to_json({**_TYPE, **given.fields}).encode()
    return ConfigurationText(text, f"{name}, spec.kubeletConfig", tuple(notes))


def _error(path: str, what: str, name: str) -> ConfigurationError:
    return ConfigurationError([Problem(path, what)], stage=StartupStage.LOAD, source=name)
