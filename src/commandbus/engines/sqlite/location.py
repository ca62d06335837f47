"""Where the file is, and whether it can be trusted there."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from commandbus.errors import ConfigurationError
from commandbus.store.urls import shown_url

_NETWORK = frozenset(
    {
        "9p",
        "afpfs",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "davfs",
        "fuse.glusterfs",
        "fuse.rclone",
        "fuse.s3fs",
        "fuse.sshfs",
        "glusterfs",
        "gpfs",
        "lustre",
        "network drive",
        "nfs",
        "nfs4",
        "smb3",
        "smbfs",
        "webdav",
    }
)
_MOUNTED = re.compile(r"^.* on (?P<point>/.*) \((?P<kind>[^,)]+)[^()]*\)$")
"""A line of the program `mount` on macOS and the BSDs: `//nas/x on /Volumes/x (smbfs, nodev)`."""
_REMOTE_DRIVE = 4  # what Windows answers for a drive letter of another machine
_MOUNT_SECONDS = 5.0
_OCTAL = re.compile(r"\\([0-7]{3})")
"""Spaces and the like in a mount point, as the kernel writes them."""
_SYNCHRONOUS = {"full": "FULL", "normal": "NORMAL", "off": "OFF", "extra": "EXTRA"}


def parse(url: str) -> tuple[Path, str]:
    """The file and the synchronous mode of `sqlite:///file.db?synchronous=full`."""
    parts = urlsplit(url)
    path = unquote(parts.path)  # a # in a name is written %23
    odd = parts.netloc or parts.fragment or "\0" in path
    if odd or not path.startswith("/") or path in ("/", "/:memory:"):
        raise ConfigurationError(
            f"{shown_url(url)!r} names no SQLite file: write sqlite:///jobs.db for a file in the "
            "current folder, sqlite:////var/lib/jobs.db for an absolute path, or memory:// for no file "
            "at all."
        )
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    synchronous = _SYNCHRONOUS.get(options.pop("synchronous", "full").lower())
    if synchronous is None or options:
        raise ConfigurationError(
            f"{shown_url(url)!r} has options that SQLite does not know; the only one is "
            "synchronous=full (the default), extra, normal or off."
        )
    return Path(path[1:]).absolute(), synchronous


def check(path: Path) -> None:
    """Refuse what cannot work, with what to do instead."""
    folder = path.parent
    if not folder.is_dir():
        raise ConfigurationError(
            f"The folder {folder} of {path.name} does not exist; create it or choose another path."
        )
    if path.is_dir():
        raise ConfigurationError(f"{path} is a folder; give the path of a file.")
    if path.is_symlink():
        raise ConfigurationError(
            f"{path} is a link, and SQLite keeps its log beside the file itself; give its path: "
            f"{path.resolve()}."
        )
    needed = os.W_OK | os.R_OK
    if path.exists() and not os.access(path, needed):
        raise ConfigurationError(
            f"{path} cannot be read and written by this user; change its permissions or its owner."
        )
    if not os.access(folder, needed | os.X_OK):
        raise ConfigurationError(
            f"The folder {folder} is not writable by this user, and SQLite keeps its log beside the "
            "file; change its permissions or choose another folder."
        )
    kind = filesystem_of(folder)
    if kind in _NETWORK:
        raise ConfigurationError(
            f"{path} is on a network file system ({kind}), whose locks cannot be trusted: commands "
            "would be lost or run twice. Put the file on a local disk, or use postgresql://…"
        )


def filesystem_of(folder: Path, mounts: str = "/proc/self/mounts") -> str:
    """The type of the file system of a folder, or an empty text where it is unknown."""
    resolved = folder.resolve()
    if sys.platform == "win32":
        return "network drive" if _is_remote(resolved.drive) else ""
    best, kind = -1, ""
    for place, mounted in _linux_mounts(mounts) or _bsd_mounts():
        point = Path(place)
        if resolved.is_relative_to(point) and len(point.parts) >= best:
            best, kind = len(point.parts), mounted
    return kind


def _linux_mounts(mounts: str) -> list[tuple[str, str]]:
    try:
        lines = Path(mounts).read_text(errors="replace").splitlines()
    except OSError:
        return []
    found = [fields for line in lines if len(fields := line.split()) >= 3]
    return [(_OCTAL.sub(lambda octal: chr(int(octal[1], 8)), fields[1]), fields[2]) for fields in found]


def _bsd_mounts() -> list[tuple[str, str]]:
    if sys.platform == "linux":
        return []
    import subprocess

    try:
        listed = subprocess.run(
            ["/sbin/mount"], capture_output=True, text=True, timeout=_MOUNT_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):  # a share that does not answer may hold it up
        return []
    lines = map(_MOUNTED.match, listed.stdout.splitlines())
    return [(line["point"], line["kind"]) for line in lines if line is not None]


def _is_remote(drive: str) -> bool:
    """Whether a drive of Windows is on another machine: `\\\\nas\\share`, or a letter given to one."""
    if drive.startswith("\\\\"):
        return True
    import ctypes

    kernel = getattr(ctypes, "windll").kernel32  # noqa: B009 - on Windows only, which types cannot know
    return bool(kernel.GetDriveTypeW(f"{drive}\\") == _REMOTE_DRIVE)
