"""Read the inputs that commands share: a machine, a configuration, the state of a node, workloads.

Invalid input raises an :class:`~alignup.cli.app.InputError` that says what is wrong, where, and what to do.
"""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, NamedTuple

from alignup.align.errors import (
    OWN_LIMIT,
    AlignError,
    ConfigurationError,
    DocumentError,
    FileFieldError,
    ManifestError,
    Problem,
    SettingsError,
)
from alignup.align.host import Host
from alignup.align.machine import Machine
from alignup.cli.app import InputError
from alignup.cli.configuration_origin import ConfigurationPlace
from alignup.cli.machine import load_machine, machine_place
from alignup.cli.options import HostOptions, NodeOptions
from alignup.kubernetes import configuration
from alignup.kubernetes.configuration import Configuration, ConfigurationText, StartupStage
from alignup.kubernetes.manifests import workloads as manifests
from alignup.kubernetes.manifests.workloads import Workload
from alignup.machines import machine_source

MAX_CONFIG = 1 << 20  #: bytes of a configuration file
_GIVE_CONFIGURATION = (
    "Give a KubeletConfiguration of kubelet.config.k8s.io/v1beta1, the answer of a kubelet's /configz, "
    "a kubelet-config ConfigMap or an OpenShift KubeletConfig."
)
_GIVE_DROP_IN = "Give drop-ins of kind KubeletConfiguration, kubelet.config.k8s.io/v1beta1."
_GIVE_FIELD = "Give a field of KubeletConfiguration v1beta1, such as topologyManagerPolicy=restricted."
WRITABLE = "Give a file that can be written."
_FIX_VALUE = "Fix the value there, or try another one with --set."
_RUN_DOCTOR = "Run 'alignup doctor' to see what the kubelet reports."
_RAISE_LIMIT = "Raise the kubelet's limit with --set topologyManagerPolicyOptions.max-allowable-numa-nodes={}"
#: Startup stages whose names are not self-explanatory.
_STAGE_TEXTS = {str(StartupStage.DEFAULTING_PANIC): "the kubelet panics while it sets defaults"}
_EMPTY = {"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration"}


class HostInput(NamedTuple):
    host: Host
    configuration: Configuration
    notes: tuple[str, ...] = ()  #: what was ignored, and what is unknown


def read_machine(machine: str | None, devices: tuple[str, ...] = ()) -> Machine:
    place = machine_place(machine, option="--machine")
    with input_errors(place, advice="See 'alignup machine show --help' for the forms of MACHINE."):
        found = load_machine(machine)
    return add_devices(found, devices)


def add_devices(machine: Machine, devices: tuple[str, ...]) -> Machine:
    """*machine* with the devices of ``--devices``."""
    with input_errors("in --devices", advice=f"Use a value like {machine_source.DEVICE_EXAMPLE}."):
        return machine_source.add_devices(machine, devices)


def read_configuration(
    config: Path | None, changes: tuple[str, ...] = (), *, config_dir: Path | None = None
) -> Configuration:
    """Return the configuration; its warnings include what is unknown about it."""
    return _parse_configuration(ConfigurationPlace(configuration_text(config, changes, config_dir=config_dir), changes))


def _parse_configuration(place: ConfigurationPlace) -> Configuration:
    source = place.source
    with input_errors(f"in {source.name}", advice=_GIVE_CONFIGURATION, locate=place.locate):
        found = configuration.read(source.text, name=source.name)
    return replace(found, warnings=(*source.notes, *(f"{source.name}: {warning}" for warning in found.warnings)))


def configuration_text(
    config: Path | None, changes: tuple[str, ...] = (), *, config_dir: Path | None = None
) -> ConfigurationText:
    """Return the text of ``--config`` with the drop-ins of ``--config-dir`` and the overrides of ``--set``."""
    with input_errors("in --set", advice=_GIVE_FIELD):
        for change in changes:
            configuration.parse_override(change)
    if config is not None and config_dir is None and config.is_dir():
        config, config_dir = None, config
    source = ConfigurationText(json.dumps(_EMPTY).encode(), "--set")
    if config is not None:
        text = _read_file(config, option="--config")
        with input_errors(f"in {config}", advice=_GIVE_CONFIGURATION):
            source = configuration.unwrap(text, name=str(config))
    if config_dir is not None:
        source = _with_drop_ins(source if config else None, config_dir)
    with input_errors(f"in {source.name}", advice=_GIVE_CONFIGURATION):
        return replace(source, text=configuration.apply_overrides(source.text, changes)) if changes else source


def _with_drop_ins(base: ConfigurationText | None, directory: Path) -> ConfigurationText:
    advice = "Give a directory of drop-ins, such as /etc/kubernetes/kubelet.conf.d."
    with input_errors("in --config-dir", advice=advice):
        paths = configuration.find_drop_ins(directory)
    drop_ins = []
    for path in paths:
        text = _read_file(path, option="--config-dir")
        with input_errors(f"in {path}", advice=_GIVE_DROP_IN):
            drop_ins.append(configuration.parse_drop_in(text, name=str(path)))
    with input_errors(f"in {base.name if base else directory}", advice=_GIVE_CONFIGURATION):
        return configuration.merge_drop_ins(base, drop_ins, directory=str(directory))


def _read_file(path: Path, *, option: str) -> bytes:
    advice = "Give a KubeletConfiguration, such as the node's /var/lib/kubelet/config.yaml."
    with input_errors(f"in {option}", advice=advice), path.open("rb") as file:
        text = file.read(MAX_CONFIG + 1)
    if len(text) > MAX_CONFIG:
        what = f"{path} is larger than {MAX_CONFIG >> 20} MiB {OWN_LIMIT}"
        raise InputError(what, where=f"in {option}", advice=advice)
    return text


def read_host(options: HostOptions) -> HostInput:
    machine = read_machine(options.machine, options.devices)
    found = build_host(machine, options)
    if options.state is not None:
        return _with_state(found, options.state, options.pods)
    if options.pods:
        raise InputError("--pods requires --state", advice="Add --state DIR.")
    return found


def build_host(machine: Machine, options: NodeOptions) -> HostInput:
    """An empty host with the configuration of *options*."""
    source = configuration_text(options.config, options.changes, config_dir=options.config_dir)
    place = ConfigurationPlace(source, options.changes)
    read = _parse_configuration(place)
    given = options.config or options.config_dir
    where = f"with {given or 'this configuration'} on {options.machine or 'this machine'}"
    with input_errors(where, advice=_RUN_DOCTOR, locate=place.locate):
        settings = configuration.host_settings(read, machine)
    many = len(machine.nodes) > settings.topology.options.max_nodes
    advice = _RAISE_LIMIT.format(len(machine.nodes)) if many else _RUN_DOCTOR
    with input_errors(where, advice=advice, locate=place.locate):
        try:
            return HostInput(Host(machine, settings), read, read.warnings)
        except SettingsError as error:
            errors = () if many else configuration.startup_errors(read, machine)
            raise next((one for one in errors if str(error) in str(one)), error) from error


def read_workloads(files: tuple[str, ...]) -> tuple[tuple[Workload, ...], tuple[str, ...]]:
    """Return the workloads in *files*, and notes on what was skipped. With *keep*, pods carry their manifests."""
    with input_errors("", advice="Give manifests as kubectl takes them: files, directories, or - for standard input."):
        reading = manifests.read_paths(files, standard_input())
    return reading.workloads, reading.warnings


def standard_input() -> BinaryIO | None:
    """Standard input; ``None`` when it is closed."""
    return sys.stdin.buffer if sys.stdin else None


def select_workloads(workloads: Sequence[Workload], name: str | None, *, files: Sequence[str]) -> list[Workload]:
    chosen = [work for work in workloads if name in (None, work.name, work.title, work.prefix)]
    if not chosen:
        known = ", ".join(work.title for work in workloads)
        named = ", ".join(files)
        raise InputError(
            f"workload {name!r} not found; {named} has {known}" if known else "no workloads found",
            where="in --pod" if known else f"in {named}",
            advice="Give a file with a Pod, a Deployment, a Job or another object with a pod template.",
        )
    return chosen


def _with_state(node: HostInput, directory: Path, pod_files: tuple[str, ...]) -> HostInput:
    from alignup.kubernetes.kubelet_files import ledger, state_files  # noqa: PLC0415 - only for --state

    workloads, skipped = read_workloads(pod_files) if pod_files else ((), ())
    nameless = tuple(
        f"{work.source}: skipped {work.kind} {work.name}: without a uid it cannot be found in the state files"
        for work in workloads
        if not work.has_uid
    )
    pods = tuple(work.pod for work in workloads if work.has_uid and not work.finished)
    where = f"in --state {directory}"
    with input_errors(where, advice="Give a directory like /var/lib/kubelet, with cpu_manager_state in it."):
        files = state_files.read_state_files(directory, gates=node.host.settings.gates)
    with input_errors(where, advice="Run 'alignup doctor', which checks and repairs state files."):
        restored = ledger.restore_ledger(node.host, files, pods)
    host = Host(node.host.machine, node.host.settings, ledger=restored.ledger)
    advice = {
        ledger.GapKind.PODS: "; give them with --pods",
        ledger.GapKind.DEVICE_TOPOLOGY: "; give --devices {resource}=...",
    }
    gaps = (f"{gap.text}{advice.get(gap.kind, '').format(resource=gap.resource)}" for gap in restored.gaps)
    return HostInput(host, node.configuration, (*node.notes, *skipped, *nameless, *gaps))


def check_writable(option: str, path: Path | None) -> None:
    """Raise an ``InputError`` now if *path* cannot be written, not after a long simulation."""
    if path is None:
        return
    with input_errors(f"in {option}", advice=WRITABLE):
        is_new = not path.exists()
        path.open("ab").close()
        if is_new:
            path.unlink()


@contextmanager
def input_errors(where: str, *, advice: str = "", locate: Callable[[Problem], str] = str) -> Iterator[None]:
    """Raise errors about the input as an :class:`InputError`; *locate* puts the place before a problem."""
    try:
        yield
    except ConfigurationError as error:
        stage = error.stage.replace("_", " ")
        own_advice = (error.advice or "").rstrip(".")
        loaded = advice == _GIVE_CONFIGURATION and error.stage != StartupStage.LOAD
        own = all(problem.what.endswith(OWN_LIMIT) for problem in error.problems)
        remark = "" if own else _STAGE_TEXTS.get(error.stage, f"the kubelet stops at {stage}")
        raise InputError(
            *map(locate, error.problems),
            # Located problems have the file already.
            where=remark if locate is not str and where.startswith("in ") else _with_remark(where, remark),
            advice=f"{own_advice[0].upper()}{own_advice[1:]}." if own_advice else (_FIX_VALUE if loaded else advice),
        ) from error
    except ManifestError as error:
        first = error.problems[0]
        one = len(error.problems) == 1
        raise InputError(
            *([str(first.problem)] if one else error.lines()), where=f"in {first.where}" if one else "", advice=advice
        ) from error
    except DocumentError as error:
        raise InputError(error.what, where=f"{where}, line {error.line}", advice=advice) from error
    except FileFieldError as error:
        if not error.file:
            raise InputError(str(error), where=where, advice=advice) from error
        line = f", line {error.line}" if error.line else ""
        what = f"{error.field}: {error.what}" if error.field else error.what
        raise InputError(what, where=f"in {error.file}{line}", advice=advice) from error
    except AlignError as error:
        raise InputError(str(error), where=where, advice=advice) from error
    except OSError as error:
        name = f"{error.filename}: " if isinstance(error.filename, str) else ""
        raise InputError(f"{name}{error.strerror or error}", where=where, advice=advice) from error


def _with_remark(where: str, remark: str) -> str:
    return f"{where} ({remark})" if remark else where
