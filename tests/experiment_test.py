import dataclasses

import jax
import numpy as np
import pytest

from jaxtrain.assembly import assemble
from jaxtrain.config import parse, schema
from jaxtrain.workdir import Workdir
from tests.classifier import make_config, on_one_device


@pytest.fixture(scope="module")
def experiment():
    return assemble(parse(with_accumulation()).checked())


def with_accumulation():
    config = make_config(mesh={"data": 2, "fsdp": 4}, sharding={"min_size": 0}, batch_size=16)
    config.accumulation.microbatches = 2
    config.evals.test = {"batch_size": 8}
    return config


def test_the_state_is_born_as_it_is_described(experiment):
    state = experiment.init_state()
    abstract = experiment.abstract_state
    assert jax.tree.structure(state) == jax.tree.structure(abstract)
    for leaf, described in zip(jax.tree.leaves(state), jax.tree.leaves(abstract), strict=True):
        assert (leaf.shape, leaf.dtype) == (described.shape, described.dtype)
        assert leaf.sharding.is_equivalent_to(described.sharding, leaf.ndim)
    assert any(not leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(state.params))


def test_the_state_depends_on_the_seed_alone():
    first, again, other = (on_one_device(make_config(seed=seed)).init_state().params for seed in (1, 1, 2))
    kernels = [np.asarray(params["Dense_0"]["kernel"]) for params in (first, again, other)]
    assert kernels[0].tobytes() == kernels[1].tobytes() != kernels[2].tobytes()


def test_the_loader_goes_on_from_a_position(experiment):
    whole, later = experiment.loader(0), experiment.loader(32)
    batches = [next(whole).arrays["image"] for _ in range(4)]
    assert np.array_equal(next(later).arrays["image"], batches[2])
    assert np.array_equal(next(later).arrays["image"], batches[3])
    whole.close(), later.close()


def test_checkpoints_are_kept_by_the_durations_of_the_config(tmp_path, experiment):
    config = dataclasses.replace(experiment.config, checkpoint=schema.Checkpoint(keep_last=3, keep_every="48 examples"))
    checkpoints = dataclasses.replace(experiment, config=config).open_checkpoints(Workdir(tmp_path / "w"))
    checkpoints.close()
    assert checkpoints._keep_last == 3
    assert [step for step in range(1, 10) if checkpoints._keep_every(step)] == [3, 6, 9]
