from jaxtrain.distributed.alone import Alone


def test_alone_agrees_with_itself():
    alone = Alone()
    assert alone.gather("x", 3) == [3]
    assert alone.from_first("x", lambda: 5) == 5
    assert alone.begin_turn(is_step=True)
    assert not alone.should_stop(None, None)
    assert alone.should_stop(None, "early")
    assert not alone.is_interrupted
    assert alone.should_stop("SIGTERM", "early")
    assert alone.is_interrupted
    assert alone.stop.reason == "SIGTERM"
    alone.reset()
    assert not alone.should_stop(None, None)
