"""`python -m fspec.cli` is `fspec`."""

import sys

from fspec.cli import main

sys.exit(main())
