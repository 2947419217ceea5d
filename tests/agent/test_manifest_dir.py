"""Scans of a manifest directory, and the changes they cause."""

import os

import pytest

from alignup.agent.manifest_dir import ManifestDir, plan_changes
from alignup.agent.state import PodRecord
from tests.agent.states import ANY_DECISION

POD = """\
apiVersion: v1
kind: Pod
metadata: {{name: {name}{uid}}}
spec:
  containers:
  - name: app
    image: example.com/app
    resources: {{limits: {{cpu: "{cpu}", memory: 1Gi}}}}
"""


def write(directory, file, name="web", *, cpu="2", uid="", comment=""):
    text = comment + POD.format(name=name, cpu=cpu, uid=f", uid: {uid}" if uid else "")
    (directory / file).write_text(text)


def settled(folder):
    """Scan twice, so that all files are stable."""
    folder.scan()
    return folder.scan()


def records(scan):
    """The records of all pods of a scan."""
    return [
        PodRecord(pod=manifest.pod, since=0.0, source=manifest.file, decision=ANY_DECISION) for manifest in scan.pods
    ]


def names(scan):
    return [manifest.pod.name for manifest in scan.pods]


def test_the_first_scan_reads_every_file(tmp_path):
    write(tmp_path, "web.yaml")
    write(tmp_path, "db.json", "db")
    write(tmp_path, ".hidden.yaml", "hidden")
    (tmp_path / "README.md").write_text("no manifest")
    (tmp_path / "nested.yaml").mkdir()

    scan = ManifestDir(tmp_path).scan()

    assert names(scan) == ["db", "web"]
    assert scan.unknown == frozenset()


def test_a_file_that_still_changes_is_not_read(tmp_path):
    folder = ManifestDir(tmp_path)
    folder.scan()
    write(tmp_path, "web.yaml")

    first, second = folder.scan(), folder.scan()

    assert names(first) == []
    assert first.unknown == {str(tmp_path / "web.yaml")}
    assert names(second) == ["web"]


def test_an_invalid_edit_leaves_the_pod_as_it_was(tmp_path):
    folder = ManifestDir(tmp_path)
    write(tmp_path, "web.yaml")
    before = settled(folder)
    (tmp_path / "web.yaml").write_text("apiVersion: v1\nkind: Pod\nmetadata: {na")

    now = settled(folder)

    assert now.pods == before.pods
    assert plan_changes(now, records(before)) == ((), ())


def test_an_unreadable_file_is_reported_once(tmp_path):
    folder = ManifestDir(tmp_path)
    (tmp_path / "web.yaml").write_text("kind: Pod\n")

    first, second = folder.scan(), folder.scan()

    (note,) = first.notes
    assert note.startswith(f"{tmp_path / 'web.yaml'} cannot be used")
    assert "apiVersion" in note
    assert second.notes == ()


def test_a_loop_of_links_is_an_unreadable_file(tmp_path):
    write(tmp_path, "web.yaml")
    write(tmp_path, "db.yaml", "db")
    folder = ManifestDir(tmp_path)
    before = settled(folder)
    (tmp_path / "db.yaml").unlink()
    (tmp_path / "db.yaml").symlink_to("db.yaml")

    folder.scan()
    now = folder.scan()

    (note,) = now.notes
    assert note.startswith(f"{tmp_path / 'db.yaml'} cannot be used (Too many levels of symbolic links")
    assert now.pods == before.pods
    assert folder.scan().notes == ()


def test_a_link_that_is_repaired_is_read(tmp_path):
    (tmp_path / "web.yaml").symlink_to("web.yaml")
    folder = ManifestDir(tmp_path)
    broken = settled(folder)
    (tmp_path / "web.yaml").unlink()
    write(tmp_path, "web.yaml")

    assert broken.unknown == {str(tmp_path / "web.yaml")}
    assert names(settled(folder)) == ["web"]
    assert folder.problems == ()


def test_pods_of_an_unreadable_file_stay_after_a_restart(tmp_path):
    write(tmp_path, "web.yaml")
    before = ManifestDir(tmp_path).scan()
    (tmp_path / "web.yaml").write_text("{")

    now = ManifestDir(tmp_path).scan()

    assert plan_changes(now, records(before)) == ((), ())


def test_an_unreadable_directory_changes_nothing(tmp_path):
    write(tmp_path, "web.yaml")
    folder = ManifestDir(tmp_path)
    before = folder.scan()
    tmp_path.rename(tmp_path.with_name("elsewhere"))

    now = folder.scan()

    assert now.failed
    assert "its pods stay as they are" in now.notes[0]
    assert plan_changes(now, records(before)) == ((), ())
    assert folder.scan().notes == ()


def test_a_briefly_missing_file_counts_as_present(tmp_path):
    folder = ManifestDir(tmp_path)
    write(tmp_path, "web.yaml")
    folder.scan()
    (tmp_path / "web.yaml").rename(tmp_path / "web.backup")
    gone = folder.scan()
    (tmp_path / "web.backup").rename(tmp_path / "web.yaml")

    assert names(gone) == ["web"]
    assert names(folder.scan()) == ["web"]


def test_a_removed_file_releases_its_pods(tmp_path):
    folder = ManifestDir(tmp_path)
    write(tmp_path, "web.yaml")
    before = settled(folder)
    (tmp_path / "web.yaml").unlink()

    removed, added = plan_changes(settled(folder), records(before))

    assert removed == (before.pods[0].pod.uid,)
    assert added == ()


@pytest.mark.parametrize("uid", ["", "fixed"])
def test_an_edited_pod_replaces_the_previous_one(tmp_path, uid):
    folder = ManifestDir(tmp_path)
    write(tmp_path, "web.yaml", uid=uid)
    before = settled(folder)
    write(tmp_path, "web.yaml", cpu="4", uid=uid)

    removed, added = plan_changes(settled(folder), records(before))

    assert removed == (before.pods[0].pod.uid,)
    assert [manifest.pod.containers[0].resources.whole_cpus for manifest in added] == [4]
    assert (added[0].pod.uid == before.pods[0].pod.uid) is bool(uid)


def test_an_edited_comment_changes_nothing(tmp_path):
    folder = ManifestDir(tmp_path)
    write(tmp_path, "web.yaml")
    before = settled(folder)
    write(tmp_path, "web.yaml", comment="# hello\n")

    assert plan_changes(settled(folder), records(before)) == ((), ())


def test_pods_are_the_same_after_a_restart(tmp_path):
    write(tmp_path, "web.yaml")

    assert ManifestDir(tmp_path).scan().pods == ManifestDir(tmp_path).scan().pods


def test_equal_names_in_two_files_are_two_pods(tmp_path):
    write(tmp_path, "a.yaml")
    write(tmp_path, "b.yaml")

    first, second = ManifestDir(tmp_path).scan().pods

    assert first.pod.uid != second.pod.uid


@pytest.mark.parametrize("files", [("a.yaml", "b.yaml"), ("a.yaml", "a.yaml")], ids=["two files", "one file"])
def test_of_two_pods_with_the_same_uid_the_first_counts(tmp_path, files):
    for file, name in zip(files, ("one", "two"), strict=True):
        with (tmp_path / file).open("a") as written:
            written.write("---\n" + POD.format(name=name, cpu=2, uid=", uid: same"))

    scan = ManifestDir(tmp_path).scan()

    assert names(scan) == ["one"]
    assert "has the same uid same" in scan.notes[0]


def test_pods_from_the_api_are_ignored(tmp_path):
    write(tmp_path, "web.yaml", uid="mine")
    scan = ManifestDir(tmp_path).scan()
    sent = PodRecord(pod=scan.pods[0].pod, since=0.0, source="api", decision=ANY_DECISION)

    removed, added = plan_changes(scan, [sent])

    assert removed == ()
    assert added == scan.pods


def test_every_replica_of_a_deployment_is_a_pod(tmp_path):
    deployment = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: app, image: x, resources: {limits: {cpu: "1", memory: 1Gi}}}]}
"""
    (tmp_path / "web.yaml").write_text(deployment)
    folder = ManifestDir(tmp_path)
    before = settled(folder)
    (tmp_path / "web.yaml").write_text(deployment.replace("replicas: 3", "replicas: 2"))

    removed, added = plan_changes(settled(folder), records(before))

    assert names(before) == ["web-0", "web-1", "web-2"]
    assert removed == (before.pods[2].pod.uid,)
    assert added == ()


def test_a_pipe_is_ignored(tmp_path):
    os.mkfifo(tmp_path / "web.yaml")

    assert ManifestDir(tmp_path).scan().pods == ()
