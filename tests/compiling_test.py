import os
import re
import stat

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.compilation_cache import compilation_cache

from jaxtrain.compile_cache import default_directory
from jaxtrain.compiling import compile_ahead, compiler_options, enable_cache
from tests.mounts import read_only

SETTINGS = (
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes",
)


@pytest.fixture
def cache():
    """No cache is set up; afterwards the one of the tests is again."""
    before = {name: jax.config.values[name] for name in SETTINGS}
    jax.config.update("jax_compilation_cache_dir", None)
    compilation_cache.reset_cache()
    yield lambda: jax.config.values["jax_compilation_cache_dir"]
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def add(state, batch):
    return {"sum": state["sum"] + batch["x"].sum(), "last": batch["x"][0]}


def compiled_add(**keys):
    shape = jax.ShapeDtypeStruct((3,), jnp.float32)
    scalar = jax.ShapeDtypeStruct((), jnp.float32)
    return compile_ahead(add, {"sum": scalar, "last": scalar}, {"x": shape}, **keys)


def test_the_program_computes_what_the_function_does():
    state = compiled_add()({"sum": jnp.float32(1), "last": jnp.float32(0)}, {"x": jnp.arange(3.0)})
    assert (float(state["sum"]), float(state["last"])) == (4.0, 0.0)


@pytest.mark.parametrize("x", [jnp.zeros(4), jnp.zeros(3, jnp.int32)])
def test_another_shape_or_dtype_is_an_error_that_names_the_argument(x):
    program = compiled_add()
    with pytest.raises(TypeError, match=r"batch\['x'\]"):
        program({"sum": jnp.float32(1), "last": jnp.float32(0)}, {"x": x})


def test_a_donated_leaf_that_is_only_overwritten_gives_its_memory_too():
    size = 4 * 1000

    def step(state, batch):  # `old` is never read
        return {"old": batch, "sum": state["sum"] + batch}

    leaf = jax.ShapeDtypeStruct((1000,), jnp.float32)
    state = {"old": leaf, "sum": leaf}
    assert compile_ahead(step, state, leaf, donate_argnums=(0,)).memory_analysis().alias_size_in_bytes == 2 * size
    assert compile_ahead(step, state, leaf).memory_analysis().alias_size_in_bytes == 0


@pytest.mark.parametrize("deterministic", [True, False])
def test_the_options_for_gpus_are_ones_that_this_xla_knows(tmp_path, cache, deterministic):
    options = compiler_options("gpu", deterministic, str(tmp_path))
    assert ("xla_gpu_deterministic_ops" in options) == deterministic
    assert str(tmp_path) in options.values()
    compiled_add(options=options)
    with pytest.raises(jax.errors.JaxRuntimeError, match="No such compile option"):
        compiled_add(options={**options, "xla_gpu_autotune_cache_directory": "x"})
    with pytest.raises(jax.errors.JaxRuntimeError, match="not a valid enum value"):
        compiled_add(options={**options, "xla_gpu_experimental_autotune_cache_mode": "UPDATE"})


def test_other_platforms_need_no_options():
    assert compiler_options("cpu", True, "x") == {}


def test_the_cache_is_the_users_own(tmp_path, monkeypatch, cache):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert default_directory() == tmp_path / "cache" / "jaxtrain" / "compile"
    enable_cache("auto")
    assert cache() == str(default_directory())
    assert stat.S_IMODE(os.stat(default_directory()).st_mode) == 0o700
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_directory() == tmp_path / ".cache" / "jaxtrain" / "compile"


def test_programs_are_kept_however_short_their_compilation(tmp_path, cache):
    enable_cache(str(tmp_path / "programs"))
    compile_ahead(lambda x: x * 1.2345, jax.ShapeDtypeStruct((7,), jnp.float32))
    assert [path.name for path in (tmp_path / "programs").iterdir() if "lambda" in path.name]


def test_a_relative_directory_stays_where_it_is(cache, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    enable_cache("programs")
    assert cache() == str(tmp_path / "programs")


def test_auto_leaves_alone_what_the_environment_has_set_up_and_nowhere_does_not(tmp_path, cache):
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    enable_cache("auto")
    assert cache() == str(tmp_path)
    enable_cache("")
    assert cache() is None
    compile_ahead(lambda x: x * 2.3456, jax.ShapeDtypeStruct((7,), jnp.float32))
    assert list(tmp_path.iterdir()) == []


def refused(directory, caplog, cache):
    caplog.clear()
    enable_cache(str(directory))
    assert cache() is None
    (record,) = [record for record in caplog.records if record.name == "jaxtrain.compiling"]
    assert record.levelname == "WARNING"
    return re.fullmatch(rf"compile cache {directory} not used: (.*)", record.getMessage())[1]


def test_a_directory_that_cannot_be_written_is_a_warning(tmp_path, caplog, cache):
    (tmp_path / "full").mkdir()
    with read_only(tmp_path / "full"):
        assert refused(tmp_path / "full" / "new", caplog, cache) == "Read-only file system"
        assert refused(tmp_path / "full", caplog, cache) in ("Permission denied", "Read-only file system")
    (tmp_path / "file").touch()
    assert refused(tmp_path / "file", caplog, cache) == "File exists"


def test_a_directory_of_another_user_or_one_that_others_may_write_to_is_not_used(tmp_path, caplog, cache):
    # Programs from a cache are run: whoever can write there could run anything.
    directory = tmp_path / "cache"
    directory.mkdir(mode=0o700)
    os.chown(directory, 12345, -1)
    assert refused(directory, caplog, cache) == "it belongs to another user"
    os.chown(directory, os.getuid(), -1)
    for mode in (0o770, 0o722):
        directory.chmod(mode)
        assert refused(directory, caplog, cache).startswith("other users may write to it")
    directory.chmod(0o755)
    enable_cache(str(directory))
    assert cache() == str(directory)
