from __future__ import annotations

import os
import random
import stat
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

import pytest

from streamctx.errors import ConfigurationError, ErrorCode
from streamctx.hub.redaction import Redaction
from streamctx.resources.base import (
    Provider,
    ResourceChanged,
    ResourceError,
    ResourceFresh,
    ResourceInfo,
    Source,
)
from streamctx.resources.beneath import Way
from streamctx.resources.catalogue import Catalogue
from streamctx.resources.roots import LISTED_DEPTH_MAX, VISITED_COUNT_MAX, Roots
from tests.resources.ways import descriptor_count

__all__: list[str] = []

pytestmark = pytest.mark.usefixtures("no_descriptor_is_left")

Make = Callable[..., Roots]


@pytest.fixture
def make(way: Way) -> Iterator[Make]:
    """Roots to which no file is fresh."""
    made: list[Roots] = []

    def make_one(*paths: Path | str, **settings: Any) -> Roots:
        chosen: dict[str, Any] = {
            "is_excluded": Redaction().is_excluded,
            "now_ns": lambda: time.time_ns() + 3600 * 10**9,
            "way": way,
            **settings,
        }
        made.append(Roots(map(str, paths), **chosen))
        return made[-1]

    yield make_one
    for roots in made:
        roots.close()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "a/b").mkdir(parents=True)
    (root / "file").write_bytes(b"public")
    (root / "a/b/deep.txt").write_bytes(b"public, too")
    (root / ".env").write_bytes(b"secret")
    for name in ("outside", "root2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(b"secret")
    return root


def content(roots: Roots, uri: str) -> bytes:
    source = roots.open(uri)
    try:
        return source.read(0, 1000)
    finally:
        source.close()


def opened_when_settled(roots: Roots, uri: str, sleep: Callable[[float], None] = time.sleep) -> Source:
    """Wait and open again, as a server does."""
    for _ in range(10):
        try:
            return roots.open(uri)
        except ResourceFresh as error:
            sleep(error.retry_after_s)
    raise AssertionError(f"{uri} is still fresh")


def refusal(roots: Roots, uri: str) -> ResourceError:
    with pytest.raises(ResourceError) as caught:
        roots.open(uri)
    return caught.value


def assert_hidden(roots: Roots, *uris: str) -> None:
    """Nothing tells it from what is not there."""
    for uri in uris:
        error = refusal(roots, uri)
        found = (error.code, str(error), error.is_temporary, error.__cause__)
        assert found == (ErrorCode.NOT_FOUND, "There is no such resource.", False, None), uri
        assert error.__context__ is None or error.__suppress_context__, uri


def names(found: list[ResourceInfo], root: Path) -> list[str]:
    return [info.uri.removeprefix(root.as_uri() + "/") for info in found]


def fill(directory: Path, count: int) -> None:
    for index in range(count):
        os.close(os.open(directory / f"{index:06}.txt", os.O_CREAT | os.O_WRONLY))


# What is there.


def test_roots_are_a_provider_of_sources(make: Make, root: Path) -> None:
    provider: Provider = make(root)
    source: Source = provider.open((root / "file").as_uri())
    assert source.read(0, 6) == b"public"
    source.close()
    source.close()


def test_a_file_is_described(make: Make, root: Path) -> None:
    path = root / "a/b/deep.txt"
    os.utime(path, ns=(0, 1_500_000_000_250_000_000))
    source = make(root).open(path.as_uri())
    info = source.info
    source.close()
    assert (info.uri, info.name, info.mime) == (path.as_uri(), "deep.txt", "text/plain")
    assert (info.size_bytes, info.modified) == (11, 1_500_000_000.25)
    assert str(path.stat().st_ino) not in info.etag


@pytest.mark.parametrize("ahead_s", [1, 3600, 10**8])
def test_a_time_that_is_yet_to_come_is_not_told(make: Make, root: Path, ahead_s: int) -> None:
    now_s = int(time.time()) + 3600
    path = root / "a/b/deep.txt"
    os.utime(path, (0, now_s + ahead_s + 0.5))
    roots = make(root, now_ns=lambda: now_s * 10**9)
    source = roots.open(path.as_uri())
    source.close()
    assert source.info.modified is None
    assert [info.modified for info in roots.list() if info.name == "deep.txt"] == [None]


def test_the_etag_is_that_of_the_bytes(make: Make, root: Path) -> None:
    roots = make(root)

    def etag(name: str) -> str:
        source = roots.open((root / name).as_uri())
        source.close()
        return source.info.etag

    (root / "copy").write_bytes(b"public")
    first = etag("file")
    assert etag("file") == first
    assert etag("copy") != first
    (root / "file").write_bytes(b"cilbup")
    assert etag("file") != first


@pytest.mark.parametrize(
    "name",
    ["a b", "100%", "a%20b", "a#b?c", "a;b,c", "a+b=c", "~a", "\u00e4\u6f22", "'\"<>|", "..a", "...", "aa:b"],
)
def test_any_name_is_found_by_the_uri_that_spells_it(make: Make, root: Path, name: str) -> None:
    (root / name).write_bytes(b"public")
    roots = make(root)
    uri = (root / name).as_uri()
    source = roots.open(uri)
    source.close()
    assert (source.info.uri, source.info.name) == (uri, name)
    assert uri in [info.uri for info in roots.list()]


def test_other_spellings_of_a_name_are_told_as_the_one(make: Make, root: Path) -> None:
    uri = (root / "file").as_uri()
    for other in (uri.replace("file://", "FILE://"), uri[:-1] + "%65", uri[:-1] + "%6" + "5"):
        source = make(root).open(other)
        source.close()
        assert source.info.uri == uri


# What is not.


@pytest.mark.parametrize(
    "uri",
    [
        "{root}/../outside/file",
        "{root}/%2e%2e/outside/file",
        "{root}/%2E./outside/file",
        "{root}/..%2foutside/file",
        "{root}/..%2Foutside%2Ffile",
        "{root}/%252e%252e/outside/file",
        "{root}/..%252foutside/file",
        "{root}/....//outside/file",
        "{root}/..;/outside/file",
        "{root}/..\\outside\\file",
        "{root}/..%5coutside%5cfile",
        "{root}/%c0%ae%c0%ae/outside/file",
        "{root}/%e0%80%ae%e0%80%ae/outside/file",
        "{root}/%u002e%u002e/outside/file",
        "{root}/%ef%bc%8e%ef%bc%8e/outside/file",
        "{root}/a/../file",
        "{root}/a/../../outside/file",
        "{root}/./file",
        "{root}//file",
        "{root}/a//b/deep.txt",
        "{root}/a%2fb%2fdeep.txt",
        "{root}/a%2fb/deep.txt",
        "{root}/a\\b\\deep.txt",
        "{root}/a%5cb%5cdeep.txt",
        "{root}/file/",
        "{root}/file/.",
        "{root}/file/..",
        "{root}/file%00",
        "{root}/file%00.txt",
        "{root}/file\0",
        "{root}/file\n",
        "\n{root}/file",
        " {root}/file",
        "{root}/file ",
        "{root}/file?",
        "{root}/file?version=1",
        "{root}/file#",
        "{root}/file#L1",
        "{root}/f%69le%",
        "{root}/f%6",
        "{root}/f%zzle",
        "{root}/%ff",
        "{root}/%ed%b3%bf",
        "{root}/\u00e4",
        "{root}/\udcff",
        "{root}/%66%69%6c%65%2f",
        "{root}",
        "{root}/",
        "{root}/a",
        "{root}/a/",
        "{root}/none",
        "{root}/C:/file",
        "{root}/c%3a/file",
        "{root}/C|/file",
        "{root}/C%7C/file",
        "{root}/C:file",
        "{root}2/file",
        "{root}/../root/file",
        "{outside}/file",
        "{outside}/../root/file",
        "{path}/file",
        "file:{path}/file",
        "file:/{path}/file",
        "file:///{path}/file",
        "file:////{path}/file",
        "file://localhost{path}/file",
        "file://LOCALHOST{path}/file",
        "file://127.0.0.1{path}/file",
        "file://elsewhere{path}/file",
        "file://user@{path}/file",
        "file://:80{path}/file",
        "file://.{path}/file",
        "file://%2e{path}/file",
        "file:///C:{path}/file",
        "file:///C:/Windows/win.ini",
        "file:C:\\file",
        "file:\\\\{path}\\file",
        "\\\\elsewhere\\file",
        "file://",
        "file:///",
        "file:///.",
        "file:",
        "file",
        "",
        "/",
        "%",
        "http://{path}/file",
        "https://localhost{path}/file",
        "xfile://{path}/file",
        "file://{path}/file/" + "x/" * 10_000,
        "file://" + "/x" * 10_000,
        "file:///" + "%2e" * 10_000,
        "{root}/" + "x" * 256,
        "file:///etc/passwd",
        "file:///proc/self/environ",
        "file:///dev/zero",
    ],
)
def test_what_is_no_spelling_of_a_file_beneath_is_not_found(make: Make, root: Path, uri: str) -> None:
    (root / "C:").mkdir()
    for name in ("C:/file", "C:file", "a\\b\\deep.txt", "..\\outside\\file"):
        (root / name).write_bytes(b"secret")
    outside = root.parent / "outside"
    asked = uri.format(root=root.as_uri(), outside=outside.as_uri(), path=root)
    assert_hidden(make(root), asked)


@pytest.mark.parametrize(
    "part",
    ["..", "%2e%2e", ".%2e", "%252e%252e", "..%2f", "..%5c", "..\\", ".", "", "a", "a/b", "out", "\0", "%00"],
)
def test_no_row_of_odd_parts_leads_out(make: Make, root: Path, part: str) -> None:
    (root / "out").symlink_to("../outside")
    roots = make(root)
    for count in range(1, 6):
        for end in ("file", "outside/file", "b/../../outside/file", "root2/file", ".env", "%2eenv"):
            uri = f"{root.as_uri()}/{'/'.join([part] * count)}/{end}"
            try:
                assert content(roots, uri).startswith(b"public"), uri
            except ResourceError as error:
                assert error.code is ErrorCode.NOT_FOUND, uri


def test_nothing_but_regular_files_is_given(make: Make, root: Path) -> None:
    os.mkfifo(root / "pipe")
    assert_hidden(make(root), (root / "pipe").as_uri())
    assert_hidden(make("/dev"), "file:///dev/null", "file:///dev/zero", "file:///dev/tty")


@pytest.mark.skipif(not os.path.ismount("/proc"), reason="there is no /proc here")
def test_nothing_is_given_of_what_the_kernel_makes_up(make: Make) -> None:
    process = make("/proc/self")
    assert_hidden(process, "file:///proc/self/status", "file:///proc/self/environ")
    assert_hidden(process, "file:///proc/self/root/etc/passwd", "file:///proc/self/exe")
    assert list(process.list()) == []
    assert_hidden(make("/"), "file:///proc/self/status", "file:///proc/kcore", "file:///proc/cpuinfo")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_may_not_be_read_is_not_found(make: Make, root: Path) -> None:
    (root / "file").chmod(0)
    (root / "a").chmod(0)
    try:
        assert_hidden(make(root), (root / "file").as_uri(), (root / "a/b/deep.txt").as_uri())
    finally:
        (root / "a").chmod(0o700)


# Links and what is excluded.


@pytest.mark.parametrize("target", ["../file", "../a/b/../../file", "second"])
def test_a_link_that_stays_beneath_is_followed_if_that_is_allowed(
    make: Make, root: Path, target: str
) -> None:
    (root / "a/second").symlink_to("b/../../file")
    (root / "a/link").symlink_to(target)
    uri = (root / "a/link").as_uri()
    source = make(root).open(uri)
    assert (source.info.uri, source.info.name, source.read(0, 10)) == (uri, "link", b"public")
    source.close()
    assert_hidden(make(root, follows_links=False), uri)


@pytest.mark.parametrize(
    "target", ["../outside/file", "{root}/file", "/etc/passwd", "/proc/self/root/etc/passwd"]
)
def test_a_link_that_leads_out_is_not_found(make: Make, root: Path, target: str) -> None:
    (root / "link").symlink_to(target.format(root=root))
    (root / "second").symlink_to("link")
    assert_hidden(make(root), (root / "link").as_uri(), (root / "second").as_uri())


def test_what_is_excluded_is_found_by_no_name(make: Make, root: Path) -> None:
    (root / "a/key.pem").write_bytes(b"secret")
    for link, target in (
        ("notes.txt", ".env"),
        ("second.txt", "notes.txt"),
        ("to_a", "a"),
        ("to_key", "to_a/key.pem"),
        ("a/b/up", "../../.env"),
        # By the name it is asked for by.
        ("a/credentials", "../file"),
    ):
        (root / link).symlink_to(target)
    roots = make(root)
    for name in (".env", ".ENV", "notes.txt", "second.txt", "a/key.pem", "to_a/key.pem", "to_key", "a/b/up"):
        assert_hidden(roots, (root / name).as_uri())
    assert_hidden(roots, (root / "a/credentials").as_uri())
    assert_hidden(roots, root.as_uri() + "/%2eenv", root.as_uri() + "/%2Een%76")
    assert content(roots, (root / "to_a/b/deep.txt").as_uri()) == b"public, too"


@pytest.mark.parametrize("is_rule_by_real_path", [True, False])
def test_a_rule_holds_however_it_spells_the_root(
    make: Make, root: Path, *, is_rule_by_real_path: bool
) -> None:
    (root / ".streamctxignore").write_text("/a/b/\n")
    (root / "link").symlink_to("a/b")
    other = root.parent / "other"
    other.symlink_to("root")
    folder = root if is_rule_by_real_path else other
    roots = make(other, is_excluded=Redaction([str(folder)]).is_excluded)
    assert_hidden(roots, f"{other.as_uri()}/a/b/deep.txt", f"{other.as_uri()}/link/deep.txt")
    assert content(roots, f"{other.as_uri()}/file") == b"public"
    assert_hidden(roots, (root / "file").as_uri())
    assert names(list(roots.list()), other) == [".streamctxignore", "file"]


def test_a_name_that_no_uri_spells_is_excluded_behind_a_link(make: Make, root: Path) -> None:
    with open(os.fsencode(root) + b"/\xff.pem", "wb") as file:
        file.write(b"secret")
    os.symlink(b"\xff.pem", os.fsencode(root) + b"/notes.txt")
    assert_hidden(make(root), (root / "notes.txt").as_uri())


def test_a_file_that_is_hidden_is_found_by_no_name(make: Make, root: Path) -> None:
    own = root / "a/own.txt"
    own.write_bytes(b"secret")
    (root / "hard.txt").hardlink_to(own)
    (root / "link.txt").symlink_to("a/own.txt")
    identity = (own.stat().st_dev, own.stat().st_ino)

    def is_hidden(status: os.stat_result) -> bool:
        assert stat.S_ISREG(status.st_mode)
        return (status.st_dev, status.st_ino) == identity

    roots = make(root, is_hidden=is_hidden)
    assert_hidden(roots, *[(root / name).as_uri() for name in ("a/own.txt", "hard.txt", "link.txt")])
    assert names(list(roots.list()), root) == ["file", "a/b/deep.txt"]
    assert content(roots, (root / "file").as_uri()) == b"public"
    own.rename(root / "renamed.txt")
    assert_hidden(roots, (root / "renamed.txt").as_uri())
    assert content(make(root), (root / "hard.txt").as_uri()) == b"secret"


# Changes.


class Clock:
    """Stands still until somebody sleeps."""

    def __init__(self, now_ns: int) -> None:
        self.now_ns = now_ns
        self.slept_s: list[float] = []

    def sleep(self, delay_s: float) -> None:
        self.slept_s.append(delay_s)
        self.now_ns += round(delay_s * 1e9)


def test_a_fresh_file_is_opened_when_it_was_waited_for(make: Make, root: Path) -> None:
    status = (root / "file").stat()
    clock = Clock(status.st_ctime_ns + 20_000_000)
    roots = make(root, now_ns=lambda: clock.now_ns)
    uri = (root / "file").as_uri()
    source = opened_when_settled(roots, uri, clock.sleep)
    assert source.read(0, 10) == b"public"
    source.close()
    assert clock.slept_s == [pytest.approx(0.03, abs=1e-6)]
    assert content(roots, uri) == b"public"


def test_a_fresh_file_is_not_waited_for_by_the_thread_that_opens_it(
    make: Make, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(delay_s: float) -> NoReturn:
        raise AssertionError("it sleeps")

    path = root / "file"
    os.truncate(path, 1 << 40)
    now_ns = path.stat().st_ctime_ns
    roots = make(root, now_ns=lambda: now_ns)
    monkeypatch.setattr(time, "sleep", fail)
    before = descriptor_count()
    for _ in range(10):
        with pytest.raises(ResourceFresh) as caught:
            roots.open(path.as_uri())
        assert caught.value.retry_after_s == pytest.approx(0.05 + 2.147, abs=1e-3)
    assert descriptor_count() == before


def test_a_file_that_is_replaced_while_it_is_waited_for_is_opened_anew(make: Make, root: Path) -> None:
    clock = Clock((root / "file").stat().st_ctime_ns)

    def replace(delay_s: float) -> None:
        clock.sleep(3600)
        (root / "new").write_bytes(b"replaced")
        (root / "new").replace(root / "file")

    roots = make(root, now_ns=lambda: clock.now_ns)
    source = opened_when_settled(roots, (root / "file").as_uri(), replace)
    assert source.read(0, 10) == b"replaced"
    source.close()


def test_a_file_that_is_written_all_the_time_stays_fresh(make: Make, root: Path) -> None:
    roots = make(root, now_ns=time.time_ns)
    for _ in range(5):
        (root / "file").write_bytes(b"written again")
        with pytest.raises(ResourceFresh):
            roots.open((root / "file").as_uri())


def test_what_is_not_to_be_had_is_not_told_to_be_fresh(make: Make, root: Path) -> None:
    (root / "link").symlink_to(".env")
    now_ns = (root / ".env").stat().st_ctime_ns
    roots = make(root, now_ns=lambda: now_ns)
    assert_hidden(roots, (root / ".env").as_uri(), (root / "link").as_uri())
    assert_hidden(make(root, now_ns=lambda: now_ns, is_hidden=lambda _: True), (root / "file").as_uri())


@pytest.mark.slow
def test_no_mix_is_read_of_a_file_that_is_rewritten_in_place(make: Make, root: Path) -> None:
    path = root / "file"
    piece = 1 << 16
    path.write_bytes(b"a" * 16 * piece)
    dice = random.Random(1)
    etags = set()

    def rewrite(delay_s: float, letter: bytes) -> None:
        time.sleep(delay_s)
        with path.open("r+b", buffering=0) as file:
            for _ in range(16):
                file.write(letter * piece)

    def read_until_it_changes(source: Source, first: bytes) -> None:
        end = time.monotonic() + 10
        while time.monotonic() < end:
            for offset in range(0, 16 * piece, piece):
                assert source.read(offset, piece) == first * piece

    roots = make(root, now_ns=time.time_ns)
    with ThreadPoolExecutor(1) as pool:
        for _ in range(20):
            source = opened_when_settled(roots, path.as_uri())
            first = source.read(0, 1)
            etags.add(source.info.etag)
            rewriting = pool.submit(rewrite, dice.uniform(0, 0.004), dice.choice("abcdefgh").encode())
            with pytest.raises(ResourceChanged):
                read_until_it_changes(source, first)
            source.close()
            rewriting.result()
    assert len(etags) == 20


def test_if_too_many_files_are_open_it_is_told_as_temporary(make: Make, root: Path) -> None:
    resource = pytest.importorskip("resource")
    roots = make(root)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    probe = os.open(root, os.O_RDONLY)
    os.close(probe)
    resource.setrlimit(resource.RLIMIT_NOFILE, (probe, limits[1]))
    try:
        error = refusal(roots, (root / "file").as_uri())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert (error.code, error.is_temporary) == (ErrorCode.UNAVAILABLE, True)


# Listing.


def test_files_are_listed_the_less_deep_first(make: Make, root: Path) -> None:
    for name in ("z", "B", "a/z", "a/\u00e4", "c/a/x", "c/y"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    listing = make(root).list()
    expected = ["B", "file", "z", "a/z", "a/%C3%A4", "c/y", "a/b/deep.txt", "c/a/x"]
    assert names(list(listing), root) == expected
    assert not listing.is_truncated
    assert list(listing) == []


def test_what_is_listed_is_what_is_opened(make: Make, root: Path) -> None:
    roots = make(root)
    found = list(roots.list())
    assert len(found) == 2
    for info in found:
        source = roots.open(info.uri)
        source.close()
        assert source.info == info


def test_links_and_what_is_no_file_are_not_listed(make: Make, root: Path) -> None:
    for link, target in (("in", "file"), ("out", "../outside"), ("dir", "a"), ("loop", "."), ("a/up", "..")):
        (root / link).symlink_to(target)
    os.mkfifo(root / "pipe")
    (root / "C:x").touch()
    (root / "x\\y").touch()
    with open(os.fsencode(root) + b"/\xff", "wb"):
        pass
    assert names(list(make(root).list()), root) == ["file", "a/b/deep.txt"]


@pytest.mark.parametrize(("depth_max", "count", "is_truncated"), [(0, 1, True), (1, 1, True), (2, 2, False)])
def test_no_deeper_than_allowed_is_listed(
    make: Make, root: Path, depth_max: int, count: int, *, is_truncated: bool
) -> None:
    listing = make(root, depth_max=depth_max).list()
    assert len(list(listing)) == count
    assert listing.is_truncated is is_truncated


@pytest.mark.parametrize(("count_max", "is_truncated"), [(0, True), (1, True), (2, False), (3, False)])
def test_no_more_files_than_allowed_are_listed(
    make: Make, root: Path, count_max: int, *, is_truncated: bool
) -> None:
    listing = make(root, count_max=count_max).list()
    assert names(list(listing), root) == ["file", "a/b/deep.txt"][:count_max]
    assert listing.is_truncated is is_truncated


# `.env`, `file` and `a`; then `b`; then `deep.txt`.
@pytest.mark.parametrize(("visited_count_max", "count"), [(0, 0), (3, 1), (4, 1), (5, 2)])
def test_no_more_names_than_allowed_are_looked_at(
    make: Make, root: Path, visited_count_max: int, count: int
) -> None:
    listing = make(root, visited_count_max=visited_count_max).list()
    assert len(list(listing)) == count
    assert listing.is_truncated is (count < 2)


@pytest.mark.parametrize(("visited_count_max", "is_truncated"), [(999, True), (1000, False)])
def test_of_a_directory_with_too_many_names_some_are_listed(
    make: Make, tmp_path: Path, visited_count_max: int, *, is_truncated: bool
) -> None:
    fill(tmp_path, 1000)
    listing = Catalogue({"file": make(tmp_path, visited_count_max=visited_count_max)}).list()
    found = names(list(listing), tmp_path)
    assert len(found) == visited_count_max
    assert found == sorted(found)
    assert listing.is_truncated is is_truncated


@pytest.mark.slow
def test_what_is_left_out_of_a_huge_directory_is_told(make: Make, tmp_path: Path) -> None:
    fill(tmp_path, VISITED_COUNT_MAX + 1)
    listing = Catalogue({"file": make(tmp_path)}).list()
    assert len(list(listing)) == 10_000
    assert listing.is_truncated


def test_that_a_file_lies_too_deep_is_told(make: Make, root: Path) -> None:
    deep = root.joinpath(*["d"] * (LISTED_DEPTH_MAX + 4))
    deep.mkdir(parents=True)
    (deep / "deeper.txt").touch()
    listing = Catalogue({"file": make(root)}).list()
    assert names(list(listing), root) == ["file", "a/b/deep.txt"]
    assert listing.is_truncated


def test_who_takes_a_few_pays_for_a_few(make: Make, tmp_path: Path) -> None:
    fill(tmp_path.resolve(), 3000)
    asked: list[str] = []
    looked_at: list[os.stat_result] = []

    def is_excluded(uri: str) -> bool:
        asked.append(uri)
        return False

    def is_hidden(status: os.stat_result) -> bool:
        looked_at.append(status)
        return False

    listing = make(tmp_path.resolve(), is_excluded=is_excluded, is_hidden=is_hidden).list()
    found = [next(listing).uri for _ in range(1001)]
    assert asked == found
    assert len(looked_at) == 1001


def test_that_no_descriptor_was_left_to_look_into_a_directory_is_told(make: Make, root: Path) -> None:
    resource = pytest.importorskip("resource")
    listing = make(root).list()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    probe = os.open(root, os.O_RDONLY)
    os.close(probe)
    resource.setrlimit(resource.RLIMIT_NOFILE, (probe, limits[1]))
    try:
        assert list(listing) == []
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert listing.is_truncated


def test_a_listing_that_is_given_up_keeps_nothing_open(make: Make, root: Path) -> None:
    roots = make(root)
    before = descriptor_count()
    listing = roots.list()
    next(listing)
    assert descriptor_count() == before


def test_what_is_gone_when_its_turn_comes_is_left_out(make: Make, root: Path) -> None:
    listing = make(root).list()
    next(listing)
    (root / "a").rename(root.parent / "gone")
    (root / "a").symlink_to("../outside")
    assert list(listing) == []


# Several roots.


def test_a_root_beneath_another_is_a_root_of_its_own(make: Make, root: Path) -> None:
    (root / "a/link").symlink_to("b/deep.txt")
    (root / "a/b/link").symlink_to("../../file")
    roots = make(root, root / "a/b", root, f"{root}/a/../a//b/")
    found = [info.uri for info in roots.list()]
    assert found == [(root / "file").as_uri(), (root / "a/b/deep.txt").as_uri()]
    assert content(roots, found[1]) == b"public, too"
    assert content(roots, (root / "a/link").as_uri()) == b"public, too"
    # It leads out of the nearer one.
    assert_hidden(roots, (root / "a/b/link").as_uri())


def test_without_roots_there_is_nothing(make: Make, root: Path) -> None:
    roots = make()
    assert list(roots.list()) == []
    assert_hidden(roots, (root / "file").as_uri(), "file:///")


def test_a_relative_root_is_that_of_the_start(
    make: Make, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root.parent)
    roots = make("root")
    monkeypatch.chdir("/")
    assert content(roots, (root / "file").as_uri()) == b"public"


@pytest.mark.parametrize("name", ["none", "file", "", "back\\slash", "nul\0", "\udcff", "\ud800"])
def test_a_root_that_is_none_is_a_wrong_setting(make: Make, root: Path, name: str) -> None:
    before = descriptor_count()
    with pytest.raises(ConfigurationError, match="root"):
        make(root, root / name if name else "")
    assert descriptor_count() == before


def test_after_the_roots_were_closed_what_was_opened_is_read_on(make: Make, root: Path) -> None:
    with make(root) as roots:
        source = roots.open((root / "file").as_uri())
    roots.close()
    assert source.read(0, 6) == b"public"
    source.close()
    assert_hidden(roots, (root / "file").as_uri())
    assert list(roots.list()) == []
