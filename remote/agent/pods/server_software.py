"""Versions of vLLM and of the packages that load an NF4 base, as one JSON line; null for a missing package.

Runs inside a server's image as `python3 -c THIS`. Reads only the packages' metadata: vLLM is not imported, because that
takes a minute and may need a GPU.
"""

from __future__ import annotations

import json
import re
import sys
from importlib import metadata
from typing import Any


def versions() -> dict[str, str | None]:
    """Return the versions by name. vLLM has several package names; its package is the one with the program `vllm`."""
    versions_by_name: dict[str, str | None] = dict.fromkeys(("vllm", "vllm-bnb-plugin", "bitsandbytes"))
    for distribution in reversed(list(metadata.distributions())):  # the first one on the path is imported
        fields: Any = distribution.metadata
        name = re.sub(r"[-_.]+", "-", fields["Name"] or "").lower()
        programs = [entry.name for entry in distribution.entry_points if entry.group == "console_scripts"]
        name = "vllm" if "vllm" in programs else name
        if name in versions_by_name:
            versions_by_name[name] = distribution.version
    return versions_by_name


if __name__ == "__main__":
    sys.stdout.write(json.dumps(versions()) + "\n")
