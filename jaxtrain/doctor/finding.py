"""What a check comes to."""

import dataclasses

OK, WARN, FAIL, NOT_APPLICABLE = "ok", "warn", "fail", "n/a"


@dataclasses.dataclass(frozen=True)
class Finding:
    """status: "ok", "warn", "fail" or "n/a".   found: what there is.   advice: what to do, "" where nothing is."""

    status: str
    found: str
    advice: str = ""


def ok(found: str) -> Finding:
    """Say that a run can rely on this."""
    return Finding(OK, found)


def warn(found: str, advice: str) -> Finding:
    """Say that a run works, and worse or less safely than it could."""
    return Finding(WARN, found, advice)


def fail(found: str, advice: str) -> Finding:
    """Say that a run would not start, or not end well."""
    return Finding(FAIL, found, advice)


def not_applicable(found: str) -> Finding:
    """Say why there is nothing to check."""
    return Finding(NOT_APPLICABLE, found)
