"""Values as YAML that people read and Kubernetes takes back."""

from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    _Base = yaml.SafeDumper
else:
    _Base = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class _Dumper(_Base):
    """Writes texts of any kind as texts."""


def _text(dumper: Any, value: str) -> Any:  # noqa: ANN401 - yaml's own types have no names
    return dumper.represent_str(str(value))


_Dumper.add_multi_representer(str, _text)


def to_yaml(value: object) -> str:
    """*value*, made of what JSON knows, as one YAML document with its keys in the order they have."""
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
    return text
