"""A disk in memory, under SQLite: it knows what was synced, can be cut off from power, and can fail.

Each file is the image as of its last sync and the writes since then. When the power goes, any of those may
have reached the disk, whole or in part, and in any order.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import apsw

if sys.version_info >= (3, 12):
    from typing import override
else:
    from typing_extensions import override

__all__ = ["Disk", "Image"]

Image: TypeAlias = Mapping[str, bytes]
"""What is on the disk after a cut: files by their paths."""

# Half a page can reach the disk, half a sector cannot.
_SECTOR_BYTES = 512


@dataclass(frozen=True, slots=True)
class _Write:
    offset: int
    data: bytes

    def apply(self, content: bytearray) -> None:
        if len(content) < self.offset:
            content.extend(bytes(self.offset - len(content)))
        content[self.offset : self.offset + len(self.data)] = self.data


@dataclass(frozen=True, slots=True)
class _Truncate:
    size: int

    def apply(self, content: bytearray) -> None:
        del content[self.size :]


@dataclass(slots=True)
class _Stored:
    content: bytearray = field(default_factory=bytearray)
    synced: bytearray = field(default_factory=bytearray)
    since: list[_Write | _Truncate] = field(default_factory=list)
    is_named: bool = False
    """Whether its name is safe, since the directory was synced after it was made."""

    def change(self, change: _Write | _Truncate) -> None:
        change.apply(self.content)
        self.since.append(change)

    def sync(self) -> None:
        for change in self.since:
            change.apply(self.synced)
        self.since.clear()


class Disk(apsw.VFS):
    """Register it by making it; SQLite finds it by `name` until `unregister`.

    Args:
        on_call: Called before each change with what is about to happen: `write`, `sync`, `truncate` or
            `delete`. What it raises is what the disk answers.
    """

    def __init__(self, name: str, on_call: Callable[[str], None]) -> None:
        super().__init__(name, base="")
        self.name = name
        self.on_call = on_call
        self.files: dict[str, _Stored] = {}
        # Deleted, and the directory not synced since: they may come back.
        self._deleted: dict[str, _Stored] = {}

    def cut(self, chance: random.Random) -> Image:
        """What might be found after the power went off now."""
        image = {}
        mode = chance.choice(("none", "all", "some", "some"))
        for path, stored in (*self._deleted.items(), *self.files.items()):
            if not stored.is_named and (mode == "none" or (mode == "some" and chance.random() < 0.5)):
                continue
            content = bytearray(stored.synced)
            for change in stored.since:
                if mode == "all" or (mode == "some" and chance.random() < 0.7):
                    _torn(change, chance if mode == "some" else None).apply(content)
            image[path] = bytes(content)
        for path in self._deleted.keys() - self.files.keys():
            if chance.random() < 0.5:
                image.pop(path, None)
        return image

    def put(self, image: Image) -> None:
        """Begin with these files, all synced."""
        self.files = {
            path: _Stored(bytearray(content), bytearray(content), is_named=True)
            for path, content in image.items()
        }

    @override
    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        # The store itself makes the main file, and syncs its directory.
        made = _Stored(is_named=bool(flags[0] & apsw.SQLITE_OPEN_MAIN_DB))
        stored = made if path is None else self.files.setdefault(path, made)
        flags[1] = flags[0]
        return _File(self, stored)

    @override
    def xAccess(self, path: str, flags: int) -> bool:
        return path in self.files

    @override
    def xDelete(self, path: str, sync_directory: bool) -> None:
        self.on_call("delete")
        stored = self.files.pop(path, None)
        if stored is None:
            return
        if sync_directory:
            self.sync_directory()
        elif stored.is_named:
            self._deleted[path] = stored

    def sync_directory(self) -> None:
        """Make all names safe, and that some are gone."""
        self._deleted.clear()
        for stored in self.files.values():
            stored.is_named = True

    @override
    def xFullPathname(self, path: str) -> str:
        return path


class _File(apsw.VFSFile):
    def __init__(self, disk: Disk, stored: _Stored) -> None:
        # Not made by the base: nothing of it is ever on the real disk.
        self._disk = disk
        self._stored = stored

    @override
    def xRead(self, amount: int, offset: int) -> bytes:
        return bytes(self._stored.content[offset : offset + amount])

    @override
    def xWrite(self, data: bytes, offset: int) -> None:
        self._disk.on_call("write")
        self._stored.change(_Write(offset, bytes(data)))

    @override
    def xTruncate(self, size: int) -> None:
        self._disk.on_call("truncate")
        self._stored.change(_Truncate(size))

    @override
    def xSync(self, flags: int) -> None:
        self._disk.on_call("sync")
        self._stored.sync()
        if not self._stored.is_named:
            # SQLite syncs the directory with the first sync of a log or a rollback journal.
            self._disk.sync_directory()

    @override
    def xFileSize(self) -> int:
        return len(self._stored.content)

    @override
    def xClose(self) -> None:
        pass

    @override
    def xLock(self, level: int) -> None:
        pass

    @override
    def xUnlock(self, level: int) -> None:
        pass

    @override
    def xCheckReservedLock(self) -> bool:
        return False

    @override
    def xFileControl(self, op: int, pointer: int) -> bool:
        return False

    @override
    def xSectorSize(self) -> int:
        return 4096

    @override
    def xDeviceCharacteristics(self) -> int:
        # As SQLite says of real files: a write does no harm to what stands beside it.
        return apsw.SQLITE_IOCAP_POWERSAFE_OVERWRITE


def _torn(change: _Write | _Truncate, chance: random.Random | None) -> _Write | _Truncate:
    if chance is None or isinstance(change, _Truncate) or chance.random() < 0.7:
        return change
    sectors = len(change.data) // _SECTOR_BYTES
    keep = chance.randint(0, sectors) * _SECTOR_BYTES
    if chance.random() < 0.5:
        return _Write(change.offset, change.data[:keep])
    return _Write(change.offset + keep, change.data[keep:])
