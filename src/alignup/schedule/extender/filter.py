"""The verb filter: which nodes kube-scheduler may choose for a pod."""

import time
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import structlog

from alignup.align.errors import PodError
from alignup.kubernetes.api.objects import ApiPod
from alignup.placement.scheduling.bindings import FAILED
from alignup.placement.scheduling.events import Event, NodesAsked, PodBound, PodGone
from alignup.placement.scheduling.instructions import AnswerNodes
from alignup.placement.verdict import PASSING_REASONS
from alignup.schedule.extender.messages import ExtenderArgs, FilterResult
from alignup.schedule.live_cluster import LiveCluster
from alignup.schedule.node_selection import SoftTaints

MAX_PODS = 4096  #: whose last answers are remembered

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterRecord:
    """The last answer of filter about one pod."""

    pod: ApiPod | None  #: until it is bound
    at: float  #: seconds since 1970
    asked: int  #: nodes
    offered: tuple[str, ...]
    reasons: Mapping[str, int] = field(default_factory=dict)  #: if none was offered: nodes by reason

    def document(self) -> dict[str, Any]:
        at = datetime.fromtimestamp(self.at, UTC).isoformat()
        return {"time": at, "asked": self.asked, "offered": list(self.offered), "reasons": dict(self.reasons)}


class FilterVerb:
    def __init__(self, live: LiveCluster) -> None:
        self._live = live
        self._soft_taints = SoftTaints(live.nodes)
        self.records: OrderedDict[str, FilterRecord] = OrderedDict()  #: what was answered about a pod last, by uid
        #: uid → why no node was offered, as logged last
        self._logged: OrderedDict[str, frozenset[str]] = OrderedDict()
        live.on_event(self._handled)

    async def respond(self, args: ExtenderArgs) -> FilterResult:
        with self._live.guard.answering(f"filter {args.pod.metadata.full_name}"):
            await self._live.decide_large(args.pod)
            return self.answer(args)
        return FilterResult(error=FAILED)

    def answer(self, args: ExtenderArgs) -> FilterResult:
        metadata, record = args.pod.metadata, self.records.get(args.pod.metadata.uid)
        names = args.names
        len(names)  # ``ParseError`` if they are no names
        if problems := self._live.problems:
            answer = AnswerNodes(problem=f"alignup cannot tell what nodes have: {'; '.join(problems)}")
        else:
            try:
                again = record is not None and bool(record.offered)
                avoided_nodes = self._soft_taints.avoided_by(args.pod.spec.tolerations)
                todo = self._live.schedule(NodesAsked(self._live.facts(args.pod), names, avoided_nodes, again))
                answers = (instruction for instruction in todo if isinstance(instruction, AnswerNodes))
                answer = next(answers, AnswerNodes(problem=FAILED))
            except PodError as error:
                answer = AnswerNodes(problem=f"alignup cannot read the pod: {error}")
        if answer.problem:
            if self._is_new(metadata.uid, [answer.problem]):
                _log.warning("filter", pod=metadata.full_name, uid=metadata.uid, problem=answer.problem)
            return FilterResult(error=answer.problem)
        if answer.aligned:
            self._remember(args.pod, len(names), answer)
        return args.result(list(answer.offered), dict(answer.failed), dict(answer.unresolvable))

    def _remember(self, pod: ApiPod, asked: int, answer: AnswerNodes) -> None:
        uid, offered = pod.metadata.uid, answer.offered
        reasons = Counter([*answer.failed.values(), *answer.unresolvable.values()])
        self.records[uid] = FilterRecord(pod=pod, at=time.time(), asked=asked, offered=offered, reasons=reasons)
        self.records.move_to_end(uid)
        while len(self.records) > MAX_PODS:
            self.records.popitem(last=False)
        if offered:
            self._logged.pop(uid, None)
        if offered or self._is_new(uid, reasons):
            detail = {} if offered else {"reasons": dict(reasons.most_common(5))}
            _log.info("filter", pod=pod.metadata.full_name, uid=uid, nodes=asked, offered=len(offered), **detail)

    def _handled(self, event: Event) -> None:
        match event:
            case PodBound(uid) if uid in self.records:
                self.records[uid] = replace(self.records[uid], pod=None)
            case PodGone(uid):
                self.records.pop(uid, None)
                self._logged.pop(uid, None)

    def _is_new(self, uid: str, reasons: Iterable[str]) -> bool:
        """Return whether a pod is rejected for other reasons than last time. Reasons that pass in seconds do not count.

        A scheduler asks about a rejected pod again and again, and each answer would be a line of the log.
        """
        lasting, last = frozenset(reasons) - PASSING_REASONS, self._logged.pop(uid, None)
        self._logged[uid] = lasting
        while len(self._logged) > MAX_PODS:
            self._logged.popitem(last=False)
        return lasting != last
