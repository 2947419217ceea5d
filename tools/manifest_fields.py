"""The fields of Pods and of the kinds that create them, from the OpenAPI documents in Kubernetes' repository.

    python -m tools.manifest_fields KUBERNETES_CLONE v1.33.0 … v1.37.0

writes ``src/alignup/kubernetes/manifests/fields.json``: type → field → the type of its value, or of the elements of its
list; empty if the value is no object, or one with arbitrary keys. Alpha fields come and go, so a field counts that any
of the releases has. Statuses are left out: nobody writes them by hand.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

TABLE = Path(__file__).parents[1] / "src" / "alignup" / "kubernetes" / "manifests" / "fields.json"
#: OpenAPI document → the types of the kinds in it that the table begins with.
_KINDS = {
    "api__v1": ("core.v1.Pod", "core.v1.PodTemplate", "core.v1.ReplicationController"),
    "apis__apps__v1": ("apps.v1.DaemonSet", "apps.v1.Deployment", "apps.v1.ReplicaSet", "apps.v1.StatefulSet"),
    "apis__batch__v1": ("batch.v1.CronJob", "batch.v1.Job"),
}
_LEFT_OUT = ("status", "managedFields")

Table = dict[str, dict[str, str]]


def read_types(document: Mapping[str, Any], kinds: Sequence[str]) -> Table:
    """Return the types of *kinds* and of everything below them."""
    schemas: Mapping[str, Any] = document["components"]["schemas"]
    table: Table = {}
    waiting = [f"io.k8s.api.{kind}" for kind in kinds]
    while waiting:
        name = waiting.pop()
        fields = {field: _object_type(field, schema, schemas) for field, schema in schemas[name]["properties"].items()}
        table[_short(name)] = {field: _short(inner) for field, inner in fields.items()}
        waiting += [inner for inner in fields.values() if inner and _short(inner) not in table]
    return table


def _object_type(field: str, schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> str:
    """Return the type of an object with fixed fields, or of such objects in a list; empty for all other values."""
    schema = schema.get("items", schema)
    references = [part["$ref"].rpartition("/")[2] for part in (schema, *schema.get("allOf", ())) if "$ref" in part]
    return next((name for name in references if field not in _LEFT_OUT and "properties" in schemas[name]), "")


def _short(name: str) -> str:
    return name.rpartition(".")[2]


def main(clone: str, *tags: str) -> None:
    table: Table = {}
    for tag in tags:
        for file, kinds in _KINDS.items():
            source = f"{tag}:api/openapi-spec/v3/{file}_openapi.json"
            text = subprocess.run(("git", "-C", clone, "show", source), check=True, capture_output=True).stdout
            for name, fields in read_types(json.loads(text), kinds).items():
                table.setdefault(name, {}).update(fields)
    lines = (f"{json.dumps(name)}: {json.dumps(dict(sorted(table[name].items())))}" for name in sorted(table))
    TABLE.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
