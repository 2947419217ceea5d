"""Random changes of JSON documents: odd values, missing and repeated parts, and values in the wrong place."""

import copy
import random
from collections.abc import Iterator
from typing import Any

#: Values that a careless reader mistakes for others, or spends hours with.
ODD: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1,
    1 << 31,
    1 << 63,
    -(1 << 63) - 1,
    10**40,
    0.5,
    1e300,
    -1e300,
    "",
    "0",
    "-1",
    "0-1000000",
    "1048575",
    "1048576",
    "3-1",
    "a",
    "x" * 5_000,
    "\ud800",
    "\0",
    "../../etc",
    "1e999999999",
    "1e-999999999",
    "999999999999999999999999Ei",
    "0x1",
    [],
    {},
    [[]],
    {"": ""},
    {"unscaled": "0x1", "power": 999_999_999, "format": "DecimalSI", "dec": True, "text": None},
    {"unscaled": "0x1", "power": -999_999_999, "format": "DecimalSI", "dec": False, "text": "1"},
)


def every_other(limit: int) -> str:
    return ",".join(map(str, range(0, limit, 2)))


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container with every key of it."""
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from places(value[key])


def mutate(document: Any, rng: random.Random) -> Any:
    """A copy of *document* with one to three changes."""
    changed = copy.deepcopy(document)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        all_places = list(places(changed))
        if not all_places:
            break
        where, key = rng.choice(all_places)
        other, other_key = rng.choice(all_places)
        match rng.randrange(8):
            case 0 | 1 | 2:
                where[key] = copy.deepcopy(rng.choice(ODD))
            case 3:
                del where[key]
            case 4:  # a value from elsewhere
                where[key] = copy.deepcopy(other[other_key])
            case 5 if isinstance(where, list):
                where.append(copy.deepcopy(where[key]))
            case 5 | 6 if isinstance(where, dict):
                where[rng.choice(("", "x", "0", "app", "a", "/", "-1", "99999999999999999999"))] = where[key]
            case _:
                where[key] = rng.choice((nested, long_list))()
    return changed


def nested() -> dict[str, Any]:
    """Return an object in an object in an object, and so on."""
    innermost: dict[str, Any] = {"inner": None}
    for _ in range(300):
        innermost = {"inner": innermost}
    return innermost


def long_list() -> str:
    return every_other(1 << 17)
