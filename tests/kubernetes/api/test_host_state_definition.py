"""The CustomResourceDefinition of HostState describes the objects that the observer writes."""

from pathlib import Path

import yaml

from alignup.documents.host_state.schema import HostLedgerDocument, HostStateDocument
from alignup.documents.host_state.writer import to_object
from alignup.kubernetes.api.host_states import HOST_STATES
from alignup.observe.observation import join
from alignup.observe.published_objects import host_state
from tests.observe.kubelets import ObservedKubelet

FILE = Path(__file__).parents[3] / "deploy" / "kubernetes" / "crds" / "hoststates.yaml"


def test_it_has_every_field_of_the_objects():
    definition = yaml.safe_load(FILE.read_text("utf-8"))
    spec = definition["spec"]
    (version,) = spec["versions"]
    full = HostStateDocument(
        observed_at="2026-01-01T00:00:00Z",
        generation=1,
        machine_generation=1,
        kubelet="1",
        machine={"a": 1},
        configuration={"a": 1},
        sub_ids={"subuid": "kubelet:65536:7208960"},
        problems=["p"],
    ).replace(ledger=HostLedgerDocument(lost_cpus="1"))

    assert (spec["group"], spec["names"]["plural"], spec["names"]["kind"], version["name"]) == (
        HOST_STATES.group,
        HOST_STATES.plural,
        HOST_STATES.kind,
        HOST_STATES.version,
    )
    assert definition["metadata"]["name"] == HOST_STATES.full_name
    fields = version["schema"]["openAPIV3Schema"]["properties"]
    assert fields.keys() == to_object(full).keys()
    written = to_object(host_state(join(ObservedKubelet().sources())))
    types = {"integer": int, "string": str, "object": dict, "array": list}
    assert all(isinstance(value, types[fields[name]["type"]]) for name, value in written.items())


def test_maps_are_replaced_as_a_whole():
    """Else an apply that removes the last field of a map leaves null, and the API server rejects the object."""
    (version,) = yaml.safe_load(FILE.read_text("utf-8"))["spec"]["versions"]
    fields = version["schema"]["openAPIV3Schema"]["properties"]
    maps = {name: field.get("x-kubernetes-map-type") for name, field in fields.items() if field["type"] == "object"}
    assert maps == {"machine": "atomic", "configuration": "atomic", "ledger": "atomic", "subIds": "atomic"}
