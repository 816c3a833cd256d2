"""The image's files, with real processes: hadolint, a compiler, sh, pip-audit."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.image.sbom import audit
from tests.support.paths import ROOT

IMAGE = ROOT / "image"


def test_hadolint_reports_nothing() -> None:
    program = Path(sys.executable).with_name("hadolint")
    done = subprocess.run((program, IMAGE / "Dockerfile"), capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize(("variables", "pattern"), [
    ({"PATH": "/usr/bin"}, ""),
    ({"PATH": "/nowhere"}, "triton: no C compiler .*"),
    ({"CC": "/bin/false"}, "triton: /bin/false .*exit code 1"),
    ({"CC": "/no/cc"}, r"triton: /no/cc: \[Errno 2\] No such file or directory: '/no/cc'"),
])  # fmt: skip
def test_the_self_check_tries_to_build_like_triton(variables: dict[str, str], pattern: str) -> None:
    """Uses this machine's Python and compiler. Not covered: building Triton's own source, which needs a driver."""
    if "CC" not in variables and not Path("/usr/bin/gcc").exists():
        pytest.skip("gcc is not installed")
    check = "import selfcheck; print(*selfcheck.check_compiler({'triton': '3.6.0'}))"
    argv = ("/usr/bin/python3", "-c", check)
    done = subprocess.run(argv, env=variables, cwd=IMAGE, capture_output=True, text=True, check=True, timeout=60)
    assert re.fullmatch(pattern, done.stdout.strip())


def test_the_apt_snapshot_replaces_the_archive_in_every_source(tmp_path: Path) -> None:
    """Runs the Dockerfile's lines on the sources of Ubuntu and NVIDIA, without network."""
    lines = (IMAGE / "Dockerfile").read_text().split('if [ -n "${APT_SNAPSHOT}" ]; then', 1)[1].split("    fi; ", 1)[0]
    script = re.sub(r"\\\n", "\n", lines.replace("/etc/apt", str(tmp_path)))
    script = re.sub(r"\n\s*-e", " -e", script)
    (tmp_path / "apt.conf.d").mkdir()
    nvidia = "deb https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2404/x86_64 /"
    (tmp_path / "ubuntu.sources").write_text(
        "URIs: http://archive.ubuntu.com/ubuntu/\nURIs: http://security.ubuntu.com/ubuntu\n"
    )
    (tmp_path / "cuda.list").write_text(f"{nvidia}\n")
    moment = "20260901T000000Z"
    subprocess.run(
        ["sh", "-euc", script], env={"PATH": "/usr/bin:/bin", "APT_SNAPSHOT": moment}, check=True, timeout=60
    )
    ubuntu = f"https://snapshot.ubuntu.com/ubuntu/{moment}/"
    assert (tmp_path / "ubuntu.sources").read_text() == f"URIs: {ubuntu}\nURIs: {ubuntu}\n"
    assert (tmp_path / "cuda.list").read_text() == f"{nvidia}\n"
    assert "Check-Valid-Until" in (tmp_path / "apt.conf.d" / "99snapshot").read_text()


# Output of pip-audit 2.10, with exit code 0, if its index is not PyPI.
ALL_SKIPPED = {"dependencies": [{"name": name, "skip_reason": "not found on PyPI"} for name in ("a", "b")]}
FOUND = {
    "dependencies": [
        {"name": "numpy", "version": "2.4", "vulns": []},
        {"name": "own", "skip_reason": "not on PyPI"},
        {"name": "odd", "version": "1", "vulns": [{"id": "PYSEC-1", "fix_versions": ["2"]}, {"id": "GHSA-2"}]},
    ]
}


@pytest.mark.parametrize(("script", "patterns"), [
    (f"echo '{json.dumps(FOUND)}'; exit 1", [
        r"vulnerabilities: 2 .*\b1\b.*\b3 packages.*\b1\b.*; vulnerabilities\.json",
        r"  odd 1: PYSEC-1 \(.*\b2\), GHSA-2 \(",
    ]),
    ("echo 'no way' >&2; exit 1", [r"vulnerabilities: .*pip-audit .*\b1: no way; .*grype"]),
    (f"echo '{json.dumps(ALL_SKIPPED)}'", [r"vulnerabilities: .*pip-audit .*\b2\b.*; .*grype"]),
    (None, [r"vulnerabilities: .*; `pip install pip-audit`"]),
])  # fmt: skip
def test_vulnerabilities_are_listed_or_one_line_has_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, patterns: list[str]
) -> None:
    """Uses a fake pip-audit 2, which prints this JSON and exits with 1 if there are vulnerabilities."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    if script is not None:
        (tmp_path / "pip-audit").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "pip-audit").chmod(0o755)
    lines = audit(tmp_path / "current.txt", tmp_path)
    assert len(lines) == len(patterns)
    for line, pattern in zip(lines, patterns, strict=True):
        assert re.match(pattern, line)
    assert (tmp_path / "vulnerabilities.json").exists() is (script is not None and "dependencies" in script)
