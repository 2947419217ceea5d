"""Discovery of this machine, of generated files of large machines, of archives and of descriptions."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

from alignup.machines import discover, load, machine_file, record, synthetic
from bench.harness import Figure, best
from tests.discover import kernel


def figures() -> Iterator[Figure]:
    yield Figure("this machine", best(discover), budget=0.1)
    large = synthetic.parse("pack:8 numa:2 l3:4 core:16 pu:2", distances=(10, 21))
    with tempfile.TemporaryDirectory() as scratch:
        root = kernel.describe(large).write(Path(scratch) / "root")
        machine = discover(root)
        assert len(machine.cpus) == 2048
        yield Figure("2048 CPUs, 16 nodes, from a directory", best(lambda: discover(root), rounds=3), budget=1.0)
        file = Path(scratch) / "large.tar.gz"
        yield Figure("2048 CPUs, recorded and read back", best(lambda: record(root, file), rounds=1))
        yield Figure("2048 CPUs, from an archive", best(lambda: load(file), rounds=1))
        written = machine_file.dump(machine)
        yield Figure("2048 CPUs, from YAML", best(lambda: machine_file.parse(written), rounds=3))
