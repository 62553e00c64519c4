"""A byte-level language model of the Python standard library's own source; nothing is downloaded."""

from jaxtrain import default_config


def get_config(variant=""):
    config = default_config()
    config.duration = "600 steps"
    config.batch_size = 32
    config.data.type = "jaxtrain.data.text:TextFiles"
    config.data.root = "stdlib:"
    config.data.exclude = ("site-packages", "test", "tests", "idlelib", "lib2to3/tests")
    config.data.split = "train"
    config.data.splits = {"train": 0.9, "validation": 0.1}
    config.data.seq = 128

    config.task.type = "jaxtrain.tasks.language_modeling:LanguageModeling"
    config.task.model = {
        "type": "jaxtrain.models.transformer:Transformer",
        "num_layers": 2,
        "embed": 128,
        "heads": 4,
        "max_seq": 128,
    }

    config.optimizer.type = "optax:adamw"
    config.optimizer.learning_rate = 3e-3
    config.schedule.type = "jaxtrain.optimizers:cosine"
    config.schedule.warmup = "50 steps"
    config.clip_norm = 1.0

    config.evals.validation = {"data": {"split": "validation"}, "every": "300 steps"}
    config.log.every = "20 steps"
    config.checkpoint.every = "200 steps"
    config.callbacks.ngrams = {"type": "jaxtrain.callbacks.ngrams:NgramBaselines"}
    return config
