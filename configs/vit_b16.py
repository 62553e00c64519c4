"""ViT-B/16 on ImageNet-1k from scratch: 86,567,656 parameters, images of 224 x 224 pixels, 300 epochs.

    python -m jaxtrain --config=configs/vit_b16.py --config.data.root=imagenet/train \
        --config.evals.validation.data.root=imagenet/validation

Both roots hold one directory of JPEG files for each of the 1000 classes (jaxtrain/data/images.py, extra `images`). The
numbers are those of Dosovitskiy et al. 2020 (https://arxiv.org/abs/2010.11929, appendix B.1, table 3, ImageNet):
batches of 4096, 10,000 steps of warmup to 3e-3, cosine, decay 0.3, dropout 0.1, clipping at 1. Meant for 8 GPUs of
80 GB and 64 CPU cores or more: decoding and cropping take 10 to 20 ms an image on one core.

Not measured here. In the tests it trains in small.
"""

from jaxtrain import default_config


def get_config():
    config = default_config()
    config.duration = "300 epochs"
    config.batch_size = 4096

    values = {"type": "jaxtrain.data.augment:Normalize", "mean": (0.5,), "std": (0.5,)}
    config.data.type = "jaxtrain.data.images:ImageFolder"
    config.data.transforms.crop = {"type": "jaxtrain.data.augment:RandomResizedCrop", "size": 224, "area": (0.05, 1.0)}
    config.data.transforms.flip = {"type": "jaxtrain.data.augment:RandomHorizontalFlip"}
    config.data.transforms.values = values
    config.data.num_workers = 48
    config.data.max_bad_examples = 100

    config.task.type = "jaxtrain.tasks.classification:Classification"
    config.task.model = {
        "type": "jaxtrain.models.vit:ViT",
        "num_classes": 1000,
        "patch": 16,
        "num_layers": 12,
        "embed": 768,
        "heads": 12,
        "dropout": 0.1,
    }

    config.optimizer.type = "optax:adamw"
    config.optimizer.learning_rate = 3e-3
    config.optimizer.weight_decay = 0.3
    config.schedule.type = "jaxtrain.schedules:cosine"
    config.schedule.warmup = "10_000 steps"
    config.clip_norm = 1.0
    config.accumulation.microbatches = 2
    config.precision.compute = "bfloat16"

    crop = {"type": "jaxtrain.data.augment:CenterCrop", "size": 224, "resize": 256}
    config.evals.validation = {
        "data": {"root": "", "transforms": {"crop": crop, "values": values}},  # not the training images by mistake
        "every": "5 epochs",
        "batch_size": 1024,
    }
    config.checkpoint.every = "1 epochs"
    return config
