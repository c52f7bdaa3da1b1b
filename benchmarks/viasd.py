"""A slim verifier between drafter and target: lossless and lossy tiers beside what they must beat.

    python -m benchmarks.viasd --eval DIR --route ROUTE.json

--eval: a directory of spec_bench.jsonl, gsm8k_test_400.jsonl and HumanEval.jsonl.gz. --route: a file of `slimtier
calibrate` for the target's precision; without it there is no calibrated arm. Every prompt is answered by all arms in
turn, each time another one begins, at temperature 0. Speeds are decoding only; ratios are paired by prompt, with a
bootstrap interval. The target then audits each answer, teacher-forced: divergence is the share of its tokens that are
not the target's argmax; and says how probable it finds the answer, in nats a token.

"q4 alone" is the slim route as the target, with the same drafter: fast, and as lossy as its divergence says. With
--peer-python transformers answers too: plain, eager, float32 of the same numbers.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.common import check_idle, parser, say, writer
from benchmarks.prompts import evaluation_prompts, fitting, own_prompts, sample
from benchmarks.slimspec import MOST_PROMPT_TOKENS, QUICK_TOKENS, Arm, Prompts, Rows, Workers, of_arm
from slimtier.bench.asked import encode
from slimtier.bench.contestants import dense_path, in_turn
from slimtier.bench.statistics import bootstrap_ratio, markdown_table, ratio_text
from slimtier.bench.worker import Worker
from slimtier.config import refuse_unknown

NAME = "viasd"
MOST_TOKENS = 128
PRESETS = ("conservative", "default", "aggressive")
STATS = ("num_target_calls", "num_slim_calls", "rejection_rate", "mean_acceptance_length", "num_output_tokens")
TIMES = ("tokens_per_s", "time_to_first_token_s")
TRANSFORMERS = "transformers"
BASES = ("two tiers", "plain", "q8 alone", TRANSFORMERS)


def main(argv: Sequence[str] | None = None) -> None:
    arguments = _options(argv)
    from slimtier.models.resolve import resolve
    from slimtier.models.tokenizer import load_tokenizer

    files = resolve(arguments.model)
    tokenizer = load_tokenizer(files)
    chosen = sample(evaluation_prompts(arguments.eval), arguments.per_category, arguments.seed, ())
    prompts = fitting(chosen, tokenizer, MOST_PROMPT_TOKENS)
    prompts = prompts[:3] if arguments.quick else prompts
    arms = make_arms(arguments)
    with ExitStack() as stack:
        precisions = dict.fromkeys(arm.precision for arm in arms)
        workers = {precision: stack.enter_context(Worker("native")) for precision in precisions}
        for precision, worker in workers.items():
            given = {"model": arguments.model, "threads": arguments.threads}
            worker.ask("load", precision=precision, runtime="native", **given)
        if arguments.peer_python:
            workers[TRANSFORMERS] = stack.enter_context(Worker("hf", arguments.peer_python))
            workers[TRANSFORMERS].ask("load", path=str(dense_path(files)), threads=arguments.threads)
            arms.append(Arm(TRANSFORMERS, TRANSFORMERS))
        out = stack.enter_context(writer(arguments, NAME))
        most = QUICK_TOKENS if arguments.quick else MOST_TOKENS
        request = {"max_tokens": most, "eos_token_ids": list(tokenizer.eos_token_ids), "sampling": {}}
        warm_up = encode(tokenizer, own_prompts()[0].text)
        for arm in arms:
            ask(workers, arm, request, warm_up)
        idle = [check_idle(worker) for worker in workers.values()]
        route = None if arguments.route is None else Path(arguments.route).read_text(encoding="utf-8")
        out.write("setting", idle_cores=idle, model=arguments.model, precision=arguments.precision, route=route)
        rows = []
        for row in answers(workers, arms, prompts, request, arguments.precision):
            out.write("answer", **row)
            rows.append(row)
    print(arms_table(arms, rows))


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    options = parser(__doc__ or "", NAME)
    options.add_argument("--eval", type=Path, required=True, metavar="DIR")
    options.add_argument("--route", metavar="FILE", help="a calibrated route")
    options.add_argument("--routes", nargs="+", default=["q4", "q8"], help="of the tiers, each with its route alone")
    options.add_argument("--precision", default="fp32", help="of the target")
    options.add_argument("--flush", type=int, default=0, help="tokens between two looks of the target (0: as usual)")
    options.add_argument("--per-category", type=int, default=2)
    options.add_argument("--arms", nargs="+", default=[], help="only these, and plain")
    options.add_argument("--model", default="smollm2-135m")
    options.add_argument("--peer-python", metavar="PATH", help="the interpreter that has transformers")
    return options.parse_args(argv)


def make_arms(arguments: argparse.Namespace) -> list[Arm]:
    """Baselines first; ratios are to `two tiers`, the shipped draft and the target."""
    precision = arguments.precision
    flush = {"settings": {"flush": arguments.flush}} if arguments.flush else {}
    drafted = {"drafter": "eagle3", "num_speculative_tokens": 5}
    arms = [
        Arm("plain", precision, {"drafter": "none"}),
        Arm("two tiers", precision, {"drafter": "auto"}),
        Arm("two tiers, draft alone, K=5", precision, drafted),
    ]
    for route in arguments.routes:
        tiers = {"drafter": "auto", "route": route}
        arms.append(Arm(f"exact, {route}", precision, {**tiers, "tiers": "exact", **flush}))
        if route in ("q4", "q8"):
            arms.append(Arm(f"{route} alone", route, {"drafter": "auto"}))
    first = {"drafter": "auto", "route": arguments.routes[0]}
    for preset in PRESETS:
        arms.append(Arm(f"paper, {preset}", precision, {**first, "tiers": "paper", "settings": {"gate": preset}}))
    arms.append(Arm("paper, draft alone, K=5", precision, {**first, **drafted, "tiers": "paper"}))
    if arguments.route is not None:
        arms.append(Arm("calibrated", precision, {"drafter": "auto", "tiers": "calibrated", "route": arguments.route}))
    if arguments.arms:
        refuse_unknown(arguments.arms, [arm.name for arm in arms], "arm")
        return [arm for arm in arms if arm.name in ("plain", *arguments.arms)]
    return arms


def answers(
    workers: Workers, arms: Sequence[Arm], prompts: Prompts, request: dict[str, Any], precision: str
) -> Iterator[dict[str, Any]]:
    """A row for each prompt and arm."""
    target = workers[precision]
    for number, (prompt, ids) in enumerate(prompts):
        replies = {arm.name: ask(workers, arm, request, ids) for arm in in_turn(arms, number)}
        say(f"prompt {number + 1} of {len(prompts)} ({prompt.category})")
        for arm in arms:
            reply = replies[arm.name]
            mine, stats = reply["token_ids"], reply["stats"]
            deciders = reply.get("deciders", ["target"] * len(mine))
            likelihood = target.ask("log_likelihood", token_ids=ids, answer=mine)["log_likelihood"]
            yield {
                "arm": arm.name,
                "prompt": prompt.name,
                "category": prompt.category,
                "same_as_plain": mine == replies["plain"]["token_ids"],
                "divergence": target.ask("audit", token_ids=ids, answer=mine)["divergence"],
                "nats_per_token": likelihood / len(mine),
                "decided": {who: deciders.count(who) for who in ("drafter", "slim", "target")},
                **{key: stats.get(key) for key in STATS},
                **{key: reply[key] for key in TIMES},
            }


def ask(workers: Workers, arm: Arm, request: dict[str, Any], ids: list[int]) -> dict[str, Any]:
    reply = workers[arm.precision].ask("generate", token_ids=ids, **request, **arm.options)
    assert isinstance(reply, dict)
    return reply


def arms_table(arms: Sequence[Arm], rows: Rows) -> str:
    """A line an arm: speed against the baselines, and what became of the output."""
    bases = [base for base in BASES if any(arm.name == base for arm in arms)]
    header = ["arm", *(f"÷ {base}" for base in bases), "tokens as plain", "divergence", "nats a token",
              "target calls a token", "decided by drafter, slim, target", "rejection rate"]  # fmt: skip
    return markdown_table(header, [_line(arm.name, bases, rows) for arm in arms])


def _line(arm: str, bases: Sequence[str], rows: Rows) -> list[Any]:
    same, total = of_arm(rows, arm, "same_as_plain"), sum(of_arm(rows, arm, "num_output_tokens"))
    decided = of_arm(rows, arm, "decided")
    shares = [sum(one[who] for one in decided) / total for who in ("drafter", "slim", "target")]
    rejections = [value for value in of_arm(rows, arm, "rejection_rate") if value is not None]
    return [
        arm,
        *(ratio_text(ratio_of(rows, arm, base)) for base in bases),
        f"{sum(same)}/{len(same)}",
        f"{a_token(rows, arm, 'divergence'):.2%}",
        f"{a_token(rows, arm, 'nats_per_token'):.3f}",
        f"{sum(of_arm(rows, arm, 'num_target_calls')) / total:.3f}",
        ", ".join(f"{share:.0%}" for share in shares),
        f"{sum(rejections) / len(rejections):.3f}" if rejections else "",
    ]


def a_token(rows: Rows, arm: str, key: str) -> float:
    """The mean of an arm's values over all its output tokens."""
    pairs = list(zip(of_arm(rows, arm, key), of_arm(rows, arm, "num_output_tokens"), strict=True))
    return sum(value * count for value, count in pairs) / sum(count for _, count in pairs)


def ratio_of(rows: Rows, arm: str, base: str) -> tuple[float, float, float] | None:
    return bootstrap_ratio(of_arm(rows, arm, "tokens_per_s"), of_arm(rows, base, "tokens_per_s"))


if __name__ == "__main__":
    main()
