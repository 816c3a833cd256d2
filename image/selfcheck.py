"""Checks that the image is complete: in its build, as its health check, by `inv image.verify`. Standard library alone.

    python selfcheck.py             every package of the lock in its version, the stack imported, models with sizes,
                                    and the C compiler that Triton needs
    python selfcheck.py --verify    and every file of every model against the sha256 of its manifest
    python selfcheck.py --health    quickly: does the interpreter start and find its packages?
    python selfcheck.py --json      one JSON line for a program instead of lines for people

Exit code 0 if complete; 1 if not, with one line for each fault.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from importlib import metadata, util
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
MODELS = Path("/models")
MANIFEST = "manifest.json"
PIECE = 1 << 20


def locked(folder: Path) -> dict[str, str]:
    """Name to version of every package in the locks of `folder`."""
    lines = "\n".join(path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.txt")))
    return dict(re.findall(r"^([A-Za-z0-9_.-]+)(?:\[[^]]*\])?==([^\s;]+)", lines, re.MULTILINE))


def asked_for(folder: Path) -> list[str]:
    """The packages that the profile names itself, without their dependencies."""
    lines = "\n".join(path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.in")))
    return re.findall(r"^([A-Za-z0-9_.-]+)", lines, re.MULTILINE)


def check_packages(versions: dict[str, str]) -> list[str]:
    wrong = []
    for name, wanted in versions.items():
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            wrong.append(f"{name}: {wanted} is in the lock and not installed")
            continue
        if found != wanted:
            wrong.append(f"{name}: the lock says {wanted}, installed is {found}")
    return wrong


def check_imports(names: list[str]) -> list[str]:
    """Import each package of the profile: its module of the same name, or else its first."""
    wrong = []
    for name in names:
        try:
            modules = _modules(metadata.distribution(name))
        except metadata.PackageNotFoundError:
            continue  # reported by check_packages
        if not modules:
            wrong.append(f"{name}: installs nothing that could be imported")
            continue
        module = next((module for module in modules if _plain(module) == _plain(name)), modules[0])
        try:
            importlib.import_module(module)
        except Exception as error:  # noqa: BLE001 - any error at import is a finding
            wrong.append(f"{name}: import {module}: {type(error).__name__}: {error}")
    return wrong


def check_compiler(versions: dict[str, str]) -> list[str]:
    """Build as Triton builds the launcher of each kernel on a GPU: with a C compiler and Python's headers."""
    if "triton" not in versions:
        return []
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return ["triton: no C compiler, without which none of its kernels can be launched"]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "module.c")
        source.write_text("#include <Python.h>\n", encoding="utf-8")
        words = ["-shared", "-fPIC", f"-I{sysconfig.get_path('include')}", str(source), "-o", f"{folder}/module.so"]
        try:
            done = subprocess.run([compiler, *words], capture_output=True, text=True, timeout=60, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            return [f"triton: {compiler}: {error}"]
    said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    return [f"triton: {compiler} does not build against Python's headers: {said[0]}"] if done.returncode else []


def _modules(package: metadata.Distribution) -> list[str]:
    """The top-level modules of a package, from its files: Python 3.10 knows them only where the package lists them."""
    tops = {path.parts[0] for path in package.files or () if path.suffix in (".py", ".so") and path.parts[0] != ".."}
    names = {top.split(".")[0] for top in tops}
    return sorted(name for name in names if name.isidentifier() and not name.startswith("_") and name != "tests")


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def look_at_model(folder: Path, *, verify: bool) -> tuple[dict[str, Any], list[str]]:
    """A model folder's facts, and its faults: files missing, truncated or changed."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    size = sum(path.stat().st_size for path in files)
    facts: dict[str, Any] = {"name": folder.name, "files": len(files), "bytes": size, "manifest_sha256": None}
    wrong = [_cut_short(path) for path in files if path.suffix == ".safetensors"]
    try:
        content = (folder / MANIFEST).read_bytes()
        facts["manifest_sha256"] = hashlib.sha256(content).hexdigest()
        entries = json.loads(content)["files"]
        wrong += [_differs(folder, entry, verify=verify) for entry in entries]
    except FileNotFoundError:
        wrong.append(f"{folder.name}: has no {MANIFEST} to check it against")
    except (ValueError, KeyError, TypeError) as error:
        wrong.append(f"{folder.name}/{MANIFEST}: cannot be read: {error}")
    return facts, [f"models/{line}" for line in wrong if line]


def _cut_short(path: Path) -> str | None:
    """safetensors: 8 bytes of header length, the header, then data up to the largest offset the header names."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        try:
            header = json.loads(file.read(length)) if length <= size - 8 else {}
            expected = 8 + length + max(tensor["data_offsets"][1] for key, tensor in header.items() if key[:2] != "__")
        except (ValueError, TypeError, KeyError, IndexError):
            return f"{path.parent.name}/{path.name}: cut short, or no safetensors file"
    return None if size == expected else f"{path.parent.name}/{path.name}: {size} bytes, its header says {expected}"


def _differs(folder: Path, entry: dict[str, Any], *, verify: bool) -> str | None:
    path = folder / entry["path"]
    if not path.is_file():
        return f"{folder.name}/{entry['path']}: in the manifest and not in the image"
    if path.stat().st_size != entry["size"]:
        return f"{folder.name}/{entry['path']}: {path.stat().st_size} bytes, the manifest says {entry['size']}"
    if verify and _sha256(path) != entry["sha256"]:
        return f"{folder.name}/{entry['path']}: its sha256 is not the manifest's"
    return None


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            digest.update(piece)
    return digest.hexdigest()


def device() -> dict[str, Any]:
    """CUDA as torch sees it. A missing GPU, as on a build machine, is no fault."""
    if util.find_spec("torch") is None:
        return {"torch": None, "cuda": None, "visible": False}
    import torch

    return {"torch": torch.__version__, "cuda": torch.version.cuda, "visible": bool(torch.cuda.is_available())}


def main() -> int:
    parser = argparse.ArgumentParser(description="Is this image whole?")
    parser.add_argument("--verify", action="store_true", help="read every model file and compare its sha256")
    parser.add_argument("--health", action="store_true", help="packages only, without importing them")
    parser.add_argument("--json", action="store_true", help="one JSON line")
    arguments = parser.parse_args()
    versions = locked(HERE / "locks")
    direct = {name: versions.get(name, "") for name in sorted(asked_for(HERE / "locks"))}
    if arguments.health:
        wrong = check_packages(direct)
        for line in wrong:
            print(line)
        return 1 if wrong else 0
    folders = sorted(path for path in MODELS.iterdir() if path.is_dir()) if MODELS.is_dir() else []
    looked = [look_at_model(folder, verify=arguments.verify) for folder in folders]
    wrong = check_packages(versions) + check_imports(list(direct)) + check_compiler(versions)
    wrong += [line for _, lines in looked for line in lines]
    report = {
        "python": sys.version.split()[0],
        "packages": direct,
        "device": device(),
        "models": [facts for facts, _ in looked],
        "verified": arguments.verify,
        "wrong": wrong,
    }
    print(json.dumps(report)) if arguments.json else show(report)
    return 1 if wrong else 0


def show(report: dict[str, Any]) -> None:
    print(f"{'python':>16} {report['python']}")
    for name, version in report["packages"].items():
        print(f"{name:>16} {version}")
    seen = report["device"]
    if seen["torch"] is not None:
        visible = "a device is visible" if seen["visible"] else "no device is visible, as on any machine without a GPU"
        print(f"{'cuda':>16} {seen['cuda']}; {visible}")
    for model in report["models"]:
        print(f"{'model':>16} {model['name']}: {model['files']} files, {model['bytes'] / 1e9:.2f} GB")
    if not report["models"]:
        print(f"{'model':>16} none in {MODELS}")
    for line in report["wrong"]:
        print(f"{'WRONG':>16} {line}")


if __name__ == "__main__":
    sys.exit(main())
