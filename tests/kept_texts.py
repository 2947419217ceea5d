"""All texts that an object keeps, wherever they are: for tests that nothing is remembered for ever."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from types import MethodType
from weakref import WeakKeyDictionary, WeakValueDictionary


def kept_texts(root: object, *, without: Iterable[object] = ()) -> Iterator[tuple[str, str]]:
    """Yield each text with the way to it, *without* those in some objects.

    Containers, and the attributes of our objects, are followed; functions and objects of other libraries are not.
    """
    stack: list[tuple[str, object]] = [(type(root).__name__, root)]
    seen = {id(excluded): excluded for excluded in without}  # kept, so that identities stay unique
    while stack:
        way, current = stack.pop()
        if id(current) in seen:
            continue
        seen[id(current)] = current
        if isinstance(current, str | bytes):
            yield way, str(current)
        stack += _parts(way, current)


def _parts(way: str, current: object) -> Iterator[tuple[str, object]]:
    if isinstance(current, Mapping | WeakKeyDictionary | WeakValueDictionary):
        for key, value in list(current.items()):
            yield f"{way}: keys", key
            yield f"{way}[…]", value
    elif isinstance(current, list | tuple | set | frozenset | deque):
        yield from ((f"{way}[…]", member) for member in current)
    elif isinstance(current, MethodType):
        yield way, current.__self__
    if type(current).__module__.startswith("alignup."):
        slots = [name for class_ in type(current).__mro__ for name in getattr(class_, "__slots__", ())]
        names = {*getattr(current, "__dict__", ()), *slots, *getattr(current, "__struct_fields__", ())}
        for name in names - {"__weakref__"}:  # which some versions of Python cannot read
            yield f"{way}.{name}", getattr(current, name, None)
