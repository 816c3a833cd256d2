"""Random settings files and variables: each loads or is refused in one line."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from invoke import Context

from tasks.errors import UsageError
from tasks.settings.layers import Settings, load
from tasks.settings.sections import SECTIONS, SETTINGS
from tasks.settings.sources import ProjectConfig
from tests.support.thorough import examples

pytestmark = pytest.mark.slow

ODD = (
    *("yes", "no", "on", "off", "~", "null", ".inf", "-.INF", ".NaN", "0x1F", "0o17", "017", "1_000", "1:30", "1e3"),
    *("1.e+3", "+1", "-0", "2025-01-31", "2025-13-45", "2025-01-31T25:00:00Z", "!!int x", "!!int", "!!float y"),
    *("!!bool z", "!!binary ?", "!!timestamp a", "!!null x", "!!set {}", "!!omap [1]", "!!pairs 3", "!!int [1]"),
    *("-", ":", ",", "&", "*", "|", ">", "%", "@", "`", "&a", "*a", "<<: {}", "[]", "[[]]", "{a: 1}", "''", '""'),
    *("#", "---", "...", "&a [*a]", "&a {a: *a}", "? [1]", "{[1]: 2}", "0x" + 5000 * "f", 5000 * "9"),
)
KEYS = st.sampled_from([*SETTINGS, *(keys for keys in SECTIONS if keys)])

# One file and one Config per example: function-scoped fixtures would be shared by all examples of a test.
slow_settings = hypothesis_settings(
    max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def outcome(project: Path) -> Settings | str:
    """Return the settings, or the error line."""
    (project / "invoke.yaml").write_text("{}")  # parsing the shipped file would take most of the time
    try:
        return load(Context(ProjectConfig(project_location=str(project), runtime_path=str(project / "f.yaml"))))
    except UsageError as error:
        return str(error)


@slow_settings
@given(
    keys=KEYS, raw=st.one_of(st.sampled_from(ODD), st.text(max_size=20), st.text("{}[]:,&*!|>'\"%@`#- \n", max_size=8))
)
def test_any_raw_text_in_any_place_loads_or_is_one_line(project: Path, keys: tuple[str, ...], raw: str) -> None:
    nested = raw
    for depth, key in reversed(list(enumerate(keys))):
        nested = f"{'  ' * depth}{key}:{chr(10) if depth < len(keys) - 1 else ' '}{nested}"
    (project / "f.yaml").write_bytes((nested + "\n").encode("utf-8", "surrogatepass"))
    result = outcome(project)
    assert isinstance(result, Settings) or (result.startswith("f.yaml") and result.isprintable() and len(result) < 300)


@slow_settings
@given(
    keys=st.sampled_from(list(SETTINGS)),
    text=st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=20),
)
def test_any_text_in_any_variable_loads_or_is_one_line(project: Path, keys: tuple[str, ...], text: str) -> None:
    name = f"INVOKE_{'_'.join(keys).upper()}"
    (project / "f.yaml").write_text("")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(name, text)
        result = outcome(project)
    assert isinstance(result, Settings) or (result.startswith(f"environment {name}: ") and result.isprintable())
