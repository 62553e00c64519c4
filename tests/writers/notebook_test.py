import sys

import pytest

from jaxtrain.pace import Pace
from jaxtrain.writers.notebook import Notebook, is_notebook


@pytest.fixture
def notebook():
    """A notebook's writer, what it has shown, its clock and its progress."""
    shown, now, pace = [], [0.0], Pace(10, None)
    return Notebook(pace, lambda content, is_first: shown.append((content, is_first)), lambda: now[0]), shown, now, pace


def test_one_output_is_updated_in_place_but_not_for_every_line(notebook):
    writer, shown, now, pace = notebook
    for step in range(1, 11):
        now[0] += 0.1
        pace.step = step
        writer.write_scalars(step, "train", {"loss": 1.0 / step}, 0.0)
    assert [is_first for _, is_first in shown] == [True, False, False, False]
    assert "train 9  loss 0.1111" in shown[-1][0]["text/plain"]
    writer.close()
    assert shown[-1][0]["text/plain"] == "step 10/10\ntrain 10  loss 0.1"
    assert '<progress value="10" max="10"' in shown[-1][0]["text/html"]


def test_each_split_shows_its_newest_numbers_as_text(notebook):
    writer, shown, _, _ = notebook
    writer.write_scalars(4, "train", {"loss": 0.5, "grads/a/norm": 1.0}, 0.0)
    writer.write_scalars(4, "<b>", {"loss": 0.25, "accuracy": float("nan")}, 0.0)
    writer.write_text(4, "sample", "text")
    writer.close()
    assert shown[-1][0]["text/plain"].splitlines()[1:] == ["train 4  loss 0.5", "<b> 4  loss 0.25  accuracy nan"]
    assert "<b>" not in shown[-1][0]["text/html"]


def test_a_run_without_a_known_end_shows_no_bar():
    shown = []
    Notebook(Pace(None, 60.0), lambda content, is_first: shown.append(content))
    assert shown[0]["text/plain"] == "step 0"
    assert "<progress" not in shown[0]["text/html"]


def test_this_is_no_notebook_with_or_without_ipython(monkeypatch):
    assert not is_notebook()
    monkeypatch.setitem(sys.modules, "IPython.core.getipython", None)
    assert not is_notebook()


def test_a_kernel_is_a_notebook_also_with_a_shell_of_its_own(monkeypatch):
    class ZMQInteractiveShell:
        pass

    class Colab(ZMQInteractiveShell):
        pass

    for shell, expected in ((ZMQInteractiveShell(), True), (Colab(), True), (object(), False)):
        monkeypatch.setattr("IPython.core.getipython.get_ipython", lambda shell=shell: shell)
        assert is_notebook() == expected
