"""Tiers of a small T5 that was trained: it writes the salient words of a text in their order, as a summary."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers

from slimtier.audit import audit
from slimtier.engine import Engine
from tests.models.hf_models import one_thread
from tests.small_tokenizer import small_tokenizer
from tests.test_engine import many

pytestmark = pytest.mark.slow
WORDS, SALIENT = range(3, 40), range(40, 60)
LENGTH, SUMMARY, EOS = 14, 6, 2


def texts(count: int, draws: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Texts [count, LENGTH] with SUMMARY salient words each, and these with an end of text [count, SUMMARY + 1]."""
    words = torch.randint(WORDS.start, WORDS.stop, (count, LENGTH), generator=draws)
    places = torch.rand(count, LENGTH, generator=draws).topk(SUMMARY).indices.sort().values
    chosen = torch.randint(SALIENT.start, SALIENT.stop, (count, SUMMARY), generator=draws)
    return words.scatter(1, places, chosen), torch.cat([chosen, torch.full((count, 1), EOS)], 1)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("t5")
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=64, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_decoder_layers=2, num_heads=4,
        dropout_rate=0.0, decoder_start_token_id=0, eos_token_id=EOS, pad_token_id=0,
    )  # fmt: skip
    config.num_decoder_layers = config.num_layers = 4  # transformers' generate has caches for as many as the encoder
    model = transformers.T5ForConditionalGeneration(config)
    optimiser = torch.optim.AdamW(model.parameters(), lr=5e-3)
    draws = torch.Generator().manual_seed(1)
    steps = 900
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 5e-3, total_steps=steps)
    for _ in range(steps):
        inputs, labels = texts(64, draws)
        model(input_ids=inputs, labels=labels).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        optimiser.zero_grad()
    model.eval().save_pretrained(path)
    small_tokenizer().save_pretrained(path)
    return path


def test_tiers_of_a_trained_t5(trained: Path) -> None:
    inputs, labels = texts(12, torch.Generator().manual_seed(2))
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(trained)
    with one_thread():
        out = model.generate(inputs, max_new_tokens=SUMMARY + 1, do_sample=False)[:, 1:]
        assert float((out == labels).float().mean()) > 0.8, "it has learned to summarise"
        prompts = inputs.tolist()
        for route in ("skip:0.25", "skip:0.5", "skip:0.25,skip:0.5"):
            engine = Engine.from_pretrained(str(trained), runtime="hf", tiers="exact", route=route, drafter="ngram")
            answers = many(engine.generate(prompts, max_new_tokens=SUMMARY + 1))
            assert [list(answer.token_ids) for answer in answers] == out.tolist()
            assert sum(answer.stats.tiers.decided["slim"] for answer in answers) > 0
        engine = Engine.from_pretrained(str(trained), runtime="hf", tiers="paper", route="skip:0.25", drafter="ngram")
        lossy = many(engine.generate(prompts, max_new_tokens=SUMMARY + 1))
        assert not any(answer.lossless for answer in lossy)
        assert {"slim", "target"} <= {who for answer in lossy for who in answer.deciders}
        for prompt, answer in zip(prompts, lossy, strict=True):
            written = torch.tensor([[0, *answer.token_ids]])
            logits = model(input_ids=torch.tensor([prompt]), decoder_input_ids=written).logits[0, :-1]
            differs = (logits.argmax(-1) != written[0, 1:]).tolist()
            assert list(audit(engine.target, prompt, answer.token_ids).differs) == differs
