"""A run of public traffic as one small file: as ``whet report --export``, with answers and probes.

    python -m lab.archive RUN OUT.tar.xz [--no-texts]

``--no-texts`` leaves out the answers, which are noise where an engine makes up the weights.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from whet.flow.run.export import KINDS, export_run


def main() -> None:
    """Write the archive and print its size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--no-texts", action="store_true")
    options = parser.parse_args()
    export_run(options.run, options.out, texts=not options.no_texts, kinds={*KINDS, "golden"})
    print(f"{options.out}: {options.out.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
