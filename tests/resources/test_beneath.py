from __future__ import annotations

import errno
import os
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from streamctx.resources.beneath import DEPTH_MAX, Beneath, Way
from tests.resources.ways import exchanging

__all__: list[str] = []

pytestmark = pytest.mark.usefixtures("no_descriptor_is_left")

PUBLIC = b"public"
SECRET = b"secret"

Make = Callable[..., Beneath]


@pytest.fixture
def make(way: Way) -> Iterator[Make]:
    made: list[Beneath] = []

    def make_one(path: Path, *, follows_links: bool = True) -> Beneath:
        made.append(Beneath(os.fsencode(path), follows_links=follows_links, way=way))
        return made[-1]

    yield make_one
    for beneath in made:
        beneath.close()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Holds what is public; what lies beside it is secret."""
    root = tmp_path / "root"
    (root / "a/b").mkdir(parents=True)
    for name in ("file", "a/file", "a/b/file"):
        (root / name).write_bytes(PUBLIC)
    (tmp_path / "outside").mkdir()
    for name in ("file", "outside/file", "root-of-another"):
        (tmp_path / name).write_bytes(SECRET)
    return root


def read(beneath: Beneath, path: bytes) -> tuple[bytes, bytes]:
    opened = beneath.open_file(path)
    try:
        return opened.path, os.pread(opened.descriptor, 100, 0)
    finally:
        os.close(opened.descriptor)


def refusal(beneath: Beneath, path: bytes) -> int | None:
    with pytest.raises(OSError) as caught:
        read(beneath, path)
    return caught.value.errno


# Paths.


@pytest.mark.parametrize(
    ("path", "place"),
    [
        (b"file", b"file"),
        (b"a/b/file", b"a/b/file"),
        (b"a//b/./file", b"a/b/file"),
        (b"a/b/../file", b"a/file"),
        (b"a/b/../../file", b"file"),
        (b"a/../a/../a/b/file", b"a/b/file"),
    ],
)
def test_a_file_is_opened_and_its_place_told(make: Make, root: Path, path: bytes, place: bytes) -> None:
    assert read(make(root), path) == (place, PUBLIC)


@pytest.mark.parametrize(
    "path",
    [
        b"",
        b"/",
        b"..",
        b"../file",
        b"../root/file",
        b"../root-of-another",
        b"a/../../file",
        b"a/b/../../../outside/file",
        b"a/b/../../..",
        b"none",
        b"none/../file",
        b"file/",
        b"file/.",
        b"file/..",
        b"file/../file",
        b"a",
        b"a/",
        b"a/.",
        b"a/..",
        b".",
        b"file\0",
        b"file\0/none",
        b"none\0",
        b"a\0/../file",
        b"\\file",
        b"a\\file",
        b"x" * 256,
        b"x/" * 3000 + b"file",
    ],
)
def test_a_path_that_leads_to_no_file_beneath_opens_nothing(make: Make, root: Path, path: bytes) -> None:
    refusal(make(root), path)


def test_an_absolute_path_opens_nothing_even_if_it_leads_back(make: Make, root: Path) -> None:
    assert refusal(make(root), os.fsencode(root / "file")) == errno.EXDEV
    assert refusal(make(root), os.fsencode(root.parent / "file")) == errno.EXDEV


def test_a_path_is_as_deep_as_it_may_be(make: Make, tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*"d" * (DEPTH_MAX + 1))
    deep.mkdir(parents=True)
    (deep / "file").write_bytes(PUBLIC)
    (deep.parent / "file").write_bytes(PUBLIC)
    beneath = make(tmp_path)
    assert read(beneath, b"d/" * DEPTH_MAX + b"file")[1] == PUBLIC
    assert refusal(beneath, b"d/" * (DEPTH_MAX + 1) + b"file") == errno.ENAMETOOLONG


@pytest.mark.parametrize(
    "name", ["a file (deleted)", " (deleted)", "\u00e4", "new\nline", "-", "~", "*", "..."]
)
def test_odd_names_are_names(make: Make, root: Path, name: str) -> None:
    (root / name).write_bytes(PUBLIC)
    assert read(make(root), name.encode()) == (name.encode(), PUBLIC)


def test_the_root_may_be_any_directory(make: Make, root: Path) -> None:
    beneath = make(Path("/"))
    path = os.fsencode(root.resolve() / "file").lstrip(b"/")
    assert read(beneath, path) == (path, PUBLIC)
    opened = beneath.open_directory(b".")
    os.close(opened.descriptor)
    assert opened.path == b"."
    refusal(beneath, b"../" + path)


def test_the_root_is_the_directory_that_was_opened(make: Make, root: Path) -> None:
    beneath = make(root)
    root.rename(root.parent / "moved")
    root.symlink_to("outside")
    assert read(beneath, b"file") == (b"file", PUBLIC)


@pytest.mark.parametrize("name", ["file", "none"])
def test_what_is_no_directory_is_no_root(make: Make, root: Path, name: str) -> None:
    with pytest.raises(OSError):
        make(root / name)


def test_after_it_was_closed_nothing_is_opened(make: Make, root: Path) -> None:
    beneath = make(root)
    beneath.close()
    beneath.close()
    assert refusal(beneath, b"file") == errno.EBADF


# Links.


@pytest.mark.parametrize(
    ("link", "target", "path", "place"),
    [
        ("link", "file", b"link", b"file"),
        ("link", "./a//b/file", b"link", b"a/b/file"),
        ("link", "a/b", b"link/file", b"a/b/file"),
        ("link", "a/b/", b"link/file", b"a/b/file"),
        ("link", "a/b", b"link/../file", b"a/file"),
        ("a/link", "../file", b"a/link", b"file"),
        ("a/b/link", "../../file", b"a/b/link", b"file"),
        ("a/b/link", "../..", b"a/b/link/a/file", b"a/file"),
        ("link", ".", b"link/link/link/file", b"file"),
    ],
)
def test_a_link_is_followed_beneath_the_root(
    make: Make, root: Path, link: str, target: str, path: bytes, place: bytes
) -> None:
    (root / link).symlink_to(target)
    assert read(make(root), path) == (place, PUBLIC)
    assert refusal(make(root, follows_links=False), path) == errno.ELOOP


@pytest.mark.parametrize(
    ("link", "target", "path"),
    [
        ("link", "../file", b"link"),
        ("link", "..", b"link/file"),
        ("link", "../outside", b"link/file"),
        ("link", "../root/file", b"link"),
        ("link", "a/../../file", b"link"),
        ("a/link", "../../file", b"a/link"),
        ("a/b/link", "../../..", b"a/b/link/file"),
        ("link", "{root}/file", b"link"),
        ("link", "{root}", b"link/file"),
        ("link", "{root}/../file", b"link"),
        ("link", "/", b"link/etc/hostname"),
        ("link", "/proc/self/root", b"link/etc/hostname"),
        ("link", "none", b"link"),
        ("link", "link", b"link"),
        ("link", "a/b/file/", b"link"),
        ("link", "a", b"link"),
        ("link", "file", b"link/"),
    ],
)
@pytest.mark.parametrize("follows_links", [True, False])
def test_a_link_that_leads_elsewhere_opens_nothing(
    make: Make, root: Path, link: str, target: str, path: bytes, *, follows_links: bool
) -> None:
    (root / link).symlink_to(target.format(root=root))
    refusal(make(root, follows_links=follows_links), path)


@pytest.mark.parametrize(("count", "is_opened"), [(1, True), (40, True), (41, False)])
def test_a_chain_of_links_is_as_long_as_it_may_be(
    make: Make, root: Path, count: int, *, is_opened: bool
) -> None:
    (root / "0").symlink_to("file")
    for index in range(1, count):
        (root / str(index)).symlink_to(str(index - 1))
    beneath = make(root)
    if is_opened:
        assert read(beneath, b"%d" % (count - 1)) == (b"file", PUBLIC)
    else:
        assert refusal(beneath, b"%d" % (count - 1)) == errno.ELOOP


def test_a_chain_that_ends_outside_opens_nothing(make: Make, root: Path) -> None:
    (root / "out").symlink_to("../outside")
    (root / "a/second").symlink_to("../out/file")
    (root / "first").symlink_to("a/second")
    assert refusal(make(root), b"first") == errno.EXDEV


def test_links_in_a_loop_open_nothing(make: Make, root: Path) -> None:
    (root / "one").symlink_to("a/two/x")
    (root / "a/two").symlink_to("../one")
    assert refusal(make(root), b"one") == errno.ELOOP


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="there is no /proc here")
def test_what_only_looks_like_a_link_opens_nothing(make: Make, root: Path) -> None:
    process = make(Path("/proc/self"))
    outside = os.open(root / "file", os.O_RDONLY)
    try:
        for path in (b"root/etc/passwd", b"root/proc/self/status", b"exe", b"cwd/pyproject.toml"):
            refusal(process, path)
        for path in (b"fd/%d" % outside, b"task/%d/fd/%d" % (threading.get_native_id(), outside)):
            refusal(process, path)
    finally:
        os.close(outside)
    refusal(make(Path("/proc")), b"self/root/etc/passwd")
    # It is the link that is refused, and not the file system.
    assert read(process, b"status")[0] == b"status"


# What is no regular file.


def test_a_device_a_socket_and_a_pipe_are_not_opened(
    make: Make, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(root / "pipe")
    (root / "link").symlink_to("pipe")
    # Its whole path may be longer than a socket's can be.
    monkeypatch.chdir(root)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("socket")
    beneath = make(root)
    for path in (b"pipe", b"link", b"socket"):
        assert refusal(beneath, path) == errno.ENXIO
    assert refusal(beneath, b"a") == errno.EISDIR
    for path in (b"null", b"zero", b"tty"):
        assert refusal(make(Path("/dev")), path) == errno.ENXIO


def test_who_waits_at_a_pipe_is_not_let_go(make: Make, root: Path) -> None:
    pipe = root / "pipe"
    os.mkfifo(pipe)
    waiting = threading.Thread(target=lambda: os.close(os.open(pipe, os.O_WRONLY)))
    waiting.start()
    waiting.join(0.02)
    beneath = make(root)
    for _ in range(10):
        assert refusal(beneath, b"pipe") == errno.ENXIO
    waiting.join(0.02)
    assert waiting.is_alive()
    os.close(os.open(pipe, os.O_RDONLY))
    waiting.join()


def test_a_directory_is_opened_to_be_listed_but_through_no_link(make: Make, root: Path) -> None:
    (root / "link").symlink_to("a")
    beneath = make(root)
    for path, place, names in ((b".", b".", {"a", "file", "link"}), (b"a/b", b"a/b", {"file"})):
        opened = beneath.open_directory(path)
        assert opened.path == place
        assert set(os.listdir(opened.descriptor)) == names
        os.close(opened.descriptor)
    for path in (b"link", b"link/b", b"file", b"..", b"a/../..", b"/", b"none"):
        with pytest.raises(OSError):
            beneath.open_directory(path)


# Others at work.


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a component", "the file", "the parent"])
def test_no_secret_is_opened_while_names_are_exchanged(make: Make, root: Path, name: str) -> None:
    outside = root.parent / "outside"
    refused_min = 100
    if name == "a component":
        path, first, second = b"a/file", root / "a", root / "other"
        second.symlink_to("../outside")
    elif name == "the file":
        path, first, second = b"a/file", root / "a/file", root / "a/other"
        second.symlink_to("../../outside/file")
    else:
        # The directory that `..` starts from is moved out and in.
        path, first, second = b"a/b/up", root / "a/b", outside / "b"
        # Its name is never away.
        refused_min = 0
        second.mkdir()
        for directory in (first, second):
            (directory / "up").symlink_to("../file")
    beneath = make(root)
    counts = {"refused": 0, PUBLIC: 0}
    with exchanging(first, second):
        # On a busy machine the other process may have to wait.
        while sum(counts.values()) < 20_000 or counts[PUBLIC] < 100 or counts["refused"] < refused_min:
            try:
                content = read(beneath, path)[1]
            except OSError:
                counts["refused"] += 1
            else:
                assert content == PUBLIC
                counts[PUBLIC] += 1


@pytest.mark.slow
def test_no_directory_outside_is_listed_while_names_are_exchanged(make: Make, root: Path) -> None:
    (root / "other").symlink_to("../outside")
    (root.parent / "outside/secret").touch()
    beneath = make(root)
    opened_count = refused_count = 0
    with exchanging(root / "a", root / "other"):
        while opened_count + refused_count < 5000 or opened_count < 100 or refused_count < 100:
            try:
                opened = beneath.open_directory(b"a")
            except OSError:
                refused_count += 1
                continue
            assert "secret" not in os.listdir(opened.descriptor)
            os.close(opened.descriptor)
            opened_count += 1


@pytest.mark.slow
def test_a_file_is_found_however_much_is_renamed_elsewhere(make: Make, root: Path) -> None:
    # Meanwhile `openat2` cannot tell where `..` leads, and says so again and again: in memory one can rename
    # fast enough.
    (root / "a/b/up").symlink_to("../../a/../a/b/../../file")
    beneath = make(root)
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        names = [Path(folder, name) for name in ("one", "two")]
        for name in names:
            name.mkdir()
        with exchanging(*names):
            for _ in range(10_000):
                assert read(beneath, b"a/b/up") == (b"file", PUBLIC)


@pytest.mark.slow
def test_a_file_that_is_replaced_is_always_found_and_under_its_name(make: Make, root: Path) -> None:
    (root / "other").write_bytes(PUBLIC)
    (root / "link").symlink_to("file")
    is_over = threading.Event()

    def replace() -> None:
        index = 0
        while not is_over.is_set():
            (root / f"new{index}").write_bytes(PUBLIC)
            os.replace(root / f"new{index}", root / "file")
            index += 1

    replacing = threading.Thread(target=replace)
    replacing.start()
    beneath = make(root)
    try:
        for _ in range(2000):
            assert read(beneath, b"link") == (b"file", PUBLIC)
    finally:
        is_over.set()
        replacing.join()
