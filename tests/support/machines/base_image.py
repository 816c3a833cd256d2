"""Fake CUDA base image that consists of this machine's Debian packages; created in seconds without a network.

It contains apt, dpkg's status of exactly these packages, Python with venv and its bundled pip, tini and certificates:
everything that the project's Dockerfile requires of a base, so that it is built unchanged. CUDA is missing. The
compiler exists only in dpkg's status, so that apt considers it installed: no test needs its 300 MB.
"""

import io
import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

SEEDS = (
    *("base-files", "apt", "dpkg", "bash", "dash", "coreutils", "passwd", "login", "findutils", "grep", "sed", "tar"),
    *("gzip", "hostname", "libc-bin", "base-passwd", "ca-certificates", "libgomp1", "tini"),
)
RECORDED_ONLY = ("g++", "libpython{python}-dev")
LEFT_OUT = re.compile(r"/usr/share/(doc|man|locale|info|lintian|bug|zoneinfo)/|/usr/lib/[^/]+/(gconv|test)/")
MERGED = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")  # links into /usr on Debian 12 and Ubuntu 24.04
EMPTY_FILES = ("var/lib/dpkg/available", "etc/apt/sources.list")  # no sources: apt-get update fetches nothing
EMPTY_FOLDERS = ("tmp", "var/lib/dpkg/updates", "var/lib/apt/lists/partial", "var/cache/apt/archives/partial")
MASTER_FILES = {
    "etc/passwd": "/usr/share/base-passwd/passwd.master",
    "etc/group": "/usr/share/base-passwd/group.master",
}


def python_version() -> str:
    """Return the version of Debian's Python, not of another one that precedes it on PATH."""
    done = subprocess.run(
        ("/usr/bin/python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"),
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    return done.stdout.strip()


def missing_requirement() -> str | None:
    """Return the reason why this machine cannot create the image, or None."""
    if shutil.which("dpkg-query") is None or not Path("/usr/bin/python3").exists():
        return "the fake base image consists of Debian packages, and this machine does not run Debian"
    installed = _installed_packages()
    missing = [name for name in (*_seeds(), *_recorded_only()) if name not in installed]
    return f"apt-get install {' '.join(missing)}" if missing else None


def create(archive: Path) -> None:
    """Write the image's root file system as a tar archive, for `docker import`."""
    installed = _installed_packages()
    packages = _closure(installed, _seeds())
    with tarfile.open(archive, "w") as tar:
        for name in MERGED:
            if Path("/", name).is_symlink():
                tar.add(f"/{name}", arcname=name, recursive=False)
        _write(tar, "var/lib/dpkg/status", _dpkg_status(_closure(installed, [*_seeds(), *_recorded_only()])))
        for name, master in MASTER_FILES.items():  # without this machine's users
            _write(tar, name, Path(master).read_bytes())
        for name in EMPTY_FILES:
            _write(tar, name, b"")
        for name in EMPTY_FOLDERS:
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            tar.addfile(folder)
        # The engine rejects duplicate names.
        done = {*MERGED, "var/lib/dpkg/status", *MASTER_FILES, *EMPTY_FILES, *EMPTY_FOLDERS}
        for path in [*_files(packages), *_installed_state()]:
            archive_name = _archive_name(path)
            if archive_name not in done and os.path.lexists(path):
                done.add(archive_name)
                tar.add(path, arcname=archive_name, recursive=False)


def _seeds() -> list[str]:
    return [*SEEDS, f"python{python_version()}-venv"]


def _recorded_only() -> list[str]:
    return [name.format(python=python_version()) for name in RECORDED_ONLY]


def _installed_packages() -> dict[str, list[list[str]]]:
    """Map each installed package and each provided name to its dependencies, each a list of alternatives."""
    fields = "${Package}\t${db:Status-Abbrev}\t${Pre-Depends}, ${Depends}\t${Provides}\n"
    listed = subprocess.run(("dpkg-query", "-W", "-f", fields), capture_output=True, text=True, check=True, timeout=60)
    installed: dict[str, list[list[str]]] = {}
    provided: dict[str, str] = {}
    for line in listed.stdout.splitlines():
        name, state, depends, provides = line.split("\t")
        if state.startswith("ii"):
            groups = [group.split("|") for group in depends.split(",") if group.strip()]
            installed[name] = [[_package_name(alternative) for alternative in group] for group in groups]
            provided |= {_package_name(alias): name for alias in provides.split(",") if alias.strip()}
    return {**{alias: [[name]] for alias, name in provided.items()}, **installed}


def _package_name(dependency: str) -> str:
    return re.split(r"[ (:]", dependency.strip(), maxsplit=1)[0]


def _closure(installed: dict[str, list[list[str]]], seeds: list[str]) -> list[str]:
    wanted, todo = set[str](), list(seeds)
    while todo:
        name = todo.pop()
        if name in installed and name not in wanted:
            wanted.add(name)
            todo += [
                next(alternative for alternative in group if alternative in installed)
                for group in installed[name]
                if set(group) & set(installed)
            ]
    return sorted(wanted)


def _files(packages: list[str]) -> list[str]:
    listed = subprocess.run(("dpkg-query", "-L", *packages), capture_output=True, text=True, check=False, timeout=60)
    return sorted(
        {line for line in listed.stdout.splitlines() if line.startswith("/") and not LEFT_OUT.match(line)} - {"/."}
    )


def _installed_state() -> list[str]:
    """List files that packages created during installation, and that no package lists."""
    folders = ("/etc/ssl/certs", "/etc/alternatives")
    below = [str(path) for folder in folders for path in sorted(Path(folder).rglob("*"))]
    alternatives = [link for link in ("/usr/bin/awk", "/etc/ssl/certs/ca-certificates.crt") if os.path.lexists(link)]
    return [*folders, *below, *alternatives, "/etc/ld.so.cache"]


def _archive_name(path: str) -> str:
    name = path.lstrip("/")
    top, _, rest = name.partition("/")
    return f"usr/{top}/{rest}" if rest and top in MERGED and Path("/", top).is_symlink() else name


def _dpkg_status(packages: list[str]) -> bytes:
    wanted = {f"Package: {name}" for name in packages}
    stanzas = Path("/var/lib/dpkg/status").read_text(encoding="utf-8").split("\n\n")
    return "\n\n".join([stanza for stanza in stanzas if stanza.split("\n", 1)[0] in wanted] + [""]).encode()


def _write(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), 0o644
    tar.addfile(entry, io.BytesIO(content))
