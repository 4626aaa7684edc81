"""What is held off while the clock runs comes back afterwards."""

from __future__ import annotations

import gc
import sys

from whet.load.quiet import quiet_interpreter


def test_collection_is_held_off_inside_and_costs_little_the_next_time() -> None:
    interval = sys.getswitchinterval()
    with quiet_interpreter():
        assert not gc.isenabled()
        assert sys.getswitchinterval() < interval
        frozen = gc.get_freeze_count()
    assert gc.isenabled()
    assert sys.getswitchinterval() == interval
    # Some were freed since; with ``unfreeze`` none would be left.
    assert gc.get_freeze_count() > frozen // 2 > 0
