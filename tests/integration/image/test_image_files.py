"""What of this subject starts a process."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.image.sbom.audit import audit
from tests.support.paths import ROOT

IMAGE = ROOT / "image"


def test_hadolint_has_nothing_to_say() -> None:
    program = Path(sys.executable).with_name("hadolint")
    done = subprocess.run((program, IMAGE / "Dockerfile"), capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize(("variables", "said"), [
    ({"PATH": "/usr/bin"}, ""),
    ({"PATH": "/nowhere"}, "triton: no C compiler, without which none of its kernels can be launched"),
    ({"CC": "/bin/false"}, "triton: /bin/false does not build against Python's headers: exit code 1"),
    ({"CC": "/no/cc"}, "triton: /no/cc: [Errno 2] No such file or directory: '/no/cc'"),
])  # fmt: skip
def test_the_image_checks_that_triton_can_build_its_launchers(variables: dict[str, str], said: str) -> None:
    """With this machine's Python and compiler. That Triton's own source builds, no test shows: it needs a driver."""
    if "CC" not in variables and not Path("/usr/bin/gcc").exists():
        pytest.skip("gcc is not installed")
    check = "import selfcheck; print(*selfcheck.check_compiler({'triton': '3.6.0'}))"
    argv = ("/usr/bin/python3", "-c", check)
    done = subprocess.run(argv, env=variables, cwd=IMAGE, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == said


def test_a_moment_of_the_archive_takes_the_place_of_the_archive_in_every_source(tmp_path: Path) -> None:
    """The Dockerfile's own lines, on the sources of Ubuntu and NVIDIA. No archive is asked."""
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


# What pip-audit 2.10 prints, with exit code 0, where its index has no PyPI behind it.
ALL_SKIPPED = {"dependencies": [{"name": name, "skip_reason": "not found on PyPI"} for name in ("a", "b")]}
FOUND = {
    "dependencies": [
        {"name": "numpy", "version": "2.4", "vulns": []},
        {"name": "own", "skip_reason": "not on PyPI"},
        {"name": "odd", "version": "1", "vulns": [{"id": "PYSEC-1", "fix_versions": ["2"]}, {"id": "GHSA-2"}]},
    ]
}


@pytest.mark.parametrize(("script", "lines"), [
    (f"echo '{json.dumps(FOUND)}'; exit 1", [
        "vulnerabilities: 2 known, of 1 among 3 packages, 1 not known to it; vulnerabilities.json",
        "  odd 1: PYSEC-1 (mended in 2), GHSA-2 (no mended version yet)",
    ]),
    ("echo 'no way' >&2; exit 1", ["vulnerabilities: not known: pip-audit ended with 1: no way; "]),
    (f"echo '{json.dumps(ALL_SKIPPED)}'", ["vulnerabilities: not known: pip-audit could ask about none of 2"]),
    (None, ["vulnerabilities: not asked; `pip install pip-audit`, then the same again;"]),
])  # fmt: skip
def test_vulnerabilities_are_listed_or_a_line_says_why_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, lines: list[str]
) -> None:
    """With a stand-in of pip-audit 2, which prints this JSON and ends with 1 where something is known."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    if script is not None:
        (tmp_path / "pip-audit").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "pip-audit").chmod(0o755)
    said = audit(tmp_path / "current.txt", tmp_path)
    assert [one[: len(line)] for one, line in zip(said, lines, strict=True)] == lines
    assert (tmp_path / "vulnerabilities.json").exists() is (script is not None and "dependencies" in script)
