"""`inv image.verify`: the proof that an image is whole and that a trial runs in it."""

from collections.abc import Callable
from functools import partial

from invoke.context import Context

from remote.image import docker_client as images
from remote.image.docker_client import ContainerExit
from tasks.clients.build_vm import build_vm
from tasks.image import build_profiles
from tasks.image.build import client
from tasks.image.node_check import VERIFY_SEC, verify_on_node
from tasks.image.selfcheck_report import conclude, differing_models, report_of, show
from tasks.settings.load import Settings, load

SELFCHECK_SEC = 900.0


def verify_image(context: Context, *, on_node: bool) -> None:
    settings = load(context)
    if on_node:
        verify_on_node(settings)
        return
    name = build_profiles.image_name(settings)
    with build_vm(settings, "inv image.verify") as host, images.connected(host, client(settings)) as sdk:
        image = sdk.images.get(name)
        print(f"{name} {str(image.id)[7:19]}, {image.attrs['Size'] / 1e9:.2f} GB unpacked")
        for key, value in sorted(image.labels.items()):
            print(f"  {key} = {value}")
        run = partial(images.run_check, sdk, name)
        check = ("python", "/opt/qlora-fleet/selfcheck.py", "--verify", "--json")
        report = report_of(name, run(check, timeout_sec=VERIFY_SEC))
        wrong = [*report["wrong"], *differing_models(report, images.model_digests(image.labels))]
        show(report)
        if not wrong:
            wrong += _two_steps(settings, run, has_gpu=report["device"]["visible"])
    conclude(name, wrong)


def _two_steps(settings: Settings, run: Callable[..., ContainerExit], *, has_gpu: bool) -> list[str]:
    """Train two steps of a tiny model in the image, if the profile's stack can without a GPU. Returns what is wrong."""
    if not has_gpu and not build_profiles.read(settings).runs_on_cpu:
        print("  no GPU here, and this profile's stack trains on one only: no trial was run")
        return []
    ended = run(("python", "-m", "bench", "selfcheck"), timeout_sec=SELFCHECK_SEC)
    lines = (ended.stdout.strip() or ended.stderr.strip()).splitlines()
    for line in lines[-3:]:
        print(f"  {line}")
    return [] if ended.exit_code == 0 else [f"python -m bench selfcheck: {lines[-1] if lines else 'no output'}"]
