"""What the image's self-check says, read: its report, what is wrong, and how that ends the task."""

import json
from collections.abc import Iterator
from typing import Any

from remote.image.docker_client import ContainerExit
from tasks.errors import ConfirmationRequired, TaskFailed, one_line


def report_of(name: str, ended: ContainerExit) -> dict[str, Any]:
    """The report on standard output's last line, with all that is read of it here. Raises TaskFailed."""
    try:
        report: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
        report["wrong"] = [str(line) for line in report["wrong"]]
        list(_lines(report)), list(differing_models(report, {}))
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError):
        last = " ".join((ended.stderr or ended.stdout)[-500:].split()[-30:])
        raise TaskFailed(f"{name}: its self-check ended with {ended.exit_code} and no report: {last}") from None
    return report


def differing_models(report: dict[str, Any], expected: dict[str, str]) -> Iterator[str]:
    inside = {str(model["name"]): model["manifest_sha256"] for model in report["models"]}
    for name in sorted(expected.keys() | inside.keys()):
        if name not in inside:
            yield f"model {name}: the labels name it, and it is not in the image"
        elif expected.get(name) != inside[name]:
            yield f"model {name}: its manifest is not the one the image was built from"


def show(report: dict[str, Any]) -> None:
    for line in _lines(report):
        print(line)


def _lines(report: dict[str, Any]) -> Iterator[str]:
    packages = ", ".join(f"{name} {version}" for name, version in report["packages"].items())
    yield f"  python {report['python']}: {packages}"
    device = report["device"]
    if device["torch"] is not None:
        seen = "a device is visible" if device["visible"] else "no device on this machine, which is fine here"
        yield f"  CUDA {device['cuda']}: {seen}"
    for model in report["models"]:
        yield f"  model {model['name']}: {model['files']} files, {model['bytes'] / 1e9:.2f} GB, every sha256 read"
    if not report["models"]:
        yield "  no model in the image"


def refused(name: str, wrong: list[str]) -> TaskFailed:
    """Damaged weights are refused with the command that mends them; the rest is a failure."""
    said = f"{name}: {wrong[0]}" + (f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else "")
    if any(line.startswith("model") for line in wrong):
        return ConfirmationRequired(f"{said}; `inv build --anew` makes it again, of weights that it verifies")
    return TaskFailed(said)


def conclude(name: str, wrong: list[str]) -> None:
    """Print what is wrong and raise it, or say that the image is whole."""
    if wrong:
        for line in wrong:
            print(one_line(f"  WRONG: {line}"))
        raise refused(name, wrong)
    print(f"{name}: whole")
