"""The pods of a manifest directory follow its files."""

import asyncio
import io
import json
from typing import Any

import pytest

from alignup.agent.admission_queue import AdmissionQueue
from alignup.agent.manifest_dir import ManifestDir, ManifestWatcher
from alignup.agent.state import AdmissionStatus
from alignup.agent.transaction import Transaction
from alignup.align.errors import FileError, StoreFullError
from alignup.web import log
from tests.agent.agents import pod as document
from tests.agent.agents import running
from tests.agent.states import clock, empty_state
from tests.align.hosts import pod
from tests.deadlines import until, wait_for


def put(directory, file, *pods):
    """Write a manifest file atomically."""
    aside = directory / f".{file}"
    aside.write_text("\n---\n".join(map(json.dumps, pods)))
    aside.rename(directory / file)


def written(name, **requests):
    """A manifest without a uid."""
    manifest = document(name, **requests)
    del manifest["metadata"]["uid"]
    return manifest


class WatcherRig:
    """A queue, a manifest directory and its watcher."""

    def __init__(self, directory, **options):
        self.full = False
        self.events: list[Any] = []
        self.directory = directory
        self.out = io.StringIO()
        self.queue = AdmissionQueue(empty_state(**options), self._save, clock=clock(), dispatch=self.events.extend)
        self.watcher = ManifestWatcher(
            ManifestDir(directory), self.queue, log=log.make_logger(self.out, readable=False), interval=0.01
        )

    def _save(self, state, _events):
        if self.full:
            raise FileError("cannot write: No space left on device")
        if any(record.pod.name == "large" for record in state.all_records()):
            raise StoreFullError("alignup.sqlite", size=2, limit=1)

    def scan(self, times=2):
        async def scans():
            for _ in range(times):
                await self.watcher.scan_once()

        asyncio.run(scans())

    def admit(self, pod):
        return asyncio.run(self.queue.run(Transaction.admit, pod))

    def release(self, uid):
        return asyncio.run(self.queue.run(Transaction.release, uid))

    @property
    def pods(self):
        return {entry.pod.name: entry.status for entry in self.queue.state.pod_views()}

    @property
    def decided(self):
        """The names of the pods of all decisions, in order."""
        asyncio.run(self.queue.run(Transaction.flush_events))
        return [event.pod.name for event in self.events if event.decision]

    @property
    def messages(self):
        return [json.loads(line)["detail"] for line in self.out.getvalue().splitlines()]


@pytest.fixture
def start_rig(tmp_path):
    rigs = []

    def make(directory=tmp_path, **options):
        rigs.append(WatcherRig(directory, **options))
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.queue.close()


def test_pods_follow_their_files(start_rig, tmp_path):
    rig = start_rig()
    put(tmp_path, "a.json", written("web"), written("db"))
    rig.scan()
    here = rig.pods
    (tmp_path / "a.json").unlink()
    rig.scan(3)

    assert here == {"web": AdmissionStatus.ADMITTED, "db": AdmissionStatus.ADMITTED}
    assert rig.pods == {}


def test_a_pod_that_does_not_fit_the_ledger_keeps_no_other_change_back(start_rig, tmp_path):
    rig = start_rig()
    put(tmp_path, "a.json", written("old"))
    rig.scan()
    put(tmp_path, "a.json", written("large", cpu="1"), written("web", cpu="1"), written("db", cpu="1"))
    rig.scan(3)

    assert list(rig.pods) == ["web", "db"]
    assert any(
        "manifests cannot be applied now: " in message and "the ledger is full" in message for message in rig.messages
    )


def test_an_edited_pod_can_reuse_its_own_resources(start_rig, tmp_path):
    rig = start_rig()
    put(tmp_path, "a.json", written("web", cpu="4"))
    rig.scan()
    rig.admit(pod("other", cpu="3"))
    put(tmp_path, "a.json", written("web", cpu="4", gpu="0"), written("more", cpu="3"))
    rig.scan()

    assert rig.pods == {
        "web": AdmissionStatus.ADMITTED,
        "other": AdmissionStatus.ADMITTED,
        "more": AdmissionStatus.WAITING,
    }


def test_a_pod_that_does_not_fit_is_retried_after_a_release(start_rig, tmp_path):
    rig = start_rig()
    rig.admit(pod("other", cpu="4"))
    put(tmp_path, "a.json", written("web", cpu="4"))
    rig.scan()
    before = rig.pods
    rig.release("other")

    assert before == {"other": AdmissionStatus.ADMITTED, "web": AdmissionStatus.WAITING}
    assert rig.pods == {"web": AdmissionStatus.ADMITTED}


def test_a_pod_that_can_never_fit_is_tried_once_per_change_of_its_file(start_rig, tmp_path):
    rig = start_rig()
    put(tmp_path, "a.json", written("huge", cpu="40"))
    rig.scan(4)
    rejected = rig.pods
    put(tmp_path, "a.json", written("huge", cpu="4"))
    rig.scan()

    assert rejected == {}
    assert rig.pods == {"huge": AdmissionStatus.ADMITTED}


def test_a_pod_released_by_hand_is_admitted_again_while_its_file_exists(start_rig, tmp_path):
    rig = start_rig()
    put(tmp_path, "a.json", document("web"))
    rig.scan()
    rig.release("web")
    gone = rig.pods
    rig.scan()

    assert gone == {}
    assert rig.pods == {"web": AdmissionStatus.ADMITTED}


def test_a_uid_conflict_is_logged_once(start_rig, tmp_path):
    rig = start_rig()
    rig.admit(pod("web", cpu="3"))
    put(tmp_path, "a.json", document("web", cpu="1"), document("db"))
    rig.scan(4)

    assert rig.pods == {"web": AdmissionStatus.ADMITTED, "db": AdmissionStatus.ADMITTED}
    assert len([message for message in rig.messages if "has other requests" in message]) == 1


def test_a_pod_is_tried_again_when_its_uid_is_free(start_rig, tmp_path):
    rig = start_rig()
    rig.admit(pod("web", cpu="3"))
    put(tmp_path, "a.json", document("web", cpu="1"))
    rig.scan()
    notes = rig.watcher.notes
    rig.release("web")
    rig.scan(1)

    assert len(notes) == 1
    assert (rig.pods, rig.watcher.notes) == ({"web": AdmissionStatus.ADMITTED}, ())


def test_a_rejected_pod_is_tried_again_when_its_file_is_removed_and_written_again(start_rig, tmp_path):
    rig = start_rig()
    for _ in range(2):
        put(tmp_path, "a.json", document("huge", cpu="40"))
        rig.scan(3)
        (tmp_path / "a.json").unlink()
        rig.scan(3)

    assert rig.decided == ["huge", "huge"]


def test_notes_about_rejected_pods_stay_while_the_directory_cannot_be_read(start_rig, tmp_path):
    directory = tmp_path / "manifests"
    directory.mkdir()
    rig = start_rig(directory)
    put(directory, "a.json", written("huge", cpu="40"))
    rig.scan()
    before = rig.watcher.notes
    directory.rename(tmp_path / "elsewhere")
    rig.scan(3)
    meanwhile = rig.watcher.notes
    (tmp_path / "elsewhere").rename(directory)
    rig.scan(3)

    assert meanwhile[1:] == before
    assert rig.watcher.notes == before
    assert rig.decided == ["huge"]


def test_of_an_edited_pod_only_the_latest_version_counts_as_rejected(start_rig, tmp_path):
    rig = start_rig()
    for cpu in ("40", "41", "40"):
        put(tmp_path, "a.json", written("huge", cpu=cpu), document("huger", cpu=cpu))
        rig.scan()

    assert len(rig.watcher.notes) == 2
    assert rig.decided == ["huge", "huger"] * 3


def test_a_full_disk_is_logged_once_and_retried(start_rig, tmp_path):
    rig = start_rig()
    wait_for(lambda: not rig.queue.problems())
    rig.full = True
    put(tmp_path, "a.json", written("web"))
    rig.scan(4)
    nothing, messages = rig.pods, rig.messages
    rig.full = False
    rig.scan()

    assert nothing == {}
    assert len([message for message in messages if "No space left on device" in message]) == 1
    assert rig.pods == {"web": AdmissionStatus.ADMITTED}


def test_pods_beyond_the_wait_queues_capacity_are_retried(start_rig, tmp_path):
    rig = start_rig(capacity=1)
    put(tmp_path, "a.json", *(written(f"web-{number}", cpu="4") for number in range(3)))
    rig.scan(3)
    before = rig.pods
    rig.release(next(entry.pod.uid for entry in rig.queue.state.pod_views()))

    assert list(before.values()) == [AdmissionStatus.ADMITTED, AdmissionStatus.WAITING]
    assert len([message for message in rig.messages if "no more than 1 pod can wait" in message]) == 1
    rig.scan()
    assert AdmissionStatus.WAITING in rig.pods.values()


def test_the_manifest_directory_survives_a_restart(tmp_path):
    directory = tmp_path / "manifests"
    directory.mkdir()
    put(directory, "web.yaml", written("web", cpu="3"))
    put(directory, "db.yaml", written("db", cpu="1"))
    with running(tmp_path / "root", "--manifest-dir", directory) as agent:
        wait_for(lambda: len(agent.pods()) == 2)
        before = agent.pods()
        agent.kill()
    (directory / "db.yaml").unlink()
    put(directory, "new.yaml", written("new", cpu="2"))
    with running(tmp_path / "root", "--manifest-dir", directory) as agent:
        wait_for(lambda: {pod["name"] for pod in agent.pods().values()} == {"web", "new"})
        after = agent.pods()
    with running(tmp_path / "root") as agent:
        unwatched = agent.pods()
        notes = [line["detail"] for line in agent.log() if line["event"] == "recovered"]

    assert {pod["source"] for pod in before.values()} == {str(directory / "web.yaml"), str(directory / "db.yaml")}
    assert unwatched == after
    assert "pods from manifests stay, but their directory is not watched: web, new" in notes
    assert [(uid, pod["placements"]) for uid, pod in after.items() if pod["name"] == "web"] == [
        (uid, pod["placements"]) for uid, pod in before.items() if pod["name"] == "web"
    ]


def test_the_directory_is_scanned_again_and_again(start_rig, tmp_path):
    rig = start_rig()

    async def follow():
        watching = asyncio.create_task(rig.watcher.run())
        for count in (1, 2):
            put(tmp_path, f"{count}.json", written(f"web-{count}", cpu="1"))
            await until(lambda: len(rig.pods) == count)  # noqa: B023 - within this round
        watching.cancel()
        await asyncio.wait([watching])

    asyncio.run(follow())

    assert rig.pods == {"web-1": AdmissionStatus.ADMITTED, "web-2": AdmissionStatus.ADMITTED}


def test_notes_list_the_current_problems(start_rig, tmp_path):
    rig = start_rig()
    put(tmp_path, "large.json", written("large", cpu="9"))
    (tmp_path / "bad.yaml").write_text("{")
    rig.scan()
    wrong = rig.watcher.notes
    (tmp_path / "large.json").unlink()
    (tmp_path / "bad.yaml").unlink()
    rig.scan(3)

    assert len(wrong) == 2
    assert any("bad.yaml cannot be used" in note for note in wrong)
    assert any("pod default/large is rejected: " in note for note in wrong)
    assert rig.watcher.notes == ()
