"""``dataclasses.dataclass`` for modules that short commands import.

The standard decorator compiles up to seven methods for each class, whether they are called or not, and that took a
third of the start of a command. Here a method is compiled when it is called first, and rarely used ones share their
code. ``dataclasses.fields`` and ``replace`` work as usual. An order, ``InitVar`` and annotations in quotes that are
``ClassVar`` or ``KW_ONLY`` need the standard decorator.
"""

import dataclasses
from collections.abc import Callable, Mapping
from reprlib import recursive_repr
from types import MemberDescriptorType
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass  # noqa: PLC0414 - type checkers know it
else:

    def dataclass(cls: type | None = None, /, **options: bool) -> Any:  # noqa: ANN401
        """Return *cls* as a data class; *options* are those of ``dataclasses.dataclass``."""
        return _define(cls, **options) if cls is not None else lambda cls: _define(cls, **options)


_Field = dataclasses.Field[Any]
_Fields = dict[str, _Field]
_Method = Callable[..., Any]


@dataclasses.dataclass
class _Plain:
    field: int


@dataclasses.dataclass(frozen=True)
class _Frozen:
    field: int


_FIELDS, _PARAMETERS, _KIND = "__dataclass_fields__", "__dataclass_params__", "_field_type"
_ORDINARY = getattr(dataclasses.fields(_Plain)[0], _KIND)  #: marks a field that is no ``ClassVar`` or ``InitVar``
_NOT_GIVEN = object()  #: the default of a parameter whose field has a factory


def _define(  # noqa: PLR0913
    cls: type,
    *,
    frozen: bool = False,
    slots: bool = False,
    kw_only: bool = False,
    eq: bool = True,
    repr: bool = True,  # noqa: A002 - as in dataclasses
    init: bool = True,
) -> type:
    fields = _collect_fields(cls, kw_only=kw_only)
    own = vars(cls)
    added: dict[str, Any] = {
        _FIELDS: fields,
        _PARAMETERS: getattr(_Frozen if frozen else _Plain, _PARAMETERS),
        "__match_args__": tuple(one.name for one in fields.values() if one.init and not one.kw_only),
    }
    if repr:
        added["__repr__"] = _repr
    compiled: dict[str, Callable[[type], _Method]] = {
        "__init__": lambda cls: _init_method(cls, fields, frozen=frozen, slots=slots),
        "__eq__": lambda _: _eq_method(fields),
    }
    wanted = {"__init__": init, "__eq__": eq}
    compiled = {name: make for name, make in compiled.items() if wanted[name] and name not in own}
    if eq and own.get("__hash__") is None:  # also if the class defines only __eq__
        added["__hash__"] = None
        compiled |= {"__hash__": lambda _: _hash_method(fields)} if frozen else {}
    if slots and frozen:
        added |= {"__getstate__": _get_state, "__setstate__": _set_state}
    added = {name: value for name, value in added.items() if name not in own or name in {"__hash__", _FIELDS}}
    return _add_methods(_with_slots(cls, fields) if slots else cls, added, compiled, frozen=frozen)


def _add_methods(
    cls: type, added: Mapping[str, Any], compiled: Mapping[str, Callable[[type], _Method]], *, frozen: bool
) -> type:
    for name, value in added.items():
        setattr(cls, name, value)
    if frozen:
        _freeze(cls, added[_FIELDS])
    for name, compile_method in compiled.items():
        _add_method(cls, name, compile_method)
    return cls


def _collect_fields(cls: type, *, kw_only: bool) -> _Fields:
    """Return the fields of *cls* and its bases, and leave only plain defaults in the class."""
    fields: _Fields = {}
    for base in cls.__mro__[:0:-1]:
        fields |= vars(base).get(_FIELDS, {})
    for name, annotation in cls.__annotations__.items():
        if annotation is dataclasses.KW_ONLY:
            kw_only = True
            continue
        if getattr(annotation, "__origin__", annotation) is ClassVar:
            continue
        default: Any = getattr(cls, name, dataclasses.MISSING)
        if isinstance(default, MemberDescriptorType):  # a slot of a base
            default = dataclasses.MISSING
        one: _Field = default if isinstance(default, dataclasses.Field) else dataclasses.field(default=default)
        if one.default.__class__.__hash__ is None:
            raise ValueError(f"mutable default of {cls.__qualname__}.{name}: use a default_factory")
        one.name, one.type = name, annotation
        one.kw_only = kw_only if one.kw_only is dataclasses.MISSING else one.kw_only
        setattr(one, _KIND, _ORDINARY)
        fields[name] = one
        if default is one:
            if one.default is dataclasses.MISSING:
                delattr(cls, name)
            else:
                setattr(cls, name, one.default)
    return fields


def _with_slots(cls: type, fields: _Fields) -> type:
    """Return another class with slots, which cannot be added to a class that exists."""
    inherited = {name for base in cls.__mro__[1:] for name in vars(base).get("__slots__", ())}
    own = {name: value for name, value in vars(cls).items() if name not in fields}
    for name in ("__dict__", "__weakref__"):
        own.pop(name, None)
    slots = {"__slots__": tuple(name for name in fields if name not in inherited), "__qualname__": cls.__qualname__}
    return type(cls)(cls.__name__, cls.__bases__, own | slots)


def _add_method(cls: type, name: str, compile_method: Callable[[type], _Method]) -> None:
    """Add a method that is compiled, and replaces itself, when it is called first."""

    def method(self: object, *args: object, **kwargs: object) -> Any:  # noqa: ANN401 - of any method
        compiled = compile_method(cls)
        setattr(cls, name, compiled)
        return compiled(self, *args, **kwargs)

    setattr(cls, name, method)


def _eq_method(fields: _Fields) -> _Method:
    names = [one.name for one in fields.values() if one.compare]
    own, others = _values("self", names), _values("other", names)
    condition = "other.__class__ is self.__class__"
    return _compile("__eq__", "self, other", f"return {own} == {others} if {condition} else NotImplemented")


def _hash_method(fields: _Fields) -> _Method:
    names = [one.name for one in fields.values() if (one.compare if one.hash is None else one.hash)]
    return _compile("__hash__", "self", f"return hash({_values('self', names)})")


def _values(of: str, names: list[str]) -> str:
    return f"({''.join(f'{of}.{name},' for name in names)})"


def _compile(name: str, parameters: str, body: str, names: dict[str, Any] | None = None) -> _Method:
    """Return a function; *names* are its globals."""
    names = {} if names is None else names
    exec(f"def {name}({parameters}):\n {body}", names)  # noqa: S102 - as dataclasses does
    method: _Method = names[name]
    return method


@recursive_repr()
def _repr(self: Any) -> str:  # noqa: ANN401
    shown = [f"{one.name}={getattr(self, one.name)!r}" for one in dataclasses.fields(self) if one.repr]
    return f"{self.__class__.__qualname__}({', '.join(shown)})"


def _get_state(self: Any) -> list[Any]:  # noqa: ANN401
    return [getattr(self, one.name) for one in dataclasses.fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:  # noqa: ANN401
    for one, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, one.name, value)


def _freeze(cls: Any, fields: _Fields) -> None:  # noqa: ANN401 - a class for super()
    def __setattr__(self: object, name: str, value: object) -> None:  # noqa: N807
        if type(self) is cls or name in fields:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def __delattr__(self: object, name: str) -> None:  # noqa: N807
        if type(self) is cls or name in fields:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    cls.__setattr__, cls.__delattr__ = __setattr__, __delattr__


def _init_method(cls: type, fields: _Fields, *, frozen: bool, slots: bool) -> _Method:
    names: dict[str, Any] = {"_not_given": _NOT_GIVEN, "_set": object.__setattr__}
    positional, keywords, body = ["self"], list[str](), list[str]()
    for name, one in fields.items():
        value = parameter = name
        if one.default_factory is not dataclasses.MISSING:
            names[f"_new_{name}"] = one.default_factory
            parameter, value = f"{name}=_not_given", f"_new_{name}() if {name} is _not_given else {name}"
        elif one.default is not dataclasses.MISSING:
            names[f"_default_{name}"] = one.default
            parameter = f"{name}=_default_{name}"
        if one.init:
            (keywords if one.kw_only else positional).append(parameter)
        elif one.default_factory is not dataclasses.MISSING:
            value = f"_new_{name}()"
        elif one.default is not dataclasses.MISSING:
            value = f"_default_{name}"
        else:
            continue
        if frozen and slots:  # the quickest way
            names[f"_set_{name}"] = getattr(cls, name).__set__
            body.append(f"_set_{name}(self, {value})")
        else:
            body.append(f"_set(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    parameters = ", ".join(positional + (["*", *keywords] if keywords else []))
    init = _compile("__init__", parameters, "\n ".join(body or ["pass"]), names)
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    return init
