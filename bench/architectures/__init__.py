"""architectures: the model architectures that are accepted. Only the standard library.

architecture: the declaration and its registry
families: the declarations of Llama and Mistral
"""

from bench.architectures import families  # noqa: F401 - registers them
from bench.architectures.architecture import Feature, find

__all__ = ["Feature", "find"]
