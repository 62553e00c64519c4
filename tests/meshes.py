"""Small language models on meshes of eight simulated devices, trained as a run trains them."""

from typing import Any

import jax
import numpy as np

from jaxtrain import default_config
from jaxtrain.assembly import assemble
from jaxtrain.check import check
from jaxtrain.config import parse
from jaxtrain.data.arrays import Arrays
from jaxtrain.experiment import Experiment
from jaxtrain.models.transformer import Transformer
from jaxtrain.tasks.language_modeling import LanguageModeling

BATCH, SEQ, VOCAB, STEPS = 16, 8, 64, 20
SIZES = {"vocab_size": VOCAB, "embed": 32, "heads": 4, "max_seq": SEQ, "dropout": 0.1}
MODELS = {
    # Two heads of keys and values cannot be split over four devices.
    "llama": LanguageModeling(Transformer(num_layers=2, kv_heads=2, head_dim=16, mlp=48, **SIZES)),
    "gpt2": LanguageModeling(
        Transformer(
            num_layers=1, norm="layernorm", position="learned", activation="gelu", bias=True, tie_embeddings=False,
            scan_layers=False, remat="full", mlp=80, **SIZES,
        ),
        loss_chunks=2,
    ),
}  # fmt: skip
MESHES = {
    "one device": {},
    "data=8": {"data": 8},
    "fsdp=8": {"fsdp": 8},
    "tensor=4,fsdp=2": {"fsdp": 2, "tensor": 4},
    "sequence=2,tensor=2,data=2": {"data": 2, "sequence": 2, "tensor": 2},
}


def experiment_of(mesh: dict[str, int], task: object = MODELS["llama"], **groups: dict) -> Experiment:
    """Assemble a run on the first devices, as many as the mesh has. Other groups of the config: {key: value}."""
    config = default_config()
    config.name = "meshes"
    config.duration = f"{STEPS} steps"
    config.batch_size = BATCH
    config.task.type = task
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, VOCAB, (4 * BATCH, SEQ + 1)).astype(np.int32)
    mask = np.arange(SEQ) < rng.integers(0, SEQ + 1, (4 * BATCH, 1))
    config.data.type = Arrays(arrays={"tokens": tokens, "mask": mask, "position": np.arange(4 * BATCH)})
    config.optimizer.type = "optax:sgd"
    config.optimizer.learning_rate = 0.1
    config.optimizer.momentum = 0.9
    config.accumulation.microbatches = 2
    config.sharding.min_size = 0
    config.mesh.update({"data": 1, **mesh})
    for group, values in groups.items():
        config[group].update(values)
    num_devices = int(np.prod(list(mesh.values()), dtype=int))
    typed, problems = check(parse(config).checked(), num_devices, 1)
    assert not problems, problems
    return assemble(typed, devices=jax.devices()[:num_devices])


def train(experiment: Experiment, num_steps: int = STEPS) -> tuple[list[float], list[np.ndarray], Any]:
    """Give the losses of the steps, which examples each one had, and the last state."""
    step, state, loader = experiment.compile_train_step(), experiment.init_state(), experiment.loader(0)
    losses, positions = [], []
    for _ in range(num_steps):
        batch = experiment.place(next(loader).arrays)
        positions.append(np.asarray(batch["position"]))
        state, metrics = step(state, batch)
        losses.append(float(metrics["loss"].compute()))
    loader.close()
    return losses, positions, state
