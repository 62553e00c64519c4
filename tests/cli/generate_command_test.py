import json
import shutil

import jax
import pytest

from jaxtrain.cli import main
from jaxtrain.data.codec import make_codec
from jaxtrain.generate import generate
from jaxtrain.models.transformer import Transformer
from jaxtrain.params import load_params
from tests.text_run import damage, snapshot


def generated(capsys, *flags):
    code = main(["generate", *flags])
    captured = capsys.readouterr()
    assert (code, captured.err) == (0, "")
    return captured.out


def expected(text_run, prompts, step="latest", seed=0, **options):
    model = Transformer(256, 1, 16, heads=2, max_seq=40)
    tokens = [[0, *prompt.encode()] for prompt in prompts]
    key = jax.random.key(seed)
    made = generate(model, load_params(text_run, step), tokens, stop_tokens=(0,), key=key, **options)
    return "".join(prompt + make_codec().decode(new) + "\n" for prompt, new in zip(prompts, made, strict=True))


def test_a_program_of_its_own_continues_prompts_and_only_reads_the_run(cli, text_run, capsys):
    before = snapshot(text_run)
    flags = ("--prompt=def f", "--prompt", "x", "--max_new_tokens=9", "--config.data.root=nowhere")
    finished = cli.run("generate", f"--workdir={text_run}", *flags)
    assert finished.returncode == 0, finished.output
    assert finished.stdout == expected(text_run, ["def f", "x"], max_new_tokens=9)
    assert finished.stderr == ""
    assert snapshot(text_run) == before


@pytest.mark.parametrize(
    ("flags", "options"),
    [
        (["--temperature=0", "--max_new_tokens=12"], {"temperature": 0, "max_new_tokens": 12}),
        (["--top_k=3", "--top_p=0.9", "--temperature=0.7"], {"top_k": 3, "top_p": 0.9, "temperature": 0.7}),
        (["--seed=5", "--step=2"], {"seed": 5, "step": 2}),
        (["--config.precision.params=float32", "--tokenizer=bytes"], {}),
    ],
)
def test_flags_reach_the_generation(text_run, capsys, flags, options):
    out = generated(capsys, f"--workdir={text_run}", "--prompt=de", *flags)
    assert out == expected(text_run, ["de"], **{"max_new_tokens": 37, **options})  # 40 hold 3 and 37


def test_without_a_prompt_a_text_begins_from_nothing(text_run, capsys):
    assert generated(capsys, f"--workdir={text_run}") == expected(text_run, [""], max_new_tokens=39)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--max_new_tokens=99"], "max_new_tokens=99 behind a prompt of 2 tokens: max_seq=40 holds 38 more"),
        (["--max_new_tokens=many"], "--max_new_tokens=many: not a whole number"),
        (["--max_new_tokens=0"], "max_new_tokens=0: 1 or more"),
        (["--temperature=hot"], "--temperature=hot: not a number"),
        (["--top_p=2"], "top_p=2.0"),
        (["--tokenizer=nowhere.json"], "cannot read nowhere.json"),
        (["--temprature=1"], "--temperature"),
        (["--prompt"], "--prompt=: needs a value"),
        (["--step=6"], "checkpoints/6 is damaged"),
        (["--config.task.model.embed=8"], "embedding/embedding: saved float32[256, 16], wanted float32[256, 8]"),
    ],
)
def test_what_cannot_be_generated_is_refused(text_run, tmp_path, capsys, flags, told):
    shutil.copytree(text_run, tmp_path / "run")
    damage(tmp_path / "run", 6)
    assert main(["generate", f"--workdir={tmp_path / 'run'}", "--prompt=a", *flags]) == 2
    assert told in capsys.readouterr().err


def test_data_that_knows_no_text_needs_a_tokenizer(text_run, tmp_path, capsys):
    shutil.copytree(text_run, tmp_path / "run")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    data = {"type": "jaxtrain.data.tokens:TokenFiles", "files": "x.bin", "seq": 16, "dtype": "uint8", "vocab_size": 256}
    (tmp_path / "run" / "config.json").write_text(json.dumps({**config, "data": data, "evals": {}}))
    workdir = f"--workdir={tmp_path / 'run'}"
    assert main(["generate", workdir]) == 2
    assert "Write --tokenizer=bytes or --tokenizer=FILE" in capsys.readouterr().err
    assert generated(capsys, workdir, "--tokenizer=bytes") == expected(text_run, [""], max_new_tokens=39)


def test_help_lists_every_flag(capsys):
    from jaxtrain.cli.generate_command import FLAGS

    out = generated(capsys, "--help")
    assert all(flag in out for flag in FLAGS)
