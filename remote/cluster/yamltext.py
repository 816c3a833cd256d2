"""Objects as YAML that kubectl and kustomize read as what they are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import yaml


class _Quoting(yaml.SafeDumper):
    """Every text in quotes: PyYAML leaves 12e34567 bare, which is text to it and a number to Go's readers."""


def _quoted(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"')


_Quoting.add_representer(str, _quoted)


def documents(objects: Iterable[Any]) -> str:
    """One YAML document for each object. Texts stay texts, whatever they look like."""
    return yaml.dump_all(objects, Dumper=_Quoting, sort_keys=False)
