"""What a config says: whether it can be run here, has its secrets, and can read its data."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxtrain.doctor.finding import Finding, fail, not_applicable, ok
from jaxtrain.doctor.machine import Machine
from jaxtrain.doctor.programs import Reply

_NO_CONFIG = "no config is given"
_OF_CONFIG = ("ConfigError", "RefusedError")


def check_config(machine: Machine) -> Finding:
    """Can the config be read?"""
    return judge_config(machine.settings) if machine.has_config else not_applicable(_NO_CONFIG)


def judge_config(reply: Reply) -> Finding:
    """Judge the first stage of validation, which needs no device."""
    if "settings" not in reply:
        return fail(reply.trouble, "jaxtrain config prints what the config says.")
    facts = reply["settings"]
    if facts["problems"]:
        return fail(facts["problems"], "Change these keys.")
    return ok(f"{facts['name']}: every key and value is one that the schema has")


def check_secrets(machine: Machine) -> Finding:
    """Is each environment variable set that the config refers to?"""
    if not machine.has_config or "settings" not in machine.settings:
        return not_applicable(_NO_CONFIG if not machine.has_config else "the config cannot be read")
    return judge_secrets(machine.settings["settings"]["secrets"], machine.environ)


def judge_secrets(secrets: Sequence[Sequence[str]], environ: Mapping[str, str]) -> Finding:
    """Judge pairs of (variable, key)."""
    if missing := [f"{name} (--config.{key})" for name, key in secrets if not environ.get(name)]:
        names = dict.fromkeys(name for name, _ in secrets if not environ.get(name))
        return fail(f"not set or empty: {', '.join(missing)}", "; ".join(f"export {name}=..." for name in names))
    return ok(f"{', '.join(dict.fromkeys(name for name, _ in secrets))} set" if secrets else "the config names none")


def check_experiment(machine: Machine) -> Finding:
    """Do model, loss, batch and mesh go together, on these devices?"""
    if (finding := _obstacle(machine)) is not None:
        return finding
    return judge_experiment(machine.experiment)


def judge_experiment(reply: Reply) -> Finding:
    """Judge the second stage of validation."""
    if "state" not in reply:
        if reply.kind and reply.kind not in _OF_CONFIG:
            return not_applicable("the data cannot be read")
        return fail(reply.trouble, "Change what the message names.")
    facts = reply["state"]
    steps = "" if facts["num_steps"] is None else f"{facts['num_steps']:,} steps, "
    return ok(f"{steps}a state of {facts['num_bytes'] / 1e6:,.1f} MB")


def check_data(machine: Machine) -> Finding:
    """Can the first and the last example of each source be read?"""
    if (finding := _obstacle(machine)) is not None:
        return finding
    return judge_data(machine.experiment)


def judge_data(reply: Reply) -> Finding:
    """Judge the reading of examples."""
    read = {of.removeprefix("read "): facts for of, facts in reply.told.items() if of.startswith("read ")}
    if reply.trouble and reply.kind in _OF_CONFIG:
        return not_applicable("the experiment cannot be built")
    if reply.trouble:
        return fail(reply.trouble, "Look at the files and options of the key that it names.")
    return ok(", ".join(f"{key}: {facts['num_examples']:,} examples" for key, facts in read.items()))


def state(machine: Machine) -> Mapping[str, Any]:
    """Give num_bytes of a checkpoint and num_checkpoints that a run keeps; zeros when they are not known."""
    unknown = {"num_bytes": 0, "num_checkpoints": 0}
    return unknown if _obstacle(machine) is not None else machine.experiment.told.get("state", unknown)


def _obstacle(machine: Machine) -> Finding | None:
    """Give what keeps the second stage from being tried."""
    if not machine.has_config:
        return not_applicable(_NO_CONFIG)
    if judge_config(machine.settings).status == "fail":
        return not_applicable("the config cannot be read")
    if "devices" not in machine.jax:
        return not_applicable("needs JAX and its devices")
    if check_secrets(machine).status == "fail":
        return not_applicable("a secret is missing")
    return None
