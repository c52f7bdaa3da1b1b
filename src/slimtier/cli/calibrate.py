"""`slimtier calibrate`: thresholds for the lossy tiers, with a bound on what they change."""

from __future__ import annotations

import json as json_module
from dataclasses import fields
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slimtier.cli import common

if TYPE_CHECKING:
    from slimtier.calibrate.plan import Plan
    from slimtier.calibrate.trial import Drafting
    from slimtier.loading import Loaded, RunOptions
    from slimtier.prompts import Prompt
    from slimtier.train.prompts import Conversation

FLAGS = ("epsilon", "delta")
RUN = ("runtime", "threads", "device")
COUNT = "num_speculative_tokens"


def calibrate(
    prompts: Annotated[Path, typer.Option(help="JSON Lines of what will be asked; a conversation's first turn is.")],
    out: Annotated[Path, typer.Option(help="The route with its gate; the answers are kept beside it.")],
    route: common.Route = None,
    model: common.Model = common.DEFAULT_MODEL,
    precision: common.Precision = "auto",
    drafter: common.Drafter = "auto",
    epsilon: Annotated[float, typer.Option(help="The mean divergence that is allowed, above 0 and below 1.")] = 0.02,
    delta: Annotated[float, typer.Option(help="The chance that it is exceeded all the same.")] = 0.05,
    set_: common.Set = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Choose the gate of the lossy tiers so that the mean divergence from MODEL is at most epsilon, and say how surely.

    Settings: prompts (how many), bound (betting, hoeffding-bentkus, binomial), loss (share, any), max_new_tokens,
    max_prompt_tokens, seed, timed, full, margins, accepts, num_speculative_tokens, runtime, threads, and the drafter's.
    A run that was stopped goes on from the answers beside --out.

    Example: slimtier calibrate --prompts prompts.jsonl --route q4 --precision fp32 --out route.json
    """
    from slimtier.loading import load
    from slimtier.models.resolve import resolve
    from slimtier.tiers import check_routes

    plan, options, settings = _read(common.read_pairs(set_), precision, drafter, {"epsilon": epsilon, "delta": delta})
    check_routes(route)
    conversations = common.prompts_to_answer(prompts, None).conversations
    plan.check_support(min(plan.prompts, len(conversations)))
    files = resolve(model)
    with common.patience(f"loading {model}"):
        loaded = load(files, options)

    from slimtier.calibrate.report import text_of
    from slimtier.calibrate.run import calibrate as run

    asked = [_messages(one, loaded) for one in conversations]
    with common.bar("calibrating", "answers") as progress:
        found = run(loaded, _drafting(loaded, options, drafter, settings), route, asked, plan, out, progress)
    typer.echo(json_module.dumps(dict(found.calibrated)) if json else text_of(found, out))


def _read(
    given: dict[str, Any], precision: str, drafter: str, flags: dict[str, Any]
) -> tuple[Plan, RunOptions, dict[str, Any]]:
    """The settings for the calibration, for loading, and for the drafter. Raises ConfigError for what cannot be."""
    from slimtier.calibrate.plan import Plan
    from slimtier.config import read_dataclass, refuse_unknown
    from slimtier.engine import check_count
    from slimtier.loading import RunOptions
    from slimtier.registry import DRAFTERS, check_settings

    planned = [field.name for field in fields(Plan) if field.name not in flags]
    drafting = {name for entry in DRAFTERS.values() for name in entry.settings}
    refuse_unknown(given, (*planned, *RUN, COUNT, *drafting), "setting")
    check_settings(drafter, "lossless", {name: given[name] for name in given if name in drafting})
    check_count(given.setdefault(COUNT, DRAFTERS[drafter].num_speculative_tokens))
    plan = read_dataclass(Plan, flags | {name: given[name] for name in given if name in planned}, "--set")
    options = RunOptions(precision=precision, **{name: given[name] for name in given if name in RUN})
    return plan, options, {name: given[name] for name in given if name in {*drafting, COUNT}}


def _messages(conversation: Conversation, loaded: Loaded) -> Prompt:
    """The first turn, as chat where the model has a template."""
    if not loaded.tokenizer.has_chat_template:
        return conversation.turns[0]
    system = [{"role": "system", "content": conversation.system}] if conversation.system else []
    return [*system, {"role": "user", "content": conversation.turns[0]}]


def _drafting(loaded: Loaded, options: RunOptions, drafter: str, settings: dict[str, Any]) -> Drafting:
    from slimtier.calibrate.trial import Drafting
    from slimtier.loading import load
    from slimtier.registry import DRAFTERS

    count = settings.pop(COUNT)
    load_other = cache(partial(load, options=options))
    return Drafting(drafter, lambda: DRAFTERS[drafter].build(loaded, settings, load_other), count, settings)
