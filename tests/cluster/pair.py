"""The run of tests/faults, with silence noticed soon, and with troubles that files ask for (parts.py)."""

from tests.faults import tiny


def get_config():
    config = tiny.get_config()
    config.distributed.heartbeat_timeout_secs = 8.0
    config.distributed.init_timeout_secs = 60.0
    config.callbacks.trouble = {"type": "tests.cluster.parts:Trouble"}
    return config
