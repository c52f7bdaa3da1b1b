"""The command: what it prints where, and how it fails."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from slimtier.cli.main import app
from slimtier.loading import Loaded, RunOptions
from slimtier.models.resolve import ModelFiles
from tests.byte_tokenizer import END, VOCAB, ByteTokenizer
from tests.stubs import StubTarget

POEM = "né à l'été 🙂, né à l'été 🙂."
Run = Callable[..., Any]


class Writer(StubTarget):
    """After a prompt it writes the poem and ends; `on_call` runs before each forward."""

    def __init__(self, max_positions: int = 256) -> None:
        super().__init__(VOCAB, logits_of=self._next, eos_token_ids=(END,), max_positions=max_positions)
        self.prompts: list[bytes] = []
        self.on_call: Callable[[int], None] = lambda number: None

    def _next(self, history: tuple[int, ...]) -> torch.Tensor:
        data = bytes(token for token in history if token < END)
        answer = data.rpartition(b">")[2]
        script = [*POEM.encode(), END]
        return 9.0 * torch.eye(VOCAB)[script[min(len(answer), len(script) - 1)]]

    def forward(self, *args: Any, **options: Any) -> Any:
        self.on_call(len(self.calls))
        return super().forward(*args, **options)


@pytest.fixture
def target() -> Writer:
    return Writer()


@pytest.fixture
def loads() -> list[RunOptions]:
    return []


@pytest.fixture
def run(target: Writer, loads: list[RunOptions], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command on the stub; the tokenizer records what it is given."""

    class Recording(ByteTokenizer):
        def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
            target.prompts.append(text.encode())
            return super().encode(text)

    def load(files: ModelFiles, options: RunOptions) -> Loaded:
        loads.append(options)
        return Loaded(target, Recording())

    monkeypatch.setattr("slimtier.models.resolve.resolve", lambda name: ModelFiles(name, "gguf", Path(name)))
    monkeypatch.setattr("slimtier.engine.load", load)

    def invoke(*args: str, stdin: str | bytes | None = None) -> Any:
        return CliRunner().invoke(app, list(args), input=stdin)

    return invoke


def test_generate_prints_the_text_and_one_line_of_numbers(run: Run, target: Writer) -> None:
    done = run("generate", "Write.", "--drafter", "ngram")
    assert (done.exit_code, done.stdout) == (0, POEM + "\n")
    assert target.prompts == [b"<user>Write.<assistant>"]
    count = len(POEM.encode()) + 1
    assert done.stderr.startswith(f"{count} tokens · ")
    assert " tok/s · mean acceptance length 4.20 · " in done.stderr  # the poem repeats itself
    assert done.stderr.endswith("drafter ngram · precision fp32\n")


def test_generate_prints_one_json_object(run: Run) -> None:
    done = run("generate", "Write.", "--json", "--seed", "4", "--set", "logprobs=1")
    found = json.loads(done.stdout)
    assert (found["text"], found["finish_reason"], found["seed"]) == (POEM, "stop", 4)
    assert found["token_ids"] == [*POEM.encode(), END]
    assert found["stats"]["num_output_tokens"] == len(found["logprobs"]) == len(found["token_ids"])
    assert (found["drafter"], found["verifier"], found["lossless"]) == ("auto", "lossless", True)
    assert done.stderr == ""


def test_every_flag_takes_effect(run: Run, loads: list[RunOptions]) -> None:
    done = run(
        *(
            "generate",
            "Write.",
            "--drafter",
            "none",
            "--verifier",
            "lenient",
            "--set",
            "lenience=0.5",
            "--threads",
            "2",
        ),
        *(
            "--precision",
            "q8",
            "--runtime",
            "native",
            "--model",
            "other",
            "--max-new-tokens",
            "3",
            "--set",
            "device=cpu",
        ),
    )
    assert done.stdout == "né\n"
    assert "drafter none" in done.stderr
    assert "lossy (lenient)\naudit: " in done.stderr
    assert loads == [RunOptions("native", "q8", 2, "cpu")]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (["stop=l'"], "né à "),
        (['stop=["é à", "x"]'], "n"),
        (["ignore_eos=true", "max_new_tokens"], None),
        (['logit_bias={"110": -100}'], None),
        (["num_speculative_tokens=2", "max_ngram=3"], POEM),
    ],
)
def test_set_takes_json_or_text(run: Run, settings: list[str], text: str | None) -> None:
    done = run("generate", "Write.", *(part for one in settings for part in ("--set", one)))
    if text is not None:
        assert done.stdout == text + "\n"
    elif settings[-1] == "max_new_tokens":
        assert "not KEY=VALUE" in done.stderr
    else:
        assert not done.stdout.startswith("n")


def test_generate_reads_stdin_and_can_leave_the_template_out(run: Run, target: Writer) -> None:
    assert run("generate", "-", stdin="Write\nit>\n").stdout == POEM + "\n"
    assert run("generate", "-", "--set", "raw=true", stdin="Write\nit>\r\n").stdout == POEM + "\n"
    assert target.prompts == [b"<user>Write\nit><assistant>", b"Write\nit>"]


BAD_INPUT: list[tuple[list[str], str, int]] = [
    (["generate", ""], "prompt is empty", 1),
    (["generate", "x" * 300], "context holds 256", 1),
    (["generate", "x", "--max-new-tokens", "-1"], "max_new_tokens is -1", 1),
    (["generate", "x", "--temperature", "nan"], "temperature", 1),
    (["generate", "x", "--temperature", "-1"], "temperature", 1),
    (["generate", "x", "--temperature", "hot"], "--temperature", 2),
    (["generate", "x", "--set", "top_p=0"], "top_p", 1),
    (["generate", "x", "--set", "top_p=1.5"], "top_p", 1),
    (["generate", "x", "--set", "top_q=1"], "did you mean 'top_p'", 1),
    (["generate", "x", "--set", "num_speculative_token=1"], "did you mean 'num_speculative_tokens'", 1),
    (["generate", "x", "--set", "num_speculative_tokens=many"], "num_speculative_tokens is 'many'", 1),
    (["generate", "x", "--set", "top_p"], "not KEY=VALUE", 1),
    (["generate", "x", "--set", "seed=1"], "use --seed", 1),
    (["generate", "x", "--set", "top_p=1", "--set", "top_p=1"], "given twice", 1),
    (["generate", "x", "--set", "raw=yes"], "raw is 'yes'", 1),
    (["generate", "x", "--set", "n=2"], "unknown setting", 1),
    (["generate", "x", "--drafter", "ngrams"], "did you mean 'ngram'", 1),
    (["generate", "x", "--drafter", "draft_model"], "needs the setting draft_model", 1),
    (["generate", "x", "--drafter", "layer_skip", "--set", "skip_layers=9"], "layers are 0 to 3", 1),
    (["generate", "x", "--verifier", "lenient"], "needs the setting lenience", 1),
    (["generate", "x", "--tiers", "exakt"], "did you mean 'exact'", 1),
    (["generate", "x", "--tiers", "exact", "--route", "q5"], "route is 'q5', which is no file", 1),
    (["generate", "x", "--tiers", "exact", "--route", "skip:2"], "a share of the layers", 1),
    (["generate", "x", "--tiers", "exact", "--set", "accept=.8"], "not used by tiers exact", 1),
    (["generate", "x", "--tiers", "paper", "--set", "accept=.3"], "accept must be at least escalate", 1),
    (["generate", "x", "--tiers", "calibrated", "--route", "q4"], "slimtier calibrate", 1),
    (["generate", "x", "--tiers", "paper", "--route", "none", "--lossless"], "paper is lossy", 1),
    (["generate", "x", "--verifier", "lenient", "--set", "lenience=.5", "--lossless"], "lenient is lossy", 1),
    (["generate", "x", "--route", "q4"], "used by no tiers", 1),
    (["generate", "x", "--set", "flush=3"], "--tiers exact", 1),
    (["generate", "x", "--runtime", "hf", "--precision", "q4"], "fp32, bf16", 1),
    (["generate", "x", "--threads", "0"], "threads is 0", 1),
    (["generate", "x", "--sed", "1"], "--seed", 2),
    (["generate"], "prompt", 2),
    (["generat", "x"], "generate", 2),
    (["chat", "--set", "raw=true"], "unknown setting", 1),
    (["--vers"], "--version", 2),
]


@pytest.mark.parametrize(("args", "message", "code"), BAD_INPUT)
def test_bad_input_gets_one_line(run: Run, target: Writer, args: list[str], message: str, code: int) -> None:
    done = run(*args)
    assert done.exit_code == code
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert target.calls == []


@pytest.mark.parametrize("tiers", ["exact", "observe"])
def test_lossless_tiers_change_nothing(run: Run, tiers: str) -> None:
    done = run("generate", "Write.", "--tiers", tiers, "--route", "skip:0.5", "--lossless", "--json")
    found = json.loads(done.stdout)
    assert (found["text"], found["tiers"], found["lossless"]) == (POEM, tiers, True)
    assert found["stats"]["num_slim_calls"] > 0
    assert "audit" not in found


def test_lossy_tiers_say_so(run: Run) -> None:
    done = run("generate", "Write.", "--tiers", "paper", "--route", "skip:0.5")
    assert "lossy (paper)\naudit: 0.0% of the tokens" in done.stderr
    found = json.loads(run("generate", "Write.", "--tiers", "paper", "--route", "skip:0.5", "--json").stdout)
    assert (found["lossless"], found["verifier"], found["audit"]["differs"]) == (False, "paper", 0.0)


def test_stdin_that_is_no_text(run: Run) -> None:
    done = run("generate", "-", stdin=b"\xff\xfe")
    assert (done.exit_code, done.stderr) == (1, "error: standard input is not UTF-8 text: convert it first\n")


def test_an_interrupted_answer_ends_quietly(run: Run, target: Writer) -> None:
    def interrupt(number: int) -> None:
        if number == 5:
            raise KeyboardInterrupt

    target.on_call = interrupt
    done = run("generate", "Write.")
    assert done.exit_code == 130
    assert POEM.startswith(done.stdout.strip())
    assert done.stderr == ""


def test_chat_keeps_the_conversation_and_reads_it_once(run: Run, target: Writer) -> None:
    done = run("chat", "--drafter", "ngram", stdin="Hello\n\nMore\n/reset\nAgain\n/exit\nNever\n")
    assert (done.exit_code, done.stdout) == (0, f"{POEM}\n" * 3)
    first = b"<user>Hello<assistant>"
    assert target.prompts == [
        first,
        first + POEM.encode() + b"<user>More<assistant>",
        b"<user>Again<assistant>",
    ]
    prefills = [call[0] for call in target.calls if call[0] > 6]
    assert prefills == [len(first) - 1, len("<user>More<assistant>") - 1, len("Again<assistant>") - 1]
    assert done.stderr.count("tok/s") == 3


def test_ctrl_c_stops_a_reply_and_the_chat_goes_on(run: Run, target: Writer) -> None:
    def interrupt(number: int) -> None:
        if number == 6:
            os.kill(os.getpid(), signal.SIGINT)

    target.on_call = interrupt
    before = signal.getsignal(signal.SIGINT)
    done = run("chat", stdin="Hello\nMore\n")
    replies = done.stdout.splitlines()
    assert done.exit_code == 0
    assert POEM.startswith(replies[0])
    assert 0 < len(replies[0]) < len(POEM)
    assert replies[1:] == [POEM]
    assert "stopped" in done.stderr
    assert target.prompts[1].startswith(b"<user>Hello<assistant>" + replies[0].encode() + b"<user>")
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_ctrl_c_ends_the_chat(run: Run, target: Writer) -> None:
    def interrupt(number: int) -> None:
        if number == 6:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    target.on_call = interrupt
    done = run("chat", stdin="Hello\nMore\n")
    assert done.exit_code == 130
    assert POEM.startswith(done.stdout)


def test_a_message_that_does_not_fit_leaves_the_conversation_as_it_was(run: Run, target: Writer) -> None:
    done = run("chat", stdin=f"Hello\n{'x' * 300}\nMore\n")
    assert (done.exit_code, done.stdout) == (0, f"{POEM}\n" * 2)
    assert "error: the prompt has" in done.stderr
    assert target.prompts[-1] == b"<user>Hello<assistant>" + POEM.encode() + b"<user>More<assistant>"


def test_chat_needs_a_chat_template(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slimtier.engine.load", lambda files, options: Loaded(Writer(), ByteTokenizer(False)))
    done = run("chat", stdin="Hello\n")
    assert done.exit_code == 1
    assert "no chat template" in done.stderr


def test_a_model_without_a_template_continues_the_prompt(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slimtier.engine.load", lambda files, options: Loaded(Writer(), ByteTokenizer(False)))
    assert run("generate", "Say>n").stdout == POEM[1:] + "\n"


@pytest.mark.parametrize("verb", [[], ["generate"], ["chat"]])
def test_help_has_an_example(run: Run, verb: list[str]) -> None:
    done = run(*verb, "--help")
    assert done.exit_code == 0
    assert "Example: slimtier " in done.stdout


def test_version(run: Run) -> None:
    assert run("--version").stdout.startswith("slimtier ")


def process(code: str, **options: Any) -> subprocess.Popen[str]:
    """A Python of its own, with this one's path."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stderr=subprocess.PIPE, text=True, encoding="utf-8", **options
    )


COMMAND = "import sys; from slimtier.cli.main import main; sys.argv = {argv!r}; main()"


def test_the_command_line_is_read_without_heavy_imports() -> None:
    heavy = ("torch", "numpy", "transformers", "tokenizers", "huggingface_hub", "gguf")
    child = process(f"import sys, slimtier.cli.main; print([m for m in {heavy!r} if m in sys.modules])", stdout=-1)
    assert child.communicate()[0] == "[]\n"


def test_an_error_in_a_real_process() -> None:
    child = process(COMMAND.format(argv=["slimtier", "generate", "hi", "--model", "smollm2"]), stdout=subprocess.PIPE)
    out, err = child.communicate()
    assert (child.returncode, out) == (1, "")
    assert err.startswith("error: no model 'smollm2': did you mean smollm2-135m?")
    assert err.count("\n") == 1


def test_a_reader_that_went_away_is_no_error_to_show() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    child = process(COMMAND.format(argv=["slimtier", "--help"]), stdout=writer)
    os.close(writer)
    assert child.communicate()[1] == ""
    assert child.returncode != 0
