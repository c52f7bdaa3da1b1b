"""The systems that take part, each in a process that sleeps while the others work."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from slimtier.bench.config import BenchConfig
from slimtier.bench.systems import OURS, System
from slimtier.bench.worker import IDLE_LIMIT, MissingPeer, Worker
from slimtier.errors import InputError, SlimtierError
from slimtier.models.resolve import ModelFiles

T = TypeVar("T")
WARM_UP_TOKENS = 16
CONTEXT_ROOM = 16  # tokens that a context has beyond prompt and answer


@dataclass(slots=True)
class Contestants:
    """`ready`: the systems that answered once; `told`: a row for each system that was named, as the results have it."""

    config: BenchConfig
    files: ModelFiles
    stack: ExitStack
    ready: list[System] = field(default_factory=list)
    told: list[dict[str, Any]] = field(default_factory=list)
    _workers: dict[str, Worker | Exception] = field(default_factory=dict)
    _settings: dict[str, dict[str, Any]] = field(default_factory=dict)

    def enter(self, system: System, prompt: Sequence[int], eos: Sequence[int]) -> None:
        """Load the system and let it answer once; what keeps it from taking part is told, not raised."""
        row: dict[str, Any] = {"system": system.name, **system.to_dict(), "lossless": system.lossless}
        try:
            worker = self._worker(system)
            self.answer(system, prompt, WARM_UP_TOKENS, eos)
        except MissingPeer as missing:
            self.told.append({**row, "state": "skipped", "reason": str(missing)})
        except (RuntimeError, SlimtierError) as error:
            self.told.append({**row, "state": "failed", "reason": first_line(error)})
        else:
            self.ready.append(system)
            idle = worker.idle_use()
            noisy = idle is not None and idle > IDLE_LIMIT
            reason = f"uses {idle:.2f} of a core while it waits, which the others suffer from" if noisy else None
            told = self._settings[system.process()]
            self.told.append({**row, "state": "ready", "reason": reason, "idle_cores": idle, **told})

    def answer(self, system: System, ids: Sequence[int], most: int, eos: Sequence[int]) -> dict[str, Any]:
        """Raises RuntimeError with what the system says when it fails."""
        return self._generate(system, "generate", most, eos, token_ids=list(ids))

    def answer_batch(self, system: System, prompts: Sequence[Sequence[int]], eos: Sequence[int]) -> dict[str, Any]:
        """All prompts at once; raises as above."""
        most = self.config.settings.max_new_tokens
        return self._generate(system, "generate_batch", most, eos, prompts=[list(ids) for ids in prompts])

    def _generate(
        self, system: System, operation: str, most: int, eos: Sequence[int], **prompts: Any
    ) -> dict[str, Any]:
        settings = self.config.settings
        sampling = {"temperature": settings.temperature, "seed": settings.seed} if settings.temperature else {}
        asked = {"max_tokens": most, "eos_token_ids": list(eos), "sampling": sampling}
        reply = self._worker(system).ask(operation, **prompts, **asked, **system.answering())
        assert isinstance(reply, dict)
        return reply

    def log_likelihood(self, ids: Sequence[int], answer: Sequence[int]) -> float | None:
        """Of an answer under our own float32 target; None where that cannot be loaded."""
        judge = System("", OURS, {"precision": "fp32"})
        try:
            worker = self._worker(judge)
        except (MissingPeer, RuntimeError, SlimtierError):
            return None
        return float(worker.ask("log_likelihood", token_ids=list(ids), answer=list(answer))["log_likelihood"])

    def logits(self, system: System, ids: Sequence[int], stepwise: bool) -> list[float]:
        """Those of the token after `ids`, as the system's target gives them."""
        found = self._worker(system).ask("logits", token_ids=list(ids), stepwise=stepwise)
        assert isinstance(found, list)
        return found

    def _worker(self, system: System) -> Worker:
        """That of the system's process; an error is raised again each time it is asked for."""
        key = system.process()
        if key not in self._workers:
            try:
                self._workers[key] = self._start(system, key)
            except (MissingPeer, RuntimeError, SlimtierError) as error:
                self._workers[key] = error
        found = self._workers[key]
        if isinstance(found, Exception):
            raise found
        return found

    def _start(self, system: System, key: str) -> Worker:
        arguments = {**system.loading(), **self._weights(system), "threads": self.config.settings.threads}
        python = self.config.python.get(system.type, self.config.python.get("peers", sys.executable))
        worker = self.stack.enter_context(Worker(system.kind.worker, sys.executable if system.type == OURS else python))
        started = time.perf_counter()
        told = worker.ask("load", **arguments)
        self._settings[key] = {
            "versions": told["versions"],
            "settings": told.get("settings", {}),
            "load_s": time.perf_counter() - started,
        }
        return worker

    def _weights(self, system: System) -> Mapping[str, Any]:
        """What the system reads: the same numbers for all."""
        settings, kind = self.config.settings, system.kind
        room = settings.max_prompt_tokens + settings.max_new_tokens + CONTEXT_ROOM
        context = {"context": room} if system.type in ("llama.cpp", "vllm") else {}
        if kind.weights == "name":
            return {"model": settings.model}
        if kind.weights == "gguf":
            if self.files.kind != "gguf":
                raise InputError(f"{system.type} reads .gguf files, and {self.files.name} is none")
            return {"path": str(self.files.path), **context}
        draft = {}
        if system.type == "vllm" and system.loading()["method"] == "eagle3":
            from slimtier.bench.checkpoint import dense_draft

            draft = {"draft": str(dense_draft(system.loading()["draft"], self.files.name))}
        return {"path": str(dense_path(self.files)), **context, **draft}


def in_turn(items: Sequence[T], turn: int) -> list[T]:
    """All of them, each turn beginning with another one."""
    first = turn % len(items)
    return [*items[first:], *items[:first]]


def dense_path(files: ModelFiles) -> Path:
    """A directory that transformers reads, with the numbers that our runtime reads."""
    from slimtier.bench.checkpoint import dense_checkpoint

    return dense_checkpoint(files) if files.kind == "gguf" else Path(files.path)


def first_line(error: BaseException) -> str:
    """The message in one line."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
