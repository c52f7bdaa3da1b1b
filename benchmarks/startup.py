"""What a user waits for and what it takes: from the command to its first token, and the peak of memory.

    python -m benchmarks.startup

Time: `slimtier generate PROMPT` in a fresh process, until the first byte of the answer is on stdout; the model is in
slimtier's cache, and after the first run in the system's. Memory: the peak of a process that generates 64 tokens, less
that of one that only imports torch. Medians of 5 runs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence

from benchmarks.common import parser, say, writer
from slimtier.bench.statistics import markdown_table, median

NAME = "startup"
PRECISIONS = ("q8", "auto")
PROMPT = "Explain why the sky is blue."
RUNS, QUICK_RUNS, TOKENS, QUICK_TOKENS = 5, 2, 64, 16
_MAIN = "from slimtier.cli.main import main; main()"
# the peak of this very process: what getrusage gives on Linux may be the parent's, from before the program began
_PEAK = """
def peak():
    try:
        for line in open('/proc/self/status'):
            if line.startswith('VmHWM:'):
                return int(line.split()[1]) / 1024
    except OSError:
        pass
    import resource, sys
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used / (1 << 20 if sys.platform == 'darwin' else 1 << 10)
print(peak())
"""
_GENERATE = """
from slimtier import Engine
engine = Engine.from_pretrained({model!r}, precision={precision!r}, threads={threads})
engine.generate([{{"role": "user", "content": {prompt!r}}}], max_new_tokens={tokens}, ignore_eos=True)
"""


def main(argv: Sequence[str] | None = None) -> None:
    options = parser(__doc__ or "", NAME)
    options.add_argument("--model", default="smollm2-135m")
    arguments = options.parse_args(argv)
    runs = QUICK_RUNS if arguments.quick else RUNS
    rows = []
    with writer(arguments, NAME) as out:
        torch_alone = [peak_mib("import torch") for _ in range(runs)]
        out.write("memory", what="import torch", peak_mib=torch_alone)
        for precision in PRECISIONS:
            first_tokens = [first_token_s(precision, arguments) for _ in range(runs)]
            peaks = [peak_mib(_generating(precision, arguments)) for _ in range(runs)]
            out.write("first_token", precision=precision, seconds=first_tokens)
            out.write("memory", what=precision, peak_mib=peaks)
            over = (median(peaks) or 0.0) - (median(torch_alone) or 0.0)
            rows.append([precision, median(first_tokens), min(first_tokens), median(peaks), over])
            say(f"{precision} done")
    headers = ["precision", "first token, s", "best", "peak, MiB", "over torch's own, MiB"]
    print(markdown_table(headers, rows))


def first_token_s(precision: str, arguments: argparse.Namespace) -> float:
    command = [sys.executable, "-c", _MAIN, "generate", PROMPT, "--model", arguments.model, "--precision", precision]
    command += ["--threads", str(arguments.threads), "--max-new-tokens", "8"]
    started = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        first = process.stdout.read(1)
        seconds = time.perf_counter() - started
        _, errors = process.communicate()
    if not first.strip() or process.returncode:
        raise SystemExit(f"slimtier generate failed: {errors.decode(errors='replace').strip()}")
    return seconds


def _generating(precision: str, arguments: argparse.Namespace) -> str:
    return _GENERATE.format(
        model=arguments.model,
        precision=precision,
        threads=arguments.threads,
        prompt=PROMPT,
        tokens=QUICK_TOKENS if arguments.quick else TOKENS,
    )


def peak_mib(code: str) -> float:
    """The peak resident memory, in MiB, of a Python that runs `code`."""
    done = subprocess.run([sys.executable, "-c", code + "\n" + _PEAK], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"a measured process failed: {done.stderr.strip()[-500:]}")
    return float(json.loads(done.stdout.splitlines()[-1]))


if __name__ == "__main__":
    main()
