"""What `inv image.verify` says of an image that is not whole."""

from tasks.errors import Refused, TaskFailed
from tasks.image.reading import refused


def test_damaged_weights_are_refused_with_the_command_that_mends_them() -> None:
    wrong = ["models/org--M/model.safetensors: its sha256 is not the manifest's", "torch: not installed"]
    said = refused("qlora-fleet:current", wrong)
    assert isinstance(said, Refused)
    assert "(and 1 more); `inv build --anew` makes it again, of weights that it verifies" in str(said)
    assert isinstance(refused("i", ["model org--M: the labels name it, and it is not in the image"]), Refused)


def test_what_is_wrong_with_the_stack_alone_is_a_failure() -> None:
    said = refused("qlora-fleet:current", ["torch: the lock says 2.8, installed is 2.7"])
    assert (type(said), str(said)) == (TaskFailed, "qlora-fleet:current: torch: the lock says 2.8, installed is 2.7")
