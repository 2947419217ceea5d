"""The verb bind: the binding of a pod to the node that kube-scheduler chose."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from itertools import count
from typing import NamedTuple

import structlog

from alignup.align.claims.resource_claims import Claim
from alignup.align.errors import PodError
from alignup.align.workload import Pod
from alignup.documents.codec import encode
from alignup.documents.decisions import placement_document
from alignup.kubernetes.api import PODS, ApiClient
from alignup.kubernetes.api.claim_resources import RESOURCE_CLAIMS
from alignup.kubernetes.api.errors import ApiError, ServerFailureError, UnreachableError, UnreadableError
from alignup.kubernetes.api.objects import ApiPod
from alignup.kubernetes.manifests.claims import claim_from
from alignup.placement.scheduling.bindings import FAILED
from alignup.placement.scheduling.events import BindingAsked, BindingFailed, BindingWritten, ClaimsRead
from alignup.placement.scheduling.instructions import AnswerBinding, Instruction, ReadPodClaims, WriteBinding
from alignup.placement.steered import STEERED_ANNOTATION
from alignup.schedule.cluster_facts import PLACEMENT_ANNOTATION
from alignup.schedule.extender.filter import FilterRecord
from alignup.schedule.extender.messages import BindingArgs, BindingResult
from alignup.schedule.known_claims import ObjectName
from alignup.schedule.live_cluster import LiveCluster
from alignup.schedule.step_guard import ServiceStep

BIND_SECONDS = 20.0  #: for one binding
ANSWER_SECONDS = 60.0  #: for everything before and after it

_log = structlog.get_logger()


class _Request(NamedTuple):
    pod: ApiPod
    answer: asyncio.Future[str]  #: why the pod was not bound, or nothing


class BindVerb:
    """The bindings of one process; *records* hold pods that the watch may not have shown yet."""

    def __init__(self, client: ApiClient, live: LiveCluster, records: Mapping[str, FilterRecord]) -> None:
        self._client = client
        self._live = live
        self._records = records
        self._numbers = count(1)
        self._requests: dict[int, _Request] = {}
        self.idle = asyncio.Event()  #: set while no binding is asked for
        self.idle.set()
        live.on_instruction(self._carry_out, WriteBinding, ReadPodClaims, AnswerBinding)

    async def respond(self, args: BindingArgs) -> BindingResult:
        pod, uid, node = f"{args.pod_namespace}/{args.pod_name}", args.pod_uid, args.node
        start, problem = time.perf_counter(), FAILED
        with self._live.guard.answering(f"bind {pod}"):
            problem = await self._bind(args)
        seconds = round(time.perf_counter() - start, 4)
        detail = {"problem": problem} if problem else {}
        _log.info("bind", pod=pod, uid=uid, node=node, bound=not problem, seconds=seconds, **detail)
        return BindingResult(problem)

    async def _bind(self, args: BindingArgs) -> str:
        """Bind a pod; return why it was not bound, or nothing."""
        if problems := self._live.problems:
            return f"alignup cannot tell what nodes have: {'; '.join(problems)}"
        pod = self._live.find_pod(args.pod_namespace, args.pod_name)
        if pod is None or args.pod_uid not in {"", pod.metadata.uid}:  # the watch may be late
            record = self._records.get(args.pod_uid)
            pod = record.pod if record else None
        if pod is None:
            return f"alignup does not know pod {args.pod_namespace}/{args.pod_name} with uid {args.pod_uid}"
        try:
            facts = self._live.facts(pod)
        except PodError as error:
            return f"alignup cannot read the pod: {error}"
        number = next(self._numbers)
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._requests[number] = _Request(pod, answer)
        self.idle.clear()
        self._live.schedule(BindingAsked(number, facts, args.node))
        async with asyncio.timeout(ANSWER_SECONDS):
            return await answer

    def _carry_out(self, instruction: Instruction) -> None:
        tasks = self._live.tasks
        match instruction:
            case WriteBinding(request, pod):
                tasks.start(self._write(instruction), pod.uid, ServiceStep.BIND, request)
            case ReadPodClaims(request, pod):
                tasks.start(self._read_claims(instruction), pod.uid, ServiceStep.BIND, request)
            case AnswerBinding(request, problem):
                answer = self._requests.pop(request).answer
                if not answer.done():
                    answer.set_result(problem)
                if not self._requests:
                    self.idle.set()

    async def _write(self, binding: WriteBinding) -> None:
        annotations = {STEERED_ANNOTATION: binding.steered} if binding.steered else {}
        if binding.placements is not None:
            placements = [placement_document(placement) for placement in binding.placements]
            annotations[PLACEMENT_ANNOTATION] = encode(placements).decode()
        request, node = binding.request, binding.node
        try:
            async with asyncio.timeout(BIND_SECONDS):
                await self._client.bind(PODS.of(self._requests[request].pod), node, annotations=annotations)
        except (UnreachableError, UnreadableError, ServerFailureError, TimeoutError) as error:
            problem = f"it is unknown whether the pod was bound to {node}: {error or 'no response'}"
            self._live.schedule(BindingFailed(request, problem, lost=True))
        except ApiError as error:
            self._live.schedule(BindingFailed(request, str(error)))
        else:
            self._live.schedule(BindingWritten(request))

    async def _read_claims(self, instruction: ReadPodClaims) -> None:
        request = instruction.request
        try:
            pod, claims = await self._current_claims(
                self._requests[request].pod, instruction.pod, current=instruction.current
            )
        except ApiError as error:
            self._live.schedule(ClaimsRead(request, None, problem=str(error)))
        else:
            self._live.schedule(ClaimsRead(request, pod, claims))

    async def _current_claims(self, api_pod: ApiPod, pod: Pod, *, current: bool) -> tuple[Pod, dict[ObjectName, Claim]]:
        """Return *pod* with the claims that the scheduler made, and the claims whose latest state is not known yet.

        With *current*, all are read: one that is followed may have other devices meanwhile.
        """
        namespace = api_pod.metadata.namespace
        unnamed = pod.class_resources and not pod.extended_claim
        if unnamed or any(not pod_claim.claim for pod_claim in pod.claims):
            latest = await self._client.get(PODS.of(api_pod))
            pod = replace(self._live.read(latest), uid=pod.uid)
        claims: dict[ObjectName, Claim] = {}
        for name in filter(None, (*(pod_claim.claim for pod_claim in pod.claims), pod.extended_claim)):
            current_claim = self._live.claims.objects.claims.get((namespace, name))
            if current or current_claim is None or current_claim.allocated is None:
                api_claim = await self._client.find(RESOURCE_CLAIMS.at(name, namespace=namespace))
                if api_claim is not None:
                    claims[namespace, name] = claim_from(api_claim)
        return pod, claims
