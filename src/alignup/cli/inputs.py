"""Reading what commands are given, in one way for all of them: a machine, a configuration, the state of a node, pods.

Whatever is wrong with them ends in a :class:`~alignup.cli.app.InputError` that says what, where and what to do.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import click

from alignup.align.errors import AlignError, ConfigurationError, DocumentError, ManifestError, ParseError
from alignup.align.host import Host
from alignup.align.machine import Machine
from alignup.align.workload import Pod, names
from alignup.cli.app import InputError, escape_control
from alignup.cli.machine import load_machine
from alignup.cli.options import HostOptions
from alignup.discover import device_spec
from alignup.kube import configuration, documents, manifests
from alignup.kube.configuration import Configuration, StartupStage
from alignup.kube.documents import NumberLiteral
from alignup.kube.manifests import Workload
from alignup.state.kubelet import restore, state_dir

#: The longest file of a kind that a person writes.
MAX_CONFIG = 1 << 20
_A_CONFIGURATION = "Give a KubeletConfiguration of kubelet.config.k8s.io/v1beta1."
_A_VALUE = "Correct it there, or try another value with --set."
_DOCTOR = "'alignup doctor' says what a kubelet would say to it."
_MANY = "A kubelet takes more when told so: --set topologyManagerPolicyOptions.max-allowable-numa-nodes={}"
#: Stages of a kubelet's start whose names say little.
_ENDS = {str(StartupStage.DEFAULTING_PANIC): "the kubelet panics as it fills in defaults"}
_EMPTY = {"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration"}
#: Fields that ``--set`` takes as YAML has them; all others are texts.
_PLAIN = {
    *("maxPods", "podsPerCore", "cgroupsPerQOS", "mergeDefaultEvictionSettings", "localStorageCapacityIsolation"),
    *("seccompDefault", "cpuCFSQuota", "podPidsLimit", "containerLogMaxFiles", "singleProcessOOMKill"),
}
_YAML = {"featureGates", "reservedMemory", "enforceNodeAllocatable", *_PLAIN}


@dataclass(frozen=True, slots=True)
class HostInput:
    """A node to decide on."""

    host: Host
    configuration: Configuration
    notes: tuple[str, ...] = ()  #: what was overlooked, and what is not known


def read_machine(machine: str | None, devices: tuple[str, ...] = ()) -> Machine:
    """The machine that ``--machine`` and ``--devices`` describe."""
    where = f"in --machine {machine}" if machine else "on this machine"
    with input_errors(where, advice="See 'alignup machine show --help' for what a machine can be."):
        found = load_machine(machine)
    with input_errors("in --devices", advice=f"Write it like {device_spec.EXAMPLE}."):
        return device_spec.add_devices(found, devices)


def read_configuration(config: Path | None, changes: tuple[str, ...] = ()) -> Configuration:
    """The configuration of ``--config``, with the values of ``--set``."""
    text, name = configuration_text(config, changes)
    with input_errors(f"in {name}", advice=_A_CONFIGURATION):
        return configuration.read(text, name=name)


def configuration_text(config: Path | None, changes: tuple[str, ...] = ()) -> tuple[bytes, str]:
    """The text of ``--config`` with the values of ``--set``, not read yet, and what to call it in messages."""
    name = str(config) if config else "--set"
    text = _read(config, "--config") if config else json.dumps(_EMPTY).encode()
    with input_errors(f"in {name}", advice=_A_CONFIGURATION):
        return _changed(text, changes) if changes else text, name


def read_host(given: HostOptions) -> HostInput:
    """The node that all the options together describe."""
    machine = read_machine(given.machine, given.devices)
    read = read_configuration(given.config, given.changes)
    where = f"with {given.config or 'this configuration'} on {given.machine or 'this machine'}"
    with input_errors(where, advice=_DOCTOR):
        settings = configuration.host_settings(read, machine)
    many = len(machine.nodes) > settings.topology.options.max_nodes
    with input_errors(where, advice=_MANY.format(len(machine.nodes)) if many else _DOCTOR):
        host = Host(machine, settings)
    notes = tuple(f"{given.config or '--set'}: {warning}" for warning in read.warnings)
    if given.state is None:
        if given.pods:
            raise InputError("--pods names the pods of a node, but there is no --state", advice="Add --state DIR.")
        return HostInput(host, read, notes)
    return _restored(HostInput(host, read, notes), given)


def read_workloads(files: tuple[str, ...], *, keep: bool = False) -> tuple[tuple[Workload, ...], tuple[str, ...]]:
    """The workloads in *files*, and what was skipped; their pods *keep* their manifests for whoever is to run them."""
    with input_errors(
        "", advice="Give manifests as kubectl takes them: files, directories, or - for what is piped in."
    ):
        reading = manifests.read_paths(files, standard_input(), keep=keep)
    return reading.workloads, reading.warnings


def standard_input() -> BinaryIO | None:
    """What is piped in; ``None``: the program was started without an input."""
    return sys.stdin.buffer if sys.stdin else None


def select_workloads(workloads: Sequence[Workload], name: str | None, *, files: Sequence[str]) -> list[Workload]:
    """All of them, or the one of that name; there has to be one."""
    chosen = [work for work in workloads if name in (None, work.name)]
    if not chosen:
        known = ", ".join(work.name for work in workloads)
        raise InputError(
            f"there is no workload {name!r}, only {known}" if known else "there is no workload to judge",
            where=f"in {', '.join(files)}",
            advice="Give a file with a Pod, Deployment, StatefulSet, ReplicaSet, DaemonSet, Job or CronJob.",
        )
    return chosen


def ignored_requests(node: HostInput, pods: Iterable[Pod]) -> tuple[str, ...]:
    """What *pods* ask for and a kubelet passes over in silence, a sentence each."""
    pods = tuple(pods)
    gates, offered = node.host.settings.gates, node.host.ledger.books["device"].handled
    asked = {name for pod in pods for one in pod.everyone for name in one.resources.requests if names.is_extended(name)}
    told = [
        f"nobody offers {name} here, and a kubelet lets pods that ask for it pass; if somebody does, give "
        f"--devices {name}=..."
        for name in sorted(asked - offered)
    ]
    whole = [pod for pod in pods if pod.resources.requests or pod.resources.limits]
    if whole and not (gates.on("PodLevelResources") and gates.on("PodLevelResourceManagers")):
        told.append(
            f"{whole[0].name}{' and others have' if len(whole) > 1 else ' has'} resources as a pod (spec.resources): "
            "no CPUs or memory are aligned for it without feature gate PodLevelResourceManagers"
        )
    return tuple(told)


def print_notes(notes: tuple[str, ...]) -> None:
    """Say what was overlooked, a line each."""
    for note in notes:
        click.echo(f"note: {escape_control(note)}", err=True)


def _restored(node: HostInput, given: HostOptions) -> HostInput:
    """The same node, with the pods its state files tell of."""
    if given.state is None:
        return node
    pods, strangers = _running(given.pods) if given.pods else ((), ())
    where = f"in --state {given.state}"
    with input_errors(
        where, advice="Give a directory like /var/lib/kubelet, with cpu_manager_state and the like in it."
    ):
        files = state_dir.read_dir(given.state, gates=node.host.settings.gates)
    with input_errors(where, advice="'alignup doctor' looks into state files, and can repair them."):
        restored = restore.restore_ledger(node.host, files, pods)
    host = Host(node.host.machine, node.host.settings, ledger=restored.ledger)
    return HostInput(host, node.configuration, (*node.notes, *strangers, *restored.gaps))


def _running(files: tuple[str, ...]) -> tuple[tuple[Pod, ...], tuple[str, ...]]:
    """The pods in *files* that may hold something, and what was left out."""
    workloads, skipped = read_workloads(files)
    strangers = [
        f"{work.source}: {work.kind} {work.name} tells no uid, so it cannot be found in the state files; left out"
        for work in workloads
        if not work.known
    ]
    return tuple(work.pod for work in workloads if work.known and not work.finished), (*skipped, *strangers)


@contextmanager
def input_errors(where: str, *, advice: str = "") -> Iterator[None]:
    """Make a complaint of what is wrong with the input."""
    try:
        yield
    except ConfigurationError as error:
        stage = error.stage.replace("_", " ")
        loaded = advice == _A_CONFIGURATION and error.stage != StartupStage.LOAD
        raise InputError(
            *(str(problem) for problem in error.problems),
            where=f"{where} ({_ENDS.get(error.stage, f'the kubelet stops at {stage}')})",
            advice=_sentence(error.advice or "") or (_A_VALUE if loaded else advice),
        ) from error
    except ManifestError as error:
        first = error.problems[0]
        one = len(error.problems) == 1
        raise InputError(
            *([str(first.problem)] if one else error.lines()), where=f"in {first.where}" if one else "", advice=advice
        ) from error
    except DocumentError as error:
        raise InputError(error.what, where=f"{where}, line {error.line}", advice=advice) from error
    except AlignError as error:
        raise InputError(str(error), where=where, advice=advice) from error
    except OSError as error:
        name = f"{error.filename}: " if isinstance(error.filename, str) else ""
        raise InputError(f"{name}{error.strerror or error}", where=where, advice=advice) from error


def _sentence(advice: str) -> str:
    """*advice* as the line it becomes."""
    return f"{advice[:1].upper()}{advice[1:].rstrip('.')}." if advice else ""


def _read(path: Path, option: str) -> bytes:
    """A file somebody wrote by hand."""
    advice = "Give a KubeletConfiguration, such as /var/lib/kubelet/config.yaml of the node."
    with input_errors(f"in {option}", advice=advice), path.open("rb") as file:
        text = file.read(MAX_CONFIG + 1)
    if len(text) > MAX_CONFIG:
        raise InputError(f"{path} is larger than {MAX_CONFIG >> 20} MiB", where=f"in {option}", advice=advice)
    return text


def _changed(text: bytes, changes: tuple[str, ...]) -> bytes:
    """The configuration with other values, as JSON."""
    found = documents.read(text)
    value = found[0].value if found and found[0].number == 1 else {}
    document = dict(value) if isinstance(value, Mapping) else {}
    for change in changes:
        path, equals, said = change.partition("=")
        if not equals or not path.strip("."):
            raise ParseError(f"--set {change}: write it like topologyManagerPolicy=restricted")
        top, *rest = path.split(".", 1)
        parsed = documents.read(said) if top in _YAML else ()
        new: object = parsed[0].value if parsed else (None if top in _YAML else said)
        if rest:
            inner = document.get(top)
            new = {**(inner if isinstance(inner, Mapping) else {}), rest[0]: new}
        document[top] = new
    return _json(document).encode()


def _json(value: object) -> str:
    """*value* as JSON, numbers as they were written."""
    match value:
        case Mapping():
            return "{" + ",".join(f"{json.dumps(str(key))}:{_json(one)}" for key, one in value.items()) + "}"
        case list() | tuple():
            return "[" + ",".join(map(_json, value)) + "]"
        case NumberLiteral():
            return str(value)
        case _:
            return json.dumps(value)
