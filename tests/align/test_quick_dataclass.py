"""Quick data classes behave as those of the standard library."""

import copy
import dataclasses
import pickle
from dataclasses import KW_ONLY, FrozenInstanceError, field
from typing import Any, ClassVar

import pytest

from alignup.align import quick_dataclass

OPTIONS = [
    {},
    {"slots": True},
    {"frozen": True},
    {"frozen": True, "slots": True},
    {"frozen": True, "slots": True, "kw_only": True},
    {"eq": False},
    {"repr": False},
    {"frozen": True, "slots": True, "eq": False},
]


class Fields:
    """The body of a data class with all kinds of fields."""

    kind: ClassVar[str] = "all"
    first: int
    second: str = "b"
    third: list[int] = field(default_factory=list, hash=False)
    hidden: int = field(default=3, repr=False, compare=False)
    _: KW_ONLY
    last: int = 4
    derived: int = field(default=5, init=False)
    made: list[int] = field(default_factory=list, init=False, compare=False)

    def __post_init__(self) -> None:
        self.made.append(self.first)


def define(decorate: Any, options: dict[str, bool], body: type = Fields) -> Any:
    own = {name: value for name, value in vars(body).items() if name not in {"__dict__", "__weakref__"}}
    fields = {name: copy.copy(value) if isinstance(value, dataclasses.Field) else value for name, value in own.items()}
    return decorate(**options)(type("Made", (), fields))


@pytest.mark.parametrize("options", OPTIONS)
def test_both_decorators_make_the_same_class(options):
    results = []
    for decorate in (dataclasses.dataclass, quick_dataclass.dataclass):
        made = define(decorate, options)
        one, same = made(first=1, last=7), made(first=1, last=7, hidden=9)
        other = dataclasses.replace(one, second="c") if not options.get("frozen") else made(first=1, second="c")
        results.append(
            {
                "repr": repr(one) if options.get("repr", True) else None,
                "equal": (one == same, one == other, one == 1, one != same),
                "hashable": _hash(one) == _hash(same),
                "fields": [(each.name, each.init, each.kw_only) for each in dataclasses.fields(made)],
                "match": made.__match_args__,
                "slots": getattr(made, "__slots__", None),
                "values": (one.kind, one.third, one.derived, one.made, one.last, made.kind),
                "errors": [_error(action) for action in _actions(made, one)],
                "dict": hasattr(one, "__dict__"),
                "copy": copy.copy(one).first,
                "frozen": made.__dataclass_params__.frozen,
            }
        )

    assert results[0] == results[1]


def _hash(one: object) -> object:
    try:
        return hash(one) if type(one).__hash__ is not object.__hash__ else "by identity"
    except TypeError:
        return "none"


def _actions(made: Any, one: Any) -> list[Any]:
    return [
        made,
        lambda: made(first=1, unknown=2),
        lambda: made(first=1, derived=2),
        lambda: setattr(one, "first", 2),
        *([lambda: setattr(one, "unknown", 2)] if hasattr(one, "__dict__") else []),  # the standard one fails otherwise
        lambda: delattr(one, "second"),
    ]


def _error(action: Any) -> object:
    try:
        action()
    except (TypeError, AttributeError) as error:
        return type(error), str(error).replace("positional ", "")
    return None


@quick_dataclass.dataclass(frozen=True, slots=True)
class Base:
    a: int
    b: int = 2


@quick_dataclass.dataclass(frozen=True, slots=True)
class Derived(Base):
    a: int
    b: int = 3
    c: int = 4


@quick_dataclass.dataclass
class Own:
    """Its own methods win."""

    a: int = field()
    b: int = 1

    def __init__(self) -> None:
        self.a = 7

    def __repr__(self) -> str:
        return "own"

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 1


@quick_dataclass.dataclass(frozen=True)
class Open:
    a: int


class Subclass(Open):
    """Not a data class, so it has other attributes, too."""

    other: int


def test_a_derived_class_has_the_fields_of_its_base():
    one = Derived(1)

    assert repr(one) == "Derived(a=1, b=3, c=4)"
    assert vars(Derived)["__slots__"] == ("c",)
    assert (one == Base(1, 3), Derived(1, 3, 4) == one) == (False, True)
    assert dataclasses.asdict(dataclasses.replace(one, b=9)) == {"a": 1, "b": 9, "c": 4}
    assert (hash(one) == hash(Derived(1)), pickle.loads(pickle.dumps(one)) == one) == (True, True)  # noqa: S301


def test_own_methods_are_kept():
    assert (repr(Own()), Own() == 3, hash(Own()), Own().b) == ("own", True, 1, 1)


def test_a_subclass_may_set_attributes_that_are_no_fields():
    one = Subclass(1)
    one.other = 2
    assert one.other == 2
    del one.other

    for action in (lambda: setattr(one, "a", 2), lambda: delattr(one, "a")):
        with pytest.raises(FrozenInstanceError):
            action()


def test_classes_without_fields_and_with_one():
    empty: Any = quick_dataclass.dataclass(type("Empty", (), {"__annotations__": {}}))
    single: Any = quick_dataclass.dataclass(frozen=True)(type("Single", (), {"__annotations__": {"a": int}}))

    assert (empty() == empty(), repr(empty())) == (True, "Empty()")
    assert (single(1) == single(1), single(1) == single(2), hash(single(1)) == hash(single(1))) == (True, False, True)


def test_an_object_that_contains_itself_has_a_representation():
    made: Any = quick_dataclass.dataclass(type("Node", (), {"__annotations__": {"next": Any}}))
    one = made(None)
    one.next = one

    assert repr(one) == "Node(next=...)"


def test_a_mutable_default_is_an_error():
    with pytest.raises(ValueError, match=r"mutable default of Bad\.a"):
        quick_dataclass.dataclass(type("Bad", (), {"__annotations__": {"a": list}, "a": []}))
