"""Settings into a file that a person wrote: everything else stays, or nothing is written."""

import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.errors import UsageError
from tasks.oci.user_config import with_settings, write_user_settings
from tests.support.thorough import examples

WANTED = {"registry": {"image": "fra.ocir.io/ns/r:1"}, "cluster": {"fss": {"volume_handle": "ocid1:10.0.0.5:/x"}}}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("", "registry:\n  image: 'fra.ocir.io/ns/r:1'\ncluster:\n  fss:\n    volume_handle: 'ocid1:10.0.0.5:/x'\n"),
        (
            "# mine\nfleet: { size: 2 } # two\nregistry:\n    user: me # who\n    # last\n\n# end\n",
            "# mine\nfleet: { size: 2 } # two\nregistry:\n    user: me # who\n"
            "    image: 'fra.ocir.io/ns/r:1'\n    # last\n\n# end\n"
            "cluster:\n  fss:\n    volume_handle: 'ocid1:10.0.0.5:/x'\n",
        ),
        (
            "registry: { image: old } # braces\ncluster: { cpu: 4 }",
            "registry: { image: 'fra.ocir.io/ns/r:1' } # braces\n"
            "cluster: { cpu: 4, fss: { volume_handle: 'ocid1:10.0.0.5:/x' } }",
        ),
        (
            "registry:\n  image:   'old one' # was\ncluster:\n  fss:\n    capacity: 1Gi",
            "registry:\n  image:   'fra.ocir.io/ns/r:1' # was\ncluster:\n  fss:\n    capacity: 1Gi\n"
            "    volume_handle: 'ocid1:10.0.0.5:/x'\n",
        ),
        (
            "registry:\ncluster:\n  fss: null # none\n",
            "registry: { image: 'fra.ocir.io/ns/r:1' }\n"
            "cluster:\n  fss: { volume_handle: 'ocid1:10.0.0.5:/x' } # none\n",
        ),
    ],
)
def test_values_go_where_they_belong_and_all_else_stays(old: str, new: str) -> None:
    assert with_settings(old, WANTED, "f") == new
    assert with_settings(new, WANTED, "f") == new


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("- a\n", "expected sections such as `fleet:`, found a list"),
        ("just text", "found a str"),
        ("a: [1", "not YAML that can be read"),
        ("registry: fra\n", "f:1: registry: expected a section"),
        ("registry:\n  image: [1]\n", "registry.image: expected a value"),
        ("base: &b { image: x }\nregistry: *b\n", "its layout is one that cannot be added to safely"),
    ],
)
def test_a_file_that_cannot_take_them_is_left_alone(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=re.escape(words)):
        with_settings(text, WANTED, "f")


KEYS = st.sampled_from(["registry", "cluster", "fleet", "image", "fss", "user"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet="ab: #{},'\"-\n", max_size=6),
    lambda below: st.dictionaries(KEYS, below, max_size=3) | st.lists(below, max_size=2),
    max_leaves=8,
)


@settings(deadline=None, max_examples=examples(100))  # under load a timing proves nothing
@given(st.dictionaries(KEYS, VALUES, max_size=4), st.booleans())
def test_whatever_stands_there_stays_or_is_refused(data: dict[str, object], flow: bool) -> None:
    text = yaml.safe_dump(data, default_flow_style=flow, sort_keys=False)
    try:
        made = yaml.safe_load(with_settings(text, WANTED, "f"))
    except UsageError:
        return
    assert made["registry"]["image"] == "fra.ocir.io/ns/r:1"
    assert {key: value for key, value in made.items() if key not in WANTED} == {
        key: value for key, value in data.items() if key not in WANTED
    }


def test_the_file_keeps_its_mode_and_a_copy_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / ".invoke.yaml"
    assert write_user_settings(WANTED) == ["wrote ~/.invoke.yaml"]
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_text("fleet: { size: 3 } # three\n")
    path.chmod(0o640)
    kept, wrote = write_user_settings(WANTED)
    assert (path.stat().st_mode & 0o777, wrote) == (0o640, "wrote ~/.invoke.yaml")
    assert (tmp_path / kept.rpartition("/")[2]).read_text() == "fleet: { size: 3 } # three\n"
    assert write_user_settings(WANTED) == ["~/.invoke.yaml has these settings already"]


def test_a_file_of_another_kind_is_not_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".invoke.json").write_text("{}")
    with pytest.raises(UsageError, match="only YAML can be added to"):
        write_user_settings(WANTED)
    assert [path.name for path in tmp_path.iterdir()] == [".invoke.json"]
