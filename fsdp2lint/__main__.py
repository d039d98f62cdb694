"""``python -m fsdp2lint``, and the program ``fsdp2lint``."""

import signal
from typing import NoReturn


def main() -> NoReturn:
    """Run the program; until it listens for an interrupt, one ends the process without a word of Python."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from fsdp2lint.cli import main as run

    run()


if __name__ == "__main__":
    main()
