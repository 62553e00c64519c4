"""GPT-2 124M on OpenWebText or FineWeb: 124,439,808 parameters, sequences of 1024 tokens, 295 billion tokens in all.

    python -m jaxtrain --config=configs/gpt2_124m.py --config.data.files='data/train_*.npy' \
        --config.evals.validation.data.files='data/validation_*.npy'

The files hold GPT-2's tokens as uint16 (jaxtrain/data/tokens.py). The shapes are Radford et al. 2019's; the optimizer
is that of GPT-3 Small (Brown et al. 2020, https://arxiv.org/abs/2005.14165, table 2.1 and appendix B): 0.5 million
tokens a step and a rate of 6e-4, for as many steps as nanoGPT takes. Meant for one machine with 8 GPUs of 40 GB or
more: microbatches of 12 sequences on each.

Not measured here. In the tests it trains in small.
"""

from jaxtrain import default_config


def get_config():
    config = default_config()
    config.duration = "600_000 steps"
    config.batch_size = 480

    config.data.type = "jaxtrain.data.tokens:TokenFiles"
    config.data.seq = 1024
    config.data.vocab_size = 50257
    config.data.dtype = "uint16"

    config.task.type = "jaxtrain.tasks.language_modeling:LanguageModeling"
    config.task.loss_chunks = 8  # the logits of all 1024 positions would be the largest array by far
    config.task.model = {
        "type": "jaxtrain.models.transformer:Transformer",
        "num_layers": 12,
        "embed": 768,
        "heads": 12,
        "max_seq": 1024,
        "norm": "layernorm",
        "position": "learned",
        "activation": "gelu",
        "bias": True,
    }

    config.optimizer.type = "optax:adamw"
    config.optimizer.learning_rate = 6e-4
    config.optimizer.b2 = 0.95
    config.optimizer.weight_decay = 0.1
    config.schedule.type = "jaxtrain.schedules:cosine"
    config.schedule.final = 0.1
    config.schedule.warmup = "2000 steps"
    config.clip_norm = 1.0
    config.accumulation.microbatches = 5
    config.precision.compute = "bfloat16"

    # Empty, so that it is not the training files by mistake.
    config.evals.validation = {"data": {"files": ""}, "every": "2000 steps", "batch_size": 96, "num_batches": 50}
    config.log.every = "20 steps"
    config.checkpoint.every = "2000 steps"
    return config
