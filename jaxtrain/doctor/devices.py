"""JAX itself, its devices and how fast they reach each other, as the probes tell. Imports no jax."""

from collections import Counter

from jaxtrain.doctor.finding import Finding, fail, not_applicable, ok, warn
from jaxtrain.doctor.machine import Machine
from jaxtrain.doctor.programs import Reply

_SLOW_IMPORT_SECS = 20.0
_NVLINK_FLOOR = 30e9  # bytes a second; NVLink gives 100e9 and more, PCIe 4 about 20e9


def check_jax(machine: Machine) -> Finding:
    """Can JAX be imported?"""
    return judge_jax(machine.jax)


def judge_jax(reply: Reply) -> Finding:
    """Judge what the import came to."""
    if "import" not in reply:
        advice = "Try `python -c 'import jax'`; a directory named jax on PYTHONPATH hides the real one."
        return fail(f"import jax: {reply.trouble}", advice)
    facts = reply["import"]
    found = f"jax {facts['version']} in {facts['path']}, imported in {facts['secs']:.1f} s"
    if facts["secs"] > _SLOW_IMPORT_SECS:
        return warn(found, "Put the virtual environment onto a local disk: every start and every worker waits for it.")
    return ok(found)


def check_devices(machine: Machine) -> Finding:
    """Are there devices, and do they compute?"""
    if "import" not in machine.jax:
        return not_applicable("needs JAX")
    return judge_devices(machine.jax, num_gpus=len(machine.gpus) if machine.has_driver else 0)


def judge_devices(reply: Reply, num_gpus: int) -> Finding:
    """Judge the devices of JAX by the GPUs that the driver shows."""
    if "devices" not in reply:
        advice = "The rows of driver, cuda and environment may say why; JAX_PLATFORMS=cpu leaves GPUs aside."
        return fail(f"JAX finds no device: {reply.trouble}", advice)
    facts = reply["devices"]
    kinds = ", ".join(f"{number} x {kind}" for kind, number in Counter(facts["kinds"]).items())
    memory = f", {min(facts['memory']) / 2**30:.1f} GiB each for JAX" if all(facts["memory"]) else ""
    found = f"{kinds} ({facts['platform']}){memory}"
    if facts["wrong"]:
        return fail(f"{found}; wrong results on {', '.join(facts['wrong'])}", "Take it out of service.")
    if num_gpus and facts["platform"] == "cpu":
        return warn(f"{found}, although the driver shows {num_gpus} GPUs", "See the rows of cuda and environment.")
    if 0 < len(facts["kinds"]) < num_gpus:
        return warn(f"{found} of {num_gpus} GPUs", "CUDA_VISIBLE_DEVICES or the job's allocation leaves some out.")
    return ok(found)


def check_bandwidth(machine: Machine) -> Finding:
    """How fast do the devices of this process reach each other?"""
    if "devices" not in machine.jax:
        return not_applicable("needs devices")
    num = len(machine.jax["devices"]["kinds"])
    if num < 2:
        return not_applicable("one device")
    from jaxtrain.doctor.nvidia import parse_links

    links = parse_links(machine.topology.stdout) if machine.has_driver else {}
    has_nvlink = bool(links) and all(link.startswith("NV") for link in links.values())
    return judge_bandwidth(machine.collectives, has_nvlink=has_nvlink)


def judge_bandwidth(reply: Reply, *, has_nvlink: bool) -> Finding:
    """Judge the two collectives. The rate is that of each device's link, as NCCL's tests count it."""
    if reply.trouble or not {"psum", "all_gather"} <= reply.told.keys():
        advice = "Try NCCL_DEBUG=INFO; NCCL_P2P_DISABLE=1 tells whether the direct path between GPUs is the cause."
        return fail(f"a collective over all devices failed: {reply.trouble}", advice)
    rates = {name: reply[name]["bytes_per_sec"] for name in ("psum", "all_gather")}
    found = ", ".join(f"{name} {rate / 1e9:.3g} GB/s" for name, rate in rates.items())
    if not all(reply[name]["is_right"] for name in rates):
        return fail(
            f"{found}; wrong sums", "A device, a link or the driver is broken: take the machine out of service."
        )
    if has_nvlink and min(rates.values()) < _NVLINK_FLOOR:
        return warn(f"{found} over NVLink", "Expect 100 GB/s and more: look at nvidia-smi nvlink -s and at NCCL_*.")
    return ok(found)
