"""Commands for adapters and servers, with their flags and help."""

from tasks.cli.command_result import Effect
from tasks.cli.flags import Command, Section, number, positional, switch, text
from tasks.commands import NEWEST_TRAINING, TRAINING_RUN

check_adapter = Command(
    "adapter.check",
    "tasks.adapter.check:check_adapter",
    "Measure an adapter in each form that can be served.",
    section=Section.AFTER,
    effect=Effect.SHOWS,
    run=text(TRAINING_RUN, unset=NEWEST_TRAINING),
    answers=number(int, "number of held-out prompts that every form answers", 8, ge=0, le=1000),
)
merge_adapter = Command(
    "adapter.merge",
    "tasks.adapter.merge:merge_adapter",
    "Merge an adapter and its base into one model folder.",
    section=Section.AFTER,
    effect=Effect.CHANGES,
    examples=("inv adapter.merge --base=nf4 adapter.check  # then measured again",),
    run=text(TRAINING_RUN, unset=NEWEST_TRAINING),
    base=text(
        "bf16: merge into the original weights; nf4: into the weights as quantized during training",
        "bf16",
        value="bf16|nf4",
    ),
    out=text("folder to create, as the worker sees it", value="FOLDER", unset="RUN/merged, in results"),
    force=switch("merge without a check, or if the check found another loss than the training"),
    dry_run=switch("print the check's verdict and the folder to create, and merge nothing"),
)
check_server = Command(
    "serve.check",
    "tasks.adapter.questions:check_served",
    "Compare a server's answers with those of the training.",
    section=Section.AFTER,
    effect=Effect.SHOWS,
    url=positional("address of the server, e.g. http://127.0.0.1:8000"),
    run=text(TRAINING_RUN, unset=NEWEST_TRAINING),
    model=text("model name on the server", unset="its only model"),
    key_file=text("local file, mode 0600, with only the API key of the server"),
)
chat = Command(
    "chat",
    "tasks.adapter.questions:chat",
    "Ask an adapter on the first worker, without a server, a question a line.",
    section=Section.AFTER,
    effect=Effect.SESSION,
    run=text(TRAINING_RUN, unset=NEWEST_TRAINING),
)
