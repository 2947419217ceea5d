"""Pods run on a runtime with real sockets and processes, from their first container to their last."""

import asyncio
from dataclasses import replace

import pytest

from alignup.agent.state import EventKind
from alignup.agent.transaction import Transaction
from alignup.align import bits
from alignup.align.quantity import Quantity
from alignup.documents.api import AdmissionStatus
from alignup.kubernetes.configuration import ContainerSettings
from alignup.kubernetes.podspec import PodManifest
from alignup.testing import Fault
from alignup.testing.runtime import RuntimeContainer, Sandbox
from alignup.wire import cri_pb2 as wire
from tests.agent.agent_process import FAST
from tests.agent.pods.harness import container, exclusive, manifest, pod_harness, pod_harness_on, runtime_in
from tests.agent.states import empty_state
from tests.short_paths import short_directory

TIMEOUT = 120.0  #: seconds, of a whole scenario

UNTIL_END = "until test -e end; do sleep 0.02; done"  #: a command that runs until the file ``end`` exists

ALWAYS_MAINTAINING = replace(FAST, maintenance=0.0)


@pytest.fixture
def place():
    with short_directory() as found:
        yield found


def run_scenario(place, scenario, **options):
    """Run a scenario in a harness."""

    async def run():
        async with asyncio.timeout(TIMEOUT), pod_harness(place, **options) as made:
            return await scenario(made)

    return asyncio.run(run())


def kinds_of_events(harness):
    return [(event.pod.uid, event.kind) for event in harness.events]


def lists_all_pods(call):
    method, request = call
    return method in {"ListContainers", "ListPodSandbox"} and not request.filter.label_selector


def test_an_admitted_pod_runs(place):
    async def scenario(harness):
        await harness.admit(
            manifest(
                "web",
                container(
                    "app", "sh", "-c", "echo $GREETING; sleep 1000", env=[{"name": "GREETING", "value": "hello"}]
                ),
            )
        )
        await harness.wait_running("web")
        await harness.wait_log("web", "hello\n")
        return harness.run("web"), harness.pre_start.started

    run, started = run_scenario(place, scenario)

    (app,) = run.containers
    assert (run.phase, app.state, app.restarts) == ("Running", "running", 0)
    assert app.pid
    assert started == [("web", "app")]


def test_exclusive_and_shared_cpus(place):
    async def scenario(harness):
        await harness.admit(manifest("shares"))
        await harness.wait_running("shares")
        before = harness.cpus("app")
        await harness.admit(manifest("owns", container("mine", resources=exclusive(2))))
        await harness.wait_running("owns", "mine")
        return before, harness.cpus("app"), harness.cpus("mine"), harness.runtime

    before, after, own, runtime = run_scenario(place, scenario)

    assert bits.parse(before) == bits.parse("0-7")
    assert bits.parse(own).bit_count() == 2
    assert bits.parse(after) == bits.parse(before) & ~bits.parse(own)
    methods = [name for name in ("UpdateContainerResources",) if runtime.requests(name)]
    assert methods


def test_shared_cpus_grow_when_a_pod_is_released(place):
    async def scenario(harness):
        await harness.admit(manifest("shares"))
        await harness.admit(manifest("owns", container("mine", resources=exclusive(2))))
        await harness.wait_running("owns", "mine")
        await harness.wait_running("shares")
        await harness.end("owns")
        await harness.wait_until(lambda: harness.queue.state.pod_view("owns") is None)
        await harness.wait_until(lambda: harness.cpus("app") == "0-7")

    run_scenario(place, scenario)


def test_memory_comes_from_the_allocated_numa_nodes(place):
    async def scenario(harness):
        await harness.admit(manifest("owns", container("app", resources=exclusive(4))))
        await harness.wait_running("owns")
        (asked,) = harness.runtime.requests("CreateContainer")
        return asked.config.linux.resources

    resources = run_scenario(place, scenario)

    assert (resources.cpuset_cpus, resources.cpuset_mems) == ("4-7", "1")
    assert resources.memory_limit_in_bytes == 64 << 20
    assert resources.cpu_quota == -1


def test_init_containers_run_first_and_in_order(place):
    async def scenario(harness):
        inits = [container(f"init{n}", "sh", "-c", f"sleep 0.05; echo {n} >> order") for n in range(3)]
        await harness.admit(
            manifest("web", container("app", "sh", "-c", "echo app >> order; sleep 1000"), initContainers=inits)
        )
        await harness.wait_running("web")
        order = harness.directory / "boxes" / "order"
        await harness.wait_until(lambda: "app" in order.read_text())
        return order.read_text().split(), harness.states("web")

    order, states = run_scenario(place, scenario)

    assert order == ["0", "1", "2", "app"]
    assert states == {"init0": "Completed", "init1": "Completed", "init2": "Completed", "app": "running"}


def test_a_container_that_exits_restarts(place):
    async def scenario(harness):
        await harness.admit(manifest("web"))
        await harness.wait_running("web")
        first = harness.run("web").containers[0].id
        harness.runtime.kill("app")
        await harness.wait_until(lambda: harness.run("web").containers[0].restarts == 1)
        await harness.wait_running("web")
        return first, harness.run("web").containers[0]

    first, now = run_scenario(place, scenario)

    assert now.id != first
    assert now.last.exit_code == 137


def test_a_crashing_container_backs_off(place):
    async def scenario(harness):
        await harness.admit(manifest("web", container("app", "sh", "-c", "exit 3")))
        await harness.wait_until(lambda: harness.states("web").get("app") == "CrashLoopBackOff")
        return harness.run("web")

    run = run_scenario(place, scenario)

    assert run.phase == "Running"
    assert run.containers[0].last.exit_code == 3


@pytest.mark.parametrize(
    ("policy", "code", "phase"),
    [
        pytest.param("Never", 0, "Succeeded", id="Never, exit code 0"),
        pytest.param("Never", 3, "Failed", id="Never, exit code 3"),
        pytest.param("OnFailure", 0, "Succeeded", id="OnFailure, exit code 0"),
    ],
)
def test_a_completed_pod_releases_its_resources(place, policy, code, phase):
    async def scenario(harness):
        task = container("app", "sh", "-c", f"echo done; exit {code}", resources=exclusive(4))
        await harness.admit(manifest("job", task, restartPolicy=policy))
        await harness.wait_until(lambda: harness.queue.state.pod_view("job").status is AdmissionStatus.FINISHED)
        await harness.wait_until(lambda: not harness.runtime.sandboxes)
        await harness.admit(manifest("next", container("app", resources=exclusive(4))))
        await harness.wait_running("next")
        await harness.admit(manifest("job", task, restartPolicy=policy))
        return harness.run("job"), await harness.log("job"), len(harness.runtime.sandboxes)

    run, printed, sandboxes = run_scenario(place, scenario)

    assert run.phase == phase
    assert run.containers[0].exit_code == code
    assert printed == "done\n"
    assert sandboxes == 1


def test_a_terminated_pod_gets_its_grace_period_and_leaves_nothing(place):
    async def scenario(harness):
        stubborn = container(
            "app", "sh", "-c", "trap 'echo bye > farewell; exit 0' TERM; touch ready; while true; do sleep 0.02; done"
        )
        volumes = [{"name": "data", "emptyDir": {}}]
        await harness.admit(manifest("web", stubborn, volumes=volumes, terminationGracePeriodSeconds=60))
        await harness.wait_running("web")
        await harness.wait_until((harness.directory / "boxes" / "ready").exists)
        entry = await harness.end("web")
        kept = harness.queue.host.ledger.pods.keys() >= {"web"}
        await harness.wait_until(lambda: harness.queue.state.pod_view("web") is None)
        boxes = harness.directory / "boxes"
        left = [path.name for path in (harness.directory / "root" / "pods").glob("*")]
        left += [path.name for path in (harness.directory / "logs").glob("*")]
        return entry, kept, (boxes / "farewell").read_text(), left, harness.runtime.sandboxes

    entry, kept, farewell, left, sandboxes = run_scenario(place, scenario)

    assert entry.run.ending
    assert kept
    assert farewell == "bye\n"
    assert left == []
    assert sandboxes == ()


def test_a_container_that_ignores_the_signal_is_killed(place):
    async def scenario(harness):
        await harness.admit(
            manifest("web", container("app", "sh", "-c", "trap '' TERM; touch ready; while true; do sleep 0.1; done"))
        )
        await harness.wait_running("web")
        await harness.wait_until((harness.directory / "boxes" / "ready").exists)
        await harness.end("web", grace=1)
        await harness.wait_until(lambda: harness.queue.state.pod_view("web") is None)

    run_scenario(place, scenario, intervals=replace(FAST, min_grace=1.0))


def test_a_missing_image_is_reported_and_pulled_again_later(place):
    async def scenario(harness):
        await harness.admit(manifest("web", {**container(), "image": "nowhere/none:1"}))
        await harness.wait_until(lambda: harness.states("web").get("app") in {"ErrImagePull", "ImagePullBackOff"})
        run = harness.run("web")
        await harness.end("web")
        await harness.wait_until(lambda: harness.queue.state.pod_view("web") is None)
        return run

    run = run_scenario(place, scenario)

    assert run.phase == "Pending"
    assert "nowhere/none:1" in run.containers[0].message


def test_pull_policy_never_requires_a_present_image(place):
    async def scenario(harness):
        await harness.admit(manifest("web", {**container(), "image": "nowhere/none:1", "imagePullPolicy": "Never"}))
        await harness.wait_until(lambda: harness.states("web").get("app") == "ErrImageNeverPull")
        return harness.run("web").containers[0].message, harness.runtime.requests("PullImage")

    message, pulls = run_scenario(place, scenario)

    assert "nowhere/none:1" in message
    assert pulls == ()


def test_failed_container_creation_is_retried(place):
    async def scenario(harness):
        harness.runtime.inject("CreateContainer", Fault(error="no more threads", code="RESOURCE_EXHAUSTED"))
        await harness.admit(manifest("web"))
        await harness.wait_until(lambda: harness.states("web").get("app") == "CreateContainerError")
        message = harness.run("web").containers[0].message
        harness.runtime.inject("CreateContainer", Fault())
        await harness.wait_running("web")
        return message

    assert "no more threads" in run_scenario(place, scenario, intervals=replace(FAST, initial_delay=0.1))


def test_pods_survive_an_unavailable_runtime(place):
    async def scenario(harness):
        await harness.admit(manifest("web"))
        await harness.wait_running("web")
        await harness.runtime.drop()
        await harness.wait_until(lambda: not harness.runner.status().runtime.ready)
        await harness.admit(manifest("later"))
        await harness.wait_until(lambda: ("later", EventKind.TROUBLE) in kinds_of_events(harness))
        await harness.runtime.serve()
        await harness.wait_running("later")
        await harness.wait_until(lambda: harness.runner.status().runtime.ready)
        return harness.run("web")

    run = run_scenario(place, scenario)

    assert run.containers[0].restarts == 0


def test_a_restarted_agent_adopts_running_containers(place):
    async def run_agents():
        async with asyncio.timeout(TIMEOUT), runtime_in(place) as runtime:
            async with pod_harness_on(place, runtime, empty_state(wait_enabled=True)) as first:
                await first.admit(manifest("web", container("app", resources=exclusive(2))))
                await first.admit(manifest("shares", container("other")))
                await first.wait_running("web")
                await first.wait_running("shares", "other")
                pids = first.pids("web", "shares")
                state = first.queue.state
            made = len(runtime.requests("CreateContainer"))
            async with pod_harness_on(place, runtime, state, intervals=replace(FAST, orphan_delay=0.0)) as second:
                await second.wait_running("web")
                await second.wait_running("shares", "other")
                await second.wait_polled()
                again = second.pids("web", "shares")
                return pids, again, made, len(runtime.requests("CreateContainer")), second.runner.status().strays

    pids, again, made, then, orphans = asyncio.run(run_agents())

    assert again == pids
    assert made == then == 2
    assert orphans == ()


def test_orphan_sandboxes_are_reported_and_left_alone(place):
    async def run_agents():
        async with asyncio.timeout(TIMEOUT), runtime_in(place) as runtime:
            async with pod_harness_on(place, runtime, empty_state()) as first:
                await first.admit(manifest("web"))
                await first.wait_running("web")
            async with pod_harness_on(
                place, runtime, empty_state(), intervals=replace(FAST, orphan_delay=0.1)
            ) as second:
                await second.wait_until(lambda: second.runner.status().strays)
                await second.wait_polled()
                (app,) = runtime.containers
                return second.runner.status().strays, app.process is not None

    orphans, alive = asyncio.run(run_agents())

    assert alive

    (orphan,) = orphans
    assert (orphan.pod, orphan.containers) == ("default/web", ("app",))


def test_container_events_are_emitted(place):
    async def scenario(harness):
        task = container("app", "sh", "-c", f"{UNTIL_END}; exit 2")
        await harness.admit(manifest("job", task, restartPolicy="Never"))
        await harness.wait_running("job")
        (place / "boxes" / "end").touch()
        await harness.wait_until(lambda: harness.queue.state.pod_view("job").status is AdmissionStatus.FINISHED)
        await harness.queue.run(Transaction.flush_events)
        return [(one.kind, one.detail) for one in harness.events]

    events = run_scenario(place, scenario)

    assert (EventKind.STARTED, "container app") in events
    assert any(kind is EventKind.ENDED and "exit code 2" in detail for kind, detail in events)
    assert any(kind is EventKind.FINISHED and "Failed" in detail for kind, detail in events)


def test_a_worker_that_fails_with_a_bug_is_restarted(place):
    failures = iter(range(2))

    def emit(_):
        if next(failures, None) is not None:
            raise RuntimeError("never thought of")

    async def scenario(harness):
        await harness.admit(manifest("web"))
        await harness.wait_running("web")
        return harness.log_details()

    details = run_scenario(place, scenario, emit=emit)

    assert [one for one in details if "never thought of" in one] == [
        "internal error (a bug in alignup): RuntimeError: never thought of; retrying"
    ]


def test_an_invalid_manifest_does_not_affect_other_pods(place):
    async def run_agents():
        async with asyncio.timeout(TIMEOUT), runtime_in(place) as runtime:
            async with pod_harness_on(place, runtime, empty_state(wait_enabled=True)) as first:
                await first.admit(manifest("web"))
                await first.wait_running("web")
                state = first.queue.state
            known = state.admitted["web"]
            changed = replace(known, pod=replace(known.pod, manifest=PodManifest('{"spec": {"containers": 7}}')))
            async with pod_harness_on(place, runtime, replace(state, admitted={"web": changed})) as second:
                await second.admit(manifest("other"))
                await second.wait_running("other")
                run = second.run("web")
                alive = runtime.containers[0].process is not None
                await second.end("web")
                await second.wait_until(lambda: second.queue.state.pod_view("web") is None)
                return run, alive, [one.config.metadata.name for one in runtime.sandboxes]

    run, alive, left = asyncio.run(run_agents())

    assert (run.phase, run.reason) == ("Unknown", "InvalidManifest")
    assert "release the pod and admit it again" in run.message
    assert alive
    assert left == ["other"]


@pytest.mark.parametrize("uid", ["a b", "x" * 300, "...", "ü\\"])
def test_a_uid_that_is_not_a_valid_directory_name_is_harmless(place, uid):
    async def scenario(harness):
        await harness.admit(manifest("keeps"))
        await harness.wait_running("keeps")
        document = manifest("odd")
        document["metadata"]["uid"] = uid
        await harness.admit(document)
        await harness.wait_until(lambda: harness.states(uid).get("app") == "running" or harness.run(uid).reason)
        run = harness.run(uid)
        await harness.end(uid)
        await harness.wait_until(lambda: harness.queue.state.pod_view(uid) is None)
        return run, harness.states("keeps"), sorted(path.name for path in place.iterdir())

    run, states, there = run_scenario(place, scenario)

    assert run.phase in {"Pending", "Running"}
    assert states == {"app": "running"}
    assert there == ["boxes", "cri.sock", "logs", "root"]


def test_a_sandbox_that_appears_after_its_pod_was_released_is_removed(place):
    async def scenario(harness):
        await harness.admit(manifest("web"))
        await harness.wait_running("web")
        (asked,) = harness.runtime.requests("RunPodSandbox")
        await harness.end("web", grace=0)
        await harness.wait_until(lambda: harness.queue.state.pod_view("web") is None)
        late = Sandbox(asked.config)
        harness.runtime.sandboxes_by_id[late.id] = late
        await harness.wait_until(lambda: not harness.runtime.sandboxes)
        return harness.runner.status().strays

    assert run_scenario(place, scenario) == ()


def test_old_containers_are_removed_with_their_logs(place):
    five_failures = "echo again | tee -a runs; test $(wc -l < runs) -gt 5 || exit 1; exec sleep 1000"

    async def scenario(harness):
        await harness.admit(manifest("web", container("app", "sh", "-c", five_failures)))
        await harness.wait_until(lambda: any(one.restarts > 4 for one in harness.run("web").containers))
        await harness.wait_until(lambda: len(harness.runtime.containers) <= 3)
        logs = {path.name for path in (place / "logs").glob("*/app/*")}
        words = {path.name for path in (place / "root" / "pods" / "web" / "containers" / "app").iterdir()}
        return logs, words

    logs, words = run_scenario(place, scenario, intervals=replace(FAST, initial_delay=0.01, max_delay=0.02))

    assert not logs & {"0.log", "1.log"}
    assert not words & {"0", "1"}


def test_logs_of_finished_pods_are_removed_with_their_records(place):
    async def scenario(harness):
        for uid in ("one", "two"):
            await harness.admit(manifest(uid, container("app", "echo", "done"), restartPolicy="Never"))
            await harness.wait_until(
                lambda uid=uid: (
                    (found := harness.queue.state.pod_view(uid)) and found.status is AdmissionStatus.FINISHED
                )
            )
        await harness.wait_until(lambda: len(list((place / "logs").iterdir())) == 1)
        return harness.queue.state.pod_view("one"), await harness.log("two")

    state = replace(empty_state(wait_enabled=True), max_finished=1)
    assert run_scenario(place, scenario, state=state) == (None, "done\n")


def test_directories_left_by_a_crash_are_removed(place):
    async def scenario(harness):
        (place / "root" / "pods" / "forgotten" / "volumes" / "data").mkdir(parents=True)
        await harness.admit(manifest("web", volumes=[{"name": "data", "emptyDir": {}}]))
        await harness.wait_running("web")
        await harness.wait_until(lambda: not (place / "root" / "pods" / "forgotten").exists())
        await harness.wait_passed()
        return [path.name for path in (place / "root" / "pods").iterdir()]

    assert run_scenario(place, scenario, intervals=ALWAYS_MAINTAINING) == ["web"]


def test_terminated_pods_wait_while_the_checkpoint_cannot_be_written(place):
    full: list[bool] = []

    def save(_):
        if full:
            raise OSError(28, "No space left on device")

    async def scenario(harness):
        await harness.admit(manifest("web"))
        await harness.admit(manifest("job", container("app", "sh", "-c", UNTIL_END), restartPolicy="Never"))
        await harness.wait_running("web")
        await harness.wait_running("job")
        await harness.end("web", grace=0)
        full.append(True)
        (place / "boxes" / "end").touch()
        await harness.wait_until(lambda: harness.states("job") == {"app": "Completed"})
        failed = "cannot be written: [Errno 28] No space left on device; retrying"
        await harness.wait_until(lambda: sum(failed in one for one in harness.log_details()) == 2)
        kept = [entry.status for entry in harness.queue.state.pod_views()]
        proof = [one.config.metadata.name for one in harness.runtime.sandboxes]
        full.clear()
        await harness.wait_until(lambda: harness.queue.state.pod_view("web") is None)
        await harness.wait_until(lambda: harness.queue.state.pod_view("job").status is AdmissionStatus.FINISHED)
        await harness.wait_until(lambda: not harness.runtime.sandboxes)
        return kept, proof, len(harness.runtime.requests("StartContainer"))

    kept, proof, started = run_scenario(place, scenario, save=save)

    assert kept == [AdmissionStatus.ADMITTED, AdmissionStatus.ADMITTED]
    assert "job" in proof
    assert started == 2


def test_an_idle_agent_requests_only_two_lists_per_poll_for_any_number_of_pods(place):
    async def scenario(harness):
        for number in range(10):
            await harness.admit(manifest(f"web-{number}"))
        for number in range(10):
            await harness.wait_running(f"web-{number}")
        calls = harness.runtime.calls.entries
        await harness.wait_until(lambda: all(map(lists_all_pods, calls[-40:])))

    run_scenario(place, scenario, intervals=replace(FAST, poll=0.02, max_retry=0.1, maintenance=1000.0))


def test_an_unreadable_hosts_file_is_reported(place):
    async def scenario(harness):
        await harness.admit(manifest("web", hostNetwork=True))
        await harness.wait_until(lambda: harness.states("web").get("app") == "CreateContainerConfigError")
        return harness.run("web").containers[0].message

    message = run_scenario(place, scenario, hosts_file=place / "no-hosts")

    assert "no-hosts: No such file or directory" in message


def test_containers_follow_the_kubelet_configuration(place):
    settings = ContainerSettings(seccomp_default=True, cpu_period=20_000, oom_kill_group=False)

    async def scenario(harness):
        wants = {"securityContext": {"seccompProfile": {"type": "Unconfined"}}}
        limited = container("app", resources={"limits": {"cpu": "500m", "memory": "64Mi"}})
        await harness.admit(manifest("web", limited, container("own", **wants)))
        await harness.wait_running("web", "app", "own")
        return {ask.config.metadata.name: ask.config.linux for ask in harness.runtime.requests("CreateContainer")}

    made = run_scenario(place, scenario, settings=settings)

    profile = wire.SecurityProfile
    assert made["app"].security_context.seccomp.profile_type == profile.RuntimeDefault
    assert made["own"].security_context.seccomp.profile_type == profile.Unconfined
    assert (made["app"].resources.cpu_quota, made["app"].resources.cpu_period) == (10_000, 20_000)
    assert "memory.oom.group" not in made["app"].resources.unified


def test_node_allocatable_is_enforced(place):
    top = place / "cgroup"
    limit = top / "alignup" / "memory.max"
    limit.parent.mkdir(parents=True)
    for folder in (top, limit.parent):
        for name in ("cgroup.controllers", "cgroup.subtree_control", "cpu.weight"):
            (folder / name).touch()

    async def scenario(harness):
        await harness.wait_until(lambda: any("memory.max does not exist" in one for one in harness.log_details()))
        limit.touch()
        await harness.wait_until(limit.read_text)

    run_scenario(
        place,
        scenario,
        cgroup_root="alignup",
        cgroup_mount=top,
        limits={"cpu": Quantity(4), "memory": Quantity(1 << 30)},
        intervals=ALWAYS_MAINTAINING,
    )

    assert limit.read_text() == f"{1 << 30}\n"


@pytest.mark.parametrize(
    ("size", "rotated"), [pytest.param(100, 1, id="rotated at 100 bytes"), pytest.param(-1, 0, id="rotation disabled")]
)
def test_log_rotation_follows_the_kubelet_configuration(place, size, rotated):
    async def scenario(harness):
        await harness.admit(manifest("web", container("app", "sh", "-c", "seq 200; sleep 1000")))
        await harness.wait_running("web")
        await harness.wait_until(
            lambda: (
                len(list(place.glob("logs/*/app/*"))) > 1
                or any(path.stat().st_size > 100 for path in place.glob("logs/*/app/0.log"))
            )
        )
        await harness.wait_passed()
        return [path.name for path in place.glob("logs/*/app/*") if path.name != "0.log"]

    settings = ContainerSettings(log_max_bytes=size, log_max_files=2)
    found = run_scenario(place, scenario, settings=settings, intervals=ALWAYS_MAINTAINING)

    assert len(found) == rotated


def test_the_burstable_cgroup_gets_the_requested_cpu_time(place):
    top = place / "cgroup"
    weight = top / "alignup" / "burstable" / "cpu.weight"
    weight.parent.mkdir(parents=True)
    weight.touch()
    for folder in (top, top / "alignup", weight.parent):
        for name in ("cgroup.controllers", "cgroup.subtree_control"):
            (folder / name).touch()

    async def scenario(harness):
        asks = container("app", resources={"requests": {"cpu": "1500m"}})
        await harness.admit(manifest("one", asks))
        await harness.wait_running("one")
        await harness.wait_until(weight.read_text)
        alone = int(weight.read_text())
        await harness.admit(manifest("two", asks))
        await harness.wait_until(lambda: int(weight.read_text()) > alone)
        weight.write_text("")
        await harness.end("two", grace=0)
        await harness.wait_until(lambda: weight.read_text().strip() == str(alone))

    run_scenario(place, scenario, cgroup_root="alignup", cgroup_mount=top)


def test_a_foreign_container_in_our_sandbox_is_harmless(place):
    async def scenario(harness):
        await harness.admit(manifest("web"))
        await harness.wait_running("web")
        (own,) = harness.runtime.containers
        stranger = RuntimeContainer(
            own.sandbox, wire.ContainerConfig(command=["sleep", "1000"]), own.image, own.directory
        )
        stranger.config.metadata.name = "stranger"
        harness.runtime.containers_by_id[stranger.id] = stranger
        stranger.start()
        await harness.wait_until(lambda: harness.runtime.requests("ContainerStatus")[-1].container_id == stranger.id)
        await harness.wait_passed()
        alive = own.process is not None
        await harness.end("web", grace=0)
        await harness.wait_until(lambda: harness.queue.state.pod_view("web") is None)
        return alive, harness.log_details(), harness.runtime.containers

    alive, details, left = run_scenario(place, scenario, intervals=ALWAYS_MAINTAINING)

    assert alive
    assert not [one for one in details if "internal error" in one]
    assert left == ()
