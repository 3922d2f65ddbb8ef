"""Runs the loss doctor: ``python -m panda_rnnt.doctor MODULE:FUNCTION``."""

import sys

from panda_rnnt.doctor.command import main

if __name__ == "__main__":
    sys.exit(main())
