"""`generate`: continue prompts with a run's language model. Reads the run only, and none of its data."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxtrain.cli import arguments
from jaxtrain.cli.arguments import Arguments
from jaxtrain.config import Config, parse
from jaxtrain.errors import EXIT_OK, ConfigError, Problem
from jaxtrain.redact import redact

USAGE = """jaxtrain generate --workdir=DIR --prompt=TEXT [--prompt=TEXT ...] [--step=N|best|latest]

  --max_new_tokens=N    at most so many tokens; by default 100, or what the model has room for
  --temperature=1.0     0 always takes the likeliest token
  --top_k=0             draw from the so many likeliest tokens; 0 from all
  --top_p=1.0           draw from the likeliest tokens that together have this probability
  --seed=0              another seed, another text
  --tokenizer=T         "bytes" or a tokenizers JSON file; by default that of the run's data

A text begins behind the token that separates the texts of the training data, and ends at the next."""

FLAGS = ("--step", "--prompt", "--max_new_tokens", "--temperature", "--top_k", "--top_p", "--seed", "--tokenizer")
_NEW_TOKENS = 100


def main(argv: Sequence[str]) -> int:
    """Print each prompt and its continuation. Raises the named ends of what it reads, RefusedError for bad numbers."""
    if any(argument in ("-h", "--help") for argument in argv):
        print(USAGE)
        return EXIT_OK
    given = arguments.read(argv, values=FLAGS)
    choice: dict[str, Any] = {
        "temperature": given.number("--temperature", 1.0),
        "top_k": given.number("--top_k", 0),
        "top_p": given.number("--top_p", 1.0),
    }
    seed, asked = given.number("--seed", 0), given.number("--max_new_tokens", 0)

    import jax  # takes seconds to import, so a misspelled flag is told before

    from jaxtrain.generate import generate

    model, params, codec = _read_model(given)
    texts = list(given.values.get("--prompt", ("",)))
    prompts = [[codec.separator, *codec.encode(text)] for text in texts]
    room = getattr(model, "max_seq", 0) - max(map(len, prompts))
    max_new_tokens = int(asked) if "--max_new_tokens" in given.values else max(1, min(_NEW_TOKENS, room))
    made = generate(
        model,
        params,
        prompts,
        max_new_tokens=max_new_tokens,
        stop_tokens=(codec.separator,),
        key=jax.random.key(int(seed)),
        **choice,
    )
    for text, tokens in zip(texts, made, strict=True):
        print(redact(text + codec.decode(tokens)))
    return EXIT_OK


def _read_model(given: Arguments) -> tuple[Any, Any, Any]:
    """Give the model of the config, the checkpoint's parameters in its compute dtype, and the codec of its text."""
    import jax
    from flax import linen as nn

    from jaxtrain.build import build, check_options
    from jaxtrain.checkpoint import leaves
    from jaxtrain.params import load
    from jaxtrain.step import cast

    parsed = parse(given.draft)  # not `checked`: the run's mesh and batches need not fit this machine
    config, problems = check_options(parsed.config)
    if parsed.problems or problems:
        raise ConfigError([*parsed.problems, *problems])
    codec = _codec(config, given.text("--tokenizer", ""))
    task = build(config.task, "task", vocab_size=config.data.options.get("vocab_size", codec.vocab_size))
    workdir, dtype = given.workdir or Path("runs") / config.name, config.precision.compute
    loaded = load(workdir, given.text("--step", "latest"))
    params = cast(jax.device_put(loaded.params), dtype)
    batch = {"tokens": jax.ShapeDtypeStruct((1, 2), "int32"), "mask": jax.ShapeDtypeStruct((1,), "bool")}
    wanted = jax.eval_shape(
        lambda key, batch: cast(nn.unbox(task.init(key, batch)[0]), dtype), jax.random.key(0), batch
    )
    saved, described = leaves.describe(leaves.named(params)), leaves.describe(leaves.named(wanted))
    leaves.check_same(saved, described, f"The checkpoint of step {loaded.step} in {workdir}")
    return getattr(task, "model", task), params, codec


def _codec(config: Config, tokenizer: str) -> Any:
    """Give what made tokens of the run's text, unless another is named."""
    from jaxtrain.build import import_target, signature
    from jaxtrain.data.codec import make_codec

    data = config.data
    if not tokenizer:
        options = signature(import_target(data.type, "data")).options
        if "tokenizer" not in options:
            told = f"{json.dumps(data.type)} does not say how text becomes tokens"
            raise ConfigError([Problem("--tokenizer", "", told, "Write --tokenizer=bytes or --tokenizer=FILE.")])
        tokenizer = data.options.get("tokenizer", options["tokenizer"].default)
    return make_codec(tokenizer, data.options.get("separator", ""))
