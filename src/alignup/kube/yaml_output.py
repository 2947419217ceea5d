"""Writes values as YAML."""

from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    _Base = yaml.SafeDumper
else:
    _Base = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class _Dumper(_Base):
    """Writes subclasses of ``str``, such as enum members, as plain strings."""


def _represent_string(dumper: Any, value: str) -> Any:  # noqa: ANN401 - yaml's own types have no names
    return dumper.represent_str(str(value))


_Dumper.add_multi_representer(str, _represent_string)


def to_yaml(value: object) -> str:
    """*value*, made of JSON types, as one YAML document; keys keep their order."""
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
    return text
