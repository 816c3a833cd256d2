"""Clouds, each one object: names in its registry, labels of its nodes, volumes, prices, checks, texts of remedies.

provider: what a provider has; `generic`, any Kubernetes with any registry
oci: Oracle Cloud Infrastructure
"""

from collections.abc import Iterable, Mapping
from typing import Any

from remote.providers.oci import Oci
from remote.providers.provider import REMEDIES, Provider

__all__ = ("GENERIC", "PROVIDERS", "REMEDIES", "Provider", "detect", "register", "registry_provider")

PROVIDERS: dict[str, Provider] = {}
GENERIC = Provider()


def register(provider: Provider) -> None:
    """Add a provider. Raises ValueError that names it, if its name is taken or a remedy has no meaning."""
    if unknown := provider.remedies.keys() - REMEDIES.keys():
        raise ValueError(f"provider {provider.name}: no remedy has the key {', '.join(sorted(unknown))}")
    if provider.name in PROVIDERS:
        raise ValueError(f"provider {provider.name}: registered twice")
    PROVIDERS[provider.name] = provider


register(GENERIC)
register(Oci())


def registry_provider(host: str) -> Provider:
    """Return the provider whose registry is at this host; generic for any other."""
    return next((provider for provider in PROVIDERS.values() if provider.owns_registry(host)), GENERIC)


def detect(
    *, registries: Iterable[str] = (), volume: str | None = None, nodes: Iterable[Mapping[str, Any]] = ()
) -> Provider | None:
    """Return the first provider that owns one of these; None if none does."""
    hosts, machines = tuple(registries), tuple(nodes)
    for provider in PROVIDERS.values():
        if (
            any(map(provider.owns_registry, hosts))
            or (volume is not None and provider.owns_volume(volume))
            or any(map(provider.owns_node, machines))
        ):
            return provider
    return None
