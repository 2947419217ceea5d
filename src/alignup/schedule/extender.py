"""The scheduler extender: which nodes kube-scheduler may choose for a pod, and the binding to the one it chose.

Filter offers the best nodes only, since the scheduler's own work grows with their number: one if nothing but our rank
matters. The scheduler does not say which of them it chose before it binds the pod, so the binding checks again.
"""

import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from alignup.align.errors import PodError
from alignup.align.workload import Pod
from alignup.kubernetes.api import PODS, ObjectRef
from alignup.kubernetes.api.objects import ApiPod
from alignup.placement.verdict import Verdict
from alignup.schedule.alignment_need import needs_alignment
from alignup.schedule.binder import Binder
from alignup.schedule.extender_messages import BindingArgs, BindingResult, ExtenderArgs, FilterResult, HostPriority
from alignup.schedule.live_cluster import LiveCluster
from alignup.schedule.offered_nodes import Offers
from alignup.schedule.preferences import SoftTaints, has_preferences

MANY = 16  #: nodes for a scheduler to choose from by its own scores
MAX_SCORE = 10  #: of the protocol
MAX_PODS = 4096  #: pods that are remembered from filter to binding

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtenderOptions:
    #: nodes that filter answers with, at most; ``None``: the best one, or ``MANY`` if the scheduler's scores matter
    offered: int | None = None
    allow_unknown: bool = False  #: whether nodes without HostState pass
    #: whether the scheduler asks for victims where it needs none itself, as from Kubernetes 1.38 on; ``None``: as the
    #: version of the API server suggests
    chooses_victims: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterRecord:
    """What filter answered about one pod."""

    pod: ApiPod
    at: float  #: seconds since 1970
    asked: int  #: nodes
    offered: tuple[str, ...]
    reasons: Mapping[str, int] = field(default_factory=dict)  #: if none was offered: nodes by reason


class RejectionListener(Protocol):
    """Follows pods for which no node was offered."""

    def rejected(self, pod: ApiPod, nodes: Collection[str]) -> None: ...

    def scheduled(self, uid: str) -> None: ...


class Extender:
    def __init__(
        self,
        live: LiveCluster,
        binder: Binder,
        *,
        options: ExtenderOptions | None = None,
        listener: RejectionListener | None = None,
        resolvable: Callable[[Pod, Iterable[str]], Collection[str]] = lambda _pod, _nodes: (),
    ) -> None:
        self.options = options or ExtenderOptions()
        self._live, self._binder, self._listener = live, binder, listener
        self._resolvable = resolvable  #: the nodes where evicting pods helps
        self._offers = Offers()
        self._soft_taints = SoftTaints(live.nodes)
        self._records: OrderedDict[str, FilterRecord] = OrderedDict()  #: by uid

    def record(self, uid: str) -> FilterRecord | None:
        """What filter answered about a pod last."""
        return self._records.get(uid)

    def filter(self, args: ExtenderArgs) -> FilterResult:
        result = self._filter(args)
        if result.error:
            metadata = args.pod.metadata
            _log.warning("verb=filter pod=%s uid=%s problem=%r", metadata.full_name, metadata.uid, result.error)
        return result

    def _filter(self, args: ExtenderArgs) -> FilterResult:
        names = args.names
        if problems := self._live.problems:
            return FilterResult(error=f"alignup cannot tell what nodes have: {'; '.join(problems)}")
        try:
            pod = self._live.read(args.pod)
            if not needs_alignment(pod):
                return self._passing(args, list(names))
            chosen = self._best(args.pod, pod, names)
            found = {} if chosen else self._live.feasible(pod, names)
        except PodError as error:
            return FilterResult(error=f"alignup cannot read the pod: {error}")
        self._remember(args, found, chosen)
        if chosen:
            self._offers.offered(pod.uid, chosen)
            return self._passing(args, chosen)
        if self._listener is not None:
            self._listener.rejected(args.pod, names)
        return self._refused(args, pod, found)

    def prioritize(self, args: ExtenderArgs) -> list[HostPriority]:
        """Score nodes from 0 to 10; the best of them gets 10 where they differ."""
        totals: dict[str, float] = {}
        try:
            pod = self._live.read(args.pod)
            if needs_alignment(pod):
                found = self._live.feasible(pod, args.names)
                totals = {name: one.score.total for name, one in found.items() if one.admits and one.score is not None}
        except PodError as error:
            _log.warning("verb=prioritize pod=%s problem=%s", args.pod.metadata.full_name, error)
        lowest, highest = min(totals.values(), default=0.0), max(totals.values(), default=0.0)
        width = highest - lowest
        scores = {
            name: round(MAX_SCORE * (total - lowest) / width) if width else MAX_SCORE for name, total in totals.items()
        }
        return [HostPriority(name, scores.get(name, 0)) for name in args.names]

    async def bind(self, args: BindingArgs) -> BindingResult:
        started = time.perf_counter()
        problem = await self._bind(args)
        _log.info(
            "verb=bind pod=%s/%s uid=%s node=%s bound=%s seconds=%.4f%s",
            args.pod_namespace,
            args.pod_name,
            args.pod_uid,
            args.node,
            not problem,
            time.perf_counter() - started,
            f" problem={problem!r}" if problem else "",
        )
        return BindingResult(problem)

    async def _bind(self, args: BindingArgs) -> str:
        """Bind a pod; return why it was not bound, or nothing."""
        if problems := self._live.problems:
            return f"alignup cannot tell what nodes have: {'; '.join(problems)}"
        found = self._find(args)
        if found is None:
            return f"alignup does not know pod {args.pod_namespace}/{args.pod_name} with uid {args.pod_uid}"
        try:
            pod = self._live.read(found)
        except PodError as error:
            return f"alignup cannot read the pod: {error}"
        ref = ObjectRef(PODS, args.pod_name, namespace=args.pod_namespace, uid=found.metadata.uid)
        problem = await self._binder.bind(ref, pod, args.node)
        self._offers.withdraw(pod.uid)
        if not problem and self._listener is not None:
            self._listener.scheduled(pod.uid)
        return problem

    def _find(self, args: BindingArgs) -> ApiPod | None:
        """The pod of a binding; the watch can be later than the scheduler."""
        found = self._live.find_pod(args.pod_namespace, args.pod_name)
        if found is not None and args.pod_uid in {"", found.metadata.uid}:
            return found
        record = self._records.get(args.pod_uid)
        return None if record is None else record.pod

    def _limit(self, pod: ApiPod) -> int:
        """How many nodes to offer. A pod that was not bound after the last offer may need another node."""
        if self.options.offered is not None:
            return self.options.offered
        record = self._records.get(pod.metadata.uid)
        return MANY if has_preferences(pod) or (record is not None and record.offered) else 1

    def _best(self, api_pod: ApiPod, pod: Pod, names: Collection[str]) -> list[str]:
        """The best nodes; those that others may get or the pod avoids after them, those without HostState last."""
        limit = self._limit(api_pod)
        last = self._offers.taken(pod.uid) | self._soft_taints.avoided_by(api_pod.spec.tolerations)
        chosen = self._live.best(pod, limit, among=names, last=last)
        if len(chosen) < limit and (self.options.allow_unknown or self._live.options.approximate):
            unknown = [name for name in names if self._live.cluster.record(name) is None]
            verdicts = self._live.feasible(pod, unknown)
            judged = [(-one.score.total, name) for name, one in verdicts.items() if one.admits and one.score]
            chosen += [name for _, name in sorted(judged)]
            if self.options.allow_unknown:
                chosen += [name for name in unknown if not verdicts[name].admits]
        return chosen[:limit]

    def _passing(self, args: ExtenderArgs, names: list[str]) -> FilterResult:
        if args.by_name:
            return FilterResult(node_names=names)
        return FilterResult(nodes={"items": [{"metadata": {"name": name}} for name in names]})

    def _refused(self, args: ExtenderArgs, pod: Pod, found: Mapping[str, Verdict]) -> FilterResult:
        resolvable = self._resolvable(pod, found)
        failed = {name: one.reason for name, one in found.items() if name in resolvable}
        unresolvable = {name: one.reason for name, one in found.items() if name not in resolvable}
        empty = self._passing(args, [])
        return FilterResult(empty.nodes, empty.node_names, failed, unresolvable)

    def _remember(self, args: ExtenderArgs, found: Mapping[str, Verdict], chosen: list[str]) -> None:
        uid, reasons = args.pod.metadata.uid, Counter([one.reason for one in found.values()])
        asked = len(args.names)
        self._records[uid] = FilterRecord(
            pod=args.pod, at=time.time(), asked=asked, offered=tuple(chosen), reasons=reasons
        )
        self._records.move_to_end(uid)
        while len(self._records) > MAX_PODS:
            self._records.popitem(last=False)
        _log.info(
            "verb=filter pod=%s uid=%s nodes=%d offered=%d%s",
            args.pod.metadata.full_name,
            uid,
            asked,
            len(chosen),
            "" if chosen else f" reasons={dict(reasons.most_common(5))}",
        )
