"""``alignup collect`` against an API server: what is sent, what is in the archive, and what why makes of it."""

import base64
import gzip
import io
import json
import re
import signal
import stat
import tarfile
from dataclasses import replace

import pytest
import yaml

from alignup.collect import collection as archives
from alignup.collect.collection import Part
from alignup.documents.decisions import to_document
from alignup.machines import load_machine
from alignup.testing.api_server import ApiFault, ServedResource
from tests.align.hosts import pod
from tests.cli.commands import in_process, measured, start
from tests.collect.clusters import NODE, SECRET, NodeServer, busy_kubelet, put_node, rejected_pod
from tests.observe.api_objects import api_pod, running_server
from tests.observe.kubelets import ObservedKubelet
from tests.schedule.claim_objects import claim, claiming, device_class, resource_slice, template

FORBIDDEN = ApiFault(status=403, message="events is forbidden: User cannot")


@pytest.fixture
def cluster(tmp_path):
    """A node with state files, without an observer."""
    state = tmp_path / "kubelet"
    kubelet = busy_kubelet()
    kubelet.write(state)
    server = NodeServer(state, kubelet)
    put_node(server, kubelet)
    server.put(rejected_pod())
    with running_server(server):
        yield server


@pytest.fixture
def collect(cluster, tmp_path):
    config = tmp_path / "config"
    cluster.write_kubeconfig(config)

    def run(*arguments, command=("collect",), **options):
        return in_process(*command, *arguments, "--kubeconfig", config, cwd=tmp_path, **options)

    return run


def observed(server):
    """Install an observer."""
    server.put(server.kubelet.host_state(NODE))


def mutations(server):
    return [(request.method, request.path) for request in server.requests if request.method != "GET"]


def test_an_observed_node_needs_no_reader_and_gives_the_answer_of_the_node(cluster, collect, tmp_path):
    observed(cluster)

    done = collect("web", "--yes")

    assert (done.returncode, done.stdout) == (0, "default-web.tar.gz\n"), done.stderr
    assert mutations(cluster) == []
    archive = tmp_path / "default-web.tar.gz"
    assert stat.S_IMODE(archive.stat().st_mode) == 0o600
    answer = in_process("why", archive, "-o", "json", "--search", "0")
    assert answer.returncode == 1
    document = json.loads(answer.stdout)
    assert document["kubernetes"] == "1.36"
    assert "TopologyAffinityError" in document["answers"][0]["verdict"]
    # The same files on the node itself.
    manifest, config = tmp_path / "pod.json", tmp_path / "kubelet.json"
    manifest.write_text(json.dumps(api_pod(pod("web", cpu="4", memory="1Gi"))))
    config.write_bytes(cluster.kubelet.text)
    machine = tmp_path / "machine.json"
    machine.write_bytes(archives.read(archive).parts[Part.MACHINE])
    there = in_process(
        "why", manifest, "--machine", machine, "--config", config, "--state", tmp_path / "kubelet",
        "--kubernetes-version", "1.36", "-o", "json", "--search", "0",
    )  # fmt: skip
    here, expected = (json.loads(run.stdout)["answers"][0]["decision"] for run in (answer, there))
    for decision in (here, expected):
        decision.pop("uid", None)
    assert here == expected


@pytest.mark.parametrize(
    "amounts",
    [
        {"cpu": "1", "memory": "1Gi", "gpu": "1"},
        {"cpu": "2", "memory": "1Gi", "gpu": "2"},
        {"cpu": "1", "memory": "15Gi"},
        {"cpu": "3", "memory": "1Gi"},
    ],
    ids=str,
)
def test_devices_and_memory_of_an_observed_node_count_as_on_the_node(cluster, collect, tmp_path, amounts):
    cluster.kubelet.run(pod("z", cpu="1", memory="2Gi", gpu="1"))
    observed(cluster)
    put_node(cluster, cluster.kubelet, version="v1.37.0")
    asked = pod("asked", **amounts)
    cluster.put(api_pod(asked, NODE, phase="Failed"))

    assert collect("asked", "--yes").returncode == 0

    answer = in_process("why", tmp_path / "default-asked.tar.gz", "-o", "json", "--search", "0")
    here = json.loads(answer.stdout)["answers"][0]["decision"]
    there = to_document(cluster.kubelet.host.predict(asked))
    assert [here[key] for key in ("outcome", "placements", "rejection")] == [
        there[key] for key in ("outcome", "placements", "rejection")
    ], answer.stderr


def test_nothing_secret_is_in_the_archive(cluster, collect, tmp_path):
    observed(cluster)
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "web.1", "namespace": "default", "annotations": {"x": SECRET}},
        "involvedObject": {"kind": "Pod", "name": "web", "uid": rejected_pod()["metadata"]["uid"]},
        "reason": "TopologyAffinityError",
        "message": "Resources cannot be allocated",
    }
    cluster.put(event)

    assert collect("pod/web", "-y").returncode == 0

    collected = archives.read(tmp_path / "default-web.tar.gz")
    assert set(collected.parts) == {
        Part.POD, Part.NODE, Part.PODS, Part.EVENTS, Part.CONFIGURATION, Part.MACHINE,
        Part.CPU_STATE, Part.MEMORY_STATE, Part.DEVICE_STATE,
    }  # fmt: skip
    for name, content in collected.parts.items():
        assert SECRET not in content.decode(), name
    assert json.loads(collected.parts[Part.POD])["metadata"]["annotations"] == {"topology.alignup.dev/claims": "prefer"}
    assert json.loads(collected.parts[Part.EVENTS])["items"][0]["reason"] == "TopologyAffinityError"
    assert {item["metadata"]["name"] for item in json.loads(collected.parts[Part.PODS])["items"]} == {"web", "x", "y"}
    assert collected.index.reported.startswith("Failed: TopologyAffinityError")


def test_without_an_observer_a_reader_prints_the_machine_and_the_state_files(cluster, collect, tmp_path):
    # The script records this machine, so the kubelet has to be one of it.
    assert collect("web", "--yes").returncode == 0
    recording = tmp_path / "machine.tar.gz"
    recording.write_bytes(archives.read(tmp_path / "default-web.tar.gz").parts[Part.RECORDING])
    machine = replace(load_machine(recording), gaps=())
    assert machine.cpus
    # The memory of a virtual machine can change between two recordings, so this kubelet does not manage it.
    kubelet = ObservedKubelet(machine=machine, devices=(), memoryManagerPolicy="None", reservedMemory=[])
    kubelet.write(cluster.state)
    put_node(cluster, kubelet)

    done = collect("web", "--yes", "--archive", "case.tar.gz", "--image", "tools:1", "--reader-namespace", "tools")

    assert done.returncode == 0, done.stderr
    assert "creating pod tools/alignup-reader-" in done.stderr
    assert "deleted pod tools/alignup-reader-" in done.stderr
    assert [stored["metadata"]["name"] for stored in cluster.objects("pods")] == ["web", "x", "y"]
    answer = in_process("why", "-f", tmp_path / "case.tar.gz", "--set", "topologyManagerPolicy=none", "--search", "0")
    assert answer.returncode in (0, 1), answer.stderr
    assert "policy none" in answer.stdout
    assert f"pod default/web on node {NODE}, kubelet v1.36.4, as of 20" in answer.stderr
    assert "/tmp/alignup-" not in answer.stdout + answer.stderr  # noqa: S108 - of the unpacked parts


def test_the_reader_has_no_more_rights_than_it_needs(cluster, collect):
    assert collect("web", "--yes").returncode == 0

    spec = cluster.readers[0]["spec"]
    assert (spec["nodeName"], spec["restartPolicy"], spec["automountServiceAccountToken"]) == (NODE, "Never", False)
    assert spec["activeDeadlineSeconds"] == 120
    assert spec["tolerations"] == [{"operator": "Exists"}]
    assert not spec.keys() & {"hostNetwork", "hostPID", "hostIPC", "serviceAccountName"}
    (container,) = spec["containers"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert not container["securityContext"].get("privileged")
    assert {mount["mountPath"]: mount.get("readOnly") for mount in container["volumeMounts"]} == {
        "/kubelet": True,
        "/kubelet/pods": True,  # empty
        "/kubelet/plugins": True,
        "/tmp": None,  # noqa: S108
    }
    assert spec["volumes"][0]["hostPath"] == {"path": "/var/lib/kubelet", "type": "Directory"}


def test_first_it_says_what_it_will_do_and_asks(cluster, collect, tmp_path):
    done = collect("web")

    assert done.returncode == 2
    assert "alignup: nothing was sent: standard input is not a terminal\n  Add --yes" in done.stderr
    for request in ("GET /api/v1/nodes/host-a/proxy/configz", "POST /api/v1/namespaces/kube-system/pods", "/log"):
        assert f"{request}\n" in done.stderr
    assert "without environment variables" in done.stderr
    assert {request.method for request in cluster.requests} == {"GET"}
    assert not list(tmp_path.glob("*.tar.gz"))


def test_a_dry_run_prints_the_requests_and_the_manifest(cluster, collect, tmp_path):
    done = collect("web", "--dry-run")

    assert done.returncode == 0
    requests, manifest = done.stdout.split("---\n")
    assert "  DELETE /api/v1/namespaces/kube-system/pods/alignup-reader-" in requests
    assert yaml.safe_load(manifest)["spec"]["nodeName"] == NODE
    assert mutations(cluster) == []
    assert not list(tmp_path.glob("*.tar.gz"))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("default/web",), "default/web"),
        (("web", "-n", "default"), "default/web"),
        (("-l", "app=web"), "default/web"),
        (("-A", "web"), "default/web"),
        (("deployment/web",), "default/web"),
        (("deploy/web", "--node", NODE), "default/web"),
    ],
)
def test_pods_are_named_as_for_kubectl(cluster, collect, arguments, expected):
    served = ServedResource(kind="Deployment", plural="deployments", group="apps", version="v1", namespaced=True)
    cluster.serve(served)
    selector = {"matchLabels": {"app": "web"}}
    cluster.put(
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {"selector": selector}}
    )
    newer = api_pod(pod("newer", cpu="1"), NODE)
    newer["metadata"] |= {"labels": {"app": "web"}, "creationTimestamp": "2026-11-17T00:00:00Z"}
    cluster.put(newer)

    done = collect(*arguments, "--dry-run", command=("cluster", "collect"))

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"About pod {expected} on node {NODE}")


def test_what_may_not_be_read_is_named_with_the_permission(cluster, collect, tmp_path):
    observed(cluster)
    cluster.inject(FORBIDDEN, resource="events")
    cluster.respond(f"/api/v1/nodes/{NODE}/proxy/configz", b"not JSON")

    done = collect("web", "--yes")

    assert done.returncode == 0  # the HostState has the configuration, and events are for people
    assert "needs permission to list events in namespace default" in done.stderr
    assert "missing: configuration of the kubelet: the kubelet's /configz has no kubeletconfig" in done.stderr
    index = archives.read(tmp_path / "default-web.tar.gz").index
    assert [part.needs for part in index.missing] == ["", "list events in namespace default"]
    assert in_process("why", tmp_path / "default-web.tar.gz", "--search", "0").returncode == 1


def test_why_does_not_guess_what_an_archive_lacks(collect, tmp_path):
    done = collect("web", "--yes", "--no-reader")

    assert done.returncode == 1
    assert "The archive lacks the machine and the state files: alignup why default-web.tar.gz --machine" in done.stderr
    asked = in_process("why", tmp_path / "default-web.tar.gz")
    assert asked.returncode == 2
    assert "default-web.tar.gz: the archive lacks the machine\n  Give --machine, or collect it again" in asked.stderr


@pytest.mark.parametrize(
    ("waiting", "expected"),
    [
        ({"reason": "ImagePullBackOff", "message": "no such image"}, "cannot start on node host-a: ImagePullBackOff"),
        ({"reason": "ContainerCreating"}, "has not ended on node host-a after 1 seconds: ContainerCreating"),
    ],
)
def test_a_reader_that_does_not_run_is_deleted_and_the_rest_is_written(cluster, collect, waiting, expected):
    cluster.waiting = waiting

    done = collect("web", "--yes", "--timeout", "1")

    assert done.returncode == 1
    assert expected in done.stderr
    assert [method for method, _ in mutations(cluster)] == ["POST", "DELETE"]


def test_a_reader_that_may_not_be_created_is_a_missing_part(cluster, collect):
    cluster.inject(ApiFault(status=403, message="violates PodSecurity"), verb="create", resource="pods")

    done = collect("web", "--yes")

    assert done.returncode == 1
    assert "create, get and delete pods and get pods/log in namespace kube-system" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_reader_is_deleted_when_the_command_is_interrupted(cluster, tmp_path, number):
    cluster.waiting = {"reason": "ContainerCreating"}
    config = tmp_path / "config"
    cluster.write_kubeconfig(config)
    archive = tmp_path / "case.tar.gz"

    with start("collect", "web", "--yes", "--kubeconfig", str(config), "--archive", str(archive)) as process:
        assert cluster.created.wait(60)
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)

    assert process.returncode == 130, errors
    assert [method for method, _ in mutations(cluster)] == ["POST", "DELETE"]
    assert not archive.exists()
    assert b"Traceback" not in errors


def test_claims_come_with_their_classes_and_the_devices_of_the_node(cluster, collect, tmp_path):
    observed(cluster)
    for document in (device_class(), template(), resource_slice(NODE, (0, 1)), resource_slice("host-b", (0, 1))):
        cluster.put(document)
    cluster.put(claim("twice", ["gpu-1"], NODE))
    cluster.put(api_pod(claiming(pod("claiming", cpu="1", memory="1Gi")), NODE, phase="Failed"))

    assert collect("claiming", "--yes").returncode == 0

    archive = tmp_path / "default-claiming.tar.gz"
    items = json.loads(archives.read(archive).parts[Part.CLAIMS])["items"]
    assert [item["kind"] for item in items] == [
        "DeviceClass",
        "ResourceClaimTemplate",
        "ResourceClaim",
        "ResourceSlice",
    ]
    answer = in_process("why", archive, "--search", "0")
    assert "Claims" in answer.stdout, answer.stderr


def test_errors_say_what_to_do(cluster, collect):
    cluster.put(api_pod(pod("pending", cpu="1"), "", phase="Pending"))
    for arguments, code, expected in (
        ((), 2, "alignup: Give POD, or select pods with -l or -A."),
        (("gone",), 1, "alignup: pod gone not found in namespace default\n  Choose a namespace with -n"),
        (("pending",), 1, "alignup: pod default/pending is not on a node yet\n  Name a node with --node"),
        (("web", "--yes", "--archive", "no/where.tar.gz"), 2, "alignup: --archive: no: No such directory"),
        (("web", "--yes", "--archive", "."), 2, "alignup: --archive: . is a directory"),
    ):
        done = collect(*arguments)
        assert (done.returncode, expected in done.stderr) == (code, True), done.stderr


def test_a_log_is_never_trusted(cluster, collect):
    for log in (
        b"",
        b"sh: tar: not found\n",
        b"-----BEGIN ALIGNUP RECORDING-----\n!\n-----END ALIGNUP RECORDING-----\n",
    ):
        cluster.log = log
        done = collect("web", "--yes")
        assert done.returncode == 1
        assert "the log of the reader is " in done.stderr


def test_a_reader_prints_its_own_parts_only(cluster, collect, tmp_path):
    """A node can lie about itself, not about the pods that the API server has."""
    members = [("etc/subuid", b"kubelet:1:2\n"), ("pods.json", b"{}"), ("pod.json", b"{}")]
    cluster.log = log_of(gzip.decompress(packed(members)))
    archive = tmp_path / "case.tar.gz"

    collect("web", "--yes", "--archive", archive)

    parts = archives.read(archive).parts
    assert parts["etc/subuid"] == b"kubelet:1:2\n"
    assert json.loads(parts["pod.json"])["kind"] == "Pod"
    assert json.loads(parts["pods.json"])["kind"] == "List"


LARGE = 1 << 20  #: times 76 bytes


def log_of(archive):
    """The log of a reader that prints this archive."""
    content = base64.encodebytes(gzip.compress(archive, 1))
    return b"-----BEGIN ALIGNUP RECORDING-----\n" + content + b"-----END ALIGNUP RECORDING-----\n"


def bomb():
    """The log of a reader whose content decompresses to 256 MiB, more than the command may use."""
    return log_of(bytes(1 << 28))


def sparse_log():
    """The log of a reader with a file of 1 GiB, all of it a hole."""
    member = tarfile.TarInfo("state/cpu_manager_state")
    member.pax_headers = {"GNU.sparse.map": f"{1 << 30},0", "GNU.sparse.size": str(1 << 30)}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(member)
    return log_of(buffer.getvalue())


def log_of_headers():
    """The log of a reader whose archive has 3,000 headers of one file, each within the other."""
    header = tarfile.TarInfo("././@LongLink")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, 1
    return log_of((header.tobuf(tarfile.GNU_FORMAT) + bytes(512)) * 3_000)


def log_with_state():
    """The log of a reader with a state file of 3 MiB that would take 600 MiB when it is decoded."""
    content = b'{"Data":{"PodDeviceEntries":[' + b"{}," * (1 << 20) + b"{}]}}"
    return log_of(gzip.decompress(packed([("state/kubelet_internal_checkpoint", content)])))


@pytest.mark.parametrize(
    ("log", "configuration", "expected"),
    [
        pytest.param(
            lambda: (b"A" * 75 + b"\n") * LARGE,
            lambda: b"{}",
            "machine and state files of the kubelet: .*larger than 4 MiB",
            id="log",
        ),
        pytest.param(bomb, lambda: b"{}", "the log of the reader has more than 4 MiB", id="compressed log"),
        pytest.param(sparse_log, lambda: b"{}", "is rejected: 'state/cpu_manager_state' is a sparse file", id="hole"),
        pytest.param(log_of_headers, lambda: b"{}", "rejected: a member has headers of more than", id="headers"),
        pytest.param(log_with_state, lambda: b"{}", "more than 100000 commas, colons and brackets", id="state file"),
        pytest.param(
            lambda: b"",
            lambda: b"[" * 76 * LARGE,
            "configuration of the kubelet: .*larger than 1 MiB",
            id="configuration",
        ),
        pytest.param(
            lambda: b"",
            lambda: b'{"kubeletconfig":[' + b"{}," * ((1 << 18) + 80_000) + b"{}]}",
            "configuration of the kubelet: the kubelet's /configz has no kubeletconfig",
            id="configuration of many values",
        ),
    ],
)
def test_a_hostile_node_costs_little_memory(cluster, tmp_path, log, configuration, expected):
    cluster.log = log()
    cluster.respond(f"/api/v1/nodes/{NODE}/proxy/configz", configuration())
    config = tmp_path / "config"
    cluster.write_kubeconfig(config)

    archive = str(tmp_path / "case.tar.gz")
    code, megabytes, errors = measured("collect", "web", "--yes", "--kubeconfig", str(config), "--archive", archive)

    assert code == 1, errors
    assert re.search(expected, errors)
    assert megabytes <= 100


# Archives


def packed(members):
    """Return a tar.gz of names and contents; a content of ``None`` is a link to /etc/passwd."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as archive:
        for name, content in members:
            member = tarfile.TarInfo(name)
            if content is None:
                member.type, member.linkname = tarfile.SYMTYPE, "sub/passwd"
            else:
                member.size = len(content)
            archive.addfile(member, io.BytesIO(content or b""))
    return buffer.getvalue()


INDEX = b'{"alignup":"collection/v1","collectedAt":"","pod":"default/web","node":"a"}'


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ([("pod.json", b"{}")], "is not an archive of 'alignup collect': it has no collection.json"),
        ([("collection.json", b"{")], "collection.json: not JSON"),
        ([("collection.json", INDEX.replace(b"/v1", b"/v9"))], "the format 'collection/v9' is unknown"),
        ([("collection.json", INDEX), ("../x", b"")], "'../x' leads outside"),
        ([("collection.json", INDEX), ("/etc/x", b"")], "'/etc/x' leads outside"),
        ([("collection.json", INDEX), ("state/x", b"")], "'state/x' is not a part of such an archive"),
        ([("collection.json", INDEX), ("pod.json", None)], "'pod.json' is a link"),
        ([("collection.json", INDEX), ("pods.json", bytes((32 << 20) + 1))], "pods.json has more than 32 MiB"),
        ([("collection.json", INDEX), *((f"s{n}", bytes(32 << 20)) for n in range(5))], "its names and contents have"),
    ],
)
def test_hostile_archives_are_refused(tmp_path, members, expected):
    archive = tmp_path / "case.tar.gz"
    archive.write_bytes(packed(members))

    done = in_process("why", archive)

    assert done.returncode == 2
    assert expected in done.stderr
    assert "Traceback" not in done.stderr


def test_a_damaged_archive_is_refused(tmp_path, collect, cluster):
    observed(cluster)
    assert collect("web", "--yes").returncode == 0
    whole = (tmp_path / "default-web.tar.gz").read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"\x1f\x8b" + bytes(100), b"kind: Pod\n"):
        (tmp_path / "case.tar.gz").write_bytes(content)
        done = in_process("why", tmp_path / "case.tar.gz")
        assert done.returncode == 2, content[:20]
        assert "case.tar.gz" in done.stderr


def test_problems_with_a_part_name_the_archive(collect, tmp_path):
    assert collect("web", "--yes").returncode == 0  # the recording is that of this machine, the state is not
    done = in_process("why", "default-web.tar.gz", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("alignup: default-web.tar.gz")
    (tmp_path / "case").write_bytes((tmp_path / "default-web.tar.gz").read_bytes())
    done = in_process("why", "case", cwd=tmp_path)
    assert "alignup: case:1: is compressed; 'alignup why FILE.tar.gz' reads archives" in done.stderr


def test_a_running_pod_keeps_its_allocation(cluster, collect, tmp_path):
    observed(cluster)
    assert collect("x", "--yes").returncode == 0
    done = in_process("why", tmp_path / "default-x.tar.gz")
    assert (done.returncode, "Pod default/x is already admitted" in done.stdout) == (0, True)


def test_the_machine_of_an_archive_is_one_of_its_files(tmp_path):
    (tmp_path / "case.tar.gz").write_bytes(packed([("collection.json", INDEX)]))
    done = in_process("machine", "show", tmp_path / "case.tar.gz")
    assert (done.returncode, "unpack it with tar -xzf, and give its machine" in done.stderr) == (2, True)


def test_an_archive_is_asked_about_alone():
    done = in_process("why", "a.yaml", "case.tar.gz")
    assert (done.returncode, "Give an archive of 'alignup collect' alone." in done.stderr) == (2, True)


def test_an_existing_archive_becomes_private(cluster, collect, tmp_path):
    observed(cluster)
    target = tmp_path / "case.tar.gz"
    target.write_text("old")
    target.chmod(0o644)
    assert collect("web", "--yes", "--archive", target).returncode == 0
    assert stat.S_IMODE(target.stat().st_mode) == 0o600


def test_an_archive_is_checked_before_an_upgrade(cluster, collect, tmp_path):
    observed(cluster)
    configuration = {**json.loads(cluster.kubelet.text), "featureGates": {"KubeletTracing": True}}
    body = json.dumps({"kubeletconfig": configuration}).encode()
    cluster.respond(f"/api/v1/nodes/{NODE}/proxy/configz", body)
    assert collect("web", "--yes").returncode == 0
    archive = tmp_path / "default-web.tar.gz"

    breaks = in_process("upgrade-check", archive, "--to", "1.38")
    passes = in_process("upgrade-check", archive, "--to", "1.37", "-o", "json")

    assert breaks.returncode == 1
    assert "unrecognized feature gate: KubeletTracing" in " ".join(breaks.stdout.split())
    assert passes.returncode == 0, passes.stderr
    document = json.loads(passes.stdout)
    assert (document["from"], document["checkedPods"], document["waitingPods"]) == ("1.36", 2, 1)


@pytest.mark.parametrize("by_observer", [True, False])
def test_sub_ids_are_in_the_archive(cluster, collect, tmp_path, by_observer):
    if by_observer:
        cluster.put({**cluster.kubelet.host_state(NODE), "subIds": {"subuid": "65536:4294901760"}})
    (cluster.state / "etc").mkdir()
    (cluster.state / "etc/subuid").write_text("root:1:65536\nkubelet:65536:4294901760\n")

    assert collect("web", "--yes", "--sub-ids").returncode == 0

    archive = tmp_path / "default-web.tar.gz"
    assert archives.read(archive).parts[Part.SUBUID] == b"kubelet:65536:4294901760\n"
    if by_observer:  # a reader records the machine of this test, which is another one than that of the state files
        run = in_process("upgrade-check", archive, "--to", "1.38")
        assert run.returncode == 1
        assert "kubelet:65536:4294901760 ends at 4294967295" in " ".join(run.stdout.split())


def test_a_reader_mounts_etc_only_if_it_may(cluster, collect):
    assert collect("web", "--yes").returncode == 0
    assert collect("web", "--yes", "--sub-ids", "--archive", "other.tar.gz").returncode == 0

    mounted = [{volume["name"] for volume in reader["spec"]["volumes"]} for reader in cluster.readers]
    assert [("etc" in names) for names in mounted] == [False, True]
