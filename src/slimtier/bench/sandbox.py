"""Runs Python that a model wrote: in a process of its own, for a limited time, in limited memory, without network,
processes or files to write. It keeps mistakes in, not a determined attacker."""

from __future__ import annotations

import secrets
import subprocess
import sys
import tempfile
from dataclasses import dataclass

SECONDS, MEMORY = 10.0, 1 << 30

# The code comes on stdin and is run under this, which ends by telling the secret: so sys.exit(0) is no success.
_KEEPER = """
import ctypes, os, resource, sys
seconds, memory, secret = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
del sys.argv[1:]
code = sys.stdin.read()
for limit, most in ((resource.RLIMIT_CPU, seconds), (resource.RLIMIT_AS, memory), (resource.RLIMIT_FSIZE, 0),
                    (resource.RLIMIT_CORE, 0)):
    resource.setrlimit(limit, (most, most))
try:
    ctypes.CDLL(None).unshare(0x10000000 | 0x40000000)  # a user and a network namespace, where the system lets us
except (OSError, AttributeError):
    pass
refused = ("socket.", "subprocess.", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "ctypes.",
           "os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.chmod", "os.chown", "os.link", "os.symlink",
           "os.truncate", "os.kill", "shutil.")

def keep(event, arguments):
    if event.startswith(refused):
        raise PermissionError(event + " is not for code under test")
    if event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+"):
        raise PermissionError("writing files is not for code under test")

sys.addaudithook(keep)
exec(compile(code, "answer", "exec"), {"__name__": "__main__"})
print(secret)
"""


@dataclass(frozen=True, slots=True)
class Ran:
    """Whether the code ran to its end; if not, in a line, why not."""

    passed: bool
    why: str = ""


def run_python(code: str, *, seconds: float = SECONDS, memory: int = MEMORY) -> Ran:
    """Run `code` in an empty directory with at most `seconds` (of wall clock, and of CPU) and `memory` bytes."""
    secret = secrets.token_hex(16)
    command = [sys.executable, "-I", "-B", "-c", _KEEPER, str(max(1, round(seconds))), str(memory), secret]
    with tempfile.TemporaryDirectory() as place:
        try:
            done = subprocess.run(
                command,
                input=code,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=seconds,
                cwd=place,
                env={},
            )
        except subprocess.TimeoutExpired:
            return Ran(False, f"took longer than {seconds:g} s")
    if done.returncode == 0 and done.stdout.splitlines()[-1:] == [secret]:
        return Ran(True)
    lines = done.stderr.strip().splitlines()
    return Ran(False, lines[-1] if lines else f"ended by itself (exit code {done.returncode})")
