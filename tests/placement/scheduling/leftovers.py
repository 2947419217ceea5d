"""What a scheduling state still knows: all texts in its attributes, so that names of what is gone can be found."""

from collections.abc import Collection, Iterator
from typing import Any

from alignup.placement.scheduling.scheduling_state import SchedulingState

#: Caches with bounds: ended pods that a late report may contain, or a scheduler asks about, verdicts, and the keys and
#: examples of pod classes. The facts are those of the test.
BOUNDED = frozenset(
    (
        *(
            "_facts",
            "_stages",
            "rejected",
            "_verdicts",
            "_models",
            "_turn",
            "_handlers",
            "_gate_handlers",
            "key",
            "pod",
        ),
        "_gone",
    )
)


def leftovers(state: SchedulingState, names: Collection[str]) -> list[str]:
    """Return where *names* are left in a state."""
    return sorted(f"{path}: {text}" for path, text in _walk(state, "state", set()) if any(map(text.count, names)))


def _walk(value: Any, path: str, seen: set[int]) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield path, value
        return
    if id(value) in seen or callable(value):
        return
    seen.add(id(value))
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _walk(key, f"{path} key", seen) if not path.endswith("._classes") else ()
            yield from _walk(item, f"{path}[]", seen)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from _walk(item, f"{path}[]", seen)
    else:
        slots = [name for each in type(value).__mro__ for name in getattr(each, "__slots__", ())]
        for name in sorted({*slots, *getattr(value, "__dict__", {})} - BOUNDED - {"__weakref__"}):
            yield from _walk(getattr(value, name, None), f"{path}.{name}", seen)
