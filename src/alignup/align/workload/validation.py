"""Defaults and validation of a pod, as the API server or the kubelet applies them.

Most pods are created through the API server; a static pod is a file that the kubelet reads. Both copy limits into
missing requests and reject the same errors. They differ in two points that change allocations. Only the API server
sets defaults for pod-level resources, so a static pod with only limits there is not Guaranteed. And the API server
rewrites amounts, so ``1.5Gi`` becomes ``1536Mi``, which the memory provider accepts, while a static pod keeps its
spelling, which the provider rejects.

Only names and resources are validated: images, volumes, probes and so on do not affect alignment.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from enum import StrEnum
from operator import is_

from alignup.align.bits import quote
from alignup.align.errors import PodError, Problem, QuantityError
from alignup.align.quantity import Quantity
from alignup.align.release import NEWEST, Release
from alignup.align.workload import Pod, PodClaim, Resources, demand, names
from alignup.align.workload.names import CPU, MEMORY

RESTART_POLICIES = ("Always", "Never", "OnFailure")  #: of a container

#: The annotation with the source of a pod, set by the kubelet.
SOURCE_ANNOTATION = "kubernetes.io/config.source"
MIRROR_ANNOTATION = "kubernetes.io/config.mirror"  #: on the API object that mirrors a static pod


class PodSource(StrEnum):
    API = "api"
    STATIC = "static"


def accept(
    pod: Pod,
    *,
    source: PodSource = PodSource.API,
    host: str = "",
    fix_pod_level: bool = True,
    release: Release = NEWEST,
) -> Pod:
    """Return the pod with defaults; a :class:`PodError` with all problems if it is invalid.

    The API server, or the kubelet of a static pod, has this *release*.
    *host* becomes part of a static pod's name. *fix_pod_level* is the feature gate PodLevelResourcesFixDefaulting. An
    API server that has stored a pod, which then has a uid and a QoS class, has set its pod-level defaults.
    """
    try:
        pod = apply_defaults(evaluated_by(pod, release), source=source, fix_pod_level=fix_pod_level)
        if source is PodSource.STATIC:
            pod = _on_host(pod, host)
        problems = tuple(dict.fromkeys(validation_problems(pod)))
        if problems:
            raise PodError(problems)
        # Amounts that cannot be added up are an error here, not in the middle of a decision.
        demand.fit_request(pod), demand.fit_used(pod), demand.limits(pod)
        if source is PodSource.STATIC:
            return pod
        # The API server stores rewritten amounts and the QoS class.
        stored_pod = _with_amounts(
            pod, lambda amount: amount if amount.text is not None else Quantity.parse(str(amount)).under(release)
        )
        return replace(stored_pod, recorded_qos=stored_pod.qos)
    except QuantityError as error:
        raise PodError([Problem("spec", f"cannot add up the amounts: {error}")]) from error


def evaluated_by(pod: Pod, release: Release) -> Pod:
    """Return *pod* with its amounts as this release evaluates them; :class:`PodError` for an amount it cannot read."""
    if not pod.depends_on_release:
        return pod
    try:
        return _with_amounts(pod, lambda amount: amount.under(release))
    except QuantityError as error:
        raise PodError([Problem("spec", f"an amount is not valid in Kubernetes {release}: {error}")]) from error


def apply_defaults(pod: Pod, *, source: PodSource = PodSource.API, fix_pod_level: bool = True) -> Pod:
    """Return *pod* with its amounts rounded up to thousandths, and with the defaults for its source."""
    complete_pod = _with_amounts(pod, Quantity.round_up_to_milli, default_requests=True)
    complete_pod = replace(complete_pod, namespace=pod.namespace or "default", recorded_qos=None)
    has_pod_level = complete_pod.resources.requests or complete_pod.resources.limits
    is_complete = fix_pod_level if source is PodSource.STATIC else pod.uid and pod.recorded_qos
    if not has_pod_level or is_complete:
        return complete_pod
    return replace(complete_pod, resources=_pod_level(complete_pod, fixed=fix_pod_level))


def validation_problems(pod: Pod) -> Iterator[Problem]:
    yield from _name_problems("metadata.name", pod.name, names.subdomain_problems)
    yield from _name_problems("metadata.namespace", pod.namespace, names.label_problems)
    if not pod.containers:
        yield Problem("spec.containers", "Required value")
    used_names: set[str] = set()
    for path, containers in (("spec.containers", pod.containers), ("spec.initContainers", pod.init)):
        for index, container in enumerate(containers):
            field = f"{path}[{index}]"
            yield from _name_problems(f"{field}.name", container.name, names.label_problems)
            yield from _resource_problems(f"{field}.resources", container.resources, claims=pod.claims)
            if (policy := container.unknown_restart_policy) is not None:
                policies = ", ".join(map(quote, RESTART_POLICIES))
                message = f"Unsupported value: {quote(policy)}: supported values: {policies}"
                yield Problem(f"{field}.restartPolicy", message)
            if container.name in used_names:
                yield Problem(f"{field}.name", f"Duplicate value: {quote(container.name)}")
            used_names.add(container.name)
    if pod.resources.requests or pod.resources.limits or pod.resources.claims:
        yield from _pod_level_problems(pod)
    if pod.overhead:
        yield from _resource_problems("spec.overhead", Resources(limits=pod.overhead))


def _on_host(pod: Pod, host: str) -> Pod:
    """Return a static pod with the name and uid that its host gives it."""
    if not pod.name:
        raise PodError([Problem("metadata.name", "Required value: name is needed for the pod")])
    name = f"{pod.name}-{host.lower()}" if host else pod.name
    # The same file on the same host is the same pod; any change makes a new one.
    uid = pod.uid or hashlib.sha256(repr((host, pod)).encode(errors="replace")).hexdigest()[:32]
    return replace(pod, name=name, uid=uid, annotations={**pod.annotations, SOURCE_ANNOTATION: "file"})


def _with_amounts(pod: Pod, change: Callable[[Quantity], Quantity], *, default_requests: bool = False) -> Pod:
    """Return *pod* with other amounts, or *pod* itself if nothing changes.

    With *default_requests*, the limits of containers become default requests; requests are never copied to limits.
    """
    containers = pod.all_containers
    old_resources = [*(container.resources for container in containers), pod.resources, Resources(limits=pod.overhead)]
    new_resources: list[Resources] = []
    for index, old in enumerate(old_resources):
        limits = {name: change(amount) for name, amount in old.limits.items()}
        requests = {name: change(amount) for name, amount in old.requests.items()}
        if default_requests and index < len(containers):
            requests = {**limits, **requests}
        same = len(requests) == len(old.requests) and all(
            map(is_, (*requests.values(), *limits.values()), (*old.requests.values(), *old.limits.values()))
        )
        new_resources.append(old if same else Resources(requests, limits, old.claims))
    if all(map(is_, new_resources, old_resources)):
        return pod
    *of_containers, pod_level, of_overhead = new_resources
    new_containers = tuple(
        [
            container if resources is container.resources else replace(container, resources=resources)
            for container, resources in zip(containers, of_containers, strict=True)
        ]
    )
    init, usual = new_containers[: len(pod.init)], new_containers[len(pod.init) :]
    return replace(pod, init=init, containers=usual, resources=pod_level, overhead=of_overhead.limits)


def _pod_level(pod: Pod, *, fixed: bool) -> Resources:
    """Return the pod-level resources of a pod that has some, with defaults from the containers.

    Before the fix, requests had defaults only with limits, and limits only for huge pages.
    """
    resources = pod.resources
    total_requests = demand.requests(pod, pod_level=False, overhead=False)
    total_limits = demand.limits(pod, pod_level=False, overhead=False)
    pages = {
        name: total_limits[name] for name in total_limits if names.is_hugepages(name) and name not in resources.requests
    }
    limits = {**pages, **resources.limits}
    requests = dict(resources.requests)
    if fixed or limits:
        default_requests = {name: total_requests[name] for name in (CPU, MEMORY) if name in total_requests}
        requests = {**demand.pod_level_amounts(limits), **default_requests, **requests}
    if fixed:
        everywhere = {
            name for name in total_limits if all(name in container.resources.limits for container in pod.all_containers)
        }
        bounds = {
            name: max(total_limits[name], amount)  # of equal amounts, the containers' spelling
            for name, amount in demand.pod_level_amounts(requests).items()
            if name in everywhere
        }
        limits = {**bounds, **limits}
    return replace(resources, requests=requests, limits=limits)


def _name_problems(field: str, name: str, check: Callable[[str], Iterable[str]]) -> Iterator[Problem]:
    if not name:
        yield Problem(field, "Required value")
        return
    for problem in check(name):
        yield _invalid(field, name, problem)


def _resource_problems(
    field: str,
    resources: Resources,
    *,
    claims: tuple[PodClaim, ...] = (),
    name_problems: Callable[[str], Iterable[str]] = names.container_resource_problems,
) -> Iterator[Problem]:
    limits = [("limits", name, amount) for name, amount in resources.limits.items()]
    for kind, name, amount in [*limits, *(("requests", name, amount) for name, amount in resources.requests.items())]:
        path = f"{field}.{kind}[{name}]"
        for problem in name_problems(name):
            yield _invalid(path, name, problem)
        if amount.unscaled < 0:
            yield _invalid(path, amount, "must be greater than or equal to 0")
        if names.is_counted(name) and not amount.is_whole:
            yield _invalid(path, amount, "must be an integer")
        if names.is_hugepages(name):
            size = names.page_size(name)
            if size is None or amount.value() % size:
                yield _invalid(path, amount, f"{amount} is not positive integer multiple of {name}")
        limit = resources.limits.get(name)
        if kind == "requests" and limit is not amount:
            yield from _limit_problems(field, name, amount, limit=limit)
    resource_names = resources.limits.keys() | resources.requests.keys()
    if any(map(names.is_hugepages, resource_names)) and not resource_names & {CPU, MEMORY}:
        yield Problem(field, "Forbidden: HugePages require cpu or memory")
    if resources.claims:
        yield from _claim_problems(field, resources, claims)


def _claim_problems(field: str, resources: Resources, claims: tuple[PodClaim, ...]) -> Iterator[Problem]:
    """Yield what is wrong with the claims of a container: it uses a whole claim once, or requests of it, each once."""
    used_claims: set[str] = set()
    for index, claim in enumerate(resources.claims):
        path = f"{field}.claims[{index}]"
        name, separator, request = claim.partition("/")
        if not name:
            yield Problem(path, "Required value")
            continue
        if name in used_claims:  # the whole claim
            yield Problem(path, f"Duplicate value: {quote(name)}")
        elif claim in used_claims or (not request and any(other.startswith(f"{name}/") for other in used_claims)):
            yield Problem(path, f"Duplicate value: {quote(claim)}")
        if separator:
            for problem in names.label_problems(request):
                yield _invalid(f"{path}.request", request, problem)
        used_claims.add(claim)
        if all(name != pod_claim.name for pod_claim in claims):
            yield Problem(path, f"Not found: {quote(name)}: must be one of the names in pod.spec.resourceClaims")


def _limit_problems(field: str, name: str, amount: Quantity, *, limit: Quantity | None) -> Iterator[Problem]:
    may_exceed = names.is_overcommittable(name)
    if limit is None:
        if not may_exceed:
            yield Problem(f"{field}.limits", "Required value: Limit must be set for non overcommitable resources")
    elif amount != limit and not may_exceed:
        yield _invalid(f"{field}.requests", amount, f"must be equal to {name} limit of {limit}")
    elif amount > limit:
        yield _invalid(f"{field}.requests", amount, f"must be less than or equal to {name} limit of {limit}")


def _pod_level_problems(pod: Pod) -> Iterator[Problem]:
    resources = pod.resources
    if resources.claims:
        yield Problem("spec.resources.claims", "Forbidden: claims may not be set for Resources at pod-level")
    yield from _resource_problems(
        "spec.resources", resources, claims=pod.claims, name_problems=names.pod_resource_problems
    )
    if not resources.requests and not resources.limits:
        return
    for name, request in demand.requests(pod, pod_level=False, overhead=False).items():
        amount = resources.requests.get(name)
        if amount is not None and amount < request:
            problem = f"must be greater than or equal to aggregate container requests of {request}"
            yield _invalid(f"spec.resources.requests[{name}]", amount, problem)
    for name, request in demand.limits(pod, pod_level=False, overhead=False).items():
        limit = resources.limits.get(name)
        if names.is_hugepages(name) and limit is not None and limit < request:
            problem = f"must be greater than or equal to aggregate container limits of {request}"
            yield _invalid(f"spec.resources.limits[{name}]", limit, problem)
    for index, container in enumerate(pod.containers):
        for name, amount in container.resources.limits.items():
            limit = resources.limits.get(name)
            if limit is not None and amount > limit:
                field = f"spec.resources.containers[{index}][{name}].limits"
                yield _invalid(field, amount, f"must be less than or equal to pod limits of {limit}")


def _invalid(field: str, value: object, problem: str) -> Problem:
    return Problem(field, f"Invalid value: {quote(str(value))}: {problem}")
