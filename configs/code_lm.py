"""A byte-level language model of the Python standard library's own source, split by file; nothing is downloaded.

    python -m jaxtrain --config=configs/code_lm.py          1.784 nats per byte in 115 s on 2 cores (2026-12-01)
    python -m jaxtrain --config=configs/code_lm.py:long     1.300 in 476 s, with six times the steps

The loss is that of the whole validation split. At the end, tables of n-grams counted on the same training files are
printed beside it: that is what looking up the last one, two or three bytes achieves. Then the model writes a sample.
"""

from jaxtrain import default_config


def get_config(variant=""):
    config = default_config()
    config.duration = "200 steps"
    config.batch_size = 32

    config.data.type = "jaxtrain.data.text:TextFiles"
    config.data.root = "stdlib:"
    config.data.exclude = ("site-packages", "test", "tests", "idlelib")
    config.data.split = "train"
    config.data.splits = {"train": 0.95, "validation": 0.05}
    config.data.seq = 128

    config.task.type = "jaxtrain.tasks.language_modeling:LanguageModeling"
    config.task.model = {
        "type": "jaxtrain.models.transformer:Transformer",
        "num_layers": 2,
        "embed": 128,
        "heads": 4,
        "max_seq": 128,
        "scan_layers": False,  # two layers run faster one after the other, and compile fast enough
    }

    config.optimizer.type = "optax:adamw"
    config.optimizer.learning_rate = 3e-3
    config.schedule.type = "jaxtrain.optimizers:cosine"
    config.schedule.warmup = "20 steps"
    config.clip_norm = 1.0

    config.evals.validation = {"data": {"split": "validation"}, "batch_size": 64}
    config.log.every = "20 steps"
    config.checkpoint.every = "100 steps"
    config.callbacks.ngrams = {"type": "jaxtrain.callbacks.ngrams:NgramBaselines"}
    config.callbacks.sample = {
        "type": "jaxtrain.callbacks.sampling:Samples",
        "prompts": ("def ",),
        "max_new_tokens": 120,  # as many as max_seq leaves, nearly
        "temperature": 0.7,
    }

    if variant == "long":
        config.duration = "1200 steps"
        config.schedule.warmup = "60 steps"
        config.checkpoint.every = "400 steps"
    elif variant:
        raise ValueError(f"code_lm has the variant long, not {variant!r}")
    return config
