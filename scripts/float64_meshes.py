"""Trains small models in float64 on meshes of simulated devices, and stores how far their numbers are from one's.

    python scripts/float64_meshes.py docs/results/float64_meshes.json

What differs by rounding in float32 must agree to 1e-10 here; a wrong mask, weight or sum would not. Every float32 that
the package or a library asks for is float64 in this process. Twenty steps of SGD with momentum, dropout, masks of
random lengths and two microbatches. Stored for each model and mesh: the largest relative difference of a loss, and of
a parameter by norm(a - b) / norm(b). Exits with 5 if one is above 1e-10.
"""

import datetime
import importlib.metadata
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import jax
import jax.numpy as jnp

jax.config.update("jax_enable_x64", True)
jnp.float32 = jnp.float64  # before anything below reads it, hence the order of imports

import numpy as np
import optax

from jaxtrain import partitioning, sharding
from jaxtrain.compiling import compile_ahead
from jaxtrain.config import Mesh, Sharding
from jaxtrain.errors import EXIT_NO
from jaxtrain.layout import make_layout
from jaxtrain.models.transformer import Transformer
from jaxtrain.step import make_init, make_train_step
from jaxtrain.tasks.language_modeling import LanguageModeling

BATCH, SEQ, VOCAB, STEPS, LIMIT = 16, 8, 64, 20, 1e-10
SIZES: dict[str, Any] = {"vocab_size": VOCAB, "embed": 32, "heads": 4, "max_seq": SEQ, "dropout": 0.1}
GPT2: dict[str, Any] = {"norm": "layernorm", "position": "learned", "activation": "gelu", "tie_embeddings": False}
MODELS = {
    "llama, scanned, multisteps": (LanguageModeling(Transformer(num_layers=2, kv_heads=2, **SIZES)), "multisteps"),
    "gpt2, remat, loss in chunks, fused": (
        LanguageModeling(Transformer(num_layers=2, scan_layers=False, remat="full", **GPT2, **SIZES), loss_chunks=2),
        "fused",
    ),
}
MESHES = {
    "data=8": Mesh(data=8),
    "fsdp=8": Mesh(data=1, fsdp=8),
    "tensor=4,fsdp=2": Mesh(data=1, fsdp=2, tensor=4),
    "sequence=2,tensor=2,data=2": Mesh(data=2, sequence=2, tensor=2),
}
OPTIMIZER = optax.sgd(0.1, momentum=0.9)


def batches() -> list[dict[str, np.ndarray]]:
    """Give the batches of all steps."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, VOCAB, (STEPS, BATCH, SEQ + 1)).astype(np.int32)
    mask = np.arange(SEQ) < rng.integers(0, SEQ + 1, (STEPS, BATCH, 1))
    return [{"tokens": t, "mask": m} for t, m in zip(tokens, mask, strict=True)]


def train(config: Mesh, devices: list[Any], task: Any, engine: str) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Give the losses of the steps, and the parameters after the last by their paths."""
    mesh, options = sharding.make_mesh(config, devices), Sharding(min_size=0)
    layout, place = make_layout(mesh, options), sharding.BatchPlacer(mesh, BATCH, 2)
    batch = place.abstract({name: jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for name, x in batches()[0].items()})
    init = layout.traced(make_init(task, OPTIMIZER, params_dtype=jnp.float64))
    first = place(batches()[0])
    abstract = jax.eval_shape(init, jax.random.key(0), first)
    named = partitioning.annotations(
        jax.eval_shape(layout.traced(task.init), jax.random.key(0), jax.tree.map(lambda x: x[0], first))[0]
    )
    shardings = partitioning.state_shardings(mesh, abstract, OPTIMIZER, options, named)
    step = compile_ahead(
        layout.traced(make_train_step(task, OPTIMIZER, engine=engine, compute_dtype=jnp.float64)),
        sharding.with_shardings(abstract, shardings),
        batch,
        donate_argnums=(0,),
        out_shardings=(shardings, sharding.replicated(mesh)),
    )
    state, losses = jax.jit(init, out_shardings=shardings)(jax.random.key(0), first), []
    for rows in batches():
        state, metrics = step(state, place(rows))
        losses.append(np.asarray(metrics["loss"].compute()))
    params = {
        jax.tree_util.keystr(p, simple=True, separator="/"): x for p, x in jax.tree.leaves_with_path(state.params)
    }
    assert {x.dtype for x in [*losses, *params.values()]} == {np.dtype(np.float64)}
    return np.array(losses), {path: np.asarray(x) for path, x in params.items()}


def differences(task: Any, engine: str) -> dict[str, dict[str, Any]]:
    """Give what each mesh differs by from one device."""
    expected_losses, expected = train(Mesh(data=1), jax.devices()[:1], task, engine)
    found = {}
    for name, mesh in MESHES.items():
        losses, params = train(mesh, jax.devices(), task, engine)
        by_path = {
            path: np.linalg.norm(x - expected[path]) / np.linalg.norm(expected[path]) for path, x in params.items()
        }
        worst = max(by_path, key=lambda path: by_path[path])
        loss = float(np.max(np.abs(losses / expected_losses - 1)))
        found[name] = {"loss": loss, "parameter": float(by_path[worst]), "which": worst}
    return found


def main(out: Path) -> int:
    """Write the report. Gives the exit code."""
    results = {name: differences(task, engine) for name, (task, engine) in MODELS.items()}
    report = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in ("jax", "flax", "optax")},
        "steps": STEPS,
        "largest relative differences from one device": results,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(report, indent=2) + "\n")
    worst = max(max(mesh["loss"], mesh["parameter"]) for meshes in results.values() for mesh in meshes.values())
    print(f"largest difference {worst:.1e}, allowed {LIMIT:.0e}")
    return 0 if worst <= LIMIT else EXIT_NO


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
