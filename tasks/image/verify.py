"""`inv image.verify`: check that an image is intact and that a trial runs in it."""

from collections.abc import Callable
from functools import partial

from invoke.context import Context

from remote.image import docker_client as images
from remote.image.docker_client import ContainerExit
from tasks.clients.build_vm import build_vm
from tasks.image import build_profiles
from tasks.image.build import engine_client
from tasks.image.node_check import VERIFY_TIMEOUT_SEC, verify_on_node
from tasks.image.selfcheck_report import differing_models, finish, parse_report, print_report
from tasks.settings.load import Settings, load

TRIAL_TIMEOUT_SEC = 900.0


def verify_image(context: Context, *, on_node: bool) -> None:
    settings = load(context)
    if on_node:
        verify_on_node(settings)
        return
    name = build_profiles.image_name(settings)
    with build_vm(settings, "inv image.verify") as host, images.connect(host, engine_client(settings)) as sdk:
        image = sdk.images.get(name)
        print(f"{name} {str(image.id)[7:19]}, {image.attrs['Size'] / 1e9:.2f} GB unpacked")
        for key, value in sorted(image.labels.items()):
            print(f"  {key} = {value}")
        run = partial(images.run_check, sdk, name)
        check = ("python", "/opt/qlora-fleet/selfcheck.py", "--verify", "--json")
        report = parse_report(name, run(check, timeout_sec=VERIFY_TIMEOUT_SEC))
        problems = [*report["wrong"], *differing_models(report, images.model_digests(image.labels))]
        print_report(report)
        if not problems:
            problems += _run_two_steps(settings, run, has_gpu=report["device"]["visible"])
    finish(name, problems)


def _run_two_steps(settings: Settings, run: Callable[..., ContainerExit], *, has_gpu: bool) -> list[str]:
    """Train a tiny model for two steps in the image; skip that if the profile needs a missing GPU. Return problems."""
    if not has_gpu and not build_profiles.selected_profile(settings).runs_on_cpu:
        print("  no GPU here, and this profile trains only on a GPU: no trial was run")
        return []
    container = run(("python", "-m", "bench", "selfcheck"), timeout_sec=TRIAL_TIMEOUT_SEC)
    lines = (container.stdout.strip() or container.stderr.strip()).splitlines()
    for line in lines[-3:]:
        print(f"  {line}")
    return [] if container.exit_code == 0 else [f"python -m bench selfcheck: {lines[-1] if lines else 'no output'}"]
