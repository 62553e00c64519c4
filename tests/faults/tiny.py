"""The run of these tests: 12 steps of a tiny classifier with dropout, two microbatches, and epochs that end in a batch.

The rows are those of `rows.npz` in the current directory. What goes wrong is up to files there (see parts.py), so that
the same command can be given again when it no longer does.
"""

from jaxtrain import default_config


def get_config():
    config = default_config()
    config.duration = "12 steps"
    config.batch_size = 8
    config.data.type = "tests.faults.parts:Rows"
    config.data.path = "rows.npz"
    config.data.split = "train"
    config.task.type = "jaxtrain.tasks.classification:Classification"
    config.task.model = {
        "type": "jaxtrain.models.mlp:MLP",
        "features": (8,),
        "num_outputs": 3,
        "dropout": 0.2,
    }
    config.accumulation.microbatches = 2
    config.evals.validation = {"data": {"split": "validation"}, "every": "5 steps"}
    config.log.every = "4 steps"
    config.checkpoint.every = "3 steps"
    config.checkpoint.keep_last = 10
    config.callbacks.gate = {"type": "tests.faults.parts:Gate"}
    return config
