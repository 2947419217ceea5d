"""Writes values as YAML."""

from typing import TYPE_CHECKING

import yaml

if TYPE_CHECKING:
    _Base = yaml.SafeDumper
else:
    _Base = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class _Dumper(_Base):
    """Writes subclasses of ``str``, such as enum members, as plain strings."""


_Dumper.add_multi_representer(str, lambda dumper, value: dumper.represent_str(str(value)))


def to_yaml(value: object) -> str:
    """*value*, made of JSON types, as one YAML document; keys keep their order."""
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
    return text
