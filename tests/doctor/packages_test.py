import importlib.metadata

import pytest

from jaxtrain.doctor import packages
from jaxtrain.doctor.machine import Machine

PLUGINS = ("jax-cuda12-pjrt", "jax-cuda12-plugin")
FITTING = {
    "jax": ("0.10.2", ["jaxlib<=0.10.2,>=0.10.2", "numpy>=2", "cloud-tpu-client>=9 ; extra == 'tpu'"]),
    "jaxlib": ("0.10.2", ["numpy>=2"]),
    "numpy": ("2.4.0", []),
    "flax": ("0.12.8", ["jax>=0.10", "tomli>=2 ; python_version < '3'"]),
    "jax-cuda12-pjrt": ("0.10.2", []),
    "jax-cuda12-plugin": (
        "0.10.2",
        ["jax-cuda12-pjrt==0.10.2", "nvidia-cudnn-cu12<10.0,>=9.8 ; extra == 'with-cuda'"],
    ),
    "nvidia-cudnn-cu12": ("9.10.2.21", []),
}
WANTED = ["jax>=0.10", "flax>=0.12", "optax>=9 ; extra == 'other'"]


def without(*names, **changes):
    there = {name: found for name, found in FITTING.items() if name not in names}
    there |= {
        name.replace("_", "-"): (version, FITTING[name.replace("_", "-")][1]) for name, version in changes.items()
    }
    return there.get


@pytest.mark.parametrize(
    ("version", "status"), [("3.11.7", "ok"), ("3.13.0rc1", "ok"), ("3.10.14", "fail"), ("3.9.0", "fail")]
)
def test_python_is_held_against_what_the_package_says(version, status):
    assert packages.judge_python(version, ">=3.11").status == status


def test_what_is_missing_or_old_is_unmet():
    assert list(packages.unmet_of(WANTED, FITTING.get)) == []
    assert list(packages.unmet_of(WANTED, without("flax"))) == [("flax", "flax is not installed, needs >=0.12")]
    assert list(packages.unmet_of(WANTED, without(jax="0.9.1"))) == [("jax", "jax is 0.9.1, needs >=0.10")]


def test_packages_that_belong_together_fit():
    assert packages.judge_fit(WANTED, FITTING.get, PLUGINS).status == "ok"
    assert packages.judge_fit(WANTED, FITTING.get, []).found == "all requirements are met"


@pytest.mark.parametrize(
    ("read", "status", "words"),
    [
        (without(jaxlib="0.10.1"), "fail", "jaxlib is 0.10.1, needs <=0.10.2,>=0.10.2 by jax"),
        (without("numpy"), "fail", "numpy is not installed, needs >=2 by jax"),
        (
            without(jax_cuda12_plugin="0.10.1", jax_cuda12_pjrt="0.10.2"),
            "fail",
            "jax-cuda12-plugin is 0.10.1 and jax 0.10.2",
        ),
        (without("jax-cuda12-pjrt"), "fail", "jax-cuda12-pjrt is not installed"),
        (
            without(nvidia_cudnn_cu12="9.1.0"),
            "warn",
            "nvidia-cudnn-cu12 is 9.1.0, needs <10.0,>=9.8 by jax-cuda12-plugin",
        ),
        (without("nvidia-cudnn-cu12"), "ok", "jax-cuda12-plugin 0.10.2"),  # it may come with the system
    ],
)
def test_what_does_not_fit_is_named(read, status, words):
    found = packages.judge_fit(WANTED, read, PLUGINS)
    assert (found.status, words in found.found) == (status, True), found


def test_the_advice_is_for_the_cuda_that_is_installed():
    newer = {"jax": ("0.10.2", []), "jax-cuda13-plugin": ("0.10.1", [])}
    assert "pip install -U 'jax[cuda13]'" in packages.judge_fit(["jax"], newer.get, ["jax-cuda13-plugin"]).advice


def test_packages_that_need_each_other_come_to_an_end():
    circle = {"a": ("1", ["b"]), "b": ("1", ["a>2"])}
    assert packages.judge_fit(["a"], circle.get, []).found == "a is 1, needs >2 by b"


def test_this_environment_fits():
    for check in (packages.check_python, packages.check_packages, packages.check_fit):
        assert check(Machine()).status == "ok"
    assert f"jax {importlib.metadata.version('jax')}" in packages.check_packages(Machine()).found
    assert packages.installed("nowhere-to-be-found") is None
