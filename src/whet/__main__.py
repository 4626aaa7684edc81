"""``python -m whet`` is ``whet``."""

from whet.cli.main import main

if __name__ == "__main__":
    main()
