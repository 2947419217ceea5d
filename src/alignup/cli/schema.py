"""``alignup schema``: print the JSON Schema of a kind of file that people write."""

import click
import msgspec

from alignup.cli import terminal
from alignup.cli.app import define_command
from alignup.documents.machines import MachineDocument
from alignup.simulate.cluster_files import ClusterDocument, SweepDocument
from alignup.simulate.trace import TraceDocument

DIALECT = "https://json-schema.org/draft/2020-12/schema"
TYPES: dict[str, type[msgspec.Struct]] = {
    "machine": MachineDocument,
    "cluster": ClusterDocument,
    "sweep": SweepDocument,
    "trace": TraceDocument,
}


@define_command("schema", "alignup schema sweep > sweep.schema.json")
@click.argument("kind", type=click.Choice(tuple(TYPES)))
def command(kind: str) -> None:
    """Print the JSON Schema of machine, cluster or sweep files, or of the header of traces.

    Editors complete and check a file whose first line names the schema:

    \b
    # yaml-language-server: $schema=sweep.schema.json
    """  # noqa: D301 - \b is click's mark for preformatted text
    terminal.print_json({"$schema": DIALECT, **msgspec.json.schema(TYPES[kind])})
