"""What stands, as the state files of a kubelet with the same configuration, which can go on from there."""

from collections.abc import Iterator
from pathlib import Path

from alignup.agent.recovery import recover
from alignup.agent.run import Options
from alignup.align.errors import StateError
from alignup.state import export as states
from alignup.state import kubelet_dir
from alignup.state.lock import lock
from alignup.state.store import Store


def export(options: Options, directory: Path) -> Iterator[str]:
    """Write the files to *directory*, and say what was written; the agent must not run meanwhile."""
    store = Store(options.root)
    with lock(options.root):
        recovered = recover(store, options.host, terms=options.terms, now=options.clock.now())
    if recovered.problems:
        raise StateError("; ".join(recovered.problems))
    found = states.export(recovered.standing.host)
    for path in kubelet_dir.write_dir(directory, found, gates=options.host.settings.gates):
        yield f"wrote {path}"
    for gap in found.gaps:
        yield f"note: {gap}"
    if waiting := len(recovered.standing.line.pods):
        yield f"note: {waiting} pods wait; a kubelet knows nothing of them"
