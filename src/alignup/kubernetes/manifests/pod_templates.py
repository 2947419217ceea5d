"""Pod templates in objects of custom APIs, such as a JobSet, a PyTorchJob, a RayCluster or a Workflow.

They are recognized by their shape, not by the kind of the object around them: an object whose ``spec.containers`` all
have names. A step of a workflow is one as well: an object with a ``container`` or ``script`` that has an image. The
number of pods is the product of the counts in the objects around the template; without any, it is unknown.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from alignup.align.workload import names
from alignup.kubernetes.manifests.mistakes import join_path
from alignup.kubernetes.manifests.object_reader import ObjectReader
from alignup.picture.text_format import pluralize

_SUFFIX = re.compile(r"(?:PodTemplate|Template|Group|Replica|Task|Job|Cluster|Pod)?(?:Spec|Template|Config)?$")
_USUAL_KEYS = {"", "spec", "template", "jobTemplate", "podTemplate"}
_NAME_FIELDS = ("name", "groupName", "role")
#: Fields that say how many pods, or groups of pods, an object stands for.
_COUNTS = ("replicas", "numNodes", "numOfHosts")
_UNREAD = {"status", "metadata"}  # of the whole object
_MAX_NAME = 40  # characters of a pod's name that tell its template

_Step = tuple[Mapping[str, Any], str, str]  # an object, the path to it, and what it is called in its surroundings


@dataclass(frozen=True, slots=True)
class PodTemplate:
    path: str  #: in the object, such as ``spec.replicatedJobs[0].template.spec.template``
    label: str  #: tells it from the other templates, such as ``Worker``; empty if the object has only one
    metadata: Mapping[str, Any]
    spec: Any
    counts: Mapping[str, int] = field(default_factory=dict)  #: field → its number; their product is the number of pods
    is_task: bool = False  #: a step of a workflow, with fields of its own

    @property
    def replicas(self) -> int | None:
        """Return the number of pods; ``None`` if the object does not say."""
        return prod(self.counts.values()) if self.counts else None

    @property
    def suffix(self) -> str:
        """Return the label as part of a pod's name."""
        text = re.sub(r"[^a-z0-9]+", "-", self.label.lower()).strip("-")[:_MAX_NAME].strip("-")
        return f"-{text}" if text else ""

    def describe_count(self) -> str:
        name = self.label or self.path
        if self.replicas is None:
            return f"{name} (1 pod: no count found)"
        return f"{name} ({pluralize(self.replicas, 'pod')}: {' * '.join(self.counts)})"


def find_templates(document: Mapping[str, Any]) -> tuple[PodTemplate, ...]:
    """Return the pod templates in *document*, in their order there."""
    inner = {key: value for key, value in document.items() if key not in _UNREAD}
    templates = list(_search([(inner, "", "")]))
    if len(templates) == 1:
        return (replace(templates[0], label=""),)
    counts: dict[str, int] = {}
    unique = []
    for template in templates:
        number = counts[template.label] = counts.get(template.label, 0) + 1
        unique.append(replace(template, label=f"{template.label}-{number}") if number > 1 else template)
    return tuple(unique)


def _search(steps: Sequence[_Step]) -> Iterator[PodTemplate]:
    """Yield the templates in the last of *steps*, the objects on the way to it."""
    value, path, _ = steps[-1]
    spec = value.get("spec")
    if path and isinstance(spec, Mapping) and _has_named_containers(spec):
        yield PodTemplate(path, _label(steps), _mapping(value.get("metadata")), spec, _counts(steps))
        return
    if path and (task := _task_spec(value)) is not None:
        yield PodTemplate(path, _label(steps), _mapping(value.get("metadata")), task, _counts(steps), is_task=True)
        return
    for key, inner in value.items():
        key_path = join_path(path, key)
        if isinstance(inner, Mapping):
            yield from _search([*steps, (inner, key_path, key)])
        elif isinstance(inner, list) and not key.endswith("Overrides"):  # parts of templates that are elsewhere
            for index, item in enumerate(inner):
                if isinstance(item, Mapping):
                    name = next((item[field] for field in _NAME_FIELDS if isinstance(item.get(field), str)), "")
                    yield from _search([*steps, (item, f"{key_path}[{index}]", f"={name or f'{key}-{index}'}")])


def _has_named_containers(spec: Mapping[str, Any]) -> bool:
    containers = spec.get("containers")
    if not isinstance(containers, list) or not containers:
        return False
    container_names = [container.get("name") if isinstance(container, Mapping) else None for container in containers]
    return all(type(name) is str and not tuple(names.label_problems(name)) for name in container_names)


def _task_spec(value: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the pod of a workflow's step: its main container and sidecars; ``None`` if *value* is not one."""
    main = value.get("container", value.get("script"))
    if not isinstance(main, Mapping) or not isinstance(main.get("image"), str):
        return None
    sidecars = value.get("sidecars")
    containers = [{**main, "name": "main"}, *(sidecars if isinstance(sidecars, list) else ())]
    init = value.get("initContainers")
    return {"containers": containers, "initContainers": init if isinstance(init, list) else []}


def _counts(steps: Sequence[_Step]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for (value, path, _), (_, _, step) in zip(steps, [*steps[1:], ({}, "", "")], strict=True):
        reader = ObjectReader.of(value)
        fields = [field for field in _COUNTS if reader.has(field)]
        if "replicas" not in fields and reader.has("minReplicas"):
            fields.append("minReplicas")
        numbers = {field: reader.integer(field) for field in fields}
        if step == "template" and reader.has("parallelism"):  # of a Job
            pods = [reader.integer(field) for field in ("parallelism", "completions")]
            numbers["parallelism"] = min((number for number in pods if number is not None), default=None)
        if step == "workerTemplate" and reader.has("size"):  # a group of a leader and its workers
            size = reader.integer("size")
            numbers["size"] = size if size is None or not reader.has("leaderTemplate") else size - 1
        counts |= {
            join_path(path, field): number for field, number in numbers.items() if number is not None and number >= 0
        }
    return counts


def _label(steps: Sequence[_Step]) -> str:
    """Return the label of a template among others: the innermost name of a list item, or unusual key, on its path."""
    for _, _, step in reversed(steps):
        if step.startswith("="):
            return step[1:]
        if step not in _USUAL_KEYS:
            return _SUFFIX.sub("", step) or step
    return ""


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
