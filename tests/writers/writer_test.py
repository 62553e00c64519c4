import inspect

from jaxtrain.writers.background import Background
from jaxtrain.writers.console import Console
from jaxtrain.writers.tensorboard import TensorBoard
from jaxtrain.writers.writer import Writer


def test_every_writer_has_the_methods_of_the_protocol_with_their_arguments():
    methods = {name: method for name, method in vars(Writer).items() if name.startswith("write_") or name == "close"}
    assert len(methods) == 4
    for writer in (Background, Console, TensorBoard):
        for name, method in methods.items():
            wanted = list(inspect.signature(method).parameters)
            assert list(inspect.signature(getattr(writer, name)).parameters)[: len(wanted)] == wanted
