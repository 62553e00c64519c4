"""24 steps, which are two and a half epochs of 57 examples: the last epoch ends in its middle, batches run across."""

from jaxtrain import default_config


def get_config(variant="nnx"):
    config = default_config()
    config.duration = "2.5 epochs"
    config.batch_size = 6
    config.data.num_examples = 57
    config.accumulation.microbatches = 3
    config.optimizer.type = "optax:adamw"
    config.optimizer.learning_rate = 1e-2
    config.schedule.type = "jaxtrain.schedules:cosine"
    config.schedule.warmup = "5 steps"
    config.clip_norm = 1.0
    config.ema.decay = 0.9
    config.log.every = "4 steps"
    config.checkpoint.every = "3 steps"
    config.callbacks.telling = {"type": "tests.integration.parts:Telling"}
    # Both are ragged: 13 and 7 examples in batches of 4.
    config.evals.validation = {"data": {"num_examples": 13, "seed": 1}, "every": "5 steps", "batch_size": 4}
    if variant == "nnx":
        _use_pictures(config)
    else:
        config.evals.test = {"data": {"num_examples": 7, "seed": 2, "holds": True}, "batch_size": 4}
        _use_sentences(config)
    return config


def _use_pictures(config):
    config.data.type = "tests.integration.examples:Pictures"
    config.data.transforms.noise = {"type": "tests.integration.examples:Noise"}
    config.task.type = "jaxtrain.tasks.classification:Classification"
    config.task.model = {"type": "tests.integration.parts:Classifier", "features": 8, "dropout": 0.2}
    config.callbacks.telling.secs = 0.03  # else all steps are made in the time of one save


def _use_sentences(config):
    """Steps so long that a kill meets the device inside one; two devices share the state."""
    config.data.type = "tests.integration.examples:Sentences"
    config.data.seq = 128
    config.task.type = "jaxtrain.tasks.language_modeling:LanguageModeling"
    config.task.model = {
        "type": "jaxtrain.models.transformer:Transformer",
        "num_layers": 4,
        "embed": 64,
        "heads": 4,
        "max_seq": 128,
        "dropout": 0.1,
    }
    config.mesh.fsdp = 2
    config.sharding.min_size = 0
