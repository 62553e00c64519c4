"""A service and its crews in the threads of one process."""

import concurrent.futures
import contextlib
import socket

from jaxtrain.distributed.crew import Crew
from jaxtrain.distributed.service import Service


@contextlib.contextmanager
def crews(num_processes, *, silence_secs=30.0, init_secs=30.0, only=None):
    """Open the crews of all processes, or of `only` some, by number."""
    service = Service("127.0.0.1", 0, num_processes, silence_secs, init_secs)
    opened = []
    try:
        for index in range(num_processes) if only is None else only:
            opened.append(open_crew(service.port, index, num_processes, silence_secs))
        if only is None:
            together([crew.wait_for_all for crew in opened])  # as every run does before anything else
        yield opened
    finally:
        for crew in opened:
            crew.close()
        service.close()


def open_crew(port, index, num_processes, silence_secs=30.0):
    about = {"index": index, "num_processes": num_processes, "node": "n", "host": "h", "pid": 100 + index}
    return Crew(socket.create_connection(("127.0.0.1", port)), about, silence_secs)


def together(functions):
    """Call each function in a thread of its own. Gives the results, or what was raised."""
    with concurrent.futures.ThreadPoolExecutor(len(functions)) as pool:
        futures = [pool.submit(function) for function in functions]
        return [future.exception() or future.result() for future in futures]
