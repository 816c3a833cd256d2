"""Objects as YAML whose texts stay texts to kubectl and kustomize."""

from collections.abc import Iterable
from typing import Any

import yaml


class _Quoting(yaml.SafeDumper):
    """Every text in quotes: PyYAML writes 12e34567 without, which Go's readers take for a number."""


_Quoting.add_representer(str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"'))


def documents(objects: Iterable[Any]) -> str:
    """One YAML document for each object."""
    return yaml.dump_all(objects, Dumper=_Quoting, sort_keys=False)
