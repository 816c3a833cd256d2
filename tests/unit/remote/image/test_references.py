"""Names of registries and users, as OCIR accepts them."""

import pytest

from remote.image.references import InvalidReference, check_user, parse_image_name

GOOD = {
    "fra.ocir.io/axabc/team/qlora-fleet:1.0": ("fra.ocir.io", "axabc/team/qlora-fleet", "1.0"),
    "fra.ocir.io/axabc/qlora-fleet": ("fra.ocir.io", "axabc/qlora-fleet", "current"),
    "ocir.eu-frankfurt-1.oci.oraclecloud.com/axabc/q:v": ("ocir.eu-frankfurt-1.oci.oraclecloud.com", "axabc/q", "v"),
    "registry.example.com:5000/q:v": ("registry.example.com:5000", "q", "v"),
    "localhost/q": ("localhost", "q", "current"),
}
BAD = {
    "": "expected HOST/REPOSITORY:TAG",
    "qlora-fleet:1": "expected HOST/REPOSITORY:TAG",
    "team/qlora-fleet": "expected HOST/REPOSITORY:TAG",
    "fra.ocir.io/": "expected HOST/REPOSITORY:TAG",
    "fra.ocir.io/repo": "fra.ocir.io/NAMESPACE/REPOSITORY:TAG",
    "frankfurt.ocir.io/ns/repo": "'frankfurt'.*fra, iad, phx",
    "FR1.ocir.io/ns/repo": "'fr1'.*fra, iad, phx",
    "ocir.frankfurt.oci.oraclecloud.com/ns/repo": "'frankfurt'.*eu-frankfurt-1",
    "fra.ocir.io/ns/Repo": ": 'Repo': ",
    "fra.ocir.io/ns//repo": ": '': ",
    "fra.ocir.io/ns/repo:-x": "tag '-x'",
    "fra.ocir.io/ns/repo:" + "x" * 129: "tag 'x+'",
    "fra.ocir.io/ns/repo@sha256:" + "0" * 64: "digest",
    "-x.ocir.io/ns/repo": "expected HOST/REPOSITORY:TAG",
    "fra.ocir.io/ns/re po": ": 're po': ",
    "registry.example.com:99999/repo": "port 99999.*65535",
    "registry.example.com:0/repo": "port 0: ",
}


@pytest.mark.parametrize("text", GOOD)
def test_a_name_is_parsed(text: str) -> None:
    parsed = parse_image_name(text, "current")
    assert (parsed.host, parsed.path, parsed.tag) == GOOD[text]
    assert str(parsed) == (text if ":" in text.partition("/")[2] else f"{text}:current")


@pytest.mark.parametrize("text", BAD)
def test_the_error_for_an_invalid_name_has_the_invalid_part(text: str) -> None:
    with pytest.raises(InvalidReference, match=BAD[text]):
        parse_image_name(text, "current")


OCIR = "fra.ocir.io/axabc/q"
USERS = ("axabc/me@example.com", "axabc/oracleidentitycloudservice/me@example.com", "axabc/Default/me@example.com")
FOREIGN, FORM = "namespace, axabc/", "NAMESPACE/USER, NAMESPACE/"


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("repository", [OCIR, "ocir.eu-frankfurt-1.oci.oraclecloud.com/axabc/q"])
def test_the_three_forms_of_a_user_name_are_accepted(repository: str, user: str) -> None:
    check_user(user, repository)


@pytest.mark.parametrize(
    ("user", "token"),
    [
        *((user, f"^'{user}' ") for user in ("", "axabc/m e")),
        *((user, FOREIGN) for user in ("me@example.com", "other/me")),
        *((user, FORM) for user in ("axabc", "axabc/", "axabc/a/b/c", "axabc//me")),
    ],
)
def test_another_form_is_rejected_before_the_registry_returns_401(user: str, token: str) -> None:
    with pytest.raises(InvalidReference, match=token):
        check_user(user, OCIR)


def test_users_of_other_registries_are_not_checked() -> None:
    check_user("anybody", "registry.example.com/a/q")
