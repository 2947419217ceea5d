"""``functools.cached_property`` without its lock.

Until Python 3.12, ``functools.cached_property`` takes a lock, which costs more than most values cached here. Immutable
objects need none: at worst, two threads compute the same value twice.
"""

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, overload

Value = TypeVar("Value")


class lock_free_cached_property(Generic[Value]):  # noqa: N801 - used like ``property``
    """The first value replaces the method in the instance's ``__dict__``."""

    def __init__(self, method: Callable[[Any], Value]) -> None:
        self._method = method
        self._name = method.__name__
        self.__doc__ = method.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...

    @overload
    def __get__(self, instance: object, owner: type) -> Value: ...

    def __get__(self, instance: object | None, owner: type) -> Self | Value:
        if instance is None:
            return self
        value = instance.__dict__[self._name] = self._method(instance)
        return value
