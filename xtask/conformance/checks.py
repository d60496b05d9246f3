"""What the scripts of checks here have in common."""

import sys
import time


def refused(kind, act):
    """The error of this kind that `act` ends with."""
    try:
        act()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


def run(checks):
    """Runs them in their order and says how long each took; the first that fails ends the run with its name and why."""
    for check in checks:
        begun = time.monotonic()
        try:
            check()
        except Exception as error:
            print(f"{check.__name__}: {type(error).__name__}: {error}", file=sys.stderr)
            raise
        print(f"{check.__name__.replace('_', ' '):36} {time.monotonic() - begun:5.1f} s", flush=True)
