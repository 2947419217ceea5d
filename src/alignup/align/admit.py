"""The admission of a pod, in two phases. READ THIS FIRST. For each container (or once for the pod, in pod scope):

1. each provider gives hints: the sets of NUMA nodes its resources can go to (``provider.hints``)
2. the policy merges them into one hint, and accepts it or rejects the pod (``merging.merge.apply_policy``)
3. each provider allocates its resources, following that hint (``provider.allocate``)

Then comes the fit check of the whole host (``fit.check_fit``). The first failure ends the admission. Nothing changes on
the way: providers return new ledgers, which take effect only if the pod is admitted.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter, is_
from typing import Any

from alignup.align import fit
from alignup.align.bits import NodeSet
from alignup.align.decision import (
    CollectedResources,
    Decision,
    MergeStep,
    Outcome,
    Placement,
    Rejection,
    ResourceHints,
    Shortfall,
)
from alignup.align.devices.provider import PreferenceRequest, PreferencesNeededError
from alignup.align.errors import PodError, Problem, ProviderError
from alignup.align.hint import DONT_CARE, Hint, HintsByResource, MergeInput, Provider, provider_inputs
from alignup.align.ledger import AdmittedPod, Ledger
from alignup.align.machine import Distances
from alignup.align.merging.merge import MergeRule, apply_policy
from alignup.align.merging.strategy import apply_strategy, choose_set, score_share
from alignup.align.reason_codes import TOPOLOGY_AFFINITY
from alignup.align.settings import AllocationStrategy, Policy, Scope, TopologySettings
from alignup.align.workload import Container, Pod, demand
from alignup.align.workload.names import POLICY_ANNOTATION, SCOPE_ANNOTATION

_NOT_ALIGNED = "Resources cannot be allocated with Topology locality"
_POD_NOT_ALIGNED = {
    Scope.CONTAINER: "Pod Scope pod with pod-level resources failed admission with a container-level topology manager",
    Scope.POD: "Pod Scope pod with pod-level resources failed admission under pod-scope topology manager",
}
POD_OF = attrgetter("pod")  #: of an admitted pod
NO_AFFINITY = Hint(None, preferred=False)  #: the affinity without a merge
_NO_TEXTS: Mapping[str, Mapping[str, str]] = {}  #: of providers from outside


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionRules:
    topology: TopologySettings
    nodes: NodeSet  #: of the machine
    distances: Distances | None = None  #: only with prefer-closest-numa-nodes
    pod_level: bool = False  #: whether pod-level resources are allocated as a whole
    allocatable: fit.NodeAllocatable | None = None  #: for the fit check; ``None``: skip it
    pod_policy_annotations: bool = False  #: whether pods can choose policy and scope by annotation
    chosen: tuple[NodeSet, ...] = ()  #: what the first merges choose, where it is random


def decide(pod: Pod, ledger: Ledger, *, providers: Sequence[Provider[Any]], rules: AdmissionRules) -> Decision:
    """Decide on *pod* for a host with this ledger; changes nothing."""
    if pod.uid in ledger.pods:
        return _keep(ledger.pods[pod.uid], ledger, providers=providers, rules=rules)
    admission = _Admission(pod, ledger, providers, rules)
    try:
        admission.align()
    except _RejectedError as rejection_error:
        return admission.decision(Outcome.REJECTED, rejection=rejection_error.args[0])
    except PreferencesNeededError as preferences_error:
        return admission.decision(Outcome.ASKING, preference_requests=preferences_error.requests)
    return admission.decision(Outcome.ADMITTED)


def reject_unfit(failure: fit.FitFailure) -> Rejection:
    """Return the rejection of a pod for which the host as a whole has too little."""
    shortfalls = tuple(
        Shortfall("host", short.resource, short.requested, short.capacity - short.used)
        for short in failure.insufficient
    )
    return Rejection(failure.reason, failure.message, provider="host", shortfalls=shortfalls)


def effective_policy(pod: Pod, rules: AdmissionRules) -> tuple[Policy, Scope]:
    """Return the policy and scope for *pod*, from the host, or from the annotations of the pod if they are allowed."""
    topology = rules.topology
    return annotated_policy(pod, topology) if rules.pod_policy_annotations else (topology.policy, topology.scope)


def annotated_policy(pod: Pod, topology: TopologySettings) -> tuple[Policy, Scope]:
    """Return the policy and scope in the annotations of *pod*, else of *topology*; ``PodError`` if one is unknown."""
    problems = []
    for annotation, enum in ((POLICY_ANNOTATION, Policy), (SCOPE_ANNOTATION, Scope)):
        value = pod.annotations.get(annotation)
        if value is not None and value not in set(enum):
            message = f'Unsupported value: "{value}": supported values: ' + ", ".join(f'"{choice}"' for choice in enum)
            problems.append(Problem(f"metadata.annotations[{annotation}]", message))
    if problems:
        raise PodError(problems)
    policy, scope = topology.policy, topology.scope
    return (Policy(pod.annotations.get(POLICY_ANNOTATION, policy)), Scope(pod.annotations.get(SCOPE_ANNOTATION, scope)))


class _RejectedError(Exception):
    """The end of an admission, with a :class:`Rejection` as its only argument."""


class _Admission:
    def __init__(self, pod: Pod, ledger: Ledger, providers: Sequence[Provider[Any]], rules: AdmissionRules) -> None:
        self.pod = pod
        self.ledger = ledger
        self.providers = providers
        self.rules = rules
        policy, scope = effective_policy(pod, rules)
        self.policy = policy
        self.scope = scope
        self.ledgers = ledger.by_provider()
        self.hints: dict[str, Hint] = {}
        self.steps: list[MergeStep] = []
        #: whether the pod-level resources are allocated, not the resources of the containers
        self.as_whole = rules.pod_level and pod.has_pod_level_resources

    def align(self) -> None:
        """Allocate to all containers; then check the fit of the whole host."""
        if self.policy is Policy.NONE:
            for container in self.pod.all_containers:
                self.allocate(container, NO_AFFINITY)
        elif self.scope is Scope.CONTAINER:
            for container in self.pod.all_containers:
                self.allocate(container, self.choose(container))
        else:
            affinity = self.choose(None)
            if self.as_whole:
                self.hints.update((container.name, affinity) for container in self.pod.all_containers)
                self.allocate(None, affinity)
            else:
                for container in self.pod.all_containers:
                    self.allocate(container, affinity)
        self.usage = demand.fit_used(self.pod)
        allocatable = self.rules.allocatable
        if allocatable is None:
            return
        capacity: dict[str, int] = {}
        for provider in self.providers:
            capacity.update(provider.capacity(self.ledgers[provider.name], self.pod.uid))
        failure = fit.check_fit(
            self.pod,
            request=None if self.pod.statuses else self.usage,
            usage=self.ledger.used,
            allocatable=allocatable.with_devices(capacity),
            others=map(POD_OF, self.ledger.pods.values()),
        )
        if failure:
            raise _RejectedError(reject_unfit(failure))

    def choose(self, container: Container | None) -> Hint:
        considered_hints: list[_ProviderHints] = []
        inputs: list[MergeInput] = []
        for provider in self.providers:
            ledger = self.ledgers[provider.name]
            hints = provider.hints(ledger, self.pod, container)
            provider_merge_inputs = provider_inputs(provider.name, hints)
            inputs += provider_merge_inputs
            considered_hints.append((provider, ledger, hints, provider_merge_inputs))
        nodes, distances = self.rules.nodes, self.rules.distances
        result = apply_policy(self.policy, inputs, nodes=nodes, distances=distances)
        options = self.rules.topology.options
        if options.strategy is not AllocationStrategy.NONE and self.policy is not Policy.NONE:
            scores = partial(_score, considered_hints)
            merge_inputs = [provider_merge_inputs for _, _, _, provider_merge_inputs in considered_hints]
            result = apply_strategy(result, merge_inputs, scores, options=options, nodes=nodes, distances=distances)
            if result.merged.rule is MergeRule.RANDOM and len(self.steps) < len(self.rules.chosen):
                sets = {result.merged.nodes, *result.merged.runners_up}
                assumed_nodes = self.rules.chosen[len(self.steps)]
                result = choose_set(result, assumed_nodes, MergeRule.RANDOM, tuple(sorted(sets - {assumed_nodes})))
        hint, admits, (_, _, width, rule, runners_up) = result
        container_name = None if container is None else container.name
        resources = CollectedResources(partial(_collect_resources, self.pod, container, considered_hints))
        step = MergeStep(container_name, resources, width, rule, hint, runners_up, admits)
        self.steps.append(step)
        if not admits:
            raise _RejectedError(self._not_aligned(step))
        return hint

    def allocate(self, container: Container | None, affinity: Hint) -> None:
        if container is not None:
            self.hints[container.name] = affinity
        ledgers = self.ledgers
        for provider in self.providers:
            name = provider.name
            try:
                ledgers[name] = provider.allocate(ledgers[name], self.pod, container, affinity=affinity)
            except ProviderError as error:
                rejection = self._not_allocated(provider, container, error)
                if error.residue is not None:
                    ledgers[name] = error.residue
                raise _RejectedError(rejection) from error

    def decision(
        self,
        outcome: Outcome,
        *,
        rejection: Rejection | None = None,
        preference_requests: tuple[PreferenceRequest, ...] = (),
    ) -> Decision:
        new_ledger = residue = None
        if outcome is Outcome.REJECTED:
            unchanged = all(map(is_, self.ledgers.values(), self.ledger.by_provider().values()))
            residue = None if unchanged else self.ledger.with_providers(self.ledgers)
        elif outcome is Outcome.ADMITTED:
            new_ledger = self.ledger.with_pod(AdmittedPod(self.pod, self.hints, self.usage), self.ledgers)
        pod = self.pod
        return Decision(
            uid=pod.uid,
            name=pod.name,
            namespace=pod.namespace,
            qos=pod.qos,
            policy=self.policy,
            scope=self.scope,
            outcome=outcome,
            steps=tuple(self.steps),
            placements=() if new_ledger is None else build_placements(pod, self.hints, new_ledger, self.providers),
            rejection=rejection,
            preference_requests=preference_requests,
            before=self.ledger,
            after=new_ledger,
            residue=residue,
        )

    def _not_aligned(self, step: MergeStep) -> Rejection:
        """Return the rejection for want of common nodes, with every node that has too little of a resource."""
        message = _POD_NOT_ALIGNED[self.scope] if self.as_whole else _NOT_ALIGNED
        shortfalls: list[Shortfall] = []
        for provider, resource, request, free, hints, _ in step.resources:
            if request is not None and free is not None and hints != DONT_CARE:
                for node, amount in free.items():
                    if amount < request:
                        shortfalls.append(Shortfall(provider, resource or "", request, amount, 1 << node))
        return Rejection(TOPOLOGY_AFFINITY, message, container=step.container, shortfalls=tuple(shortfalls))

    def _not_allocated(self, provider: Provider[Any], container: Container | None, error: ProviderError) -> Rejection:
        needs = provider.needs(self.ledgers[provider.name], self.pod, container)
        shortfalls = tuple(
            Shortfall(provider.name, resource, need.request, need.total)
            for resource, need in needs.items()
            if need.total < need.request
        )
        name = None if container is None else container.name
        return Rejection(error.reason, error.message, container=name, provider=provider.name, shortfalls=shortfalls)


#: A provider, its ledger, and what it answered; the hints also as inputs of the merge.
_ProviderHints = tuple[Provider[Any], Any, HintsByResource, list[MergeInput]]


def _score(considered_hints: Sequence[_ProviderHints], number: int, nodes: NodeSet) -> int:
    """Return how much of the resource of a merge input is allocated on *nodes*, in percent."""
    owners = [(provider, ledger, hints) for provider, ledger, _, inputs in considered_hints for hints in inputs]
    provider, ledger, (resource, *_) = owners[number]
    return score_share(*provider.allocated_share(ledger, resource or "", nodes))


def _collect_resources(
    pod: Pod, container: Container | None, considered_hints: Iterable[_ProviderHints]
) -> tuple[ResourceHints, ...]:
    """Return the hints of every resource, with the requested and free amounts at the time of the merge."""
    resources: list[ResourceHints] = []
    for provider, ledger, hints, inputs in considered_hints:
        name = provider.name
        needs = {} if hints is None else provider.needs(ledger, pod, container)
        if hints:
            for resource, usable in inputs:
                need = needs.get(resource)
                request, free = (need.request, need.free) if need else (None, None)
                resources.append(ResourceHints(name, resource, request, free, usable))
        elif needs:
            # Nothing fits, which counts as "anywhere" in the merge. The request is recorded nevertheless.
            for resource, need in needs.items():
                resources.append(ResourceHints(name, resource, need.request, need.free, DONT_CARE))
        else:
            resources.append(ResourceHints(name, None, None, None, DONT_CARE))
    return tuple(resources)


def build_placements(
    pod: Pod, hints: Mapping[str, Hint], ledger: Ledger, providers: Sequence[Provider[Any]]
) -> tuple[Placement, ...]:
    uid = pod.uid
    outside = [provider for provider in providers if provider.name in ledger.others] if ledger.others else ()
    return tuple(
        [
            Placement(
                name := container.name,
                hints.get(name, NO_AFFINITY),
                ledger.cpus.holds(uid, name),
                ledger.memory.blocks(uid, name) or (),
                ledger.devices.holds(uid, name),
                {
                    provider.name: texts
                    for provider in outside
                    if (texts := provider.describe(ledger.others[provider.name], uid, name))
                }
                if outside
                else _NO_TEXTS,
            )
            for container in pod.all_containers
        ]
    )


def _keep(
    admitted_pod: AdmittedPod, ledger: Ledger, *, providers: Sequence[Provider[Any]], rules: AdmissionRules
) -> Decision:
    """Admit a pod of the ledger again with the same allocation; the kubelet may reject it after a restart."""
    pod = admitted_pod.pod
    try:
        policy, scope = effective_policy(pod, rules)
    except PodError:  # the annotations were not in effect at its admission, and are invalid
        policy, scope = rules.topology.policy, rules.topology.scope
    return Decision(
        uid=pod.uid,
        name=pod.name,
        namespace=pod.namespace,
        qos=pod.qos,
        policy=policy,
        scope=scope,
        outcome=Outcome.ADMITTED,
        placements=build_placements(pod, admitted_pod.hints, ledger, providers),
        kept=True,
        before=ledger,
        after=ledger,
    )
