"""Options of commands, declared as fields of dataclasses, and the options that several commands share."""
# ruff: noqa: ANN401 - options are declared by calls that return fields of any type

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, field, fields
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from alignup.align.errors import ParseError
from alignup.align.release import NEWEST, PREVIEWS
from alignup.cli.app import InputError, Place
from alignup.cli.completers import (
    complete_files,
    complete_machines,
    complete_overrides,
    complete_plugin_rules,
    complete_policy_options,
    complete_providers,
    complete_releases,
)

if TYPE_CHECKING:
    from alignup.kubernetes.manifests.disruption import EvictionRules
    from alignup.web.address import TcpAddress

Decorator = Callable[[Any], Any]
Options = TypeVar("Options")
TOPOLOGY_POLICIES = ("none", "best-effort", "restricted", "single-numa-node")
GIVE_FILE = "Give a file that exists and can be read."

_WORKLOADS = "Manifest of Pods, Deployments, Jobs and other workloads: a file, a directory, or - for standard input"


class RenamedOption(click.Option):
    """An option whose last name is the one to use; the help hides its earlier names, which still work."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        names, self.opts = self.opts, self.opts[-1:]
        try:
            return super().get_help_record(ctx)
        finally:
            self.opts = names


class IntegerRange(click.IntRange):
    name = "integer"  # in errors: "'x' is not a valid integer"


class NumberRange(click.FloatRange):
    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if not isfinite(number):
            self.fail(f"{value!r} is not a valid number.", param, ctx)
        return number


def with_options(parameter: str, group: type) -> Decorator:
    """Add the options of dataclass *group* to a command, and pass their values as one *group* called *parameter*."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def decorated(*args: object, **values: object) -> object:
            options = group(
                **{declared_field.name: values.pop(declared_field.name) for declared_field in fields(group)}
            )
            return command(*args, **{parameter: options}, **values)

        for declared_field in reversed(fields(group)):
            attributes = dict(declared_field.metadata)
            names = attributes.pop("names") or (f"--{declared_field.name.replace('_', '-')}",)
            decorated = click.option(*names, declared_field.name, **attributes)(decorated)
        return decorated

    return decorate


def option(metavar: str, help_text: str, default_text: str = "", *names: str, **attributes: Any) -> Any:
    """Declare a field that is an option: ``--NAME`` after the field, or *names*.

    Its help names the default: *default_text*, or the default value.
    """
    default = default_text or str(attributes.get("default", ""))
    text = f"{help_text} (default: {default})." if default else f"{help_text}."
    if attributes.get("multiple"):
        text += " Repeatable."
    return field(metadata={"names": names, "metavar": metavar or None, "help": text, **attributes})


def build_options(type_: type[Options], **values: Any) -> Options:
    """Return the options of a command that gets only these *values*."""
    for field_ in fields(type_):  # type: ignore[arg-type]
        if field_.default is MISSING:
            none = () if field_.metadata.get("multiple") else False if field_.metadata.get("is_flag") else None
            values.setdefault(field_.name, field_.metadata.get("default", none))
    return type_(**values)


def path_option(metavar: str, help_text: str, default_text: str = "", **attributes: Any) -> Any:
    return option(metavar, help_text, default_text, type=click.Path(path_type=Path), **attributes)


def choice_option(choices: Sequence[str], help_text: str, default_text: str = "") -> Any:
    """The first of *choices* is the default."""
    return option("", help_text, default_text, type=click.Choice(choices), default=choices[0])


def count_option(default: int, help_text: str, *, minimum: int = 0) -> Any:
    return option("N", help_text, type=IntegerRange(min=minimum), default=default)


def flag_option(help_text: str, *names: str) -> Any:
    return option("", help_text, "", *names, is_flag=True)


def topology_policy_option() -> Any:
    return option("", "Topology policy", "best-effort, or as in --config", type=click.Choice(TOPOLOGY_POLICIES))


def topology_scope_option() -> Any:
    return option("", "Topology scope", "container, or as in --config", type=click.Choice(["container", "pod"]))


def policy_options_option() -> Any:
    text = "Option of the topology or CPU manager policy, such as prefer-closest-numa-nodes=true"
    return option("NAME=VALUE", text, "", "--option", multiple=True, shell_complete=complete_policy_options)


def configz_option() -> Any:
    names = ("--configz", "--configz/--no-configz")
    return option("", "Ask the kubelet for its live configuration", *names, is_flag=True, default=True)


def allowed_host_option() -> Any:
    text = "Name by which clients call this program over plain HTTP, beside localhost and that of this machine"
    return option("NAME", text, "", "--allowed-host", multiple=True)


def check_exists(options: object, *names: str) -> None:
    """Raise an ``InputError`` for the first field called one of *names*, an option, whose file cannot be used."""
    for name in names:
        path: Path | None = getattr(options, name)
        is_directory = path is not None and name.endswith("_file") and path.is_dir()
        if is_directory or (path is not None and not path.exists()):
            problem = "Is a directory" if is_directory else "No such file or directory"
            raise InputError(f"{path}: {problem}", place=Place(f"--{name.replace('_', '-')}"), advice=GIVE_FILE)


def parse_listen_address(text: str, option: str) -> "TcpAddress":
    """Parse ``HOST:PORT``, or ``:PORT`` for all addresses of this machine."""
    from alignup.web.address import TcpAddress, parse_address  # noqa: PLC0415 - most commands do not listen

    try:
        address = parse_address(text, listening=True)
    except ParseError:
        address = None
    if not isinstance(address, TcpAddress) or address.tls is not None:
        advice = "Give HOST:PORT, or :PORT for all addresses."
        raise InputError(f"{text} is not an address", place=Place(option), advice=advice)
    return address


IGNORE_MISSING_HELP = "Admit pods that request devices which no device plugin provides, as a kubelet does"


def kubelet_dir_option(contents: str, default_text: str = "") -> Any:
    """Add ``--kubelet-dir``; its earlier name still works."""
    help_text = f"The kubelet's directory, such as /var/lib/kubelet, {contents}"
    names = ("--state", "--kubelet-dir")
    return option("DIR", help_text, default_text, *names, type=click.Path(path_type=Path), cls=RenamedOption)


def pods_option(purpose: str) -> Any:
    help_text = f"Pods of the node (kubectl get pods -o yaml), {purpose}"
    return option("FILE", help_text, multiple=True, shell_complete=complete_files)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    machine: str | None = option(
        "MACHINE",
        "Machine: a recording, directory, description, hwloc XML, cAdvisor JSON, or synthetic "
        "'pack:2 numa:2 core:8 pu:2'",
        "this machine",
        shell_complete=complete_machines,
    )
    devices: tuple[str, ...] = option(
        "RESOURCE=N@NODE,…", "Add devices to the machine, such as example.com/gpu=4@0,4@1", multiple=True
    )
    config: Path | None = path_option(
        "FILE",
        "KubeletConfiguration of the node, also as /configz, ConfigMap, or file of OpenShift, kubeadm or a cloud, "
        "or a directory with config.yaml or drop-ins",
        "the kubelet's defaults",
    )
    config_dir: Path | None = path_option("DIR", "Directory of drop-ins (*.conf) that the kubelet merges into its file")
    changes: tuple[str, ...] = option(
        "FIELD=VALUE",
        "Override a field of the configuration, such as topologyManagerPolicy=restricted",
        "",
        "--set",
        multiple=True,
        shell_complete=complete_overrides,
    )
    kubernetes_version: str | None = option(
        "VERSION",
        "Kubernetes release of the kubelet, such as 1.35 or v1.35.8",
        f"that of this machine's kubelet or of the recording, or {NEWEST}, the newest known",
        shell_complete=complete_releases,
    )


def provider_option() -> Any:
    """Add ``--provider``; options that a program builds itself need not name it."""
    help_text = "Hint provider of an installed package, beside CPUs, memory and devices"
    provider_field = option("NAME", help_text, "", "--provider", multiple=True, shell_complete=complete_providers)
    return field(default=(), metadata=provider_field.metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOptions(NodeOptions):
    state: Path | None = kubelet_dir_option("with cpu_manager_state and the other state files", "an empty node")
    pods: tuple[str, ...] = pods_option("to name the pods in --kubelet-dir")
    providers: tuple[str, ...] = provider_option()


def plugin_rule_option(default_text: str) -> Any:
    rules = "any, nvidia, nvidia-packed, amd, intel, intel-balanced, intel-packed"
    text = f"How the device plugin of a resource chooses devices: {rules}"
    names = ("--plugin-rule",)
    return option("RESOURCE=RULE", text, default_text, *names, multiple=True, shell_complete=complete_plugin_rules)


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedHostOptions(HostOptions):
    """A host whose kubelet is predicted."""

    plugin_rules: tuple[str, ...] = plugin_rule_option("by the name of the resource")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSelection:
    """Which workloads of manifests are meant."""

    pod: str | None = option("NAME", "Explain only this workload: NAME, NAMESPACE/NAME, or KIND/NAME")
    namespace: str | None = option("NAME", "Explain only workloads of this namespace", "", "-n", "--namespace")
    selector: str | None = option(
        "LABELS", "Explain only workloads with these labels, such as app=web", "", "-l", "--selector"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """What a plan may do."""

    allow_preemption: bool = flag_option("Also end pods of lower priority that get no new place")
    allow_local_volumes: bool = flag_option("Also evict pods with volumes on the disk of their node")
    exempt: tuple[str, ...] = option("NAMESPACE", "Evict no pods of this namespace", multiple=True)
    budget: float = option(
        "SECONDS", "Search at most this long for a plan with fewer moves", default=10.0, type=NumberRange(0.1, 3600)
    )

    def rules(self) -> "EvictionRules":
        from alignup.kubernetes.manifests.disruption import EvictionRules  # noqa: PLC0415 - only for plans

        return EvictionRules(
            exempt=self.exempt,
            allow_preemption=self.allow_preemption,
            allow_local_volumes=self.allow_local_volumes,
        )

    def start_budget(self) -> Callable[[], bool]:
        """Return a function that says whether the time is over."""
        end = time.monotonic() + self.budget
        return lambda: time.monotonic() > end


def output_option(*formats: str) -> Decorator:
    """Add ``-o``. The first of *formats* is the default."""
    help_text = f"Output format (default: {formats[0]})."
    return click.option("-o", "--output", type=click.Choice(formats), default=formats[0], help=help_text)


PREVIEW = "alignup.preview"  #: in the context of a command: the plan that releases have in addition

preview_option: Decorator = click.option(
    "--preview",
    type=click.Choice(tuple(PREVIEWS)),
    expose_value=False,
    callback=lambda context, _, value: context.meta.update({PREVIEW: value}),
    help="Decide as if Kubernetes 1.38 had this plan.",
)


def search_option(subject: str) -> Decorator:
    """Add ``--search``, for changes that would admit *subject*."""
    help_text = f"Search up to SECONDS for changes that would admit {subject} (default: 2)."
    return click.option("--search", type=NumberRange(0, 3600), default=2.0, metavar="SECONDS", help=help_text)


workload_argument: Decorator = click.argument(
    "paths", nargs=-1, metavar="[FILE]...", shell_complete=complete_files
)  #: like ``-f``
workload_option: Decorator = click.option(
    *("-f", "--filename", "files"),
    multiple=True,
    metavar="FILE",
    help=f"{_WORKLOADS}. Repeatable.",
    shell_complete=complete_files,
)


def workload_field() -> Any:
    return option("FILE", _WORKLOADS, "", "-f", "--filename", multiple=True, shell_complete=complete_files)
