"""The coordinator: the address of process 0, where the processes of a run find each other."""

import errno
import socket
from collections.abc import Mapping
from typing import Any

from jaxtrain.doctor.finding import Finding, fail, not_applicable, ok, warn
from jaxtrain.doctor.machine import Machine

_CONNECT_SECS = 5.0
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def check_coordinator(machine: Machine) -> Finding:
    """Is the coordinator's name known and its port free for process 0, or reachable for another one?"""
    cluster = machine.cluster
    if trouble := cluster.get("trouble"):
        return fail(trouble, "Change the variables or keys that it names.")
    if cluster["num_processes"] == 1:
        return not_applicable(f"one process ({cluster['by']})")
    return judge_coordinator(cluster)


def judge_coordinator(cluster: Mapping[str, Any]) -> Finding:
    """Resolve the address, then listen there as process 0 or connect as another."""
    address = cluster["coordinator"]
    host, port = split_address(address)
    who = f"process {cluster['index']} of {cluster['num_processes']} ({cluster['by']})"
    advice = "Give the name and port of process 0's node: --config.distributed.coordinator=HOST:PORT."
    if not 0 < port < 65536:
        return fail(f"{who}: {address} has no port between 1 and 65535", advice)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        return fail(f"{who}: {host} is no known host: {error.strerror}", advice)
    family, _, _, _, target = found[0]
    if cluster["index"] == 0:
        return _listen(who, address, host, port, family, target)
    return _connect(who, address, family, target)


def split_address(address: str) -> tuple[str, int]:
    """Give (host, port) of "host:port" or "[::1]:port"; port 0 where there is none."""
    host, _, port = address.rpartition(":")
    return (host.strip("[]"), int(port)) if port.isdecimal() else (address, 0)


def _listen(who: str, address: str, host: str, port: int, family: int, target: Any) -> Finding:
    """Bind the port as process 0 would, and see whether the address is this machine's."""
    try:
        socket.create_server(("127.0.0.1" if host in _LOOPBACK else "", port)).close()
    except OSError as error:
        advice = "Another run may use it: give another port in distributed.coordinator."
        return fail(f"{who} cannot listen at port {port}: {error.strerror}", advice)
    try:
        with socket.socket(family, socket.SOCK_STREAM) as own:
            own.bind((target[0], 0, *target[2:]))
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            found = f"{who}: port {port} is free, but {host} ({target[0]}) is no address of this machine"
            return warn(found, "Right for a service's name in Kubernetes; else give this node's name.")
        return fail(f"{who}: {address}: {error.strerror}", "Look at this machine's network.")
    return ok(f"{who}: {address} is this machine, and the port is free")


def _connect(who: str, address: str, family: int, target: Any) -> Finding:
    """Connect. Before the run nothing listens there: a host that refuses has answered."""
    try:
        with socket.socket(family, socket.SOCK_STREAM) as connection:
            connection.settimeout(_CONNECT_SECS)
            connection.connect(target)
    except ConnectionRefusedError:
        return ok(f"{who}: {address} can be reached; nothing listens there yet")
    except OSError as error:
        advice = "Is this the address of process 0's node, and does a firewall let the port through?"
        return fail(f"{who}: {address} is not reached: {error.strerror or error}", advice)
    return ok(f"{who}: {address} answers")
