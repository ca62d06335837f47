"""The file of contexts: URLs of stores by name, and the name in use. URLs may hold passwords, so the
file is its owner's alone."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from commandbus.interfaces.cli.exits import CliError, Exit


def context_file() -> Path:
    """`commandbus/contexts.json` in XDG_CONFIG_HOME, else in ~/.config."""
    configured = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    # A relative folder is to be ignored, says the XDG Base Directory Specification.
    folder = configured if configured.is_absolute() else Path("~/.config").expanduser()
    return folder / "commandbus" / "contexts.json"


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """A lock beside the file, which itself is replaced. The system frees it when its process dies."""
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(
            file.with_name("contexts.lock"),
            os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0),
            0o600,
        )
    except OSError as error:
        raise CliError(f"{file} cannot be written: {error.strerror}.", Exit.FAILURE) from None
    try:
        _wait_for(descriptor)
        yield
    finally:
        os.close(descriptor)


def _wait_for(descriptor: int) -> None:
    if sys.platform == "win32":
        import msvcrt

        msvcrt.locking(descriptor, msvcrt.LK_LOCK, 1)
    else:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX)


class Contexts(msgspec.Struct, forbid_unknown_fields=True):
    """What the file holds."""

    in_use: str | None = None
    urls: dict[str, str] = {}

    @classmethod
    def load(cls) -> Contexts:
        """The contexts; none where there is no file. Raises CliError for one that cannot be read."""
        file = context_file()
        try:
            return msgspec.json.decode(file.read_bytes(), type=cls)
        except (FileNotFoundError, NotADirectoryError):
            return cls()
        except OSError as error:
            raise CliError(f"{file} cannot be read: {error.strerror}.", Exit.USAGE) from None
        except (msgspec.DecodeError, UnicodeDecodeError):
            # The error is not quoted: a piece of the file could be a password.
            raise CliError(
                f"{file} is not a file of contexts; fix it, or remove it and add them again with "
                "`commandbus context add`.",
                Exit.USAGE,
            ) from None

    @classmethod
    @contextmanager
    def changing(cls) -> Iterator[Contexts]:
        """The contexts, saved with what the caller changes. One process at a time: two that read the
        same file would each write it without the change of the other."""
        with _locked(context_file()):
            known = cls.load()
            yield known
            known.save()

    def save(self) -> None:
        """Replace the file at once, so that a crash leaves the old one or the new one."""
        import tempfile  # commands that only read it start sooner without

        file = context_file()
        try:
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # The mode of such a file is 0600 from the beginning.
            descriptor, unfinished = tempfile.mkstemp(prefix=".contexts-", dir=file.parent)
            try:
                with os.fdopen(descriptor, "wb") as written:
                    written.write(msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n")
                    written.flush()
                    os.fsync(written.fileno())
                Path(unfinished).replace(file)
            except BaseException:
                with suppress(OSError):
                    Path(unfinished).unlink()
                raise
        except OSError as error:
            raise CliError(f"{file} cannot be written: {error.strerror}.", Exit.FAILURE) from None

    def sorted(self) -> list[tuple[str, str]]:
        return sorted(self.urls.items())

    def url_of(self, name: str) -> str:
        """Raises CliError for a name that is not there."""
        if name not in self.urls:
            known = ", ".join(sorted(self.urls)) or "none yet"
            raise CliError(
                f"There is no context {name!r} in {context_file()}, which has: {known}. Add it with "
                f"`commandbus context add {name} --url URL`, or choose another with "
                "`commandbus context use NAME`.",
                Exit.USAGE,
            )
        return self.urls[name]
