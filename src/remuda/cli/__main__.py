"""`python -m remuda.cli` is `remuda`."""

from remuda.cli import main

if __name__ == "__main__":
    main()
