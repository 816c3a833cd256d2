"""`inv image.verify`: check that an image is intact and that a trial runs in it, on the build VM or on a GPU node.

On a node a pod runs the digest that `inv push` recorded, with a worker's resources. It needs a free GPU: while the
workers use all of them it stays pending, and the reason is printed.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from invoke.context import Context

from bench.records import schema
from bench.records.units import format_gb
from remote.hosts.base import Completed
from remote.image.engine import run_check
from remote.image.plan import model_digests
from tasks.cli.command_result import CommandResult, plan_result
from tasks.clients.build_vm import build_vm
from tasks.clients.cluster import open_cluster
from tasks.clients.pod_check import PodCheck, run_pod_check
from tasks.clients.registry import read_push_record, resolve_image
from tasks.errors import ConfirmationRequired, TaskFailed, UsageError, escape_controls
from tasks.image import build_profiles
from tasks.image.build import engine_client, image_labels, image_record
from tasks.settings.load import Settings, load

VERIFY_TIMEOUT_SEC = 3600.0  # the check reads 14 GB in full
TRIAL_TIMEOUT_SEC = 900.0
POD_NAME = "image-check"
_SELFCHECK = ("python", "/opt/qlora-fleet/selfcheck.py", "--verify", "--json")
_TRIAL = ("python", "-m", "bench", "selfcheck")
_EXIT_MARKER = "image-check: python -m bench selfcheck ended with"
# Without a report the script stops and prints the end of standard error, which has the cause.
_POD_SCRIPT = (
    '"$0" /opt/qlora-fleet/selfcheck.py --verify --json >/tmp/report 2>/tmp/why; cat /tmp/report; echo; '
    f'[ -s /tmp/report ] || {{ tail -c 2000 /tmp/why; exit 1; }}; "$0" -m bench selfcheck; echo "{_EXIT_MARKER} $?"'
)


def verify_image(context: Context, *, on_node: bool, dry_run: bool = False) -> CommandResult:
    settings = load(context)
    if dry_run:
        name = resolve_image(settings).reference if on_node else build_profiles.image_name(settings)
        vm, namespace = settings.build.host or "this machine", settings.cluster.namespace
        location = f"a pod of namespace {namespace}" if on_node else vm
        return plan_result([f"verify  {name} in {location}"], image=name, location=location)
    if on_node:
        return _verify_on_node(settings)
    name = build_profiles.image_name(settings)
    with build_vm(settings, "inv image.verify") as host:
        image = image_record(settings, host)
        print(f"{name} {image['Id'][7:19]}, {format_gb(image['Size'], 2)} unpacked")
        for key, value in sorted(image_labels(image).items()):
            print(escape_controls(f"  {key} = {value}"))
        run = partial(run_check, host, engine_client(settings), image["Id"])
        report = parse_report(name, run(_SELFCHECK, timeout_sec=VERIFY_TIMEOUT_SEC))
        problems = [*report["wrong"], *differing_models(report, model_digests(image_labels(image)))]
        print_report(report)
        if not problems:
            problems = _run_trial(settings, run, has_gpu=report["device"]["visible"])
    return finish(name, report, problems)


def _run_trial(settings: Settings, run: Callable[..., Completed], *, has_gpu: bool) -> list[str]:
    """Train a tiny model for two steps in the image; skip that if the profile needs a missing GPU. Return problems."""
    if not has_gpu and not build_profiles.selected_profile(settings).runs_on_cpu:
        print("  no GPU here, and this profile trains only on a GPU: no trial was run")
        return []
    completed = run(_TRIAL, timeout_sec=TRIAL_TIMEOUT_SEC)
    lines = (completed.stdout.strip() or completed.stderr.strip()).decode(errors="replace").splitlines()
    for line in lines[-3:]:
        print(escape_controls(f"  {line}"))
    return [] if completed.exit_code == 0 else [f"python -m bench selfcheck: {lines[-1] if lines else 'no output'}"]


# --- on a node --------------------------------------------------------------------------------------------------------


def _verify_on_node(settings: Settings) -> CommandResult:
    image, section = resolve_image(settings), settings.cluster
    with open_cluster(settings, changes=True) as cluster:
        if cluster.namespace() is None:
            raise UsageError(
                f"no namespace {section.namespace}", remedy="`inv deploy` creates it, with its pull secret"
            )
        check = PodCheck(
            name=POD_NAME,
            image=image.reference,
            args=["sh", "-c", _POD_SCRIPT, settings.fleet.pods.python],
            gpus=section.gpus_per_pod,
            cpu=section.cpu,
            memory=section.memory,
            timeout_sec=VERIFY_TIMEOUT_SEC,
            retry_command="inv image.verify --on-node",
        )
        node, text = run_pod_check(settings, cluster, check)
    name, lines = f"{image.reference} on node {node}", text.splitlines()
    report_lines = [line for line in lines if line.startswith("{") and '"wrong"' in line]
    output = Completed(exit_code=1, stdout="\n".join(report_lines[:1]).encode(), stderr=text.encode())
    report = parse_report(name, output)
    problems = [*report["wrong"], *differing_models(report, _pushed_models(settings, report))]
    print_report(report)
    marker_index = next((index for index, line in enumerate(lines) if line.startswith(_EXIT_MARKER)), None)
    trial_lines = [line for line in lines[:marker_index] if line.strip()]
    if marker_index is None or lines[marker_index].split()[-1] != "0":
        problems.append(f"python -m bench selfcheck: {trial_lines[-1] if trial_lines else 'no output'}")
    elif trial_lines:
        print(escape_controls(f"  {trial_lines[-1]}"))
    if not report["device"]["visible"]:
        problems.append("no GPU is visible in the pod, although one was allocated to it")
    return finish(name, report, problems)


def _pushed_models(settings: Settings, report: dict[str, Any]) -> dict[str, str]:
    """Return the manifest digests of the pushed image's models; the report's own if the push is not recorded here."""
    try:
        pushed = read_push_record(settings)
        if settings.cluster.image is None or pushed["digest"] in settings.cluster.image:
            return model_digests(pushed["labels"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # never pushed from here
    return {model["name"]: model["manifest_sha256"] for model in report["models"]}


# --- the report -------------------------------------------------------------------------------------------------------


def parse_report(name: str, completed: Completed) -> dict[str, Any]:
    """Parse the report from the last line of stdout and check every field read here. Raises TaskFailed."""
    try:
        report = schema.parse_object(completed.stdout.splitlines()[-1])
        report["wrong"] = [str(line) for line in report["wrong"]]
        if completed.exit_code > 1:  # it was killed after its report, which may say that all is well
            report["wrong"].append(f"the self-check exited with {completed.exit_code}")
        list(_lines(report)), list(differing_models(report, {}))
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        last = " ".join((completed.stderr or completed.stdout)[-500:].decode(errors="replace").split()[-30:])
        raise TaskFailed(f"{name}: self-check exited with {completed.exit_code} and no report: {last}") from error
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
        yield f"  model {model['name']}: {model['files']} files, {format_gb(model['bytes'], 2)}, every sha256 checked"
    if not report["models"]:
        yield "  no model in the image"


def problem_error(name: str, problems: list[str]) -> TaskFailed:
    """Build the task's error: ConfirmationRequired with the fix for damaged weights, else TaskFailed."""
    summary = f"{name}: {problems[0]}" + (f" (and {len(problems) - 1} more)" if len(problems) > 1 else "")
    if any(line.startswith("model") for line in problems):
        return ConfirmationRequired(summary, remedy="`inv build --force` rebuilds it from verified weights")
    return TaskFailed(summary)


def finish(name: str, report: dict[str, Any], problems: list[str]) -> CommandResult:
    """Return the report, with the problems as an error."""
    lines = [f"  WRONG: {line}" for line in problems] or [f"{name}: intact"]
    return CommandResult(
        data={"image": name, "report": report, "problems": problems},
        show=lambda: print(*map(escape_controls, lines), sep="\n"),
        failure=problem_error(name, problems) if problems else None,
    )
