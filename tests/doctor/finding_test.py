from jaxtrain.doctor import finding


def test_each_status_has_its_word():
    made = [finding.ok("a"), finding.warn("b", "do"), finding.fail("c", "do"), finding.not_applicable("d")]
    assert [(each.status, each.found, each.advice) for each in made] == [
        ("ok", "a", ""),
        ("warn", "b", "do"),
        ("fail", "c", "do"),
        ("n/a", "d", ""),
    ]
