"""All resources of a server: which provider has which URI."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

from streamctx.errors import ErrorCode
from streamctx.resources.base import Listing, Provider, ResourceError, ResourceInfo, Source

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
            ResourceFresh: If it was changed just now, as in `Provider.open`.
        """
        scheme, colon, _ = uri.partition(":")
        provider = self._providers.get(scheme.lower()) if colon else None
        if provider is None:
            raise ResourceError(ErrorCode.NOT_FOUND, "there is nothing here, or it is not yours")
        return provider.open(uri)

    def list(self) -> Listing:
        """All that there is, provider by provider."""
        return _Chained(*(provider.list() for provider in self._providers.values()))

    def close(self) -> None:
        """Close every provider."""
        for provider in self._providers.values():
            provider.close()


class _Chained:
    """Several listings, one behind the other."""

    def __init__(self, *parts: Listing) -> None:
        self._parts = parts
        self._infos = chain.from_iterable(parts)

    @property
    def is_truncated(self) -> bool:
        """Whether one of them has left something out so far."""
        return any(part.is_truncated for part in self._parts)

    def __iter__(self) -> _Chained:
        return self

    def __next__(self) -> ResourceInfo:
        return next(self._infos)
