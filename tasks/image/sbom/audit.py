"""Known vulnerabilities of the lock's packages, where pip-audit is installed here; it asks PyPI's database.

Not covered: Debian's packages, and a machine without a way to PyPI: a scanner with its own database reads bom.cdx.json.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.records.atomic_files import write_atomic

PROGRAM = "pip-audit"
FILE = "vulnerabilities.json"
AUDIT_SEC = 600.0
SHOWN = 5
OFFLINE = "without a way to PyPI, a scanner with its own database reads bom.cdx.json: grype sbom:bom.cdx.json"


def audit(lock: Path, folder: Path) -> list[str]:
    """Write the list, and say in lines what it holds, or why there is none. Raises OSError."""
    beside = Path(sys.executable).with_name(PROGRAM)
    program = str(beside) if beside.exists() else shutil.which(PROGRAM)
    if program is None:
        return [f"vulnerabilities: not asked; `pip install {PROGRAM}`, then the same again; {OFFLINE}"]
    words = ("--requirement", str(lock), "--require-hashes", "--disable-pip", "--format", "json")
    argv = (program, *words, "--progress-spinner", "off")
    try:
        ended = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=AUDIT_SEC, check=False)
        found = json.loads(ended.stdout)["dependencies"]
        lines = _lines(found)
    except subprocess.TimeoutExpired:
        return [f"vulnerabilities: {PROGRAM} was not done after {AUDIT_SEC:.0f} s; {OFFLINE}"]
    except (ValueError, KeyError, TypeError, AttributeError):
        last = " ".join(ended.stderr.split()[-20:]) or "no output"
        return [f"vulnerabilities: not known: {PROGRAM} ended with {ended.returncode}: {last}; {OFFLINE}"]
    write_atomic(folder / FILE, ended.stdout.encode())
    return lines


def _lines(found: list[dict[str, Any]]) -> list[str]:
    affected = [one for one in found if one.get("vulns")]
    skipped = sum("skip_reason" in one for one in found)
    if skipped == len(found):
        reason = str(found[0]["skip_reason"]) if found else "its list is empty"
        return [
            f"vulnerabilities: not known: {PROGRAM} could ask about none of {skipped} packages: {reason}; {OFFLINE}"
        ]
    count = sum(len(one["vulns"]) for one in affected)
    unknown = f", {skipped} not known to it" if skipped else ""
    lines = [f"vulnerabilities: {count} known, of {len(affected)} among {len(found)} packages{unknown}; {FILE}"]
    for one in affected[:SHOWN]:
        names = ", ".join(f"{bug['id']} ({_mended(bug)})" for bug in one["vulns"][:SHOWN])
        lines.append(f"  {one['name']} {one['version']}: {names}")
    return lines


def _mended(bug: dict[str, Any]) -> str:
    versions = bug.get("fix_versions") or []
    return f"mended in {versions[0]}" if versions else "no mended version yet"
