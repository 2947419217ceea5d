"""The inputs that commands share: a machine, a configuration, the state of a node, workloads.

Invalid input raises an :class:`~alignup.cli.app.InputError` that says what is wrong, where, and what to do.
"""

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import click

from alignup.align.devices.plugin_rules import PluginRule
from alignup.align.errors import (
    OWN_LIMIT,
    AlignError,
    ConfigurationError,
    DocumentError,
    FieldError,
    FileFieldError,
    ManifestError,
    Problem,
    ProblemKind,
    SettingsError,
)
from alignup.align.hint import Provider
from alignup.align.host import Host
from alignup.align.machine import Machine
from alignup.align.release import NEWEST, PREVIEWS, RELEASES, Release, find_release, release_note, with_preview
from alignup.align.settings import FeatureGates
from alignup.align.workload import validation
from alignup.atomic_files import open_input
from alignup.cli.app import NOWHERE, FailureError, InputError, Place, Session
from alignup.cli.machine_input import load_machine, machine_place
from alignup.cli.object_names import parse_object_name, parse_selector
from alignup.cli.options import (
    PREVIEW,
    HostOptions,
    NodeOptions,
    PredictedHostOptions,
    WorkloadSelection,
)
from alignup.documents.line_numbers import find_line
from alignup.kubernetes import configuration
from alignup.kubernetes.configuration import Configuration, ConfigurationText, StartupStage
from alignup.kubernetes.configuration.files import SUFFIX as DROP_IN_SUFFIX
from alignup.kubernetes.manifests import workloads as manifests
from alignup.kubernetes.manifests.workloads import LoadedWorkloads, Workload
from alignup.machines import machine_source

PROVIDERS = "alignup.providers"  #: the group of entry points that are hint providers
_PROVIDER_METHODS = ("initial_ledger", "hints", "allocate", "release")
MAX_CONFIG = 1 << 20  #: bytes of a configuration file
KUBELET_FILE = "config.yaml"  #: the configuration in a kubelet's directory, such as /var/lib/kubelet
_GIVE_CONFIGURATION = (
    "Give a KubeletConfiguration of kubelet.config.k8s.io/v1beta1, or that of a running kubelet: "
    "kubectl get --raw /api/v1/nodes/NODE/proxy/configz > configz.json"
)
_GIVE_FILE = "Give a KubeletConfiguration, such as the node's /var/lib/kubelet/config.yaml."
_GIVE_DROP_IN = "Give drop-ins of kind KubeletConfiguration, kubelet.config.k8s.io/v1beta1."
_GIVE_FIELD = "Give a field of KubeletConfiguration v1beta1, such as topologyManagerPolicy=restricted."
ARCHIVES = (".tar.gz", ".tgz")  #: how the name of an archive of 'alignup collect' ends
WRITABLE = "Give a file that can be written."
GIVE_MANIFESTS = "Give manifests as kubectl takes them: files, directories, or - for standard input."
_FIX_VALUE = "Fix the value there, or try another one with --set."
_RUN_DOCTOR = "Run 'alignup doctor' to see what the kubelet reports."
_RAISE_LIMIT = "Raise the kubelet's limit with --set topologyManagerPolicyOptions.max-allowable-numa-nodes={}"
_EMPTY = {"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration"}


class ConfigurationInput(NamedTuple):
    """The options that make up a configuration."""

    source: ConfigurationText
    changes: tuple[str, ...] = ()

    def read(self) -> Configuration:
        """Return the configuration; its warnings include what is unknown about it."""
        source = self.source
        with input_errors(Place(file=str(source.name)), advice=_GIVE_CONFIGURATION, locate=self.locate):
            kubelet_configuration = source.read()
        return replace(
            kubelet_configuration,
            warnings=(*source.notes, *(f"{source.name}: {warning}" for warning in kubelet_configuration.warnings)),
        )

    def locate(self, problem: Problem) -> str:
        """Return *problem* as ``FILE:LINE: FIELD: what``, as far as the place is known."""
        for change in reversed(self.changes):
            field, key, _ = configuration.parse_override(change)
            inner = f"{field}[{key}" if key else f"{field}["
            if problem.field == field or problem.field.startswith((inner, f"{field}.")):
                return f"--set {change}: {problem}"
        file = self.source.origin(problem.field) or self.source.file
        path = Path(file)
        if not path.exists():
            return str(problem)
        parent = self.source.part if file == self.source.file else ""
        place = self.source.places.get(re.split(r"[.\[]", problem.field)[0], "")
        if place and file == self.source.file:
            line = find_line(_read_again(path), place, document=self.source.number or 1)
            return Place(file=file, line=line).put_before([f"{place}: {problem}"])[0]
        if parent == "data.kubelet":
            line, parent = self._line_in_config_map(path, problem.field), ""
        else:
            field = ".".join(filter(None, (parent, problem.field)))
            line = find_line(_read_again(path), field, document=self.source.number or 1)
        if not problem.field:
            return Place(file=file, line=problem.line).put_before([problem.message])[0]
        return Place(file=file, line=line).put_before([f"{parent}.{problem}" if parent else str(problem)])[0]

    def _line_in_config_map(self, path: Path, field: str) -> int:
        """Return the line in a ConfigMap whose text is a block below the key."""
        inner = find_line(self.source.text, field)
        outer = find_line(text := _read_again(path), "data.kubelet")
        lines = text.splitlines()
        is_block = outer and re.search(rb":\s*[|>][-+0-9]*\s*$", lines[outer - 1])
        return outer + inner if is_block and inner else outer


class HostInput(NamedTuple):
    host: Host
    configuration: Configuration
    notes: tuple[str, ...] = ()  #: what was ignored, and what is unknown
    defaults: str = ""  #: says that there is no file, and which defaults are used instead
    running: tuple[Workload, ...] = ()  #: the pods of ``--pods``


def read_machine(machine: str | None, devices: tuple[str, ...] = ()) -> Machine:
    place = machine_place(machine, option="--machine")
    with input_errors(place, advice="See 'alignup machine show --help' for the forms of MACHINE."):
        loaded_machine = load_machine(machine)
    return add_devices(loaded_machine, devices) if devices else loaded_machine


def add_devices(machine: Machine, devices: tuple[str, ...]) -> Machine:
    """Return *machine* with the devices of ``--devices``."""
    with input_errors(Place("--devices"), advice=f"Use a value like {machine_source.DEVICE_EXAMPLE}."):
        return machine_source.add_devices(machine, devices)


def read_configuration(
    config: Path | None, changes: tuple[str, ...] = (), *, config_dir: Path | None = None, release: Release = NEWEST
) -> Configuration:
    """Return the configuration; its warnings include what is unknown about it."""
    source = configuration_text(config, changes, config_dir=config_dir, release=release)
    return ConfigurationInput(source, changes).read()


def read_release(version: str | None, *, option: str = "--kubernetes-version") -> tuple[Release, tuple[str, ...]]:
    """Return the release that an option names, and a note if it is not known."""
    context = click.get_current_context(silent=True)
    preview = context.meta.get(PREVIEW) if context else None
    if version is None and preview is None:
        return NEWEST, ()
    version = version or str(RELEASES[-1])
    with input_errors(Place(option)):
        release, notes = find_release(version), [release_note(version)]
    if preview is not None:
        with input_errors(Place("--preview"), advice="Give --kubernetes-version 1.38, or omit it."):
            release = with_preview(release, preview)
        notes.append(f"{preview}: {PREVIEWS[preview]}")
    return release, tuple(filter(None, notes))


def node_release(options: NodeOptions, machine: Machine) -> tuple[Release, tuple[str, ...]]:
    """Return the release of the kubelet of *options*: the one they name, the installed or the recorded one.

    A note says where it is from, unless it is from the options.
    """
    context = click.get_current_context(silent=True)
    if options.kubernetes_version is not None or (context and context.meta.get(PREVIEW)):
        return read_release(options.kubernetes_version)
    version, origin = machine.kubelet_version, f"in {options.machine}"
    if options.machine is None:
        from alignup.kubernetes.kubelet_files import kubelet_version  # noqa: PLC0415 - imports subprocess and shutil

        version, origin = kubelet_version.find_kubelet_version(), "of this machine"
    if version:
        with suppress(SettingsError):
            notes = (f"the kubelet {origin} is {version}", release_note(version))
            return find_release(version), tuple(filter(None, notes))
    return NEWEST, ()


def configuration_text(
    config: Path | None, changes: tuple[str, ...] = (), *, config_dir: Path | None = None, release: Release = NEWEST
) -> ConfigurationText:
    """Return the text of ``--config`` with the drop-ins of ``--config-dir`` and the overrides of ``--set``."""
    for change in changes:
        try:
            configuration.parse_override(change)
        except (FieldError, DocumentError) as error:
            place = Place("--set", value=error.field if isinstance(error, FieldError) else change)
            raise InputError(error.message, place=place, advice=_GIVE_FIELD) from error
    if config is not None and config.is_dir():
        if (config / KUBELET_FILE).is_file():
            config = config / KUBELET_FILE
        elif config_dir is None and any(path.suffix == DROP_IN_SUFFIX for path in config.iterdir()):
            config, config_dir = None, config
        else:
            message = f"{config} has neither {KUBELET_FILE} nor drop-ins (*{DROP_IN_SUFFIX})"
            raise InputError(message, place=Place("--config"), advice=_GIVE_FILE)
    if config is None:
        source = replace(ConfigurationText.of(_EMPTY, "--set"), release=release)
    else:
        text = _read_file(config, option="--config")
        try:
            lenient = _session().ignore_unknown_fields
            source = configuration.unwrap(text, name=str(config), release=release, ignore_unknown_fields=lenient)
        except ConfigurationError as error:
            lines = [
                Place(file=str(config), line=problem.line).put_before([str(problem)])[0] for problem in error.problems
            ]
            raise InputError(*lines, advice=error.advice or _GIVE_CONFIGURATION) from error
    if config_dir is not None:
        source = _with_drop_ins(source if config else None, config_dir, release)
    return source.override(changes) if changes else source


def describe_defaults(changes: tuple[str, ...]) -> str:
    """Say what counts without ``--config``."""
    if changes:
        return f"No --config: the kubelet's defaults are used, with {', '.join(changes)}"
    empty = Configuration()
    return (
        f"No --config: the kubelet's defaults are used: topologyManagerPolicy {empty.topology_manager_policy}, "
        f"cpuManagerPolicy {empty.cpu_manager_policy}, memoryManagerPolicy {empty.memory_manager_policy}"
    )


def _with_drop_ins(base: ConfigurationText | None, directory: Path, release: Release) -> ConfigurationText:
    advice = "Give a directory of drop-ins, such as /etc/kubernetes/kubelet.conf.d."
    with input_errors(Place("--config-dir"), advice=advice):
        paths = configuration.find_drop_ins(directory)
    drop_ins = []
    for path in paths:
        text = _read_file(path, option="--config-dir")
        with input_errors(Place(file=str(path)), advice=_GIVE_DROP_IN):
            drop_ins.append(configuration.parse_drop_in(text, name=str(path)))
    with input_errors(Place(file=str(base.name if base else directory)), advice=_GIVE_CONFIGURATION):
        return configuration.merge_drop_ins(base, drop_ins, directory=str(directory), release=release)


def _read_file(path: Path, *, option: str) -> bytes:
    with input_errors(Place(option), advice=_GIVE_FILE), open_input(path) as file:
        text = file.read(MAX_CONFIG + 1)
    if len(text) > MAX_CONFIG:
        message = f"{path} is larger than {MAX_CONFIG >> 20} MiB {OWN_LIMIT}"
        raise InputError(message, place=Place(option), advice=_GIVE_FILE)
    return text


def read_host(options: HostOptions, *, kubelet_faults: bool = False) -> HostInput:
    """Return the host of *options*, which copies the kubelet's defects where its decision is predicted."""
    node = build_host(read_machine(options.machine, options.devices), options, kubelet_faults=kubelet_faults)
    if options.state is not None:
        return _with_state(node, options.state, options.pods)
    if options.pods:
        raise InputError("--pods requires --kubelet-dir", advice="Add --kubelet-dir DIR.")
    return node


def parse_plugin_rules(texts: Sequence[str]) -> dict[str, PluginRule]:
    """Parse ``RESOURCE=RULE``; of two rules for one resource, the later rule counts."""
    rules = {}
    for text in texts:
        resource, equals, rule = text.partition("=")
        if not resource or not equals or rule not in set(PluginRule):
            advice = f"Give RESOURCE=RULE, where RULE is one of {', '.join(PluginRule)}."
            raise InputError(f"{text!r} is not a rule", place=Place("--plugin-rule"), advice=advice)
        rules[resource] = PluginRule(rule)
    return rules


def load_providers(names: Sequence[str], machine: Machine) -> list[Provider[Any]]:
    """Return the hint providers of installed packages: entry points that take the machine."""
    if not names:
        return []
    from importlib.metadata import entry_points  # noqa: PLC0415 - only with --provider

    points = {point.name: point for point in entry_points(group=PROVIDERS)}
    providers: list[Provider[Any]] = []
    for name in names:
        if name not in points:
            advice = f"Choose from {', '.join(sorted(points))}." if points else "Install a package that has one."
            message = f"no installed package has a provider {name} (entry points of {PROVIDERS})"
            raise InputError(message, place=Place("--provider"), advice=advice)
        try:
            provider = points[name].load()(machine)
            methods = [method for method in _PROVIDER_METHODS if not callable(getattr(provider, method, None))]
        except Exception as error:
            message = f"cannot be loaded: {type(error).__name__}: {error}"
            raise InputError(message, place=Place("--provider", value=name), advice=points[name].value) from error
        if methods:
            message = f"has no {', '.join(methods)}: it is not a provider (docs/own-provider.md)"
            raise InputError(message, place=Place("--provider", value=name), advice=points[name].value)
        providers.append(provider)
    return providers


def build_host(machine: Machine, options: NodeOptions, *, kubelet_faults: bool = False) -> HostInput:
    """Return an empty host with the configuration of *options*."""
    release, notes = node_release(options, machine)
    source = configuration_text(options.config, options.changes, config_dir=options.config_dir, release=release)
    configuration_input = ConfigurationInput(source, options.changes)
    kubelet_configuration = configuration_input.read()
    machine = machine.without_cpus(source.offline)
    name = options.config or options.config_dir or "this configuration"
    place = Place(detail=f"with {name} on {options.machine or 'this machine'}")
    with input_errors(place, advice=_RUN_DOCTOR, locate=configuration_input.locate, incomplete=source.incomplete):
        settings = replace(configuration.host_settings(kubelet_configuration, machine), kubelet_faults=kubelet_faults)
    if isinstance(options, PredictedHostOptions):
        settings = replace(settings, plugin_rules=parse_plugin_rules(options.plugin_rules))
    many = len(machine.nodes) > settings.topology.options.max_nodes
    advice = _RAISE_LIMIT.format(len(machine.nodes)) if many else _RUN_DOCTOR
    with input_errors(place, advice=advice, locate=configuration_input.locate, incomplete=source.incomplete):
        try:
            defaults = "" if options.config or options.config_dir else describe_defaults(options.changes)
            others = load_providers(options.providers, machine) if isinstance(options, HostOptions) else ()
            return HostInput(
                Host(machine, settings, others=others),
                kubelet_configuration,
                (*notes, *kubelet_configuration.warnings),
                defaults,
            )
        except SettingsError as error:
            errors = () if many else configuration.startup_errors(kubelet_configuration, machine)
            raise next((candidate for candidate in errors if candidate.manager == error.manager), error) from error


def read_manifests(files: tuple[str, ...], gates: FeatureGates, *, leave_out: bool = False) -> LoadedWorkloads:
    """Return what is in *files*, as an API server with *gates* accepts it, with notes on what was skipped.

    With *leave_out*, files with problems are left out; :func:`raise_problems` reports them.
    """
    with input_errors(NOWHERE, advice=GIVE_MANIFESTS):
        standard = standard_input() if "-" in files else None
        return manifests.read_paths(files, standard, **_reading_rules(gates), leave_out=leave_out)


def raise_problems(manifests: LoadedWorkloads) -> None:
    """Raise an ``InputError`` with the problems of files that were left out, if there are any."""
    if manifests.problems:
        sys.stdout.flush()  # what was answered counts, and an error discards what is not written
        with input_errors(NOWHERE, advice=GIVE_MANIFESTS):
            raise ManifestError(manifests.problems)


#: How versions of kubectl begin an error: ``error: …``, or ``E1118 19:20:44 … "command failed" err="…"``.
_KUBECTL_ERROR = re.compile(r'^(?:error: |E\d{4} .*"command failed" err=")(.*?)"?$')


def read_kustomization(directory: str, gates: FeatureGates) -> LoadedWorkloads:
    """Return what ``kubectl kustomize`` renders."""
    import subprocess  # noqa: PLC0415 - slow to import, only for -k

    place = Place("-k", file=directory)
    try:
        process = subprocess.run(["kubectl", "kustomize", directory], capture_output=True, check=False)  # noqa: S603, S607 - the user's kubectl
    except OSError as error:
        advice = f"Install kubectl, or render it elsewhere: kubectl kustomize {directory} > pods.yaml"
        message = "kubectl is not installed, and it renders kustomizations"
        raise FailureError(message, place=Place("-k"), advice=advice) from error
    if process.returncode:
        lines = process.stderr.decode("utf-8", "replace").strip().splitlines() or ["kubectl kustomize failed"]
        problems = [_KUBECTL_ERROR.sub(r"\1", line) for line in lines]
        raise InputError(*problems[:5], place=place, advice=f"Try: kubectl kustomize {directory}")
    with input_errors(place, advice=GIVE_MANIFESTS):
        return read_manifest_text(process.stdout, f"kubectl kustomize {directory}", gates)


def read_manifest_text(text: bytes, name: str, gates: FeatureGates) -> LoadedWorkloads:
    """Like :func:`read_manifests` for the text of one file; ``ManifestError`` lists its problems."""
    return manifests.read_workloads(text, name=name, **_reading_rules(gates))


def _session() -> Session:
    context = click.get_current_context(silent=True)
    return (context.find_object(Session) if context else None) or Session()


def _reading_rules(gates: FeatureGates) -> dict[str, Any]:
    fixes_defaults = gates.on("PodLevelResourcesFixDefaulting")
    accept = partial(validation.accept, fix_pod_level=fixes_defaults, release=gates.release)
    return {"accept": accept, "ignore_unknown_fields": _session().ignore_unknown_fields}


def read_workloads(files: tuple[str, ...], release: Release = NEWEST) -> tuple[tuple[Workload, ...], tuple[str, ...]]:
    """Return the workloads in *files* without their claims, and notes on what was skipped."""
    manifests = read_manifests(files, FeatureGates(release=release))
    if not manifests.claims:
        return manifests.workloads, manifests.warnings
    kinds = ", ".join(sorted({location.part["kind"] for location in manifests.claims}))
    return manifests.workloads, (*manifests.warnings, f"skipped {kinds}: this command does not consider them")


def standard_input() -> BinaryIO | None:
    """Standard input; ``None`` when it is closed."""
    return sys.stdin.buffer if sys.stdin else None


def _filter_workloads(
    workloads: Sequence[Workload], namespace: str | None, selector: str | None, *, files: Sequence[str]
) -> tuple[Workload, ...]:
    """Return the workloads of a namespace, and with the labels of a selector in the workload or its pods."""
    labels = parse_selector(selector or "")
    matches = tuple(
        work
        for work in workloads
        if namespace in (None, work.namespace) and all(label.matches(work.pod.labels) for label in labels)
    )
    if not matches:
        place = Place("-l" if selector is not None else "-n")
        criteria = " and ".join(
            filter(None, (namespace and f"namespace {namespace}", selector and f"labels {selector}"))
        )
        advice = "Leave the option out to explain all workloads."
        raise InputError(f"{', '.join(files)} has no workload with {criteria}", place=place, advice=advice)
    return matches


def select_workloads(
    workloads: Sequence[Workload], selection: WorkloadSelection | None = None, *, files: Sequence[str]
) -> list[Workload]:
    name = selection.pod if selection else None
    if selection and (selection.namespace is not None or selection.selector is not None):
        workloads = _filter_workloads(workloads, selection.namespace, selection.selector, files=files)
    matches = [work for work in workloads if name is None or name in (work.name, work.title, work.prefix)]
    if not matches and name is not None and "/" in name:
        kind, namespace, short = parse_object_name(name)
        matches = [
            work
            for work in workloads
            if kind in ("Pod", work.kind) and namespace in ("", work.namespace) and short in (work.name, work.pod.name)
        ]
    if not matches:
        titles = ", ".join(work.title for work in workloads)
        file_names = ", ".join(files)
        raise InputError(
            f"workload {name!r} not found; {file_names} has {titles}" if titles else "no workloads found",
            place=Place("--pod") if titles else Place(file=file_names),
            advice="Give a file with a Pod, a Deployment, a Job or another object with a pod template.",
        )
    return matches


def _with_state(node: HostInput, directory: Path, pod_files: tuple[str, ...]) -> HostInput:
    from alignup.kubernetes.kubelet_files.ledger import GapKind, restore_ledger  # noqa: PLC0415 - only with --kubelet-dir
    from alignup.kubernetes.kubelet_files.state_files import read_state_files  # noqa: PLC0415

    gates = node.host.settings.gates
    manifests = read_manifests(pod_files, gates) if pod_files else LoadedWorkloads()
    workloads = manifests.workloads
    nameless = tuple(
        f"{work.source}: skipped {work.kind} {work.name}: without a uid it cannot be found in the state files"
        for work in workloads
        if not work.has_uid
    )
    pods = tuple(work.pod for work in workloads if work.has_uid and not work.finished)
    place = Place("--kubelet-dir", file=str(directory))
    with input_errors(place, advice="Give a directory like /var/lib/kubelet, with cpu_manager_state in it."):
        files = read_state_files(directory, gates=gates)
    with input_errors(place, advice="Run 'alignup doctor', which checks and repairs state files."):
        restored_ledger = restore_ledger(node.host, files, pods)
    node.host.ledger = restored_ledger.ledger
    advice = {GapKind.PODS: "; give them with --pods", GapKind.DEVICE_TOPOLOGY: "; give --devices {resource}=..."}
    gaps = (f"{gap.text}{advice.get(gap.kind, '').format(resource=gap.resource)}" for gap in restored_ledger.gaps)
    return node._replace(notes=(*node.notes, *manifests.warnings, *nameless, *gaps), running=workloads)


def check_writable(option: str, path: Path | None) -> None:
    """Raise an ``InputError`` now if *path* cannot be written, not after a long simulation."""
    if path is None:
        return
    with input_errors(Place(option), advice=WRITABLE):
        is_new = not path.exists()
        path.open("ab").close()
        if is_new:
            path.resolve().unlink()  # the file itself if *path* is a link


@contextmanager
def input_errors(
    place: Place, *, advice: str = "", locate: Callable[[Problem], str] = str, incomplete: str = ""
) -> Iterator[None]:
    """Raise errors about the input as an :class:`InputError`; *locate* puts the place before a problem.

    *incomplete* says what a configuration lacks: it is better advice than what to change there.
    """
    try:
        yield
    except ConfigurationError as error:
        failure = _configuration_error(error, place, advice, locate)
        failure.advice = f"{incomplete[0].upper()}{incomplete[1:]}" if incomplete else failure.advice
        raise failure from error
    except ManifestError as error:
        if all(located_problem.problem.kind is ProblemKind.UNKNOWN_FIELD for located_problem in error.problems):
            advice = "Correct the names, or leave such fields out of account with --ignore-unknown-fields."
        if len(error.problems) > 1:
            raise InputError(*error.lines(), advice=advice) from error
        (located_problem,) = error.problems
        place = Place.at(located_problem.location, located_problem.object_name)
        raise InputError(str(located_problem.problem), place=place, advice=advice) from error
    except DocumentError as error:
        raise InputError(error.message, place=place._replace(line=error.line), advice=advice) from error
    except FileFieldError as error:
        if not error.file:
            raise InputError(str(error), place=place, advice=advice) from error
        message = f"{error.field}: {error.message}" if error.field else error.message
        raise InputError(message, place=Place(file=error.file, line=error.line), advice=advice) from error
    except AlignError as error:
        raise InputError(str(error), place=place, advice=advice) from error
    except OSError as error:
        name = f"{error.filename}: " if isinstance(error.filename, str) else ""
        raise InputError(f"{name}{error.strerror or error}", place=place, advice=advice) from error


def _configuration_error(
    error: ConfigurationError, place: Place, advice: str, locate: Callable[[Problem], str]
) -> InputError:
    own_limit = all(problem.kind is ProblemKind.OWN_LIMIT for problem in error.problems)
    remark = "" if own_limit else StartupStage(error.stage).failure
    if locate is not str and place.file:
        place = Place()  # located problems have the file already
    detail = f"{place.detail} ({remark})" if place.detail and remark else place.detail or remark
    if error.advice:
        error_advice = error.advice.rstrip(".")
        advice = f"{error_advice[0].upper()}{error_advice[1:]}."
    elif advice == _GIVE_CONFIGURATION and error.stage != StartupStage.LOAD:
        advice = _FIX_VALUE
    return InputError(*map(locate, error.problems), place=place._replace(detail=detail), advice=advice)


def _read_again(path: Path) -> bytes:
    """Return the beginning of a file that was read, to find lines in it; empty for a pipe."""
    if not path.is_file():
        return b""
    with suppress(OSError), path.open("rb") as file:
        return file.read(MAX_CONFIG)
    return b""
