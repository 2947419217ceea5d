"""``functools.cached_property`` without its lock, which until Python 3.12 costs more than most values cached here."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


class lock_free_cached_property(Generic[Value]):  # noqa: N801 - used like ``property``
    """The first value replaces the method in the instance's ``__dict__``; at worst, two threads compute it twice."""

    def __init__(self, method: Callable[[Any], Value]) -> None:
        self._method = method
        self._name = method.__name__
        self.__doc__ = method.__doc__

    def __get__(self, instance: object | None, owner: type) -> Value:
        if instance is None:
            return self  # type: ignore[return-value] # the class attribute, for introspection
        value = instance.__dict__[self._name] = self._method(instance)
        return value
