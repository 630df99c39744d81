"""`streamctx get`: a resource of a server into a file."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import click

from streamctx.cli.output import echo_json, printable
from streamctx.cli.path_option import PathOption
from streamctx.cli.sessions import bytes_text
from streamctx.cli.target import Target, find_target, target_options
from streamctx.errors import ConfigurationError

if TYPE_CHECKING:
    from streamctx.cli.rest import Answer

if sys.version_info >= (3, 12):
    from typing import override
else:
    from typing_extensions import override

__all__ = ["command"]


class _FileOption(PathOption):
    """A path that can be a file's: `pathlib` drops the end of `new/` and `new/.`, which says it is none."""

    @override
    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        text = os.fspath(value)
        if text and os.path.basename(text) in ("", ".", ".."):
            raise ConfigurationError(f"{printable(text)} is a directory: name a file in it")
        return super().convert(value, param, ctx)


@click.command(name="get", short_help="Fetch a resource into a file; again, to go on where it stopped.")
@click.argument("uri")
@click.option(
    "-o",
    "--output",
    type=_FileOption(),
    metavar="FILE",
    help="Where to; by default a file with the resource's name here. - is standard output.",
)
@click.option(
    "--range", "asked_range", metavar="A-B", help="Only these bytes, as HTTP counts: 0-99, 100-, -5."
)
@click.option("--force", is_flag=True, help="Replace the file if it is there.")
@target_options
@click.option("--json", "as_json", is_flag=True, help="Print what was written, as a JSON object.")
def command(
    *,
    uri: str,
    output: Path | None,
    asked_range: str | None,
    force: bool,
    url: str | None,
    token_file: Path | None,
    as_json: bool,
) -> None:
    """Fetch the resource URI, as `streamctx ls` names it, into a file that only you can read.

    After Ctrl-C, or when the connection breaks for long, what has come is kept beside the file; the same
    command goes on behind it, unless the resource has changed.
    """
    if asked_range is not None:
        _check_range(asked_range)
    if ":" not in uri:
        raise ConfigurationError(f"{printable(uri)} is not a URI: write one that `streamctx ls` shows")
    if output is not None and str(output) == "-":
        if as_json:
            raise click.UsageError("--json prints to the output that -o - sends the resource to")
        _write(find_target(url, token_file), uri, asked_range, sys.stdout.buffer)
        return
    file = output or Path(_name_in(uri))
    target = find_target(url, token_file)
    if asked_range is None:
        _fetch(target, uri, file, force=force, as_json=as_json)
        return
    from streamctx.cli.private_output import new_file

    with new_file(file, force=force) as temporary:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as opened:
            _write(target, uri, asked_range, opened)
    _tell(file, file.stat().st_size, 0, as_json=as_json)


def _fetch(target: Target, uri: str, file: Path, *, force: bool, as_json: bool) -> None:
    from streamctx.cli.fetching import fetch
    from streamctx.cli.progress import shown_progress

    there = 0
    try:
        with shown_progress(file.name) as show:

            def on_progress(done: int, total: int | None) -> None:
                nonlocal there
                there = done
                show(done, total)

            fetched = fetch(target, uri, file, force=force, on_progress=on_progress)
    except KeyboardInterrupt:
        if there:
            click.echo("Stopped. The same command goes on behind what has come.", err=True)
        raise
    _tell(file, fetched.size_bytes, fetched.resumed_at, as_json=as_json)


def _write(target: Target, uri: str, asked_range: str | None, file: IO[bytes]) -> None:
    from streamctx.cli.fetching import path_of
    from streamctx.cli.rest import RequestFailed, asked

    headers = {} if asked_range is None else {"Range": f"bytes={asked_range}"}
    try:
        with asked(target, path_of(uri), headers) as answer:
            length = answer.length
            if asked_range is not None or answer.status != 200:
                length = _length_of(asked_range, answer.status, answer.header("content-range"))
                if length is None or answer.length not in (None, length):
                    raise RequestFailed(
                        f"{target.http_url} does not give the bytes of {printable(uri)} asked for: "
                        "it answered others",
                        status=200,
                    )
            _copy(answer, length, file)
    except RequestFailed as error:
        size = re.fullmatch(r"bytes \*/([0-9]{1,18})", error.headers.get("content-range", ""))
        if error.status != 416 or size is None:
            raise
        raise RequestFailed(
            f"{printable(uri)} has {int(size[1]):,} bytes: --range {asked_range} is past its end", status=416
        ) from error
    file.flush()


def _copy(answer: Answer, length: int | None, file: IO[bytes]) -> None:
    from streamctx.cli.rest import RequestFailed

    done = 0
    for piece in answer.pieces():
        done += len(piece)
        if length is not None and done > length:
            raise RequestFailed(f"the server sent more than the {length} bytes it promised", status=200)
        file.write(piece)
    if length is not None and done != length:
        raise RequestFailed(f"the server sent {done} bytes of {length}: try again")


def _length_of(asked_range: str | None, status: int, content_range: str) -> int | None:
    """How many bytes an answer with a range has; `None` if it is not the range that was asked for."""
    match = re.fullmatch("bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})", content_range)
    if asked_range is None or status != 206 or match is None:
        return None
    start, last, size = (int(number) for number in match.groups())
    first_text, _, last_text = asked_range.partition("-")
    if first_text:
        promised = int(first_text), min(int(last_text or size), size - 1)
    else:
        promised = max(size - int(last_text), 0), size - 1
    return last - start + 1 if (start, last) == promised and start <= last else None


def _check_range(asked_range: str) -> None:
    """Refuse what is no single range, such as two, which would come in another form.

    Raises:
        ConfigurationError: If it is none.
    """
    match = re.fullmatch("([0-9]{1,18})?-([0-9]{1,18})?", asked_range)
    if match is None or asked_range == "-" or (match[1] and match[2] and int(match[1]) > int(match[2])):
        raise ConfigurationError(
            f"--range {printable(asked_range)} is no range of bytes: write such as 0-99, 100- or -5"
        )


def _tell(file: Path, size_bytes: int, resumed_at: int, *, as_json: bool) -> None:
    if as_json:
        # A name that is not UTF-8 cannot be written as it is.
        name = os.fsencode(file).decode(errors="backslashreplace")
        echo_json({"file": name, "bytes": size_bytes, "resumed_at": resumed_at})
        return
    resumed = f", {bytes_text(resumed_at)} of it from before" if resumed_at else ""
    click.echo(f"{printable(file)}: {bytes_text(size_bytes)}{resumed}.")


def _name_in(uri: str) -> str:
    """The last part of a URI as the name of a file here.

    Raises:
        ConfigurationError: If it has none that could be one.
    """
    try:
        name = unquote(urlsplit(uri).path.rpartition("/")[2])
    except ValueError:
        name = ""
    if not name or name in (".", "..") or "/" in name or "\0" in name:
        raise ConfigurationError("this resource has no name for a file: give one with -o")
    return name
