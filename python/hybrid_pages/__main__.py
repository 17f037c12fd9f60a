"""``python -m hybrid_pages``: the command."""

import sys

from hybrid_pages.cli import main

if __name__ == "__main__":
    sys.exit(main())
