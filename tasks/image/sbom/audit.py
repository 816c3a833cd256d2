"""Known vulnerabilities of the locked packages, from PyPI's database through pip-audit, if that is installed.

Not covered: Debian packages, and a machine that cannot reach PyPI: use a scanner with its own database on bom.cdx.json.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.records.atomic_files import write_atomic

PROGRAM = "pip-audit"
REPORT_FILE = "vulnerabilities.json"
AUDIT_TIMEOUT_SEC = 600.0
MAX_SHOWN = 5
OFFLINE_HINT = "without access to PyPI use a scanner with its own database: grype sbom:bom.cdx.json"


def audit(lock: Path, folder: Path) -> list[str]:
    """Write vulnerabilities.json and return summary lines, or why they are unavailable. Raises OSError."""
    installed = Path(sys.executable).with_name(PROGRAM)
    program = str(installed) if installed.exists() else shutil.which(PROGRAM)
    if program is None:
        return [f"vulnerabilities: not checked; `pip install {PROGRAM}`, then retry `inv image.bom`; {OFFLINE_HINT}"]
    flags = ("--requirement", str(lock), "--require-hashes", "--disable-pip", "--format", "json")
    argv = (program, *flags, "--progress-spinner", "off")
    try:
        completed = subprocess.run(
            argv, capture_output=True, text=True, errors="replace", timeout=AUDIT_TIMEOUT_SEC, check=False
        )
        packages = json.loads(completed.stdout)["dependencies"]
        lines = _summarise(packages)
    except subprocess.TimeoutExpired:
        return [f"vulnerabilities: {PROGRAM} was not done after {AUDIT_TIMEOUT_SEC:.0f} s; {OFFLINE_HINT}"]
    except (ValueError, KeyError, TypeError, AttributeError):
        last = " ".join(completed.stderr.split()[-20:]) or "no output"
        return [f"vulnerabilities: not known: {PROGRAM} exited with {completed.returncode}: {last}; {OFFLINE_HINT}"]
    write_atomic(folder / REPORT_FILE, completed.stdout.encode())
    return lines


def _summarise(packages: list[dict[str, Any]]) -> list[str]:
    affected = [package for package in packages if package.get("vulns")]
    skipped = sum("skip_reason" in package for package in packages)
    if skipped == len(packages):
        reason = str(packages[0]["skip_reason"]) if packages else "its list is empty"
        return [f"vulnerabilities: not known: {PROGRAM} skipped all {skipped} packages: {reason}; {OFFLINE_HINT}"]
    count = sum(len(package["vulns"]) for package in affected)
    unknown = f", {skipped} not known to it" if skipped else ""
    lines = [
        f"vulnerabilities: {count} known, of {len(affected)} among {len(packages)} packages{unknown}; {REPORT_FILE}"
    ]
    for package in affected[:MAX_SHOWN]:
        names = ", ".join(f"{bug['id']} ({_fix(bug)})" for bug in package["vulns"][:MAX_SHOWN])
        lines.append(f"  {package['name']} {package['version']}: {names}")
    return lines


def _fix(vulnerability: dict[str, Any]) -> str:
    versions = vulnerability.get("fix_versions") or []
    return f"fixed in {versions[0]}" if versions else "no fixed version yet"
