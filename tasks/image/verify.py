"""`inv image.verify`: check on the build VM that an image is intact and that a trial runs in it, without a network."""

from collections.abc import Iterator
from typing import Any

from invoke.context import Context

from bench.records import schema
from bench.records.units import format_gb
from remote.hosts.host_protocol import Completed
from remote.image import engine
from remote.image.plan import model_digests
from tasks.cli.command_result import CommandResult, plan_result
from tasks.clients.build_vm import build_vm
from tasks.errors import ConfirmationRequired, TaskFailed, escape_controls
from tasks.image import build_profiles
from tasks.settings.layers import load

VERIFY_TIMEOUT_SEC = 3600.0  # the check reads 14 GB in full
_CHECK = ("python", "/opt/qlora-fleet/selfcheck.py", "--verify", "--json")
_TRIAL = ("python", "-m", "bench", "selfcheck")


def verify_image(context: Context, *, dry_run: bool = False) -> CommandResult:
    settings = load(context)
    name, location = build_profiles.image_name(settings), settings.build.host or "this machine"
    if dry_run:
        return plan_result([f"verify  {name} on {location}"], image=name, location=location)
    with (
        build_vm(settings, "inv image.verify") as host,
        engine.connect(host, settings.image.client) as vm_engine,
    ):
        image = vm_engine.image(name)
        print(f"{name} {image.short_id}, {format_gb(image.size, 2)} unpacked")
        for key, value in sorted(image.labels.items()):
            print(escape_controls(f"  {key} = {value}"))
        checked, trial = (
            vm_engine.run_check(image.image_id, argv, timeout_sec=VERIFY_TIMEOUT_SEC) for argv in (_CHECK, _TRIAL)
        )
    report = parse_report(name, checked)
    print(*_lines(report), sep="\n")
    lines = (trial.stdout + trial.stderr).decode(errors="replace").rstrip().split("\n")[-3:]
    print(*(escape_controls(f"  {line}") for line in lines), sep="\n")
    problems = [*report["wrong"], *differing_models(report, model_digests(image.labels))]
    if not report["device"]["visible"] and not build_profiles.selected_profile(settings).runs_on_cpu:
        print("  no GPU here, and this profile trains only on a GPU: its trial does not count")
    elif trial.exit_code != 0:
        problems.append(f"{' '.join(_TRIAL)}: {lines[-1] or 'no output'}")
    shown = [f"  WRONG: {line}" for line in problems] or [f"{name}: intact"]
    return CommandResult(
        data={"image": name, "report": report, "problems": problems},
        show=lambda: print(*map(escape_controls, shown), sep="\n"),
        failure=problem_error(name, problems) if problems else None,
    )


def parse_report(name: str, checked: Completed) -> dict[str, Any]:
    """Parse the report, the last line of the self-check, and check every field read here. Raises TaskFailed."""
    output = checked.stdout.decode(errors="replace")
    try:
        report = schema.parse_object(output.rstrip().splitlines()[-1])
        report["wrong"] = [str(line) for line in report["wrong"]]
        if checked.exit_code > 1:  # it was killed after its report, which may say that all is well
            report["wrong"].append(f"the self-check exited with {checked.exit_code}")
        list(_lines(report)), list(differing_models(report, {}))
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        last = " ".join((output + checked.stderr.decode(errors="replace")).split()[-30:])[-500:]
        problem = f"{name}: self-check exited with {checked.exit_code} and no report: {last}"
        raise TaskFailed(problem) from error
    return report


def differing_models(report: dict[str, Any], expected: dict[str, str]) -> Iterator[str]:
    inside = {str(model["name"]): model["manifest_sha256"] for model in report["models"]}
    for name in sorted(expected.keys() | inside.keys()):
        if name not in inside:
            yield f"model {name}: listed in the labels, but missing in the image"
        elif expected.get(name) != inside[name]:
            yield f"model {name}: its manifest differs from the one the image was built from"


def _lines(report: dict[str, Any]) -> Iterator[str]:
    packages = ", ".join(f"{name} {version}" for name, version in report["packages"].items())
    yield f"  python {report['python']}: {packages}"
    device = report["device"]
    if device["torch"] is not None:
        visibility = "a device is visible" if device["visible"] else "no device on this machine (not required here)"
        yield f"  CUDA {device['cuda']}: {visibility}"
    for model in report["models"]:
        yield f"  model {model['name']}: {model['files']} files, {format_gb(model['bytes'], 2)}, every sha256 checked"
    if not report["models"]:
        yield "  no model in the image"


def problem_error(name: str, problems: list[str]) -> TaskFailed:
    """Build the task's error: ConfirmationRequired with the fix for damaged weights, else TaskFailed."""
    summary = f"{name}: {problems[0]}" + (f" (and {len(problems) - 1} more)" if len(problems) > 1 else "")
    if any(line.startswith("model") for line in problems):
        return ConfirmationRequired(summary, remedy="`inv build --force` rebuilds it from verified weights")
    return TaskFailed(summary)
