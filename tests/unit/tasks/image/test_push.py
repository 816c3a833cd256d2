"""`inv push` to a repository that does not exist, or that refuses the login."""

import pytest

from remote.image.references import parse_image_name
from remote.image.vm_jobs import JobFailed
from tasks.clients.registry import registry_refusals
from tasks.errors import UsageError


@pytest.mark.parametrize(("kind", "image", "remedy"), [
    ("absent", "fra.ocir.io/ns/new:1", "`inv tenancy.repository`"),
    ("forbidden", "fra.ocir.io/ns/new:1", "`inv tenancy.repository`"),
    ("unauthorized", "fra.ocir.io/ns/new:1", "NAMESPACE/oracleidentitycloudservice/USER"),
    ("absent", "registry.example.com/new:1", None),
])  # fmt: skip
def test_a_refusal_of_the_registry_names_what_to_type(kind: str, image: str, remedy: str | None) -> None:
    target = parse_image_name(image, "1")
    with pytest.raises(JobFailed if remedy is None else UsageError) as failed, registry_refusals(target):
        raise JobFailed(kind, "refused")
    assert (remedy or "") in failed.value.remedy
