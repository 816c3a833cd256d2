"""Settings: the shipped defaults, precedence of the layers, and one line for each kind of mistake."""

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from invoke import Context

from tasks.errors import UsageError
from tasks.fleet.pricing import pricing
from tasks.settings.layers import load
from tasks.settings.sections import local_workers
from tests.support.cases import Case, load_cases

Make = Callable[..., Context]


def refusal(context: Context) -> str:
    with pytest.raises(UsageError) as caught:
        load(context)
    message = str(caught.value)
    assert message.isprintable(), "one line, no control characters"
    return message


def test_the_shipped_file_has_every_default(project: Path, context: Make) -> None:
    shipped = yaml.safe_load((project / "invoke.yaml").read_text())
    assert shipped["fleet"]["size"] == "auto"
    shipped["fleet"]["size"] = local_workers()
    assert load(context()).public() == shipped


@pytest.mark.parametrize(
    ("text", "cores", "size"),
    [
        ("{}", 2, 2),
        ("fleet: {size: auto}", 64, 4),
        ("fleet: {size: auto, local: {threads: 4}}", 8, 2),
        ("fleet: {size: auto, local: {threads: 16}}", 8, 1),
        ("fleet: {kind: pods}", 1, 4),
    ],
)
def test_auto_is_one_worker_per_core_and_four_pods(
    context: Make, monkeypatch: pytest.MonkeyPatch, text: str, cores: int, size: int
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(cores))
    assert load(context(text=text)).public()["fleet"]["size"] == size, "a plan has the number"
    monkeypatch.setenv("INVOKE_FLEET_SIZE", "auto")
    assert load(context(text=text)).fleet.size == size


def test_paths_are_relative_to_the_project_absolute_or_of_the_home_folder(project: Path, context: Make) -> None:
    settings = load(context())
    assert (settings.root, settings.workspace, settings.results_folder) == (project, project, project / "results")
    settings = load(context(text="results: {folder: ~/r}\nfleet: {workspace: /srv/my work}\ncost: {prices: ~/p.yaml}"))
    home = project.parent / "home"
    assert (settings.workspace, settings.results_folder) == (Path("/srv/my work"), home / "r")
    assert pricing(settings).table == home / "p.yaml"


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
    program.config._set(typed_settings={("fleet", "size"): ("bench: --size", "17")})
    assert load(program).fleet.size == 17
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
        "RUN_ECHO": "1",  # Invoke's own
        "TRAIN_DATA": "[--seed, '7']",
        "TRAIN_COLUMNS": '{"prompt": "frage ü", "messages": null}',
    }.items():
        monkeypatch.setenv(f"INVOKE_{name}", text)
    settings = load(context(text="cluster: {cpu: 4}"))
    assert (settings.bench.measured_steps, settings.bench.learning_rate, settings.fleet.lost_after_sec) == (
        7,
        0.001,
        5.0,
    )
    assert (settings.fleet.workspace, settings.bench.deadline_sec, settings.fleet.local.threads) == ("/w s", None, 2)
    assert (settings.cost.price_usd_per_gpu_hour, settings.cost.price_source) == (2.0, "2")
    assert (settings.cluster.preemptible, settings.cluster.cpu) == (True, "4")
    assert settings.train.data == ("--seed", "7")
    assert settings.train.columns == {"prompt": "frage ü", "messages": None}


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


@pytest.mark.parametrize("case", load_cases(__file__, "mistakes.yaml"))
def test_a_mistake_is_one_line_with_its_place(case: Case, context: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in case.get("environment", {}).items():
        monkeypatch.setenv(f"INVOKE_{name}", text)
    message = refusal(context(text=case.get("text")))
    assert message.startswith(case["start"])
    assert message.endswith(case.get("end", ""))


@pytest.mark.parametrize("text", ["2e-4", "0.2e-3", "'2e-4'"])
def test_a_number_with_an_exponent_is_a_number_although_yaml_reads_text(text: str, context: Make) -> None:
    assert load(context(text=f"bench: {{learning_rate: {text}}}")).bench.learning_rate == 2e-4


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
    program.config._set(typed_settings={("bench", "seed"): ("init", "w")})
    assert refusal(program).startswith("init: bench.seed: ")


def test_a_file_outside_the_working_folder_is_named_by_its_path(project: Path, tmp_path: Path, context: Make) -> None:
    elsewhere = tmp_path / "my settings.yaml"
    elsewhere.write_text("fleet: {size: x}")
    assert refusal(context(str(elsewhere))).startswith(f"{elsewhere}:1: fleet.size: ")
    (project.parent / "home" / ".invoke.yaml").write_text("flete: {size: 4}\n")
    assert refusal(context()) == "~/.invoke.yaml:1: flete: unknown setting; did you mean fleet?"


@pytest.mark.parametrize(("name", "text"), [("f.yaml", "fleet: {size: 3} # ü"), ("f.json", '{"fleet": {"size": 3}}')])
def test_a_byte_order_mark_is_skipped(name: str, text: str, project: Path, context: Make) -> None:
    (project / name).write_text(text, encoding="utf-8-sig")
    assert load(context(name)).fleet.size == 3


def test_files_that_cannot_be_read_are_named(project: Path, context: Make) -> None:
    (project / "folder.yaml").mkdir()
    (project / "latin.yaml").write_bytes(b"fleet: {workspace: caf\xe9}")
    (project / "bad.json").write_text('{\n"fleet": [}')
    (project / "list.json").write_text("[1]")
    names = "expected a name that ends in .yaml, .yml or .json"
    assert [
        refusal(context(name))
        for name in ("gone.yaml", "folder.yaml", "latin.yaml", "bad.json", "list.json", "tasks.py", "f.toml", "folder")
    ] == [
        "gone.yaml: no such file, but -f (or INVOKE_RUNTIME_CONFIG) names it",
        "folder.yaml: cannot be read: it is not a regular file",
        "latin.yaml: expected UTF-8 text",
        "bad.json:2: not YAML: did not find expected node content",
        "list.json:1: expected sections such as `fleet:`, found a list",
        f"tasks.py: {names}",
        f"f.toml: {names}",
        f"folder: {names}",
    ]


@pytest.mark.parametrize("value", ["x" * 5000, "9" * 5000, "0x" + "f" * 5000], ids=lambda text: text[:3])
def test_a_long_value_leaves_room_for_the_message(value: str, context: Make) -> None:
    message = refusal(context(text=f"fleet: {{size: {value}}}"))
    assert len(message) < 160
    assert message.endswith("found a number too long to show") or not value.startswith("0x")


def test_a_user_without_a_home_folder_has_settings_too(context: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", none)
    assert load(context(text="fleet: { size: 3 }\n")).fleet.size == 3
