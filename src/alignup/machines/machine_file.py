"""Descriptions of machines in YAML and JSON: ours, which ``documents.machines`` defines, and cAdvisor's."""

import json

import yaml

from alignup.align.errors import SourceError
from alignup.align.machine import Machine
from alignup.documents.line_numbers import find_line
from alignup.documents.machines import machine_from_document, machine_to_document

MAX_YAML_VALUES = 400_000  #: values and keys
MAX_JSON_MARKS = 2_000_000  #: commas, colons and brackets
MAX_DEPTH = 32  #: of nested lists and objects in YAML


def parse(text: str, *, name: str = "the text") -> Machine:
    """Return the machine in YAML."""
    document = load_yaml(text, name=name)
    if document is None:
        raise SourceError(f"{name} is empty: expected the description of a machine")
    return _from_document(document, text, name)


def load_yaml(text: str, *, name: str) -> object:
    """Return what a text of limited size contains."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C loader, if PyYAML was built with libyaml
    try:
        depth = values = 0
        for event in yaml.parse(text, Loader=loader):  # aliases and deep nesting can expand without limit
            if isinstance(event, yaml.AliasEvent):
                raise SourceError(f"{name} uses the YAML alias {event.anchor!r}, which is not allowed")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                raise SourceError(f"{name} is nested more than {MAX_DEPTH} levels deep")
            values += isinstance(event, yaml.NodeEvent)
            if values > MAX_YAML_VALUES:
                raise SourceError(f"{name} has more than {MAX_YAML_VALUES} values and keys; JSON may have more")
        return yaml.load(text, Loader=loader)  # noqa: S506 - both are safe loaders
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        message = " ".join(filter(None, (error.problem, error.context)))
        raise SourceError(f"not valid YAML: {message}", file=name, line=mark.line + 1 if mark else 0) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise SourceError(f"not valid YAML: {' '.join(str(error).split())}", file=name) from error


def parse_json(text: str, *, name: str) -> Machine:
    if sum(map(text.count, ",:[{")) > MAX_JSON_MARKS:
        raise SourceError(f"{name} has more than {MAX_JSON_MARKS} commas, colons and brackets")
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise SourceError(f"not valid JSON: {error.msg}", file=name, line=error.lineno) from error
    except (ValueError, RecursionError) as error:
        raise SourceError(f"not valid JSON: {error}", file=name) from error
    return _from_document(document, text, name)


def _from_document(document: object, text: str, name: str) -> Machine:
    """Return the machine in a decoded *text*; an error in a field has its line."""
    try:
        if isinstance(document, dict) and "topology" in document and "num_cores" in document:
            from alignup.machines.cadvisor import from_machine_info  # noqa: PLC0415 - only for cAdvisor's JSON

            return from_machine_info(document, name=name)
        return machine_from_document(document, name=name)
    except SourceError as error:
        if not error.field:
            raise
        line = find_line(text, error.field)
        raise SourceError(error.message, file=error.file, line=line, field=error.field) from error


def dump(machine: Machine) -> str:
    """Return *machine* as YAML."""
    document, dumper = machine_to_document(machine), getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return yaml.dump(document, None, dumper, sort_keys=False, default_flow_style=None, width=120, allow_unicode=True)


def dump_json(machine: Machine) -> str:
    """Return *machine* as JSON, with the levels and links of pairs of devices."""
    return json.dumps(machine_to_document(machine, pairs=True), indent=1)
