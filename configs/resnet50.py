"""ResNet-50 on ImageNet-1k: 25,557,032 parameters, images of 224 x 224 pixels, 90 epochs.

    python -m jaxtrain --config=configs/resnet50.py --config.data.root=imagenet/train \
        --config.evals.validation.data.root=imagenet/validation

Both roots hold one directory of JPEG files for each of the 1000 classes (jaxtrain/data/images.py, extra `images`). The
numbers are those of Goyal et al. 2017 (https://arxiv.org/abs/1706.02677): 0.1 for each 256 images of a batch, momentum
0.9, decay 1e-4, 5 epochs of warmup; with the cosine and the label smoothing of 0.1 of He et al. 2018
(https://arxiv.org/abs/1812.01187, sections 5.1 and 5.2). Meant for 8 GPUs of 40 GB or more and 64 CPU cores or more:
decoding and cropping take 10 to 20 ms an image on one core.

Not measured here. In the tests it trains in small.
"""

from jaxtrain import default_config


def get_config():
    config = default_config()
    config.duration = "90 epochs"
    config.batch_size = 1024

    values = {"type": "jaxtrain.data.augment:Normalize"}
    config.data.type = "jaxtrain.data.images:ImageFolder"
    config.data.transforms.crop = {"type": "jaxtrain.data.augment:RandomResizedCrop", "size": 224}
    config.data.transforms.flip = {"type": "jaxtrain.data.augment:RandomHorizontalFlip"}
    config.data.transforms.values = values
    config.data.num_workers = 48
    config.data.max_bad_examples = 100

    config.task.type = "jaxtrain.tasks.classification:Classification"
    config.task.label_smoothing = 0.1
    config.task.model = {
        "type": "jaxtrain.models.resnet:ResNet",
        "stage_sizes": (3, 4, 6, 3),
        "num_classes": 1000,
    }

    config.optimizer.type = "jaxtrain.optimizers:sgd"
    config.optimizer.learning_rate = 0.4
    config.optimizer.momentum = 0.9
    config.optimizer.nesterov = True
    config.optimizer.weight_decay = 1e-4
    config.schedule.type = "jaxtrain.schedules:cosine"
    config.schedule.warmup = "5 epochs"
    config.precision.compute = "bfloat16"

    crop = {"type": "jaxtrain.data.augment:CenterCrop", "size": 224, "resize": 256}
    config.evals.validation = {
        "data": {"root": "", "transforms": {"crop": crop, "values": values}},  # not the training images by mistake
        "every": "5 epochs",
        "batch_size": 1024,
    }
    config.checkpoint.every = "1 epochs"
    return config
