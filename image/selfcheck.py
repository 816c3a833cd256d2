"""Self-check of the image, run in its build, as its health check and by `inv image.verify`. Standard library only.

    python selfcheck.py             check the lock's packages and versions, the imports, the sizes of model files,
                                    and the C compiler that Triton needs
    python selfcheck.py --verify    also check each model file against the sha256 in its manifest
    python selfcheck.py --health    only check that the interpreter starts and finds its packages
    python selfcheck.py --json      print one JSON line instead of the faults, or of versions and models

Exit code 0 if the image is complete; 1 if not, with one line per fault.
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
CHUNK_BYTES = 1 << 20


def locked_versions(folder: Path) -> dict[str, str]:
    """Parse the locks in `folder`: package name to version."""
    lines = "\n".join(path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.txt")))
    return dict(re.findall(r"^([A-Za-z0-9_.-]+)(?:\[[^]]*\])?==([^\s;]+)", lines, re.MULTILINE))


def direct_requirements(folder: Path) -> list[str]:
    """List the packages that the profile requires directly, without their dependencies."""
    lines = "\n".join(path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.in")))
    return re.findall(r"^([A-Za-z0-9_.-]+)", lines, re.MULTILINE)


def check_packages(versions: dict[str, str]) -> list[str]:
    faults = []
    for name, locked in versions.items():
        try:
            installed = metadata.version(name)
        except metadata.PackageNotFoundError:
            faults.append(f"{name}: {locked} is in the lock, but not installed")
            continue
        if installed != locked:
            faults.append(f"{name}: the lock has {locked}, but {installed} is installed")
    return faults


def check_imports(names: list[str]) -> list[str]:
    """Import each package of the profile: its module of the same name, or else its first module."""
    faults = []
    for name in names:
        try:
            modules = _importable_modules(metadata.distribution(name))
        except metadata.PackageNotFoundError:
            continue  # reported by check_packages
        if not modules:
            faults.append(f"{name}: installs no module that can be imported")
            continue
        module = next((module for module in modules if _normalized_name(module) == _normalized_name(name)), modules[0])
        try:
            importlib.import_module(module)
        except Exception as error:  # noqa: BLE001 - any error at import is a finding
            faults.append(f"{name}: import {module}: {type(error).__name__}: {error}")
    return faults


def check_compiler(versions: dict[str, str]) -> list[str]:
    """Compile with a C compiler and Python's headers, as Triton does for the launcher of each kernel."""
    if "triton" not in versions:
        return []
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return ["triton: no C compiler found, which it needs to launch kernels"]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "module.c")
        source.write_text("#include <Python.h>\n", encoding="utf-8")
        options = ["-shared", "-fPIC", f"-I{sysconfig.get_path('include')}", str(source), "-o", f"{folder}/module.so"]
        try:
            done = subprocess.run([compiler, *options], capture_output=True, text=True, timeout=60, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            return [f"triton: {compiler}: {error}"]
    output_lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    return [f"triton: {compiler} cannot build with Python's headers: {output_lines[0]}"] if done.returncode else []


def _importable_modules(package: metadata.Distribution) -> list[str]:
    """List the top-level modules of a package from its files: Python 3.10 knows them only if the package lists them."""
    tops = {path.parts[0] for path in package.files or () if path.suffix in (".py", ".so") and path.parts[0] != ".."}
    names = {top.split(".")[0] for top in tops}
    return sorted(name for name in names if name.isidentifier() and not name.startswith("_") and name != "tests")


def _normalized_name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def inspect_model(folder: Path, *, verify: bool) -> tuple[dict[str, Any], list[str]]:
    """Return a model folder's facts and its faults: files that are missing, truncated or changed."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    size = sum(path.stat().st_size for path in files)
    facts: dict[str, Any] = {"name": folder.name, "files": len(files), "bytes": size, "manifest_sha256": None}
    faults: list[str | None] = []
    try:
        content = (folder / MANIFEST).read_bytes()
        facts["manifest_sha256"] = hashlib.sha256(content).hexdigest()
        entries = json.loads(content)["files"]
        faults += [_file_fault(folder, entry, verify=verify) for entry in entries]
    except FileNotFoundError:
        faults.append(f"{folder.name}: has no {MANIFEST}, so it cannot be checked")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        faults.append(f"{folder.name}/{MANIFEST}: cannot be read: {error}")
    return facts, [f"models/{fault}" for fault in faults if fault]


def _file_fault(folder: Path, entry: dict[str, Any], *, verify: bool) -> str | None:
    path = folder / entry["path"]
    if not path.is_file():
        return f"{folder.name}/{entry['path']}: in the manifest, but not in the image"
    if path.stat().st_size != entry["size"]:
        return f"{folder.name}/{entry['path']}: {path.stat().st_size} bytes, the manifest says {entry['size']}"
    if verify and _sha256(path) != entry["sha256"]:
        return f"{folder.name}/{entry['path']}: its sha256 differs from the manifest"
    return None


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(CHUNK_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def cuda_info() -> dict[str, Any]:
    """Query torch for CUDA. A missing GPU, for example on a build machine, is not a fault."""
    if util.find_spec("torch") is None:
        return {"torch": None, "cuda": None, "visible": False}
    import torch

    return {"torch": torch.__version__, "cuda": torch.version.cuda, "visible": bool(torch.cuda.is_available())}


def main() -> int:
    parser = argparse.ArgumentParser(description="Check that this image is complete.")
    parser.add_argument("--verify", action="store_true", help="read every model file and compare its sha256")
    parser.add_argument("--health", action="store_true", help="packages only, without importing them")
    parser.add_argument("--json", action="store_true", help="one JSON line")
    arguments = parser.parse_args()
    versions = locked_versions(HERE / "locks")
    direct = {name: versions.get(name, "") for name in sorted(direct_requirements(HERE / "locks"))}
    if arguments.health:
        faults = check_packages(direct)
        for fault in faults:
            print(fault)
        return 1 if faults else 0
    folders = sorted(path for path in MODELS.iterdir() if path.is_dir()) if MODELS.is_dir() else []
    models = [inspect_model(folder, verify=arguments.verify) for folder in folders]
    faults = check_packages(versions) + check_imports(list(direct)) + check_compiler(versions)
    faults += [fault for _, model_faults in models for fault in model_faults]
    report = {
        "python": sys.version.split()[0],
        "packages": direct,
        "device": cuda_info(),
        "models": [facts for facts, _ in models],
        "verified": arguments.verify,
        "wrong": faults,
    }
    shown = [f"{name} {version}" for name, version in direct.items()]
    shown += [f"{facts['name']}: {facts['files']} files, {facts['bytes'] / 1e9:.2f} GB" for facts, _ in models]
    print(json.dumps(report)) if arguments.json else print(*faults or shown, sep="\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
