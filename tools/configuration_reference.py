"""The reference of configuration: every field of configuration files, every option of the programs, every variable."""

import dataclasses
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_type_hints

import click
import msgspec
import yaml

from alignup.align.cpus.options import OPTION_STAGES
from alignup.align.settings import FEATURE_GATES, TOPOLOGY_OPTIONS
from alignup.cli.app import app
from alignup.documents.machines import MachineDocument
from alignup.kubernetes.configuration.fields import USED_FIELDS, Configuration, Duration
from tools.markdown import escape, table

_CHART = Path(__file__).parents[1] / "deploy" / "helm" / "alignup" / "values.yaml"
PROGRAMS = ("agent", "observe", "schedule")

#: Field of KubeletConfiguration → what it does here.
KUBELET_FIELDS: Mapping[str, str] = {
    "topologyManagerPolicy": "none, best-effort, restricted or single-numa-node.",
    "topologyManagerScope": "container or pod: what is aligned as one.",
    "topologyManagerPolicyOptions": "Options of the policy; see below.",
    "cpuManagerPolicy": "none or static: whether containers get exclusive CPUs.",
    "cpuManagerPolicyOptions": "Options of the static policy; see below.",
    "cpuManagerReconcilePeriod": "How often the CPUs of containers are compared and corrected.",
    "memoryManagerPolicy": "None or Static: whether memory is allocated on NUMA nodes.",
    "reservedMemory": "Memory of each NUMA node that pods do not get; required for the policy Static.",
    "reservedSystemCPUs": "CPUs that pods do not get, as a Linux list; instead of reserved amounts.",
    "systemReserved": "Amounts for the system: cpu, memory, ephemeral-storage, pid.",
    "kubeReserved": "Amounts for the kubelet and the container runtime.",
    "systemReservedCgroup": "cgroup of the system; checked with enforceNodeAllocatable only.",
    "kubeReservedCgroup": "cgroup of the kubelet; checked with enforceNodeAllocatable only.",
    "enforceNodeAllocatable": "Which limits cgroups enforce: pods, system-reserved, kube-reserved, none.",
    "evictionHard": "Thresholds; memory.available is reserved.",
    "mergeDefaultEvictionSettings": "Whether evictionHard keeps the defaults that it does not set.",
    "cgroupsPerQOS": "Whether pods have cgroups of their QoS class.",
    "qosReserved": "Memory reserved by QoS class; needs the gate QOSReserved.",
    "maxPods": "How many pods the node admits.",
    "podsPerCore": "How many pods for each CPU; 0: no limit.",
    "localStorageCapacityIsolation": "Whether ephemeral storage is a resource.",
    "featureGates": "Gates of the kubelet; see below.",
}

#: Key of our files → what it is; ``FILE.OBJECT``.
FILE_FIELDS: Mapping[str, Mapping[str, str]] = {
    "Cluster": {
        "apiVersion": "alignup.dev/v1.",
        "kind": "Cluster.",
        "groups": "Groups of equal nodes, at least one.",
    },
    "Cluster: an entry of groups; Sweep: an entry of machines": {
        "name": "Name of the group, required.",
        "count": "Number of nodes (default: 1).",
        "machine": "As for `--machine`, or a file beside this one, required.",
        "devices": "As for `--devices`, a list.",
        "config": "KubeletConfiguration, a file beside this one (default: that of `--config`).",
        "set": "As for `--set`, a list.",
        "labels": "Labels of the nodes.",
    },
    "Sweep": {
        "apiVersion": "alignup.dev/v1.",
        "kind": "Sweep.",
        "machines": "Groups of nodes, each a cluster of its own, at least one.",
        "configurations": "Configurations to combine them with (default: the kubelet's defaults).",
        "strategies": "Strategies of the scheduler (default: all).",
        "seeds": "Number of random seeds (default: 1).",
        "workload": "The pods, required.",
        "retries": "How often a pod is created again after kubelets rejected it (default: 6).",
    },
    "Sweep: an entry of configurations": {
        "name": "Name in the results, required.",
        "config": "KubeletConfiguration, a file beside this one.",
        "set": "As for `--set`, a list.",
    },
    "Sweep: workload": {
        "generate": "telco, training, inference or mixed; this or trace is required.",
        "pods": "Number of generated pods (default: 1000).",
        "load": "Share of the cluster that they request on average (default: 0.9).",
        "trace": "A trace, or the pods of openb as CSV, beside this file.",
        "rate": "How many times as fast pods are created (default: 1).",
        "stay": "Whether all pods stay (default: false).",
    },
    "Trace": {
        "apiVersion": "alignup.dev/v1.",
        "kind": "Trace.",
        "templates": "Pods by name, each with `requests` or a whole `pod`.",
        "events": "Events, here or as one document each.",
    },
    "Trace: an event": {
        "at": "Seconds since the start, required.",
        "arrive": "Name of a pod that arrives.",
        "pod": "A whole pod that arrives.",
        "leave": "uid of a pod that departs.",
        "namespace": "Namespace of the pod (default: default).",
        "uid": "uid of the pod (default: its name).",
        "template": "Name of its template.",
        "requests": "Its requests and limits, over those of the template.",
        "lifetime": "Seconds until it departs.",
        "priority": "Its priority in a cluster.",
        "gang": "Name of the pods that start together with it.",
        "nodeSelector": "Labels that its node must have, each with a value or a list of values.",
    },
}

#: Environment variable → what it does. Options with a variable are added from the code.
VARIABLES: Mapping[str, str] = {
    "ALIGNUP_DEBUG": "Any value: print Python tracebacks of errors, as `--debug` does.",
    "ALIGNUP_RUN_DIR": "Directory of the runs of `alignup run` (default: `run` in the agent's root directory).",
    "ALIGNUP_CLAIMS_DIR": "Directory in which runs of all users claim CPUs and devices; empty: none.",
    "ALIGNUP_UNPACK": "Where the single file of `make bundle` unpacks itself (default: `~/.cache/alignup`).",
    "XDG_STATE_HOME": "Parent of the agent's root directory for other users than root (default: `~/.local/state`).",
    "HOME": "Home directory, for the defaults above and `~/.kube/config`.",
    "KUBECONFIG": "Kubeconfig files, separated by colons, as for kubectl.",
    "KUBERNETES_SERVICE_HOST": "Set in pods: use the pod's service account if there is no kubeconfig.",
    "KUBERNETES_SERVICE_PORT": "Set in pods: port of the API server (default: 443).",
    "HTTPS_PROXY": "Proxy for the API server, also in lower case; HTTP_PROXY and ALL_PROXY likewise.",
    "NO_PROXY": "Hosts and networks without a proxy, also in lower case.",
    "PATH": "Where credential plugins of a kubeconfig are found.",
    "NODE_NAME": "Name of the Node object for `alignup observe` (default: the host name).",
    "POD_NAMESPACE": "Namespace of the Lease of `alignup schedule` (default: that of its service account).",
    "NOTIFY_SOCKET": "Set by systemd: the agent reports there that it is ready.",
    "WATCHDOG_USEC": "Set by systemd: how often the agent reports that it is alive.",
    "WATCHDOG_PID": "Set by systemd: the process that the watchdog is for.",
    "COLUMNS": "Width of the output (default: that of the terminal).",
    "NO_COLOR": "Any value: no colors.",
    "TERM": "`dumb`: no colors.",
}

#: Set for commands of ``alignup run``; docs/run.md explains them.
RUN_VARIABLES = ("ALIGNUP_RUN", "ALIGNUP_NAME", "ALIGNUP_CPUS", "ALIGNUP_NUMA_NODES", "ALIGNUP_MEMORY_NODES")


def page() -> str:
    """The page of the site."""
    lines = [
        "# Configuration",
        "",
        "The programs have options and environment variables. The one configuration file is the kubelet's, which",
        "`--config` and `--config-dir` read in every form that [people have](../inputs.md).",
    ]
    for name in PROGRAMS:
        lines += ["", f"## Options of alignup {name}", "", *_option_lines(name)]
    lines += ["", "## Environment variables", "", *table(("variable", ""), _variable_rows())]
    run = ", ".join(f"`{name}`" for name in RUN_VARIABLES)
    lines += ["", f"[`alignup run`](../run.md) sets {run} and `ALIGNUP_DEVICES_…` for its command."]
    lines += ["", "## KubeletConfiguration", "", *_kubelet_lines()]
    lines += ["", "## Machine files", "", "[Machines](../machines.md) has an example.", *_machine_lines()]
    lines += ["", "## Cluster, sweep and trace files", ""]
    lines += ["[Fleets](../fleet.md) and [simulations](../simulate.md) have examples."]
    for title, fields in FILE_FIELDS.items():
        lines += ["", f"### {title}", "", *table(("field", ""), ((f"`{name}`", text) for name, text in fields.items()))]
    lines += ["", "## Values of the Helm chart", "", *table(("value", "default", ""), _chart_rows())]
    return "\n".join(lines) + "\n"


def _option_lines(name: str) -> Iterator[str]:
    command = app.get_command(click.Context(app), name)
    options = [one for one in (command.params if command else ()) if isinstance(one, click.Option)]
    yield from table(("option", "type", "default", ""), map(_option_row, options))


def _option_row(option: click.Option) -> tuple[str, str, str, str]:
    text = option.help or ""
    found = re.search(r" \(default: ((?:[^()]|\([^()]*\))*)\)", text)
    default = found[1] if found else ("off" if option.is_flag else "")
    default = "on" if default == option.opts[0] else default
    return (
        ", ".join(f"`{one}`" for one in option.opts),
        _option_type(option),
        default,
        text.replace(found[0], "") if found else text,
    )


def _option_type(option: click.Option) -> str:
    if option.is_flag:
        return "flag"
    if isinstance(option.type, click.Choice):
        return " or ".join(f"`{one}`" for one in option.type.choices)
    kind = {"integer range": "integer", "float range": "number", "float": "number"}.get(
        option.type.name, option.type.name
    )
    return f"{kind}, repeatable" if option.multiple else kind


def _variable_rows() -> Iterator[tuple[str, str]]:
    for name, options in sorted(option_variables().items()):
        yield f"`{name}`", f"Default of {' and '.join(f'`{one}`' for one in sorted(options))}."
    yield from ((f"`{name}`", text) for name, text in VARIABLES.items())


def option_variables() -> dict[str, set[str]]:
    """The variables that options have in the code → their options."""
    found: dict[str, set[str]] = {}
    context = click.Context(app)
    for name in app.list_commands(context):
        command = app.get_command(context, name)
        for one in command.params if command else ():
            if isinstance(one, click.Option) and isinstance(one.envvar, str):
                found.setdefault(one.envvar, set()).add(one.opts[-1])
    return found


def _kubelet_lines() -> Iterator[str]:
    yield from ("The agent, the observer and all commands that take `--config` use these fields:", "")
    known = {field.name: field for field in dataclasses.fields(Configuration)}
    types = get_type_hints(Configuration)
    rows = [
        (f"`{name}`", _field_type(types[USED_FIELDS[name]]), _default(known[USED_FIELDS[name]]), text)
        for name, text in KUBELET_FIELDS.items()
    ]
    yield from table(("field", "type", "default", ""), rows)
    yield from ("", "Of all other fields of v1beta1 only the types are checked.")
    yield from ("", "### Policy options", "")
    options = [("topologyManagerPolicyOptions", name, one.values, one.stage) for name, one in TOPOLOGY_OPTIONS.items()]
    options += [("cpuManagerPolicyOptions", name, "true or false", stage) for name, stage in OPTION_STAGES.items()]
    yield from table(
        ("field", "option", "values", "stage"),
        ((f"`{field}`", f"`{name}`", values, str(stage)) for field, name, values, stage in options),
    )
    yield from ("", "### Feature gates that change decisions", "")
    yield from table(
        ("gate", "stage", "default"),
        ((f"`{name}`", str(gate.stage), _word(gate.default)) for name, gate in FEATURE_GATES.items()),
    )


def _field_type(type_: Any) -> str:  # noqa: ANN401 - any type
    known = {str: "text", bool: "true or false", int: "integer", Duration: "duration"}
    if type_ in known:
        return known[type_]
    return "list" if str(type_).startswith("tuple") else "object"


def _default(field: "dataclasses.Field[Any]") -> str:
    value = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {one}" for name, one in value.items()) or "none"
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    return _word(value) if isinstance(value, bool) else str(value) or "none"


def _word(value: bool) -> str:  # noqa: FBT001 - the value itself
    return "true" if value else "false"


def machine_fields() -> dict[str, dict[str, Any]]:
    """The objects of a machine file by their paths, each with its JSON Schema."""
    (top,), schemas = msgspec.json.schema_components([MachineDocument], ref_template="{name}")
    found: dict[str, dict[str, Any]] = {}

    def add(path: str, name: str) -> None:
        found[path] = schemas[name]
        for field, inner in schemas[name]["properties"].items():
            for one in re.findall(r"'\$ref': '(\w+)'", str(inner)):
                suffix = "[]" if inner.get("type") == "array" or "'array'" in str(inner) else ""
                add(f"{path}.{field}{suffix}".lstrip("."), one)

    add("", top["$ref"])
    return found


def _machine_lines() -> Iterator[str]:
    for path, schema in machine_fields().items():
        yield from ("", f"### `{path}`" if path else "### A machine", "")
        required = schema.get("required", ())
        yield from table(
            ("field", ""),
            (
                (f"`{name}`", f"{inner.get('description', '')}{' Required.' if name in required else ''}")
                for name, inner in schema["properties"].items()
            ),
        )


def _chart_rows() -> Iterator[tuple[str, str, str]]:
    """Every value of the chart, with the comment beside it."""
    text = _CHART.read_text("utf-8")
    values = yaml.safe_load(text)
    comments: dict[str, str] = {}
    names: list[str] = []
    for indent, name, comment in re.findall(r"^( *)(\w+):[^#\n]*(?:# (.*))?$", text, re.MULTILINE):
        names[len(indent) // 2 :] = [name]
        comments[".".join(names)] = comment
    yield from _values(values, "", comments)


def _values(values: Mapping[str, Any], path: str, comments: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    for name, value in values.items():
        full = f"{path}{name}"
        if isinstance(value, dict) and value and name not in {"resources", "nodeSelector"}:
            yield from _values(value, f"{full}.", comments)
            continue
        shown = yaml.safe_dump(value, default_flow_style=True, width=10_000).strip().removesuffix("...").strip()
        yield f"`{full}`", f"`{escape(shown)}`", comments.get(full, "")
