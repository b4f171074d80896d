"""`python -m balcal` and `torchrun -m balcal`."""

from balcal.cli import main

if __name__ == "__main__":
    main()
