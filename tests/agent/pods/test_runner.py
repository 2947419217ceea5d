"""Pods run: on a runtime of real sockets and processes, from their first container to their last."""

import asyncio
from dataclasses import replace
from functools import partial

import pytest

from alignup.agent.pods.operations import PodOperations
from alignup.agent.state import EventKind
from alignup.align import bits
from alignup.align.quantity import Quantity
from alignup.enforce.cri.pod_cgroups import PodCgroups
from alignup.kube.configuration import ContainerSettings
from alignup.kube.podspec import PodManifest
from alignup.schema.api import AdmissionStatus
from alignup.testing.faults import Fault
from alignup.testing.runtime import RuntimeContainer, Sandbox
from alignup.wire import cri_pb2 as wire
from tests.agent.pods.houses import container, exclusive, house, manifest, moved_in, runtime_in
from tests.agent.rooms import standing
from tests.short_paths import short_directory


@pytest.fixture
def place():
    with short_directory() as found:
        yield found


def in_house(place, story, **options):
    """Have a story happen in a house, within a minute."""

    async def told():
        async with asyncio.timeout(60), house(place, **options) as made:
            return await story(made)

    return asyncio.run(told())


def test_an_admitted_pod_runs(place):
    async def story(house):
        await house.admit(
            manifest(
                "web",
                container(
                    "app", "sh", "-c", "echo $GREETING; sleep 1000", env=[{"name": "GREETING", "value": "hello"}]
                ),
            )
        )
        await house.running("web")
        run = house.run("web")
        await house.until((house.directory / "logs").exists)
        await asyncio.sleep(0.2)
        return run, await house.log("web"), house.errands.started

    run, printed, started = in_house(place, story)

    (app,) = run.containers
    assert (run.phase, app.state, app.restarts) == ("Running", "running", 0)
    assert app.pid
    assert printed == "hello\n"
    assert started == [("web", "app")]


def test_a_container_has_its_own_cpus_and_others_share_the_rest(place):
    async def story(house):
        await house.admit(manifest("shares"))
        await house.running("shares")
        before = house.cpus("app")
        await house.admit(manifest("owns", container("mine", resources=exclusive(2))))
        await house.running("owns", "mine")
        return before, house.cpus("app"), house.cpus("mine"), house.runtime

    before, after, own, runtime = in_house(place, story)

    assert bits.parse(before) == bits.parse("0-7")
    assert bits.parse(own).bit_count() == 2
    assert bits.parse(after) == bits.parse(before) & ~bits.parse(own)
    methods = [name for name in ("UpdateContainerResources",) if runtime.requests(name)]
    assert methods


def test_shared_cpus_come_back_when_a_pod_is_gone(place):
    async def story(house):
        await house.admit(manifest("shares"))
        await house.admit(manifest("owns", container("mine", resources=exclusive(2))))
        await house.running("owns", "mine")
        await house.running("shares")
        await house.end("owns")
        await house.until(lambda: house.desk.entry("owns") is None)
        await house.until(lambda: house.cpus("app") == "0-7")

    in_house(place, story)


def test_memory_comes_from_the_nodes_that_were_decided(place):
    async def story(house):
        await house.admit(manifest("owns", container("app", resources=exclusive(4))))
        await house.running("owns")
        (asked,) = house.runtime.requests("CreateContainer")
        return asked.config.linux.resources

    resources = in_house(place, story)

    assert (resources.cpuset_cpus, resources.cpuset_mems) == ("4-7", "1")
    assert resources.memory_limit_in_bytes == 64 << 20
    assert resources.cpu_quota == -1


def test_init_containers_come_first_and_in_their_order(place):
    async def story(house):
        inits = [container(f"init{n}", "sh", "-c", f"echo {n} >> order; sleep 0.1") for n in range(3)]
        await house.admit(
            manifest("web", container("app", "sh", "-c", "echo app >> order; sleep 1000"), initContainers=inits)
        )
        await house.running("web")
        await asyncio.sleep(0.2)
        return (house.directory / "boxes" / "order").read_text().split(), house.states("web")

    order, states = in_house(place, story)

    assert order == ["0", "1", "2", "app"]
    assert states == {"init0": "Completed", "init1": "Completed", "init2": "Completed", "app": "running"}


def test_a_container_that_ends_is_started_again(place):
    async def story(house):
        await house.admit(manifest("web"))
        await house.running("web")
        first = house.run("web").containers[0].id
        house.runtime.kill("app")
        await house.until(lambda: house.run("web").containers[0].restarts == 1)
        await house.running("web")
        return first, house.run("web").containers[0]

    first, now = in_house(place, story)

    assert now.id != first
    assert now.last.exit_code == 137


def test_one_that_keeps_ending_is_left_alone_for_a_while(place):
    async def story(house):
        await house.admit(manifest("web", container("app", "sh", "-c", "exit 3")))
        await house.until(lambda: house.states("web").get("app") == "CrashLoopBackOff")
        return house.run("web")

    run = in_house(place, story)

    assert run.phase == "Running"
    assert run.containers[0].last.exit_code == 3


@pytest.mark.parametrize(
    ("policy", "code", "phase"),
    [
        pytest.param("Never", 0, "Succeeded", id="Never, well"),
        pytest.param("Never", 3, "Failed", id="Never, badly"),
        pytest.param("OnFailure", 0, "Succeeded", id="OnFailure, well"),
    ],
)
def test_a_pod_that_has_run_gives_back_what_it_has(place, policy, code, phase):
    async def story(house):
        task = container("app", "sh", "-c", f"echo done; exit {code}", resources=exclusive(4))
        await house.admit(manifest("job", task, restartPolicy=policy))
        await house.until(lambda: house.desk.entry("job").status is AdmissionStatus.FINISHED)
        await house.until(lambda: not house.runtime.sandboxes)
        await house.admit(manifest("next", container("app", resources=exclusive(4))))
        await house.running("next")
        await house.admit(manifest("job", task, restartPolicy=policy))
        return house.run("job"), await house.log("job"), len(house.runtime.sandboxes)

    run, printed, sandboxes = in_house(place, story)

    assert run.phase == phase
    assert run.containers[0].exit_code == code
    assert printed == "done\n"
    assert sandboxes == 1


def test_a_pod_told_to_end_has_its_grace_and_leaves_nothing(place):
    async def story(house):
        stubborn = container(
            "app", "sh", "-c", "trap 'echo bye > farewell; exit 0' TERM; while true; do sleep 0.1; done"
        )
        await house.admit(manifest("web", stubborn, volumes=[{"name": "data", "emptyDir": {}}]))
        await house.running("web")
        await asyncio.sleep(0.3)
        entry = await house.end("web")
        kept = house.desk.host.ledger.pods.keys() >= {"web"}
        await house.until(lambda: house.desk.entry("web") is None)
        boxes = house.directory / "boxes"
        left = [path.name for path in (house.directory / "root" / "pods").glob("*")]
        left += [path.name for path in (house.directory / "logs").glob("*")]
        return entry, kept, (boxes / "farewell").read_text(), left, house.runtime.sandboxes

    entry, kept, farewell, left, sandboxes = in_house(place, story)

    assert entry.run.ending
    assert kept
    assert farewell == "bye\n"
    assert left == []
    assert sandboxes == ()


def test_whoever_does_not_stop_is_killed(place):
    async def story(house):
        await house.admit(manifest("web", container("app", "sh", "-c", "trap '' TERM; while true; do sleep 0.1; done")))
        await house.running("web")
        await house.end("web", grace=1)
        await house.until(lambda: house.desk.entry("web") is None)

    in_house(place, story)


def test_an_image_that_is_missing_is_named_and_asked_for_again_later(place):
    async def story(house):
        await house.admit(manifest("web", {**container(), "image": "nowhere/none:1"}))
        await house.until(lambda: house.states("web").get("app") in {"ErrImagePull", "ImagePullBackOff"})
        run = house.run("web")
        await house.end("web")
        await house.until(lambda: house.desk.entry("web") is None)
        return run

    run = in_house(place, story)

    assert run.phase == "Pending"
    assert "nowhere/none:1" in run.containers[0].message


def test_an_image_that_may_not_be_fetched_has_to_be_there(place):
    async def story(house):
        await house.admit(manifest("web", {**container(), "image": "nowhere/none:1", "imagePullPolicy": "Never"}))
        await house.until(lambda: house.states("web").get("app") == "ErrImageNeverPull")
        return house.run("web").containers[0].message, house.runtime.requests("PullImage")

    message, pulls = in_house(place, story)

    assert "nowhere/none:1" in message
    assert pulls == ()


def test_what_cannot_be_made_now_is_made_later(place, monkeypatch):
    monkeypatch.setattr("alignup.agent.pods.backoff.INITIAL_DELAY", 0.5)

    async def story(house):
        house.runtime.inject("CreateContainer", Fault(error="no more threads", code="RESOURCE_EXHAUSTED", times=1))
        await house.admit(manifest("web"))
        await house.until(lambda: house.states("web").get("app") == "CreateContainerError")
        message = house.run("web").containers[0].message
        await house.running("web")
        return message

    assert "no more threads" in in_house(place, story)


def test_a_runtime_that_goes_away_is_waited_for(place):
    async def story(house):
        await house.admit(manifest("web"))
        await house.running("web")
        await house.runtime.drop()
        await house.until(lambda: not house.runner.report().ready)
        await house.admit(manifest("later"))
        await asyncio.sleep(0.5)
        await house.runtime.serve()
        await house.running("later")
        return house.run("web"), house.runner.report()

    run, report = in_house(place, story)

    assert run.containers[0].restarts == 0
    assert report.ready


def test_after_a_restart_containers_are_found_again_and_left_alone(place):
    async def lived():
        async with asyncio.timeout(60), runtime_in(place) as runtime:
            async with moved_in(place, runtime, standing(wait=True)) as first:
                await first.admit(manifest("web", container("app", resources=exclusive(2))))
                await first.admit(manifest("shares", container("other")))
                await first.running("web")
                await first.running("shares", "other")
                pids = first.pids("web", "shares")
                stood = first.desk.standing
            made = len(runtime.requests("CreateContainer"))
            async with moved_in(place, runtime, stood) as second:
                await second.running("web")
                await second.running("shares", "other")
                await asyncio.sleep(1.5)
                again = second.pids("web", "shares")
                return pids, again, made, len(runtime.requests("CreateContainer")), second.runner.report().strays

    pids, again, made, then, strays = asyncio.run(lived())

    assert again == pids
    assert made == then == 2
    assert strays == ()


def test_what_nobody_knows_any_more_is_reported_and_left_alone(place, monkeypatch):
    monkeypatch.setattr("alignup.agent.pods.runner.ORPHAN_DELAY_SECONDS", 0.1)

    async def lived():
        async with asyncio.timeout(60), runtime_in(place) as runtime:
            async with moved_in(place, runtime, standing()) as first:
                await first.admit(manifest("web"))
                await first.running("web")
            async with moved_in(place, runtime, standing()) as second:
                await second.until(lambda: second.runner.report().strays)
                (app,) = runtime.containers
                return second.runner.report().strays, app.process is not None

    strays, _ = asyncio.run(lived())

    (stray,) = strays
    assert (stray.pod, stray.containers) == ("default/web", ("app",))


def test_what_happens_to_containers_is_told(place):
    async def story(house):
        await house.admit(manifest("job", container("app", "sh", "-c", "sleep 0.3; exit 2"), restartPolicy="Never"))
        await house.until(lambda: house.desk.entry("job").status is AdmissionStatus.FINISHED)
        await house.desk.told()
        return [(one.kind, one.detail) for one in house.told]

    told = in_house(place, story)

    assert (EventKind.STARTED, "container app") in told
    assert any(kind is EventKind.ENDED and "exit code 2" in detail for kind, detail in told)
    assert any(kind is EventKind.FINISHED and "Failed" in detail for kind, detail in told)


def test_a_pod_whose_worker_fails_by_a_fault_of_ours_is_not_lost(place, monkeypatch):
    monkeypatch.setattr("alignup.agent.pods.retry.INITIAL_DELAY", 0.1)
    look, failures = PodOperations.refresh, iter(range(2))

    async def broken(self):
        if next(failures, None) is not None:
            raise RuntimeError("never thought of")
        return await look(self)

    monkeypatch.setattr(PodOperations, "refresh", broken)

    async def story(house):
        await house.admit(manifest("web"))
        await house.running("web")
        return house.said()

    said = in_house(place, story)

    assert [one for one in said if "never thought of" in one] == [
        "internal error (a bug in alignup): RuntimeError: never thought of; retrying"
    ]


def test_a_manifest_that_cannot_be_read_any_more_harms_nobody_else(place):
    async def lived():
        async with asyncio.timeout(60), runtime_in(place) as runtime:
            async with moved_in(place, runtime, standing(wait=True)) as first:
                await first.admit(manifest("web"))
                await first.running("web")
                stood = first.desk.standing
            known = stood.held["web"]
            changed = replace(known, pod=replace(known.pod, manifest=PodManifest('{"spec": {"containers": 7}}')))
            async with moved_in(place, runtime, replace(stood, held={"web": changed})) as second:
                await second.admit(manifest("other"))
                await second.running("other")
                run = second.run("web")
                alive = runtime.containers[0].process is not None
                await second.end("web")
                await second.until(lambda: second.desk.entry("web") is None)
                return run, alive, [one.config.metadata.name for one in runtime.sandboxes]

    run, alive, left = asyncio.run(lived())

    assert (run.phase, run.reason) == ("Unknown", "InvalidManifest")
    assert "release the pod and admit it again" in run.message
    assert alive
    assert left == ["other"]


@pytest.mark.parametrize("uid", ["../../escape", "..", "a b", "x" * 300, "ü\n"])
def test_a_uid_that_is_no_name_for_a_directory_harms_nothing(place, uid):
    async def story(house):
        await house.admit(manifest("keeps"))
        await house.running("keeps")
        document = manifest("odd")
        document["metadata"]["uid"] = uid
        await house.admit(document)
        await house.until(lambda: house.run(uid) is not None)
        await asyncio.sleep(0.3)
        run = house.run(uid)
        await house.end(uid)
        await house.until(lambda: house.desk.entry(uid) is None)
        return run, house.states("keeps"), sorted(path.name for path in place.iterdir())

    run, states, there = in_house(place, story)

    assert run.phase in {"Pending", "Running"}
    assert states == {"app": "running"}
    assert there == ["boxes", "cri.sock", "logs", "root"]


def test_a_sandbox_that_turns_up_after_its_pod_was_given_up_is_removed(place):
    async def story(house):
        await house.admit(manifest("web"))
        await house.running("web")
        (asked,) = house.runtime.requests("RunPodSandbox")
        await house.end("web", grace=0)
        await house.until(lambda: house.desk.entry("web") is None)
        late = Sandbox(asked.config)
        house.runtime.service.sandboxes[late.id] = late
        await house.until(lambda: not house.runtime.sandboxes)
        return house.runner.report().strays

    assert in_house(place, story) == ()


def test_containers_that_nobody_needs_to_know_of_go_with_what_they_printed(place, monkeypatch):
    monkeypatch.setattr("alignup.agent.pods.backoff.INITIAL_DELAY", 0.01)
    monkeypatch.setattr("alignup.agent.pods.backoff.MAX_DELAY", 0.02)
    monkeypatch.setattr("alignup.agent.pods.runner.POLL_SECONDS", 0.1)

    async def story(house):
        await house.admit(manifest("web", container("app", "sh", "-c", "echo again; exit 1")))
        await house.until(lambda: any(one.restarts > 4 for one in house.run("web").containers))
        await house.until(lambda: len(house.runtime.containers) <= 3)
        logs = {path.name for path in (place / "logs").glob("*/app/*")}
        words = {path.name for path in (place / "root" / "pods" / "web" / "containers" / "app").iterdir()}
        return logs, words

    logs, words = in_house(place, story)

    assert not logs & {"0.log", "1.log"}
    assert not words & {"0", "1"}


def test_the_logs_of_pods_that_have_run_go_when_they_are_forgotten(place, monkeypatch):
    monkeypatch.setattr("alignup.agent.finished_pods.MAX_FINISHED", 1)

    async def story(house):
        for uid in ("one", "two"):
            await house.admit(manifest(uid, container("app", "echo", "done"), restartPolicy="Never"))
            await house.until(
                lambda uid=uid: (found := house.desk.entry(uid)) and found.status is AdmissionStatus.FINISHED
            )
        await house.until(lambda: len(list((place / "logs").iterdir())) == 1)
        return house.desk.entry("one"), await house.log("two")

    assert in_house(place, story) == (None, "done\n")


def test_directories_that_a_crash_left_behind_are_removed(place, monkeypatch):
    monkeypatch.setattr("alignup.agent.pods.runner.MAINTENANCE_SECONDS", 0.2)

    async def story(house):
        (place / "root" / "pods" / "forgotten" / "volumes" / "data").mkdir(parents=True)
        await house.admit(manifest("web", volumes=[{"name": "data", "emptyDir": {}}]))
        await house.running("web")
        await house.until(lambda: not (place / "root" / "pods" / "forgotten").exists())
        await asyncio.sleep(0.5)
        return [path.name for path in (place / "root" / "pods").iterdir()]

    assert in_house(place, story) == ["web"]


def test_while_nothing_can_be_written_pods_that_have_ended_wait_to_be_forgotten(place, monkeypatch):
    monkeypatch.setattr("alignup.agent.pods.retry.INITIAL_DELAY", 0.1)
    monkeypatch.setattr("alignup.agent.queue.RETRY_SECONDS", 0.1)
    full: list[bool] = []

    def save(_):
        if full:
            raise OSError(28, "No space left on device")

    async def story(house):
        await house.admit(manifest("web"))
        await house.admit(manifest("job", container("app", "sleep", "0.5"), restartPolicy="Never"))
        await house.running("web")
        await house.running("job")
        await house.end("web", grace=0)
        full.append(True)
        await house.until(lambda: any("cannot be written" in one for one in house.said()))
        await house.until(lambda: house.states("job") == {"app": "Completed"})
        await asyncio.sleep(0.5)
        kept = [entry.status for entry in house.desk.entries()]
        proof = [one.config.metadata.name for one in house.runtime.sandboxes]
        full.clear()
        await house.until(lambda: house.desk.entry("web") is None)
        await house.until(lambda: house.desk.entry("job").status is AdmissionStatus.FINISHED)
        await house.until(lambda: not house.runtime.sandboxes)
        return kept, proof, len(house.runtime.requests("StartContainer"))

    kept, proof, started = in_house(place, story, save=save)

    assert kept == [AdmissionStatus.ADMITTED, AdmissionStatus.ADMITTED]
    assert "job" in proof
    assert started == 2


def test_at_rest_the_runtime_is_asked_for_two_lists_a_second_however_many_pods_there_are(place):
    async def story(house):
        for number in range(10):
            await house.admit(manifest(f"web-{number}"))
        for number in range(10):
            await house.running(f"web-{number}")
        await asyncio.sleep(1.2)
        before = len(house.runtime.calls.entries)
        await asyncio.sleep(2)
        return [name for name, _ in house.runtime.calls.entries[before:]]

    asked = in_house(place, story)

    assert set(asked) == {"ListContainers", "ListPodSandbox"}
    assert len(asked) <= 6


def test_a_hosts_file_that_cannot_be_read_is_named(place, monkeypatch):
    monkeypatch.setattr("alignup.agent.pods.operations._HOSTS_FILE", place / "no-hosts")

    async def story(house):
        await house.admit(manifest("web", hostNetwork=True))
        await house.until(lambda: house.states("web").get("app") == "CreateContainerConfigError")
        return house.run("web").containers[0].message

    assert "no-hosts: No such file or directory" in in_house(place, story)


def test_containers_are_run_as_the_configuration_has_it(place):
    settings = ContainerSettings(seccomp_default=True, cpu_period=20_000, oom_kill_group=False)

    async def story(house):
        wants = {"securityContext": {"seccompProfile": {"type": "Unconfined"}}}
        limited = container("app", resources={"limits": {"cpu": "500m", "memory": "64Mi"}})
        await house.admit(manifest("web", limited, container("own", **wants)))
        await house.running("web", "app", "own")
        return {ask.config.metadata.name: ask.config.linux for ask in house.runtime.requests("CreateContainer")}

    made = in_house(place, story, settings=settings)

    profile = wire.SecurityProfile
    assert made["app"].security_context.seccomp.profile_type == profile.RuntimeDefault
    assert made["own"].security_context.seccomp.profile_type == profile.Unconfined
    assert (made["app"].resources.cpu_quota, made["app"].resources.cpu_period) == (10_000, 20_000)
    assert "memory.oom.group" not in made["app"].resources.unified


def test_all_pods_together_are_held_to_what_is_left_to_them(place, monkeypatch):
    top = place / "cgroup"
    limit = top / "alignup" / "memory.max"
    limit.parent.mkdir(parents=True)
    for folder in (top, limit.parent):
        for name in ("cgroup.controllers", "cgroup.subtree_control", "cpu.weight"):
            (folder / name).touch()
    monkeypatch.setattr("alignup.agent.pods.wiring.PodCgroups", partial(PodCgroups, mount=top))
    monkeypatch.setattr("alignup.agent.pods.runner.MAINTENANCE_SECONDS", 0.0)
    monkeypatch.setattr("alignup.agent.pods.runner.POLL_SECONDS", 0.05)

    async def story(house):
        await house.until(lambda: any("memory.max does not exist" in one for one in house.said()))
        limit.touch()
        await house.until(limit.read_text)

    in_house(place, story, cgroup_root="alignup", limits={"cpu": Quantity(4), "memory": Quantity(1 << 30)})

    assert limit.read_text() == f"{1 << 30}\n"


@pytest.mark.parametrize(
    ("size", "rotated"), [pytest.param(100, 1, id="of a few bytes"), pytest.param(-1, 0, id="of any length")]
)
def test_logs_are_as_long_as_the_configuration_has_it(place, monkeypatch, size, rotated):
    monkeypatch.setattr("alignup.agent.pods.runner.MAINTENANCE_SECONDS", 0.0)
    monkeypatch.setattr("alignup.agent.pods.runner.POLL_SECONDS", 0.05)

    async def story(house):
        await house.admit(manifest("web", container("app", "sh", "-c", "seq 200; sleep 1000")))
        await house.running("web")
        await house.until(lambda: any(path.stat().st_size for path in place.glob("logs/*/app/*")))
        await asyncio.sleep(1)
        return [path.name for path in place.glob("logs/*/app/*") if path.name != "0.log"]

    found = in_house(place, story, settings=ContainerSettings(log_max_bytes=size, log_max_files=2))

    assert len(found) == rotated


def test_burstable_pods_together_have_the_cpu_time_they_asked_for(place, monkeypatch):
    top = place / "cgroup"
    weight = top / "alignup" / "burstable" / "cpu.weight"
    weight.parent.mkdir(parents=True)
    weight.touch()
    for folder in (top, top / "alignup", weight.parent):
        for name in ("cgroup.controllers", "cgroup.subtree_control"):
            (folder / name).touch()
    monkeypatch.setattr("alignup.agent.pods.wiring.PodCgroups", partial(PodCgroups, mount=top))

    async def story(house):
        asks = container("app", resources={"requests": {"cpu": "1500m"}})
        await house.admit(manifest("one", asks))
        await house.running("one")
        await house.until(weight.read_text)
        alone = int(weight.read_text())
        await house.admit(manifest("two", asks))
        await house.until(lambda: int(weight.read_text()) > alone)
        weight.write_text("")
        await house.end("two", grace=0)
        await house.until(lambda: weight.read_text().strip() == str(alone))

    in_house(place, story, cgroup_root="alignup")


def test_a_container_that_somebody_else_made_in_a_sandbox_of_ours_harms_nothing(place, monkeypatch):
    monkeypatch.setattr("alignup.agent.pods.runner.MAINTENANCE_SECONDS", 0.2)

    async def story(house):
        await house.admit(manifest("web"))
        await house.running("web")
        (own,) = house.runtime.containers
        stranger = RuntimeContainer(own.sandbox, wire.ContainerConfig(command=["sleep", "1000"]), own.image, own.options)
        stranger.config.metadata.name = "stranger"
        house.runtime.service.containers[stranger.id] = stranger
        stranger.start()
        await house.until(lambda: house.runtime.requests("ContainerStatus")[-1].container_id == stranger.id)
        await asyncio.sleep(0.5)
        alive = own.process is not None
        await house.end("web", grace=0)
        await house.until(lambda: house.desk.entry("web") is None)
        return alive, house.said(), house.runtime.containers

    alive, said, left = in_house(place, story)

    assert alive
    assert not [one for one in said if "internal error" in one]
    assert left == ()
