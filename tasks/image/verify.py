"""`inv image.verify`: the proof that an image is whole and that a trial runs in it."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from invoke.context import Context

from remote.image import engine
from remote.image import sdk as images
from remote.image.sdk import Ended
from tasks.connect.buildvm import build_vm
from tasks.errors import Refused, TaskFailed
from tasks.image import profiles
from tasks.image.build import client
from tasks.settings.load import Settings, load

VERIFY_SEC = 3600.0  # 14 GB are read in full
SELFCHECK_SEC = 900.0


def verify_image(context: Context) -> None:
    settings = load(context)
    name = profiles.image_name(settings)
    with build_vm(settings, "inv image.verify") as host:
        facts = engine.observe(host, client(settings))
        with images.connected(host, client(settings), facts) as sdk:
            image = sdk.images.get(name)
            print(f"{name} {str(image.id)[7:19]}, {image.attrs['Size'] / 1e9:.2f} GB unpacked")
            for key, value in sorted(image.labels.items()):
                print(f"  {key} = {value}")
            run = partial(images.run_check, sdk, name)
            check = ("python", "/opt/qlora-fleet/selfcheck.py", "--verify", "--json")
            report = _report(name, run(check, timeout_sec=VERIFY_SEC))
            wrong = [*report["wrong"], *_differing_models(report, images.model_digests(image.labels))]
            _show(report)
            if not wrong:
                wrong += _two_steps(settings, run, has_gpu=report["device"]["visible"])
    if wrong:
        for line in wrong:
            print(f"  WRONG: {line}")
        raise _refused(name, wrong)
    print(f"{name}: whole")


def _refused(name: str, wrong: list[str]) -> TaskFailed:
    """Damaged weights are refused with the command that mends them; the rest is a failure."""
    said = f"{name}: {wrong[0]}" + (f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else "")
    if any(line.startswith("model") for line in wrong):
        return Refused(f"{said}; `inv build --anew` makes it again, of weights that it verifies")
    return TaskFailed(said)


def _two_steps(settings: Settings, run: Callable[..., Ended], *, has_gpu: bool) -> list[str]:
    """Train two steps of a tiny model in the image, if the profile's stack can without a GPU. Returns what is wrong."""
    if not has_gpu and not profiles.read(settings).runs_on_cpu:
        print("  no GPU here, and this profile's stack trains on one only: no trial was run")
        return []
    ended = run(("python", "-m", "bench", "selfcheck"), timeout_sec=SELFCHECK_SEC)
    lines = (ended.stdout.strip() or ended.stderr.strip()).splitlines()
    for line in lines[-3:]:
        print(f"  {line}")
    return [] if ended.exit_code == 0 else [f"python -m bench selfcheck: {lines[-1] if lines else 'no output'}"]


def _report(name: str, ended: Ended) -> dict[str, Any]:
    try:
        report: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        last = " ".join((ended.stderr or ended.stdout).split()[-30:])
        raise TaskFailed(f"{name}: its self-check ended with {ended.exit_code} and no report: {last}") from None
    return report


def _differing_models(report: dict[str, Any], expected: dict[str, str]) -> Iterator[str]:
    inside = {model["name"]: model["manifest_sha256"] for model in report["models"]}
    for name in sorted(expected.keys() | inside.keys()):
        if name not in inside:
            yield f"model {name}: the labels name it, and it is not in the image"
        elif expected.get(name) != inside[name]:
            yield f"model {name}: its manifest is not the one the image was built from"


def _show(report: dict[str, Any]) -> None:
    packages = ", ".join(f"{name} {version}" for name, version in report["packages"].items())
    print(f"  python {report['python']}: {packages}")
    device = report["device"]
    if device["torch"] is not None:
        seen = "a device is visible" if device["visible"] else "no device on this machine, which is fine here"
        print(f"  CUDA {device['cuda']}: {seen}")
    for model in report["models"]:
        print(f"  model {model['name']}: {model['files']} files, {model['bytes'] / 1e9:.2f} GB, every sha256 read")
    if not report["models"]:
        print("  no model in the image")
