"""The admission of a pod, in two phases: every provider says where its part could go, then all follow one choice.

READ THIS FIRST. For each container (or once for the pod, as the scope says):

1. each provider gives hints: on which sets of NUMA nodes could its resources go? (``provider.hints``)
2. the policy merges them into one, and takes it or refuses the pod (``policy.judge``)
3. each provider gives out its resources, following that one hint (``provider.allocate``)

Then the host's fit check. The first "no" ends it. Nothing is changed on the way: providers return new ledgers, which
count only if everybody agreed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from alignup.align import fit
from alignup.align.bits import NodeSet
from alignup.align.decision import Decision, MergeStep, Outcome, Placement, Rejection, ResourceHints, Shortfall
from alignup.align.devices import PreferenceRequest
from alignup.align.distances import Distances
from alignup.align.errors import PodError, Problem, ProviderError
from alignup.align.hint import DONT_CARE, Hint, HintFamily, HintList, HintsByResource, provider_inputs
from alignup.align.ledger import AdmittedPod, Ledger
from alignup.align.policy import apply_policy
from alignup.align.provider import Need, Provider
from alignup.align.providers import PreferencesNeededError
from alignup.align.settings import Policy, Scope, TopologySettings
from alignup.align.workload import Container, Pod, demand

#: By these annotations a pod may choose its own policy and scope, where the settings allow it.
POLICY_ANNOTATION = "topology.alignup.dev/policy"
SCOPE_ANNOTATION = "topology.alignup.dev/scope"

_NOT_ALIGNED = "Resources cannot be allocated with Topology locality"
_POD_NOT_ALIGNED = {
    Scope.CONTAINER: "Pod Scope pod with pod-level resources failed admission with a container-level topology manager",
    Scope.POD: "Pod Scope pod with pod-level resources failed admission under pod-scope topology manager",
}
NO_AFFINITY = Hint(None, preferred=False)  #: what providers follow when nobody chose


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionRules:
    """What every admission on one host goes by."""

    topology: TopologySettings
    nodes: NodeSet  #: of the machine
    distances: Distances | None = None  #: only where closeness counts
    pod_level: bool = False  #: resources of a pod as a whole are given out in one piece
    allocatable: fit.NodeAllocatable | None = None  #: for the fit check; ``None``: there is none
    own_policy: bool = False  #: pods may choose policy and scope by annotation


def decide(pod: Pod, ledger: Ledger, *, providers: Sequence[Provider[Any]], rules: AdmissionRules) -> Decision:
    """What would become of *pod* on a host as *ledger* has it; changes nothing."""
    if pod.uid in ledger.pods:
        return _kept(ledger.pods[pod.uid], ledger, providers=providers, rules=rules)
    draft = _Draft(pod, ledger, providers, rules)
    try:
        draft.align()
        draft.check_fit()
    except _RefusedError as refused:
        return draft.decision(Outcome.REJECTED, refusal=refused.refusal)
    except PreferencesNeededError as first:
        return draft.decision(Outcome.ASKING, asks=first.asks)
    return draft.decision(Outcome.ADMITTED)


def effective_policy(pod: Pod, rules: AdmissionRules) -> tuple[Policy, Scope]:
    """The policy and scope for *pod*: the host's, or its own where it may choose."""
    policy, scope = rules.topology.policy, rules.topology.scope
    if not rules.own_policy:
        return policy, scope
    problems = []
    for annotation, known in ((POLICY_ANNOTATION, Policy), (SCOPE_ANNOTATION, Scope)):
        said = pod.annotations.get(annotation)
        if said is not None and said not in set(known):
            what = f'Unsupported value: "{said}": supported values: ' + ", ".join(f'"{one}"' for one in known)
            problems.append(Problem(f"metadata.annotations[{annotation}]", what))
    if problems:
        raise PodError(problems)
    return (
        Policy(pod.annotations.get(POLICY_ANNOTATION, policy)),
        Scope(pod.annotations.get(SCOPE_ANNOTATION, scope)),
    )


class _RefusedError(Exception):
    """The pod is refused; ends a draft."""

    def __init__(self, refusal: Rejection) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


class _Draft:
    """One admission while it is being decided."""

    def __init__(self, pod: Pod, ledger: Ledger, providers: Sequence[Provider[Any]], rules: AdmissionRules) -> None:
        self.pod, self.ledger, self.providers, self.rules = pod, ledger, providers, rules
        self.policy, self.scope = effective_policy(pod, rules)
        self.books: dict[str, Any] = dict(ledger.books)
        self.hints: dict[str, Hint] = {}
        self.steps: list[MergeStep] = []
        self.uses = demand.fit_used(pod)
        #: whether the pod's own resources are given out, not those of its containers
        self.in_one_piece = rules.pod_level and pod.has_pod_level_resources

    def align(self) -> None:
        """Phases one and two for everybody, or a refusal."""
        if self.policy is Policy.NONE:
            for container in self.pod.everyone:
                self.allocate(container, NO_AFFINITY)
        elif self.scope is Scope.CONTAINER:
            for container in self.pod.everyone:
                self.allocate(container, self.choose(container))
        else:
            affinity = self.choose(None)
            if self.in_one_piece:
                self.hints.update((container.name, affinity) for container in self.pod.everyone)
                self.allocate(None, affinity)
            else:
                for container in self.pod.everyone:
                    self.allocate(container, affinity)

    def choose(self, container: Container | None) -> Hint:
        """Ask everybody, merge, and take what the policy takes."""
        answers = {one.name: one.hints(self.books[one.name], self.pod, container) for one in self.providers}
        said = [voice for provider, answer in answers.items() for voice in provider_inputs(provider, answer)]
        verdict = apply_policy(self.policy, said, nodes=self.rules.nodes, distances=self.rules.distances)
        merged = verdict.merged
        if merged is None:
            raise AssertionError("every policy but none merges")
        self.steps.append(
            MergeStep(
                container=None if container is None else container.name,
                width=merged.width,
                rule=merged.rule,
                hint=verdict.hint,
                runners_up=merged.runners_up,
                accepted=verdict.admitted,
                told=partial(_voices, self.providers, dict(self.books), self.pod, container, answers),
            )
        )
        if not verdict.admitted:
            raise _RefusedError(self._not_aligned(container))
        return verdict.hint

    def allocate(self, container: Container | None, affinity: Hint) -> None:
        """Let every provider give out its part."""
        if container is not None:
            self.hints[container.name] = affinity
        for provider in self.providers:
            try:
                self.books[provider.name] = provider.allocate(
                    self.books[provider.name], self.pod, container, affinity=affinity
                )
            except ProviderError as error:
                raise _RefusedError(self._not_given(provider, container, error)) from error

    def check_fit(self) -> None:
        """Whether the host as a whole has room."""
        if self.rules.allocatable is None:
            return
        offered: dict[str, int] = {}
        for one in self.providers:
            offered.update(one.offered(self.books[one.name], self.pod.uid))
        misfit = fit.check_fit(
            self.pod,
            request=None if self.pod.statuses else self.uses,
            used=self.ledger.used,
            allocatable=self.rules.allocatable.offering(offered),
            others=(resident.pod for resident in self.ledger.pods.values()),
        )
        if misfit:
            shortfalls = tuple(
                Shortfall("host", short.resource, short.requested, short.capacity - short.used)
                for short in misfit.shortfalls
            )
            raise _RefusedError(Rejection(misfit.reason, misfit.message, provider="host", shortfalls=shortfalls))

    def decision(
        self, outcome: Outcome, *, refusal: Rejection | None = None, asks: tuple[PreferenceRequest, ...] = ()
    ) -> Decision:
        """The record."""
        placements: tuple[Placement, ...] = ()
        after = None
        if outcome is Outcome.ADMITTED:
            placements = build_placements(self.pod, self.hints, self.books, self.providers)
            after = self.ledger.with_pod(AdmittedPod(self.pod, self.hints, self.uses), self.books)
        return Decision(
            uid=self.pod.uid,
            name=self.pod.name,
            namespace=self.pod.namespace,
            qos=self.pod.qos,
            policy=self.policy,
            scope=self.scope,
            outcome=outcome,
            steps=tuple(self.steps),
            placements=placements,
            before=self.ledger,
            refusal=refusal,
            asks=asks,
            after=after,
        )

    def _not_aligned(self, container: Container | None) -> Rejection:
        """No set of nodes suits everybody: who found too little where?"""
        message = _POD_NOT_ALIGNED[self.scope] if self.in_one_piece else _NOT_ALIGNED
        shortfalls = tuple(
            Shortfall(voice.provider, voice.resource or "", voice.request, free, 1 << node)
            for voice in self.steps[-1].voices
            if voice.request is not None and voice.free is not None and not voice.has_no_preference
            for node, free in voice.free.items()
            if free < voice.request
        )
        name = None if container is None else container.name
        return Rejection("TopologyAffinityError", message, container=name, shortfalls=shortfalls)

    def _not_given(self, provider: Provider[Any], container: Container | None, error: ProviderError) -> Rejection:
        """A provider could not give out its part."""
        needs = provider.needs(self.books[provider.name], self.pod, container)
        shortfalls = tuple(
            Shortfall(provider.name, resource, need.request, free)
            for resource, need in needs.items()
            if (free := sum(need.free.values()) if need.in_all is None else need.in_all) < need.request
        )
        name = None if container is None else container.name
        return Rejection(error.reason, error.message, container=name, provider=provider.name, shortfalls=shortfalls)


def _voices(
    providers: Sequence[Provider[Any]],
    books: Mapping[str, Any],
    pod: Pod,
    container: Container | None,
    answers: Mapping[str, HintsByResource],
) -> tuple[ResourceHints, ...]:
    """What was said, in the words of the record."""
    recorded = []
    for one in providers:
        answer = answers[one.name]
        needs = {} if answer is None else one.needs(books[one.name], pod, container)
        if not answer:
            # Nothing fits, which counts as "anywhere": what was asked for is on record all the same.
            recorded += [_voice(one.name, name, need, DONT_CARE) for name, need in needs.items() or [(None, None)]]
        else:
            recorded += [
                _voice(one.name, name, needs.get(name), said) for name, said in provider_inputs(one.name, answer)
            ]
    return tuple(recorded)


def _voice(provider: str, resource: str | None, need: Need | None, options: HintList | HintFamily) -> ResourceHints:
    if need is None:
        return ResourceHints(provider, resource, None, None, options)
    return ResourceHints(provider, resource, need.request, need.free, options)


def build_placements(
    pod: Pod, hints: Mapping[str, Hint], books: Mapping[str, Any], providers: Sequence[Provider[Any]]
) -> tuple[Placement, ...]:
    """What each container of *pod* has."""
    return tuple(
        [
            Placement(
                container.name,
                hints.get(container.name, NO_AFFINITY),
                partial(_given, providers, books, pod.uid, container.name),
            )
            for container in pod.everyone
        ]
    )


def _given(
    providers: Sequence[Provider[Any]], books: Mapping[str, Any], uid: str, container: str
) -> dict[str, Mapping[str, str]]:
    return {one.name: given for one in providers if (given := one.given(books[one.name], uid, container))}


def _kept(
    resident: AdmittedPod, ledger: Ledger, *, providers: Sequence[Provider[Any]], rules: AdmissionRules
) -> Decision:
    """A pod that is there keeps what it has and is never refused; the kubelet may do so after a restart."""
    pod = resident.pod
    try:
        policy, scope = effective_policy(pod, rules)
    except PodError:  # pods may choose only since it came, and what it says is no choice
        policy, scope = rules.topology.policy, rules.topology.scope
    return Decision(
        uid=pod.uid,
        name=pod.name,
        namespace=pod.namespace,
        qos=pod.qos,
        policy=policy,
        scope=scope,
        outcome=Outcome.ADMITTED,
        placements=build_placements(pod, resident.hints, ledger.books, providers),
        kept=True,
        before=ledger,
        after=ledger,
    )
