"""A Llama of 1.24 billion parameters from scratch: the shapes of Llama 3.2 1B, 1,235,814,400 parameters, tied.

    python -m jaxtrain --config=configs/llama_1b.py --config.data.files='data/train_*.npy' \
        --config.evals.validation.data.files='data/validation_*.npy'

The files hold tokens of Llama 3's vocabulary of 128,256 as uint32 (jaxtrain/data/tokens.py). Sequences are of 4096
tokens, and a step takes 4.2 million. Meta made that model from a larger one and published no recipe to train it, so the
optimizer is Llama 2's (Touvron et al. 2023, https://arxiv.org/abs/2307.09288, section 2.2: AdamW with b2 = 0.95, eps
1e-5, decay 0.1, clipping at 1, cosine to a tenth after 2000 steps of warmup) with the rate of its smallest model. Its
frequencies are not rescaled for sequences above 8192. Meant for 8 GPUs of 80 GB on one machine.

Not measured here. In the tests it trains in small.
"""

from jaxtrain import default_config


def get_config():
    config = default_config()
    config.duration = "100e9 tokens"
    config.batch_size = 1024

    config.data.type = "jaxtrain.data.tokens:TokenFiles"
    config.data.seq = 4096
    config.data.vocab_size = 128_256
    config.data.dtype = "uint32"

    config.task.type = "jaxtrain.tasks.language_modeling:LanguageModeling"
    config.task.loss_chunks = 16  # the logits of all positions would take 2 GiB for each sequence
    config.task.model = {
        "type": "jaxtrain.models.transformer:Transformer",
        "num_layers": 16,
        "embed": 2048,
        "heads": 32,
        "kv_heads": 8,
        "head_dim": 64,
        "mlp": 8192,
        "max_seq": 8192,
        "rotary_base": 500_000.0,
        "remat": "attention",
    }

    config.optimizer.type = "optax:adamw"
    config.optimizer.learning_rate = 3e-4
    config.optimizer.b2 = 0.95
    config.optimizer.eps = 1e-5
    config.optimizer.weight_decay = 0.1
    config.schedule.type = "jaxtrain.schedules:cosine"
    config.schedule.final = 0.1
    config.schedule.warmup = "2000 steps"
    config.clip_norm = 1.0
    config.accumulation.microbatches = 32
    config.precision.compute = "bfloat16"
    config.mesh.data = 1
    config.mesh.fsdp = -1

    # Empty, so that it is not the training files by mistake.
    config.evals.validation = {"data": {"files": ""}, "every": "1000 steps", "batch_size": 32, "num_batches": 32}
    config.checkpoint.every = "500 steps"
    return config
