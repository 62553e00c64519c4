"""A small vision transformer on scikit-learn's handwritten digits; data and splits are those of configs/digits.py.

python -m jaxtrain --config=configs/vit_digits.py
"""

from jaxtrain import default_config


def get_config():
    config = default_config()
    config.duration = "40 epochs"
    config.batch_size = 32

    config.data.type = "jaxtrain.data.digits:Digits"
    config.data.split = "train"
    config.data.transforms.shift = {"type": "jaxtrain.data.augment:RandomCrop", "padding": 1}

    config.task.type = "jaxtrain.tasks.classification:Classification"
    config.task.model = {
        "type": "jaxtrain.models.vit:ViT",
        "num_classes": 10,
        "patch": 4,
        "num_layers": 3,
        "embed": 64,
        "heads": 4,
        "mlp": 128,
        "scan_layers": False,  # three layers run faster one after the other
    }

    config.optimizer.type = "optax:adamw"
    config.optimizer.learning_rate = 2e-3
    config.optimizer.weight_decay = 0.05
    config.schedule.type = "jaxtrain.schedules:cosine"
    config.schedule.warmup = "5 epochs"

    config.evals.validation = {"data": {"split": "validation"}, "every": "10 epochs"}
    config.evals.test = {"data": {"split": "test"}}
    config.log.every = "5 epochs"
    config.checkpoint.every = "20 epochs"
    return config
