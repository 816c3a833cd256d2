"""architectures: the model architectures that are accepted, one module for each family. Only the standard library.

architecture: the declaration and its registry
llama: Llama
mistral: Mistral
"""

from bench.architectures import llama, mistral  # noqa: F401 - each registers itself
from bench.architectures.architecture import Feature, find

__all__ = ["Feature", "find"]
