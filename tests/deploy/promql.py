"""The selectors and labels in PromQL expressions: as much of the language as dashboards and rules here use.

Anything else is an error, so that nothing is left unchecked.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<text>"[^"\\]*")
      | (?P<duration>\[(?:\d+[smhd]|\$__rate_interval|\$__range)\])
      | (?P<number>\d+(?:\.\d+)?)
      | (?P<name>[a-zA-Z_:][\w:]*)
      | (?P<sign>=~|!~|!=|==|>=|<=|[-+*/<>={}(),])
    )\s*""",
    re.VERBOSE,
)
AGGREGATIONS = {"count", "max", "min", "sum"}
RATES = {"increase", "rate"}
FUNCTIONS = {*AGGREGATIONS, *RATES, "histogram_quantile", "time", "vector"}
OPERATORS = {"and", "or", "unless"}
_MATCHES = {"=", "!=", "=~", "!~"}


class Matcher(NamedTuple):
    label: str
    operator: str
    value: str

    @property
    def values(self) -> tuple[str, ...]:
        """The values that it names; none if it is a variable or another regular expression than alternatives."""
        values = self.value.split("|") if "~" in self.operator else [self.value]
        return tuple(values) if all(re.fullmatch(r"\w+", value) for value in values) else ()


class Selector(NamedTuple):
    metric: str
    matchers: tuple[Matcher, ...]
    function: str  #: that has it as its first argument; empty: none
    ranged: bool  #: whether it selects a range of time


@dataclass
class Query:
    selectors: list[Selector] = field(default_factory=list)
    groups: list[tuple[str, ...]] = field(default_factory=list)  #: the labels of each ``by``
    aggregations: int = 0


def parse(expression: str) -> Query:
    """Read an expression; ``ValueError`` for what is not known or not complete."""
    tokens = _tokens(expression)
    query = Query()
    depth = position = 0
    while position < len(tokens):
        kind, word = tokens[position]
        position += 1
        depth += (word == "(") - (word == ")")
        if kind == "duration" or depth < 0 or word in {"{", "}"}:
            raise ValueError(f"unexpected {word} in {expression}")
        if kind != "name" or word in OPERATORS:
            continue
        if word == "by":
            labels, position = _labels(tokens, position)
            query.groups.append(labels)
        elif word in FUNCTIONS:
            query.aggregations += word in AGGREGATIONS
        else:
            function = tokens[position - 3][1] if position > 2 and tokens[position - 2][1] == "(" else ""
            matchers, position = _matchers(tokens, position)
            ranged = tokens[position][0] == "duration"
            position += ranged
            following, text = tokens[position]
            if text == "(" or (following in {"name", "number", "text"} and text not in OPERATORS):
                raise ValueError(f"unexpected {text} after {word} in {expression}")
            query.selectors.append(Selector(word, matchers, function if function in FUNCTIONS else "", ranged))
    if depth or not query.selectors:
        raise ValueError(f"not a complete expression: {expression}")
    return query


def _tokens(expression: str) -> Sequence[tuple[str, str]]:
    tokens: list[tuple[str, str]] = []
    position = 0
    while position < len(expression):
        match = _TOKEN.match(expression, position)
        if match is None:
            raise ValueError(f"unknown: {expression[position:]}")
        kind = match.lastgroup or ""
        tokens.append((kind, match[kind]))
        position = match.end()
    return [*tokens, *[("end", "")] * 4]  # a matcher and its separator


def _labels(tokens: Sequence[tuple[str, str]], position: int) -> tuple[tuple[str, ...], int]:
    end = next(place for place in range(position, len(tokens)) if tokens[place][1] in {")", ""})
    words = [word for _, word in tokens[position:end]]
    if words[:1] != ["("] or words[2::2] != [","] * (len(words) // 2 - 1) or tokens[end][1] != ")":
        raise ValueError(f"not a list of labels: {words}")
    return tuple(words[1::2]), end + 1


def _matchers(tokens: Sequence[tuple[str, str]], position: int) -> tuple[tuple[Matcher, ...], int]:
    matchers: list[Matcher] = []
    if tokens[position][1] != "{":
        return (), position
    separator = ","
    while separator == ",":
        (kind, label), (_, operator), (value_kind, value), (_, separator) = tokens[position + 1 : position + 5]
        if (kind, value_kind) != ("name", "text") or operator not in _MATCHES:
            raise ValueError(f"not a matcher: {label}{operator}{value}")
        matchers.append(Matcher(label, operator, value.strip('"')))
        position += 4
    if separator != "}":
        raise ValueError(f"not a list of matchers: {separator} after {matchers[-1]}")
    return tuple(matchers), position + 1
