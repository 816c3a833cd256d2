"""What an image holds: one JSON line. Runs inside the image, as `python -c THIS`, without a network.

Python packages by their own metadata, Debian packages by dpkg's database, models by their manifests. A licence is what
the package says of itself; where it says nothing, or only in free text, that is what stands there.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path("/")
MOST_BYTES = 1 << 20


def python_packages() -> list[dict[str, Any]]:
    found = {}
    for distribution in metadata.distributions():
        about: Any = distribution.metadata  # an email.message.Message, which its declared type does not say
        classifiers = about.get_all("Classifier") or []
        named = [line.rpartition(" :: ")[2] for line in classifiers if line.startswith("License :: ")]
        text = (about.get("License") or "").strip()
        licence = " AND ".join(named) or (text if len(text) < 80 and "\n" not in text else "")
        name = re.sub(r"[-_.]+", "-", about["Name"]).lower()
        found[name] = {
            "name": name,
            "version": distribution.version,
            "expression": about.get("License-Expression"),
            "licence": licence or None,
        }
    return [found[name] for name in sorted(found)]


def debian_packages(root: Path) -> list[dict[str, Any]]:
    try:
        text = (root / "var/lib/dpkg/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    found = []
    for block in text.split("\n\n"):
        fields = dict(re.findall(r"^([A-Za-z-]+): (.*)$", block, re.MULTILINE))
        if fields.get("Status", "").endswith(" installed") and "Package" in fields and "Version" in fields:
            name = fields["Package"]
            found.append(
                {
                    "name": name,
                    "version": fields["Version"],
                    "architecture": fields.get("Architecture", "all"),
                    "licence": debian_licence(root / "usr/share/doc" / name / "copyright"),
                }
            )
    return found


def debian_licence(path: Path) -> str | None:
    """The names of licences in a machine-readable copyright file."""
    try:
        with path.open("rb") as file:
            text = file.read(MOST_BYTES).decode(errors="replace")
    except OSError:
        return None
    if not text.startswith("Format:"):
        return None
    names = re.findall(r"^License: *(\S[^\n]*)$", text, re.MULTILINE)
    return " AND ".join(sorted(set(names)))[:300] or None


def models(root: Path) -> list[dict[str, Any]]:
    found = []
    for path in sorted(root.glob("models/*/manifest.json")):
        content = path.read_bytes()
        about = json.loads(content)
        found.append(
            {
                "name": about.get("model") or path.parent.name.replace("--", "/", 1),
                "revision": about.get("revision"),
                "manifest_sha256": hashlib.sha256(content).hexdigest(),
                "files": [{key: one[key] for key in ("path", "size", "sha256")} for one in about["files"]],
            }
        )
    return found


def system(root: Path) -> str:
    try:
        text = (root / "etc/os-release").read_text(encoding="utf-8")
    except OSError:
        return "linux"
    return str(dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', text, re.MULTILINE)).get("ID", "linux"))


def main() -> None:
    contents = {
        "system": system(ROOT),
        "python": python_packages(),
        "debian": debian_packages(ROOT),
        "models": models(ROOT),
    }
    sys.stdout.write(json.dumps(contents) + "\n")


if __name__ == "__main__":
    main()
