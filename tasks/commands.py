"""Commands of `inv` for runs, trainings, reports and checks, with their flags and help.

Those for the cluster, the image, adapters and a provider are in module `commands` of their subpackage.

The options of commands with many flags are dataclasses, which their functions get.
"""

from dataclasses import dataclass

from bench.records.workloads import SUITES, TRAINING
from tasks.cli.command_result import Effect
from tasks.cli.flags import Command, Section, number, positional, switch, text, words

DISCARD = "continue if results in the pods have not been collected; they are lost"
DRY_RUN = "print the plan, and change nothing"
DRY_RUN_OF_OBJECTS = "print the plan and the differences, and change nothing"
NEWEST_RUN, NEWEST_TRAINING = "the newest run", "the newest training"
RUN = "run id"
TRAINING_RUN = "run id of the training"
INPUTS = {
    "model": text("folder of the model, as a worker sees it", value="FOLDER", setting="model.path"),
    "data": text("chats to train on, as a worker sees them", value="FILE", setting="data.path"),
}
RECIPE = {
    "epochs": text("passes over the data", value="N", setting="train.epochs"),
    "max_steps": text("stop after this many steps", value="N", setting="train.max_steps"),
    "learning_rate": text("peak learning rate", setting="train.learning_rate"),
    "columns": text(
        """names of the data's columns, e.g. '{"prompt": "q", "completion": "a"}'""",
        value="JSON",
        setting="train.columns",
    ),
    "matmul": text("products with frozen weights", value="bf16|int8", setting="train.matmul"),
}

# --- fleet


def suite_names() -> str:
    """Return the names of the suites for a help text: those of trainings first, those outside `all` last."""
    pairs = sorted(SUITES.values(), key=lambda pair: (not pair[1].is_in_all, pair[0] is not TRAINING))
    return ", ".join(suite.name for _, suite in pairs)


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    quick: bool = switch("run suite quick: 3 trials, the published two and what `inv train` does")
    full: bool = switch("run suite full: 13 trials, one factor at a time")
    only: str | None = text("ids of the trials to run, separated by commas (--dry-run shows all)", value="IDS")
    trial_file: str | None = text("JSON file with the trial to run, or a list of trials")
    quality: bool = switch(
        "then compare the held-out loss of the fastest configuration with the reference, after short trainings on your "
        "data",
        unset="bench.quality",
    )
    resume: str | bool | None = text(
        "resume the newest run, or the run with this id; finished trials are not repeated",
        is_value_optional=True,
        value="RUN",
    )
    workers: int | None = number(int, "run on this many of the fleet's workers", ge=1, unset="fleet.size")
    dry_run: bool = switch(DRY_RUN)


SUITE = {
    "suite": text(f"{suite_names()} or all", setting="bench.suite"),
    "repeats": text("processes per trial and worker, 1 to 100", value="N", setting="bench.repeats"),
}
bench = Command(
    "bench",
    "tasks.fleet.bench:run_bench",
    "Run a suite of trials on the fleet, or --resume a run.",
    section=Section.BENCHMARK,
    effect=Effect.CHANGES,
    is_daily=True,
    examples=("inv bench --quick collect report  # 3 trials on every worker, then the page",),
    options=BenchOptions,
    settings=INPUTS | SUITE,
)
cancel = Command(
    "cancel",
    "tasks.fleet.bench:cancel_run",
    "Stop the trials of an abandoned run on the workers.",
    section=Section.BENCHMARK,
    effect=Effect.CHANGES,
    name=text(RUN, name="run", unset=NEWEST_RUN),
    dry_run=switch("print the trials that are still open, and stop none"),
)
collect = Command(
    "collect",
    "tasks.fleet.collect:run_collect",
    "Copy the results of a run to results/RUN, verified.",
    section=Section.BENCHMARK,
    effect=Effect.CHANGES,
    is_daily=True,
    name=text(RUN, name="run", unset=NEWEST_RUN),
    dry_run=switch("print what is missing here, and fetch nothing"),
)
monitor = Command(
    "monitor",
    "tasks.fleet.monitor:show_workers",
    "Show the activity of every worker's GPU.",
    section=Section.BENCHMARK,
    effect=Effect.SHOWS,
    examples=("watch -n 5 inv monitor  # again every five seconds, until Ctrl-C",),
    name=text("run id of a training over pods: show its pods", name="run"),
)
# --- training


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    workers: int | None = number(
        int, "train on this many of the fleet's workers", ge=1, unset="train.workers, else all"
    )
    from_run: str | None = text("use the recommended configuration of this benchmark", name="from", value="RUN")
    resume: str | bool | None = text(
        "resume the newest training, or the run with this id, from its last checkpoint",
        is_value_optional=True,
        value="RUN",
    )
    dry_run: bool = switch("print the plan and the predicted steps, hours, costs and memory, and start nothing")
    discard_results: bool = switch(f"over pods: {DISCARD}")


train = Command(
    "train",
    "tasks.train.train:train_fleet",
    "Fine-tune the model, or --resume a training.",
    section=Section.TRAIN,
    effect=Effect.CHANGES,
    is_daily=True,
    examples=("inv train --resume collect report  # go on after a crash, then the page",),
    options=TrainOptions,
    settings=INPUTS | RECIPE,
)
check_data = Command(
    "data.check",
    "tasks.train.train:check_data",
    "Show the examples and tokens that a training would use.",
    section=Section.TRAIN,
    effect=Effect.SHOWS,
    is_daily=True,
    settings={
        **INPUTS,
        **RECIPE,
        "data": positional("chats to train on, also as --data", is_required=False, value="FILE", setting="data.path"),
    },
)

# --- reports and checks

report = Command(
    "report",
    "tasks.reports.report:write_report",
    "Write a run's report: HTML, Markdown, data and figures.",
    section=Section.AFTER,
    effect=Effect.BOTH,
    is_daily=True,
    run=text(RUN, unset=NEWEST_RUN),
    against=text("run id to compare with, in a figure", value="RUN"),
    allow=words(
        "condition of --against that may differ (gpu, driver, lock, weights, profile, ...)",
        value="CONDITION",
    ),
    formats=words("also export for tensorboard or wandb", name="format"),
    dry_run=switch("print the files to write, and write nothing"),
)
runs = Command(
    "runs",
    "tasks.reports.runs:list_runs",
    "List the runs with their progress.",
    section=Section.AFTER,
    effect=Effect.SHOWS,
    is_daily=True,
)
compare = Command(
    "compare",
    "tasks.reports.compare:compare_runs",
    "Show what became faster or slower between runs.",
    section=Section.AFTER,
    effect=Effect.SHOWS,
    examples=("inv compare OLD NEW --tolerance 3 --json  # for a CI job: 1 if slower",),
    first=positional("run id of the reference, or several with commas", value="RUN"),
    second=positional("run id to compare with it, or several with commas", value="RUN"),
    allow=words(
        "condition that may differ (gpu, driver, lock, weights, profile, ...) or be unknown",
        value="CONDITION",
    ),
    tolerance=number(
        float,
        "percent that a configuration may be slower without failing",
        1.0,
        ge=0,
        le=99,
        value="PERCENT",
    ),
    out=text("folder for compare.json", value="FOLDER", unset="the report folder of the last run"),
)
doctor = Command(
    "doctor",
    "tasks.doctor.doctor:run_doctor",
    "Check the whole set-up and print a fix for each problem.",
    section=Section.SET_UP,
    effect=Effect.SHOWS,
    is_daily=True,
    only=text("subjects to check, e.g. cluster,nodes, even if no setting needs them", value="SUBJECTS", unset="all"),
)
settings = Command(
    "settings",
    "tasks.doctor.settings_in_force:show_settings",
    "Show every setting, its value, and where it is set.",
    section=Section.SET_UP,
    effect=Effect.SHOWS,
    is_daily=True,
    name=positional("a setting or a section, e.g. fleet.size", is_required=False, unset="all", value="SETTING"),
    changed=switch("only settings whose value is not the default"),
)
