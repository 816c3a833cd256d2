"""Inventory of an image as one JSON line. Runs inside the image, as `python -c THIS`, without a network.

Python packages come from their metadata, Debian packages from dpkg's database, models from their manifests. A licence
is the package's own statement; it may be missing.
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
MAX_COPYRIGHT_BYTES = 1 << 20
MAX_SUPPLIER_CHARS = 200


def python_packages() -> list[dict[str, Any]]:
    packages = {}
    for distribution in metadata.distributions(path=sys.path):
        fields: Any = distribution.metadata  # an email.message.Message, unlike its declared type
        classifiers = fields.get_all("Classifier") or []
        licences = [line.rpartition(" :: ")[2] for line in classifiers if line.startswith("License :: ")]
        text = (fields.get("License") or "").strip()
        licence = " AND ".join(licences) or (text if len(text) < 80 and "\n" not in text else "")
        name = re.sub(r"[-_.]+", "-", fields["Name"]).lower()
        packages[name, distribution.version] = {
            "name": name,
            "version": distribution.version,
            "expression": fields.get("License-Expression"),
            "licence": licence or None,
            "supplier": python_supplier(fields),
        }
    return [packages[key] for key in sorted(packages)]


def python_supplier(fields: Any) -> str | None:
    """Return the first maintainer or author of a package, by name or with the address."""
    for key in ("Maintainer", "Maintainer-email", "Author", "Author-email"):
        text = " ".join((fields.get(key) or "").split())
        if text and text != "UNKNOWN":
            return str(text)[:MAX_SUPPLIER_CHARS]
    return None


def debian_packages(root: Path) -> list[dict[str, Any]]:
    try:
        text = (root / "var/lib/dpkg/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    packages = []
    for block in text.split("\n\n"):
        fields = dict(re.findall(r"^([A-Za-z-]+): (.*)$", block, re.MULTILINE))
        if fields.get("Status", "").endswith(" installed") and "Package" in fields and "Version" in fields:
            name = fields["Package"]
            packages.append(
                {
                    "name": name,
                    "version": fields["Version"],
                    "architecture": fields.get("Architecture", "all"),
                    "supplier": fields.get("Maintainer"),
                    "licence": debian_licence(root / "usr/share/doc" / name / "copyright"),
                }
            )
    return packages


def debian_licence(path: Path) -> str | None:
    """Read the names of licences from a machine-readable copyright file."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_COPYRIGHT_BYTES).decode(errors="replace")
    except OSError:
        return None
    if not text.startswith("Format:"):
        return None
    names = re.findall(r"^License: *(\S[^\n]*)$", text, re.MULTILINE)
    return " AND ".join(sorted(set(names)))[:300] or None


def models(root: Path) -> list[dict[str, Any]]:
    entries = []
    for path in sorted(root.glob("models/*/manifest.json")):
        content = path.read_bytes()
        manifest = json.loads(content)
        entries.append(
            {
                "name": manifest.get("model") or path.parent.name.replace("--", "/", 1),
                "revision": manifest.get("revision"),
                "manifest_sha256": hashlib.sha256(content).hexdigest(),
                "files": [{key: file[key] for key in ("path", "size", "sha256")} for file in manifest["files"]],
            }
        )
    return entries


def os_release(root: Path) -> dict[str, str]:
    try:
        text = (root / "etc/os-release").read_text(encoding="utf-8")
    except OSError:
        return {}
    return dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', text, re.MULTILINE))


def system(root: Path) -> str:
    return os_release(root).get("ID", "linux")


def distribution(root: Path) -> str | None:
    """Return the distribution with its version, as in the qualifier `distro` of a package URL: ubuntu-24.04."""
    fields = os_release(root)
    return f"{fields['ID']}-{fields['VERSION_ID']}" if {"ID", "VERSION_ID"} <= fields.keys() else None


def main() -> None:
    contents = {
        "system": system(ROOT),
        "distribution": distribution(ROOT),
        "python": python_packages(),
        "debian": debian_packages(ROOT),
        "models": models(ROOT),
    }
    sys.stdout.write(json.dumps(contents) + "\n")


if __name__ == "__main__":
    main()
