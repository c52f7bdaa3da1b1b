"""The native runtime: against transformers, against its torch twin, and bit for bit against itself."""

from __future__ import annotations

import pytest
import torch
import transformers

from slimtier.errors import ConfigError, InputError
from slimtier.models import native
from slimtier.models.native import NativeTarget, load_native, open_weights
from slimtier.models.native_torch import TorchTarget
from slimtier.models.resolve import resolve
from slimtier.types import Route
from tests.models.native_models import FAMILIES, SIZES, save

TOKENS = torch.randint(3, 96, (40,), generator=torch.Generator().manual_seed(7)).tolist()


@pytest.fixture(scope="module", params=FAMILIES)
def family(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp(request.param)
    model = save(request.param, directory)
    return model, resolve(str(directory))


def whole(target, tokens=TOKENS, **options):
    cache = target.begin(1, 64)
    hidden, features = target.forward(tokens, cache, [len(tokens)], **options)
    return target.head(hidden), features


@pytest.mark.parametrize("device", ["kernels", "torch"])
def test_logits_and_features_are_those_of_transformers(family, device):
    model, files = family
    if device == "kernels":
        target = load_native(files, precision="fp32", threads=2)
    else:
        target = TorchTarget(open_weights(files), name="tiny", precision="fp32", device="cpu")
    with torch.no_grad():
        expected = model(torch.tensor([TOKENS]), output_hidden_states=True)
    logits, features = whole(target, capture=(0, 2))
    torch.testing.assert_close(logits, expected.logits[0], rtol=1e-4, atol=2e-4)
    for layer, feature in zip((0, 2), features, strict=True):
        torch.testing.assert_close(feature, expected.hidden_states[layer + 1][0], rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "q8", "q4"])
def test_same_bits_whatever_the_chunks_the_batch_and_the_threads(family, precision):
    _, files = family
    logits, _ = whole(load_native(files, precision=precision, threads=1))
    target = load_native(files, precision=precision, threads=3)
    for chunk in (1, 2, 7, 17):
        cache = target.begin(1, 64)
        parts = [TOKENS[i : i + chunk] for i in range(0, len(TOKENS), chunk)]
        hidden = torch.cat([target.forward(part, cache, [len(part)])[0] for part in parts])
        assert torch.equal(target.head(hidden), logits)
        assert target.head(hidden, "argmax") == logits.argmax(-1).tolist()
        ids, best = target.head(hidden, "best two")
        assert ids == logits.argmax(-1).tolist()
        assert torch.equal(best, logits.topk(2).values.T)
    # ragged rows: row 1 takes the first 30 tokens in two uneven parts while others come and go
    cache = target.begin(3, 64)
    first, _ = target.forward(TOKENS[:5] + TOKENS[:11] + TOKENS[:1], cache, [5, 11, 1])
    second, _ = target.forward(TOKENS[11:30] + TOKENS[1:4], cache, [0, 19, 3])
    assert cache.lengths == [5, 30, 4]
    assert torch.equal(target.head(torch.cat((first[5:16], second[:19]))), logits[:30])
    assert torch.equal(target.head(torch.cat((first[16:], second[19:]))), logits[:4])


def test_same_bits_over_several_key_blocks(family):
    """Long rows beside short ones: attention is cut for the threads by queries in a batch, by keys in a row alone."""
    _, files = family
    tokens = (TOKENS * 5)[:196]
    target = load_native(files, precision="q8", threads=3)
    expected, _ = target.forward(tokens, target.begin(1, 200), [196])
    alone = load_native(files, precision="q8", threads=1)
    cache = alone.begin(1, 200)
    parts = [alone.forward(tokens[i : i + 9], cache, [len(tokens[i : i + 9])])[0] for i in range(0, 196, 9)]
    assert torch.equal(torch.cat(parts), expected)
    cache = target.begin(4, 200)
    target.forward(tokens[:190] + tokens[:63] + tokens[:130], cache, [190, 63, 0, 130])
    second, _ = target.forward(tokens[190:191] + tokens[63:69] + tokens[:1] + tokens[130:132], cache, [1, 6, 1, 2])
    assert torch.equal(second, torch.cat((expected[190:191], expected[63:69], expected[:1], expected[130:132])))


def test_crop_keep_and_fork_leave_the_same_bits(family):
    _, files = family
    target = load_native(files, precision="q8", threads=2)
    logits, _ = whole(target)
    cache = target.begin(2, 64)
    target.forward(TOKENS[:30] + TOKENS[:3], cache, [30, 3])
    target.forward([5, 6, 7, 8], cache, [4, 0])  # rejected
    cache.crop([30, 2])
    cache.keep([1, 0, 0])
    assert cache.lengths == [2, 30, 30]
    hidden, _ = target.forward(TOKENS[2:6] + TOKENS[30:35] + TOKENS[30:32], cache, [4, 5, 2])
    out = target.head(hidden)
    assert torch.equal(out[:4], logits[2:6])
    assert torch.equal(out[4:9], logits[30:35])
    assert torch.equal(out[9:], logits[30:32])


def test_a_route_skips_what_it_says(family):
    _, files = family
    route = Route(("full", "skip", "full", "full"), ("full", "full", "skip", "full"))
    fast = load_native(files, precision="fp32", threads=2)
    plain = TorchTarget(open_weights(files), name="tiny", precision="fp32", device="cpu")
    logits, features = whole(fast, route=route, capture=(2,))
    expected, expected_features = whole(plain, route=route, capture=(2,))
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=2e-4)
    torch.testing.assert_close(features[0], expected_features[0], rtol=1e-4, atol=2e-4)
    assert not torch.allclose(logits, whole(fast)[0], atol=1e-2)
    cache = fast.begin(1, 64)
    fast.forward(TOKENS[:4], cache, [4], route=route)
    with pytest.raises(InputError, match="another route"):
        fast.forward(TOKENS[4:], cache, [36])
    for target in (fast, plain):
        for wrong in (Route.full(3), Route.skipping(5, [1])):
            with pytest.raises(InputError, match="layers and the model has 4; search it anew"):
                target.forward(TOKENS, target.begin(1, 64), [40], route=wrong)


def test_the_decoders_of_few_routes_are_kept(family, monkeypatch):
    monkeypatch.setattr(native, "_MOST_ROUTES", 2)
    target = load_native(family[1], precision="fp32", threads=1)
    routes = [Route.skipping(4, [layer]) for layer in range(4)]
    logits = [whole(target, route=route)[0] for route in routes]
    assert list(target._slim_decoders) == routes[2:]
    assert torch.equal(whole(target, route=routes[0])[0], logits[0])


def test_topk_is_the_head_of_the_logits(family):
    _, files = family
    target = load_native(files, precision="fp32", threads=2)
    cache = target.begin(1, 64)
    hidden, _ = target.forward(TOKENS, cache, [40])
    logits = target.head(hidden)
    values, ids, logsumexp = target.topk(hidden, 7)
    expected = logits.sort(dim=-1, descending=True, stable=True)
    assert torch.equal(values, expected.values[:, :7])
    assert torch.equal(ids, expected.indices[:, :7])
    torch.testing.assert_close(logsumexp, logits.logsumexp(-1), rtol=1e-6, atol=1e-5)


def test_ragged_rows_on_the_torch_path(family):
    _, files = family
    target = TorchTarget(open_weights(files), name="tiny", precision="fp32", device="cpu")
    logits, _ = whole(target)
    cache = target.begin(3, 64)
    target.forward(TOKENS[:5] + TOKENS[:11] + TOKENS[:1], cache, [5, 11, 1])
    hidden, _ = target.forward(TOKENS[11:30] + TOKENS[1:4], cache, [0, 19, 3])
    torch.testing.assert_close(target.head(hidden), torch.cat((logits[11:30], logits[1:4])), rtol=1e-4, atol=1e-4)
    cache.crop([2, 20, 4])
    cache.keep([1, 0])
    hidden, _ = target.forward(TOKENS[20:22] + TOKENS[2:9], cache, [2, 7])
    torch.testing.assert_close(target.head(hidden), torch.cat((logits[20:22], logits[2:9])), rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    directory = tmp_path_factory.mktemp("llama")
    save("llama", directory)
    return resolve(str(directory))


def test_bad_requests_say_why(llama):
    with pytest.raises(ConfigError, match="unknown precision 'int3'"):
        NativeTarget(open_weights(llama), name="tiny", precision="int3")
    target = load_native(llama, threads=1)
    cache = target.begin(1, 8)
    with pytest.raises(InputError, match="longer than its cache"):
        target.forward(TOKENS[:9], cache, [9])
    assert cache.lengths == [0]
    with pytest.raises(InputError, match="outside the vocabulary"):
        target.forward([96], cache, [1])
    with pytest.raises(InputError, match="cannot be cropped to 3"):
        cache.crop([3])


@pytest.mark.parametrize("equal", [(), (3, 4), (255, 256), (5, 690)])
def test_the_best_two_of_a_head_in_several_chunks(tmp_path, equal):
    """The second best beside the best one, or in another chunk of the head's rows; or as good."""
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**SIZES, "vocab_size": 700}))
    with torch.no_grad():
        model.lm_head.weight.normal_()
        if equal:
            model.lm_head.weight[list(equal)] = 100.0
    model.save_pretrained(tmp_path)
    target, hidden = load_native(resolve(str(tmp_path)), precision="fp32", threads=3), torch.rand(300, 64)
    logits = target.head(hidden)
    ids, best = target.head(hidden, "best two")
    assert ids == logits.argmax(-1).tolist()
    assert torch.equal(best, logits.topk(2).values.T)
    where = logits.topk(2).indices
    if equal:
        assert set(ids) == {min(equal)}
        assert torch.equal(best[0], best[1])
    else:
        together = (where // 256).diff() == 0
        assert 50 < int(together.sum()) < 250, "both are met"
    assert target.head(hidden[:0], "best two")[1].shape == (2, 0)


def test_no_tokens_is_no_work(llama):
    target = load_native(llama, threads=2)
    cache = target.begin(2, 8)
    hidden, features = target.forward([], cache, [0, 0], capture=(1,))
    assert hidden.shape == (0, 64)
    assert features[0].shape == (0, 64)
    assert target.head(hidden).shape == (0, 96)
    assert target.head(hidden, "argmax") == []
