"""Merge patches, JSON patches and server-side apply.

Server-side apply treats maps as granular and lists as atomic, which is what a custom resource has by default.
"""

import copy
import json
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
    merged = dict(target) if isinstance(target, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge(merged.get(name), value)
    return merged


def json_patch(target: Document, operations: list[Mapping[str, Any]]) -> Document:
    """Apply a JSON patch (RFC 6902)."""
    document: Any = copy.deepcopy(target)
    for operation in operations:
        try:
            document = _operate(document, operation)
        except (KeyError, IndexError, ValueError, TypeError, AttributeError):
            path = operation.get("path") if isinstance(operation, Mapping) else None
            raise StatusProblem(
                422, f"the server rejected our request: the patch cannot be applied at {path}"
            ) from None
    result: Document = document
    return result


def _operate(document: Any, operation: Mapping[str, Any]) -> Any:  # noqa: ANN401 - JSON
    path, name = _pointer(operation["path"]), operation["op"]
    match name:
        case "add" | "replace":
            if name == "replace":
                _at(document, path)
            return _add(document, path, copy.deepcopy(operation["value"]), replace=name == "replace")
        case "remove":
            return _remove(document, path)
        case "move" | "copy":
            source = _pointer(operation["from"])
            value = copy.deepcopy(_at(document, source))
            document = _remove(document, source) if name == "move" else document
            return _add(document, path, value)
        case "test":
            if _at(document, path) != operation["value"]:
                raise ValueError(path)
            return document
    raise ValueError(name)


def _pointer(text: str) -> list[str]:
    return [part.replace("~1", "/").replace("~0", "~") for part in text.split("/")[1:]]


def _at(document: Any, path: list[str]) -> Any:  # noqa: ANN401 - JSON
    for part in path:
        document = document[int(part) if isinstance(document, list) else part]
    return document


def _add(document: Any, path: list[str], value: object, *, replace: bool = False) -> Any:  # noqa: ANN401 - JSON
    if not path:
        return value
    holder = _at(document, path[:-1])
    if isinstance(holder, list) and not replace:
        index = len(holder) if path[-1] == "-" else int(path[-1])
        if not 0 <= index <= len(holder):
            raise IndexError(index)
        holder.insert(index, value)
    else:
        holder[int(path[-1]) if isinstance(holder, list) else path[-1]] = value
    return document


def _remove(document: Any, path: list[str]) -> Any:  # noqa: ANN401 - JSON
    holder = _at(document, path[:-1])
    del holder[int(path[-1]) if isinstance(holder, list) else path[-1]]
    return document


def apply(live: Document | None, applied: Document, *, manager: str, force: bool) -> Document:
    """Apply the fields in *applied* for *manager*; :class:`StatusProblem` if others own some and *force* is false."""
    result = copy.deepcopy(live) if live is not None else {}
    owners = owned_fields(result)
    mine = owners.pop((manager, "Apply"), set())
    wanted = {path: value for path, value in _leaves(applied) if _ownable(path)}
    conflicts = [
        (other, path)
        for (other, _), paths in sorted(owners.items())
        for path in sorted(paths)
        if any(_overlap(path, new) and _get(result, new) != value for new, value in wanted.items())
    ]
    if conflicts and not force:
        first = f'conflict with "{conflicts[0][0]}": .{".".join(conflicts[0][1])}'
        count = f"{len(conflicts)} conflict{'s' if len(conflicts) > 1 else ''}"
        causes = [{"reason": "FieldManagerConflict", "field": "." + ".".join(path)} for _, path in conflicts]
        raise StatusProblem(409, f"Apply failed with {count}: {first}", causes=causes)
    for owner, paths in owners.items():
        owners[owner] = paths - {path for _, path in conflicts}
    others = set().union(*owners.values())
    for path in mine - wanted.keys() - others:
        _discard(result, path)
    for path, value in wanted.items():
        _set(result, path, copy.deepcopy(value))
    owners[manager, "Apply"] = set(wanted)
    result.setdefault("metadata", {}).update(
        {key: applied["metadata"][key] for key in ("name", "namespace") if key in applied.get("metadata", {})}
    )
    return _with_owners({"apiVersion": applied["apiVersion"], "kind": applied["kind"], **result}, owners)


def own_changes(old: Document, new: Document, *, manager: str) -> Document:
    """Return *new* with the fields that an update has changed owned by *manager*."""
    owners = owned_fields(old)
    before, after = dict(_leaves(old)), dict(_leaves(new))
    changed = {path for path, value in after.items() if _ownable(path) and before.get(path, _leaves) != value}
    gone = before.keys() - after.keys()
    for owner, paths in owners.items():
        owners[owner] = {path for path in paths - gone if not any(_overlap(path, change) for change in changed)}
    owners[manager, "Update"] = owners.get((manager, "Update"), set()) | changed
    return _with_owners(new, owners)


def owned_fields(document: Document) -> dict[tuple[str, str], set[FieldPath]]:
    """Return the fields that each manager owns, by its name and operation."""
    entries = document.get("metadata", {}).get("managedFields") or ()
    return {(entry["manager"], entry["operation"]): set(_paths(entry.get("fieldsV1") or {})) for entry in entries}


def _with_owners(document: Document, owners: dict[tuple[str, str], set[FieldPath]]) -> Document:
    managed = [
        {
            "manager": manager,
            "operation": operation,
            "apiVersion": document.get("apiVersion"),
            "fieldsType": "FieldsV1",
            "fieldsV1": _fields(paths),
        }
        for (manager, operation), paths in sorted(owners.items())
        if paths
    ]
    metadata = {**document["metadata"]}
    metadata.pop("managedFields", None)
    return {**document, "metadata": {**metadata, "managedFields": managed} if managed else metadata}


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


def parse_body(body: bytes) -> Any:  # noqa: ANN401 - JSON
    try:
        return json.loads(body)
    except ValueError:
        raise StatusProblem(400, "the body of the request is not JSON") from None
