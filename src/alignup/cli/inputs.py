"""Read the inputs that commands share: a machine, a configuration, the state of a node, workloads.

Invalid input raises an :class:`~alignup.cli.app.InputError` that says what is wrong, where, and what to do.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from alignup.align.errors import AlignError, ConfigurationError, DocumentError, ManifestError, ParseError
from alignup.align.host import Host
from alignup.align.machine import Machine
from alignup.align.workload import Pod, names
from alignup.cli.app import InputError
from alignup.cli.machine import load_machine
from alignup.cli.options import HostOptions
from alignup.discover import device_spec
from alignup.kube import configuration, documents, manifests
from alignup.kube.configuration import Configuration, StartupStage
from alignup.kube.manifests import Workload
from alignup.state.kubelet import restore, state_dir

MAX_CONFIG = 1 << 20  #: bytes of a configuration file
_GIVE_CONFIGURATION = "Give a KubeletConfiguration of kubelet.config.k8s.io/v1beta1."
_FIX_VALUE = "Fix the value there, or try another one with --set."
_RUN_DOCTOR = "Run 'alignup doctor' to see what the kubelet reports."
_RAISE_LIMIT = "Raise the kubelet's limit with --set topologyManagerPolicyOptions.max-allowable-numa-nodes={}"
#: Startup stages whose names are not self-explanatory.
_STAGE_TEXTS = {str(StartupStage.DEFAULTING_PANIC): "the kubelet panics while it sets defaults"}
_EMPTY = {"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration"}
#: Fields whose ``--set`` value is parsed as YAML; all others are strings.
_YAML_FIELDS = {
    *("featureGates", "reservedMemory", "enforceNodeAllocatable"),
    *("maxPods", "podsPerCore", "cgroupsPerQOS", "mergeDefaultEvictionSettings", "localStorageCapacityIsolation"),
    *("seccompDefault", "cpuCFSQuota", "podPidsLimit", "containerLogMaxFiles", "singleProcessOOMKill"),
}


@dataclass(frozen=True, slots=True)
class HostInput:
    """A node, as the options describe it."""

    host: Host
    configuration: Configuration
    notes: tuple[str, ...] = ()  #: what was ignored, and what is unknown


def read_machine(machine: str | None, devices: tuple[str, ...] = ()) -> Machine:
    where = f"in --machine {machine}" if machine else "on this machine"
    with input_errors(where, advice="See 'alignup machine show --help' for the forms of MACHINE."):
        found = load_machine(machine)
    with input_errors("in --devices", advice=f"Use a value like {device_spec.EXAMPLE}."):
        return device_spec.add_devices(found, devices)


def read_configuration(config: Path | None, changes: tuple[str, ...] = ()) -> Configuration:
    """Read the configuration of ``--config`` with the overrides of ``--set``."""
    text, name = configuration_text(config, changes)
    with input_errors(f"in {name}", advice=_GIVE_CONFIGURATION):
        return configuration.read(text, name=name)


def configuration_text(config: Path | None, changes: tuple[str, ...] = ()) -> tuple[bytes, str]:
    """Return the text of ``--config`` with the overrides of ``--set``, and its name for messages."""
    name = str(config) if config else "--set"
    text = _read(config, "--config") if config else json.dumps(_EMPTY).encode()
    with input_errors(f"in {name}", advice=_GIVE_CONFIGURATION):
        return _apply_overrides(text, changes) if changes else text, name


def read_host(options: HostOptions) -> HostInput:
    """Read the node that all the options together describe."""
    machine = read_machine(options.machine, options.devices)
    read = read_configuration(options.config, options.changes)
    where = f"with {options.config or 'this configuration'} on {options.machine or 'this machine'}"
    with input_errors(where, advice=_RUN_DOCTOR):
        settings = configuration.host_settings(read, machine)
    many = len(machine.nodes) > settings.topology.options.max_nodes
    with input_errors(where, advice=_RAISE_LIMIT.format(len(machine.nodes)) if many else _RUN_DOCTOR):
        host = Host(machine, settings)
    notes = tuple(f"{options.config or '--set'}: {warning}" for warning in read.warnings)
    if options.state is not None:
        return _with_state(HostInput(host, read, notes), options.state, options.pods)
    if options.pods:
        raise InputError("--pods requires --state", advice="Add --state DIR.")
    return HostInput(host, read, notes)


def read_workloads(files: tuple[str, ...], *, keep: bool = False) -> tuple[tuple[Workload, ...], tuple[str, ...]]:
    """Return the workloads in *files*, and notes on what was skipped. With *keep*, pods carry their manifests."""
    with input_errors("", advice="Give manifests as kubectl takes them: files, directories, or - for standard input."):
        reading = manifests.read_paths(files, standard_input(), keep=keep)
    return reading.workloads, reading.warnings


def standard_input() -> BinaryIO | None:
    """Standard input; ``None`` when it is closed."""
    return sys.stdin.buffer if sys.stdin else None


def select_workloads(workloads: Sequence[Workload], name: str | None, *, files: Sequence[str]) -> list[Workload]:
    """Return all workloads, or those with that name; raise when there are none."""
    chosen = [work for work in workloads if name in (None, work.name)]
    if not chosen:
        known = ", ".join(work.name for work in workloads)
        raise InputError(
            f"workload {name!r} not found; found {known}" if known else "no workloads found",
            where=f"in {', '.join(files)}",
            advice="Give a file with a Pod, Deployment, StatefulSet, ReplicaSet, DaemonSet, Job or CronJob.",
        )
    return chosen


def ignored_requests(node: HostInput, pods: Iterable[Pod]) -> tuple[str, ...]:
    """Describe the requests of *pods* that a kubelet silently ignores."""
    pods = tuple(pods)
    gates, offered = node.host.settings.gates, node.host.ledger.devices.handled
    requested = {
        name for pod in pods for one in pod.all_containers for name in one.resources.requests if names.is_extended(name)
    }
    notes = [
        f"no device plugin offers {name}, and a kubelet admits pods regardless of such requests; "
        f"declare the devices with --devices {name}=..."
        for name in sorted(requested - offered)
    ]
    pod_level = [pod for pod in pods if pod.resources.requests or pod.resources.limits]
    if pod_level and not (gates.on("PodLevelResources") and gates.on("PodLevelResourceManagers")):
        which = f"{pod_level[0].name} and others have" if len(pod_level) > 1 else f"{pod_level[0].name} has"
        notes.append(
            f"{which} pod-level resources (spec.resources): "
            "their CPUs and memory are not aligned without feature gate PodLevelResourceManagers"
        )
    return tuple(notes)


def _with_state(node: HostInput, directory: Path, pod_files: tuple[str, ...]) -> HostInput:
    """The same node with the pods in its state files."""
    pods, skipped_pods = _read_pods(pod_files) if pod_files else ((), ())
    where = f"in --state {directory}"
    with input_errors(where, advice="Give a directory like /var/lib/kubelet, with cpu_manager_state in it."):
        files = state_dir.read_dir(directory, gates=node.host.settings.gates)
    with input_errors(where, advice="Run 'alignup doctor', which checks and repairs state files."):
        restored = restore.restore_ledger(node.host, files, pods)
    host = Host(node.host.machine, node.host.settings, ledger=restored.ledger)
    return HostInput(host, node.configuration, (*node.notes, *skipped_pods, *restored.gaps))


def _read_pods(files: tuple[str, ...]) -> tuple[tuple[Pod, ...], tuple[str, ...]]:
    """The pods in *files* that may hold resources, and notes on those that were skipped."""
    workloads, skipped = read_workloads(files)
    skipped_pods = [
        f"{work.source}: skipped {work.kind} {work.name}: without a uid it cannot be found in the state files"
        for work in workloads
        if not work.has_uid
    ]
    return tuple(work.pod for work in workloads if work.has_uid and not work.finished), (*skipped, *skipped_pods)


@contextmanager
def input_errors(where: str, *, advice: str = "") -> Iterator[None]:
    """Turn errors in the input into :class:`InputError`."""
    try:
        yield
    except ConfigurationError as error:
        stage = error.stage.replace("_", " ")
        loaded = advice == _GIVE_CONFIGURATION and error.stage != StartupStage.LOAD
        raise InputError(
            *(str(problem) for problem in error.problems),
            where=f"{where} ({_STAGE_TEXTS.get(error.stage, f'the kubelet stops at {stage}')})",
            advice=_capitalize(error.advice or "") or (_FIX_VALUE if loaded else advice),
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


def _capitalize(advice: str) -> str:
    return f"{advice[:1].upper()}{advice[1:].rstrip('.')}." if advice else ""


def _read(path: Path, option: str) -> bytes:
    """Read a configuration file of limited size."""
    advice = "Give a KubeletConfiguration, such as the node's /var/lib/kubelet/config.yaml."
    with input_errors(f"in {option}", advice=advice), path.open("rb") as file:
        text = file.read(MAX_CONFIG + 1)
    if len(text) > MAX_CONFIG:
        raise InputError(f"{path} is larger than {MAX_CONFIG >> 20} MiB", where=f"in {option}", advice=advice)
    return text


def _apply_overrides(text: bytes, changes: tuple[str, ...]) -> bytes:
    """Apply ``--set`` overrides; the result is JSON."""
    found = documents.read(text)
    value = found[0].value if found and found[0].number == 1 else {}
    document = dict(value) if isinstance(value, Mapping) else {}
    for change in changes:
        path, equals, new_value = change.partition("=")
        if not equals or not path.strip("."):
            raise ParseError(f"--set {change}: no value; use an override like topologyManagerPolicy=restricted")
        top, *rest = path.split(".", 1)
        parsed = documents.read(new_value) if top in _YAML_FIELDS else ()
        new: object = parsed[0].value if parsed else (None if top in _YAML_FIELDS else new_value)
        if rest:
            inner = document.get(top)
            new = {**(inner if isinstance(inner, Mapping) else {}), rest[0]: new}
        document[top] = new
    return documents.to_json(document).encode()
