"""Capabilities of a server's image, from the versions of its packages. Pure."""

import json
import re
from dataclasses import dataclass
from typing import Self

PLUGIN, BITSANDBYTES = "vllm-bnb-plugin", "bitsandbytes"
LAST_WITHOUT_PLUGIN = (0, 27, 1)  # later versions load bitsandbytes' formats by a plugin only (vllm-project/vllm#43529)
MAX_VERSION_CHARS = 80


@dataclass(frozen=True, kw_only=True)
class ServerSoftware:
    """Versions in a server's image, from `remote.agent.scripts.server_software`; None for a missing package."""

    vllm: str | None
    plugin: str | None
    bitsandbytes: str | None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the program's output: the last line is a JSON object. Raises ValueError."""
        document = json.loads((text.strip().splitlines() or [""])[-1])
        if not isinstance(document, dict):
            raise ValueError("expected a JSON object")
        versions = [document.get(name) for name in ("vllm", PLUGIN, BITSANDBYTES)]
        if not all(version is None or (isinstance(version, str) and version.isprintable()) for version in versions):
            raise ValueError("expected versions as text")
        vllm, plugin, bitsandbytes = (version and version[:MAX_VERSION_CHARS] for version in versions)
        return cls(vllm=vllm, plugin=plugin, bitsandbytes=bitsandbytes)

    @property
    def release(self) -> tuple[int, int, int] | None:
        """The three numbers of vLLM's release; None if unknown, as for a development build without a tag."""
        match = re.match(r"(\d{1,6})\.(\d{1,6})\.(\d{1,6})", self.vllm or "")
        return None if match is None else (int(match[1]), int(match[2]), int(match[3]))

    @property
    def missing_for_nf4(self) -> tuple[str, ...] | None:
        """Names of the packages without which this vLLM cannot load an NF4 base; None if its release is unknown."""
        if self.release is None:
            return None
        needs_plugin = self.release > LAST_WITHOUT_PLUGIN
        missing = {PLUGIN: needs_plugin and self.plugin is None, BITSANDBYTES: self.bitsandbytes is None}
        return tuple(name for name, is_missing in missing.items() if is_missing)
