"""Merge patches, JSON patches and server-side apply.

Server-side apply treats maps as granular and lists as atomic, which is what a custom resource has by default.
"""

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from alignup.testing.api_server.faults import StatusProblem

FieldPath = tuple[str, ...]
Document = dict[str, Any]

#: Fields of objects, and of their metadata, that no manager owns.
_UNOWNED = {"apiVersion", "kind"}
_UNOWNED_METADATA = {
    *("name", "namespace", "uid", "resourceVersion", "generation", "managedFields"),
    *("creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"),
}


def merge(target: object, patch: object) -> Any:  # noqa: ANN401 - JSON
    """Apply a JSON merge patch (RFC 7386)."""
    if not isinstance(patch, Mapping):
        return copy.deepcopy(patch)
    document = dict(target) if isinstance(target, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            document.pop(name, None)
        else:
            document[name] = merge(document.get(name), value)
    return document


def json_patch(target: Document, operations: list[Mapping[str, Any]]) -> Document:
    """Apply a JSON patch (RFC 6902)."""
    root = {"": copy.deepcopy(target)}  # so that the parts of a pointer such as "/spec" are keys from here on
    for operation in operations:
        try:
            _operate(root, operation)
        except (KeyError, IndexError, ValueError, TypeError, AttributeError):
            path = operation.get("path") if isinstance(operation, Mapping) else None
            problem = f"the server rejected our request: the patch cannot be applied at {path}"
            raise StatusProblem(422, problem) from None
    return root[""]


def _operate(root: Document, operation: Mapping[str, Any]) -> None:
    holder, key = _locate(root, operation["path"])
    match operation["op"]:
        case "add":
            _add(holder, key, copy.deepcopy(operation["value"]))
        case "replace":
            del holder[key]
            _add(holder, key, copy.deepcopy(operation["value"]))
        case "remove":
            del holder[key]
        case "move" | "copy" as name:
            source, moved_key = _locate(root, operation["from"])
            value = copy.deepcopy(source[moved_key])
            if name == "move":
                del source[moved_key]
            _add(*_locate(root, operation["path"]), value)
        case "test":
            if holder[key] != operation["value"]:
                raise ValueError(key)
        case name:
            raise ValueError(name)


def _locate(root: Document, pointer: str) -> tuple[Any, Any]:
    """Return the map or list that has the value at *pointer*, and its key or index there."""
    *above, last = [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")]
    holder: Any = root
    for part in above:
        holder = holder[int(part) if isinstance(holder, list) else part]
    if isinstance(holder, list):
        return holder, len(holder) if last == "-" else int(last)
    return holder, last


def _add(holder: Any, key: Any, value: object) -> None:  # noqa: ANN401 - JSON
    if not isinstance(holder, list):
        holder[key] = value
    elif 0 <= key <= len(holder):
        holder.insert(key, value)
    else:
        raise IndexError(key)


def apply(live: Document | None, document: Document, *, manager: str, force: bool) -> Document:
    """Apply the fields in *document* for *manager*; :class:`StatusProblem` if others own some and *force* is false."""
    result = copy.deepcopy(live) if live is not None else {}
    owners = owned_fields(result)
    mine = owners.pop((manager, "Apply"), set())
    applied_fields = {path: value for path, value in _leaves(document) if _ownable(path)}
    conflicts = [
        (other, path)
        for (other, _), paths in sorted(owners.items())
        for path in sorted(paths)
        if any(_overlap(path, new) and _get(result, new) != value for new, value in applied_fields.items())
    ]
    if conflicts and not force:
        first = f'conflict with "{conflicts[0][0]}": .{".".join(conflicts[0][1])}'
        count = f"{len(conflicts)} conflict{'s' if len(conflicts) > 1 else ''}"
        causes = [{"reason": "FieldManagerConflict", "field": "." + ".".join(path)} for _, path in conflicts]
        raise StatusProblem(409, f"Apply failed with {count}: {first}", causes=causes)
    for owner, paths in owners.items():
        owners[owner] = paths - {path for _, path in conflicts}
    others = set().union(*owners.values())
    for path in mine - applied_fields.keys() - others:
        _discard(result, path)
    for path, value in applied_fields.items():
        _set(result, path, copy.deepcopy(value))
    owners[manager, "Apply"] = set(applied_fields)
    result.setdefault("metadata", {}).update(
        {key: document["metadata"][key] for key in ("name", "namespace") if key in document.get("metadata", {})}
    )
    return _with_owners({"apiVersion": document["apiVersion"], "kind": document["kind"], **result}, owners)


def own_changes(old: Document, new: Document, *, manager: str) -> Document:
    """Return *new* with the fields that an update has changed owned by *manager*."""
    owners = owned_fields(old)
    old_values, new_values = dict(_leaves(old)), dict(_leaves(new))
    changed_paths = {
        path for path, value in new_values.items() if _ownable(path) and old_values.get(path, _leaves) != value
    }
    removed_paths = old_values.keys() - new_values.keys()
    for owner, paths in owners.items():
        owners[owner] = {
            path for path in paths - removed_paths if not any(_overlap(path, change) for change in changed_paths)
        }
    owners[manager, "Update"] = owners.get((manager, "Update"), set()) | changed_paths
    return _with_owners(new, owners)


def owned_fields(document: Document) -> dict[tuple[str, str], set[FieldPath]]:
    """Return the fields that each manager owns, by its name and operation."""
    entries = document.get("metadata", {}).get("managedFields") or ()
    return {(entry["manager"], entry["operation"]): set(_paths(entry.get("fieldsV1") or {})) for entry in entries}


def _with_owners(document: Document, owners: dict[tuple[str, str], set[FieldPath]]) -> Document:
    metadata = {name: value for name, value in document["metadata"].items() if name != "managedFields"}
    common = {"apiVersion": document.get("apiVersion"), "fieldsType": "FieldsV1"}
    managed_fields = [
        {"manager": manager, "operation": operation, **common, "fieldsV1": _fields(paths)}
        for (manager, operation), paths in sorted(owners.items())
        if paths
    ]
    return {**document, "metadata": {**metadata, "managedFields": managed_fields} if managed_fields else metadata}


def _fields(paths: set[FieldPath]) -> Document:
    tree: Document = {}
    for path in sorted(paths):
        node = tree
        for name in path:
            node = node.setdefault(f"f:{name}", {})
    return tree


def _paths(tree: Mapping[str, Any], above: FieldPath = ()) -> Iterator[FieldPath]:
    for name, below in tree.items():
        path = (*above, name.removeprefix("f:"))
        yield from _paths(below, path) if below else [path]


def _leaves(value: Any, path: FieldPath = ()) -> Iterator[tuple[FieldPath, Any]]:  # noqa: ANN401 - JSON
    if isinstance(value, Mapping) and (value or not path):
        for name, below in value.items():
            yield from _leaves(below, (*path, name))
    else:
        yield path, value


def _ownable(path: FieldPath) -> bool:
    return path[0] not in _UNOWNED and (path[0] != "metadata" or _UNOWNED_METADATA.isdisjoint(path[1:2]))


def _overlap(path: FieldPath, other: FieldPath) -> bool:
    length = min(len(path), len(other))
    return path[:length] == other[:length]


def _get(document: Document, path: FieldPath) -> object:
    value: Any = document
    for name in path:
        if not isinstance(value, Mapping) or name not in value:
            return None
        value = value[name]
    return value


def _set(document: Document, path: FieldPath, value: object) -> None:
    *above, last = path
    for name in above:
        if not isinstance(document.get(name), dict):
            document[name] = {}
        document = document[name]
    document[last] = value


def _discard(document: Document, path: FieldPath) -> None:
    """Remove a field, and maps that are empty without it."""
    name, *below = path
    inner = document.get(name)
    if below and isinstance(inner, dict):
        _discard(inner, tuple(below))
    if not below or inner == {}:
        document.pop(name, None)
