"""Settings: the shipped defaults, precedence of the layers, and one line for each kind of mistake."""

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from invoke import Context
from pydantic import ValidationError

from bench.records.trial import PROFILES, SUITE_NAMES
from tasks.errors import UsageError
from tasks.fleet.pricing import pricing
from tasks.settings.load import SYNONYMS, load
from tasks.settings.schema import LEAVES, FleetSection, Sections, local_workers

Make = Callable[..., Context]


def refusal(context: Context) -> str:
    with pytest.raises(UsageError) as caught:
        load(context)
    message = str(caught.value)
    assert message.isprintable(), "one line, no control characters"
    return message


def test_the_shipped_file_has_every_default(project: Path, context: Make) -> None:
    shipped = yaml.safe_load((project / "invoke.yaml").read_text())
    del shipped["tasks"]
    assert shipped["fleet"]["size"] == "auto"
    shipped["fleet"]["size"] = local_workers()
    assert shipped == Sections().model_dump(mode="json")
    assert load(context()).public() == shipped


@pytest.mark.parametrize(
    ("text", "cores", "size"),
    [
        ("", 1, 1),
        ("", 2, 2),
        ("fleet: {size: auto}", 64, 4),
        ("fleet: {size: auto, local: {threads: 4}}", 8, 2),
        ("fleet: {size: auto, local: {threads: 16}}", 8, 1),
        ("fleet: {kind: pods}", 1, 4),
        ("fleet: {size: 3}", 1, 3),
    ],
)
def test_auto_is_one_worker_per_core_and_four_pods(
    context: Make, monkeypatch: pytest.MonkeyPatch, text: str, cores: int, size: int
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(cores))
    settings = load(context(text=text)) if text else load(context())
    assert settings.fleet.size == size
    assert settings.public()["fleet"]["size"] == size, "a plan has the number"
    monkeypatch.setenv("INVOKE_FLEET_SIZE", "auto")
    assert load(context(text=text or "{}")).fleet.size == (size if text != "fleet: {size: 3}" else 3)


def test_every_setting_in_the_shipped_file_has_a_comment(project: Path) -> None:
    lines = (project / "invoke.yaml").read_text().splitlines()
    values = [line for line in lines if ":" in line and not line.strip().startswith("#") and not line.endswith(":")]
    assert len(values) > 20
    assert [line for line in values if " # " not in line] == []


def test_settings_are_frozen(context: Make) -> None:
    with pytest.raises(ValidationError, match="frozen"):
        load(context()).fleet.size = 5  # type: ignore[misc]


def test_folders_are_relative_to_the_project_and_absolute_ones_stay(project: Path, context: Make) -> None:
    settings = load(context())
    assert (settings.root, settings.workspace, settings.results_folder) == (project, project, project / "results")
    assert load(context(text="fleet: {workspace: /srv/my work}")).workspace == Path("/srv/my work")


def test_later_layers_win(project: Path, context: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def size() -> int:
        return load(context("f.yaml" if (project / "f.yaml").exists() else None)).fleet.size

    (project.parent / "etc-invoke.yaml").write_text("fleet: {size: 11, max_attempts: 9}")
    (project / "invoke.yaml").write_text("fleet: {kind: local}")
    assert size() == 11
    (project / "invoke.yaml").write_text("fleet: {size: 12}")
    assert size() == 12
    (project.parent / "home" / ".invoke.yaml").write_text("fleet: {size: 13}")
    assert size() == 13, "the shipped invoke.yaml names every setting; a user's own file must override it"
    monkeypatch.setenv("INVOKE_FLEET_SIZE", "14")
    assert size() == 14
    program = context(text="fleet: {size: 15}")
    assert size() == 15
    program.config.fleet = {"size": 16}
    assert load(program).fleet.size == 16
    assert load(program).fleet.max_attempts == 9, "a layer changes only its own keys"


def test_text_from_the_environment_becomes_what_the_setting_is(context: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {
        "BENCH_MEASURED_STEPS": "7",
        "BENCH_LEARNING_RATE": "1e-3",
        "FLEET_LOST_AFTER_SEC": "5",
        "FLEET_WORKSPACE": "/w s",
        "BENCH_DEADLINE_SEC": "",
        "COST_PRICE_USD_PER_GPU_HOUR": "2",
        "COST_PRICE_SOURCE": "2",
        "FLEET_LOCAL_THREADS": "2",
        "CLUSTER_PREEMPTIBLE": "true",
    }.items():
        monkeypatch.setenv(f"INVOKE_{name}", text)
    settings = load(context())
    assert (settings.bench.measured_steps, settings.bench.learning_rate, settings.fleet.lost_after_sec) == (
        7,
        0.001,
        5.0,
    )
    assert (settings.fleet.workspace, settings.bench.deadline_sec, settings.fleet.local.threads) == ("/w s", None, 2)
    assert (settings.cost.price_usd_per_gpu_hour, settings.cost.price_source) == (2.0, "2")
    assert settings.cluster.preemptible is True


@pytest.mark.parametrize(
    ("file", "text", "size"),
    [
        ("f.json", '{\n\t"fleet": {"size": 5}}', 5),
        ("f.yml", "fleet: {size: 6}", 6),
        ("f.yaml", "# nothing here yet\n", local_workers()),
        ("f.yaml", "run: {echo: true, something_new: 1}\ntimeouts: {command: 5}\n", local_workers()),  # Invoke's own
        ("../home/.invoke.yaml", "sphinx: {target: x}\n", local_workers()),  # another project's
    ],
)
def test_files_of_every_kind_are_read_and_foreign_keys_are_ignored(
    file: str, text: str, size: int, project: Path, context: Make
) -> None:
    (project / file).write_text(text)
    assert load(context(file if file.startswith("f.") else None)).fleet.size == size


SIZE = "auto, or a whole number from 1 to 1024"
SECTIONS = ", ".join(Sections.model_fields)
FLEET = ", ".join(FleetSection.model_fields)
PATH_NEEDED = "a folder's path"
TRIALS = "a list of trial ids"
RATE = "a number above 0, at most 1, or null"
STEPS = "a whole number from 1 to 100000, or null"
SOURCE = "text that says where the price is from"
NAME = "a Kubernetes name (lower-case letters, digits, '-')"
OVERLAYS = "pods, preemptible, interactive, job-1gpu, job-4gpu, job-4gpu-jobset, job-4gpu-kueue"

MISTAKES = {
    # wrong type
    "fleet:\n  size: four\n": f'f.yaml:2: fleet.size: expected {SIZE}, found "four"',
    'fleet: {size: "4"}': f'f.yaml:1: fleet.size: expected {SIZE}, found "4"',
    "fleet: {size: 4.0}": f"f.yaml:1: fleet.size: expected {SIZE}, found 4.0",
    "fleet: {size: true}": f"f.yaml:1: fleet.size: expected {SIZE}, found true",
    "fleet: {size: null}": f"f.yaml:1: fleet.size: expected {SIZE}, found null",
    "fleet: {size: [4]}": f"f.yaml:1: fleet.size: expected {SIZE}, found a list",
    "fleet: {size: {a: 4}}": f"f.yaml:1: fleet.size: expected {SIZE}, found a section",
    "fleet: {size: 2025-01-31}": f'f.yaml:1: fleet.size: expected {SIZE}, found "2025-01-31"',
    "fleet: {lost_after_sec: true}": "f.yaml:1: fleet.lost_after_sec: expected a number from 1 to 86400, found true",
    "fleet: {workspace: 3}": f"f.yaml:1: fleet.workspace: expected {PATH_NEEDED}, or null, found 3",
    "results: {folder: no}": f"f.yaml:1: results.folder: expected {PATH_NEEDED}, found false",
    'results: {folder: ""}': f'f.yaml:1: results.folder: expected {PATH_NEEDED}, found ""',
    "results: {folder: null}": f"f.yaml:1: results.folder: expected {PATH_NEEDED}, found null",
    'model: {path: "a\\nb"}': f'f.yaml:1: model.path: expected {PATH_NEEDED}, found "a\\nb"',
    "data: {path: 1}": "f.yaml:1: data.path: expected a file's path, found 1",
    "bench: {only: baseline}": f'f.yaml:1: bench.only: expected {TRIALS}, found "baseline"',
    "bench: {only: !!set {a}}": f"f.yaml:1: bench.only: expected {TRIALS}, found a set",
    "bench:\n  only:\n    - a\n    - 3\n": "f.yaml:2: bench.only[1]: expected text, found 3",
    "train:\n  data_weights: [1, .inf]\n": "f.yaml:2: train.data_weights[1]: expected a number, found .inf",
    "train:\n  sample_prompts: ['a', '']\n": (
        'f.yaml:2: train.sample_prompts[1]: expected text of one line, not blank, found ""'
    ),
    # not one of the choices; suites and profiles are those that the bench knows
    "fleet: {kind: slurm}": 'f.yaml:1: fleet.kind: expected one of local, pods, found "slurm"',
    "bench: {suite: quik}": f'f.yaml:1: bench.suite: expected one of {", ".join(SUITE_NAMES)}, found "quik"',
    "bench: {profile: a10}": f'f.yaml:1: bench.profile: expected one of {", ".join(PROFILES)}, found "a10"',
    "bench: {spread: all}": 'f.yaml:1: bench.spread: expected one of replicate, shard, found "all"',
    # out of range
    "fleet: {size: 0}": f"f.yaml:1: fleet.size: expected {SIZE}, found 0",
    "fleet: {size: 1025}": f"f.yaml:1: fleet.size: expected {SIZE}, found 1025",
    "fleet: {lost_after_sec: 0.5}": "f.yaml:1: fleet.lost_after_sec: expected a number from 1 to 86400, found 0.5",
    "fleet: {lost_after_sec: .nan}": "f.yaml:1: fleet.lost_after_sec: expected a number from 1 to 86400, found .nan",
    "fleet: {lost_after_sec: -.inf}": "f.yaml:1: fleet.lost_after_sec: expected a number from 1 to 86400, found -.inf",
    "fleet: {max_attempts: 11}": "f.yaml:1: fleet.max_attempts: expected a whole number from 1 to 10, found 11",
    "fleet:\n  local:\n    threads: 0": "f.yaml:3: fleet.local.threads: expected a whole number from 1 to 256, found 0",
    "bench: {seed: -1}": "f.yaml:1: bench.seed: expected a whole number from 0 to 2147483647, found -1",
    "bench: {learning_rate: 0}": f"f.yaml:1: bench.learning_rate: expected {RATE}, found 0",
    "bench: {measured_steps: 0}": f"f.yaml:1: bench.measured_steps: expected {STEPS}, found 0",
    "cost: {price_usd_per_gpu_hour: -1, price_source: x}": (
        "f.yaml:1: cost.price_usd_per_gpu_hour: expected a number above 0, at most 1000, or null, found -1"
    ),
    "cost:\n  hosted_usd_per_10000_samples: 10.0\n": f"f.yaml:2: cost.hosted_source: expected {SOURCE}, found null",
    "cost:\n  price_usd_per_gpu_hour: 2.0\n": f"f.yaml:2: cost.price_source: expected {SOURCE}, found null",
    # section cluster
    "cluster:\n  namespace: Qlora_Fleet\n": f'f.yaml:2: cluster.namespace: expected {NAME}, found "Qlora_Fleet"',
    "cluster:\n  memory: 24 GB\n": 'f.yaml:2: cluster.memory: expected a Kubernetes quantity like 24Gi, found "24 GB"',
    "cluster:\n  cpu: 0.5\n": "f.yaml:2: cluster.cpu: expected a Kubernetes quantity like 4 or 500m, found 0.5",
    "cluster:\n  preemptible: 1\n": "f.yaml:2: cluster.preemptible: expected true or false, found 1",
    "cluster:\n  volume: {handle: 10.0.0.5}\n": (
        'f.yaml:2: cluster.volume.handle: expected text like SERVER:/EXPORT, or null, found "10.0.0.5"'
    ),
    "cluster:\n  provider: aws\n": "f.yaml:2: cluster.provider: expected one of auto, generic, oci, found 'aws'",
    "cluster:\n  overlay: pod\n": f'f.yaml:2: cluster.overlay: expected one of {OVERLAYS}, found "pod"',
    # unknown keys
    "fleet:\n  siez: 3": "f.yaml:2: fleet.siez: unknown setting; did you mean fleet.size?",
    "fleet: {local: {thread: 3}}": "f.yaml:1: fleet.local.thread: unknown setting; did you mean fleet.local.threads?",
    "fleet: {colour: 3}": f"f.yaml:1: fleet.colour: unknown setting; fleet has {FLEET}",
    "fleet: {gpus: 3}": "f.yaml:1: fleet.gpus: unknown setting; did you mean fleet.size?",
    "fleet: {workers: 3}": "f.yaml:1: fleet.workers: unknown setting; did you mean fleet.size?",
    "train: {lr: 3}": "f.yaml:1: train.lr: unknown setting; did you mean train.learning_rate?",
    "train: {steps: 3}": "f.yaml:1: train.steps: unknown setting; did you mean train.max_steps?",
    "cost: {price: 3}": "f.yaml:1: cost.price: unknown setting; did you mean cost.price_usd_per_gpu_hour?",
    "fleet: {1: 3}": f"f.yaml:1: fleet.1: unknown setting; fleet has {FLEET}",
    "# first\nflete: {size: 3}": "f.yaml:2: flete: unknown setting; did you mean fleet?",
    "threads: 3": "f.yaml:1: threads: unknown setting; did you mean fleet.local.threads?",
    "root: /x": f"f.yaml:1: root: unknown setting; the project has {SECTIONS}",
    "docker: {}": f"f.yaml:1: docker: unknown setting; the project has {SECTIONS}",
    '"a\\e[31mb": 1': f"f.yaml:1: a\\x1b[31mb: unknown setting; the project has {SECTIONS}",
    "fleet: {size: 3}\nfleet: {size: 4}": "f.yaml:2: fleet: given twice, first on line 1",
    "fleet:\n  size: 3\n  kind: local\n  size: 4": "f.yaml:4: fleet.size: given twice, first on line 2",
    # not sections
    "fleet: 4": f"f.yaml:1: fleet: expected a section with {FLEET}, found 4",
    "fleet:\n": f"f.yaml:1: fleet: expected a section with {FLEET}, found null",
    "- fleet": "f.yaml:1: expected sections such as `fleet:`, found a list",
    "just words": 'f.yaml:1: expected sections such as `fleet:`, found "just words"',
    "tasks: 3": "f.yaml:1: tasks: expected a section, found 3",
    "run: {echo: {a: 1}}": "f.yaml:1: run.echo: expected a value, found a section",
    # not YAML
    "fleet:\n  size: [1": "f.yaml:2: not YAML: expected ',' or ']', but got '<stream end>'",
    "fleet:\n\tsize: 4": "f.yaml:2: not YAML: found character '\\t' that cannot start any token",
    "fleet:\n  size: 4\n kind: local": "f.yaml:3: not YAML: expected <block end>, but found '<block mapping start>'",
    "a: 1\n---\nb: 2": "f.yaml:2: not YAML: a second document",
    "fleet:\n  size: *four": "f.yaml:2: not YAML: found undefined alias 'four'",
    "\n\nfleet: \x07": "f.yaml:3: not YAML: a forbidden character",
    "fleet:\n  size: 2025-13-45": "f.yaml:2: not YAML: 2025-13-45 is not a valid timestamp",
    "fleet:\n  size: !!int x": "f.yaml:2: not YAML: x is not a valid int",
    "fleet:\n  size: !!python/name:os.system x": (
        "f.yaml:2: not YAML: could not determine a constructor for the tag 'tag:yaml.org,2002:python/name:os.system'"
    ),
    "fleet: " + 1000 * "[": "f.yaml: unusable YAML: nested too deeply",
    "fleet:\n  <<: {size: x}\n": f'f.yaml:2: fleet.size: expected {SIZE}, found "x"',
    "fleet:\n  yes: 3\n": f"f.yaml:1: fleet.True: unknown setting; fleet has {FLEET}",  # the section's line
    "fleet: &a {size: *a}": "f.yaml: unusable YAML: more than 10,000 values",
    "\n".join(["a0: &a0 [x, x]", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 50))]): (
        "f.yaml: unusable YAML: more than 10,000 values"  # two to the power of 50
    ),
    "\n".join(["b0: &b0 {x: 1}", *(f"b{n}: &b{n} {{<<: [*b{n - 1}, *b{n - 1}]}}" for n in range(1, 50))]): (
        "f.yaml: unusable YAML: more than 10,000 values"
    ),
}


@pytest.mark.parametrize("text", MISTAKES, ids=lambda text: text[:40].encode("unicode_escape").decode())
def test_a_mistake_in_a_file_is_one_line_with_its_place(text: str, context: Make) -> None:
    assert refusal(context(text=text)) == MISTAKES[text]


@pytest.mark.parametrize(
    ("variable", "text", "message"),
    [
        ("FLEET_SIZE", "four", f'fleet.size: expected {SIZE}, found "four"'),
        ("FLEET_SIZE", "", f'fleet.size: expected {SIZE}, found ""'),
        ("FLEET_SIZE", "4096", f"fleet.size: expected {SIZE}, found 4096"),
        ("FLEET_LOST_AFTER_SEC", "nan", "fleet.lost_after_sec: expected a number from 1 to 86400, found .nan"),
        ("BENCH_SUITE", "fast", f'bench.suite: expected one of {", ".join(SUITE_NAMES)}, found "fast"'),
        ("BUILD_PORT", "null", 'build.port: expected a whole number from 1 to 65535, or nothing, found "null"'),
        ("BENCH_ONLY", "baseline", f'bench.only: expected {TRIALS}, found "baseline"; a list needs a file'),
        ("COST_PRICE_USD_PER_GPU_HOUR", "2", f"cost.price_source: expected {SOURCE}, found null"),
        (
            "CLUSTER_SHM",
            "32Gi",
            "cluster.shm: expected at most cluster.memory, 24Gi, of which it is a part, found 32Gi",
        ),
        ("CLUSTER_PREEMPTIBLE", "perhaps", 'cluster.preemptible: expected true or false, found "perhaps"'),
        ("FLEET", "4", "a section, not a setting; set its settings one by one, e.g. INVOKE_FLEET_KIND"),
        ("FLEET_LOCAL", "4", "a section, not a setting; set its settings one by one, e.g. INVOKE_FLEET_LOCAL_FOLDER"),
        ("FLEET_SIZ", "4", "unknown setting; did you mean INVOKE_FLEET_SIZE?"),
        ("FLET_SIZE", "4", "unknown setting; did you mean INVOKE_FLEET_SIZE?"),
        ("COST_VALUE_ADDED_TAX", "4", "unknown setting; `invoke.yaml` lists all settings"),
    ],
)
def test_a_mistake_in_the_environment_is_one_line_with_the_variable(
    variable: str, text: str, message: str, context: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"INVOKE_{variable}", text)
    assert refusal(context()) == f"environment INVOKE_{variable}: {message}"


@pytest.mark.parametrize("text", ["2e-4", "2E-04", "0.2e-3", "'2e-4'"])
def test_a_number_with_an_exponent_is_a_number_although_yaml_reads_text(text: str, context: Make) -> None:
    assert load(context(text=f"bench: {{learning_rate: {text}}}")).bench.learning_rate == 2e-4


@pytest.mark.parametrize("text", ["1e9999", "1e-9999", "-1e0", "e5", "1e"])
def test_an_exponent_that_leads_out_of_the_range_is_refused(text: str, context: Make) -> None:
    message = refusal(context(text=f"bench: {{learning_rate: {text}}}"))
    assert message.startswith("f.yaml:1: bench.learning_rate: expected a number above 0, at most 1")


def test_a_leading_tilde_is_the_home_folder_in_every_path(project: Path, context: Make) -> None:
    home = project.parent / "home"
    settings = load(context(text="results: {folder: ~/r}\nfleet: {workspace: ~/w}\ncost: {prices: ~/p.yaml}"))
    assert (settings.results_folder, settings.workspace) == (home / "r", home / "w")
    assert pricing(settings).table == home / "p.yaml"


def test_cpus_may_be_a_number(context: Make) -> None:
    assert load(context(text="cluster: {cpu: 4, memory: 64Gi}")).cluster.cpu == "4"


def test_every_setting_that_is_suggested_exists() -> None:
    assert set(SYNONYMS.values()) <= set(LEAVES)


def test_a_variable_of_invoke_itself_is_accepted(context: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INVOKE_RUN_ECHO", "1")
    assert load(context()).fleet.size == local_workers()


def test_the_layer_that_set_the_value_is_the_one_named(
    project: Path, context: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = project.parent / "home" / ".invoke.yaml"
    (project / "invoke.yaml").write_text("bench:\n  seed: y\n")
    assert refusal(context()).startswith("invoke.yaml:2: bench.seed: ")
    mine.write_text("\nbench: {seed: x}\n")
    assert refusal(context()).startswith("~/.invoke.yaml:2: bench.seed: ")
    monkeypatch.setenv("INVOKE_BENCH_SEED", "z")
    assert refusal(context()).startswith("environment INVOKE_BENCH_SEED: bench.seed: ")
    program = context(text="bench: {seed: 5}\n")
    assert load(program).bench.seed == 5, "a wrong value that is overridden is ignored"
    program.config.bench = {"seed": "w"}
    assert refusal(program).startswith("set by a program: bench.seed: ")


def test_a_section_misspelt_in_the_users_own_file_is_refused(project: Path, context: Make) -> None:
    (project.parent / "home" / ".invoke.yaml").write_text("flete: {size: 4}\n")
    assert refusal(context()) == "~/.invoke.yaml:1: flete: unknown setting; did you mean fleet?"


def test_a_file_outside_the_working_folder_is_named_in_full(tmp_path: Path, context: Make) -> None:
    elsewhere = tmp_path / "my settings.yaml"
    elsewhere.write_text("fleet: {size: x}")
    assert refusal(context(str(elsewhere))) == f'{elsewhere}:1: fleet.size: expected {SIZE}, found "x"'


def test_files_that_cannot_be_read_are_named(project: Path, context: Make) -> None:
    (project / "folder.yaml").mkdir()
    (project / "latin.yaml").write_bytes(b"fleet: {workspace: caf\xe9}")
    (project / "bad.json").write_text('{\n"fleet": }')
    (project / "list.json").write_text("[1]")
    names = "expected a name that ends in .yaml, .yml or .json"
    assert [
        refusal(context(name))
        for name in ("gone.yaml", "folder.yaml", "latin.yaml", "bad.json", "list.json", "tasks.py", "f.toml", "folder")
    ] == [
        "gone.yaml: no such file, but -f (or INVOKE_RUNTIME_CONFIG) names it",
        "folder.yaml: cannot be read: it is a folder, not a file",
        "latin.yaml: expected UTF-8 text",
        "bad.json:2: not JSON: Expecting value",
        "list.json:1: expected sections such as `fleet:`, found a list",
        f"tasks.py: {names}",
        f"f.toml: {names}",
        f"folder: {names}",
    ]


@pytest.mark.parametrize("value", ["x" * 5000, "9" * 4000, "9" * 5000, "0x" + "f" * 5000], ids=lambda text: text[:3])
def test_a_long_value_leaves_room_for_the_message(value: str, context: Make) -> None:
    message = refusal(context(text=f"fleet: {{size: {value}}}"))
    assert len(message) < 160
    assert message.endswith("found a number too long to show") or not value.startswith("0x")


def test_a_user_without_a_home_folder_has_settings_too(context: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", none)
    assert load(context(text="fleet: { size: 3 }\n")).fleet.size == 3
