"""Cause and fix of an error."""

from __future__ import annotations

import pickle

from whet.core.errors import UsageError, WhetError


def test_an_error_keeps_cause_and_fix_apart_and_joins_them_for_a_stored_reason() -> None:
    error = UsageError("the file is empty", fix="give another")
    assert (error.args, error.fix) == (("the file is empty",), "give another")
    assert str(error) == "the file is empty; give another"
    assert str(WhetError("stopped")) == "stopped"


def test_an_error_that_comes_from_another_process_keeps_its_fix() -> None:
    error = pickle.loads(pickle.dumps(UsageError("a", fix="b")))
    assert (type(error), error.args, error.fix) == (UsageError, ("a",), "b")
