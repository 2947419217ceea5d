"""The operations on objects: create, update, patch, apply, delete, bind and evict."""

from alignup.testing.api_server import patches
from alignup.testing.api_server.faults import StatusProblem, conflict
from alignup.testing.api_server.routing import ApiCall
from alignup.testing.api_server.store import Document, ObjectStore, StoredObject, copy_of

MERGE, JSON = "application/merge-patch+json", "application/json-patch+json"
APPLY = ("application/apply-patch+yaml", "application/apply-patch+cbor", "application/apply-patch+json")
DEFAULT_GRACE = 30  #: seconds that a running pod has to end


def create(store: ObjectStore, call: ApiCall, document: Document) -> StoredObject:
    resource = call.resource
    document = _checked(call, document)
    if resource.status and resource.kind != "Node":  # as in Kubernetes, only nodes are created with their status
        document.pop("status", None)
    if resource.kind == "Pod":
        document["status"] = {"phase": "Pending"}
    return store.create(resource, patches.own_changes({}, document, manager=call.manager))


def update(store: ObjectStore, call: ApiCall, document: Document) -> StoredObject:
    """Replace an object: only its status, or all but its status where that is a subresource."""
    resource, key = call.resource, call.key
    old = store.get(resource, key).document
    document = _checked(call, document)
    metadata = document["metadata"]
    if metadata.setdefault("name", key[1]) != key[1]:
        raise StatusProblem(400, "the name of the object does not match the name on the URL")
    if call.subresource == "status":
        preconditions = {name: metadata[name] for name in ("uid", "resourceVersion") if metadata.get(name)}
        unconditional = {name: value for name, value in old["metadata"].items() if name != "resourceVersion"}
        if not resource.group:  # other than for custom resources, these are not reset
            preconditions |= {name: metadata[name] for name in ("labels", "annotations") if name in metadata}
        document = {**old, "metadata": unconditional | preconditions, "status": document.get("status", {})}
    elif resource.status:
        document.pop("status", None)
        document |= {"status": old["status"]} if "status" in old else {}
    if "managedFields" in old["metadata"]:
        document["metadata"].setdefault("managedFields", old["metadata"]["managedFields"])
    new = store.replace(resource, key, patches.own_changes(old, document, manager=call.manager))
    metadata = new.document["metadata"]
    waiting = metadata.get("deletionTimestamp") and not metadata.get("deletionGracePeriodSeconds")
    # An object that was only waiting for its finalizers is deleted.
    return store.remove(resource, key) if waiting and not metadata.get("finalizers") else new


def patch(store: ObjectStore, call: ApiCall, body: object) -> StoredObject:
    old = store.get(call.resource, call.key).document
    unconditional = {**old, "metadata": {k: v for k, v in old["metadata"].items() if k != "resourceVersion"}}
    if call.content_type == MERGE:
        document = patches.merge(unconditional, body)
    elif call.content_type == JSON and isinstance(body, list):
        document = patches.json_patch(old, body)
        if document["metadata"].get("resourceVersion") == old["metadata"]["resourceVersion"]:
            del document["metadata"]["resourceVersion"]
    else:
        patch_types = f"{JSON}, {MERGE}, {APPLY[0]}"
        raise StatusProblem(
            415, f"the body of the request was in an unknown format - accepted media types: {patch_types}"
        )
    return update(store, call, document)


def apply(store: ObjectStore, call: ApiCall, document: Document) -> tuple[StoredObject, bool]:
    """Server-side apply; return the object, and whether it is new."""
    if not call.request.parameters.get("fieldManager"):
        why = "fieldManager: Required value: is required for apply patch"
        raise StatusProblem(422, f"PatchOptions.meta.k8s.io is invalid: {why}")
    force = call.request.parameters.get("force") == "true"
    document = _checked(call, document)
    document["metadata"].setdefault("name", call.name)
    old = store.find(call.resource, call.key)
    if old is None:
        new = patches.apply(None, document, manager=call.manager, force=force)
        return store.create(call.resource, new), True
    live = copy_of(old.document)
    live["metadata"]["resourceVersion"] = document["metadata"].pop("resourceVersion", "")
    new = patches.apply(live, document, manager=call.manager, force=force)
    return store.replace(call.resource, call.key, new), False


def delete(store: ObjectStore, call: ApiCall, options: Document) -> StoredObject:
    """Delete an object; one with finalizers is only marked, and so is a pod that runs and has a grace period."""
    resource, key = call.resource, call.key
    old = store.get(resource, key)
    metadata = old.document["metadata"]
    for name, value in (options.get("preconditions") or {}).items():
        if value is not None and metadata.get(name) != value:
            label = {"uid": "UID", "resourceVersion": "ResourceVersion"}[name]
            why = f"Precondition failed: {label} in precondition: {value}, {label} in object meta: {metadata.get(name)}"
            raise conflict(resource.name, key[1], why)
    spec, status = old.document.get("spec", {}), old.document.get("status", {})
    grace: int | None = 0
    if resource.kind == "Pod" and spec.get("nodeName") and status.get("phase") not in {"Succeeded", "Failed"}:
        grace = options.get("gracePeriodSeconds")
        if grace is None:
            grace = spec.get("terminationGracePeriodSeconds", DEFAULT_GRACE)
    stays = bool(grace or metadata.get("finalizers"))
    if stays or resource.kind == "Pod":  # as in Kubernetes, every pod is marked before it is deleted
        document = copy_of(old.document)
        document["metadata"].setdefault("deletionTimestamp", store.timestamp())
        old_grace = metadata.get("deletionGracePeriodSeconds", grace or 0)
        document["metadata"]["deletionGracePeriodSeconds"] = min(grace or 0, old_grace)
        old = store.replace(resource, key, document)
    return old if stays else store.remove(resource, key)


def bind(store: ObjectStore, call: ApiCall, binding: Document) -> None:
    """Assign a pod to a node, and add the annotations of the binding to it."""
    resource, key = call.resource, call.key
    pod = copy_of(store.get(resource, key).document)
    metadata, spec = pod["metadata"], pod.setdefault("spec", {})
    binding_metadata = binding.get("metadata") or {}
    uid = binding_metadata.get("uid")
    if uid not in {None, "", metadata["uid"]}:
        why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {metadata['uid']}"
        raise conflict("pods/binding", key[1], why)
    problems = {
        "is being deleted, cannot be assigned to a host": metadata.get("deletionTimestamp"),
        f'is already assigned to node "{spec.get("nodeName")}"': spec.get("nodeName"),
        "has non-empty .spec.schedulingGates": spec.get("schedulingGates"),
    }
    for problem, reason in problems.items():
        if reason:
            raise conflict("pods/binding", key[1], f"pod {key[1]} {problem}")
    spec["nodeName"] = binding["target"]["name"]
    if binding_metadata.get("annotations"):
        metadata["annotations"] = {**metadata.get("annotations", {}), **binding_metadata["annotations"]}
    conditions = pod.setdefault("status", {}).setdefault("conditions", [])
    conditions[:] = [condition for condition in conditions if condition.get("type") != "PodScheduled"]
    conditions.append({"type": "PodScheduled", "status": "True", "lastTransitionTime": store.timestamp()})
    store.replace(resource, key, pod)


def _checked(call: ApiCall, document: object) -> Document:
    """Return the document with its type and namespace; a problem if the document has another type or namespace."""
    resource, namespace = call.resource, call.namespace
    if not isinstance(document, dict) or not isinstance(document.get("metadata", {}), dict):
        raise StatusProblem(400, "the body of the request is not an object")
    expected_fields = {"apiVersion": resource.api_version, "kind": resource.kind}
    for name, value in expected_fields.items():
        if document.get(name, value) != value:
            raise StatusProblem(400, f"{name} {document[name]} does not match the expected {value}")
    metadata = {**document.get("metadata", {})}
    if metadata.get("namespace", namespace) != namespace:
        problem = "the namespace of the provided object does not match the namespace sent on the request"
        raise StatusProblem(400, problem)
    if namespace:
        metadata["namespace"] = namespace
    return {**document, **expected_fields, "metadata": metadata}
