"""``alignup cluster plan --apply``: the pods that a Plan object makes room for, its creation, and its output."""

from collections.abc import Iterator

from alignup.cli import cluster_client, inputs, terminal
from alignup.cli.app import InputError, Place
from alignup.cli.cluster import ApplyOptions, PodOptions
from alignup.cli.cluster_access import AccessOptions, ClusterError
from alignup.cli.cluster_plan_output import PlanAnswer
from alignup.cli.layout import paragraph
from alignup.cli.options import PlanOptions
from alignup.cli.plan_sources import PlanQuestion
from alignup.documents.codec import to_builtins
from alignup.documents.plans import DEADLINE_SECONDS, MAX_STEPS, Plan, PlanSpec, StepAction
from alignup.kubernetes.api import ApiClient, errors, find_access
from alignup.kubernetes.api.plan_resource import PLANS
from alignup.picture.text_format import Cell, Line, pluralize
from alignup.schedule.cluster_plan import PlanFacts, pending_pod
from alignup.schedule.plan_objects import missing_pods, plan_spec, pods_of, with_gangs
from alignup.schedule.workload_answers import split_by_object

_INSTALL = "Install it: kubectl apply -f deploy/kubernetes/crds"
_PERMISSIONS = (
    "Who creates a Plan needs permission to create plans.alignup.dev, and pods/eviction for each pod that it evicts."
)


def with_existing_pods(question: PlanQuestion, access: AccessOptions, options: PodOptions) -> PlanQuestion:
    """Return the question about all pods together, with existing pods in place of workloads.

    A manifest without a namespace means the namespace of the context, as for kubectl.
    """
    facts = question.facts
    if not isinstance(facts, PlanFacts):
        raise TypeError("only the pods of an API server exist")
    with cluster_client.api_errors():
        namespace = options.namespace or find_access(access.kubeconfig, context=access.context or "").namespace
    names = [(f"pod {pod.metadata.full_name}", pod.metadata.name) for pod in question.pods]
    candidates = list(question.pods)
    for templates in split_by_object(question.workloads):
        first = templates[0]
        members = pods_of(facts, first, namespace)
        name = f"{first.kind} {first.namespace}/{first.name}"
        if missing_count := missing_pods(members, templates):
            message = f"{pluralize(missing_count, 'pod')} of {name} {'do' if missing_count > 1 else 'does'} not exist"
            advice = "Apply the manifest first, and wait until its controller has created the pods; or name the pods."
            raise InputError(message, advice=advice)
        names.append((name, first.name))
        candidates += members
    waiting_pods = with_gangs(facts, candidates)
    if not waiting_pods:
        pod = candidates[0]
        state = "has ended" if pod.finished else f"is bound to node {pod.spec.node_name} already"
        raise InputError(f"pod {pod.metadata.full_name} {state}", advice="Name pods that wait.")
    title, short_name = names[0]
    if len(names) > 1:
        title = f"{title} and {len(names) - 1} more"
    with inputs.input_errors(Place(detail=f"in {title}")):
        pending_pods = list(map(pending_pod, waiting_pods))
    return question._replace(pods=(), workloads=(), waiting=((title, pending_pods),), short_name=short_name)


def create_and_print(  # noqa: PLR0913 - options
    access: AccessOptions,
    question: PlanQuestion,
    answer: PlanAnswer,
    options: PlanOptions,
    creation: ApplyOptions,
    *,
    output: str,
) -> None:
    """Print *answer*, and create its object if there is one; without an eviction there is nothing to carry out."""
    if output not in terminal.DOCUMENTS:
        answer.print_text()
    plan = None
    if any(step.evicts for step in answer.steps):
        spec = plan_spec(answer.steps, options.rules(), deadline_seconds=creation.deadline or DEADLINE_SECONDS)
        plan = _create(access, spec, name=creation.name or "", prefix=question.short_name)
    if output in terminal.DOCUMENTS:
        document = {"apiVersion": PLANS.api_version, "kind": PLANS.kind, **to_builtins(plan)} if plan else None
        terminal.print_as(output, {**answer.document, "object": document})
    elif answer.feasible:
        terminal.print_lines(_lines(plan))


def _create(access: AccessOptions, spec: PlanSpec, *, name: str, prefix: str) -> Plan:
    if len(spec.steps) > MAX_STEPS:
        message = f"the plan has {len(spec.steps)} steps, and a Plan object at most {MAX_STEPS}"
        raise ClusterError(message, advice="Plan for fewer pods, or with a smaller --max-moves.")
    metadata = {"name": name} if name else {"generateName": f"{prefix}-"}

    async def send(client: ApiClient, _namespace: str) -> Plan:
        return await client.create(PLANS, {"metadata": metadata, "spec": to_builtins(spec)})

    with cluster_client.api_errors(_PERMISSIONS):
        try:
            return cluster_client.ask(access, send)
        except errors.AlreadyExistsError as error:
            advice = f"Choose another --name, or delete that Plan: kubectl delete {_argument(name)}"
            raise ClusterError(f"Plan {name} exists already", advice=advice) from error
        except errors.NotFoundError as error:
            raise ClusterError(f"the cluster has no resource {PLANS.full_name}", advice=_INSTALL) from error
        except errors.InvalidObjectError as error:
            if name:
                raise InputError(error.message, place=Place("--name")) from error
            raise ClusterError(str(error), advice="Upgrade the resource definitions and Alignup together.") from error
        except errors.UnreachableError as error:
            if not error.sent:
                raise
            advice = "The Plan may have been created: kubectl get plans.alignup.dev lists all of them."
            raise ClusterError(str(error), advice=advice) from error


def _lines(plan: Plan | None) -> Iterator[Line]:
    yield ()
    if plan is None:
        yield from paragraph("No Plan is created: there is nothing to evict.", style="title")
        return
    argument, seconds = _argument(plan.metadata.name), plan.spec.deadline_seconds
    evictions = sum(step.action is StepAction.EVICT for step in plan.spec.steps)
    pods = pluralize(evictions, "pod")
    title = f"{argument} created: 'alignup schedule --plans' evicts {pods} within {seconds} seconds, or stops"
    yield from paragraph(title, style="title")
    for purpose, command in (
        ("See how far it is", f"kubectl get {argument}"),
        ("Wait for it", f"kubectl wait --for=condition=Complete {argument} --timeout={seconds}s"),
        ("Cancel it", f"kubectl delete {argument}"),
    ):
        yield (Cell(f"  {purpose + ':':19}{command}"),)  # on one line, so that it can be copied


def _argument(name: str) -> str:
    """Return the object as an argument of kubectl; other projects have a resource with the name Plan, too."""
    return f"{PLANS.kind.lower()}.{PLANS.group}/{name}"
