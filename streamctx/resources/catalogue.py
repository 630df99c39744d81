"""All resources of a server: which provider has which URI."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from streamctx.errors import ErrorCode
from streamctx.resources.base import Provider, ResourceError, ResourceInfo, Source

__all__ = ["Catalogue"]


class Catalogue:
    """Finds the provider of a resource by the scheme of its URI; a `Provider` itself."""

    def __init__(self, providers: Mapping[str, Provider]) -> None:
        """Take providers, by scheme in lower case."""
        self._providers = dict(providers)

    def open(self, uri: str) -> Source:
        """Open a resource.

        Raises:
            ResourceError: If it cannot be given; `not_found` if no provider has such a scheme.
        """
        scheme, colon, _ = uri.partition(":")
        provider = self._providers.get(scheme.lower()) if colon else None
        if provider is None:
            raise ResourceError(ErrorCode.NOT_FOUND, "there is nothing here, or it is not yours")
        return provider.open(uri)

    def list(self) -> Iterator[ResourceInfo]:
        """All that there is, provider by provider."""
        for provider in self._providers.values():
            yield from provider.list()

    def close(self) -> None:
        """Close every provider."""
        for provider in self._providers.values():
            provider.close()
