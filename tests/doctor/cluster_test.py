import pytest

from jaxtrain.doctor.cluster import decide

BOTH = {"JAXTRAIN_NUM_PROCESSES": "4", "JAXTRAIN_PROCESS_ID": "2"}


def test_without_variables_there_is_one_process():
    assert decide({"PATH": "x"})["num_processes"] == 1


def test_variables_say_who_this_is():
    decided = decide({**BOTH, "JAXTRAIN_COORDINATOR": "n0:8476"})
    assert (decided["num_processes"], decided["index"], decided["coordinator"]) == (4, 2, "n0:8476")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "JAXTRAIN_COORDINATOR does not say"),
        ({"JAXTRAIN_PROCESS_ID": "4"}, "JAXTRAIN_PROCESS_ID=4 is not below JAXTRAIN_NUM_PROCESSES=4"),
        ({"JAXTRAIN_PROCESS_ID": "one"}, "not whole numbers"),
    ],
)
def test_contradictions_are_told(changes, words):
    assert words in decide({**BOTH, **changes})["trouble"]


def test_one_variable_needs_the_other():
    assert "only JAXTRAIN_PROCESS_ID is set" in decide({"JAXTRAIN_PROCESS_ID": "1"})["trouble"]
