"""Machine descriptions as YAML and JSON texts; ``schema.machines`` defines their contents."""

import json

from alignup.align.errors import SourceError
from alignup.align.machine import Machine
from alignup.schema.machines import machine_from_document, machine_to_document

MAX_DEPTH = 32


def dump(machine: Machine) -> str:
    import yaml  # noqa: PLC0415 - JSON does not need it

    return yaml.dump(
        machine_to_document(machine),
        Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper),
        sort_keys=False,
        default_flow_style=None,
        width=120,
        allow_unicode=True,
    )


def dump_json(machine: Machine) -> str:
    return json.dumps(machine_to_document(machine), indent=1)


def parse(text: str, *, name: str = "the text") -> Machine:
    import yaml  # noqa: PLC0415 - see dump

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C loader, if PyYAML was built with libyaml
    try:
        depth = 0
        for event in yaml.parse(text, Loader=loader):  # aliases and deep nesting can expand without limit
            if isinstance(event, yaml.AliasEvent):
                raise SourceError(f"{name} uses the YAML alias {event.anchor!r}, which is not allowed")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                raise SourceError(f"{name} is nested more than {MAX_DEPTH} levels deep")
        found = yaml.load(text, Loader=loader)  # noqa: S506 - both are safe loaders
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise SourceError(f"{name} is not valid YAML: {' '.join(str(error).split())}") from error
    return machine_from_document(found, name=name)
