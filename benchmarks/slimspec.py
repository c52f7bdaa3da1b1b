"""Drafts against each other and against plain decoding: acceptance, speed, and what the cost model says of it.

    python -m benchmarks.slimspec --eval DIR --draft slim=DRAFT --draft full=DRAFT --lengths 2 3 4 5

--eval: a directory of spec_bench.jsonl, gsm8k_test_400.jsonl and HumanEval.jsonl.gz. Every prompt is answered by all
arms in turn, each time another one begins; an arm is a precision of the target, and plain decoding, a draft at a number
of speculative tokens, or the default `auto`. Speeds are decoding only; ratios are paired by prompt, with a bootstrap
interval; a draft's best length is chosen on the first half of the prompts of each category and reported on the second.
Greedy answers must be the tokens of plain decoding; rows say whether they are.

--batch 64: the prompts are answered as one batch, --repeats times by each arm; speeds are those of the whole call.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.common import check_idle, parser, say, writer
from benchmarks.prompts import Prompt, evaluation_prompts, fitting, own_prompts, sample
from slimtier.bench.asked import encode
from slimtier.bench.contestants import in_turn
from slimtier.bench.statistics import bootstrap_ratio, loop_share, markdown_table, ratio_text
from slimtier.bench.worker import Worker

NAME = "slimspec"
MOST_TOKENS, QUICK_TOKENS, MOST_PROMPT_TOKENS = 128, 24, 1500
SPEC_BENCH = ("mt_bench", "translation", "summarization", "qa", "math_reasoning", "rag")
Rows = list[dict[str, Any]]
Prompts = Sequence[tuple[Prompt, list[int]]]
Workers = dict[str, Worker]  # by precision
KEPT = ("tokens_per_s", "end_to_end_tokens_per_s", "time_to_first_token_s", "time_split_s")


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to answer. `draft` None: plain, or auto."""

    name: str
    precision: str
    options: dict[str, Any] = field(default_factory=dict)
    draft: str | None = None
    length: int = 0


def main(argv: Sequence[str] | None = None) -> None:
    arguments = _options(argv)
    from slimtier.models.resolve import resolve
    from slimtier.models.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(resolve(arguments.model))
    categories = arguments.categories or ()
    chosen = sample(evaluation_prompts(arguments.eval), arguments.per_category, arguments.seed, categories)
    prompts = fitting(chosen, tokenizer, MOST_PROMPT_TOKENS)
    prompts = prompts[:3] if arguments.quick else prompts
    arms = make_arms(arguments)
    name = NAME + (f"_t{arguments.temperature:g}" if arguments.temperature else "")
    name += f"_batch{arguments.batch}" if arguments.batch else ""
    with ExitStack() as stack:
        workers = {precision: stack.enter_context(Worker("native")) for precision in arguments.precisions}
        for precision, worker in workers.items():
            load = {"model": arguments.model, "threads": arguments.threads}
            worker.ask("load", precision=precision, runtime="native", **load)
        out = stack.enter_context(writer(arguments, name))
        request = _request(tokenizer.eos_token_ids, arguments)
        warm_up = encode(tokenizer, own_prompts()[0].text)
        for arm in arms:
            _ask(workers, "generate", arm, {**request, "max_tokens": QUICK_TOKENS}, token_ids=warm_up)
        idle = [check_idle(worker) for worker in workers.values()]
        out.write("setting", idle_cores=idle, **_setting(arguments))
        rows = []
        answers = _batches if arguments.batch else _answers
        for row in answers(workers, arms, prompts, request, arguments):
            out.write("answer", **row)
            rows.append(row)
    if arguments.batch:
        print(arms_table(arms, rows))
        return
    print(arms_table(arms, rows) + "\n\n" + categories_table(arms, rows) + "\n\n" + best_table(arms, rows))


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    options = parser(__doc__ or "", NAME)
    options.add_argument("--eval", type=Path, required=True, metavar="DIR")
    options.add_argument("--draft", action="append", default=[], metavar="NAME=DIR", help="a draft; may be repeated")
    options.add_argument("--lengths", type=int, nargs="+", default=[5], help="num_speculative_tokens of each draft")
    options.add_argument("--precisions", nargs="+", default=["q8"])
    options.add_argument("--no-auto", action="store_true", help="leave the default drafter out")
    options.add_argument("--per-category", type=int, default=3)
    options.add_argument("--categories", nargs="+", metavar="NAME")
    options.add_argument("--temperature", type=float, default=0.0)
    options.add_argument("--batch", type=int, default=0, metavar="ROWS", help="rows at a time (default: one)")
    options.add_argument("--repeats", type=int, default=3, help="of a batch")
    options.add_argument("--model", default="smollm2-135m")
    return options.parse_args(argv)


def make_arms(arguments: argparse.Namespace) -> list[Arm]:
    arms = []
    for precision in arguments.precisions:
        arms.append(Arm(f"{precision} plain", precision, {"drafter": "none"}))
        if not arguments.no_auto:
            arms.append(Arm(f"{precision} auto", precision, {"drafter": "auto"}))
        for given in arguments.draft:
            name, equals, place = given.partition("=")
            if not equals:
                raise SystemExit(f"--draft {given} is not NAME=DIR")
            for length in arguments.lengths:
                options = {"drafter": "eagle3", "settings": {"draft": place}, "num_speculative_tokens": length}
                arms.append(Arm(f"{precision} {name} K={length}", precision, options, name, length))
    return arms


def _setting(arguments: argparse.Namespace) -> dict[str, Any]:
    """What the run was told, and what each draft says of itself."""
    drafts = {}
    for given in arguments.draft:
        name, _, place = given.partition("=")
        record = Path(place) / "provenance.json"
        drafts[name] = record.read_text(encoding="utf-8") if record.is_file() else None
    return {"model": arguments.model, "temperature": arguments.temperature, "drafts": drafts}


def _request(eos: Sequence[int], arguments: argparse.Namespace) -> dict[str, Any]:
    """What every answer of the run is asked with."""
    sampling = {"temperature": arguments.temperature, "seed": arguments.seed} if arguments.temperature else {}
    most = QUICK_TOKENS if arguments.quick else MOST_TOKENS
    return {"max_tokens": most, "eos_token_ids": list(eos), "sampling": sampling}


def _answers(
    workers: Workers, arms: Sequence[Arm], prompts: Prompts, request: dict[str, Any], arguments: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """A row for each prompt and arm."""
    for number, (prompt, ids) in enumerate(prompts):
        replies = {arm.name: _ask(workers, "generate", arm, request, token_ids=ids) for arm in in_turn(arms, number)}
        plain = {arm.precision: replies[arm.name]["token_ids"] for arm in arms if arm.name.endswith(" plain")}
        say(f"prompt {number + 1} of {len(prompts)} ({prompt.category})")
        for arm in arms:
            reply = replies[arm.name]
            mine, stats = reply["token_ids"], reply["stats"]
            yield {
                "arm": arm.name,
                "prompt": prompt.name,
                "category": prompt.category,
                "half": number // max(1, len({each.category for each, _ in prompts})) % 2,
                "num_prompt_tokens": len(ids),
                "num_output_tokens": len(mine),
                "loop_share": loop_share(mine),
                "same_as_plain": mine == plain[arm.precision],
                "mean_acceptance_length": stats["mean_acceptance_length"],
                "num_drafts": stats["num_drafts"],
                "accepted_per_position": stats["num_accepted_tokens_per_pos"],
                **{key: reply[key] for key in KEPT},
            }


def _batches(
    workers: Workers, arms: Sequence[Arm], prompts: Prompts, request: dict[str, Any], arguments: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """A row for each batch, arm and repeat."""
    asked = [ids for _, ids in prompts]
    batches = [asked[start : start + arguments.batch] for start in range(0, len(asked), arguments.batch)]
    plain: dict[tuple[int, str], Any] = {}
    for turn in range(arguments.repeats):
        for number, batch in enumerate(batches):
            for arm in in_turn(arms, turn):
                reply = _ask(workers, "generate_batch", arm, request, prompts=batch)
                mine = reply.pop("token_ids")
                first = plain.setdefault((number, arm.precision), mine)
                yield {
                    "arm": arm.name,
                    "category": "all",
                    "half": 0,
                    "rows": len(batch),
                    "num_output_tokens": sum(map(len, mine)),
                    "same_as_plain": mine == first,
                    **reply,
                }
            say(f"repeat {turn + 1} of {arguments.repeats}, batch {number + 1} of {len(batches)}")


def _ask(workers: Workers, operation: str, arm: Arm, request: dict[str, Any], **asked: Any) -> dict[str, Any]:
    reply = workers[arm.precision].ask(operation, **asked, **request, **arm.options)
    assert isinstance(reply, dict)
    return reply


def of_arm(rows: Rows, arm: str, key: str, categories: Sequence[str] = (), half: int | None = None) -> list[Any]:
    """A column, in the order of the prompts."""
    return [
        row[key]
        for row in rows
        if row["arm"] == arm
        and (not categories or row["category"] in categories)
        and (half is None or row["half"] == half)
    ]


def acceptance_length(rows: Rows, arm: str, categories: Sequence[str] = SPEC_BENCH) -> float | None:
    """The mean over categories of 1 + accepted / drafts."""
    means = []
    mixed = not any(row["category"] in categories for row in rows)  # batches are of all categories at once
    for category in ("all",) if mixed else categories:
        drafts = sum(of_arm(rows, arm, "num_drafts", (category,)))
        accepted = sum(map(sum, of_arm(rows, arm, "accepted_per_position", (category,))))
        if drafts:
            means.append(1 + accepted / drafts)
    return sum(means) / len(means) if means else None


def ratio(rows: Rows, arm: str, base: str, **which: Any) -> tuple[float, float, float] | None:
    return bootstrap_ratio(of_arm(rows, arm, "tokens_per_s", **which), of_arm(rows, base, "tokens_per_s", **which))


def arms_table(arms: Sequence[Arm], rows: Rows) -> str:
    cells = []
    for arm in arms:
        same = of_arm(rows, arm.name, "same_as_plain")
        speeds = sorted(speed for speed in of_arm(rows, arm.name, "tokens_per_s") if speed)
        middle = speeds[len(speeds) // 2] if speeds else None
        against = ratio_text(ratio(rows, arm.name, f"{arm.precision} plain"))
        cells.append([arm.name, middle, against, acceptance_length(rows, arm.name), f"{sum(same)}/{len(same)}"])
    return markdown_table(["arm", "tokens/s", "÷ plain", "mean acceptance length", "tokens as plain"], cells)


def categories_table(arms: Sequence[Arm], rows: Rows) -> str:
    """Mean acceptance length by category, and speed against plain decoding."""
    known = list(dict.fromkeys(row["category"] for row in rows))
    cells: list[list[Any]] = []
    for arm in arms:
        if arm.name.endswith(" plain"):
            continue
        lengths = [acceptance_length(rows, arm.name, (category,)) for category in known]
        gains = [ratio(rows, arm.name, f"{arm.precision} plain", categories=(category,)) for category in known]
        cells.append([arm.name, *(_pair(*each) for each in zip(lengths, gains, strict=True))])
    return markdown_table(["acceptance length; ÷ plain", *known], cells)


def _pair(length: float | None, gain: tuple[float, float, float] | None) -> str:
    return f"{length or 1.0:.2f}; {gain[0]:.2f}×" if gain else ""


def best_table(arms: Sequence[Arm], rows: Rows) -> str:
    """Each draft at its best length (chosen on one half of the prompts, reported on the other) against the others."""
    if not any(row["half"] for row in rows):
        return "No best length: that takes two prompts of a category, asked one by one (--per-category 2)."
    chosen: dict[tuple[str, str], Arm] = {}
    for arm in arms:
        if arm.draft is None:
            continue
        gain = ratio(rows, arm.name, f"{arm.precision} plain", half=0)
        best = chosen.get((arm.precision, arm.draft))
        held = ratio(rows, best.name, f"{arm.precision} plain", half=0) if best else None
        if best is None or (gain and held and gain[0] > held[0]):
            chosen[arm.precision, arm.draft] = arm
    cells = [
        [arm.name, *(ratio_text(ratio(rows, arm.name, base, half=1)) for base in _bases(chosen, arm))]
        for arm in chosen.values()
    ]
    drafts = list(dict.fromkeys(name for _, name in chosen))
    return markdown_table(["at its best length, held out", "÷ plain", *(f"÷ {name}" for name in drafts)], cells)


def _bases(chosen: dict[tuple[str, str], Arm], arm: Arm) -> list[str]:
    others = [each.name for (precision, _), each in chosen.items() if precision == arm.precision]
    return [f"{arm.precision} plain", *others]


if __name__ == "__main__":
    main()
