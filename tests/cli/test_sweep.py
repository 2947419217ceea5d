"""``alignup sweep``."""

import csv
import io

import pytest

from alignup.cli import sweep_output
from alignup.simulate.executors import EngineError, SerialEngine
from tests.cli.commands import in_process
from tests.html_reader import rows_of

SPEC = """
apiVersion: alignup.dev/v1
kind: Sweep
machines:
- name: m
  count: 2
  machine: "pack:2 numa:1(memory=16GiB) core:4 pu:1"
configurations:
- {name: none, set: [topologyManagerPolicy=none]}
- {name: static, set: [cpuManagerPolicy=static]}
strategies: [alignup]
seeds: 2
workload: {generate: telco, pods: 10, load: 2}
"""


@pytest.fixture
def spec(tmp_path):
    (tmp_path / "spec.yaml").write_text(SPEC)
    return tmp_path / "spec.yaml"


def sweep(spec, *arguments):
    return in_process("sweep", spec, "--engine", "serial", "--results", spec.with_suffix(".csv"), *arguments)


def test_every_combination_is_a_row(spec):
    first = sweep(spec, "-o", "csv")
    again = sweep(spec, "-o", "csv")

    rows = list(csv.DictReader(io.StringIO(first.stdout)))
    assert (first.returncode, first.stderr) == (0, "")
    assert [(row["configuration"], row["seed"]) for row in rows] == [
        ("none", "0"),
        ("none", "1"),
        ("static", "0"),
        ("static", "1"),
    ]
    assert spec.with_suffix(".csv").read_text() == first.stdout == again.stdout


def test_configurations_with_which_a_kubelet_does_not_start_are_listed(spec):
    run = sweep(spec)

    assert run.stdout.startswith(f"4 combinations, in {spec.with_suffix('.csv')}\n")
    assert "mean of 2 seeds" in run.stdout
    assert "The kubelet does not start with" in run.stdout
    assert "  m  static  " in run.stdout


def test_a_configuration_has_the_release_of_its_kubelets(spec):
    """The gate MemoryManager is gone since 1.36, with which no kubelet starts."""
    gate = "set: [featureGates.MemoryManager=true]"
    older = f'- {{name: older, {gate}, kubernetes-version: "1.35"}}\n'
    newer = f'- {{name: newer, {gate}, kubernetes-version: "1.36"}}\n'
    text = SPEC.replace("- {name: none, set: [topologyManagerPolicy=none]}\n", older)
    spec.write_text(text.replace("- {name: static, set: [cpuManagerPolicy=static]}\n", newer))

    rows = list(csv.DictReader(io.StringIO(sweep(spec, "-o", "csv").stdout)))

    assert {row["configuration"]: bool(row["error"]) for row in rows} == {"older": False, "newer": True}


def test_html_has_the_means_of_the_results(spec, tmp_path):
    file = tmp_path / "sweep.html"

    run = sweep(spec, "-o", "csv", "--html", file)

    assert (run.returncode, run.stderr) == (0, f"Wrote {file}.\n")
    started = [int(row["started"]) for row in csv.DictReader(io.StringIO(run.stdout)) if not row["error"]]
    heads, first, *others = rows_of(file.read_text())
    cells = dict(zip(heads, first, strict=True))
    assert (cells["Configuration"], float(cells["Started"])) == ("none", sum(started) / 2)
    assert others[-1][:2] == ["m", "static"]
    again = sweep(spec, "--html", tmp_path / "missing" / "x")
    assert again.returncode == 2
    assert f"--html: {tmp_path}/missing/x: No such file or directory" in again.stderr


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        pytest.param("[alignup]", "[best]", 'strategies[0]: Unsupported value: "best"', id="strategy"),
        pytest.param("load: 2", "load: 0", "workload.load: Invalid value: 0: must be a number", id="load"),
        pytest.param("name: static", "name: none", "configurations: every name must be given once", id="names"),
    ],
)
def test_errors_name_the_place(spec, before, after, message):
    spec.write_text(SPEC.replace(before, after))

    run = sweep(spec)

    assert run.returncode == 2
    assert message in run.stderr


class FailingEngine(SerialEngine):
    """Gives up after two results."""

    def results(self, job, parcels):
        yield from map(job, parcels[:2])
        raise EngineError("no worker is left")


def test_a_sweep_whose_engine_gives_up_says_why_and_keeps_its_results(spec, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(sweep_output, "make_engine", lambda *_, **__: FailingEngine())
        run = sweep(spec)
    again = sweep(spec)

    file = spec.with_suffix(".csv")
    assert run.returncode == 1
    assert run.stderr == (
        f"alignup: no worker is left\n  2 of 4 combinations are in {file}; run the command again to continue.\n"
    )
    assert again.returncode == 0


def test_an_address_is_for_dask(spec):
    run = sweep(spec, "--dask", "tcp://127.0.0.1:1")

    assert run.returncode == 2
    assert "--dask requires --engine dask" in run.stderr


TRACE = """
apiVersion: alignup.dev/v1
kind: Trace
events:
- {at: 0, arrive: a, requests: {cpu: 1}, gang: g}
- {at: 0, arrive: b, requests: {cpu: 1}, nodeSelector: {kubernetes.io/hostname: m-0}}
"""


KUBELET = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxPods: 10\n"


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("trace.yaml", "cpu: 1", "cpu: 2"),
        ("trace.yaml", "gang: g", "gang: h"),
        ("trace.yaml", "m-0", "m-1"),
        ("kubelet.yaml", "maxPods: 10", "maxPods: 11"),
    ],
)
def test_a_changed_file_is_another_sweep(spec, tmp_path, name, before, after):
    text = SPEC.replace("  count: 2", "  count: 2\n  config: kubelet.yaml")
    spec.write_text(text.replace("{generate: telco, pods: 10, load: 2}", "{trace: trace.yaml}"))
    files = {"trace.yaml": TRACE, "kubelet.yaml": KUBELET}
    for file, content in files.items():
        (tmp_path / file).write_text(content)
    assert sweep(spec).returncode == sweep(spec).returncode == 0
    (tmp_path / name).write_text(files[name].replace(before, after))

    run = sweep(spec)

    assert run.returncode == 2
    assert "has a result of another sweep" in run.stderr


def test_without_dask_the_extra_is_named(spec, monkeypatch):
    monkeypatch.setattr(sweep_output, "find_spec", lambda _: None)

    run = sweep(spec, "--engine", "dask")

    assert run.returncode == 1
    assert run.stderr.startswith(
        "alignup: distributed is not installed\n  Run pip install '.[fleet]' in a clone of the repository"
    )


def test_configurations_have_the_release_of_the_command(spec):
    spec.write_text(SPEC.replace("set: [cpuManagerPolicy=static]", "set: [featureGates.MemoryManager=true]"))

    assert "unrecognized feature gate: MemoryManager" in sweep(spec).stdout
    spec.with_suffix(".csv").unlink()
    older = sweep(spec, "--kubernetes-version", "1.35")
    assert "The kubelet does not start with" not in older.stdout
    assert sweep(spec, "--kubernetes-version", "new").returncode == 2
