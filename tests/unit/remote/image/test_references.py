"""Names of registries and users, as OCIR accepts them."""

import pytest

from remote.image.references import InvalidReference, check_user, parse_image_name
from tests.support.cases import Case, load_cases


@pytest.mark.parametrize("case", load_cases(__file__, "references.yaml"))
def test_a_name_is_parsed_or_its_invalid_part_is_named(case: Case) -> None:
    if "error" in case:
        with pytest.raises(InvalidReference, match=case["error"]):
            parse_image_name(case["input"], "current")
        return
    parsed = parse_image_name(case["input"], "current")
    assert [parsed.host, parsed.path, parsed.tag] == case["expected"]
    assert str(parsed).startswith(case["input"])


OCIR = "fra.ocir.io/axabc/q"
FOREIGN, FORM = "namespace, axabc/", "NAMESPACE/USER, NAMESPACE/"


def test_the_three_forms_of_a_user_name_are_accepted_and_users_of_other_registries_not_checked() -> None:
    for repository in (OCIR, "ocir.eu-frankfurt-1.oci.oraclecloud.com/axabc/q"):
        for domain in ("", "oracleidentitycloudservice/", "Default/"):
            check_user(f"axabc/{domain}me@example.com", repository)
    check_user("anybody", "registry.example.com/a/q")


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
