"""`python -m spantail`: the same program as the command `spantail`."""

import sys

from spantail.cli import main

sys.exit(main())
