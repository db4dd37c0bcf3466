"""The lab: real OpenZFS, MySQL and MariaDB in User Mode Linux guests.

It uses the standard library only. A machine needs python3, root and apt. All other parts are built once into a cache
folder (see `build`) and started as ordinary processes (see `guest`).
"""
