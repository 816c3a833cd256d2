"""architectures: the model architectures that are accepted. Only the standard library.

architecture: the declaration and its registry
families: the declarations of the known families
unregistered: what weights files say of the others
"""

from bench.architectures import families, unregistered  # noqa: F401 - registers them
from bench.architectures.architecture import Feature, Separation, find

__all__ = ["Feature", "Separation", "find"]
