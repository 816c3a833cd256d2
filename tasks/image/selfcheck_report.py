"""Parse the report of the image's self-check and turn its problems into the task's result."""

import json
from collections.abc import Iterator
from typing import Any

from remote.image.docker_client import ContainerExit
from tasks.errors import ConfirmationRequired, TaskFailed, escape_controls


def parse_report(name: str, container: ContainerExit) -> dict[str, Any]:
    """Parse the report from the last line of stdout and check every field read here. Raises TaskFailed."""
    try:
        report: dict[str, Any] = json.loads(container.stdout.splitlines()[-1])
        report["wrong"] = [str(line) for line in report["wrong"]]
        list(_lines(report)), list(differing_models(report, {}))
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        last = " ".join((container.stderr or container.stdout)[-500:].split()[-30:])
        raise TaskFailed(f"{name}: self-check exited with {container.exit_code} and no report: {last}") from error
    return report


def differing_models(report: dict[str, Any], expected: dict[str, str]) -> Iterator[str]:
    inside = {str(model["name"]): model["manifest_sha256"] for model in report["models"]}
    for name in sorted(expected.keys() | inside.keys()):
        if name not in inside:
            yield f"model {name}: listed in the labels, but missing in the image"
        elif expected.get(name) != inside[name]:
            yield f"model {name}: its manifest differs from the one the image was built from"


def print_report(report: dict[str, Any]) -> None:
    for line in _lines(report):
        print(line)


def _lines(report: dict[str, Any]) -> Iterator[str]:
    packages = ", ".join(f"{name} {version}" for name, version in report["packages"].items())
    yield f"  python {report['python']}: {packages}"
    device = report["device"]
    if device["torch"] is not None:
        visibility = "a device is visible" if device["visible"] else "no device on this machine (not required here)"
        yield f"  CUDA {device['cuda']}: {visibility}"
    for model in report["models"]:
        yield f"  model {model['name']}: {model['files']} files, {model['bytes'] / 1e9:.2f} GB, every sha256 checked"
    if not report["models"]:
        yield "  no model in the image"


def problem_error(name: str, problems: list[str]) -> TaskFailed:
    """Build the task's error: ConfirmationRequired with the fix for damaged weights, else TaskFailed."""
    summary = f"{name}: {problems[0]}" + (f" (and {len(problems) - 1} more)" if len(problems) > 1 else "")
    if any(line.startswith("model") for line in problems):
        return ConfirmationRequired(summary, remedy="`inv build --force` rebuilds it from verified weights")
    return TaskFailed(summary)


def finish(name: str, problems: list[str]) -> None:
    """Print the problems and raise them as an error, or print that the image is intact."""
    if problems:
        for line in problems:
            print(escape_controls(f"  WRONG: {line}"))
        raise problem_error(name, problems)
    print(f"{name}: intact")
