"""Compilation ahead of time, and the cache that spares it on the next start."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

from jaxtrain import compile_cache

_logger = logging.getLogger(__name__)


def trace_ahead(
    function: Callable, *arguments: Any, out_shardings: Any = None, donate_argnums: Sequence[int] = ()
) -> Any:
    """Trace `function` for abstract `arguments`, whose leaves carry shardings. The result has a `jaxpr`."""
    jitted = jax.jit(function, out_shardings=out_shardings, donate_argnums=tuple(donate_argnums), keep_unused=True)
    return jitted.trace(*arguments)


def compile_traced(traced: Any, options: dict[str, Any] | None = None) -> Any:
    """Compile what `trace_ahead` gave."""
    return traced.lower().compile(compiler_options=options or None)


def compile_ahead(function: Callable, *arguments: Any, options: dict[str, Any] | None = None, **keys: Any) -> Any:
    """Compile `function` for abstract `arguments`, as `trace_ahead` takes them, and for nothing else.

    Calling the result with other shapes, dtypes or shardings raises TypeError naming the argument. Unused arguments are
    kept, so that a donated leaf that is only overwritten still gives its memory to the result.
    """
    return compile_traced(trace_ahead(function, *arguments, **keys), options)


def compiler_options(platform: str, deterministic: bool, autotune_dir: str) -> dict[str, Any]:
    """XLA's options for one platform.

    On GPUs, `deterministic` excludes operations whose result depends on the order of threads, and the kernels that
    autotuning chose are kept in `autotune_dir`, so that a resumed run uses the same ones.
    """
    if platform not in ("gpu", "cuda", "rocm"):
        return {}
    options: dict[str, Any] = {
        "xla_gpu_per_fusion_autotune_cache_dir": autotune_dir,
        "xla_gpu_experimental_autotune_cache_mode": "AUTOTUNE_CACHE_MODE_UPDATE",
    }
    if deterministic:
        options |= {"xla_gpu_deterministic_ops": True, "xla_gpu_exclude_nondeterministic_ops": True}
    return options


def enable_cache(setting: str) -> None:
    """Keep compiled programs as `compile_cache` says: "auto", "" for nowhere, or a directory (made with mode 0700).

    A directory that cannot be used is a warning: the run compiles, and its numbers are the same. `auto` leaves a cache
    alone that the environment has set up.
    """
    if setting == "":
        _keep_in(None)
        return
    if setting == "auto" and jax.config.values["jax_compilation_cache_dir"]:
        return
    directory = compile_cache.default_directory() if setting == "auto" else Path(setting).expanduser().absolute()
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        trouble = compile_cache.refusal(directory)
    except OSError as error:
        trouble = error.strerror
    if trouble is not None:
        _logger.warning("compile cache %s not used: %s", directory, trouble)
        return
    _keep_in(directory)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def _keep_in(directory: Path | None) -> None:
    text = None if directory is None else str(directory)
    if jax.config.values["jax_compilation_cache_dir"] != text:
        jax.config.update("jax_compilation_cache_dir", text)
        compilation_cache.reset_cache()  # JAX looks at the setting once, when it first compiles
