"""``alignup machine``: pictures, descriptions, recordings."""

import json
from pathlib import Path

import pytest

from alignup.machines import discover, load
from alignup.picture.machine_svg import draw_svg
from tests.cli.commands import in_process
from tests.cli.manifests import pod_manifest

SERVER = "pack:2 numa:1(memory=64GiB) l3:1 core:8 pu:2"
RECORDED = Path(__file__).parents[1] / "machines" / "guest-4n-2s.tar.gz"


def test_the_default_is_this_machine():
    run = in_process("machine", "show")

    assert (run.returncode, run.stderr) == (0, "")
    assert f"{len(discover().cpus)} CPU" in run.stdout.splitlines()[0]


@pytest.mark.parametrize("source", [SERVER, RECORDED], ids=["a synthetic machine", "a recording"])
def test_the_text_fits_80_columns(source):
    run = in_process("machine", "show", source)

    assert run.returncode == 0
    assert max(map(len, run.stdout.splitlines())) <= 80
    assert "┌─ Socket 0" in run.stdout
    assert "\x1b" not in run.stdout


def test_svg():
    run = in_process("machine", "show", SERVER, "-o", "svg")

    assert run.stdout == draw_svg(load(SERVER))


@pytest.mark.parametrize("form", ["yaml", "json"])
def test_a_description_reads_back_as_the_same_machine(form, tmp_path):
    run = in_process("machine", "show", RECORDED, "-o", form)
    file = tmp_path / f"machine.{form}"
    file.write_text(run.stdout, encoding="utf-8")

    assert load(file) == load(RECORDED)
    assert in_process("machine", "show", file).stdout == in_process("machine", "show", RECORDED).stdout


def test_the_kubelets_view_has_the_kubelets_numbers():
    run = in_process("machine", "show", "pack:1 numa:1 core:2 pu:2(indexes=0,2,1,3)", "--kubelet", "-o", "json")

    seen = json.loads(run.stdout)
    assert "report" not in seen
    assert [(group["cores"], group["cache"]) for group in seen["cpus"]] == [("0,2 1,3", 0)]


def test_a_machine_on_which_the_kubelet_fails_says_so(tmp_path):
    machine = tmp_path / "blind.yaml"
    machine.write_text(
        "alignup: machine/v1\ncpus:\n- {socket: 0, node: 0, cores: '0 1'}\nnodes:\n- {id: 0}\n"
        "report: {num_cpus: 0, num_sockets: 0, cpus: [], nodes: []}\n"
    )

    run = in_process("machine", "show", machine, "--kubelet")

    assert run.returncode == 0
    assert "could not detect number of cpus" in " ".join(run.stdout.replace("│", "").split())


@pytest.mark.parametrize(
    ("machine", "message"),
    [
        pytest.param("nowhere.yaml", "nowhere.yaml does not exist", id="a missing file"),
        pytest.param("pack:x", "'pack:x'", id="an unknown level"),
        pytest.param("", "the text is empty", id="nothing"),
        pytest.param("\x1b]0;:1", "\\x1b", id="control characters"),
    ],
)
def test_an_invalid_machine_is_reported_in_one_line_with_advice(machine, message):
    run = in_process("machine", "show", machine)

    line, advice = run.stderr.splitlines()
    assert run.returncode == 2
    assert line.startswith("alignup: ")
    assert message in line
    assert "\x1b" not in run.stderr
    assert advice == "  See 'alignup machine show --help' for the forms of MACHINE."


def test_the_kubelets_view_of_a_machine_without_numa_nodes_has_memory(tmp_path):
    topology = tmp_path / "sys/devices/system/cpu/cpu0/topology"
    topology.mkdir(parents=True)
    for name in ("physical_package_id", "core_id"):
        (topology / name).write_text("0")
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "meminfo").write_text("MemTotal: 4194304 kB\n")

    run = in_process("machine", "show", tmp_path, "--kubelet")

    assert run.returncode == 0
    assert "memory 4 GiB" in run.stdout


def test_a_recording_describes_this_machine(tmp_path):
    file = tmp_path / "host.tar.gz"

    run = in_process("machine", "record", file)

    assert run.returncode == 0, run.stderr
    assert run.stdout == ""
    assert f"in {file}" in run.stderr
    assert load(file).cpus == discover().cpus
    assert [each.name for each in tmp_path.iterdir()] == ["host.tar.gz"]


@pytest.fixture
def install_kubelet(tmp_path, monkeypatch):
    """A function that puts a kubelet of a version first on the PATH."""

    def install(version):
        program = tmp_path / "bin" / "kubelet"
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\necho Kubernetes {version}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(program.parent), prepend=":")

    return install


def test_a_recording_names_the_installed_kubelet_and_is_answered_for_it(tmp_path, install_kubelet):
    file, manifest = tmp_path / "host.tar.gz", tmp_path / "pod.json"
    manifest.write_text(pod_manifest())
    install_kubelet("v1.35.8")
    recorded = in_process("machine", "record", file)
    install_kubelet("v1.34.1")
    words = ("why", "-f", manifest, "--machine", file, "-o", "json")

    run = in_process(*words)
    given = in_process(*words, "--kubernetes-version", "1.36")
    install_kubelet("v1.99.0")
    in_process("machine", "record", file, "--force")
    newer = in_process("doctor", "--machine", file)

    assert " and the version of the kubelet (v1.35.8) in " in recorded.stderr
    assert json.loads(run.stdout)["kubernetes"] == "1.35"
    assert f"the kubelet in {file} is v1.35.8" in run.stderr
    assert json.loads(given.stdout)["kubernetes"] == "1.36"
    assert "Kubernetes 1.99 is not known: the answers are those of 1.38" in " ".join(newer.stderr.split())


@pytest.mark.parametrize(("words", "release"), [(("--from", "1.36"), "1.36"), ((), "1.35")])
def test_an_upgrade_is_checked_from_the_recorded_kubelet(tmp_path, install_kubelet, words, release):
    install_kubelet("v1.35.8")
    in_process("machine", "record", tmp_path / "host.tar.gz")

    run = in_process("upgrade-check", "--machine", tmp_path / "host.tar.gz", "--to", "1.37", *words)

    assert run.returncode == 0, run.stderr
    assert f"From Kubernetes {release} to 1.37" in run.stdout


def test_without_a_known_kubelet_an_upgrade_needs_the_present_release():
    run = in_process("upgrade-check", "--machine", SERVER, "--to", "1.37")

    assert run.returncode == 2
    assert "the release of the present kubelet is not known: add --from VERSION" in run.stderr


def test_the_kubelets_view_is_that_of_all_releases():
    old = in_process("machine", "show", SERVER, "--kubelet", "--kubernetes-version", "1.33")
    new = in_process("machine", "show", SERVER, "--kubelet")

    assert (old.returncode, old.stdout) == (0, new.stdout)
    assert "all known releases of the kubelet see a machine alike" in old.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--kubernetes-version", "1.35"), "add --kubelet"),
        (("--kubelet", "--kubernetes-version", "new"), '"new" is not a version of Kubernetes'),
    ],
)
def test_a_release_without_the_kubelets_view_is_refused(words, message):
    run = in_process("machine", "show", SERVER, *words)

    assert run.returncode == 2
    assert message in run.stderr


def test_an_existing_file_is_overwritten_only_with_force(tmp_path):
    file = tmp_path / "host.tar.gz"
    file.write_text("precious")

    rejected = in_process("machine", "record", file)
    kept = file.read_text()
    forced = in_process("machine", "record", "--force", file)

    assert (rejected.returncode, kept) == (1, "precious")
    assert rejected.stderr == f"alignup: {file} already exists. Choose another file, or overwrite it with --force.\n"
    assert forced.returncode == 0
    assert load(file).cpus == discover().cpus


@pytest.mark.parametrize(
    ("file", "root", "code", "message"),
    [
        pytest.param("no/such/dir/host.tar.gz", "/", 1, "no/such/dir is not a directory", id="a missing directory"),
        pytest.param(".", "/", 1, "is a directory", id="a directory"),
        pytest.param("host.tar.gz", "nowhere", 2, "nowhere", id="a missing root"),
        pytest.param("host.tar.gz", ".", 2, "has no online CPU", id="a root without a machine"),
    ],
)
def test_a_failed_recording_leaves_nothing_behind(file, root, code, message, tmp_path):
    run = in_process("machine", "record", file, "--root", root, cwd=tmp_path)

    assert run.returncode == code
    assert run.stderr.startswith("alignup: ")
    assert message in run.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_wider_terminal_is_used():
    wide = in_process("machine", "show", SERVER, env={"COLUMNS": "100"})

    assert max(map(len, wide.stdout.splitlines())) == 100


LOCALITY = RECORDED.parent / "locality"
DGX2 = LOCALITY / "hwloc-nvidia-dgx2.xml"


def test_json_has_every_pair_of_devices_and_reads_back(tmp_path):
    run = in_process("machine", "show", DGX2, "-o", "json")
    file = tmp_path / "machine.json"
    file.write_text(run.stdout, encoding="utf-8")

    pairs = json.loads(run.stdout)["pairs"]
    assert len(pairs) == 16 * 15 // 2
    assert pairs[0] == {"devices": ["0000:34:00.0", "0000:36:00.0"], "pcie": "PIX", "link": "NV6"}
    assert load(file) == load(DGX2)


def test_a_flat_machine_says_so_in_json():
    run = in_process("machine", "show", LOCALITY / "sysfs-h200-1gpu-vm.txt", "-o", "json")

    assert json.loads(run.stdout)["pcie"] == "flat: cannot say"


def test_links_are_added_to_a_machine(tmp_path):
    file = tmp_path / "machine.yaml"
    file.write_text(
        "alignup: machine/v1\ncpus:\n- {socket: 0, node: 0, cores: '0 1'}\nnodes:\n- {id: 0}\npci:\n"
        "- {address: '0000:10:1c.0', class: 0x030200, node: 0}\n- {address: '0000:10:1b.0', class: 0x020000, node: 0}\n"
    )
    alone = in_process("machine", "show", file, "--matrix")
    added = in_process("machine", "show", file, "--matrix", "--links", LOCALITY / "aws-p4d-24xl-topo.xml")

    assert "PCIe: no PCIe tree recorded" in alone.stdout
    assert "GPU0  X     PIX" in added.stdout
    assert (added.returncode, added.stderr) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(
            [SERVER, "--links", LOCALITY / "aws-p4d-24xl-topo.xml"], "has no device of this machine", id="other"
        ),
        pytest.param([SERVER, "--links", DGX2], "describes a whole machine", id="a machine as links"),
        pytest.param([SERVER, "--links", "missing.xml"], "does not exist", id="a missing file"),
        pytest.param([SERVER, "--matrix", "-o", "json"], "-o json has all pairs", id="a matrix as JSON"),
        pytest.param(
            [LOCALITY / "smi-dgx1-v100.txt", "--links", LOCALITY / "smi-dgx1-v100.txt"], "but no CPUs", id="links alone"
        ),
    ],
)
def test_unusable_links_are_an_error(arguments, message):
    run = in_process("machine", "show", *arguments)

    assert run.returncode == 2
    assert message in " ".join(run.stderr.split())
    assert "Traceback" not in run.stderr
