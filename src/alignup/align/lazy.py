"""A property worked out once, on first use.

``functools.cached_property`` takes a lock each time until Python 3.12, which costs more than most of what is kept here;
facts that never change need none: at worst the same value is worked out twice.
"""

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, overload

Value = TypeVar("Value")


class lazy(Generic[Value]):  # noqa: N801 - used like ``property``
    """Works like ``cached_property``: the first value takes the place of the method in the instance."""

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
