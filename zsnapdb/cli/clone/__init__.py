"""The commands of `zsnapdb clone`. Each module contains one command or several related commands."""
