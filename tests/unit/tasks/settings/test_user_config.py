"""Writing settings to a hand-written file: everything else is preserved, or nothing is written."""

import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.errors import UsageError
from tasks.settings.user_config import merge_settings, write_user_settings
from tests.support.thorough import examples

VALUES_TO_SET = {
    "registry": {"picture": "fra.ocir.io/ns/r:1"},
    "cluster": {"fss": {"volume_handle": "ocid1:10.0.0.5:/x"}},
}


REGISTRY, CLUSTER = (
    "registry:\n  picture: fra.ocir.io/ns/r:1\n",
    "cluster:\n  fss:\n    volume_handle: ocid1:10.0.0.5:/x\n",
)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("", REGISTRY + CLUSTER),
        (
            "# mine\nfleet: { size: 2 } # two\nregistry:\n    user: me # who\n    # last\n",
            "# mine\nfleet: {size: 2}   # two\nregistry:\n    user: me # who\n    # last\n"
            "    picture: fra.ocir.io/ns/r:1\ncluster:\n    fss:\n        volume_handle: ocid1:10.0.0.5:/x\n",
        ),
        (
            "registry: { picture: old } # braces\ncluster: { cpu: 4 }",
            "registry: {picture: fra.ocir.io/ns/r:1} # braces\n"
            "cluster: {cpu: 4, fss: {volume_handle: ocid1:10.0.0.5:/x}}\n",
        ),
        (f"a:\n    - b\n    - c: 'd'\n{CLUSTER}registry:\n", f"a:\n    - b\n    - c: 'd'\n{CLUSTER}{REGISTRY}"),
    ],
)
def test_values_are_set_and_everything_else_is_preserved(old: str, new: str) -> None:
    assert merge_settings(old, VALUES_TO_SET, Path("f")) == new
    assert merge_settings(new, VALUES_TO_SET, Path("f")) == new


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("- a\n", "expected sections such as `fleet:`, found a list"),
        ("just text", 'found "just text"'),
        ("a: [1", "f:2: not YAML"),
        ("registry: fra\n", "f: registry: expected a section"),
        ("registry:\n  picture: [1]\n", "f: registry.picture: expected a value"),
        ("base: &b { picture: x }\nregistry: *b\n", "f:2: not YAML: an alias"),
        ("registry: {}\nregistry: {}\n", "f:2: not YAML: registry is given twice"),
    ],
)
def test_a_file_that_cannot_be_edited_is_refused(text: str, expected: str) -> None:
    with pytest.raises(UsageError, match=re.escape(expected)):
        merge_settings(text, VALUES_TO_SET, Path("f"))


KEYS = st.sampled_from(["registry", "cluster", "fleet", "picture", "fss", "user"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet="ab: #{},'\"-\n", max_size=6),
    lambda below: st.dictionaries(KEYS, below, max_size=3) | st.lists(below, max_size=2),
    max_leaves=8,
)


@settings(deadline=None, max_examples=examples(100))  # under load a timing proves nothing
@given(st.dictionaries(KEYS, VALUES, max_size=4), st.booleans())
def test_existing_content_is_preserved_or_the_edit_is_refused(data: dict[str, object], flow: bool) -> None:
    text = yaml.safe_dump(data, default_flow_style=flow, sort_keys=False)
    try:
        written = yaml.safe_load(merge_settings(text, VALUES_TO_SET, Path("f")))
    except UsageError:
        return
    assert written["registry"]["picture"] == "fra.ocir.io/ns/r:1"
    assert {key: value for key, value in written.items() if key not in VALUES_TO_SET} == {
        key: value for key, value in data.items() if key not in VALUES_TO_SET
    }


def test_the_file_keeps_its_mode_and_a_copy_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / ".invoke.yaml"
    assert write_user_settings(VALUES_TO_SET) == ["wrote ~/.invoke.yaml"]
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_text("fleet: { size: 3 } # three\n")
    path.chmod(0o640)
    backup_line, wrote_line = write_user_settings(VALUES_TO_SET)
    assert (path.stat().st_mode & 0o777, wrote_line) == (0o640, "wrote ~/.invoke.yaml")
    assert (tmp_path / backup_line.rpartition("/")[2]).read_text() == "fleet: { size: 3 } # three\n"
    before = path.read_text()
    (line,) = write_user_settings(VALUES_TO_SET)
    assert line.startswith("~/.invoke.yaml ")
    assert path.read_text() == before


def test_a_file_of_another_kind_is_not_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".invoke.json").write_text("{}")
    with pytest.raises(UsageError, match=r"\.invoke\.json: only YAML"):
        write_user_settings(VALUES_TO_SET)
    assert [path.name for path in tmp_path.iterdir()] == [".invoke.json"]
