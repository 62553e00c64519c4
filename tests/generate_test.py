"""Generation: the cache against whole passes, and the distribution that tokens are drawn from."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxtrain import generate as module
from jaxtrain.errors import RefusedError
from jaxtrain.generate import generate, next_logits, read_prompts, restrict
from jaxtrain.models.mlp import MLP
from jaxtrain.models.transformer import Transformer
from jaxtrain.tasks.language_modeling import LanguageModeling

VOCAB, MAX_SEQ, NEW = 32, 80, 64
LLAMA = {"kv_heads": 2, "tie_embeddings": False}
GPT2 = {"norm": "layernorm", "position": "learned", "activation": "gelu"}
PROMPTS = [[3], [5, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], [31, 0, 7]]
# Compiling is most of the time of these tests.
jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


@functools.cache
def made(**options):
    """A model, and parameters that give it decided opinions."""
    model = Transformer(VOCAB, 2, 16, heads=4, max_seq=MAX_SEQ, **options)
    shapes = jax.eval_shape(model.init, jax.random.key(0), np.zeros((1, 4), np.int32))["params"]
    rng = np.random.default_rng(0)
    return model, jax.tree.map(lambda x: (rng.normal(size=x.shape) * 16**-0.5).astype(np.float32), shapes)


@pytest.fixture(scope="module")
def llama():
    return made(**LLAMA)


@functools.cache
def whole_pass(model):
    return jit(lambda params, tokens: model.apply({"params": params}, tokens))


def logits_by_cache(model, params, tokens, lengths):
    """Logits [batch, NEW, vocab] behind prompts of `lengths`, one token at a time."""

    def read_one(cache, count):
        positions = lengths + count - 1
        logits, cache = next_logits(model, params, cache, tokens[np.arange(len(tokens)), positions], positions)
        return cache, logits

    prompts = jnp.where(jnp.arange(MAX_SEQ) < lengths[:, None], tokens, 0)  # nothing of what follows
    _, logits = jax.lax.scan(read_one, read_prompts(model, params, prompts), jnp.arange(NEW))
    return jnp.swapaxes(logits, 0, 1)


@pytest.mark.parametrize("scan_layers", [True, False], ids=["scanned", "unscanned"])
@pytest.mark.parametrize("options", [LLAMA, GPT2], ids=["rotary-grouped", "learned"])
def test_logits_by_the_cache_are_those_of_whole_passes(options, scan_layers):
    model, params = made(**options, scan_layers=scan_layers)
    lengths = np.array([len(prompt) for prompt in PROMPTS], np.int32)
    tokens = np.random.default_rng(1).integers(VOCAB, size=(3, MAX_SEQ)).astype(np.int32)
    by_cache = jit(functools.partial(logits_by_cache, model))(params, tokens, lengths)
    whole = whole_pass(model)(params, tokens)
    for row, length in enumerate(lengths):
        expected = whole[row, length - 1 : length - 1 + NEW]
        np.testing.assert_allclose(by_cache[row], expected, atol=1e-5 * np.abs(expected).max())
        assert np.abs(by_cache[row] - whole[row, length : length + NEW]).max() > 0.1  # one position further: another


def test_greedy_text_takes_the_likeliest_token_of_a_whole_pass_each_time(llama):
    model, params = llama
    texts = generate(model, params, PROMPTS, max_new_tokens=NEW, temperature=0)
    padded = np.zeros((3, MAX_SEQ), np.int32)
    for row, prompt, text in zip(padded, PROMPTS, texts, strict=True):
        row[: len(prompt) + NEW] = [*prompt, *text]
    likeliest = np.argmax(whole_pass(model)(params, padded), -1)
    for row, prompt, text in zip(likeliest, PROMPTS, texts, strict=True):
        assert text == row[len(prompt) - 1 :][:NEW].tolist()
    assert len({tuple(text) for text in texts}) == 3


def test_a_text_depends_on_its_own_prompt_and_on_no_other(llama):
    model, params = llama
    texts = generate(model, params, PROMPTS, max_new_tokens=9, temperature=0)
    others = generate(model, params, [[1, 2], PROMPTS[1], [8] * 20], max_new_tokens=9, temperature=0)
    assert texts[1] == others[1]
    assert texts[0] != others[0]
    changed = generate(model, params, [PROMPTS[0], [6, *PROMPTS[1][1:]], PROMPTS[2]], max_new_tokens=9, temperature=0)
    assert texts[1] != changed[1]  # the first token of the prompt is seen


def test_the_same_key_gives_the_same_text_and_another_key_another(llama):
    first, again, other = (generate(*llama, PROMPTS, max_new_tokens=20, key=jax.random.key(seed)) for seed in (1, 1, 2))
    assert first == again
    assert all(one != another for one, another in zip(first, other, strict=True))


def test_each_token_is_drawn_anew(llama):
    (text,) = generate(*llama, [[3]], max_new_tokens=40, temperature=1e6)  # all tokens are as likely
    assert len(set(text)) > 15


def test_more_tokens_begin_with_the_fewer(llama):
    fewer, more = (generate(*llama, PROMPTS, max_new_tokens=n, key=jax.random.key(3)) for n in (5, 30))
    assert [len(text) for text in more] == [30] * 3
    assert fewer == [text[:5] for text in more]


def test_a_stop_token_ends_its_own_text_and_is_not_part_of_it(llama):
    texts = generate(*llama, PROMPTS, max_new_tokens=30, key=jax.random.key(3))
    stop = texts[1][6]
    stopped = generate(*llama, PROMPTS, max_new_tokens=30, key=jax.random.key(3), stop_tokens=[stop, texts[0][0]])
    assert stopped[0] == []
    assert stopped[1] == texts[1][: min(texts[1].index(t) for t in (stop, texts[0][0]) if t in texts[1])]
    assert stop not in stopped[2]


def test_nothing_is_computed_once_all_texts_have_stopped(llama):
    model, params = llama
    tokens = np.zeros((2, MAX_SEQ), np.int32)
    tokens[:, 0] = 3
    choice = (np.float32(0), np.int32(0), np.float32(1))
    arguments = (model, params, tokens, np.array([1, 1], np.int32), np.int32(40), choice)
    assert int(module._continue(*arguments, np.ones(VOCAB, bool), jax.random.key(0))[1]) == 1
    assert int(module._continue(*arguments, np.zeros(VOCAB, bool), jax.random.key(0))[1]) == 40


def test_one_program_serves_prompts_of_all_lengths_and_every_choice(llama):
    module._continue.clear_cache()
    rng = np.random.default_rng(0)
    for lengths in ((1, 1, 1), (70, 2, 33), (79, 79, 79)):
        prompts = [rng.integers(VOCAB, size=length).tolist() for length in lengths]
        for options in ({"temperature": 0}, {"top_k": 3, "top_p": 0.5}, {"temperature": 2.5, "stop_tokens": [1, 2]}):
            generate(*llama, prompts, max_new_tokens=80 - max(lengths), **options)
    assert module._continue._cache_size() == 1
    generate(*llama, PROMPTS, max_new_tokens=3, cache_size=16)
    assert module._continue._cache_size() == 2


def test_a_smaller_cache_gives_the_same_text(llama):
    one, other = (generate(*llama, PROMPTS, max_new_tokens=5, temperature=0, cache_size=size) for size in (0, 16))
    assert one == other


def test_a_task_is_taken_for_its_model_and_no_prompts_give_no_texts(llama):
    model, params = llama
    assert generate(LanguageModeling(model), params, [], max_new_tokens=1) == []
    text = generate(LanguageModeling(model), params, PROMPTS, max_new_tokens=4, temperature=0)
    assert text == generate(model, params, PROMPTS, max_new_tokens=4, temperature=0)


def test_bfloat16_parameters_generate_too(llama):
    model, params = llama
    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
    assert [len(text) for text in generate(model, half, PROMPTS, max_new_tokens=4)] == [4] * 3


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"prompts": [[]]}, "a prompt without tokens"),
        ({"prompts": [[1] * 75], "max_new_tokens": 6}, "behind a prompt of 75 tokens: max_seq=80 holds 5 more"),
        ({"prompts": [[1] * 5], "cache_size": 8, "max_new_tokens": 4}, "cache_size=8 holds 3 more"),
        ({"cache_size": 81}, "cache_size=81: from 1 to the model's max_seq=80"),
        ({"max_new_tokens": 0}, "max_new_tokens=0: 1 or more"),
        ({"temperature": -1.0}, "temperature=-1.0"),
        ({"temperature": float("nan")}, "temperature=nan"),
        ({"top_k": -1}, "top_k=-1"),
        ({"top_p": 0.0}, "top_p=0.0: above 0"),
        ({"prompts": [[32]]}, "not among the model's 32"),
        ({"stop_tokens": [-1]}, "not among the model's 32"),
        ({"model": MLP(features=(4,), num_outputs=2)}, "MLP cannot generate: it has no vocab_size, max_seq"),
    ],
)
def test_what_cannot_work_is_refused_with_the_reason(llama, changes, told):
    arguments = {"model": llama[0], "params": llama[1], "prompts": [[1]], "max_new_tokens": 1, **changes}
    with pytest.raises(RefusedError) as raised:
        generate(**arguments)
    assert told in str(raised.value)


def test_a_model_that_is_no_linen_module_is_refused():
    @dataclasses.dataclass
    class Other:
        vocab_size: int = 3
        max_seq: int = 3
        features = head = None

    with pytest.raises(RefusedError, match="no linen module"):
        generate(Other(), {}, [[1]], max_new_tokens=1)


# The distribution


def probabilities(values, temperature=1.0, top_k=0, top_p=1.0):
    logits = np.log(np.array([values], np.float32))
    return np.asarray(jax.nn.softmax(restrict(logits, temperature, top_k, top_p))[0])


P = [0.1, 0.4, 0.2, 0.3]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, P),
        ({"temperature": 0.5}, np.square(P) / np.sum(np.square(P))),
        ({"temperature": 1e-30}, [0, 1, 0, 0]),
        ({"temperature": 0.0}, [0, 1, 0, 0]),
        ({"temperature": 0.0, "top_k": 3, "top_p": 0.9}, [0, 1, 0, 0]),
        ({"top_k": 1}, [0, 1, 0, 0]),
        ({"top_k": 2}, [0, 4 / 7, 0, 3 / 7]),
        ({"top_k": 9}, P),
        ({"top_p": 0.39}, [0, 1, 0, 0]),
        ({"top_p": 0.41}, [0, 4 / 7, 0, 3 / 7]),
        ({"top_p": 0.69}, [0, 4 / 7, 0, 3 / 7]),
        ({"top_p": 0.71}, [0, 4 / 9, 2 / 9, 3 / 9]),
        ({"top_p": 1.0}, P),
        ({"top_p": 1e-9}, [0, 1, 0, 0]),
        ({"top_k": 2, "top_p": 0.5}, [0, 1, 0, 0]),  # of the two, 4/7 are enough
        ({"top_k": 2, "top_p": 0.6}, [0, 4 / 7, 0, 3 / 7]),
        ({"temperature": 0.5, "top_p": 0.6}, [0, 16 / 25, 0, 9 / 25]),  # 16/30 are too few; before it 0.4 and 0.3 were
    ],
)
def test_the_distribution_is_the_one_worked_out_by_hand(options, expected):
    np.testing.assert_allclose(probabilities(P, **options), expected, atol=1e-6)


def test_of_equal_logits_exactly_k_stay_and_the_lowest_token_is_the_greedy_one():
    assert (probabilities([0.25] * 4, top_k=2) > 0).tolist() == [True, True, False, False]
    assert probabilities([0.2, 0.35, 0.35, 0.1], temperature=0.0).tolist() == [0, 1, 0, 0]


def test_without_top_p_no_token_is_left_out_however_unlikely():
    assert np.all(np.isfinite(restrict(np.array([[0.0, -60.0, -80.0]], np.float32), 1.0, 0, 1.0)))


def test_rows_are_restricted_each_by_itself():
    both = restrict(np.log(np.array([P, P[::-1]], np.float32)), 1.0, 2, 1.0)
    np.testing.assert_array_equal(both[0], both[1][::-1])


def test_tokens_are_drawn_with_their_probabilities():
    """The first new token of many keys, against the distribution of a whole pass."""
    model, params = made(**LLAMA)
    prompt = [3, 1, 4]
    texts = generate(model, params, [prompt] * 4000, max_new_tokens=1, cache_size=4, key=jax.random.key(5), top_k=5)
    padded = np.pad([prompt], ((0, 2), (0, MAX_SEQ - 3))).astype(np.int32)
    logits = np.asarray(whole_pass(model)(params, padded)[0, 2], np.float64)
    likeliest = np.argsort(-logits)[:5]
    expected = np.exp(logits[likeliest]) / np.exp(logits[likeliest]).sum()
    drawn = np.bincount([text[0] for text in texts], minlength=VOCAB)
    assert drawn.sum() == drawn[likeliest].sum()
    statistic = np.sum((drawn[likeliest] - 4000 * expected) ** 2 / (4000 * expected))
    assert statistic < 18.5  # chi-squared with 4 degrees of freedom exceeds it once in 1000 times
