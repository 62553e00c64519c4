"""docs/quickstart.ipynb in a real kernel: interrupted while it trains, resumed, and held against a run that was not."""

import asyncio
import os
import threading
import time

import nbformat
import pytest
from nbclient import NotebookClient

from tests import runner

NOTEBOOK = runner.ROOT / "docs" / "quickstart.ipynb"

AFTERWARDS = """
import signal
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
config.name = "whole"
whole = jaxtrain.train(config)
steps, losses = result.curve("train", "loss")
whole_steps, whole_losses = whole.curve("train", "loss")
assert steps.tolist() == whole_steps.tolist() and len(steps) == 150
assert losses.tobytes() == whole_losses.tobytes()
assert result.curve("test", "accuracy")[1].tobytes() == whole.curve("test", "accuracy")[1].tobytes()
assert result.curve("test", "accuracy")[1][-1] > 0.9
same = jax.tree.map(lambda a, b: a.tobytes() == b.tobytes(), params, jaxtrain.load_params(whole.workdir))
assert jax.tree.leaves(same) and all(jax.tree.leaves(same))
"""


def test_the_saved_notebook_holds_no_outputs():
    cells = [cell for cell in nbformat.read(NOTEBOOK, 4).cells if cell.cell_type == "code"]
    assert all(not cell.outputs and cell.execution_count is None for cell in cells)


def plain(cell):
    return [output.data["text/plain"] for output in cell.outputs if "data" in output]


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """The notebook's code cells after one run, the one tagged "interrupt" ended by the kernel's interrupt; one more."""
    here = tmp_path_factory.mktemp("notebook")
    notebook = nbformat.read(NOTEBOOK, 4)
    notebook.cells.append(nbformat.v4.new_code_cell(AFTERWARDS))
    client = NotebookClient(notebook, timeout=60, kernel_name="python3", resources={"metadata": {"path": str(here)}})
    metrics = here / "runs" / "quickstart" / "metrics.jsonl"

    def interrupt():
        deadline = time.monotonic() + 50
        while not (metrics.exists() and metrics.read_bytes().count(b"\n") >= 3) and time.monotonic() < deadline:
            time.sleep(0.005)
        asyncio.run(client.km.interrupt_kernel())

    env = {**os.environ, **runner.environment(num_devices=1), "PYTHONPATH": str(runner.ROOT), "IPYTHONDIR": str(here)}
    with client.setup_kernel(env=env):
        for number, cell in enumerate(notebook.cells):
            thread = threading.Thread(target=interrupt)
            if "interrupt" in cell.metadata.get("tags", ()):
                thread.start()
            client.execute_cell(cell, number)
            if thread.ident:
                thread.join()
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_an_interrupt_of_the_kernel_ends_train_and_the_same_call_goes_on_bit_for_bit(executed):
    interrupted, resumed = executed[3], executed[4]
    status, step = eval(plain(interrupted)[-1])
    assert status == "preempted"
    assert 40 <= step < 3000
    assert eval(plain(resumed)[-1]) == ("finished", 3000)
    assert executed[-1].source == AFTERWARDS  # whose asserts held, or the cell had failed


def test_progress_is_one_output_that_shows_the_end(executed):
    shown = [text for text in plain(executed[4]) if text.startswith("step ")]
    assert len(shown) == 1
    assert "step 3000/3000" in shown[0]
    assert "test 3000  loss" in shown[0]


def test_curves_are_shown_inline_and_the_export_is_there(executed):
    assert any("image/png" in output.get("data", {}) for output in executed[5].outputs)
    assert "model.safetensors" in plain(executed[6])[-1]
