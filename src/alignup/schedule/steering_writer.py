"""Instructions to observers about markers of NUMA nodes, as ``placement.scheduling.pod_steering`` decides."""

import asyncio
from collections import deque
from contextlib import suppress
from functools import partial

import structlog
from prometheus_client import CollectorRegistry, Counter, Histogram

from alignup.align import bits
from alignup.align.errors import ParseError
from alignup.documents.codec import to_builtins
from alignup.documents.steering import SteeredPod, SteeringInstruction, SteeringSpec
from alignup.kubernetes.api import ApiClient, Change, EventType, PatchType
from alignup.kubernetes.api.errors import ApiError, NotFoundError, ServerFailureError, UnreachableError, UnreadableError
from alignup.kubernetes.api.steering_instructions import STEERING_INSTRUCTIONS
from alignup.placement.scheduling.events import SteeringFailed, SteeringObserved, SteeringWritten
from alignup.placement.scheduling.instructions import Instruction, Report, WriteSteering
from alignup.placement.scheduling.options import HOLD_SECONDS
from alignup.placement.scheduling.pod_steering import SteeringOutcome
from alignup.placement.scheduling.steering_deviations import DeviationCause
from alignup.schedule.live_cluster import LiveCluster

WRITE_SECONDS = 1.5  #: for the API server to accept one
_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 1.5, 2.5)  #: seconds

_log = structlog.get_logger()


class PodSteeringMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        counter = partial(Counter, registry=registry)
        self.pods = counter(
            "alignup_steering_pods", "Pods that request markers by what became of steering.", ["outcome"]
        )
        self.seconds = Histogram(
            "alignup_steering_seconds", "Time that steering added to a binding.", buckets=_BUCKETS, registry=registry
        )
        self.reviews = counter("alignup_steering_reviews", "Reviews of new pods that opted in, by result.", ["outcome"])
        self.deviations = counter(
            "alignup_steering_deviations",
            "Pods on another NUMA node than they were to be steered to, by cause.",
            ["cause"],
        )
        for outcome in SteeringOutcome:
            self.pods.labels(outcome)
        for cause in DeviationCause:
            self.deviations.labels(cause)


class SteeringWriter:
    """The instructions of one cluster service. Each observer gets its instructions in order.

    Observers create the objects of their nodes; the service has no right to that.
    Observers wait *hold* seconds for a pod. What depends on their speed may take longer in proportion to that.
    """

    def __init__(self, client: ApiClient, live: LiveCluster, *, hold: float = HOLD_SECONDS) -> None:
        self._client = client
        self.write_seconds = WRITE_SECONDS * hold / HOLD_SECONDS
        self._live = live
        self.metrics = PodSteeringMetrics(live.metrics.registry)
        self._waiting: dict[str, deque[WriteSteering]] = {}  #: by node, while one is being written
        live.steering_instructions.subscribe(self._instruction_changed)
        live.on_instruction(self._carry_out, WriteSteering, Report)

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case WriteSteering(node) if node in self._waiting:
                self._waiting[node].append(instruction)
            case WriteSteering(node):
                self._waiting[node] = deque([instruction])
                self._live.tasks.start(self._write_all(node), "", "steer")
            case Report("steering", uid, pod, details):
                self.metrics.pods.labels(details["outcome"]).inc()
                self.metrics.seconds.observe(details["seconds"])
                event_details = {"outcome": str(details["outcome"]), "seconds": round(details["seconds"], 4)}
                _log.info("steering", pod=pod, uid=uid, **(details | event_details))
            case Report("steering deviation" as event, uid, pod, details):
                self.metrics.deviations.labels(details["cause"]).inc()
                _log.warning(event, pod=pod, uid=uid, **(details | {"cause": str(details["cause"])}))
            case Report("cannot write an instruction" as event, uid, pod, details):
                _log.warning(event, pod=pod, uid=uid, **details)

    async def _write_all(self, node: str) -> None:
        """Write the instructions to one observer that wait."""
        instructions = self._waiting[node]
        try:
            while instructions:
                instruction = instructions.popleft()
                try:
                    await self._write(instruction)
                except Exception as error:  # noqa: BLE001 - whatever it is, the next ones are written
                    self._live.instruction_failed(instruction, error)
        finally:
            del self._waiting[node]

    async def _write(self, instruction: WriteSteering) -> None:
        node, pod, spec = instruction.node, instruction.pod, SteeringSpec()
        uid = pod.uid if pod else ""
        if pod is not None:
            ref = SteeredPod(namespace=pod.namespace, name=pod.name, uid=uid)
            spec = SteeringSpec(pod=ref, numa_nodes=bits.show(instruction.nodes), containers=instruction.containers)
        try:
            steering = await self._apply(node, spec)
        except (UnreachableError, UnreadableError, ServerFailureError, TimeoutError) as error:  # perhaps written
            self._live.schedule(SteeringFailed(node, uid))
            problem = str(error) or "no response"
        except ApiError as error:
            problem = str(error)
            if isinstance(error, NotFoundError):
                problem += f": the observer of {node} creates it if it runs with --steer"
            self._live.schedule(SteeringFailed(node, uid, problem))
        else:
            self._live.schedule(SteeringWritten(node, uid, steering.metadata.generation))
            return
        if pod is None:
            _log.warning("cannot clear an instruction", node=node, problem=problem)

    async def _apply(self, node: str, spec: SteeringSpec) -> SteeringInstruction:
        instruction = self._live.steering_instructions.get(node)
        empty = SteeringSpec()
        specs = (empty, spec) if spec.pod and instruction is not None and instruction.spec == spec else (spec,)
        for spec_version in specs:  # the same again would be no new instruction
            patch = [{"op": "add", "path": "/spec", "value": to_builtins(spec_version)}]
            async with asyncio.timeout(self.write_seconds):
                steering = await self._client.patch(STEERING_INSTRUCTIONS.at(node), patch, patch_type=PatchType.JSON)
        return steering

    def _instruction_changed(self, change: Change[SteeringInstruction]) -> None:
        instruction, nodes = change.object, 0
        pod = instruction.spec.pod
        if pod is not None:
            with suppress(ParseError):
                nodes = bits.parse(instruction.spec.numa_nodes)
        self._live.schedule(
            SteeringObserved(
                instruction.metadata.name,
                instruction.metadata.generation,
                str(instruction.phase or ""),
                pod.uid if pod is not None else "",
                nodes,
                deleted=change.type is EventType.DELETED,
            )
        )
