"""What a catalogue of several providers finds, and what it says of the whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest

from streamctx.errors import ErrorCode
from streamctx.resources.base import Listing, Provider, ResourceError, ResourceInfo, Source
from streamctx.resources.blobs import MemoryBlobs
from streamctx.resources.catalogue import Catalogue

__all__: list[str] = []


class Few:
    """A provider that finds some and leaves the rest out, which it knows at the end."""

    def __init__(self, *uris: str, has_more: bool = False) -> None:
        self.uris = uris
        self.has_more = has_more

    def open(self, uri: str) -> Source:
        raise ResourceError(ErrorCode.UNAVAILABLE, uri)

    def list(self) -> Listing:
        return FewListed(self.uris, has_more=self.has_more)

    def close(self) -> None:
        pass


class FewListed:
    def __init__(self, uris: Iterable[str], *, has_more: bool) -> None:
        self.is_truncated = False
        self._infos = self._find(uris, has_more=has_more)

    def _find(self, uris: Iterable[str], *, has_more: bool) -> Iterator[ResourceInfo]:
        for uri in uris:
            yield ResourceInfo(uri=uri, name=uri, mime="a/b", size_bytes=1, etag="1", modified=None)
        self.is_truncated = has_more

    def __iter__(self) -> FewListed:
        return self

    def __next__(self) -> ResourceInfo:
        return next(self._infos)


@pytest.mark.parametrize("truncated", [(), (0,), (1,), (2,), (0, 2)])
def test_a_listing_is_truncated_if_a_part_of_it_is(truncated: tuple[int, ...]) -> None:
    parts = [Few("a:1", "a:2"), Few(), Few("c:1")]
    for index in truncated:
        parts[index].has_more = True
    catalogue: Provider = Catalogue(dict(zip("abc", parts, strict=True)))
    listing = catalogue.list()
    assert not listing.is_truncated
    assert [info.uri for info in listing] == ["a:1", "a:2", "c:1"]
    assert listing.is_truncated is bool(truncated)
    assert list(listing) == []


def test_nothing_is_left_out_of_a_store_of_blobs() -> None:
    blobs = MemoryBlobs(bytes_max=100)
    info = blobs.put(b"public")
    listing = Catalogue({"sha256": blobs}).list()
    assert list(listing) == [info]
    assert not listing.is_truncated
    blobs.close()


def test_a_resource_is_opened_by_the_provider_of_its_scheme() -> None:
    catalogue = Catalogue({"a": Few()})
    for uri, code in (
        ("A:1", ErrorCode.UNAVAILABLE),
        ("b:1", ErrorCode.NOT_FOUND),
        ("a", ErrorCode.NOT_FOUND),
    ):
        with pytest.raises(ResourceError) as caught:
            catalogue.open(uri)
        assert caught.value.code is code


def test_without_providers_there_is_nothing() -> None:
    listing = Catalogue({}).list()
    assert list(listing) == []
    assert not listing.is_truncated
