"""A stand-in for the CUDA base image, made of this machine's own Debian packages in seconds and without a network.

It holds apt, dpkg's records of just these packages, Python with venv and its bundled pip, tini and certificates: all
that the project's Dockerfile asks a base for, so that it is built unchanged. What it does not have is CUDA. The
compiler is in dpkg's records alone, so that apt finds it installed: its 300 MB no test runs.
"""

import io
import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

SEEDS = (
    *(
        "base-files",
        "apt",
        "dpkg",
        "bash",
        "dash",
        "coreutils",
        "passwd",
        "login",
        "findutils",
        "grep",
        "sed",
        "tar",
        "gzip",
    ),
    *("hostname", "libc-bin", "base-passwd", "ca-certificates", "libgomp1", "tini"),
)
RECORDED = ("g++", "libpython{python}-dev")
LEFT_OUT = re.compile(r"/usr/share/(doc|man|locale|info|lintian|bug|zoneinfo)/|/usr/lib/[^/]+/(gconv|test|pydoc_data)/")
MERGED = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")  # links into /usr, on Debian 12 and Ubuntu 24.04
EMPTY_FILES = ("var/lib/dpkg/available", "etc/apt/sources.list")  # no source: apt-get update has nothing to fetch
EMPTY_FOLDERS = ("tmp", "var/lib/dpkg/updates", "var/lib/apt/lists/partial", "var/cache/apt/archives/partial")
MASTERS = {"etc/passwd": "/usr/share/base-passwd/passwd.master", "etc/group": "/usr/share/base-passwd/group.master"}


def python_version() -> str:
    """Debian's own Python, not one that stands before it on PATH."""
    said = subprocess.run(
        ("/usr/bin/python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"),
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    return said.stdout.strip()


def why_not() -> str | None:
    """What this machine lacks for making the stand-in, or None."""
    if shutil.which("dpkg-query") is None or not Path("/usr/bin/python3").exists():
        return "the stand-in base image is made of Debian packages, and this is no Debian"
    installed = _installed()
    absent = [name for name in (*_seeds(), *_recorded()) if name not in installed]
    return f"apt-get install {' '.join(absent)}" if absent else None


def make(archive: Path) -> None:
    """Write the stand-in's root file system as a tar archive, for `docker import`."""
    installed = _installed()
    packages = _closure(installed, _seeds())
    with tarfile.open(archive, "w") as tar:
        for name in MERGED:
            if Path("/", name).is_symlink():
                tar.add(f"/{name}", arcname=name, recursive=False)
        _write(tar, "var/lib/dpkg/status", _records(_closure(installed, [*_seeds(), *_recorded()])))
        for name, master in MASTERS.items():  # and not this machine's users
            _write(tar, name, Path(master).read_bytes())
        for name in EMPTY_FILES:
            _write(tar, name, b"")
        for name in EMPTY_FOLDERS:
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            tar.addfile(folder)
        done = {
            *MERGED,
            "var/lib/dpkg/status",
            *MASTERS,
            *EMPTY_FILES,
            *EMPTY_FOLDERS,
        }  # the engine takes no name twice
        for path in [*_files(packages), *_state()]:
            place = _place(path)
            if place not in done and os.path.lexists(path):
                done.add(place)
                tar.add(path, arcname=place, recursive=False)


def _seeds() -> list[str]:
    return [*SEEDS, f"python{python_version()}-venv"]


def _recorded() -> list[str]:
    return [name.format(python=python_version()) for name in RECORDED]


def _installed() -> dict[str, list[list[str]]]:
    """Every installed package and every name one provides, with its dependencies: each a list of alternatives."""
    form = "${Package}\t${db:Status-Abbrev}\t${Pre-Depends}, ${Depends}\t${Provides}\n"
    said = subprocess.run(("dpkg-query", "-W", "-f", form), capture_output=True, text=True, check=True, timeout=60)
    found: dict[str, list[list[str]]] = {}
    provided: dict[str, str] = {}
    for line in said.stdout.splitlines():
        name, state, depends, provides = line.split("\t")
        if state.startswith("ii"):
            found[name] = [[_name(one) for one in some.split("|")] for some in depends.split(",") if some.strip()]
            provided |= {_name(one): name for one in provides.split(",") if one.strip()}
    return {**{alias: [[name]] for alias, name in provided.items()}, **found}


def _name(dependency: str) -> str:
    return re.split(r"[ (:]", dependency.strip(), maxsplit=1)[0]


def _closure(installed: dict[str, list[list[str]]], seeds: list[str]) -> list[str]:
    wanted, todo = set[str](), list(seeds)
    while todo:
        name = todo.pop()
        if name in installed and name not in wanted:
            wanted.add(name)
            todo += [
                next(one for one in some if one in installed) for some in installed[name] if set(some) & set(installed)
            ]
    return sorted(wanted)


def _files(packages: list[str]) -> list[str]:
    said = subprocess.run(("dpkg-query", "-L", *packages), capture_output=True, text=True, check=False, timeout=60)
    return sorted(
        {line for line in said.stdout.splitlines() if line.startswith("/") and not LEFT_OUT.match(line)} - {"/."}
    )


def _state() -> list[str]:
    """What packages made when they were installed, and what no package lists."""
    folders = ("/etc/ssl/certs", "/etc/alternatives")
    below = [str(path) for folder in folders for path in sorted(Path(folder).rglob("*"))]
    alternatives = [link for link in ("/usr/bin/awk", "/etc/ssl/certs/ca-certificates.crt") if os.path.lexists(link)]
    return [*folders, *below, *alternatives, "/etc/ld.so.cache"]


def _place(path: str) -> str:
    name = path.lstrip("/")
    top, _, rest = name.partition("/")
    return f"usr/{top}/{rest}" if rest and top in MERGED and Path("/", top).is_symlink() else name


def _records(packages: list[str]) -> bytes:
    wanted = {f"Package: {name}" for name in packages}
    stanzas = Path("/var/lib/dpkg/status").read_text(encoding="utf-8").split("\n\n")
    return "\n\n".join([stanza for stanza in stanzas if stanza.split("\n", 1)[0] in wanted] + [""]).encode()


def _write(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), 0o644
    tar.addfile(entry, io.BytesIO(content))
