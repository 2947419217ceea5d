"""JSON Schemas of what the API takes and says; the shapes are those of ``serve.json_views`` and ``docs/decision.md``."""

from collections.abc import Mapping
from typing import Any

from alignup.align.decision import Outcome
from alignup.align.merging.merge import MergeRule
from alignup.align.settings import Policy, Scope
from alignup.align.workload import QoS
from alignup.schema.api import AdmissionStatus
from alignup.schema.decisions import VERSION

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "integer"}
FLAG: Schema = {"type": "boolean"}
MOMENT: Schema = {"type": "string", "format": "date-time"}
LIST: Schema = {
    "type": "string",
    "pattern": r"^([0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*)?$",
    "description": "A Linux list, such as 0-3,8.",
}


def ref(name: str) -> Schema:
    """The schema of that name."""
    return {"$ref": f"#/components/schemas/{name}"}


def _object(fields: Mapping[str, Schema], *, says: str = "", open_: bool = False) -> Schema:
    """An object with just these fields, all of them there; an *open_* one may have more."""
    found: Schema = {"type": "object", "properties": dict(fields), "required": list(fields)}
    if not open_:
        found["additionalProperties"] = False
    return found | ({"description": says} if says else {})


def _many(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _by_name(values: Schema) -> Schema:
    return {"type": "object", "additionalProperties": values}


def _or_null(schema: Schema) -> Schema:
    if isinstance(schema.get("type"), str):
        return schema | {"type": [schema["type"], "null"]}
    return {"oneOf": [schema, {"type": "null"}]}


def _one_of(values: type[Policy] | type[Scope] | type[Outcome] | type[QoS] | type[AdmissionStatus]) -> Schema:
    return {"type": "string", "enum": [str(value) for value in values]}


_HINT = _object({"nodes": _or_null(LIST), "preferred": FLAG})
_VOICE = _object(
    {
        "provider": TEXT,
        "resource": _or_null(TEXT),
        "request": _or_null(NUMBER),
        "free": _or_null(_by_name(NUMBER)),
        "hints": _many(ref("Hint")),
        "hidden": FLAG,
    },
    says="What one resource said about where it could go.",
)
_STEP = _object(
    {
        "container": _or_null(TEXT),
        "resources": _many(ref("Voice")),
        "width": NUMBER,
        "rule": {"type": "string", "enum": [rule.name for rule in MergeRule]},
        "hint": ref("Hint"),
        "runnersUp": _many(LIST),
        "accepted": FLAG,
    },
    says="One merge of what all resources said.",
)
_PLACEMENT = _object(
    {"container": TEXT, "hint": ref("Hint"), "given": _by_name(_by_name(TEXT))},
    says="What one container has: CPUs and devices as lists, memory as nodes=bytes.",
)
_SHORTFALL = _object(
    {"provider": TEXT, "resource": TEXT, "needed": NUMBER, "free": NUMBER, "nodes": _or_null(LIST)},
    says="Where something was missing.",
)
_REFUSAL = _object(
    {
        "reason": TEXT,
        "message": TEXT,
        "container": _or_null(TEXT),
        "provider": _or_null(TEXT),
        "shortfalls": _many(ref("Shortfall")),
    },
    says="Why a pod was refused: reason and message are the kubelet's.",
)
_ASK = _object(
    {
        "uid": TEXT,
        "container": TEXT,
        "resource": TEXT,
        "available": _many(TEXT),
        "mustInclude": _many(TEXT),
        "size": NUMBER,
    },
    says="What a device plugin is to be asked first.",
)
_DECISION = _object(
    {
        "version": {"type": "integer", "const": VERSION},
        "pod": _object({"uid": TEXT, "name": TEXT, "namespace": TEXT, "qos": _one_of(QoS)}),
        "policy": _one_of(Policy),
        "scope": _one_of(Scope),
        "outcome": _one_of(Outcome),
        "kept": FLAG,
        "steps": _many(ref("Step")),
        "placements": _many(ref("Placement")),
        "rejection": _or_null(ref("Refusal")),
        "asks": _many(ref("Ask")),
    },
    says="The full record of one admission.",
    open_=True,
)
_GRANT = _object(
    {
        "envs": _by_name(TEXT),
        "mounts": _many(_object({"container_path": TEXT, "host_path": TEXT, "read_only": FLAG})),
        "devices": _many(_object({"container_path": TEXT, "host_path": TEXT, "permissions": TEXT})),
        "annotations": _by_name(TEXT),
        "cdi": _many(TEXT),
    },
    says="What a device plugin gave a container with its devices.",
)
_CONTAINER_RUN = _object(
    {
        "name": TEXT,
        "kind": {"type": "string", "enum": ["init", "sidecar", "app"]},
        "state": {"type": "string", "enum": ["waiting", "running", "ended"]},
        "ready": FLAG,
        "restarts": NUMBER | {"minimum": 0},
        "image": TEXT,
        "id": TEXT | {"description": "By which the runtime knows it; empty: it does not."},
        "pid": _or_null(NUMBER | {"description": "Of its first process."}),
        "cpus": LIST | {"description": "The CPUs it was put on; empty: any."},
        "nodes": LIST | {"description": "The NUMA nodes its memory is to come from; empty: any."},
        "started": _or_null(MOMENT),
        "ended": _or_null(MOMENT),
        "exitCode": _or_null(NUMBER),
        "reason": TEXT | {"description": "Why it waits, or ended, in Kubernetes' words."},
        "message": TEXT,
        "last": _or_null(ref("ContainerRun")) | {"description": "How it ended the time before."},
    },
    says="A container that a runtime has, or is to have.",
)
_RUN = _object(
    {
        "phase": {"type": "string", "enum": ["Pending", "Running", "Succeeded", "Failed"]},
        "reason": TEXT,
        "message": TEXT,
        "ending": FLAG | {"description": "It was told to stop."},
        "ips": _many(TEXT),
        "containers": _many(ref("ContainerRun")) | {"description": "In the order they begin."},
        "warnings": _many(TEXT) | {"description": "What its manifest says and nobody here heeds."},
    },
    says="How a pod is that a runtime runs.",
)
_RUNTIME = _object(
    {
        "runtime": _or_null(
            _object(
                {
                    "name": TEXT,
                    "version": TEXT,
                    "endpoint": TEXT,
                    "ready": FLAG,
                    "network": TEXT | {"description": "host: pods have that of the host; cni: each has its own."},
                    "others": NUMBER | {"description": "Sandboxes it has for somebody else."},
                },
                says="null: none is used.",
            )
        ),
        "strays": _many(ref("Stray")),
        "problems": _many(TEXT) | {"description": "What is wrong with it, and what to do."},
    },
    says="The container runtime, and what it has that nobody asked for.",
)
_POD: dict[str, Schema] = {
    "uid": TEXT,
    "name": TEXT,
    "namespace": TEXT,
    "qos": _one_of(QoS),
    "status": _one_of(AdmissionStatus),
    "position": _or_null(NUMBER | {"minimum": 1, "description": "Its place among those that wait."}),
    "since": MOMENT,
    "source": TEXT | {"description": "api, or the manifest file it comes from."},
    "placements": _many(ref("Placement")),
    "rejection": _or_null(ref("Refusal")),
    "grants": _by_name(_by_name(ref("Grant"))) | {"description": "By container and resource."},
    "run": _or_null(ref("Run")) | {"description": "null: nobody runs it here."},
}
_STORY = _many(TEXT) | {"description": "The decision in sentences."}
_KEPT: dict[str, Schema] = {"id": NUMBER, "time": MOMENT, "decision": _object({"version": NUMBER}, open_=True)}
_ADMISSION = _object(
    {
        "outcome": {"type": "string", "enum": ["admitted", "kept", "waiting", "rejected", "asking"]},
        "dryRun": FLAG,
        "pod": _or_null(ref("Pod")),
        "decision": ref("Decision"),
        "story": _STORY,
    },
    says="What became of a pod that was sent in, or would.",
)
_PROBLEM = _object(
    {
        "type": {"type": "string", "format": "uri-reference"},
        "title": TEXT,
        "status": NUMBER,
        "detail": TEXT,
        "errors": _many(_object({"field": TEXT, "what": TEXT})),
    },
    says="What is wrong, as RFC 9457 has it; `errors` names every field that is.",
    open_=True,
)
_REFUSED: Schema = {
    "description": "A problem that carries the decision.",
    "allOf": [
        ref("Problem"),
        _object({"reason": TEXT, "message": TEXT, "decision": ref("Decision"), "story": _STORY}, open_=True),
    ],
}


def _maybe(fields: Mapping[str, Schema]) -> Schema:
    """An object or null, in which each of these fields may be missing and others may stand."""
    return {"type": ["object", "null"], "properties": dict(fields)}


_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_AMOUNTS: Schema = {
    "type": ["object", "null"],
    "additionalProperties": {"type": ["string", "number"]},
    "description": "Resource → quantity.",
}
_RESOURCES = _maybe({"requests": _AMOUNTS, "limits": _AMOUNTS})
_CONTAINER = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": f"^{_LABEL}$", "maxLength": 63},
        "resources": _RESOURCES,
    },
    "required": ["name"],
}
_MANIFEST: Schema = {
    "type": "object",
    "description": "A v1 Pod. Fields without a bearing on alignment are passed over.",
    "properties": {
        "apiVersion": {"type": "string", "const": "v1"},
        "kind": {"type": "string", "const": "Pod"},
        "metadata": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "pattern": rf"^{_LABEL}(\.{_LABEL})*$", "maxLength": 253},
            },
            "required": ["name"],
        },
        "spec": {
            "type": "object",
            "properties": {"containers": _many(_CONTAINER) | {"minItems": 1}},
            "required": ["containers"],
        },
    },
    "required": ["apiVersion", "kind", "metadata", "spec"],
}

SCHEMAS: Mapping[str, Schema] = {
    "Admission": _ADMISSION,
    "Ask": _ASK,
    "ContainerRun": _CONTAINER_RUN,
    "Decision": _DECISION,
    "DecisionPage": _object(
        {
            "decisions": _many(ref("Kept")),
            "next": _or_null(NUMBER | {"description": "What to ask for `before` to see more; null: that was all."}),
        }
    ),
    "Description": {"type": "object", "description": "An OpenAPI 3.1 document."},
    "Grant": _GRANT,
    "Hint": _HINT,
    "Kept": _object(_KEPT, says="A decision of the past."),
    "KeptInFull": _object(_KEPT | {"story": _STORY}, says="A decision of the past, also in sentences."),
    "Machine": {"type": "object", "description": "A machine, as `alignup machine` writes it."},
    "Manifest": _MANIFEST,
    "Placement": _PLACEMENT,
    "Pod": _object(_POD, says="A pod that is known."),
    "PodInFull": _object(_POD | {"decision": ref("Decision"), "story": _STORY}, says="A pod, and why it is where."),
    "PodList": _object({"pods": _many(ref("Pod")), "notes": _many(TEXT)}),
    "Problem": _PROBLEM,
    "Ready": _object({"ready": {"type": "boolean", "const": True}}),
    "Refusal": _REFUSAL,
    "Refused": _REFUSED,
    "Released": _object({"pod": ref("Pod")}),
    "Run": _RUN,
    "Runtime": _RUNTIME,
    "Shortfall": _SHORTFALL,
    "Step": _STEP,
    "Stray": _object(
        {"id": TEXT, "pod": TEXT, "uid": TEXT, "containers": _many(TEXT), "why": TEXT},
        says="A sandbox that belongs to no pod that is known.",
    ),
    "Voice": _VOICE,
}
