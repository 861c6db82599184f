"""``python -m cardwise``."""

from cardwise.cli.main import main

main()
